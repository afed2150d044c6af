"""An explicit-state model of replication that drives the real machines: one partition, three replicas, one register.

Everything is asynchronous: watches lag, writes to the register race, their answers get lost, brokers are suspected
wrongly, are killed, or lose the tail of their log with their machine. The decisions are the product's own: `Replica`
with its leader and follower, `LeaderEpochs` of the log, and `decide` of the controller. The model adds a log in memory,
the register, and the question whether a record that was ever committed is still on everybody who may lead.

Replicas and registers are kept in tables, a state is a tuple of numbers, and what a machine does in a local state is
remembered: so hundreds of thousands of states take seconds. `docs/replication.md` has the rules by number.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from semel.errors import ErrorCode, Refused
from semel.log.checkpoints import LeaderEpochs
from semel.machines.controller.admin import ElectLeaders
from semel.machines.controller.decide import Event, Examine, decide
from semel.machines.controller.image import Broker, Image, Topic
from semel.machines.controller.registration import LeaveUncleanly
from semel.machines.replication import values
from semel.machines.replication.follower import FollowerReplica, FollowingEvent
from semel.machines.replication.leader import LeaderReplica, LeadershipState, Progress
from semel.machines.replication.replica import Replica
from semel.machines.replication.values import Effect, FetchFrom, PartitionState, WriteState
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import Check, Multi, SetData
from semel.machines.znodes.values import TopicAssignment, decode_state

BROKERS = (0, 1, 2)
NEEDED = 2
PARTITION = TopicPartition("t", 0)
#: Later than any lag allows.
LATE_MS = 10**9

Record = tuple[int, int]


class Bounds(NamedTuple):
    """How often each thing may happen in one story."""

    writes: int
    #: Elections and removals by the controller.
    elections: int
    #: Changes of the in-sync set that leaders ask for.
    asks: int
    #: Machines that lose the tail of a log, and processes that are killed.
    losses: int = 0
    kills: int = 0
    #: Whether the controller may take a broker for dead that is not.
    false_suspicion: bool = True
    #: Whether the answer of a write may be lost.
    lost_answers: bool = True


class Flight(NamedTuple):
    """A write that a leader asked for. `done` is the version that it made, None before ZooKeeper has looked at it."""

    write: WriteState
    done: int | None = None


class Local(NamedTuple):
    """One replica: the frozen machine (None while the broker is down), its log, its checkpoint, its life."""

    machine: tuple[Any, ...] | None
    log: tuple[Record, ...]
    epochs: tuple[tuple[int, int], ...]
    high_watermark: int
    life: int
    flight: Flight | None = None
    #: Down because its machine lost power: what was not on disk is gone (E4).
    unclean: bool = False


class State(NamedTuple):
    """Numbers of the tables, and counters."""

    register: int
    version: int
    replicas: tuple[int, int, int]
    written: int
    elections: int
    asks: int
    losses: int
    kills: int
    committed: tuple[Record, ...]


#: A name and the state it leads to; or, in place of a state, what is wrong.
Step = tuple[str, State | str]


def freeze(replica: Replica) -> tuple[Any, ...]:
    role: Any = None
    match replica.role:
        case LeaderReplica() as leader:
            followers = tuple(
                (each, progress.offset, progress.broker_epoch) for each, progress in sorted(leader.followers.items())
            )
            wished = leader.wished
            role = (
                "leads", leader.state, leader.version, leader.end_offset, leader.high_watermark, leader.start_offset,
                followers, leader.status, wished,
            )  # fmt: skip
        case FollowerReplica() as follower:
            role = (
                "follows", follower.state, follower.version, follower.end_offset, follower.high_watermark,
                follower.last_epoch, follower.status,
            )  # fmt: skip
    return (
        replica.broker_id, replica.broker_epoch, replica.end_offset, replica.high_watermark, replica.last_epoch,
        replica.version, role,
    )  # fmt: skip


def thaw(frozen: tuple[Any, ...]) -> Replica:
    broker_id, broker_epoch, end_offset, high_watermark, last_epoch, version, role = frozen
    replica = Replica(broker_id, broker_epoch, BROKERS, NEEDED, end_offset, high_watermark, last_epoch, 0, version)
    if role is not None and role[0] == "leads":
        _, state, at, end, watermark, start, followers, status, wished = role
        known = {each: Progress(offset, life) for each, offset, life in followers}
        replica.role = LeaderReplica(
            broker_id, BROKERS, NEEDED, 0, state, at, end, watermark, start, 0, known, status, wished
        )
    elif role is not None:
        _, state, at, end, watermark, last, status = role
        replica.role = FollowerReplica(broker_id, broker_epoch, state, at, end, watermark, last, 0, status)
    return replica


def checkpoint_of(log: tuple[Record, ...]) -> tuple[tuple[int, int], ...]:
    """What recovery finds in the batches themselves."""
    epochs = LeaderEpochs()
    for offset, (epoch, _) in enumerate(log):
        epochs.assign(epoch, offset)
    return tuple(epochs.entries)


class Table:
    """Values by number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.values)
            self.values.append(value)
        return known


@dataclass
class Model:
    """`without` switches off what the model itself does by a rule: Z1, E4 and the checks of R8."""

    bounds: Bounds
    without: frozenset[str] = frozenset()
    registers: Table = field(default_factory=Table)
    locals: Table = field(default_factory=Table)
    _known: dict[Any, Any] = field(default_factory=dict)

    # --- one replica

    def first(self) -> State:
        register = PartitionState(0, 0, BROKERS, 0)
        numbers = []
        for broker in BROKERS:
            local, _ = self._after(
                Local(freeze(Replica(broker, 0, BROKERS, NEEDED, 0, 0, -1, 0)), (), (), 0, 0),
                lambda replica, _: replica.register(register, 0, 0),
            )
            numbers.append(self.locals.number(local))
        return State(self.registers.number(register), 0, tuple(numbers), 0, 0, 0, 0, 0, ())  # type: ignore[arg-type]

    def _after(self, local: Local, act: Any) -> tuple[Local, int]:
        """The replica after a call of its machine with all effects carried out, and the high watermark that a leader
        has now, or -1 if it did not move."""
        assert local.machine is not None
        replica = thaw(local.machine)
        log, flight = local.log, local.flight
        epochs = LeaderEpochs(list(local.epochs))
        role = replica.role
        effects: list[Effect] = act(replica, epochs)
        committed = -1
        for effect in effects:
            match effect:
                case values.BeginEpoch(epoch, start):
                    epochs.assign(epoch, start)
                case values.DropEmptyEpochs(end):
                    epochs.truncate_from_end(end)
                case values.WriteState():
                    flight = Flight(effect)
                case values.Truncate(end) | values.RestartAt(end):
                    log = log[:end]
                    epochs.truncate_from_end(end)
                    assert isinstance(role, FollowerReplica)
                    role.truncated(len(log), log[-1][0] if log else -1)
                case values.HighWatermark(offset):
                    if isinstance(replica.role, LeaderReplica):
                        committed = max(committed, offset)
        held = replica.role or replica
        frozen = freeze(replica)
        return Local(frozen, log, tuple(epochs.entries), held.high_watermark, local.life, flight), committed

    def _call(self, number: int, key: Any, act: Any) -> tuple[int, int]:
        """The same by numbers, remembered."""
        known = self._known.get((number, key))
        if known is None:
            local, committed = self._after(self.locals.values[number], act)
            known = self._known[number, key] = (self.locals.number(local), committed)
        return known

    def _write(self, number: int, record: int) -> tuple[int, int] | None:
        """The leader appends a record."""
        local: Local = self.locals.values[number]
        assert local.machine is not None
        role = thaw(local.machine).role
        if not isinstance(role, LeaderReplica):
            return None
        epoch = role.state.leader_epoch
        grown = local._replace(log=(*local.log, (epoch, record)))
        epochs = LeaderEpochs(list(local.epochs))
        epochs.assign(epoch, len(local.log))  # as the log does with the first batch of an epoch
        grown = grown._replace(epochs=tuple(epochs.entries))
        local, committed = self._after(grown, lambda replica, _: replica.role.appended(len(grown.log)))
        return self.locals.number(local), committed

    def _fetch(self, follower: int, leader: int, may_join: bool) -> tuple[int, int, int] | None:
        """A fetch from the request to its answer: both replicas after it, and what the leader has committed."""
        mine: Local = self.locals.values[follower]
        theirs: Local = self.locals.values[leader]
        assert mine.machine is not None
        if theirs.machine is None:
            return None
        asking = thaw(mine.machine)
        answering = thaw(theirs.machine)
        role = asking.role
        if not isinstance(role, FollowerReplica) or not isinstance(answering.role, LeaderReplica):
            return None
        fetch = role.next_request(0)
        if not isinstance(fetch, FetchFrom):
            return None
        told = answering.role.high_watermark  # what it was when the data was read: a follower always hears of it late
        answer = answering.role.fetched(fetch, LeaderEpochs(list(theirs.epochs)), 0, may_join=may_join)
        after, committed = self._after(
            theirs,
            lambda replica, epochs: replica.role.fetched(fetch, epochs, 0, may_join=may_join).effects,
        )
        epoch, offset = fetch.leader_epoch, fetch.offset
        mine = mine._replace(machine=freeze(asking))  # it has asked: a wait is over
        if answer.error is not ErrorCode.NONE:
            event = {
                ErrorCode.FENCED_LEADER_EPOCH: FollowingEvent.FENCED,
                ErrorCode.UNKNOWN_LEADER_EPOCH: FollowingEvent.UNKNOWN_EPOCH,
                ErrorCode.OFFSET_OUT_OF_RANGE: FollowingEvent.OFFSET_OUT_OF_RANGE,
            }.get(answer.error, FollowingEvent.DISCONNECTED)

            def failed(replica: Replica, _: LeaderEpochs) -> list[Effect]:
                replica.role.failed(epoch, event, 0)
                if event is FollowingEvent.OFFSET_OUT_OF_RANGE:
                    return replica.role.offsets(epoch, 0, len(theirs.log))
                return []

            got, _ = self._after(mine, failed)
        elif answer.diverging is not None:
            diverging = answer.diverging
            got, _ = self._after(mine, lambda replica, epochs: replica.role.diverging(epoch, diverging, epochs))
        else:
            record = theirs.log[offset : offset + 1]
            if record:
                epochs = LeaderEpochs(list(mine.epochs))
                epochs.assign(record[0][0], offset)
                mine = mine._replace(log=mine.log + record, epochs=tuple(epochs.entries))

            def data(replica: Replica, _: LeaderEpochs) -> list[Effect]:
                effects = replica.role.data(epoch, offset, offset + len(record), told)
                if record:
                    replica.role.appended(offset + 1, record[0][0])
                return effects

            got, _ = self._after(mine, data)
        return self.locals.number(got), self.locals.number(after), committed

    # --- the controller

    def _decided(self, state: State, event: Event, dead: int | None, order: tuple[int, ...]) -> tuple[Any, ...] | None:
        """The register that the real controller would write, and the life of the leader that it checks."""
        lives = tuple((self.locals.values[number].life, self._up(number)) for number in state.replicas)
        key = (state.register, state.version, event, dead, order, lives)
        if key not in self._known:
            brokers = {each: Broker(each, lives[each][0], lives[each][1] and each != dead) for each in BROKERS}
            topic = Topic("t", TopicAssignment(None, {0: order}), 0, NEEDED)
            image = Image(brokers, {"t": topic}, {PARTITION: (self.registers.values[state.register], state.version)})
            try:
                self._known[key] = self._result(decide(image, event), lives)
            except Refused:
                self._known[key] = None
        return self._known[key]

    def _result(self, multis: list[Multi], lives: Any) -> tuple[Any, ...] | None:
        for multi in multis:
            for operation in multi.operations:
                if isinstance(operation, Check) and operation.path.startswith(paths.LIVES):
                    broker = int(operation.path.rpartition("/")[2])
                    assert operation.version == lives[broker][0]  # the image is fresh here
                if isinstance(operation, SetData):
                    return self._canonical(decode_state(operation.data, operation.path)), operation.version
        return None

    def _canonical(self, register: PartitionState) -> int:
        ordered = register._replace(isr=tuple(sorted(register.isr)), elr=tuple(sorted(register.elr)))
        return self.registers.number(ordered)

    def _up(self, number: int) -> bool:
        return self.locals.values[number].machine is not None

    # --- all that can happen next

    def steps(self, state: State) -> Iterator[Step]:
        register: PartitionState = self.registers.values[state.register]
        for broker in BROKERS:
            number = state.replicas[broker]
            if self._up(number):
                yield from self._steps_of(state, register, broker, number)
            else:
                yield from self._return_of(state, register, broker, number)
        if state.elections < self.bounds.elections:
            yield from self._controller(state)

    def _put(self, state: State, broker: int, number: int, committed: int = -1, **changes: Any) -> State | str:
        replicas = list(state.replicas)
        replicas[broker] = number
        if committed >= 0:
            log = self.locals.values[number].log[:committed]
            before = state.committed
            if log[: len(before)] != before[:committed]:
                return "two records were committed at one offset"
            changes["committed"] = before if len(before) >= committed else log
        return state._replace(replicas=tuple(replicas), **changes)

    def _steps_of(self, state: State, register: PartitionState, broker: int, number: int) -> Iterator[Step]:
        bounds, local = self.bounds, self.locals.values[number]
        machine = local.machine
        role = machine[6]
        leads = role is not None and role[0] == "leads"
        if state.version > machine[5]:
            told = self._call(
                number,
                ("register", state.register, state.version),
                lambda replica, _: replica.register(register, state.version, 0),
            )
            yield f"{broker} reads", self._put(state, broker, *told)
        if leads:
            if state.written < bounds.writes:
                wrote = self._write(number, state.written)
                if wrote is not None:
                    yield f"{broker} writes", self._put(state, broker, *wrote, written=state.written + 1)
            if state.asks < bounds.asks and local.flight is None:
                told = self._call(number, "tick", lambda replica, _: replica.role.tick(LATE_MS))
                if told[0] != number:
                    yield f"{broker} shrinks", self._put(state, broker, *told, asks=state.asks + 1)
            if role[7] is LeadershipState.UNSURE:
                told = self._call(
                    number,
                    ("sync", state.register, state.version),
                    lambda replica, _: replica.register(register, state.version, 0, synced=True),
                )
                landed = self.locals.number(self.locals.values[told[0]]._replace(flight=None))
                yield f"{broker} syncs", self._put(state, broker, landed, told[1])
        elif role is not None and role[1].leader >= 0:
            leader = role[1].leader
            other = state.replicas[leader]
            may_join = state.asks < bounds.asks and self.locals.values[other].flight is None
            key = (number, other, may_join)
            if key not in self._known:
                self._known[key] = self._fetch(number, other, may_join)
            fetched = self._known[key]
            if fetched is not None and fetched[:2] != (number, other):
                asked = self.locals.values[fetched[1]].flight != self.locals.values[other].flight
                after = self._put(state, broker, fetched[0], asks=state.asks + asked)
                assert isinstance(after, State)
                yield f"{broker} fetches", self._put(after, leader, fetched[1], fetched[2])
                if bounds.lost_answers and fetched[1] != other and fetched[0] != number:
                    half = state._replace(asks=state.asks + asked)
                    yield f"{broker} fetches, and the answer is lost", self._put(half, leader, fetched[1], fetched[2])
        if local.flight is not None:
            yield from self._flight(state, register, broker, number, local)
        if state.losses < bounds.losses:
            for kept in range(len(local.log) + 1):
                down = local._replace(
                    machine=None, log=local.log[:kept], high_watermark=min(local.high_watermark, kept), unclean=True
                )
                lost = self.locals.number(down)
                yield f"{broker} loses power, keeps {kept}", self._put(state, broker, lost, losses=state.losses + 1)
        if state.kills < bounds.kills:
            killed = self.locals.number(local._replace(machine=None))
            yield f"{broker} is killed", self._put(state, broker, killed, kills=state.kills + 1)

    def _flight(self, state: State, register: PartitionState, broker: int, number: int, local: Local) -> Iterator[Step]:
        """ZooKeeper looks at the write of a leader; the answer arrives or not."""
        flight = local.flight
        assert flight is not None
        write, asked = flight.write, flight.write.version
        landed = local._replace(flight=None)
        if flight.done is not None:
            done = flight.done
            told = self._call(
                self.locals.number(landed), ("written", asked, done), lambda replica, _: written(replica, asked, done)
            )
            yield f"{broker} is answered", self._put(state, broker, *told)
        else:
            right_version = asked == state.version or "Z1" in self.without
            if right_version and self._joins(state, write):
                new = write.state
                made = self.locals.number(local._replace(flight=Flight(write, state.version + 1)))
                after = self._put(state, broker, made, register=self._canonical(new), version=state.version + 1)
                yield f"{broker} is in the register with {list(new.isr)}", after
            else:
                told = self._call(
                    self.locals.number(landed), ("refused", asked), lambda replica, _: refused(replica, asked, True)
                )
                yield f"{broker} is refused", self._put(state, broker, *told)
        if self.bounds.lost_answers:
            # A request that was sent may still be carried out until the session has synced.
            kept = local if flight.done is None else landed
            told = self._call(
                self.locals.number(kept), ("lost", asked), lambda replica, _: refused(replica, asked, False)
            )
            if told[0] != number:
                yield f"{broker}'s answer is lost", self._put(state, broker, *told)

    def _joins(self, state: State, write: WriteState) -> bool:
        """The checks of R8 in the leader's multi."""
        if write.joining is None or "R8" in self.without:
            return True
        broker, life = write.joining
        number = state.replicas[broker]
        return self._up(number) and self.locals.values[number].life == life

    def _return_of(self, state: State, register: PartitionState, broker: int, number: int) -> Iterator[Step]:
        local: Local = self.locals.values[number]
        if local.unclean and "E4" not in self.without and (broker in register.isr or broker in register.elr):
            left = self._decided(state, LeaveUncleanly(broker), None, BROKERS)
            assert left is not None
            yield f"{broker} leaves", state._replace(register=left[0], version=state.version + 1)
            return
        log = local.log
        end, last = len(log), log[-1][0] if log else -1
        replica = Replica(broker, local.life + 1, BROKERS, NEEDED, end, min(local.high_watermark, end), last, 0)
        epochs = checkpoint_of(log) if local.unclean else local.epochs
        back = Local(freeze(replica), log, epochs, replica.high_watermark, local.life + 1)
        yield f"{broker} is back", self._put(state, broker, self.locals.number(back))

    def _controller(self, state: State) -> Iterator[Step]:
        seen = set()
        suspects: list[int | None] = [None]
        suspects += [each for each in BROKERS if self.bounds.false_suspicion or not self._up(state.replicas[each])]
        for first in BROKERS:
            order = (first, *(broker for broker in BROKERS if broker != first))
            events: list[tuple[Event, int | None]] = [(Examine(), dead) for dead in suspects]
            events.append((ElectLeaders((PARTITION,)), None))
            for event, dead in events:
                decided = self._decided(state, event, dead, order)
                if decided is None or decided[0] in seen:
                    continue
                seen.add(decided[0])
                name = f"the controller: {self.registers.values[decided[0]][:3]}"
                yield name, state._replace(
                    register=decided[0], version=state.version + 1, elections=state.elections + 1
                )

    # --- when nothing fails any more

    def unsettled(self, state: State) -> str | None:
        """Lets everybody read, fetch and come back until nothing changes. Then all must be one: every replica is in
        sync and has the leader's log, and all of it is committed. What is wrong, or None."""
        bounds, self.bounds = self.bounds, Bounds(0, 10**6, 10**6, lost_answers=False)
        try:
            for _ in range(300):
                after = self._next_quietly(state)
                if after is None:
                    return self._not_one(state)
                if isinstance(after, str):
                    return after
                state = after
                wrong = self.wrong(state)
                if wrong is not None:
                    return wrong
            return "the replicas do not come to rest"
        finally:
            self.bounds = bounds

    def _next_quietly(self, state: State) -> State | str | None:
        for broker in BROKERS:
            number = state.replicas[broker]
            register = self.registers.values[state.register]
            happens = self._steps_of if self._up(number) else self._return_of
            for name, after in happens(state, register, broker, number):
                if not name.endswith("shrinks") and after != state:
                    return after
        decided = self._decided(state, Examine(), None, BROKERS)
        if decided is None:
            return None
        return state._replace(register=decided[0], version=state.version + 1, elections=state.elections + 1)

    def _not_one(self, state: State) -> str | None:
        register: PartitionState = self.registers.values[state.register]
        replicas: list[Local] = [self.locals.values[number] for number in state.replicas]
        if register.isr != BROKERS:
            logs = [each.log for each in replicas]
            return f"at rest only {register.isr} are in sync, and {register.leader} leads: {logs}"
        leader = replicas[register.leader]
        if any(each.log != leader.log for each in replicas):
            return f"at rest the logs are not one: {[each.log for each in replicas]}"
        if leader.high_watermark != len(leader.log):
            return f"at rest {leader.high_watermark} of {len(leader.log)} records are committed"
        return None

    def wrong(self, state: State) -> str | None:
        """Every record that was ever committed is on everybody who may lead next, if it is up."""
        register: PartitionState = self.registers.values[state.register]
        for broker in {*register.isr, *register.elr}:
            local: Local = self.locals.values[state.replicas[broker]]
            if local.machine is not None and local.log[: len(state.committed)] != state.committed:
                return f"broker {broker} may lead and lacks one of {state.committed}: it has {local.log}"
        return None


def written(replica: Replica, asked: int, version: int) -> list[Effect]:
    effects: list[Effect] = []
    if isinstance(replica.role, LeaderReplica):
        effects = replica.role.written(asked, version)
        replica.version = max(replica.version, replica.role.version)
    return effects


def refused(replica: Replica, asked: int, known: bool) -> list[Effect]:
    return replica.role.not_written(asked, refused=known) if isinstance(replica.role, LeaderReplica) else []


class Outcome(NamedTuple):
    steps: int
    states: int
    #: The story that went wrong, and what is wrong at its end.
    story: tuple[str, ...] = ()
    wrong: str = ""
    exhausted: bool = False


def exhaust(model: Model, *, within_s: float) -> Outcome:
    """Every state that can be reached, breadth first; stories that go wrong come out as short as they can be."""
    first = model.first()
    before: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    ends = time.monotonic() + within_s
    count = 0

    def story(state: State, last: str) -> tuple[str, ...]:
        names = [last]
        came = before[state]
        while came is not None:
            names.append(came[1])
            came = before[came[0]]
        return tuple(reversed(names))

    while waiting:
        state = waiting.popleft()
        for name, after in model.steps(state):
            count += 1
            if isinstance(after, str):
                return Outcome(count, len(before), story(state, name), after)
            if after in before:
                continue
            wrong = model.wrong(after)
            if wrong is not None:
                return Outcome(count, len(before), story(state, name), wrong)
            before[after] = (state, name)
            waiting.append(after)
        if time.monotonic() > ends:
            return Outcome(count, len(before))
    return Outcome(count, len(before), exhausted=True)


def walk(model: Model, seed: int, *, within_s: float, length: int = 70, steps: int = 10**9) -> Outcome:
    """Random stories. Rare things are made rare, so that stories get somewhere."""
    chance = random.Random(seed)
    ends = time.monotonic() + within_s
    count = 0
    while time.monotonic() < ends and count < steps:
        state, story = model.first(), []
        for _ in range(length):
            options = list(model.steps(state))
            if not options:
                break
            name, after = chance.choices(options, [_weight(option[0]) for option in options])[0]
            story.append(name)
            count += 1
            wrong = after if isinstance(after, str) else model.wrong(after)
            if wrong:
                return Outcome(count, 0, tuple(story), wrong)
            assert isinstance(after, State)
            state = after
        wrong = model.unsettled(state)
        if wrong:
            return Outcome(count, 0, (*story, "and nothing fails any more"), wrong)
    return Outcome(count, 0)


def _weight(name: str) -> float:
    if "power" in name or "killed" in name:
        return 0.04
    if name.startswith("the controller"):
        return 0.2
    return 0.5 if "shrinks" in name or "lost" in name else 1.0

"""Where the replicas and leaders of a cluster should be, with as few copies as possible: what `semel cluster balance`
carries out.

Guarantees:

- No partition has fewer replicas than before, and none has two on one broker.
- Replicas are copied only for a reason, which the plan names: a broker is to be emptied, a topic is to have more
  replicas, two replicas share a rack, or a broker holds more than others. After that brokers that may hold replicas
  differ by at most one, as far as racks allow.
- A partition is in as many racks as it can be, if every broker that runs has a rack.
- Leaders are spread by the order of replicas alone, which copies nothing.
- Brokers that do not run keep what they have, and get nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from semel.errors import ErrorCode, Refused
from semel.machines.values import TopicPartition

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """The brokers that run, with their racks, and where each partition is to be now, the preferred leader first."""

    brokers: Mapping[int, str | None]
    partitions: Mapping[TopicPartition, Replicas]
    #: Partitions that nobody leads: nothing can be copied from them.
    offline: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Wish:
    #: Brokers that are to hold nothing.
    remove: frozenset[int] = frozenset()
    #: At least so many replicas; None: as many as there are.
    replication_factor: int | None = None
    #: Only these topics are moved; None: all.
    topics: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Move:
    partition: TopicPartition
    before: Replicas
    after: Replicas
    #: Why, in words: at most one sentence per kind of change.
    reasons: tuple[str, ...]

    @property
    def copies_to(self) -> Replicas:
        return tuple(broker for broker in self.after if broker not in self.before)


@dataclass(slots=True)
class Plan:
    moves: list[Move] = field(default_factory=list)
    #: Partitions that are left as they are although they should move, and why.
    left_alone: dict[TopicPartition, str] = field(default_factory=dict)
    replicas_before: Counter[int] = field(default_factory=Counter)
    replicas_after: Counter[int] = field(default_factory=Counter)
    leaders_before: Counter[int] = field(default_factory=Counter)
    leaders_after: Counter[int] = field(default_factory=Counter)

    @property
    def copies(self) -> int:
        return sum(len(move.copies_to) for move in self.moves)


def plan(now: Situation, wish: Wish) -> Plan:
    """`Refused` if there are too few brokers for what is wished."""
    planner = _Planner(now, wish)
    _check(now, wish, planner.allowed)
    planner.move_what_must()
    planner.even_out_replicas()
    planner.even_out_leaders()
    return planner.result()


def _check(now: Situation, wish: Wish, allowed: Mapping[int, str | None]) -> None:
    factor = wish.replication_factor
    if factor is not None and factor < 1:
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be at least 1")
    if factor is not None and factor > len(allowed):
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor is to be {factor}, and {len(allowed)} brokers run that may hold replicas",
        )
    missing = sorted((wish.topics or frozenset()) - {partition.topic for partition in now.partitions})
    if missing:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {missing[0]}")


class _Planner:
    def __init__(self, now: Situation, wish: Wish) -> None:
        self._now, self._wish = now, wish
        #: The brokers that may get replicas.
        self.allowed = {broker: rack for broker, rack in now.brokers.items() if broker not in wish.remove}
        self._has_racks = bool(self.allowed) and all(rack is not None for rack in self.allowed.values())
        self._after: dict[TopicPartition, list[int]] = {each: list(now.partitions[each]) for each in now.partitions}
        self._reasons: dict[TopicPartition, dict[str, None]] = {}
        self._left_alone: dict[TopicPartition, str] = {}
        self._replicas = Counter(broker for replicas in self._after.values() for broker in replicas)
        self._of_topic = Counter(
            (partition.topic, broker) for partition, replicas in self._after.items() for broker in replicas
        )

    # What may change

    def _may_move(self, partition: TopicPartition) -> bool:
        wanted = self._wish.topics is None or partition.topic in self._wish.topics
        return wanted and partition not in self._now.offline

    def _add(self, partition: TopicPartition, broker: int, why: str) -> None:
        self._after[partition].append(broker)
        self._count(partition, broker, 1)
        self._reasons.setdefault(partition, {})[why] = None

    def _remove(self, partition: TopicPartition, broker: int) -> int:
        at = self._after[partition].index(broker)
        del self._after[partition][at]
        self._count(partition, broker, -1)
        return at

    def _replace(self, partition: TopicPartition, old: int, new: int, why: str) -> None:
        """In the place of the old one, so that the order of the others, and mostly the leader, stays."""
        at = self._remove(partition, old)
        self._add(partition, new, why)
        self._after[partition].insert(at, self._after[partition].pop())

    def _count(self, partition: TopicPartition, broker: int, by: int) -> None:
        self._replicas[broker] += by
        self._of_topic[partition.topic, broker] += by

    # Racks

    def _racks(self, replicas: list[int]) -> Counter[str | None]:
        return Counter(self._now.brokers.get(broker) for broker in replicas if broker in self._now.brokers)

    def _loses_a_rack(self, partition: TopicPartition, old: int, new: int) -> bool:
        if not self._has_racks:
            return False
        before = self._racks(self._after[partition])
        after = self._racks([new if broker == old else broker for broker in self._after[partition]])
        return len(after) < len(before)

    def _best_for(self, partition: TopicPartition) -> int | None:
        """The broker that a new replica goes to: in a new rack, holding little, little of the topic."""
        racks = self._racks(self._after[partition])
        able = [broker for broker in self.allowed if broker not in self._after[partition]]
        return min(
            able,
            key=lambda broker: (
                self._has_racks and self.allowed[broker] in racks,
                self._replicas[broker],
                self._of_topic[partition.topic, broker],
                broker,
            ),
            default=None,
        )

    # Replicas

    def move_what_must(self) -> None:
        """Empty brokers, raise replication factors, separate replicas that share a rack."""
        for partition in sorted(self._after):
            doomed = [broker for broker in self._after[partition] if broker in self._wish.remove]
            wanted = max(len(self._after[partition]), self._wish.replication_factor or 0)
            if not self._may_move(partition):
                if doomed and partition in self._now.offline:
                    self._left_alone[partition] = "nobody leads it, so its records cannot be copied from anywhere"
                continue
            for broker in doomed:
                # An away broker that is to be emptied has its replicas made anew from the others.
                new = self._best_for(partition)
                if new is None:
                    self._left_alone[partition] = "no other broker that runs is without a replica of it"
                    break
                self._replace(partition, broker, new, f"broker {broker} is to hold nothing")
            while len(self._after[partition]) < wanted:
                new = self._best_for(partition)
                if new is None:
                    self._left_alone[partition] = "every broker that runs has a replica of it already"
                    break
                self._add(partition, new, f"{wanted} replicas are wanted")
            self._separate(partition)

    def _separate(self, partition: TopicPartition) -> None:
        while self._has_racks:
            racks = self._racks(self._after[partition])
            shared = [
                broker
                for broker in reversed(self._after[partition])
                if broker in self.allowed and racks[self.allowed[broker]] > 1
            ]
            free = [
                broker
                for broker, rack in self.allowed.items()
                if rack not in racks and broker not in self._after[partition]
            ]
            if not shared or not free:
                return
            old = max(shared, key=lambda broker: self._replicas[broker])
            new = min(free, key=lambda broker: (self._replicas[broker], broker))
            self._replace(partition, old, new, f"two replicas are in rack {self.allowed[old]}")

    def even_out_replicas(self) -> None:
        """From those who hold most to those who hold least, until they differ by at most one."""
        movable = {broker: self._held_by(broker) for broker in self.allowed}
        while self._even_out_once(movable):
            continue

    def _held_by(self, broker: int) -> set[TopicPartition]:
        return {each for each, replicas in self._after.items() if broker in replicas and self._may_move(each)}

    def _even_out_once(self, movable: dict[int, set[TopicPartition]]) -> bool:
        by_load = sorted(self.allowed, key=lambda broker: (self._replicas[broker], broker))
        for over in reversed(by_load):
            for under in by_load:
                if self._replicas[over] - self._replicas[under] <= 1:
                    break
                able = [
                    partition
                    for partition in movable[over] - movable[under]
                    if under not in self._after[partition] and not self._loses_a_rack(partition, over, under)
                ]
                if able:
                    chosen = min(able, key=lambda partition: self._price(partition, over, under))
                    self._replace(chosen, over, under, f"broker {over} holds more than broker {under}")
                    movable[over].discard(chosen)
                    movable[under].add(chosen)
                    return True
        return False

    def _price(self, partition: TopicPartition, over: int, under: int) -> tuple[bool, int, bool, TopicPartition]:
        """What was to be copied to `over` anyway costs nothing; then the topic that is least even; leaders last."""
        is_old = over in self._now.partitions[partition]
        spread = self._of_topic[partition.topic, under] - self._of_topic[partition.topic, over]
        return is_old, spread, self._after[partition][0] == over, partition

    # Leaders

    def even_out_leaders(self) -> None:
        """Another replica first, along a chain of brokers if it takes one, until nobody leads two more than another."""
        while (chain := self._chain()) is not None:
            for giver, taker in pairwise(chain):
                partition = min(
                    each
                    for each, replicas in self._after.items()
                    if replicas[0] == giver and taker in replicas and self._may_move(each)
                )
                replicas = self._after[partition]
                at = replicas.index(taker)
                replicas[0], replicas[at] = replicas[at], replicas[0]
                self._reasons.setdefault(partition, {})[f"broker {chain[0]} leads more than broker {chain[-1]}"] = None

    def _chain(self) -> list[int] | None:
        """Brokers, each of which can hand a partition to the next, from one that leads too many to one with too few."""
        leads = Counter(dict.fromkeys(self.allowed, 0))
        can_give: dict[int, set[int]] = {broker: set() for broker in self.allowed}
        for partition, replicas in self._after.items():
            if replicas[0] in self.allowed:
                leads[replicas[0]] += 1
                if self._may_move(partition):
                    can_give[replicas[0]].update(each for each in replicas[1:] if each in self.allowed)
        for start in sorted(self.allowed, key=lambda broker: (-leads[broker], broker)):
            chains = {start: [start]}
            waiting = deque([start])
            while waiting:
                giver = waiting.popleft()
                for taker in sorted(can_give[giver] - chains.keys(), key=lambda broker: (leads[broker], broker)):
                    chains[taker] = [*chains[giver], taker]
                    if leads[start] - leads[taker] > 1:
                        return chains[taker]
                    waiting.append(taker)
        return None

    # The plan

    def result(self) -> Plan:
        made = Plan(left_alone=self._left_alone)
        for partition, before in sorted(self._now.partitions.items()):
            after = tuple(self._after[partition])
            made.replicas_before.update(before)
            made.replicas_after.update(after)
            made.leaders_before[before[0]] += 1
            made.leaders_after[after[0]] += 1
            if after != before:
                made.moves.append(Move(partition, before, after, tuple(self._reasons.get(partition, ()))))
        return made

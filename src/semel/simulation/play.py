"""One run of a world: brokers, workloads, faults by a schedule, the healing, and the judgement.

The order: start the brokers and let the workloads prepare; let workloads and faults go on for a while; stop the faults
and heal everything; let the workloads end, which they must do in time; read everything back; check.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.cluster.session import ZooKeeperError
from semel.config import ConfigError
from semel.errors import KafkaError
from semel.log.checkpoints import PARTITION_METADATA
from semel.machines.replication.values import PartitionState
from semel.machines.znodes.values import TopicAssignment, decode_state
from semel.simulation.disk import ProcessDied
from semel.simulation.machines import Process
from semel.simulation.world import CLUSTER_SETTINGS, BrokerNode, Clients, World
from semel.testing.history import Operation, Outcome, Send

if TYPE_CHECKING:
    from semel.simulation.faults import Strike
    from semel.simulation.workloads import Workload

#: Clients give up sooner than in production, so that what happens then happens often.
CLIENT_SETTINGS: dict[str, object] = {
    "request_timeout_ms": 3_000,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 400,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 400,
    "socket_connection_setup_timeout_ms": 2_000,
    "metadata_max_age_ms": 10_000,
}
PRODUCER_SETTINGS: dict[str, object] = {**CLIENT_SETTINGS, "delivery_timeout_ms": 12_000, "max_block_ms": 15_000}
CONSUMER_SETTINGS: dict[str, object] = {
    **CLIENT_SETTINGS,
    "session_timeout_ms": 4_000,
    "heartbeat_interval_ms": 1_000,
    "max_poll_interval_ms": 8_000,
    "default_api_timeout_ms": 10_000,
    "auto_offset_reset": "earliest",
}
#: How long after the healing everybody may take to come to an end, in virtual seconds.
LIVENESS_S = 180.0
#: How long everything rests before it is judged: longer than any transaction that was left open may take.
REST_S = 12.0
#: Faults in a minute, on average, unless asked otherwise.
FAULTS_PER_MINUTE = 18.0
#: How far ahead a record's time may be: the default of message.timestamp.after.max.ms.
MOST_AHEAD_MS = 3_600_000


class Stuck(Exception):
    """A part of the play did not come to an end. It is noted as a violation."""


@dataclass(slots=True)
class Plan:
    """What a seed decided: all that `Play` needs."""

    seed: int
    workloads: tuple[str, ...]
    duration_s: float
    durability: str
    strikes: list[Strike] = field(default_factory=list)
    #: With more than one they are a cluster, over a ZooKeeper.
    brokers: int = 1
    #: What was asked for when the strikes were drawn. Only the line that plays the plan again looks at it.
    faults: tuple[str, ...] = field(default=(), compare=False)
    faults_per_minute: float = field(default=FAULTS_PER_MINUTE, compare=False)


def registers(world: World) -> list[tuple[str, PartitionState]]:
    """What ZooKeeper says of each partition, by the path of its node."""
    return [
        (path, decode_state(node.data, path))
        for path, node in sorted(world.zookeeper.ensemble.newest.nodes.items())
        if path.startswith("/brokers/topics/") and path.endswith("/state")
    ]


class Play:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        self.world.broker_settings["semel.durability"] = plan.durability
        self.chance = self.world.chance_for("play")
        self.brokers = [
            BrokerNode(self.world, f"broker-{number}", self._settings_of(number))
            for number in range(1, plan.brokers + 1)
        ]
        self.clients = Clients(",".join(broker.address for broker in self.brokers))
        self.history: list[Operation] = []
        self.workloads: list[Workload] = []
        self.actors: list[Actor] = []
        #: Whether workloads should begin nothing new and come to an end.
        self.is_ending = False
        #: How often each kind of fault struck, and whatever else is worth counting.
        self.struck: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        #: Held while a machine is without power: what it forgot is on the others (F1).
        self.power_lock = asyncio.Lock()
        #: Who has lost it, and has perhaps not everything back.
        self.without_power: list[BrokerNode] = []
        self._number = 0

    def _settings_of(self, number: int) -> dict[str, object]:
        count = self.plan.brokers
        if count == 1:
            return {}
        replicas = min(3, count)
        return {
            **CLUSTER_SETTINGS,
            "node.id": number,
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "min.insync.replicas": 2 if replicas > 2 else 1,
        }

    def next_value(self, prefix: str) -> bytes:
        """A value that is sent once."""
        self._number += 1
        return f"{prefix}.{self._number:06d}".encode()

    # History

    def note(self, operation: Operation) -> int:
        """Note an operation. Returns its place, for `replace`."""
        self.history.append(operation)
        return len(self.history) - 1

    def sending(self, process: str, topic: str, partition: int, value: bytes, transaction: Any = None) -> int:
        """Note a record that is being sent: unless something is heard of it, its fate is unknown."""
        return self.note(Send(process, topic, partition, value, None, Outcome.UNKNOWN, transaction))

    def sent(self, place: int, offset: int | None) -> None:
        """The record that was noted there is acknowledged. An offset of -1 is none: a duplicate, long known."""
        before = self.history[place]
        offset = None if offset is None or offset < 0 else offset
        assert isinstance(before, Send)
        self.history[place] = Send(
            before.process, before.topic, before.partition, before.value, offset, Outcome.OK, before.transaction
        )

    # Processes

    def actor(self, name: str, life: Callable[[Actor], Coroutine[Any, Any, None]]) -> Actor:
        """A client on a machine of its own. It lives until the play ends; a killed one is born again."""
        actor = Actor(self, name, life)
        self.actors.append(actor)
        return actor

    async def admin(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do something with an admin client, in a process of its own."""
        process = self.world.process("admin")

        async def run() -> Any:
            async with self.clients.admin(**CLIENT_SETTINGS) as admin:
                return await work(admin)

        try:
            return await self.world.on(process, run())
        finally:
            process.die()

    # The brokers

    @property
    def is_cluster(self) -> bool:
        return len(self.brokers) > 1

    def a_broker(self, chance: random.Random) -> BrokerNode:
        """One of the brokers. Where there is only one, nothing is drawn."""
        return chance.choice(self.brokers) if self.is_cluster else self.brokers[0]

    def requests_that_may_come_again(self, since_s: float = 0.0) -> list[bytes]:
        """The last requests that the brokers heard, without those that change something when they come twice."""
        left_out = {key.to_bytes(2, "big") for workload in self.workloads for key in workload.not_repeated}
        return [frame for at_s, frame in self.world.network.heard if at_s >= since_s and frame[4:6] not in left_out]

    def everything_is_safe(self) -> bool:
        """Whether everybody who has ever lost its power is in sync again: then two replicas have all that is committed,
        in sync or eligible (E5), and one more may be lost (F1)."""
        nodes = self.world.zookeeper.ensemble.newest.nodes
        for path, state in registers(self.world):
            topic, _, number = path.removesuffix("/state").partition("/partitions/")
            replicas = TopicAssignment.decode(nodes[topic].data, topic).partitions.get(int(number), ())
            if any(each not in state.isr for each in replicas if self.brokers[each - 1] in self.without_power):
                return False
        self.without_power.clear()
        return True

    def set_for_brokers(self, settings: dict[str, object]) -> None:
        """What a workload needs, before the brokers start."""
        for broker in self.brokers:
            broker.settings |= settings

    async def restart_broker(
        self, broker: BrokerNode, end: Callable[[], Awaitable[None] | None], after_s: float
    ) -> None:
        """Let a broker end in this way, and start it again after a while. One such thing at a time."""
        async with broker.lock:
            ended = end()
            if ended is not None:
                await ended
            await asyncio.sleep(after_s)
            await self.start_broker(broker)

    async def start_broker(self, broker: BrokerNode) -> None:
        """Start a broker; a start that a fault prevents is tried again without it."""
        machine = broker.machine
        if broker.is_running:
            return
        for _ in range(20):
            if not machine.is_up:
                machine.boot()
            try:
                await broker.start()
                return
            except (OSError, ProcessDied, KafkaError, ZooKeeperError, ConfigError) as refusal:
                # A start says in words what ZooKeeper did.
                error = refusal.__cause__ if isinstance(refusal.__cause__, ZooKeeperError) else refusal
                self.counts[f"start failed: {type(error).__name__}"] += 1
                is_healthy = machine.disk.obstacle is None and machine.disk.free_bytes is None
                if is_healthy and not isinstance(error, (ProcessDied, ZooKeeperError)):
                    self.world.violated(f"{machine.name} does not start on a healthy disk: {error!r}")
                    return
                broker.kill()
                await asyncio.sleep(0.5)
                machine.disk.obstacle, machine.disk.free_bytes = None, None
        self.world.violated(f"{machine.name} does not start")

    # The run

    def run(self) -> None:
        """Play it. What must never happen is in `world.violations` afterwards."""
        with suppress(Stuck):
            self.world.run(self._story())

    async def _in_time(self, what: str, work: Awaitable[None]) -> None:
        """Do a part of the play. One that does not end is a violation, and ends the play."""
        try:
            async with asyncio.timeout(LIVENESS_S) as limit:
                await work
        except TimeoutError:
            if not limit.expired():
                raise
            self.world.violated(f"liveness: {what} did not come to an end within {LIVENESS_S:g} s")
            raise Stuck from None

    async def _story(self) -> None:
        from semel.simulation import checkers, faults, workloads

        world = self.world
        # A workload may ask for settings of the broker.
        self.workloads = [workloads.WORKLOADS[name](self) for name in self.plan.workloads]
        for broker in self.brokers:
            await self._in_time(f"the start of {broker.machine.name}", broker.start())
        watchers = [asyncio.ensure_future(checker(self)) for checker in checkers.WHILE_RUNNING.values()]
        for workload in self.workloads:
            await self._in_time(f"the preparation of {type(workload).__name__}", workload.prepare())
        for actor in self.actors:
            actor.start()
        begin = world.loop.time()
        striking = [(one, asyncio.ensure_future(faults.strike(self, begin, one))) for one in self.plan.strikes]
        await asyncio.sleep(self.plan.duration_s)
        for one, task in striking:
            await self._in_time(f"the fault {one}", task)
        await self._in_time("the healing", self._heal())
        self.is_ending = True
        await self._end_of_actors()
        await asyncio.sleep(REST_S)
        if not world.violations:
            for name, checker in checkers.AT_REST.items():
                try:
                    async with asyncio.timeout(LIVENESS_S):
                        await checker(self)
                except TimeoutError:
                    world.violated(f"liveness: {name} did not get its answers within {LIVENESS_S:g} s of rest")
                except KafkaError as error:
                    world.violated(f"{name}: {type(error).__name__}: {error}")
        for task in watchers:
            task.cancel()
        for broker in self.brokers:
            if broker.is_running:
                await self._in_time(f"the stop of {broker.machine.name}", broker.stop())
        if not world.violations:
            for check in checkers.ON_THE_FILES.values():
                check(self)

    async def _heal(self) -> None:
        """Everything works again: the network, the disk, the machines. A clock that was set back is as fast again as it
        ever was: until then a transaction that began before does not time out, as in Kafka. For the same reason all
        brokers have the fastest clock that one of them had: its transactions may be another one's by now. And no client
        is so far ahead that its records are refused for ever."""
        self.world.network.heal_all()
        self.world.network.conditions.reset()
        if self.is_cluster:
            self._heal_zookeeper()
        for machine in self.world.machines:
            machine.disk.obstacle, machine.disk.free_bytes, machine.slowness = None, None, 1.0
            machine.clock_error_ms = machine.fastest_error_ms
            if not machine.is_up:
                machine.boot()
            for process in machine.processes:
                process.go_on()
        fastest_ms = max(broker.machine.fastest_error_ms for broker in self.brokers)
        for broker in self.brokers:
            broker.machine.clock_error_ms = broker.machine.fastest_error_ms = fastest_ms
        for machine in self.world.machines:
            machine.clock_error_ms = min(machine.clock_error_ms, fastest_ms + MOST_AHEAD_MS)
        for broker in self.brokers:
            async with broker.lock:
                await self.start_broker(broker)
                if broker.has_failed:
                    # What a person does after a disk failed: a restart recovers.
                    await broker.stop()
                    # And after a bit of a topic id went bad and a crash took the stop's checksum of it, as told.
                    broker.machine.disk.restore(PARTITION_METADATA)
                    await asyncio.sleep(0.2)
                    await self.start_broker(broker)

    def _heal_zookeeper(self) -> None:
        zookeeper = self.world.zookeeper
        zookeeper.lag_of_server.clear()
        for server in zookeeper.servers:
            if not server.up:
                zookeeper.start(server.number)
        for broker in self.brokers:
            if broker.session is not None:
                broker.session.heal()
                broker.session.answers_to_lose, broker.session.requests_late_s = 0, 0.0

    async def _end_of_actors(self) -> None:
        left = [actor.over for actor in self.actors if not actor.over.done()]
        if left:
            await asyncio.wait(left, timeout=LIVENESS_S)
        for actor in self.actors:
            if not actor.over.done():
                self.world.violated(f"liveness: {actor.name} is not done {LIVENESS_S:g} s after the healing")
                actor.kill(for_good=True)


class Actor:
    """A client through all its lives."""

    def __init__(self, play: Play, name: str, life: Callable[[Actor], Coroutine[Any, Any, None]]) -> None:
        self.play = play
        self.name = name
        self._life = life
        self.chance: random.Random = play.world.chance_for(f"actor {name}")
        self.process: Process | None = None
        self.lives = 0
        self.over: asyncio.Future[None] = play.world.loop.create_future()
        self._for_good = False

    @property
    def who(self) -> str:
        """The name of this life."""
        return f"{self.name}#{self.lives}"

    def start(self) -> None:
        task = asyncio.ensure_future(self._live())
        task.add_done_callback(self._all_over)

    def _all_over(self, task: asyncio.Future[None]) -> None:
        if not self.over.done():
            self.over.set_result(None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.play.world.violated(f"{self.name}: {type(error).__name__}: {error}")

    async def _live(self) -> None:
        world = self.play.world
        while not self._for_good:
            process = self.process = world.process(self.name)
            self.lives += 1
            try:
                await process.result_of(self._life(self))
                return
            except ProcessDied:
                self.play.counts["clients killed"] += 1
            except KafkaError as error:
                self.play.counts[f"{self.name.rpartition('-')[0]} ended by {type(error).__name__}"] += 1
            finally:
                process.die()
            await asyncio.sleep(0.05 + self.chance.random())

    def kill(self, *, for_good: bool = False) -> None:
        self._for_good = self._for_good or for_good
        if self.process is not None:
            self.process.die()

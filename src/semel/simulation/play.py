"""One run of a world: a broker, workloads, faults by a schedule, the healing, and the judgement.

The order: start the broker and let the workloads prepare; let workloads and faults go on for a while; stop the faults
and heal everything; let the workloads end, which they must do in time; read everything back; check.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import KafkaError
from semel.simulation.disk import ProcessDied
from semel.simulation.machines import Process
from semel.simulation.world import BrokerNode, Clients, World
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


@dataclass(slots=True)
class Plan:
    """What a seed decided. Its text is a part of the line that replays a failure."""

    seed: int
    workloads: tuple[str, ...]
    duration_s: float
    durability: str
    strikes: list[Strike] = field(default_factory=list)


class Play:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        self.world.broker_settings["semel.durability"] = plan.durability
        self.chance = self.world.chance_for("play")
        self.broker = BrokerNode(self.world)
        self.clients = Clients(self.broker.address)
        self.history: list[Operation] = []
        self.workloads: list[Workload] = []
        self.actors: list[Actor] = []
        #: Whether workloads should begin nothing new and come to an end.
        self.is_ending = False
        #: How often each kind of fault struck, and whatever else is worth counting.
        self.struck: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        #: Whether the broker should be running: a fault that stops it sets this, and starts it again.
        self._broker_lock = asyncio.Lock()
        self._number = 0

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
        """The record that was noted there is acknowledged."""
        before = self.history[place]
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

    # The broker

    async def restart_broker(self, end: Callable[[], Awaitable[None] | None], after_s: float) -> None:
        """Let the broker end in this way, and start it again after a while. One such thing at a time."""
        async with self._broker_lock:
            ended = end()
            if ended is not None:
                await ended
            await asyncio.sleep(after_s)
            await self.start_broker()

    async def start_broker(self) -> None:
        """Start the broker; a start that a fault prevents is tried again without it."""
        machine = self.broker.machine
        if self.broker.is_running:
            return
        for _ in range(20):
            if not machine.is_up:
                machine.boot()
            try:
                await self.broker.start()
                return
            except (OSError, ProcessDied, KafkaError) as error:
                self.counts[f"start failed: {type(error).__name__}"] += 1
                is_healthy = machine.disk.obstacle is None and machine.disk.free_bytes is None
                if is_healthy and not isinstance(error, ProcessDied):
                    self.world.violated(f"the broker does not start on a healthy disk: {error!r}")
                    return
                self.broker.kill()
                await asyncio.sleep(0.5)
                machine.disk.obstacle, machine.disk.free_bytes = None, None
        self.world.violated("the broker does not start")

    # The run

    def run(self) -> None:
        """Play it. What must never happen is in `world.violations` afterwards."""
        self.world.run(self._story())

    async def _story(self) -> None:
        from semel.simulation import checkers, faults, workloads

        world = self.world
        # A workload may ask for settings of the broker.
        self.workloads = [workloads.WORKLOADS[name](self) for name in self.plan.workloads]
        await self.broker.start()
        watchers = [asyncio.ensure_future(checker(self)) for checker in checkers.WHILE_RUNNING.values()]
        for workload in self.workloads:
            await workload.prepare()
        for actor in self.actors:
            actor.start()
        begin = world.loop.time()
        striking = [asyncio.ensure_future(faults.strike(self, begin, one)) for one in self.plan.strikes]
        await asyncio.sleep(self.plan.duration_s)
        for task in striking:
            await task
        await self._heal()
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
        if self.broker.is_running:
            await self.broker.stop()
        if not world.violations:
            for check in checkers.ON_THE_FILES.values():
                check(self)

    async def _heal(self) -> None:
        """Everything works again: the network, the disk, the machines. Clocks stay as wrong as they are."""
        self.world.network.heal_all()
        self.world.network.conditions.reset()
        for machine in self.world.machines:
            machine.disk.obstacle, machine.disk.free_bytes, machine.slowness = None, None, 1.0
            if not machine.is_up:
                machine.boot()
            for process in machine.processes:
                process.go_on()
        async with self._broker_lock:
            await self.start_broker()
            server = self.broker.server
            assert server is not None
            has_failed = any(
                partition.offline is not None
                or (partition.open_log is not None and partition.open_log.failed is not None)
                for partition in server.topics.all_partitions()
            )
            if has_failed or server.topics.gone is not None or server.fatal_error is not None:
                # What a person does after a disk failed: a restart recovers.
                await self.broker.stop()
                await asyncio.sleep(0.2)
                await self.start_broker()

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

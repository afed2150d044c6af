"""One world: its loop, its network, its machines, its ZooKeeper, and the brokers and clients. A seed decides all."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import random
import sys
import warnings
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from semel.broker.server import BrokerServer
from semel.broker.topics.registry import TopicRegistry
from semel.client.admin.admin import AsyncAdmin
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.producer.producer import AsyncProducer
from semel.client.session import AsyncTransactSession
from semel.cluster.session import ZooKeeperSession
from semel.config import BROKER, Values
from semel.errors import Misuse, Refused
from semel.simulation.disk import ProcessDied
from semel.simulation.drawn_secrets import drawn_secrets
from semel.simulation.event_loop import PROCESS, VirtualTimeLoop, without_a_list_of_tasks
from semel.simulation.machines import Machine, Process
from semel.simulation.network import Network
from semel.simulation.trace import Trace
from semel.simulation.zookeeper import Delays, SimulatedSession, SimulatedZooKeeper

_Result = TypeVar("_Result")

DATA = "/data"
PORT = 9092

#: Few partitions of the broker's own and small files, so that every mechanism has its turn within minutes.
BROKER_SETTINGS: dict[str, object] = {
    "log.dirs": DATA,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "log.segment.bytes": 6_000,
    "log.index.interval.bytes": 500,
    "log.cleaner.backoff.ms": 5_000,
    "log.retention.check.interval.ms": 10_000,
    "log.flush.offset.checkpoint.interval.ms": 7_000,
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.session.timeout.ms": 4_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
}
#: What brokers of a cluster have besides: whoever is slow or gone is soon known to be.
CLUSTER_SETTINGS: dict[str, object] = {
    "zookeeper.connect": "zookeeper:2181",
    "zookeeper.session.timeout.ms": 3_000,
    "replica.lag.time.max.ms": 3_000,
    "leader.imbalance.check.interval.seconds": 15,
}
ZOOKEEPER_SERVERS, ZOOKEEPER_TICK_MS = 3, 500


class Violation(AssertionError):
    """The world did something that must never happen."""


class World:
    """A seeded world. Use `run` once."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.chance = self.chance_for("world")
        self.loop = VirtualTimeLoop()
        self.trace = Trace(self.loop.time)
        self.network = Network(self)
        self.loop.network = self.network
        self.loop.on_failure = self._callback_failed
        self._machines: dict[str, Machine] = {}
        self._processes = 0
        #: What went wrong. The run fails if anything is in it.
        self.violations: list[str] = []
        self.broker_settings = dict(BROKER_SETTINGS)
        self.is_over = False
        self._zookeeper: SimulatedZooKeeper | None = None

    def chance_for(self, whose: str) -> random.Random:
        """A source of chance of one's own: what one part draws does not change what another one gets."""
        return random.Random(f"{self.seed} {whose}")

    @property
    def zookeeper(self) -> SimulatedZooKeeper:
        """The world's ZooKeeper, which is made when somebody first asks for it."""
        if self._zookeeper is None:
            # In a context of its own: it belongs to no process, whoever asks first.
            self._zookeeper = contextvars.Context().run(
                SimulatedZooKeeper,
                self.loop,
                self.chance_for("zookeeper"),
                servers=ZOOKEEPER_SERVERS,
                tick_ms=ZOOKEEPER_TICK_MS,
                delays=Delays(latency_ms=(0.2, 1.5), lag_ms=(0.0, 3.0)),
            )
            ensemble, spread = self._zookeeper.ensemble, self._zookeeper.ensemble.on_transaction

            def decided() -> None:
                self.trace.note("zookeeper", str(ensemble.newest.zxid))
                spread()

            ensemble.on_transaction = decided
        return self._zookeeper

    # Machines and processes

    def machine(self, name: str) -> Machine:
        """The machine of this name, which is made if there is none."""
        found = self._machines.get(name)
        if found is None:
            found = self._machines[name] = Machine(self, name)
        return found

    @property
    def machines(self) -> list[Machine]:
        return list(self._machines.values())

    def next_process_number(self) -> int:
        self._processes += 1
        return self._processes

    def process(self, machine: str, name: str = "") -> Process:
        """A new process on a machine."""
        return Process(self.machine(machine), name or machine)

    async def on(self, process: Process, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """What a coroutine returns that runs in a process."""
        result: _Result = await process.result_of(coroutine)
        return result

    def violated(self, what: str) -> None:
        """Note something that must never happen."""
        self.violations.append(f"{self.loop.time() - 1000:.3f} s: {what}")
        self.trace.note("violated", what)

    def _callback_failed(self, process: Process | None, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ProcessDied):
            return
        if self.is_over and error is None:
            return  # tasks of the world that the end of its story has left behind
        whose = "the world" if process is None else process.name
        self.violated(f"in {whose}: {context.get('message')}: {type(error).__name__}: {error}")

    # Running

    def run(self, story: Coroutine[Any, Any, _Result]) -> _Result:
        """Play a story to its end, and stop everything."""
        was_enabled = gc.isenabled()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the processes of another world
            gc.collect()
        if not gc.get_freeze_count():
            gc.freeze()  # modules and classes stay: nobody need look at them again before each world
        gc.disable()  # its moments would depend on what ran before
        asyncio.set_event_loop(self.loop)
        logging.getLogger("semel").setLevel(logging.CRITICAL + 1)
        hook, sys.unraisablehook = sys.unraisablehook, _ignore_killed
        try:
            with warnings.catch_warnings(), drawn_secrets(self.chance_for("secrets")), without_a_list_of_tasks():
                # Of processes that were killed.
                warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
                warnings.filterwarnings("ignore", category=ResourceWarning)
                try:
                    return self.loop.run_until_complete(story)
                finally:
                    self.is_over = True
                    asyncio._set_running_loop(self.loop)
                    for machine in self.machines:
                        for process in tuple(machine.processes):
                            process.die(told=False)
                    asyncio._set_running_loop(None)
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
            sys.unraisablehook = hook
            logging.getLogger("semel").setLevel(logging.NOTSET)
            if was_enabled:
                gc.enable()


def _ignore_killed(problem: sys.UnraisableHookArgs) -> None:
    """A coroutine of a killed process was waiting in a `finally` block, or began to wait in one, which only a task can,
    or asked a client there, which belongs to no process any more. Anything else is told as usual."""
    said = str(problem.exc_value) if isinstance(problem.exc_value, (RuntimeError, Misuse)) else ""
    if not any(known in said for known in ("GeneratorExit", "inside a task", "made before a fork")):
        sys.__unraisablehook__(problem)


class BrokerNode:
    """A broker on a machine of its own, through all its lives."""

    def __init__(self, world: World, name: str = "broker-1", settings: Mapping[str, object] | None = None) -> None:
        self.world = world
        self.machine = world.machine(name)
        #: Held by whoever ends it and starts it again.
        self.lock = asyncio.Lock()
        #: Of this life with ZooKeeper, in a cluster.
        self.session: SimulatedSession | None = None
        self.settings = {**world.broker_settings, "listeners": f"PLAINTEXT://{name}:{PORT}", **(settings or {})}
        self.process: Process | None = None
        self.server: BrokerServer | None = None
        self.starts = self.crashes = 0
        self.address = f"{name}:{PORT}"

    async def start(self) -> None:
        """Start, and return once clients can connect."""
        process = self.process = self.world.process(self.machine.name, f"{self.machine.name}")
        self.starts += 1
        self.world.trace.note("starts", process.name)
        settings = BROKER.parse(self.settings)

        async def begin() -> None:
            server = self.server = BrokerServer(
                settings,
                files=process.files,
                environment=process.environment,
                open_session=lambda values: self._open_session(process, values),
            )
            handle_failure = server.handle_failure

            def failed(error: BaseException) -> None:
                """Nothing may surprise the broker, except its disk."""
                if process.is_alive and not isinstance(error, (OSError, Refused, ProcessDied)):
                    self.world.violated(f"{process.name} failed: {type(error).__name__}: {error}")
                handle_failure(error)

            server.handle_failure = failed  # type: ignore[method-assign]
            await server.start()

        await self.world.on(process, begin())

    async def _open_session(self, process: Process, settings: Values) -> ZooKeeperSession:
        timeout_ms = settings["zookeeper.session.timeout.ms"]
        session = self.session = SimulatedSession(self.world.zookeeper, session_timeout_ms=timeout_ms)

        def died() -> None:
            session._open.clear()  # nobody is there who could be told
            session.abandon()

        process.on_death.append(died)
        return await session.open(timeout_ms=timeout_ms)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def topics(self) -> TopicRegistry | None:
        """Its topics; None while it does not run, and until its start has come to them."""
        server = self.server
        if server is None or not self.is_running or not hasattr(server, "topics"):
            return None
        return server.topics

    @property
    def has_failed(self) -> bool:
        """Whether it needs a restart to serve all of its data again."""
        server = self.server
        assert server is not None
        if not hasattr(server, "topics"):
            return True  # it did not get so far
        if server.stopped.is_set() or server.fatal_error is not None or server.topics.gone is not None:
            return True
        return any(
            partition.offline is not None or (partition.open_log is not None and partition.open_log.failed is not None)
            for partition in server.topics.all_partitions()
        )

    async def stop(self) -> None:
        """Stop it in order."""
        if self.process is not None and self.process.is_alive:
            assert self.server is not None
            self.process.go_on()
            with suppress(ProcessDied):  # a fault was faster
                await self.world.on(self.process, self.server.stop())
            self.process.die()

    def kill(self) -> None:
        """End the process at this moment; the machine goes on."""
        if self.process is not None:
            self.crashes += 1
            self.process.die()

    def lose_power(self) -> None:
        self.crashes += 1
        self.machine.lose_power()


class Clients:
    """Makes clients, each in the process that runs the caller."""

    def __init__(self, bootstrap: str) -> None:
        self.settings = {"bootstrap.servers": bootstrap}

    def producer(self, **settings: object) -> AsyncProducer:
        return _noted(AsyncProducer({**self.settings, **_dotted(settings)}, environment=_here().environment))

    def consumer(self, **settings: object) -> AsyncConsumer:
        return _noted(AsyncConsumer({**self.settings, **_dotted(settings)}, environment=_here().environment))

    def admin(self, **settings: object) -> AsyncAdmin:
        return _noted(AsyncAdmin({**self.settings, **_dotted(settings)}, environment=_here().environment))

    def session(self, **settings: object) -> AsyncTransactSession:
        session = AsyncTransactSession({**self.settings, **_dotted(settings)}, environment=_here().environment)
        _noted(session._producer)
        _noted(session._consumer)
        return session


def _dotted(settings: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def _here() -> Process:
    process = PROCESS.get()
    assert process is not None, "a client belongs to a process"
    return process


_Client = TypeVar("_Client", AsyncProducer, AsyncConsumer, AsyncAdmin)


def _noted(client: _Client) -> _Client:
    """Its process knows it, whose end is its end."""
    _here().origins.append(client.cluster.origin if isinstance(client, AsyncAdmin) else client._cluster.origin)
    return client


Callback = Callable[[], None]

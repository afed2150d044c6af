"""Brokers of a cluster as processes, over a real ZooKeeper: each may be killed, frozen and started again."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from semel.wire.messages.metadata import MetadataRequest
from tests.broker.raw import Raw
from tests.support.network import HERE, Machine
from tests.support.processes import Process, lasting_port
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeper

#: Long enough for a busy machine. What must be noticed sooner is noticed by death certificates.
SESSION_TIMEOUT_MS = 10_000


class ClusterBroker:
    """One broker process; its data and port stay the same over its lives."""

    def __init__(
        self, number: int, directory: Path, connect: str, settings: dict[str, object], machine: Machine = HERE
    ) -> None:
        self.number = number
        self.machine = machine
        self.place = directory
        self.directory = directory / f"broker-{number}"
        #: `port` among the settings is for who has to know it before.
        self.port = int(str(settings.get("port", 0))) or lasting_port()
        self._settings = {
            "node.id": number,
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": self.directory,
            "zookeeper.connect": connect,
            **{name: value for name, value in settings.items() if name != "port"},
        }
        self._lives = 0
        self.process: Process | None = None

    @property
    def address(self) -> str:
        return f"{self.machine.address}:{self.port}"

    def launch(self) -> None:
        """Starts the process and does not wait for it."""
        self._lives += 1
        options = [part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")]
        start = [sys.executable, "-m", "semel", "broker", "start", "--log-level", "info"]
        command = [*self.machine.prefix, *start, *options]
        output = self.place / f"broker-{self.number}-life-{self._lives}.log"
        self.process = Process(command, name=f"broker-{self.number}", output=output)

    def start(self) -> None:
        self.launch()
        self.wait()

    def wait(self, *, within_s: float = 60.0) -> None:
        """Until it has told that it is ready: it is registered then."""
        self.running.wait_for_line(self.address, within_s=within_s)

    @property
    def running(self) -> Process:
        assert self.process is not None, "the broker was not started"
        return self.process

    def kill9(self) -> None:
        self.running.kill9()

    def freeze(self) -> None:
        self.running.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.running.signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process is not None:
            self.thaw()
            self.process.close()


class Cluster:
    """Several brokers, numbered from 1."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        directory: Path,
        brokers: int,
        settings: dict[str, object],
        own: dict[int, dict[str, object]],
        machines: Sequence[Machine] = (),
    ) -> None:
        self.zookeeper = zookeeper
        self.brokers = {
            number: ClusterBroker(
                number, directory, zookeeper.connect, {**settings, **own.get(number, {})}, machine
            )
            for number, machine in enumerate(machines or [HERE] * brokers, 1)
        }

    def __getitem__(self, number: int) -> ClusterBroker:
        return self.brokers[number]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def has_controller(self) -> bool:
        """Whether every broker names one."""
        for broker in self.brokers.values():
            with Raw(broker.address) as raw:
                if raw.ask(MetadataRequest(topics=[]), 9).controller_id < 0:
                    return False
        return True

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()


@contextmanager
def running_cluster(
    brokers: int = 3,
    *,
    session_timeout_ms: int | None = SESSION_TIMEOUT_MS,
    own_settings: dict[int, dict[str, object]] | None = None,
    zookeeper: ZooKeeper | None = None,
    machines: Sequence[Machine] = (),
    keep_in: Path | None = None,
    **settings: object,
) -> Iterator[Cluster]:
    """A ZooKeeper and its brokers. Settings by Kafka's names, with underscores for dots. None: the broker's default.

    `own_settings`: those of single brokers, under their names.
    `zookeeper` is one that was not started yet, else it has one node. With `keep_in` the data stays, in that directory.
    """
    directory = keep_in or Path(tempfile.mkdtemp(prefix="cluster-"))
    zookeeper = zookeeper or ZooKeeper()
    given = {name.replace("_", "."): value for name, value in settings.items()}
    if session_timeout_ms is not None:
        given = {"zookeeper.session.timeout.ms": session_timeout_ms, **given}
    cluster = Cluster(zookeeper, directory, brokers, given, own_settings or {}, machines)
    try:
        zookeeper.start()
        for broker in cluster.brokers.values():
            broker.launch()
        for broker in cluster.brokers.values():
            broker.wait()
        # librdkafka's admin client that is told once that there is no controller does not ask again for minutes.
        until(cluster.has_controller, within_s=60, what="every broker to know the controller")
        yield cluster
    finally:
        cluster.close()
        zookeeper.close()
        if keep_in is None:
            shutil.rmtree(directory, ignore_errors=True)

"""Brokers of a cluster as processes, over a real ZooKeeper: each may be killed, frozen and started again."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import Process, free_port
from tests.support.zookeeper import ZooKeeper

#: Long enough for a busy machine. What must be noticed sooner is noticed by death certificates.
SESSION_TIMEOUT_MS = 10_000


class ClusterBroker:
    """One broker process; its data and port stay the same over its lives."""

    def __init__(self, number: int, directory: Path, connect: str, settings: dict[str, object]) -> None:
        self.number = number
        self.place = directory
        self.directory = directory / f"broker-{number}"
        self.port = free_port()
        self._settings = {
            "node.id": number,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": self.directory,
            "zookeeper.connect": connect,
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            **settings,
        }
        self._lives = 0
        self.process: Process | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Starts the process and does not wait for it."""
        self._lives += 1
        options = [part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "semel", "broker", "start", "--log-level", "info", *options]
        output = self.place / f"broker-{self.number}-life-{self._lives}.log"
        self.process = Process(command, name=f"broker-{self.number}", output=output)

    def start(self) -> None:
        self.launch()
        self.wait()

    def wait(self, *, within_s: float = 60.0) -> None:
        """Until it has told that it is ready: it is registered then."""
        self.running.wait_for_line(f"127.0.0.1:{self.port}", within_s=within_s)

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

    def __init__(self, zookeeper: ZooKeeper, directory: Path, brokers: int, settings: dict[str, object]) -> None:
        self.zookeeper = zookeeper
        self.brokers = {
            number: ClusterBroker(number, directory, zookeeper.connect, settings) for number in range(1, brokers + 1)
        }

    def __getitem__(self, number: int) -> ClusterBroker:
        return self.brokers[number]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()


@contextmanager
def running_cluster(brokers: int = 3, **settings: object) -> Iterator[Cluster]:
    """A ZooKeeper and its brokers. Settings by Kafka's names, with underscores for dots."""
    directory = Path(tempfile.mkdtemp(prefix="cluster-"))
    zookeeper = ZooKeeper()
    given = {name.replace("_", "."): value for name, value in settings.items()}
    cluster = Cluster(zookeeper, directory, brokers, given)
    try:
        zookeeper.start()
        for broker in cluster.brokers.values():
            broker.launch()
        for broker in cluster.brokers.values():
            broker.wait()
        yield cluster
    finally:
        cluster.close()
        zookeeper.close()
        shutil.rmtree(directory, ignore_errors=True)

"""Apache Kafka itself, in KRaft combined mode, for tests that compare and for the bench: one broker, or three."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support import java_tools
from tests.support.processes import Process, free_port

#: Any 16 bytes in URL-safe base64 will do; a fixed one keeps runs alike.
CLUSTER_ID = "c2VtZWwtdGVzdC1rYWZrYQ"

#: The heap is small because tests share the machine; the bench passes its own.
SMALL_JVM = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", java_tools.QUICK_COMPILER, "-Xshare:auto")


class ApacheKafka:
    """Formats a directory, starts the broker in it, and removes both at the end."""

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        jvm: tuple[str, ...] = SMALL_JVM,
        directory: Path | None = None,
    ) -> None:
        self._owns_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        self.port = free_port()
        self.controller_port = free_port()
        self.jvm = jvm
        self.data = self.directory / "data"
        self.process: Process | None = None
        self._properties = self.directory / "server.properties"
        values: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **(settings or {}),
        }
        self._properties.parent.mkdir(parents=True, exist_ok=True)
        self._values = values
        self.set_properties({})

    def set_properties(self, settings: Mapping[str, object]) -> None:
        """More settings, for those that have to know the ports; before it is started."""
        self._values.update(settings)
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self._values.items()))

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> Process:
        assert self.process is not None, "Apache Kafka was not started"
        return self.process

    def start(self, *, within_s: float = 60.0) -> ApacheKafka:
        self.format()
        self.launch()
        try:
            self.wait_until_started(within_s=within_s)
        except BaseException:
            self.close()  # nobody else would: the caller has no hold on a broker that never came up
            raise
        return self

    def wait_until_started(self, *, within_s: float = 60.0) -> None:
        self.running.wait_for_line("Kafka Server started", within_s=within_s)

    def format(self) -> None:
        if not (self.data / "meta.properties").exists():
            java_tools.run("storage", "format", "-t", CLUSTER_ID, "-c", self._properties)

    def launch(self) -> Process:
        """Starts the process and does not wait for it. What an earlier one has said is put aside."""
        said = self.directory / "server.log"
        if said.exists():
            said.rename(said.with_suffix(f".{time.time_ns()}.log"))
        jvm = (*self.jvm, "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info")
        command = java_tools.command("kafka.Kafka", [self._properties], jvm=jvm)
        self.process = Process(command, name="apache-kafka", output=said)
        return self.process

    def kill9(self) -> None:
        self.running.kill9()

    def stop(self) -> int:
        """A clean stop; the exit code."""
        return self.running.terminate()

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
        if self._owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> ApacheKafka:
        return self.start() if self.process is None else self

    def __exit__(self, *_: object) -> None:
        self.close()


class ThreeApacheKafkas:
    """A cluster of three nodes, each broker and controller. All topics have three replicas, two of them in sync."""

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        jvm: tuple[str, ...] = ("-Xmx256m", "-Xms64m", *SMALL_JVM[2:]),
    ) -> None:
        chosen = settings or {
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.min.isr": 2,
            "transaction.state.log.num.partitions": 3,
            # A node that is dead is noticed soon.
            "broker.session.timeout.ms": 4000,
            "broker.heartbeat.interval.ms": 500,
        }
        self.nodes = {number: ApacheKafka(settings={**chosen, "node.id": number}, jvm=jvm) for number in (1, 2, 3)}
        voters = ",".join(f"{number}@127.0.0.1:{node.controller_port}" for number, node in self.nodes.items())
        for node in self.nodes.values():
            node.set_properties({"controller.quorum.voters": voters})

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    def __enter__(self) -> ThreeApacheKafkas:
        try:
            for node in self.nodes.values():
                node.format()
                node.launch()
            for node in self.nodes.values():
                node.wait_until_started(within_s=180)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()

    def __exit__(self, *_: object) -> None:
        self.close()

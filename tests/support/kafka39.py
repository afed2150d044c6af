"""Apache Kafka 3.9 on ZooKeeper: brokers on directories and ports that Semel may have had, or gets next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import Process, free_port
from tests.support.requirements import kafka39_jars

JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
JUDGE = Path(__file__).with_name("ReadZnodes.java")


def _classes() -> str:
    return os.pathsep.join(map(str, kafka39_jars()))


def read_znodes(connect: str) -> list[str]:
    """What Kafka 3.9's own KafkaZkClient reads in a ZooKeeper, a line for each thing."""
    done = subprocess.run(
        ["java", *JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", _classes(), str(JUDGE), connect],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


class EitherBroker:
    """One broker's directory, port and server.properties: Kafka 3.9 or Semel runs there, one after the other."""

    def __init__(self, number: int, place: Path, connect: str, settings: dict[str, object]) -> None:
        self.number = number
        self.directory = place / f"broker-{number}"
        self.port = free_port()
        self._place = place
        self._lives = 0
        self._properties = place / f"server-{number}.properties"
        own = {
            "broker.id": number,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": self.directory,
            "zookeeper.connect": connect,
            "zookeeper.session.timeout.ms": 10_000,
            **settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
        self.process: Process | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self, *, kafka: bool) -> None:
        self._lives += 1
        if kafka:
            log = "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaServer=info"
            quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
            command = ["java", *JVM, quiet, log, "-cp", _classes(), "kafka.Kafka", str(self._properties)]
        else:
            command = [sys.executable, "-m", "semel", "broker", "start", "--log-level", "info"]
            command += ["--config", str(self._properties)]
        name = f"{'kafka' if kafka else 'semel'}-{self.number}"
        self.process = Process(command, name=name, output=self._place / f"{name}-{self._lives}.log")

    def wait(self) -> None:
        assert self.process is not None
        self.process.wait_for_line(r"KafkaServer id=\d+\] started|broker ready on", within_s=150)

    def stop(self) -> None:
        """A clean stop."""
        assert self.process is not None
        self.process.terminate(within_s=90)

    def close(self) -> None:
        if self.process is not None:
            self.process.close()

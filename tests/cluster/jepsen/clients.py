"""Who uses the cluster while it is under fire, besides the writers and copiers of `tests/broker/soak.py`."""

from __future__ import annotations

import logging
import os
import random
import re
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, ClassVar, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from semel.testing.history import Outcome, Send
from tests.broker.soak import Copier, Record, Writer, read_committed
from tests.spark.session import java_options, path_of_the_code
from tests.support.processes import Process

#: What was sent to a broker that a client does not reach any more is sent to the next one, soon.
SOCKET_TIMEOUT_MS = 6000
#: SEMEL_JEPSEN_DEBUG=eos,broker shows what librdkafka is about.
DEBUG = {"debug": os.environ["SEMEL_JEPSEN_DEBUG"], "log_level": 7} if "SEMEL_JEPSEN_DEBUG" in os.environ else {}


class _Remembering(logging.Handler):
    def __init__(self, said: deque[str], only: str) -> None:
        super().__init__()
        self._said, self._only = said, only

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self._only in text:
            self._said.append(f"{record.created:.3f} {text}")


class _Resets(logging.Handler):
    """When readers went back to the beginning, and why librdkafka says it did."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[float, tuple[str, int], str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        found = re.search(r"(\S+) \[(\d+)\]: offset reset ", text)
        if found is not None:
            self.all.append((record.created, (found[1], int(found[2])), text))

    def unlawful(self, first_commits: dict[tuple[str, int], float]) -> list[str]:
        """Those of a group whose offset was committed before."""
        return [f"{at:.3f} {text}" for at, place, text in list(self.all) if at > first_commits.get(place, at)]


def _remembering(name: str, said: deque[str], only: str = "") -> logging.Logger:
    logger = logging.getLogger(f"jepsen.{name}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(_Remembering(said, only))
    return logger


resets = _Resets()


def _reader_logger() -> logging.Logger:
    logger = logging.getLogger("jepsen.readers")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(resets)
    return logger


#: librdkafka tells of a reset only with these. One group reads each topic, so the topic says whose it was.
TELLS_OF_RESETS: dict[str, Any] = {"debug": "topic,cgrp", "log_level": 7, "logger": _reader_logger()}


class Client(Protocol):
    """Somebody who must go on once everything has healed."""

    name: str

    def steps(self) -> int:
        """How often it has got something done."""


class ClusterWriter(Writer):
    """Transactions over several topics, at most so many per second: the machine has other things to do."""

    settings: ClassVar[dict[str, Any]] = {
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "metadata.recovery.strategy": "none",
        **DEBUG,
    }

    def steps(self) -> int:
        return self.ended

    def work(self) -> None:
        super().work()
        self.stop.wait(self.chance.uniform(0.0, 0.1))


class ClusterCopier(Copier):
    # A member whose farewell was lost with its coordinator keeps the others waiting for so long.
    session_timeout_ms: ClassVar[int] = 3000
    reader_settings: ClassVar[dict[str, Any]] = {
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        **TELLS_OF_RESETS,
    }
    settings: ClassVar[dict[str, Any]] = {**Copier.settings, "socket.timeout.ms": SOCKET_TIMEOUT_MS, **DEBUG}

    def steps(self) -> int:
        return self.ended


class IdempotentWriter:
    """Sends on and on with acks=all, and writes down what was acknowledged."""

    def __init__(self, name: str, bootstrap_servers: str, record: Record, seed: int, topic: str, partitions: int):
        self.name, self.topic, self.partitions = name, topic, partitions
        self.record = record
        self.chance = random.Random(seed)
        self.acknowledged = self.sent = 0
        #: The last words of librdkafka about sequences and epochs, for a diagnosis.
        self.said: deque[str] = deque(maxlen=400)
        self.stop = threading.Event()
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": 300_000,
                "socket.timeout.ms": SOCKET_TIMEOUT_MS,
                "debug": "eos",
                "log_level": 7,
            },
            logger=_remembering(name, self.said),
        )
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def steps(self) -> int:
        return self.acknowledged

    def _run(self) -> None:
        try:
            while not self.stop.wait(self.chance.uniform(0.0, 0.06)):
                if len(self.producer) < 500:
                    self._send()
                self.producer.poll(0)
            left = self.producer.flush(60)
            assert left == 0, f"{self.name}: {left} records were neither acknowledged nor refused"
        except BaseException as error:
            self.record.failures.append(error)

    def _send(self) -> None:
        value = b"%s/%d" % (self.name.encode(), self.sent)
        self.sent += 1
        partition = self.chance.randrange(self.partitions)
        self.producer.produce(self.topic, value, key=value, partition=partition, on_delivery=self._told)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        topic, partition, value = message.topic(), message.partition(), message.value()
        if error is None:
            self.acknowledged += 1
            self.record.add(Send(self.name, topic, partition, value, message.offset()))
        else:
            self.record.met(self.name, "produce", error)
            self.record.add(Send(self.name, topic, partition, value, None, Outcome.UNKNOWN))


class GroupMember:
    """Reads a topic as a member of a group and commits what it has read; now and then it leaves and comes again."""

    def __init__(self, name: str, bootstrap_servers: str, record: Record, seed: int, topic: str, group: str) -> None:
        self.name, self.topic, self.group = name, topic, group
        self.bootstrap_servers = bootstrap_servers
        self.record = record
        self.chance = random.Random(seed)
        self.polls = 0
        #: What was read, and how often: a group may read again what it has not committed, and nothing else.
        self.read: Counter[bytes] = Counter()
        self.first_commits: dict[tuple[str, int], float] = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def steps(self) -> int:
        return self.polls

    def _run(self) -> None:
        try:
            while not self.stop.is_set():
                self._one_life(self.chance.uniform(20, 90))
        except BaseException as error:
            self.record.failures.append(error)

    def _one_life(self, seconds: float) -> None:
        consumer = Consumer(
            read_committed(
                self.bootstrap_servers,
                self.group,
                **{
                    "session.timeout.ms": 6000,
                    "heartbeat.interval.ms": 500,
                    "socket.timeout.ms": SOCKET_TIMEOUT_MS,
                    "partition.assignment.strategy": "cooperative-sticky",
                    **TELLS_OF_RESETS,
                },
            )
        )
        consumer.subscribe([self.topic])
        leaves_at = time.monotonic() + seconds
        try:
            while time.monotonic() < leaves_at and not self.stop.is_set():
                messages = [each for each in consumer.consume(200, 0.2) if each.error() is None]
                if messages:
                    self._take(consumer, messages)
        finally:
            consumer.close()

    def _take(self, consumer: Consumer, messages: list[Message]) -> None:
        self.read.update(each.value() for each in messages)
        ends = {(each.topic(), each.partition()): each.offset() + 1 for each in messages}
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
        try:
            told = consumer.commit(offsets=offsets, asynchronous=False)
            self.polls += 1
            for one in told or ():
                if one.error is None:
                    self.first_commits.setdefault((one.topic, one.partition), time.time())
        except KafkaException as error:
            # A rebalance has taken the partitions, or the coordinator has moved: who has them next reads them again.
            self.record.met(self.name, "commit", error.args[0])


class Pipeline:
    """A Spark driver that copies a topic, micro-batch after micro-batch."""

    name = "spark"

    def __init__(self, bootstrap_servers: str, directory: Path, source: str, target: str) -> None:
        self._arguments = [
            "--bootstrap", bootstrap_servers, "--checkpoint", str(directory / "checkpoint"), "--per-batch", "20000",
            "--source", source, "--target", target, "--master", "local[1]",
        ]  # fmt: skip
        self._directory = directory
        self.process = self._launch("--forever")

    def _launch(self, *more: str) -> Process:
        command = [sys.executable, "-m", "tests.spark.copying_pipeline", *self._arguments, *more]
        environment = {"PYTHONPATH": path_of_the_code(), "SPARK_SUBMIT_OPTS": java_options()}
        return Process(command, name="spark", environment=environment, output=self._directory / "spark.log")

    def steps(self) -> int:
        return self.process.output().count(": COMMITTED")

    def finish(self) -> None:
        """Kill the driver, and let another one with the same checkpoint copy what is left."""
        self.process.kill9()
        self.process = self._launch()
        code = self.process.wait(within_s=300)
        assert code == 0, f"the pipeline ended with {code}:\n{self.process.output()[-3000:]}"

    def close(self) -> None:
        self.process.close()

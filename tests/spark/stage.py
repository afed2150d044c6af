"""What the Spark tests share: topics, input, a pipeline run to its end, and the output as another client sees it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from semel.spark import Step, start


@dataclass(frozen=True, slots=True)
class Seen:
    """A committed record as librdkafka sees it."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


#: Spark gives the source's own worker ten seconds to start, which no setting changes: too little for a Python that has
#: both cores against it. Such a query has begun nothing, and is started again.
TOO_SLOW_TO_START = "Python worker failed to connect back"


@dataclass
class Stage:
    """One broker, one checkpoint, one transactional id."""

    spark: Any
    bootstrap_servers: str
    folder: Path
    transactional_id: str = "pipeline"
    checkpoint: str = ""
    #: What all names of topics end with, on a broker that is shared with other tests.
    suffix: str = ""
    #: Of the topics that are created.
    replicas: int = 1
    steps: list[tuple[Step, int]] = field(default_factory=list)
    #: What the last `run` ran.
    query: Any = None

    def __post_init__(self) -> None:
        self.checkpoint = self.checkpoint or str(self.folder / "checkpoint")

    def create_topics(self, **partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        wanted = [NewTopic(name + self.suffix, count, self.replicas) for name, count in partitions.items()]
        for result in admin.create_topics(wanted).values():
            result.result(60)

    def put(self, topic: str, rows: Iterable[tuple[bytes | None, bytes | None]], *, partition: int = -1) -> None:
        """Plain input, by librdkafka."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap_servers})
        for key, value in rows:
            producer.produce(topic + self.suffix, value, key, **({"partition": partition} if partition >= 0 else {}))
        assert producer.flush(30) == 0

    def put_numbers(self, count: int, topic: str = "payments") -> list[bytes]:
        """Rows whose values are all different, under seven keys."""
        values = [b"%06d" % number for number in range(count)]
        self.put(topic, ((b"account-%d" % (number % 7), value) for number, value in enumerate(values)))
        return values

    def source(self, **options: Any) -> Any:
        """Keys and values of `payments`, from the beginning."""
        reader = self.spark.readStream.format("semel")
        given = {"subscribe": "payments" + self.suffix, "startingOffsets": "earliest", **options}
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap_servers)
        return reader.options(**{name: str(value) for name, value in given.items()}).load().select("key", "value")

    def start(self, frame: Any, *, observer: Callable[[Step, int], None] | None = None, **settings: Any) -> Any:
        """Start the pipeline; its steps are kept in `steps`."""

        def watch(step: Step, batch_id: int) -> None:
            self.steps.append((step, batch_id))
            if observer is not None:
                observer(step, batch_id)

        given: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "transactional_id": self.transactional_id,
            "checkpoint": self.checkpoint,
            "topic": "ledger" + self.suffix,
            "trigger": {"availableNow": True},
        }
        return start(frame, observer=watch, **{**given, **settings})

    def run(self, frame: Any, **settings: Any) -> list[tuple[Step, int]]:
        """Run the pipeline until its input is used up; the steps of this run."""
        before = len(self.steps)
        deadline = time.monotonic() + 150
        while True:
            query = self.query = self.start(frame, **settings)
            try:
                assert query.awaitTermination(150), "the query did not end in 150 s"
                break
            except Exception as error:
                too_slow = TOO_SLOW_TO_START in str(error) and len(self.steps) == before
                if not too_slow or time.monotonic() > deadline:
                    raise
            finally:
                query.stop()
        return self.steps[before:]

    def forget_commits_from(self, batch_id: int) -> None:
        """What a driver that dies before Spark hears of the commit leaves behind."""
        for path in (Path(self.checkpoint) / "commits").iterdir():
            if int(path.name.strip(".").partition(".")[0]) >= batch_id:
                path.unlink()

    def seen(self, topic: str = "ledger", *, committed: bool = True) -> list[Seen]:
        """All of a topic, partition after partition, by a client nobody here wrote."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "proof",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,  # the end of a partition is told by a fetch that found nothing
            }
        )
        topic += self.suffix
        try:
            numbers = sorted(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
            found: dict[int, list[Seen]] = {number: [] for number in numbers}
            ended: set[int] = set()
            consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in numbers])
            while len(ended) < len(numbers):
                message = consumer.poll(30)
                assert message is not None, f"no end of {topic} in 30 s, but in {sorted(ended)} of {numbers}"
                number = message.partition()
                if message.error() is not None:
                    assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                    ended.add(number)
                    continue
                headers = tuple(message.headers() or ())
                found[number].append(Seen(topic, number, message.key(), message.value(), headers))
        finally:
            consumer.close()
        return [record for number in numbers for record in found[number]]

    def values(self, topic: str = "ledger", *, committed: bool = True) -> list[bytes | None]:
        return [record.value for record in self.seen(topic, committed=committed)]


def python_workers(process_id: int) -> list[int]:
    """The Python processes in which a JVM's tasks run: what its daemon has forked."""
    daemons = [child for child in _children(process_id) if b"pyspark.daemon" in _command(child)]
    return [worker for daemon in daemons for worker in _children(daemon)]


def descendants(process_id: int, *, naming: bytes) -> list[int]:
    """The processes below this one whose command line names something."""
    found = []
    for child in _children(process_id):
        found += [child] if naming in _command(child) else []
        found += descendants(child, naming=naming)
    return found


def _children(process_id: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process_id}/task"):
            found += map(int, Path(f"/proc/{process_id}/task/{thread}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while we looked
    return found


def _command(process_id: int) -> bytes:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""

"""The pipeline beside Spark's own Kafka connector: the same topics on the same broker, micro-batch by micro-batch.

A figure is the time of a micro-batch of ours divided by the time of one of Spark's. The two take turns: query by query
within a round, so a slow minute of the machine falls on both. A query runs several micro-batches of the same size; the
first one, which plans and starts workers, is not counted. CPU seconds are those of the broker, of this process and of
the JVM with its Python workers.

The price of exactly-once is the time of a micro-batch of the pipeline divided by the time of a plain one: the same
source, and tasks that write their rows with our idempotent producer, without a transaction.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka

from bench.clients import create_topic
from bench.harness import Family, Row, Server
from tests.support.requirements import CHECKOUT, connector_jars

PARTITIONS = 4
TURNS = 3

SOURCE = "source to noop, 100,000 rows"
UNKEYED = "Kafka to Kafka, unkeyed, beside Spark's sink at defaults"
UNKEYED_TUNED = "Kafka to Kafka, unkeyed, beside Spark's sink tuned"
KEYED = "Kafka to Kafka, keyed, beside Spark's sink at defaults"
KEYED_TUNED = "Kafka to Kafka, keyed, beside Spark's sink tuned"
LARGE = "Kafka to Kafka, 1 KB values, beside Spark's sink at defaults"
SMALL = "Kafka to Kafka, ten rows, beside Spark's sink at defaults"
PRICE = "price of exactly-once: Kafka to Kafka, keyed, beside our own plain write"

#: What a careful user sets for Spark's connector.
TUNED_SINK = {"kafka.linger.ms": "20", "kafka.batch.size": "500000"}
TUNED_SOURCE = {"kafka.max.poll.records": "20000"}


@dataclass(frozen=True, slots=True)
class Input:
    """A topic, and how it is read: so many micro-batches of so many rows."""

    topic: str
    rows: int
    value_bytes: int
    batches: int = 4
    partitions: int = PARTITIONS

    def fill(self, server: Server) -> None:
        create_topic(server, self.topic, self.partitions)
        settings = {"bootstrap.servers": server.bootstrap_servers, "linger.ms": 20, "batch.size": 500_000}
        producer = confluent_kafka.Producer(settings)
        for number in range(self.rows * self.batches):
            text, partition = b"%012d" % number, number % self.partitions
            while True:
                try:
                    producer.produce(self.topic, text.ljust(self.value_bytes, b"x"), text, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(120) == 0


PLENTY = Input("plenty", 100_000, 100)
WIDE = Input("wide", 25_000, 1024)
FEW = Input("few", 10, 100, batches=20, partitions=2)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a micro-batch took, by the clock and of the processors."""

    time_ms: float
    cpu_s: float


@cache
def session() -> Any:
    """One Spark for the whole family, with both connectors."""
    from pyspark.sql import SparkSession

    from semel.spark import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = (str(CHECKOUT / "src"), str(CHECKOUT), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(str(jar) for jar in connector_jars()))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.python.unix.domain.socket.enabled", "true")  # as docs/spark.md advises, and the command sets
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    register(made)
    atexit.register(made.stop)
    return made


class Comparison:
    """Runs queries of both kinds on one server. Each writes to a topic that only it writes to."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder, self._runs = server, folder, 0

    def read(self, connector: str, given: Input, **options: str) -> Any:
        reader = session().readStream.format(connector).option("subscribe", given.topic)
        reader = reader.option("kafka.bootstrap.servers", self._server.bootstrap_servers)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(given.rows))
        return reader.options(**options).load()

    def to_noop(self, connector: str, given: Input) -> Cost:
        return self._cost(lambda name: _started(self.read(connector, given).writeStream.format("noop"), name), given)

    def by_spark(self, columns: Iterable[str], given: Input, *, tuned: bool = False) -> Cost:
        """Spark's source and Spark's sink."""

        def start(name: str) -> Any:
            frame = self.read("kafka", given, **(TUNED_SOURCE if tuned else {})).select(*columns)
            stream = frame.writeStream.format("kafka").options(**(TUNED_SINK if tuned else {}))
            stream = stream.option("kafka.bootstrap.servers", self._server.bootstrap_servers)
            return _started(stream.option("topic", self._output("spark")), name)

        return self._cost(start, given)

    def by_us(self, columns: Iterable[str], given: Input) -> Cost:
        """Our source and the exactly-once sink."""
        from semel.spark import start

        return self._cost(
            lambda name: start(
                self.read("semel", given).select(*columns),
                bootstrap_servers=self._server.bootstrap_servers,
                transactional_id=Path(name).name,
                topic=self._output("ours"),
                checkpoint=name,
                trigger={"availableNow": True},
            ),
            given,
        )

    def plainly(self, columns: Iterable[str], given: Input) -> Cost:
        """Our source, and tasks that write with our idempotent producer: a rerun would write again."""
        from semel.spark.checkpoint import Checkpoint

        def start(name: str) -> Any:
            servers, topic = self._server.bootstrap_servers, self._output("plain")

            def each(frame: Any, batch_id: int) -> None:
                written = frame.select(*columns).mapInArrow(lambda rows: _send(rows, servers, topic), "records long")
                assert sum(row.records for row in written.collect()) == given.rows

            # The price is that of the transaction: the checkpoint is written as quickly as `start` has it written.
            with Checkpoint(session(), name).written_quickly(session()):
                return _started(self.read("semel", given).writeStream.foreachBatch(each), name)

        return self._cost(start, given)

    def _output(self, whose: str) -> str:
        name = f"output-{whose}-{self._runs}"
        create_topic(self._server, name, PARTITIONS)
        return name

    def _cost(self, start: Callable[[str], Any], given: Input) -> Cost:
        self._runs += 1
        used_s = self._cpu_s()
        query = start(str(self._folder / f"run-{self._runs}"))
        assert query.awaitTermination(300), "a query did not end in five minutes"
        used_s = self._cpu_s() - used_s
        done = [progress for progress in query.recentProgress if progress.numInputRows]
        rows = [progress.numInputRows for progress in done]
        assert rows == [given.rows] * given.batches, rows
        times = [float(progress.durationMs["triggerExecution"]) for progress in done[1:]]
        return Cost(statistics.median(times), used_s / given.batches)

    def _cpu_s(self) -> float:
        return _cpu_s_of_tree(os.getpid())  # the broker is below this process


#: The producer of a Python worker. Spark reuses its workers.
_producers: dict[str, Any] = {}


def _send(batches: Iterable[Any], servers: str, topic: str) -> Iterator[Any]:
    """What a task of the plain write does."""
    import pyarrow as pa

    import semel
    from semel.spark.connections import spare_the_collector

    if servers not in _producers:
        _producers[servers] = semel.Producer({"bootstrap.servers": servers, "batch.size": 900_000, "linger.ms": 0})
        spare_the_collector()
    records = 0
    for batch in batches:
        _producers[servers].send_arrow(topic, batch)
        records += batch.num_rows
    _producers[servers].flush()
    yield pa.RecordBatch.from_pydict({"records": pa.array([records], pa.int64())})


def _started(stream: Any, checkpoint: str) -> Any:
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def _cpu_s_of_tree(process_id: int) -> float:
    """CPU seconds of a process and all below it, those that have ended included."""
    used = 0.0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended: its parent has its time
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        used = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        for thread in os.listdir(f"/proc/{process_id}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                children = Path(f"/proc/{process_id}/task/{thread}/children").read_text().split()
                used += sum(_cpu_s_of_tree(int(child)) for child in children)
    return used


#: The row's name, what is ours, and what it is put beside.
Side = Callable[[Comparison], Cost]
ROWS: tuple[tuple[str, float, Side, Side], ...] = (
    (SOURCE, 0.45, lambda c: c.to_noop("semel", PLENTY), lambda c: c.to_noop("kafka", PLENTY)),
    (UNKEYED, 0.45, lambda c: c.by_us(["value"], PLENTY), lambda c: c.by_spark(["value"], PLENTY)),
    (UNKEYED_TUNED, 0.75, lambda c: c.by_us(["value"], PLENTY), lambda c: c.by_spark(["value"], PLENTY, tuned=True)),
    (KEYED, 0.55, lambda c: c.by_us(["key", "value"], PLENTY), lambda c: c.by_spark(["key", "value"], PLENTY)),
    (
        KEYED_TUNED,
        0.85,
        lambda c: c.by_us(["key", "value"], PLENTY),
        lambda c: c.by_spark(["key", "value"], PLENTY, tuned=True),
    ),
    (LARGE, 0.5, lambda c: c.by_us(["value"], WIDE), lambda c: c.by_spark(["value"], WIDE)),
    (SMALL, 1.0, lambda c: c.by_us(["value"], FEW), lambda c: c.by_spark(["value"], FEW)),
    (PRICE, 1.1, lambda c: c.by_us(["key", "value"], PLENTY), lambda c: c.plainly(["key", "value"], PLENTY)),
)


def measure(server: Server) -> dict[str, float]:
    """The ratios of the batch times, and of the CPU seconds; each the median of the turns."""
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        for given in (PLENTY, WIDE, FEW):
            given.fill(server)
        comparison = Comparison(server, folder)
        figures = {}
        for name, _, ours, theirs in ROWS:
            turns = [_turn(comparison, ours, theirs, number) for number in range(TURNS)]
            figures[name] = statistics.median(mine.time_ms / other.time_ms for mine, other in turns)
            figures[cpu_name(name)] = statistics.median(mine.cpu_s / other.cpu_s for mine, other in turns)
            shown = ", ".join(f"{mine.time_ms:.0f} to {other.time_ms:.0f} ms" for mine, other in turns)
            print(f"    {name}: {shown}", flush=True)
        return figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _turn(comparison: Comparison, ours: Side, theirs: Side, number: int) -> tuple[Cost, Cost]:
    """One of each; the one that goes first changes."""
    if number % 2:
        other = theirs(comparison)
        return ours(comparison), other
    mine = ours(comparison)
    return mine, theirs(comparison)


def cpu_name(name: str) -> str:
    return f"CPU seconds: {name}"


FAMILIES = [
    Family(
        "spark",
        (
            *(Row(name, "x of its time", goal, higher_is_better=False, each=True) for name, goal, _, _ in ROWS),
            *(Row(cpu_name(name), "x", None, higher_is_better=False, each=True) for name, _, _, _ in ROWS),
        ),
        measure,
    )
]

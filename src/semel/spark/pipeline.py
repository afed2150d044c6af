"""Starting an exactly-once pipeline from Python.

Everything that could break the promise is refused before the first row moves: speculation, a missing checkpoint,
triggers and progress tracking that do not wait for the sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.client.cluster import Cluster
from semel.client.loop_thread import LoopThread

from .checkpoint import Checkpoint
from .claims import ClaimServer
from .sink import ExactlyOnceSink, Observer, SinkSettings, Step
from .source import SemelDataSource
from .transaction import DriverTransaction


class NotExactlyOnce(ValueError):
    """This combination of settings cannot keep the promise; the text says which one and what to change."""


def register(spark: Any) -> None:
    """Make `spark.readStream.format("semel")` and `spark.read.format("semel")` known to a session."""
    spark.dataSource.register(SemelDataSource)


def _nothing(step: Step, batch_id: int) -> None:
    """The observer of a pipeline nobody watches."""


def start(
    frame: Any,
    *,
    bootstrap_servers: str,
    transactional_id: str,
    checkpoint: str,
    topic: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    transaction_timeout_ms: int = 600_000,
    compression: str = "none",
    writers: int | None = None,
    attempts: int = 3,
    marker_topic: str | None = None,
    options: Mapping[str, str] | None = None,
    observer: Observer = _nothing,
) -> Any:
    """Start a streaming query whose every micro-batch is one transaction; returns Spark's StreamingQuery.

    `frame` has the columns of Spark's Kafka sink: `value`, and as you like `key`, `headers`, `partition`, `topic`.
    `transactional_id` is the pipeline's name on the broker: a second pipeline with the same one fences the first.
    Progress is committed to the group of the same name.
    """
    spark = frame.sparkSession
    options = dict(options or {})
    _refuse_what_breaks_the_promise(spark, frame, checkpoint, trigger, options)
    loop = LoopThread("semel-pipeline")
    client_id = f"semel-pipeline-{transactional_id}"
    cluster = loop.run(_opened({"bootstrap.servers": bootstrap_servers, "client.id": client_id}))
    transaction = DriverTransaction(cluster, transactional_id, transactional_id, timeout_ms=transaction_timeout_ms)

    def join_transaction(to_topic: str, partition: int) -> None:
        if not transaction.implicit_add:
            loop.run(transaction.add_partition(to_topic, partition))

    claims = ClaimServer(spark.conf.get("spark.driver.host", "127.0.0.1"), join_transaction)
    settings = SinkSettings(
        (("bootstrap.servers", bootstrap_servers), ("client.id", f"semel-task-{transactional_id}")),
        transactional_id,
        topic,
        compression,
        writers,
        attempts,
        marker_topic,
    )
    sink = ExactlyOnceSink(loop, transaction, claims, settings, Checkpoint(spark, checkpoint), observer)
    stream = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).options(**options)
    if trigger:
        stream = stream.trigger(**trigger)
    if query_name:
        stream = stream.queryName(query_name)
    return stream.start()


async def _opened(settings: Mapping[str, str]) -> Cluster:
    cluster = Cluster(settings)
    await cluster.connect()
    return cluster


def _refuse_what_breaks_the_promise(
    spark: Any, frame: Any, checkpoint: str, trigger: Mapping[str, Any] | None, options: Mapping[str, str]
) -> None:
    if not frame.isStreaming:
        raise NotExactlyOnce("start() takes a streaming DataFrame (spark.readStream); this one is a batch")
    if not checkpoint:
        raise NotExactlyOnce("checkpoint is empty: without one a restart would begin a new query and repeat its output")
    if spark.conf.get("spark.speculation", "false").lower() == "true":
        raise NotExactlyOnce(
            "spark.speculation=true starts tasks twice, and a second writer is always refused: set it to false"
        )
    for kind in trigger or {}:
        if kind in ("continuous", "realTime"):
            raise NotExactlyOnce(f"trigger {kind} has no micro-batches to commit: use processingTime or availableNow")
    if options.get("asyncProgressTrackingEnabled", "false").lower() == "true":
        raise NotExactlyOnce("asyncProgressTrackingEnabled=true lets a batch start before the last one is written down")

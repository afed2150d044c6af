"""Starting an exactly-once pipeline from Python.

Everything that could break the promise is refused before the first row moves: speculation, a missing checkpoint,
triggers and progress tracking that do not wait for the sink. What a pipeline opens is closed when its query ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from semel.client.loop_thread import LoopThread

from .callbacks import answering, require_callbacks
from .checkpoint import Checkpoint
from .claims import ClaimServer
from .connections import opened
from .sink import DriverFenced, ExactlyOnceSink, Observer, SinkSettings, Step
from .source import SemelDataSource
from .transaction import DriverTransaction

log = logging.getLogger("semel.spark")


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
    Progress is committed to the group of the same name. `writers` is how many tasks write (one for each core, at most
    one for each output partition), `attempts` how often a micro-batch is tried before the query fails.
    """
    options = dict(options or {})
    _refuse_what_breaks_the_promise(frame, checkpoint, trigger, options)
    spark = frame.sparkSession
    require_callbacks(spark)
    side = _DriverSide(spark, bootstrap_servers, transactional_id, transaction_timeout_ms)
    try:
        settings = SinkSettings(
            (("bootstrap.servers", bootstrap_servers), ("client.id", f"semel-task-{transactional_id}")),
            transactional_id,
            topic,
            compression,
            writers,
            attempts,
            marker_topic,
        )
        where = Checkpoint(spark, checkpoint)
        sink = ExactlyOnceSink(side.loop, side.transaction, side.claims, settings, where, observer)
        stream = frame.writeStream.foreachBatch(answering(sink))
        stream = stream.option("checkpointLocation", checkpoint).options(**options)
        if trigger:
            stream = stream.trigger(**trigger)
        if query_name:
            stream = stream.queryName(query_name)
        query = stream.start()
    except BaseException:
        side.close()
        raise
    threading.Thread(target=side.close_after, args=(query,), name="semel-pipeline-end", daemon=True).start()
    return query


class _DriverSide:
    """What a pipeline holds open on the driver while its query runs."""

    def __init__(self, spark: Any, bootstrap_servers: str, transactional_id: str, timeout_ms: int) -> None:
        self.loop = LoopThread("semel-pipeline")
        try:
            client = {"bootstrap.servers": bootstrap_servers, "client.id": f"semel-pipeline-{transactional_id}"}
            self._cluster = self.loop.run(opened(client))
            self.transaction = DriverTransaction(
                self._cluster, transactional_id, transactional_id, timeout_ms=timeout_ms
            )
            host = spark.conf.get("spark.driver.host", "127.0.0.1")
            self.claims = ClaimServer(host, self._join_transaction, spark.conf.get("spark.driver.bindAddress", host))
        except BaseException:
            self.loop.close()
            raise

    def _join_transaction(self, topic: str, partition: int) -> None:
        if not self.transaction.implicit_add:
            self.loop.run(self.transaction.add_partition(topic, partition))

    def close_after(self, query: Any) -> None:
        """Wait for the query's end, however it comes, and close."""
        try:
            query.awaitTermination()
        except Exception as error:  # the query's own error reaches whoever looks at the query; here it is only its end
            log.debug("the query ended: %s", error)
        finally:
            self.close()

    def close(self) -> None:
        self.claims.close()
        self.loop.run(self._cluster.close())
        self.loop.close()


def _refuse_what_breaks_the_promise(
    frame: Any, checkpoint: str, trigger: Mapping[str, Any] | None, options: Mapping[str, str]
) -> None:
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        raise NotExactlyOnce(
            "this DataFrame belongs to a Spark Connect session, whose driver is another process: the transaction must "
            "live where the driver does. Run the pipeline in a classic session (SparkSession.builder.master(...))"
        )
    if not frame.isStreaming:
        raise NotExactlyOnce("start() takes a streaming DataFrame (spark.readStream); this one is a batch")
    if not checkpoint:
        raise NotExactlyOnce("checkpoint is empty: without one a restart would begin a new query and repeat its output")
    if frame.sparkSession.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise NotExactlyOnce(
            "spark.speculation=true starts tasks twice, and a second writer is always refused: set it to false"
        )
    for kind in trigger or {}:
        if kind in ("continuous", "realTime"):
            raise NotExactlyOnce(f"trigger {kind} has no micro-batches to commit: use processingTime or availableNow")
    if options.get("asyncProgressTrackingEnabled", "false").lower() == "true":
        raise NotExactlyOnce("asyncProgressTrackingEnabled=true lets a batch start before the last one is written down")


__all__ = ["DriverFenced", "NotExactlyOnce", "Step", "register", "start"]

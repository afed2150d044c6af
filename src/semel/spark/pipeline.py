"""Start an exactly-once pipeline.

Guarantees: what would break exactly-once, and every mistake that can be found beforehand, is refused before the query
starts (`preflight`). All connections and threads of a pipeline are closed when its query ends.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from semel.client.blocking.loop_thread import LoopThread
from semel.errors import Retriable
from semel.machines.pipeline.batch_marker import refuse_foreign_checkpoint
from semel.machines.pipeline.driver_transaction import DriverTransaction

from .callbacks import BatchCallback, require_callbacks
from .checkpoint import Checkpoint
from .claims import ClaimServer
from .connections import connect
from .frames import StreamingSource, keeps_state
from .preflight import (
    PipelineMistake,
    bootstrap_text,
    check_arguments,
    check_cluster,
    check_columns,
    check_sources,
    constants_of,
    location_text,
    refuse_what_breaks_the_promise,
    sources_here,
)
from .query import PipelineQuery
from .sink import WHERE_TO_KEEP_PROGRESS, ExactlyOnceSink, Observer, SinkSettings, Step
from .source import SemelDataSource
from .transaction import TransactionClient

log = logging.getLogger("semel.spark")


def register(spark: Any) -> None:
    """Make `spark.readStream.format("semel")` and `spark.read.format("semel")` known to a session."""
    if not hasattr(spark, "dataSource"):
        raise PipelineMistake(f"register() takes a SparkSession, not {type(spark).__name__}")
    spark.dataSource.register(SemelDataSource)


def _nothing(step: Step, batch_id: int) -> None:
    """The default observer."""


def start(
    frame: Any,
    *,
    bootstrap_servers: str | Sequence[str],
    transactional_id: str,
    checkpoint: str | os.PathLike[str],
    topic: str | None = None,
    output_mode: str = "append",
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    transaction_timeout_ms: int = 600_000,
    compression: str = "none",
    writers: int | None = None,
    attempts: int = 3,
    marker_topic: str | None = None,
    options: Mapping[str, Any] | None = None,
    observer: Observer = _nothing,
) -> PipelineQuery:
    """Start a streaming query in which every micro-batch is one transaction. Returns Spark's StreamingQuery.

    `frame` has the columns of Spark's Kafka sink: `value`, and optionally `key`, `headers`, `partition`, `topic`.
    `transactional_id` is the pipeline's name on the broker: a second pipeline with the same name fences the first.
    Progress is committed to the group of the same name. `output_mode` is Spark's: append, update or complete. `writers`
    is the number of tasks that write (by default one per core, at most one per output partition). `attempts` is how
    often a micro-batch is tried before the query fails.

    Raises `PipelineMistake` for a mistake that can be found beforehand, and `MarkerConflict` for a checkpoint that does
    not belong to the progress on the broker.
    """
    check_arguments(
        transactional_id=transactional_id, topic=topic, marker_topic=marker_topic, output_mode=output_mode,
        trigger=trigger, query_name=query_name, transaction_timeout_ms=transaction_timeout_ms, compression=compression,
        writers=writers, attempts=attempts, options=options, observer=observer,
    )  # fmt: skip
    bootstrap, location, options = bootstrap_text(bootstrap_servers), location_text(checkpoint), dict(options or {})
    refuse_what_breaks_the_promise(frame, location, trigger, options)
    check_columns(frame, topic)
    sources = check_sources(frame)
    stream = frame.writeStream.outputMode(output_mode.lower()).option("checkpointLocation", location).options(**options)
    if trigger:
        stream = stream.trigger(**trigger)
    if query_name:
        stream = stream.queryName(query_name)
    spark = frame.sparkSession
    require_callbacks(spark)
    side = _DriverSide(spark, bootstrap, transactional_id, transaction_timeout_ms)
    try:
        where = Checkpoint(spark, location)
        settings = SinkSettings(
            (("bootstrap.servers", bootstrap), ("client.id", f"semel-task-{transactional_id}")),
            transactional_id,
            topic,
            compression,
            writers,
            attempts,
            marker_topic,
            side.look_at_the_cluster(frame, topic, marker_topic, sources),
            keeps_state(frame),
        )
        side.refuse_a_foreign_checkpoint(where)
        sink = ExactlyOnceSink(side.loop, side.client, side.claims, settings, where, observer)
        callback = BatchCallback(sink)
        query = stream.foreachBatch(callback).start()
    except BaseException:
        side.close()
        raise
    threading.Thread(target=side.close_after, args=(query,), name="semel-pipeline-end", daemon=True).start()
    return PipelineQuery(query, sources, f"semel[{topic or 'topics by row'} at {bootstrap}]", callback)


class _DriverSide:
    """What a pipeline has open on the driver while its query runs."""

    def __init__(self, spark: Any, bootstrap_servers: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap_servers = bootstrap_servers
        self.loop = LoopThread("semel-pipeline")
        try:
            settings = {"bootstrap.servers": bootstrap_servers, "client.id": f"semel-pipeline-{transactional_id}"}
            self._cluster = self.loop.run(connect(settings))
            self.transaction = DriverTransaction(transactional_id, transactional_id, timeout_ms=timeout_ms)
            self.client = TransactionClient(self._cluster, self.transaction)
            host = spark.conf.get("spark.driver.host", "127.0.0.1")
            self.claims = ClaimServer(host, self._join_transaction, spark.conf.get("spark.driver.bindAddress", host))
        except BaseException:
            self.loop.close()
            raise

    def look_at_the_cluster(
        self, frame: Any, topic: str | None, marker_topic: str | None, sources: list[StreamingSource]
    ) -> tuple[bool, ...]:
        """Check topics, partitions and limits with the cluster. Returns which sources are on it."""
        named, partition = constants_of(frame, topic)
        check = check_cluster(
            self._cluster, self._bootstrap_servers, named, partition, marker_topic, self.transaction.timeout_ms
        )
        self.loop.run(check)
        here = self.loop.run(sources_here(sources, self._cluster, self._bootstrap_servers))
        if not any(here) and topic is None and marker_topic is None:
            raise PipelineMistake(WHERE_TO_KEEP_PROGRESS)
        return here

    def refuse_a_foreign_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint that the first batch would refuse, if that is known without fencing another driver."""
        try:
            progress = self.loop.run(self.client.progress(patient=False))
        except Retriable:
            return  # a commit is not settled yet: the first batch settles it, and then reads the progress
        query_id, batch_id = checkpoint.next_batch() or (None, 0)
        refuse_foreign_checkpoint(
            progress.marker,
            query_id,
            batch_id,
            self.transaction.transactional_id,
            progress.offsets,
            lambda: checkpoint.where_batch_begins(batch_id),
        )

    def _join_transaction(self, topic: str, partition: int) -> None:
        if not self.transaction.implicit_add:
            self.loop.run(self.client.add_partition(topic, partition))

    def close_after(self, query: Any) -> None:
        """Wait until the query ends, in whatever way, and close."""
        try:
            query.awaitTermination()
        except Exception as error:  # the user gets the error from the query; here only the end matters
            log.debug("the query ended: %s", error)
        finally:
            self.close()

    def close(self) -> None:
        self.claims.close()
        self.loop.run(self._cluster.close())
        self.loop.close()


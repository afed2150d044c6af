"""One micro-batch, one transaction: the sink that runs inside foreachBatch.

Guarantees: a micro-batch becomes visible whole, with its source offsets and its marker, or not at all; a batch that
was committed is never written again; a failed attempt is aborted and fenced before the next one starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from semel.client.loop_thread import LoopThread
from semel.machines.contract import ProducerIdentity, TopicPartition

from .checkpoint import BatchOffsets, Checkpoint
from .claims import ClaimServer
from .marker import Marker, MarkerConflict, Verdict, hash_of, judge
from .transaction import CommitUnknown, DriverTransaction
from .writer import REPORT_SCHEMA, TARGET, WritePlan, choose_targets, write

log = logging.getLogger("semel.spark")


class Step(Enum):
    """The steps of a micro-batch, in order, as an observer sees them."""

    BEGUN = "begun"
    SKIPPED = "skipped"
    PRODUCED = "produced"
    OFFSETS_ADDED = "offsets added"
    COMMITTED = "committed"
    RETRYING = "retrying"


#: Called on the driver after each step, with the batch id.
Observer = Callable[[Step, int], None]


class ReportsDisagree(Exception):
    """What the tasks reported does not add up; the micro-batch is aborted rather than committed."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """What a pipeline was started with."""

    client_settings: tuple[tuple[str, str], ...]
    transactional_id: str
    topic: str | None
    compression: str
    writers: int | None
    attempts: int
    marker_topic: str | None


class ExactlyOnceSink:
    """Call it with a micro-batch: it returns when the batch is visible, or was before."""

    def __init__(
        self,
        loop: LoopThread,
        transaction: DriverTransaction,
        claims: ClaimServer,
        settings: SinkSettings,
        checkpoint: Checkpoint,
        observer: Observer,
    ) -> None:
        self._loop, self._transaction, self._claims = loop, transaction, claims
        self._settings, self._checkpoint, self._observer = settings, checkpoint, observer
        self._committed: Marker | None = None

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Write one micro-batch, trying again under a new epoch where that is safe, and raise the first error."""
        offsets = self._checkpoint.offsets(batch_id)
        marker = Marker(self._checkpoint.query_id(), batch_id, hash_of(list(offsets.texts)))
        first_error: Exception | None = None
        for attempt in range(1, self._settings.attempts + 1):
            try:
                self._attempt(frame, marker, offsets)
                return
            except MarkerConflict:
                raise
            except Exception as error:  # any failure, Spark's or ours: abort, fence, and run the batch again
                first_error = first_error or error
                log.warning("batch %d, attempt %d of %d failed: %s", batch_id, attempt, self._settings.attempts, error)
                self._abort()
                self._observer(Step.RETRYING, batch_id)
        assert first_error is not None
        raise first_error

    def _attempt(self, frame: Any, marker: Marker, offsets: BatchOffsets) -> None:
        fresh = self._transaction.identity is None
        identity = self._loop.run(self._transaction.begin())
        if fresh or self._committed is None:
            # Only now is the marker stable: InitProducerId settled whatever was left half-finished.
            progress = self._loop.run(self._transaction.progress())
            self._committed = progress.marker
            known_ends = progress.offsets
        else:
            known_ends = {}
        if judge(self._committed, marker, self._transaction.transactional_id, known_ends, offsets.ends) is Verdict.SKIP:
            self._observer(Step.SKIPPED, marker.batch_id)
            return
        self._observer(Step.BEGUN, marker.batch_id)
        self._claims.book.open((identity.producer_id, identity.producer_epoch))
        try:
            self._produce(frame, identity)
        finally:
            self._claims.book.close()
        self._observer(Step.PRODUCED, marker.batch_id)
        self._loop.run(self._transaction.commit_offsets(self._progress_of(marker, offsets), marker))
        self._observer(Step.OFFSETS_ADDED, marker.batch_id)
        self._loop.run(self._transaction.end(commit=True))
        self._committed = marker
        self._observer(Step.COMMITTED, marker.batch_id)

    def _produce(self, frame: Any, identity: ProducerIdentity) -> None:
        from pyspark.sql.types import StringType, StructField, StructType

        settings = self._settings
        plan = WritePlan(
            settings.client_settings,
            settings.transactional_id,
            identity,
            self._claims.desk,
            self._transaction.implicit_add,
            settings.topic,
            settings.compression,
        )
        rows = _as_kafka_rows(frame, settings.topic)
        session = rows.sparkSession
        session.conf.set("spark.sql.adaptive.enabled", "false")  # it may give one output partition to two tasks
        writers = settings.writers or session.sparkContext.defaultParallelism
        with_target = StructType([*rows.schema.fields, StructField(TARGET, StringType())])
        reports = (
            rows.mapInArrow(lambda batches: choose_targets(batches, plan), with_target)
            .repartition(writers, TARGET)
            .mapInArrow(lambda batches: write(batches, plan), REPORT_SCHEMA)
            .collect()
        )
        reported = [(row.topic, row.partition) for row in reports]
        if len(set(reported)) != len(reported) or set(reported) != self._claims.book.claimed:
            raise ReportsDisagree(
                f"claimed: {sorted(self._claims.book.claimed)}, reported: {sorted(reported)}; each output partition "
                "must have one writer that finished"
            )
        for row in reports:
            if row.last_offset - row.first_offset + 1 < row.records:
                raise ReportsDisagree(
                    f"{row.topic}-{row.partition}: {row.records} records cannot lie in offsets {row.first_offset} to "
                    f"{row.last_offset}"
                )

    def _progress_of(self, marker: Marker, offsets: BatchOffsets) -> dict[TopicPartition, int]:
        """The offsets to commit; a source without Kafka offsets leaves its batch id in a partition of ours."""
        if offsets.ends:
            return offsets.ends
        topic = self._settings.marker_topic or self._settings.topic
        if topic is None:
            raise ValueError("the source has no Kafka offsets: give marker_topic, a topic whose partition 0 keeps them")
        return {TopicPartition(topic, 0): marker.batch_id}

    def _abort(self) -> None:
        """Best effort: what counts is the new epoch, which fences every straggler of the old one."""
        if self._transaction.identity is not None:
            try:
                self._loop.run(self._transaction.end(commit=False))
            except Exception as error:  # the InitProducerId that follows aborts it for certain
                log.warning("could not abort, InitProducerId will: %s", error)
        self._transaction.forget_identity()
        self._committed = None


def _as_kafka_rows(frame: Any, topic: str | None) -> Any:
    """The columns Kafka knows, as binary; the same ones Spark's own Kafka sink takes."""
    from pyspark.sql.functions import col

    names = set(frame.columns)
    if "value" not in names:
        raise ValueError(f"the sink needs a column 'value'; there are: {', '.join(frame.columns)}")
    if topic is None and "topic" not in names:
        raise ValueError("where do rows go? Give the option topic, or a column 'topic'")
    columns = [col("value").cast("binary").alias("value")]
    if "key" in names:
        columns.append(col("key").cast("binary").alias("key"))
    if "headers" in names:
        columns.append(col("headers"))
    if "partition" in names:
        columns.append(col("partition").cast("int").alias("partition"))
    if topic is None:
        columns.append(col("topic").cast("string").alias("topic"))
    return frame.select(*columns)


__all__ = ["CommitUnknown", "ExactlyOnceSink", "Observer", "ReportsDisagree", "SinkSettings", "Step"]

"""The sink that runs inside foreachBatch: one micro-batch is one transaction.

Guarantees: a micro-batch becomes visible whole, with its source offsets and its marker, or not at all. A committed
batch is never written again. A failed attempt is aborted and fenced before the next one starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from semel.client.blocking.loop_thread import LoopThread
from semel.machines.pipeline.batch_marker import BatchMarker, BatchVerdict, MarkerConflict, fingerprint_of, judge_batch
from semel.machines.pipeline.claims import RowRefused, WriteReport, check_reports
from semel.machines.pipeline.driver_transaction import DriverFenced, PipelineProgress, is_worth_another_try
from semel.machines.values import ProducerIdentity, TopicPartition

from .checkpoint import BatchOffsets, Checkpoint
from .claims import ClaimServer
from .connections import ClientSettings
from .routing import kafka_columns, rows_by_partition
from .transaction import TransactionClient
from .writer import REPORT_SCHEMA, WritePlan, write

log = logging.getLogger("semel.spark")

T = TypeVar("T")

#: A batch that takes a larger share of its timeout is logged as a warning.
_NEAR_TIMEOUT = 0.8

#: The message for a pipeline that has no partition on the output's cluster to store its progress in.
WHERE_TO_KEEP_PROGRESS = (
    "the source has no offsets on this cluster: give marker_topic, a topic whose partition 0 keeps the progress"
)


class Step(Enum):
    """The steps of a micro-batch, in order. An observer is called after each."""

    BEGUN = "begun"
    SKIPPED = "skipped"
    PRODUCED = "produced"
    OFFSETS_ADDED = "offsets added"
    COMMITTED = "committed"
    RETRYING = "retrying"


#: Called on the driver after each step, with the batch id.
Observer = Callable[[Step, int], None]


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The arguments that a pipeline was started with, and what was found out about its sources."""

    client_settings: ClientSettings
    transactional_id: str
    topic: str | None
    compression: str
    writers: int | None
    attempts: int
    marker_topic: str | None
    #: For each source of the query, in order: whether it reads topics of the output's cluster.
    sources_here: tuple[bool, ...]
    #: Whether the query keeps state between micro-batches.
    keeps_state: bool


class ExactlyOnceSink:
    """Called with each micro-batch. Returns when the batch is committed, now or before."""

    def __init__(
        self,
        loop: LoopThread,
        client: TransactionClient,
        claims: ClaimServer,
        settings: SinkSettings,
        checkpoint: Checkpoint,
        observer: Observer,
    ) -> None:
        self._loop, self._client, self._claims = loop, client, claims
        self._transaction = client.transaction
        self._settings, self._checkpoint, self._observer = settings, checkpoint, observer
        self._committed: PipelineProgress | None = None
        self._topics_seen: dict[str, bool] = {}

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Write one micro-batch. A failed attempt is repeated in a new epoch. The last one raises the first error."""
        offsets = self._checkpoint.offsets(batch_id)
        marker = BatchMarker(self._checkpoint.query_id(), batch_id, fingerprint_of(list(offsets.texts)))
        first_error: Exception | None = None
        for attempt in range(1, self._settings.attempts + 1):
            try:
                self._attempt(frame, marker, offsets)
                return
            except (MarkerConflict, DriverFenced):
                raise
            except RowRefused:
                self._abort(marker)
                raise
            except Exception as error:  # Spark's or ours: abort, fence, and run the batch again
                first_error = first_error or error
                log.warning("batch %d, attempt %d of %d failed: %s", batch_id, attempt, self._settings.attempts, error)
                self._stop_if_another_driver_took_over(error, marker)
                self._abort(marker)
                if not is_worth_another_try(error):
                    raise
                self._observer(Step.RETRYING, batch_id)
        assert first_error is not None
        raise first_error

    def _attempt(self, frame: Any, marker: BatchMarker, offsets: BatchOffsets) -> None:
        transaction, client = self._transaction, self._client
        fresh = transaction.identity is None
        identity = self._wait(client.begin())
        if fresh or self._committed is None:
            # Only now is the marker stable: InitProducerId has settled a commit that was left half-finished.
            self._committed = self._wait(client.progress())
        committed = self._committed
        if self._verdict_on(committed, marker, offsets) is BatchVerdict.SKIP:
            if self._settings.keeps_state:
                # Compute it, but do not write it: the next batch needs its state and its event time.
                frame.write.format("noop").mode("overwrite").save()
            self._observer(Step.SKIPPED, marker.batch_id)
            return
        self._observer(Step.BEGUN, marker.batch_id)
        self._claims.begin_epoch((identity.producer_id, identity.producer_epoch))
        try:
            self._produce(frame, identity)
        except Exception as error:
            if mistake := self._claims.mistake:
                raise RowRefused(mistake) from error
            raise
        finally:
            self._claims.end_epoch()
        self._observer(Step.PRODUCED, marker.batch_id)
        source_ends = self._source_ends(offsets)
        progress = source_ends or self._place_for(marker)
        self._wait(client.commit_offsets(progress, marker, of_sources=bool(source_ends)))
        self._observer(Step.OFFSETS_ADDED, marker.batch_id)
        age_ms = transaction.age_ms(client.now_ms)
        if age_ms > _NEAR_TIMEOUT * transaction.timeout_ms:
            log.warning(
                "batch %d took %.0f s and transaction_timeout_ms is %d: make batches smaller, or raise it (the "
                "broker's limit is transaction.max.timeout.ms)",
                marker.batch_id, age_ms / 1000, transaction.timeout_ms,
            )  # fmt: skip
        self._wait(client.end(commit=True))
        self._committed = PipelineProgress({**committed.offsets, **progress}, marker)
        self._observer(Step.COMMITTED, marker.batch_id)

    def _verdict_on(self, committed: PipelineProgress, marker: BatchMarker, offsets: BatchOffsets) -> BatchVerdict:
        here = self._settings.sources_here
        return judge_batch(
            committed.marker,
            marker,
            self._transaction.transactional_id,
            committed.offsets,
            offsets.among(here) if here and all(here) else None,
            lambda: self._checkpoint.where_batch_begins(marker.batch_id),
        )

    def _produce(self, frame: Any, identity: ProducerIdentity) -> None:
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
        rows = kafka_columns(frame, settings.topic)
        session = rows.sparkSession
        session.conf.set("spark.sql.adaptive.enabled", "false")  # it could split one output partition over two tasks
        # Count once: if the topic grows meanwhile, one key must not go to two partitions within one batch.
        partitions = self._partition_count(settings.topic) if settings.topic else None
        parallelism = session.sparkContext.defaultParallelism
        writers = settings.writers or min(parallelism, partitions or parallelism)
        reports = (
            rows_by_partition(rows, partitions, settings.client_settings, writers, plan.refuse_row)
            .mapInArrow(lambda batches: write(batches, plan), REPORT_SCHEMA)
            .collect()
        )
        check_reports(self._claims.claimed, [WriteReport(*row) for row in reports])

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the event loop. Each step has its own deadline; this one is a safety net above them."""
        return self._loop.run(work, timeout_ms=self._client.longest_wait_ms)

    def _partition_count(self, topic: str) -> int:
        return len(self._wait(self._client.topic(topic)).partitions)

    def _source_ends(self, offsets: BatchOffsets) -> dict[TopicPartition, int]:
        """The source offsets to commit: the ends of the sources that are on this cluster."""
        ends = offsets.among(self._settings.sources_here)
        return {where: end for where, end in ends.items() if self._exists(where.topic)}

    def _place_for(self, marker: BatchMarker) -> dict[TopicPartition, int]:
        """No source is on this cluster: commit the batch id in an output partition, to carry the marker."""
        topic = self._settings.marker_topic or self._settings.topic
        if topic is None:
            raise ValueError(WHERE_TO_KEEP_PROGRESS)
        return {TopicPartition(topic, 0): marker.batch_id}

    def _exists(self, topic: str) -> bool:
        """Whether the topic still exists: offsets of a deleted topic cannot be committed."""
        if topic not in self._topics_seen:
            self._topics_seen[topic] = self._wait(self._client.has_topic(topic))
        return self._topics_seen[topic]

    def _stop_if_another_driver_took_over(self, error: Exception, marker: BatchMarker) -> None:
        """Stop if another driver fenced this one. If both went on, they would fence each other for ever."""
        if self._transaction.is_fenced_by_another(error, self._client.now_ms):
            self._committed = None
            self._transaction.forget_identity()
            raise DriverFenced(
                f"batch {marker.batch_id}: another driver has taken over transactional id "
                f"'{self._transaction.transactional_id}' ({error}). This one stops. If the other one is not "
                "meant to run, stop it and start this query again: the marker knows what was written."
            ) from error

    def _abort(self, marker: BatchMarker) -> None:
        """Try to abort. What counts is the new epoch of the next attempt: it fences all tasks of this one."""
        if self._transaction.identity is not None:
            try:
                self._wait(self._client.end(commit=False))
            except Exception as error:  # the next InitProducerId aborts it in any case
                self._stop_if_another_driver_took_over(error, marker)
                log.warning("could not abort, InitProducerId will: %s", error)
        self._transaction.forget_identity()
        self._committed = None


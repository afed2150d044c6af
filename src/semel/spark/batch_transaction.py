"""One micro-batch, or one load, as a transaction: begin, write any number of DataFrames, commit or abort.

Guarantees: what was written becomes visible whole, with its progress and its marker, or not at all. A batch that was
committed before is not written again. Several DataFrames may go to one topic: a later one goes on with the sequence
numbers of the one before, and its tasks claim their places anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from semel.client.blocking.loop_thread import LoopThread
from semel.machines.pipeline.batch_marker import (
    BatchMarker,
    BatchVerdict,
    MarkerConflict,
    judge_batch,
    refuse_group_of_another,
)
from semel.machines.pipeline.claims import RowRefused, WriteReport, check_reports
from semel.machines.pipeline.driver_transaction import DriverFenced, PipelineProgress, is_worth_another_try
from semel.machines.values import ProducerIdentity, TopicPartition

from .checkpoint import BatchOffsets
from .claims import ClaimServer, OwnTurns
from .hopeless import after_attempts, hopeless, in_words
from .kafka_options import ClientSettings, ProducerOptions
from .limits import find_topic, largest_batch
from .preflight import PipelineMistake
from .routing import kafka_columns
from .task_function import TaskFunctions
from .transaction_client import TransactionClient
from .writer import REPORT_SCHEMA, WritePlan, write, write_rows

log = logging.getLogger("semel.spark")

T = TypeVar("T")

#: A batch that takes a larger share of its timeout is logged as a warning.
_NEAR_TIMEOUT = 0.8

#: What the driver writes itself, at most: so many rows, and so many bytes if each is as large as its topic allows.
_FEW_ROWS = 100
_FEW_ROWS_BYTES = 128 << 20

#: After a failure, how long an output topic is looked for that no broker has.
_TOPIC_MS = 2_000

#: After this time a partition of a source may have been deleted.
_ASK_AGAIN_S = 5.0

#: The message for a pipeline that has no partition on the output's cluster to store its progress in.
WHERE_TO_KEEP_PROGRESS = (
    "the source has no offsets on this cluster: give marker_topic, a topic whose partition 0 keeps the progress"
)
#: The same, where a block of one's own has written nothing before.
_NOTHING_NAMED = (
    "the block has written to no topic, so there is no place for its progress: give transaction() the query's source, "
    "or marker_topic, a topic whose partition 0 keeps the progress"
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


def no_observer(step: Step, batch_id: int) -> None:
    """The default observer."""


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """How rows are written, and where progress is stored."""

    client_settings: ClientSettings
    producer: ProducerOptions
    writers: int | None = None
    #: Stores the progress if no source is on the output's cluster: its partition 0. Else the first topic written.
    marker_topic: str | None = None
    #: For each source of the query, in order: whether it reads topics of the output's cluster.
    sources_here: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """What is written in one transaction: its marker, its end offsets, and where it begins, for a message."""

    marker: BatchMarker
    offsets: BatchOffsets
    begins_at: Callable[[], str] = lambda: "where the batch begins"
    #: Its start offsets, for the audit.
    begins: Callable[[], BatchOffsets] = lambda: BatchOffsets((), ())
    #: It has no more rows than these, if that is known beforehand.
    most_rows: int | None = None


class BatchTransaction:
    """The transactions of one transactional id, one after the other."""

    def __init__(
        self, loop: LoopThread, client: TransactionClient, claims: ClaimServer, settings: OutputSettings
    ) -> None:
        self._loop, self._client, self._claims, self._settings = loop, client, claims, settings
        self._transaction = client.transaction
        self._functions = TaskFunctions(REPORT_SCHEMA)
        self._committed: PipelineProgress | None = None
        #: Partitions of the sources that are here, and when that was asked.
        self._seen: dict[TopicPartition, float] = {}
        self._identity: ProducerIdentity | None = None
        self._writes = 0
        self._most_rows: int | None = None
        self._has_failed = False
        self._sequences: dict[tuple[str, int], int] = {}
        #: The first topic that was written to since `begin`, also if there were no rows for it.
        self._first_topic: str | None = None
        #: What was written since `begin`, as acknowledged by the brokers.
        self.rows = self.size_bytes = 0
        #: How large a row was on average in the last transaction. None if that is not known, or if it failed.
        self.row_bytes: float | None = None

    def begin(self, batch: Batch) -> BatchVerdict:
        """Take an identity, and decide whether the batch runs. Raises `MarkerConflict` if it may not."""
        fresh = self._transaction.identity is None
        self._identity = self._wait(self._client.begin())
        self._writes, self._sequences, self._most_rows, self._first_topic = 0, {}, batch.most_rows, None
        self.rows = self.size_bytes = 0
        if fresh or self._committed is None:
            # Only now is the marker stable: InitProducerId has settled a commit that was left half-finished.
            self._committed = self._wait(self._client.progress())
        refuse_group_of_another(
            self._committed.marker, self._committed.of_others, self._transaction.transactional_id, batch.marker.batch_id
        )
        here = self._settings.sources_here
        return judge_batch(
            self._committed.marker,
            batch.marker,
            self._transaction.transactional_id,
            self._committed.offsets,
            batch.offsets.among(here) if here and all(here) else None,
            batch.begins_at,
        )

    def adopt(self, batch: Batch) -> None:
        """Store progress as if this batch had been written here, because another sink has written it."""
        self._identity, self._sequences = self._wait(self._client.begin()), {}
        try:
            self.commit(batch, self.add_progress(batch))
        except BaseException:
            self.abort(batch)  # nobody else would, and an open transaction hides the group's offsets until its timeout
            raise

    def write(self, frame: Any, topic: str | None) -> list[WriteReport]:
        """Write a DataFrame into the transaction. Its rows name their topics if `topic` is None."""
        assert self._identity is not None
        plan = WritePlan(
            self._settings.client_settings,
            self._transaction.transactional_id,
            self._identity,
            self._claims.desk,
            self._transaction.implicit_add,
            topic,
            self._settings.producer,
            self._writes,
            # Count once: if the topic grows meanwhile, one key must not go to two partitions within one batch.
            self._partition_count(topic) if topic else None,
        )
        self._writes += 1
        self._first_topic = self._first_topic or topic
        self._claims.begin_epoch(plan.epoch, self._sequences)
        try:
            reports = self._write_here(frame, plan) if self._is_small(plan) else self._run_tasks(frame, plan)
            check_reports(self._claims.given, reports)
        except Exception as error:
            if mistake := self._claims.mistake:
                raise RowRefused(mistake) from error
            raise
        finally:
            self._claims.end_epoch()
        self._sequences = self._claims.sequences
        for report in reports:
            self.rows += report.records
            self.size_bytes += report.size_bytes
        return reports

    def _is_small(self, plan: WritePlan) -> bool:
        """Whether the driver writes the rows itself. If that has failed, for whatever reason, tasks do it.

        The rows are in the driver's memory then: they must be few, and not large if each is as large as its topic
        allows.
        """
        rows = self._most_rows
        if rows is None or rows > _FEW_ROWS or plan.topic is None or self._has_failed:
            return False
        largest = largest_batch(self._loop, self._client.cluster, plan.client_settings, plan.topic)
        return rows * largest <= _FEW_ROWS_BYTES

    def _write_here(self, frame: Any, plan: WritePlan) -> list[WriteReport]:
        """The tasks compute a few rows, and the driver writes them: it costs less than a second Python in each task."""
        rows = self._rows(frame, plan)[0].toArrow().to_batches()
        turns = OwnTurns(self._claims, plan.epoch, plan.producer.deadline_ms)
        return [WriteReport(**report) for report in write_rows(rows, plan, self._loop, self._client.cluster, turns)]

    def _run_tasks(self, frame: Any, plan: WritePlan) -> list[WriteReport]:
        rows, names = self._rows(frame, plan)
        reports = self._functions.over(rows, names, lambda batches: write(batches, plan)).collect()
        return [WriteReport(*row) for row in reports]

    def _rows(self, frame: Any, plan: WritePlan) -> tuple[Any, tuple[str, ...]]:
        rows, names = kafka_columns(frame, plan.topic)
        return rows.coalesce(self._settings.writers) if self._settings.writers else rows, names

    def add_progress(self, batch: Batch) -> PipelineProgress:
        """Put the source offsets and the marker into the transaction. Returns what is the progress with them."""
        begins = batch.begins().among(self._settings.sources_here)
        source_ends = self._source_ends(batch.offsets, begins)
        place = None if source_ends else self._place_for_marker()
        progress = source_ends if place is None else {place: batch.marker.batch_id}
        # From the checkpoint, not from the progress: the audit is to find out whether the two agree.
        self._wait(
            self._client.commit_offsets(
                progress, batch.marker, of_sources=place is None, sequences=self._sequences, begins=begins,
                rows=self.rows,
            )
        )
        before = self._committed.offsets if self._committed else {}
        return PipelineProgress({**before, **source_ends}, batch.marker, place)

    def commit(self, batch: Batch, progress: PipelineProgress) -> None:
        """Make it all visible."""
        age_ms, timeout_ms = self._transaction.age_ms(self._client.now_ms), self._transaction.timeout_ms
        if age_ms > _NEAR_TIMEOUT * timeout_ms:
            log.warning(
                "batch %d took %.0f s and transaction_timeout_ms is %d: make batches smaller, or raise it (the "
                "broker's limit is transaction.max.timeout.ms)",
                batch.marker.batch_id, age_ms / 1000, timeout_ms,
            )  # fmt: skip
        self._wait(self._client.end(commit=True))
        self._has_failed = False
        is_known = self.rows and not self._settings.producer.codec  # of compressed rows nobody knows the size
        self.row_bytes = self.size_bytes / self.rows if is_known else None
        self._committed = progress

    def abort(self, batch: Batch) -> None:
        """Try to abort. What counts is the new epoch of the next attempt: it fences all tasks of this one."""
        self._has_failed, self.row_bytes = True, None
        if self._transaction.identity is not None:
            try:
                self._wait(self._client.end(commit=False))
            except Exception as error:  # the next InitProducerId aborts it in any case
                self.stop_if_another_driver_took_over(error, batch)
                log.warning("could not abort, InitProducerId will: %s", error)
        self._transaction.forget_identity()
        self._committed = None
        self._seen.clear()

    def stop_if_another_driver_took_over(self, error: Exception, batch: Batch) -> None:
        """Stop if another driver fenced this one. If both went on, they would fence each other for ever."""
        if self._transaction.is_fenced_by_another(error, self._client.now_ms):
            self._committed = None
            self._transaction.forget_identity()
            raise DriverFenced(
                f"batch {batch.marker.batch_id}: another driver has taken over transactional id "
                f"'{self._transaction.transactional_id}' ({error}). This one stops. If the other one is not "
                "meant to run, stop it and start this query again: the marker knows what was written."
            ) from error

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the event loop. Each step has its own deadline; this one is a safety net above them."""
        return self._loop.run(work, timeout_ms=self._client.longest_wait_ms)

    def _partition_count(self, topic: str) -> int:
        if self._has_failed and self._wait(find_topic(self._client.cluster, topic, patience_ms=_TOPIC_MS)) is None:
            raise PipelineMistake(
                f"topic '{topic}' is gone: it was deleted after the query had begun. Nothing of this micro-batch "
                "became visible. Create the topic again, and start the query again"
            )
        return len(self._wait(self._client.topic(topic)).partitions)

    def _source_ends(
        self, offsets: BatchOffsets, begins: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The source offsets to commit: the ends of the sources that are on this cluster.

        Offsets of a deleted topic cannot be committed, nor those of partitions that it had before it was created again.
        A partition of which something was read was there just now. Another one is asked for again after a while.
        """
        ends = offsets.among(self._settings.sources_here)
        asked_since = time.monotonic() - _ASK_AGAIN_S
        unsure = {
            where
            for where, end in ends.items()
            if self._seen.get(where, -1.0) < (asked_since if begins.get(where) == end else 0.0)
        }
        if unsure:
            now, here = time.monotonic(), self._wait(self._client.existing(unsure))
            for where in unsure - here:
                self._seen.pop(where, None)
            self._seen.update(dict.fromkeys(here, now))
        return {where: end for where, end in ends.items() if where in self._seen}

    def _place_for_marker(self) -> TopicPartition:
        """No source is on this cluster: an output partition in which the batch id is committed, to carry the marker."""
        topic = self._settings.marker_topic or self._first_topic or next((name for name, _ in self._sequences), None)
        if topic is not None:
            return TopicPartition(topic, 0)
        if self._committed is None or self._committed.marker_at is None:
            raise PipelineMistake(WHERE_TO_KEEP_PROGRESS if self._settings.sources_here else _NOTHING_NAMED)
        return self._committed.marker_at  # a block that writes nothing this time


def run_batch(
    transaction: BatchTransaction, batch: Batch, attempts: int, observer: Observer, body: Callable[[], None],
    if_done: Callable[[], None],
) -> bool:  # fmt: skip
    """Run a batch until it is committed, now or before. Returns whether it was committed now.

    `body` writes. A failed attempt is repeated in a new epoch. The last one raises the first error. What would come
    again is not tried again. `if_done` is called for a batch that was committed before.
    """
    first_error: Exception | None = None
    for attempt in range(1, attempts + 1):
        try:
            return _attempt(transaction, batch, observer, body, if_done)
        except (MarkerConflict, DriverFenced):
            raise
        except (RowRefused, PipelineMistake):
            transaction.abort(batch)
            raise
        except Exception as error:  # Spark's or ours: abort, fence, and run the batch again
            if (ending := hopeless(error)) is not None:
                transaction.abort(batch)
                raise ending from error
            first_error = first_error or error
            number = batch.marker.batch_id
            log.warning("batch %d, attempt %d of %d failed: %s", number, attempt, attempts, in_words(error))
            log.debug("the whole error of batch %d, attempt %d: %s", number, attempt, error)
            transaction.stop_if_another_driver_took_over(error, batch)
            transaction.abort(batch)
            if not is_worth_another_try(error):
                raise
            observer(Step.RETRYING, batch.marker.batch_id)
    assert first_error is not None
    ending = after_attempts(first_error, f"batch {batch.marker.batch_id}", attempts)
    if ending is first_error:
        raise first_error
    raise ending from first_error


def _attempt(
    transaction: BatchTransaction, batch: Batch, observer: Observer, body: Callable[[], None],
    if_done: Callable[[], None],
) -> bool:  # fmt: skip
    batch_id = batch.marker.batch_id
    if transaction.begin(batch) is BatchVerdict.SKIP:
        if_done()
        observer(Step.SKIPPED, batch_id)
        return False
    observer(Step.BEGUN, batch_id)
    body()
    observer(Step.PRODUCED, batch_id)
    progress = transaction.add_progress(batch)
    observer(Step.OFFSETS_ADDED, batch_id)
    transaction.commit(batch, progress)
    observer(Step.COMMITTED, batch_id)
    return True

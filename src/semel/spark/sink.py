"""The sink that runs inside foreachBatch: one micro-batch is one transaction.

Guarantees: a micro-batch becomes visible whole, with its source offsets and its marker, or not at all. A committed
batch is never written again. A failed attempt is aborted and fenced before the next one starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from semel.machines.pipeline.batch_marker import BatchMarker, fingerprint_of

from .batch_transaction import Batch, BatchTransaction, Observer, run_batch
from .checkpoint import Checkpoint, records_between
from .column_needs import told_to_tasks
from .parts import Parts

#: Writes a micro-batch into the open transaction.
Body = Callable[[BatchTransaction, Any], None]


class ExactlyOnceSink:
    """Called with each micro-batch. Returns when the batch is committed, now or before."""

    def __init__(
        self,
        transaction: BatchTransaction,
        checkpoint: Checkpoint,
        body: Body,
        *,
        attempts: int,
        keeps_state: bool,
        observer: Observer,
        parts: Parts,
        adds_no_rows: bool = False,
        needed_columns: frozenset[str] | None = None,
    ) -> None:
        self._transaction, self._checkpoint, self._body = transaction, checkpoint, body
        self._attempts, self._keeps_state, self._observer = attempts, keeps_state, observer
        self._adds_no_rows, self._parts, self._needed_columns = adds_no_rows, parts, needed_columns

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Write one micro-batch."""
        def write() -> None:
            self._parts.choose(frame.sparkSession, self._transaction.row_bytes)
            with told_to_tasks(frame.sparkSession, self._needed_columns):
                self._body(self._transaction, frame)

        def compute_only() -> None:
            """Do not write, but compute: the next batch needs this one's state and event time."""
            if self._keeps_state:
                frame.write.format("noop").mode("overwrite").save()

        batch = batch_of(self._checkpoint, batch_id)
        if self._adds_no_rows:
            batch = replace(batch, most_rows=records_between(self._checkpoint.begins(batch_id), batch.offsets))
        run_batch(
            self._transaction,
            batch,
            self._attempts,
            self._observer,
            write,
            compute_only,
        )
        self._checkpoint.remember(batch_id, batch.offsets)


def batch_of(checkpoint: Checkpoint, batch_id: int) -> Batch:
    """A micro-batch as the checkpoint describes it."""
    offsets = checkpoint.offsets(batch_id)
    marker = BatchMarker(checkpoint.query_id(), batch_id, fingerprint_of(list(offsets.texts)))
    return Batch(marker, offsets, lambda: checkpoint.where_batch_begins(batch_id), lambda: checkpoint.begins(batch_id))

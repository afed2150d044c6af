"""Take over a checkpoint that has no progress on the broker: one of Spark's own sink, or one whose progress expired.

Guarantees: nothing is written but progress, in a transaction: all batches before the next one count as written. From
the next batch on every row is written exactly once. The next batch itself may have been written before, if it was
begun; then it is taken over only if that was asked for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semel.machines.pipeline.batch_marker import (
    is_to_be_adopted,
    refuse_first_batch_of_another,
    refuse_foreign_checkpoint,
    refuse_group_of_another,
)
from semel.machines.pipeline.driver_transaction import PipelineProgress

from .batch_transaction import BatchTransaction, OutputSettings
from .checkpoint import Checkpoint
from .driver_side import DriverSide
from .frames import sources_of
from .preflight import (
    PipelineMistake,
    bootstrap_text,
    check_cluster,
    check_limits,
    checkpoint_in_words,
    kafka_arguments,
    location_text,
    sink_options,
    sources_here,
)
from .sink import batch_of

log = logging.getLogger("semel.spark")


@dataclass(frozen=True, slots=True)
class Adoption:
    """What came of taking over a checkpoint."""

    #: The first batch that is written exactly once; None if there was nothing to take over.
    from_batch: int | None
    #: Whether rows of that batch may be there already, from whoever ran it before.
    may_repeat: bool = False

    def __str__(self) -> str:
        if self.from_batch is None:
            return "nothing to take over: the checkpoint is new, or has its progress on the broker"
        words = f"taken over: exactly once from batch {self.from_batch} on"
        return f"{words}, whose own rows may be there twice" if self.may_repeat else words


def adopt(
    spark: Any,
    *,
    checkpoint: str | os.PathLike[str],
    bootstrap_servers: str | Sequence[str],
    transactional_id: str,
    source: Any = None,
    marker_topic: str | None = None,
    repeat: bool = False,
    kafka: Mapping[str, Any] | None = None,
) -> Adoption:
    """Take over a checkpoint without starting its query. `start(..., adopt=True)` does the same and starts it.

    Stop the old query first. `source` is the streaming DataFrame that the query reads; without it give `marker_topic`.
    If the old query was stopped in the middle of a batch, `MarkerConflict` says which; `repeat` accepts that the rows
    of this batch are written again.

    ```python
    print(adopt(spark, checkpoint="/data/checkpoints/ledger", bootstrap_servers="localhost:9092",
                transactional_id="ledger-pipeline", source=payments))
    ```
    """
    check_limits(
        transactional_id=transactional_id, marker_topic=marker_topic, compression="none", writers=None,
        transaction_timeout_ms=60_000,
    )  # fmt: skip
    if not hasattr(spark, "sparkContext"):
        raise PipelineMistake(f"adopt() takes a SparkSession first, not {type(spark).__name__}")
    if source is not None and not getattr(source, "isStreaming", False):
        kind = "this one is a batch" if hasattr(source, "_jdf") else f"not {type(source).__name__}"
        raise PipelineMistake(f"source: must be the streaming DataFrame that the query reads; {kind}")
    if type(repeat) is not bool:
        raise PipelineMistake(f"repeat={repeat!r}: must be True or False")
    bootstrap = bootstrap_text(bootstrap_servers)
    client, _ = kafka_arguments(kafka, {})
    settings, producer = sink_options(bootstrap, client, transactional_id, "none")
    if source is None and marker_topic is None:
        raise PipelineMistake("give source, the streaming DataFrame that the query reads, or marker_topic")
    side = DriverSide(
        spark, settings, transactional_id, timeout_ms=60_000, step_ms=producer.step_ms, claim_port=None
    )
    try:
        side.loop.run(check_cluster(side.cluster, bootstrap, [], marker_topic, 60_000))
        here = side.loop.run(sources_here(sources_of(source), side.cluster, bootstrap)) if source is not None else ()
        output = OutputSettings(settings, producer, None, marker_topic, here)
        side.keep_progress(marker_topic)
        writing = BatchTransaction(side.loop, side.client, side.claims, output)
        where = Checkpoint(spark, location_text(checkpoint))
        with checkpoint_in_words(where.location):
            if where.next_batch() is None:
                raise PipelineMistake(f"checkpoint='{where.location}' has no query: there is nothing to take over")
            return adopt_checkpoint(side, writing, where, repeat=repeat)
    finally:
        side.close()


def refuse_a_begun_first_batch(side: DriverSide, checkpoint: Checkpoint, committed: PipelineProgress) -> None:
    """Refuse a checkpoint at its first batch if another sink has begun that batch."""
    if committed.marker is None and checkpoint.is_begun(0):
        refuse_first_batch_of_another(None, is_begun=True, is_known=side.loop.run(side.client.is_known()))


def adopt_checkpoint(
    side: DriverSide, transaction: BatchTransaction, checkpoint: Checkpoint, *, repeat: bool
) -> Adoption:
    """Store the progress of a checkpoint that has none on the broker."""
    query_id, batch_id = checkpoint.next_batch() or (None, 0)
    committed = side.loop.run(side.client.progress())
    refuse_group_of_another(committed.marker, committed.of_others, side.transaction.transactional_id, batch_id)
    is_begun = checkpoint.is_begun(batch_id)
    if batch_id == 0 and is_begun and committed.marker is None:
        if repeat:
            side.loop.run(side.client.begin())  # there is no progress to store: that the id is known says it
            return Adoption(0, may_repeat=True)
        refuse_a_begun_first_batch(side, checkpoint, committed)
    if not is_to_be_adopted(
        committed.marker,
        query_id,
        batch_id,
        is_begun=is_begun,
        accepts_repeat=repeat,
        begins_at=lambda: checkpoint.where_batch_begins(batch_id),
    ):
        refuse_foreign_checkpoint(
            committed.marker, query_id, batch_id, side.transaction.transactional_id, committed.offsets,
            lambda: checkpoint.where_batch_begins(batch_id),
        )  # fmt: skip
        return Adoption(None)
    transaction.adopt(batch_of(checkpoint, batch_id - 1))
    found = Adoption(batch_id, may_repeat=is_begun)
    log.warning("checkpoint %s: %s", checkpoint.location, found)
    return found

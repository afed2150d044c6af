"""One transaction around code of your own in foreachBatch: any number of DataFrames, all or nothing.

Guarantees: all that `write` wrote becomes visible with the batch's marker when the block ends, and nothing of it if the
block raises, or if one of its writes failed. A batch that was committed before is computed, but not written again. A
block that cannot be that of the running micro-batch is refused: skipped as done, its rows would be lost.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from semel.machines.pipeline.batch_marker import BatchVerdict

from .batch_transaction import Batch, BatchTransaction, OutputSettings
from .checkpoint import Checkpoint
from .driver_side import DriverSide
from .frames import sources_of
from .preflight import (
    PipelineMistake,
    bootstrap_text,
    check_cluster,
    check_columns,
    check_limits,
    check_topic_name,
    checkpoint_in_words,
    constants_of,
    kafka_arguments,
    location_text,
    refuse_speculation,
    sink_options,
    sources_here,
)
from .sink import batch_of

log = logging.getLogger("semel.spark")


class Transaction:
    """What the block of `transaction` writes through."""

    def __init__(self, side: DriverSide, transaction: BatchTransaction, batch: Batch, *, bootstrap: str) -> None:
        self._side, self._transaction, self._batch, self._bootstrap = side, transaction, batch, bootstrap
        self._is_open = True
        #: Writes of several threads come one after the other: each goes on with the sequence numbers of the last.
        self._one_write = threading.Lock()
        self._failed: BaseException | None = None
        self._is_done = transaction.begin(batch) is BatchVerdict.SKIP
        if self._is_done:
            log.info("batch %d was committed before: it is not written again", batch.marker.batch_id)

    @property
    def batch_id(self) -> int:
        return self._batch.marker.batch_id

    @property
    def is_done(self) -> bool:
        """Whether this batch was committed before, by a driver that died right after. Nothing is written then."""
        return self._is_done

    def write(self, frame: Any, *, topic: str | None = None) -> int:
        """Write a DataFrame with the columns of Spark's Kafka sink. Returns how many rows were written.

        For a batch that was committed before, the rows are computed (a query may keep state) but not written: 0.
        """
        if not hasattr(frame, "_jdf"):
            raise PipelineMistake(f"write() takes a DataFrame, not {type(frame).__name__}")
        if frame.isStreaming:
            raise PipelineMistake("write() takes the DataFrame that foreachBatch gives, not a streaming one")
        if topic is not None:
            check_topic_name("topic", topic)
        check_columns(frame, topic)
        with self._one_write:
            if not self._is_open:
                raise PipelineMistake("the transaction has ended: write within its block")
            if self._failed is not None:
                raise self._cannot_commit()
            if self._is_done:
                frame.write.format("noop").mode("overwrite").save()
                return 0
            return self._write(frame, topic)

    def _write(self, frame: Any, topic: str | None) -> int:
        named, partition = constants_of(frame, topic)
        cluster = self._side.cluster
        self._side.loop.run(
            check_cluster(cluster, self._bootstrap, [(named, partition)], None, self._side.transaction.timeout_ms)
        )
        try:
            return sum(report.records for report in self._transaction.write(frame, topic))
        except BaseException as error:
            self._failed = error
            raise

    def _cannot_commit(self) -> PipelineMistake:
        """The error of a block that goes on after a failed write: some of its rows are in the transaction already."""
        first_line = str(self._failed).partition("\n")[0]
        mistake = PipelineMistake(
            f"a write of batch {self.batch_id} failed, and its error was caught in the block: nothing of the batch can "
            f"be committed. Let the error end the block. It was: {first_line}"
        )
        mistake.__cause__ = self._failed
        return mistake

    def end(self, error: BaseException | None) -> None:
        """Commit, or abort because of an error of the block or of a write."""
        with self._one_write:
            self._is_open = False
        if self._is_done:
            return
        if error is not None:
            self._transaction.abort(self._batch)
            return
        if self._failed is not None:
            self._transaction.abort(self._batch)
            raise self._cannot_commit()
        try:
            self._transaction.commit(self._batch, self._transaction.add_progress(self._batch))
        except Exception as failure:
            self._transaction.stop_if_another_driver_took_over(failure, self._batch)
            self._transaction.abort(self._batch)
            # The answer may be lost, and the batch committed: a new epoch settles that, and the marker tells.
            if self._transaction.begin(self._batch) is not BatchVerdict.SKIP:
                raise


@dataclass(frozen=True, slots=True)
class _Running:
    """The micro-batch that this thread runs, as Spark tells it to its jobs. All None outside foreachBatch."""

    run_id: str | None
    query_id: str | None
    batch_id: int | None

    @classmethod
    def of(cls, spark: Any) -> _Running:
        context = spark.sparkContext
        number = context.getLocalProperty("streaming.sql.batchId")
        query_id = context.getLocalProperty("sql.streaming.queryId")
        if number is None or query_id is None:
            return cls(None, None, None)
        return cls(context.getLocalProperty("spark.jobGroup.id"), query_id, int(number))

    def refuse_another(self, checkpoint: Checkpoint, batch_id: int) -> None:
        """Refuse a block that was given the number or the checkpoint of another batch."""
        if self.batch_id is None:
            return
        if batch_id != self.batch_id:
            raise PipelineMistake(
                f"batch_id={batch_id}, and Spark runs batch {self.batch_id}: give the block the number that "
                "foreachBatch gives"
            )
        if checkpoint.query_id() != self.query_id:
            raise PipelineMistake(
                f"checkpoint='{checkpoint.location}' is that of query {checkpoint.query_id()}, and this block runs in "
                f"query {self.query_id}: give the checkpointLocation of this query"
            )


class _Opened:
    """What a query's blocks have open. Kept between its micro-batches: to connect takes longer than a small batch."""

    def __init__(self, side: DriverSide, writing: BatchTransaction, given: tuple[Any, ...]) -> None:
        self.side, self.writing, self.given = side, writing, given
        self.in_use = threading.Lock()
        #: The batch of the last block that ended well.
        self.ended: int | None = None

    @contextmanager
    def block(self, running: _Running, batch_id: int, transactional_id: str) -> Iterator[None]:
        """Around a block: refuses one within another, and a second one for the same batch."""
        if not self.in_use.acquire(blocking=False):
            raise PipelineMistake(
                f"a block of transactional_id='{transactional_id}' is open already: write to that one, or end it first"
            )
        try:
            if running.run_id is not None and self.ended == batch_id:
                # In this run: the marker of an earlier run says that the batch is done, and here it is not known
                # whether that was before or after the rows of this block.
                raise PipelineMistake(
                    f"batch {batch_id} had a block of transactional_id='{transactional_id}' before, and that one has "
                    "ended: write all in one block, or give this one a transactional_id of its own"
                )
            yield
            self.ended = batch_id
        finally:
            self.in_use.release()


_open: dict[tuple[str, str], _Opened] = {}


@contextmanager
def transaction(
    *,
    batch_id: int,
    bootstrap_servers: str | Sequence[str],
    transactional_id: str,
    checkpoint: str | os.PathLike[str],
    source: Any = None,
    transaction_timeout_ms: int = 600_000,
    compression: str = "none",
    writers: int | None = None,
    marker_topic: str | None = None,
    kafka: Mapping[str, Any] | None = None,
    claim_port: int | None = None,
) -> Iterator[Transaction]:
    """One transaction for one micro-batch of your own foreachBatch.

    `checkpoint` is that of the query: it identifies the batch. `source` is the streaming DataFrame that the query
    reads: its offsets are committed in the same transaction, which `semel pipeline status` shows. Without it only the
    number of the batch is, for partition 0 of `marker_topic` or of the first topic written. The other arguments are
    those of `start`. An error in the block aborts and is raised, which ends the query; a restart runs the batch again.

    ```python
    def each(rows, batch_id):
        with transaction(batch_id=batch_id, bootstrap_servers="localhost:9092", transactional_id="ledger-pipeline",
                         checkpoint="/data/checkpoints/ledger", source=payments) as t:
            t.write(rows.select("key", "value"), topic="ledger")
            t.write(rows.where("length(value) > 1000").select("key", "value"), topic="audit")
    ```
    """
    from pyspark.sql import SparkSession

    if not isinstance(batch_id, int) or isinstance(batch_id, bool) or batch_id < 0:
        raise PipelineMistake(f"batch_id={batch_id!r}: must be the number that foreachBatch gives")
    check_limits(
        transactional_id=transactional_id, marker_topic=marker_topic, compression=compression, writers=writers,
        transaction_timeout_ms=transaction_timeout_ms,
    )  # fmt: skip
    spark = SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)
    if spark is None:
        raise PipelineMistake("there is no Spark session: call transaction() within foreachBatch")
    refuse_speculation(spark)
    bootstrap = bootstrap_text(bootstrap_servers)
    client, _ = kafka_arguments(kafka, {})
    client_settings, producer = sink_options(bootstrap, client, transactional_id, compression)
    where = Checkpoint(spark, location_text(checkpoint))
    if source is not None and not getattr(source, "isStreaming", False):
        kind = "this one is a batch" if hasattr(source, "_jdf") else f"not {type(source).__name__}"
        raise PipelineMistake(f"source: must be the streaming DataFrame of the query (spark.readStream); {kind}")
    running = _Running.of(spark)
    with checkpoint_in_words(where.location):
        running.refuse_another(where, batch_id)
        batch = batch_of(where, batch_id)
    # A run of the query may have other arguments than the one before, and only a new epoch knows what was done since.
    given = (
        running.run_id, bootstrap, client, compression, transaction_timeout_ms, writers, marker_topic, claim_port,
    )  # fmt: skip
    key = transactional_id, where.location
    opened = _open.get(key)
    if opened is not None and opened.given != given and not opened.in_use.locked():
        _open.pop(key).side.close()
        opened = None
    if opened is None:
        side = DriverSide(
            spark, client_settings, transactional_id, timeout_ms=transaction_timeout_ms, step_ms=producer.step_ms,
            claim_port=claim_port,
        )  # fmt: skip
        try:
            side.loop.run(check_cluster(side.cluster, bootstrap, [], marker_topic, transaction_timeout_ms))
            here = side.loop.run(sources_here(sources_of(source), side.cluster, bootstrap)) if source else ()
            side.keep_progress(marker_topic)
        except BaseException:
            side.close()
            raise
        settings = OutputSettings(client_settings, producer, writers, marker_topic, here)
        writing = BatchTransaction(side.loop, side.client, side.claims, settings)
        opened = _open[key] = _Opened(side, writing, given)
    with opened.block(running, batch_id, transactional_id):
        try:
            found = Transaction(opened.side, opened.writing, batch, bootstrap=bootstrap)
            try:
                yield found
            except BaseException as error:
                found.end(error)
                raise
            found.end(None)
        except BaseException:
            # After a failure everything is opened anew: the next batch may come after a long time.
            _open.pop(key).side.close()
            raise

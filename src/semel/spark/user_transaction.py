"""One transaction around code of your own in foreachBatch: any number of DataFrames, all or nothing.

Guarantees: all that `write` wrote becomes visible with the batch's marker when the block ends, and nothing of it if the
block raises. A batch that was committed before is computed, but not written again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from semel.machines.pipeline.batch_marker import BatchVerdict

from .batch_transaction import Batch, BatchTransaction, OutputSettings
from .checkpoint import Checkpoint
from .driver_side import DriverSide
from .frames import sources_of
from .kafka_options import ClientSettings
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
        if not self._is_open:
            raise PipelineMistake("the transaction has ended: write within its block")
        if not hasattr(frame, "_jdf"):
            raise PipelineMistake(f"write() takes a DataFrame, not {type(frame).__name__}")
        if frame.isStreaming:
            raise PipelineMistake("write() takes the DataFrame that foreachBatch gives, not a streaming one")
        if topic is not None:
            check_topic_name("topic", topic)
        check_columns(frame, topic)
        if self._is_done:
            frame.write.format("noop").mode("overwrite").save()
            return 0
        named, partition = constants_of(frame, topic)
        cluster = self._side.cluster
        self._side.loop.run(
            check_cluster(cluster, self._bootstrap, [(named, partition)], None, self._side.transaction.timeout_ms)
        )
        return sum(report.records for report in self._transaction.write(frame, topic))

    def end(self, error: BaseException | None) -> None:
        """Commit, or abort because of an error of the block."""
        self._is_open = False
        if self._is_done:
            return
        if error is not None:
            self._transaction.abort(self._batch)
            return
        try:
            self._transaction.commit(self._batch, self._transaction.add_progress(self._batch))
        except Exception as failure:
            self._transaction.stop_if_another_driver_took_over(failure, self._batch)
            self._transaction.abort(self._batch)
            # The answer may be lost, and the batch committed: a new epoch settles that, and the marker tells.
            if self._transaction.begin(self._batch) is not BatchVerdict.SKIP:
                raise


#: Kept between micro-batches: an epoch and a connection for each would cost more than a small batch.
_open: dict[tuple[ClientSettings, str, str], tuple[DriverSide, BatchTransaction]] = {}


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
    key = (client_settings, transactional_id, where.location)
    if key not in _open:
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
        _open[key] = side, BatchTransaction(side.loop, side.client, side.claims, settings)
    side, writing = _open[key]
    try:
        with checkpoint_in_words(where.location):
            batch = batch_of(where, batch_id)
        found = Transaction(side, writing, batch, bootstrap=bootstrap)
        try:
            yield found
        except BaseException as error:
            found.end(error)
            raise
        found.end(None)
    except BaseException:
        # After a failure everything is opened anew: the next batch may come after a long time.
        _open.pop(key)[0].close()
        raise

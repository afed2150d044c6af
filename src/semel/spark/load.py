"""Write a batch DataFrame in one transaction that has a name: a load that is done is not done again.

Guarantees: all rows become visible together with the note that the load of this name is done, or none do. A load that
was committed before writes nothing. One that was killed has written nothing visible, and runs again from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semel.machines.pipeline.batch_marker import BatchMarker, fingerprint_of

from .batch_transaction import Batch, BatchTransaction, Observer, OutputSettings, no_observer, run_batch
from .checkpoint import BatchOffsets
from .driver_side import DriverSide
from .preflight import (
    NotExactlyOnce,
    PipelineMistake,
    bootstrap_text,
    check_cluster,
    check_columns,
    check_limits,
    constants_of,
    kafka_arguments,
    refuse_connect,
    refuse_speculation,
    sink_options,
)
from .workers_python import require_workers_python

log = logging.getLogger("semel.spark")


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a load."""

    name: str
    #: How many rows were written now.
    rows: int
    #: Whether the load was committed before, so that nothing was written now.
    was_done: bool

    def __str__(self) -> str:
        if self.was_done:
            return f"load '{self.name}' was done before: nothing was written"
        return f"load '{self.name}' is done: {self.rows} rows"


def write(
    frame: Any,
    *,
    name: str,
    bootstrap_servers: str | Sequence[str],
    transactional_id: str,
    topic: str | None = None,
    transaction_timeout_ms: int = 600_000,
    compression: str = "none",
    writers: int | None = None,
    attempts: int = 3,
    marker_topic: str | None = None,
    kafka: Mapping[str, Any] | None = None,
    claim_port: int | None = None,
    observer: Observer = no_observer,
) -> Load:
    """Write a batch DataFrame in one transaction, once for each `name`.

    `frame` has the columns of Spark's Kafka sink. A load of the same `transactional_id` and `name` that was committed
    before is left alone, whatever its rows: the name says what is loaded. Loads with other names are independent, but
    only one of a `transactional_id` can run at a time. The other arguments are those of `start`.

    ```python
    print(write(frame, name="load-2026-11-16", topic="ledger", transactional_id="ledger-loads",
                bootstrap_servers="localhost:9092"))
    ```
    """
    if not isinstance(name, str) or not name.strip() or len(name) > 1000:
        raise PipelineMistake(f"name={name!r}: must be text that says what is loaded, such as 'load-2026-11-16'")
    check_limits(
        transactional_id=transactional_id, topic=topic, marker_topic=marker_topic, compression=compression,
        writers=writers, attempts=attempts, transaction_timeout_ms=transaction_timeout_ms, observer=observer,
    )  # fmt: skip
    refuse_connect(frame)
    if not hasattr(frame, "_jdf"):
        raise PipelineMistake(f"write() takes a DataFrame, not {type(frame).__name__}")
    if frame.isStreaming:
        raise NotExactlyOnce("write() takes a batch DataFrame; give this streaming one to semel.spark.start()")
    spark = frame.sparkSession
    refuse_speculation(spark)
    require_workers_python(spark)
    check_columns(frame, topic)
    if topic is None and marker_topic is None:
        raise PipelineMistake("rows name their topics: give marker_topic, a topic whose partition 0 notes what is done")
    bootstrap = bootstrap_text(bootstrap_servers)
    client, _ = kafka_arguments(kafka, {})
    settings, producer = sink_options(bootstrap, client, transactional_id, compression)
    side = DriverSide(
        spark, settings, transactional_id, timeout_ms=transaction_timeout_ms, step_ms=producer.step_ms,
        claim_port=claim_port, group_id=f"{transactional_id}/{name}",
    )  # fmt: skip
    try:
        named = constants_of(frame, topic)
        side.loop.run(check_cluster(side.cluster, bootstrap, [named], marker_topic, transaction_timeout_ms))
        side.keep_progress(marker_topic, [topic] if topic else [])
        writing = BatchTransaction(
            side.loop, side.client, side.claims, OutputSettings(settings, producer, writers, marker_topic or topic)
        )
        batch = Batch(BatchMarker(f"load {name}", 0, fingerprint_of([name])), BatchOffsets((), ()))
        rows: int | None = None

        def body() -> None:
            nonlocal rows
            rows = None
            rows = sum(report.records for report in writing.write(frame, topic))

        run_batch(writing, batch, attempts, observer, body, lambda: None)
    finally:
        side.close()
    # Where the answer to the commit was lost, the marker tells the second attempt that it is done: done by this call.
    found = Load(name, rows or 0, was_done=rows is None)
    log.info("%s", found)
    return found

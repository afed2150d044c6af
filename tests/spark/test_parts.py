"""Rows go from Spark to a task's Python in parts that are worth a batch, however large a row is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semel
from semel.spark.batch_transaction import BatchTransaction
from semel.spark.kafka_options import ProducerOptions
from semel.spark.parts import Parts
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: With this Spark computes no sizes.
NO_LIMIT = str(2**31 - 1)


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [batch.nbytes]})


def test_a_part_is_as_large_as_was_asked_for_and_what_a_user_has_set_stays(spark: Any) -> None:
    session = spark.newSession()
    rows = session.range(0, 3000, 1, 1).selectExpr("repeat('x', 1024) as value")

    def parts() -> list[Any]:
        found: list[Any] = rows.mapInArrow(sizes, "rows long, bytes long").collect()
        return found

    assert [part.rows for part in parts()] == [3000]
    chosen = Parts(300_000)
    chosen.choose(session, None)
    found = parts()
    assert sum(part.rows for part in found) == 3000
    assert all(300_000 <= part.bytes < 310_000 for part in found[:-1])
    assert len(found) == 11
    Parts(100_000).choose(session, None)
    assert len(parts()) == 11


def test_small_rows_are_counted_and_large_or_unknown_ones_are_measured(spark: Any) -> None:
    session = spark.newSession()
    rows = session.range(0, 5000, 1, 1).selectExpr("repeat('x', 100) as value")

    def parts() -> list[int]:
        return [part.rows for part in rows.mapInArrow(sizes, "rows long, bytes long").collect()]

    chosen = Parts(720_000)
    chosen.choose(session, None)
    assert session.conf.get(SETTING) == "720000"
    chosen.choose(session, 112.5)
    assert session.conf.get(SETTING) == NO_LIMIT
    assert parts() == [2000, 2000, 1000]
    chosen.choose(session, 1000.0)
    assert parts()[0] == 720
    chosen.choose(session, 0.5)
    assert parts()[0] == 2000
    for unknown in (1024.0, None):
        chosen.choose(session, 112.5)
        chosen.choose(session, unknown)
        assert (session.conf.get(SETTING), session.conf.get(ROWS)) == ("720000", "10000")


@pytest.mark.parametrize(("given", "most"), [("500", 500), ("0", 2000)])
def test_no_part_has_more_rows_than_a_user_wants(spark: Any, given: str, most: int) -> None:
    session = spark.newSession()
    session.conf.set(ROWS, given)
    Parts(720_000).choose(session, 100.0)
    assert session.conf.get(ROWS) == str(most)


def test_a_pipeline_sets_it_for_its_own_micro_batches(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    values = stage.put_numbers(400)
    run_tasks, seen = BatchTransaction._run_tasks, []

    def noted(transaction: BatchTransaction, frame: Any, plan: Any) -> Any:
        seen.append(frame.sparkSession.conf.get(SETTING))
        if len(seen) == 2:
            raise ConnectionError("the second micro-batch fails once")
        return run_tasks(transaction, frame, plan)

    monkeypatch.setattr(BatchTransaction, "_run_tasks", noted)
    before = spark.conf.get(SETTING)
    stage.run(stage.source(maxOffsetsPerTrigger=200))
    measured = str(ProducerOptions().rows_bytes)
    # The second micro-batch knows how large rows are. When it has failed, it knows nothing any more.
    assert seen == [measured, NO_LIMIT, measured]
    assert spark.conf.get(SETTING) == before
    assert sorted(stage.values()) == values

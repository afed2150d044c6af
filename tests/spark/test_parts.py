"""Rows go from Spark to a task's Python in parts that are worth a batch, however large a row is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semel
from semel.spark.batch_transaction import BatchTransaction
from semel.spark.frames import hand_over_in_parts
from semel.spark.kafka_options import ProducerOptions
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"


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
    hand_over_in_parts(rows, 300_000)
    found = parts()
    assert sum(part.rows for part in found) == 3000
    assert all(300_000 <= part.bytes < 310_000 for part in found[:-1])
    assert len(found) == 11
    hand_over_in_parts(rows, 100_000)
    assert len(parts()) == 11


def test_a_pipeline_sets_it_for_its_own_micro_batches(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    values = stage.put_numbers(3)
    run_tasks, seen = BatchTransaction._run_tasks, []

    def noted(transaction: BatchTransaction, frame: Any, plan: Any) -> Any:
        seen.append(frame.sparkSession.conf.get(SETTING))
        return run_tasks(transaction, frame, plan)

    monkeypatch.setattr(BatchTransaction, "_run_tasks", noted)
    before = spark.conf.get(SETTING)
    stage.run(stage.source())
    assert seen == [str(ProducerOptions().rows_bytes)]
    assert spark.conf.get(SETTING) == before
    assert sorted(stage.values()) == values

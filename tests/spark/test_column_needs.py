"""A column of the source is left out only if the query cannot see it, and only for the query that said so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semel
from semel.records.columns import schema
from semel.spark import Step, sink
from semel.spark.column_needs import needed_columns, only_needed, told_to_tasks
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    return Stage(spark, semel_broker.bootstrap_servers, tmp_path)


def whole_source(stage: Stage) -> Any:
    """The source with all its columns, headers too."""
    reader = stage.spark.readStream.format("semel").option("subscribe", "payments").option("includeHeaders", "true")
    reader = reader.option("startingOffsets", "earliest")
    return reader.option("kafka.bootstrap.servers", stage.bootstrap_servers).load()


def read(stage: Stage) -> Any:
    reader = stage.spark.read.format("semel").option("subscribe", "payments")
    return reader.option("kafka.bootstrap.servers", stage.bootstrap_servers).load()


def test_what_a_query_needs_is_what_its_expressions_and_its_result_refer_to(stage: Stage) -> None:
    from pyspark.sql.functions import udf

    stage.create_topics(payments=1)
    frame = whole_source(stage)
    everything = frozenset(frame.columns)
    assert len(everything) == 8
    assert needed_columns(frame) == everything
    assert needed_columns(frame.select("value")) == {"value"}
    assert needed_columns(frame.selectExpr("upper(string(value)) as value", "key")) == {"key", "value"}
    assert needed_columns(frame.where("partition = 3").select("value")) == {"partition", "value"}
    assert needed_columns(frame.where("size(headers) > 0").where("offset > 3").selectExpr("value as key")) == {
        "headers", "offset", "value",
    }  # fmt: skip
    assert needed_columns(frame.withColumn("key", frame.topic).select("key", "value")) == {"topic", "value"}
    assert needed_columns(frame.selectExpr("'x' as value")) == frozenset()
    # Nodes that may look at whole rows, or at more than one source.
    one = udf(lambda key: "x", "string")
    read(stage).createOrReplaceTempView("another_read")
    for unclear in (
        frame.select(one("key").alias("value")),
        frame.where("value > (select max(key) from another_read)").select("value"),
        frame.dropDuplicates().select("value"),
        frame.select("value").union(frame.select("key")),
        frame.groupBy("key").count(),
        frame.mapInArrow(lambda rows: rows, frame.schema).select("value"),
        frame.withWatermark("timestamp", "1 minute").select("value"),
    ):
        assert needed_columns(unclear) is None


def test_what_is_not_needed_is_null_and_nothing_else_is_changed() -> None:
    kinds = schema(include_headers=True)
    rows = pa.RecordBatch.from_pylist(
        [{"key": b"k", "value": b"v", "topic": "t", "partition": 1, "offset": 5, "timestamp": 7, "timestampType": 0,
          "headers": [{"key": "h", "value": b"x"}]}] * 3,
        schema=kinds,
    )  # fmt: skip
    assert only_needed(rows, None) is rows
    for needed in (frozenset[str](), frozenset({"value"}), frozenset({"headers", "topic"}), frozenset(kinds.names)):
        found = only_needed(rows, needed)
        found.validate(full=True)
        assert found.schema == kinds
        for name in kinds.names:
            assert found.column(name).equals(rows.column(name)) == (name in needed)
            assert found.column(name).null_count == (0 if name in needed else 3)


def test_a_query_that_looks_at_some_columns_writes_what_it_would_write_of_all(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the jobs that others run in its thread read all columns."""
    stage.create_topics(payments=2, ledger=1)
    told: list[str] = []

    @contextmanager
    def noted(session: Any, columns: frozenset[str] | None) -> Iterator[None]:
        with told_to_tasks(session, columns):
            told.append(session.sparkContext.getLocalProperty("semel.columns"))
            yield

    monkeypatch.setattr(sink, "told_to_tasks", noted)
    for partition in range(2):
        stage.put("payments", [(b"k%d" % number, b"v%d" % number) for number in range(150)], partition=partition)
    others: list[Any] = []

    def other_job(step: Step, batch_id: int) -> None:
        if step in (Step.BEGUN, Step.PRODUCED):
            others.append(read(stage).where("key is not null and value is not null and topic is not null").count())

    frame = whole_source(stage).where("offset % 2 = 0").selectExpr("concat(string(value), '-', partition) as value")
    stage.run(frame, observer=other_job)
    assert [columns.partition(" ")[2] for columns in told] == ["offset,partition,value"]
    assert others == [300, 300]
    wanted = [b"v%d-%d" % (number, partition) for partition in range(2) for number in range(0, 150, 2)]
    assert sorted(seen.value for seen in stage.seen()) == sorted(wanted)  # type: ignore[type-var]


def test_what_is_told_to_the_tasks_of_a_query_is_heard_by_no_other(stage: Stage) -> None:
    """A batch read in the thread of a query, and one that is taken for a query's, but another's."""
    stage.create_topics(payments=1)
    stage.put("payments", [(b"k", b"v")] * 3)
    context, only_value = stage.spark.sparkContext, frozenset({"value"})

    def keys() -> list[Any]:
        return [row.key for row in read(stage).select("key").collect()]

    try:
        context.setLocalProperty("sql.streaming.queryId", "a")
        with told_to_tasks(stage.spark, only_value):
            assert keys() == [None] * 3  # the query itself
            context.setLocalProperty("sql.streaming.queryId", "b")
            assert keys() == [b"k"] * 3
            context.setLocalProperty("sql.streaming.queryId", None)
            assert keys() == [b"k"] * 3
            context.setLocalProperty("sql.streaming.queryId", "a")
        assert keys() == [b"k"] * 3
        context.setLocalProperty("sql.streaming.queryId", None)
        with told_to_tasks(stage.spark, only_value):
            assert keys() == [b"k"] * 3
    finally:
        context.setLocalProperty("sql.streaming.queryId", None)

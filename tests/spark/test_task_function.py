"""Functions reach the tasks as by `mapInArrow`, and the JVM is asked once for what does not change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.sql.types import LongType, StringType, StructField, StructType

import semel
from semel.spark import Step
from semel.spark.batch_transaction import BatchTransaction
from semel.spark.task_function import TaskFunctions
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RESULT = StructType([StructField("rows", LongType()), StructField("said", StringType())])


class Calls:
    """The calls into the JVM that this thread makes. Python also tells the JVM which objects it needs no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.thread: int | None = None
        send = ClientServerConnection.send_command

        def noted(connection: Any, command: str) -> Any:
            if threading.get_ident() == self.thread and not command.startswith("m\n"):
                self.made.append(command)
            return send(connection, command)

        monkeypatch.setattr(ClientServerConnection, "send_command", noted)

    def begin(self) -> None:
        self.made, self.thread = [], threading.get_ident()

    def end(self) -> int:
        self.thread = None
        return len(self.made)


def counting(what: str) -> Any:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(sum(batch.column("id").to_pylist()) for batch in batches)
        yield pa.RecordBatch.from_pydict(
            {"rows": [rows], "said": [what]}, schema=pa.schema([("rows", pa.int64()), ("said", pa.string())])
        )

    return count


def test_each_function_runs_over_its_own_rows_and_all_but_the_first_take_a_few_calls(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions, calls = TaskFunctions(RESULT), Calls(monkeypatch)
    found, made = [], []
    for number, text in enumerate(("a", "b", "a")):
        rows = spark.range(0, 10 + number, 1, 1).selectExpr("id", f"'{text}' as name")
        calls.begin()
        answer = functions.over(rows, ("id", "name"), counting(f"{text}{number}"))
        made.append(calls.end())
        found.append(tuple(answer.collect()[0]))
    assert found == [(45, "a0"), (55, "b1"), (66, "a2")]
    assert made[1:] == [4, 4], "mapInArrow makes about 30"
    assert answer.schema == RESULT


def test_what_spark_ships_to_the_tasks_is_what_it_is_now(spark: Any, tmp_path: Path) -> None:
    """A file that was added after the first function was made is there for the next one."""
    functions = TaskFunctions(RESULT)
    assert functions.over(spark.range(3).coalesce(1), ("id",), counting("before")).collect()[0].rows == 3
    (tmp_path / "added_later_for_tasks.py").write_text("ANSWER = 'later'\n")
    spark.sparkContext.addPyFile(str(tmp_path / "added_later_for_tasks.py"))

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import added_later_for_tasks

        yield from counting(added_later_for_tasks.ANSWER)(batches)

    assert functions.over(spark.range(3).coalesce(1), ("id",), look).collect()[0].said == "later"


def test_a_large_function_is_left_to_spark(spark: Any) -> None:
    text = "x" * 200_000
    [found] = TaskFunctions(RESULT).over(spark.range(3).coalesce(1), ("id",), counting(text)).collect()
    assert (found.rows, found.said) == (3, text)


def test_a_micro_batch_makes_few_calls_before_its_tasks_run(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, calls = Stage(spark, semel_broker.bootstrap_servers, tmp_path), Calls(monkeypatch)
    stage.create_topics(payments=1, ledger=2)
    values = stage.put_numbers(600)
    made: list[int] = []
    run_tasks = BatchTransaction._run_tasks

    def counted(transaction: BatchTransaction, frame: Any, plan: Any) -> Any:
        calls.begin()
        try:
            return run_tasks(transaction, frame, plan)
        finally:
            made.append(calls.end())

    monkeypatch.setattr(BatchTransaction, "_run_tasks", counted)
    steps = stage.run(stage.source(maxOffsetsPerTrigger=200))
    assert [batch for step, batch in steps if step is Step.COMMITTED] == [0, 1, 2]
    assert sorted(seen.value for seen in stage.seen()) == values  # type: ignore[type-var]
    assert len(made) == 3
    assert max(made[1:]) <= 16, "with mapInArrow it is about 40"

"""What would fail again however often it is tried ends the query at the first try; all else is tried again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql.functions import udf

import semel
from semel.spark import BatchFailed, RowRefused, Step
from semel.spark.hopeless import after_attempts, coding_error_in, data_lost_in, in_words
from semel.spark.range_reader import DataLost
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/jobs/shout.py", line 15, in shout
  File "{deeper}", line 99, in loads
{error}
"""


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=2)
    return stage


@pytest.mark.parametrize(
    ("deeper", "error", "found"),
    [
        ("/venv/lib/python3.11/json/decoder.py", "json.decoder.JSONDecodeError: Expecting value",
         "JSONDecodeError: Expecting value (shout.py:15)"),
        ("/jobs/other.py", "KeyError: 'amount'\nand more", "KeyError: 'amount' (other.py:99)"),
        ("/jobs/other.py", "AssertionError", "AssertionError: without words (other.py:99)"),
        ("/jobs/other.py", "ConnectionError: the registry is away", None),
        ("/jobs/other.py", "RuntimeError: try later", None),
        ("/jobs/other.py", "requests.exceptions.JSONDecodeError: no JSON in the answer", None),
        ("/venv/lib/python3.11/site-packages/semel/spark/writer.py", "ValueError: a mistake of ours", None),
    ],
)  # fmt: skip
def test_only_programming_errors_of_the_querys_own_code_are_hopeless(
    deeper: str, error: str, found: str | None
) -> None:
    assert coding_error_in(WORKER.format(deeper=deeper, error=error)) == found


def test_a_log_that_gives_nothing_for_a_while_is_no_loss() -> None:
    gone = "payments-0: offset 3 is gone, the log starts at 7. Set failOnDataLoss=false to read on from what is left."
    assert data_lost_in(f"Traceback\nsemel.spark.range_reader.DataLost: {gone}\n") == gone
    assert data_lost_in("semel.spark.range_reader.DataLost: payments-0: nothing came from offset 3 on for 9 ms") is None
    assert data_lost_in("KeyError: 'DataLost: x'") is None


def test_an_error_of_a_task_is_told_in_one_line() -> None:
    trace = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 4327, in invoke_udf
    run_process()
  File "/jobs/ledger.py", line 12, in ask
    raise ConnectionError("away")
ConnectionError: away
and more of it"""
    assert in_words(PythonException(trace)) == "ConnectionError: away (ledger.py:12)"
    ours = trace.replace("/jobs/ledger.py", "/src/semel/spark/writer.py").replace("ConnectionError: away", "a.B: gone")
    assert in_words(PythonException(ours)) == "B: gone"
    assert in_words(PythonException("Job aborted\n\nJVM stacktrace:\nat x")) == "Job aborted"
    passes = ConnectionError("the broker is away")
    assert after_attempts(passes, "batch 7", 3) is passes
    failed = after_attempts(PythonException(trace), "batch 7", 3)
    assert isinstance(failed, BatchFailed)
    assert str(failed).startswith("batch 7 failed in all of its 3 attempts; the first error: ConnectionError: away")


def ends_at_once(stage: Stage, frame: Any, says: str, kind: type[Exception] = RowRefused, **settings: Any) -> None:
    before = len(stage.steps)
    with pytest.raises(StreamingQueryException) as failed:
        stage.run(frame, **settings)
    cause = failed.value.__cause__
    assert isinstance(cause, kind) and says in str(cause), cause
    assert "\n" not in str(cause) and str(failed.value).startswith(f"{kind.__name__}: ")
    assert Step.RETRYING not in [step for step, _ in stage.steps[before:]]
    assert stage.values() == []


def test_an_error_of_a_users_function_or_of_its_sql_ends_the_query_at_the_first_try(stage: Stage) -> None:
    stage.put_numbers(300)  # too many for the driver to write itself

    @udf("string")
    def shout(value: bytes) -> str:
        raise KeyError("amount")

    rows = stage.source()
    ends_at_once(stage, rows.select(shout("value").alias("value")), "the query's own code raised KeyError: 'amount'")
    stage.checkpoint += "-sql"
    stage.transactional_id += "-sql"
    ends_at_once(stage, rows.selectExpr("string(bigint(string(key))) as value"), "[CAST_INVALID_INPUT] The value")

    def of_a_batch(batch: Any) -> Any:
        if batch.count():  # start() calls it without rows
            raise KeyError("amount")
        return batch

    stage.checkpoint += "-outputs"
    stage.transactional_id += "-outputs"
    ends_at_once(stage, rows, "the function of output 'ledger' raised KeyError", topic=None,
                 outputs={"ledger": of_a_batch})  # fmt: skip


def test_records_that_are_gone_end_the_query_at_the_first_try(stage: Stage) -> None:
    stage.put_numbers(300)

    def delete_what_is_to_be_read(step: Step, batch_id: int) -> None:
        if step is Step.BEGUN:
            with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
                admin.delete_records({("payments", 0): 5, ("payments", 1): 5})

    ends_at_once(
        stage, stage.source(), "offset 0 is gone, the log starts at 5", DataLost, observer=delete_what_is_to_be_read
    )


def test_an_error_that_may_pass_is_tried_again(stage: Stage) -> None:
    values = stage.put_numbers(300)
    marker = str(stage.folder / "was here")

    @udf("binary")
    def once(value: bytes) -> bytes:
        if value == b"000007" and not Path(marker).exists():
            Path(marker).touch()
            raise ConnectionError("the registry is away")
        return bytes(value)

    stage.run(stage.source().select("key", once("value").alias("value")))
    assert (Step.RETRYING, 0) in stage.steps
    assert sorted(value for value in stage.values() if value) == values


def test_an_output_topic_that_is_deleted_is_told_and_not_waited_for_again_and_again(stage: Stage) -> None:
    stage.put_numbers(300)
    deleted: list[int] = []

    def delete_the_topic(step: Step, batch_id: int) -> None:
        if step is Step.BEGUN and not deleted:
            deleted.append(batch_id)
            with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
                admin.delete_topics(["ledger"])

    with pytest.raises(StreamingQueryException) as failed:
        stage.run(stage.source(), observer=delete_the_topic, kafka={"request.timeout.ms": 3000})
    assert str(failed.value).startswith("PipelineMistake: topic 'ledger' is gone: it was deleted after the query had")
    assert [step for step, _ in stage.steps].count(Step.RETRYING) == 1

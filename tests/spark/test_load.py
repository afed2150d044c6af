"""Loads of batch DataFrames: one transaction, once for each name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.spark import Load, NotExactlyOnce, PipelineMistake, RowRefused, Step, write
from semel.testing.fault_proxy import Cut, FaultProxy, every
from semel.wire.apis import ApiKey
from tests.spark.stage import Stage
from tests.support.requirements import CHECKOUT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=2)
    return stage


def rows_of(stage: Stage, first: int, last: int) -> Any:
    return stage.spark.range(first, last).selectExpr("string(id % 7) as key", "string(id) as value")


def numbers(stage: Stage) -> list[int]:
    return sorted(int(value) for value in stage.values() if value)


def load(stage: Stage, frame: Any, name: str, **settings: Any) -> Load:
    given: dict[str, Any] = {
        "bootstrap_servers": stage.bootstrap_servers, "transactional_id": "loads", "topic": "ledger", **settings,
    }  # fmt: skip
    return write(frame, name=name, **given)


def test_a_load_is_done_once_for_each_name_and_a_rerun_says_so(stage: Stage) -> None:
    done = load(stage, rows_of(stage, 0, 30), "monday")
    assert (done.rows, done.was_done, str(done)) == (30, False, "load 'monday' is done: 30 rows")
    assert load(stage, rows_of(stage, 30, 50), "tuesday").rows == 20
    again = load(stage, rows_of(stage, 0, 30), "monday")
    assert (again.rows, again.was_done) == (0, True)
    assert str(again) == "load 'monday' was done before: nothing was written"
    assert numbers(stage) == list(range(50))
    assert load(stage, rows_of(stage, 50, 50), "nothing").rows == 0
    assert load(stage, rows_of(stage, 50, 60), "nothing").was_done


def test_lost_answers_and_a_failed_attempt_leave_each_row_once(stage: Stage) -> None:
    steps: list[Step] = []

    def fail_once(step: Step, _: int) -> None:
        steps.append(step)
        if step is Step.OFFSETS_ADDED and steps.count(step) == 1:
            raise RuntimeError("the driver lost its head")

    def lose(passing: Any) -> Any:
        return every(2, ApiKey.END_TXN, Cut())(passing) or every(3, ApiKey.PRODUCE, Cut())(passing)

    with FaultProxy(stage.bootstrap_servers, lose) as proxy:
        done = load(stage, rows_of(stage, 0, 30), "monday", bootstrap_servers=proxy.bootstrap_servers,
                    observer=fail_once)  # fmt: skip
    assert (done.rows, done.was_done) == (30, False)
    assert Step.RETRYING in steps
    assert numbers(stage) == list(range(30))


PROGRAM = """
import os, signal, sys
from pyspark.sql import SparkSession
from semel.spark import Step, write
def die(step, batch_id):
    if step.name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
rows = spark.range(30).selectExpr("string(id) as value")
write(rows, name="monday", bootstrap_servers=sys.argv[1], transactional_id="loads", topic="ledger", observer=die)
"""


@pytest.mark.parametrize(("step", "was_done"), [("OFFSETS_ADDED", False), ("COMMITTED", True)])
def test_a_load_that_is_killed_shows_nothing_and_its_rerun_writes_all_or_knows_that_it_was_done(
    stage: Stage, step: str, was_done: bool
) -> None:
    path = os.pathsep.join(part for part in (str(CHECKOUT / "src"), os.environ.get("PYTHONPATH")) if part)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, stage.bootstrap_servers, step], capture_output=True, timeout=200,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}, cwd=stage.folder,
    )  # fmt: skip
    assert ran.returncode == -signal.SIGKILL, ran.stderr[-2000:]
    assert len(stage.values(committed=False)) == 30
    if not was_done:
        assert stage.values() == []
    done = load(stage, rows_of(stage, 0, 30), "monday")
    assert (done.was_done, done.rows) == (was_done, 0 if was_done else 30)
    assert numbers(stage) == list(range(30))


def test_mistakes_are_told_before_anything_is_written(stage: Stage) -> None:
    rows = rows_of(stage, 0, 3)
    for settings, says in (
        ({"name": ""}, "name='': must be text that says what is loaded"),
        ({"name": None}, "name=None"),
        ({"topic": None}, "Give start() a topic, or the rows a column 'topic'"),
        ({"topic": "__consumer_offsets"}, "is one of the brokers' own"),
        ({"transaction_timeout_ms": 900_001}, "lower it to 900000"),
        ({"frame": rows.select("key")}, "the sink needs a column 'value'"),
        ({"frame": 7}, "write() takes a DataFrame, not int"),
        ({"frame": rows.selectExpr("value", "'ledger' as topic"), "topic": None}, "give marker_topic"),
        ({"kafka": {"linger.ms": -1}}, "kafka: linger.ms"),
    ):
        given: dict[str, Any] = {"frame": rows, "name": "monday", **settings}  # type: ignore[dict-item]
        with pytest.raises(PipelineMistake) as refused:
            load(stage, given.pop("frame"), **given)
        assert says in str(refused.value)
    with pytest.raises(NotExactlyOnce, match=r"give this streaming one to semel.spark.start"):
        load(stage, stage.source(), "monday")
    large = stage.spark.range(40, 45).selectExpr("repeat('x', int(id = 43) * 3000000) as value", "id as offset")
    with pytest.raises(RowRefused, match=r"too large: .*\(the row came from offset 43\); make it smaller"):
        load(stage, large, "monday")
    assert stage.values() == []

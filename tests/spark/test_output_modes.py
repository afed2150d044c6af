"""Queries that keep state: update and complete, each micro-batch shown once and the state right, whatever dies."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.spark import Step
from semel.spark.frames import keeps_state
from semel.testing.fault_proxy import Fault, FaultProxy, Passing, Way
from semel.wire.apis import ApiKey
from tests.spark.stage import Stage, python_workers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    return stage


def counts(stage: Stage, **options: Any) -> Any:
    """How often each key came."""
    return stage.source(**options).groupBy("key").count().selectExpr("key", "cast(count as string) as value")


def shown(stage: Stage) -> dict[bytes, list[int]]:
    """The counts shown for each key, in the order of the log."""
    found: dict[bytes, list[int]] = {}
    for record in stage.seen():
        assert record.key is not None and record.value is not None
        found.setdefault(record.key, []).append(int(record.value))
    return found


def last(stage: Stage) -> dict[bytes, int]:
    return {key: numbers[-1] for key, numbers in shown(stage).items()}


def expected(count: int) -> dict[bytes, int]:
    return dict(Counter(b"account-%d" % (number % 7) for number in range(count)))


def test_update_shows_each_change_once_and_complete_all_of_it(stage: Stage) -> None:
    stage.put_numbers(40)
    steps = stage.run(counts(stage, maxOffsetsPerTrigger=20), output_mode="update")
    assert len([step for step, _ in steps if step is Step.COMMITTED]) == 2
    assert last(stage) == expected(40)
    assert all(numbers == sorted(set(numbers)) for numbers in shown(stage).values())
    stage.create_topics(totals=1)
    settings = {"topic": "totals", "transactional_id": "totals", "checkpoint": str(stage.folder / "totals")}
    stage.run(counts(stage, maxOffsetsPerTrigger=20), output_mode="Complete", **settings)
    table = {record.key: int(record.value or 0) for record in stage.seen("totals")[-7:]}
    assert table == expected(40)


@pytest.mark.parametrize(
    ("mode", "provider"), [("update", "HDFSBackedStateStoreProvider"), ("complete", "RocksDBStateStoreProvider")]
)
def test_a_commit_that_spark_did_not_hear_of_is_not_repeated_and_its_state_is_there(
    stage: Stage, mode: str, provider: str
) -> None:
    """The driver died after EndTxn: the batch is skipped, and the batches after it count on."""
    name = "spark.sql.streaming.stateStore.providerClass"
    stage.spark.conf.set(name, f"org.apache.spark.sql.execution.streaming.state.{provider}")
    try:
        stage.put_numbers(40)
        stage.run(counts(stage, maxOffsetsPerTrigger=20), output_mode=mode)
        stage.forget_commits_from(1)
        for path in Path(stage.checkpoint).glob("state/0/*/2.*"):
            path.unlink()  # as if the state of that batch had been lost with the driver
        before = stage.seen()
        steps = stage.run(counts(stage, maxOffsetsPerTrigger=20), output_mode=mode)
        assert steps == [(Step.SKIPPED, 1)]
        assert stage.seen() == before
        stage.put_numbers(40)
        stage.run(counts(stage, maxOffsetsPerTrigger=20), output_mode=mode)
    finally:
        stage.spark.conf.unset(name)
    assert last(stage) == {key: 2 * number for key, number in expected(40).items()}


def test_a_batch_that_failed_halfway_counts_its_rows_once(stage: Stage) -> None:
    stage.put_numbers(60)
    failed: list[Step] = []

    def fail_once_at_each_step(step: Step, batch_id: int) -> None:
        if batch_id == 1 and step not in failed and step in (Step.BEGUN, Step.PRODUCED, Step.OFFSETS_ADDED):
            failed.append(step)
            raise RuntimeError("the driver lost its head")

    frame = counts(stage, maxOffsetsPerTrigger=20)
    stage.run(frame, output_mode="update", attempts=5, observer=fail_once_at_each_step)
    assert len(failed) == 3
    assert last(stage) == expected(60)
    assert all(numbers == sorted(set(numbers)) for numbers in shown(stage).values())


def test_tasks_killed_while_they_write_cost_a_rerun_and_no_count(stage: Stage) -> None:
    stage.put_numbers(60)
    java = stage.spark.sparkContext._gateway.proc.pid
    killed: list[int] = []

    def kill_the_writers(passing: Passing) -> Fault | None:
        if passing.api_key == ApiKey.PRODUCE and passing.way is Way.RESPONSE and not killed:
            killed.extend(python_workers(java))
            for worker in killed:
                os.kill(worker, signal.SIGKILL)
        return None

    with FaultProxy(stage.bootstrap_servers, kill_the_writers) as proxy:
        frame = counts(stage, maxOffsetsPerTrigger=30)
        steps = stage.run(frame, output_mode="update", bootstrap_servers=proxy.bootstrap_servers)
    assert killed
    assert Step.RETRYING in [step for step, _ in steps]
    assert last(stage) == expected(60)
    assert all(numbers == sorted(set(numbers)) for numbers in shown(stage).values())


def test_event_time_and_duplicates_are_remembered_over_a_skipped_batch(stage: Stage) -> None:
    stage.put_numbers(20)
    reader = stage.spark.readStream.format("semel").options(
        **{"kafka.bootstrap.servers": stage.bootstrap_servers, "subscribe": "payments", "startingOffsets": "earliest"}
    )
    frame = (
        reader.load()
        .withWatermark("timestamp", "1 hour")
        .dropDuplicatesWithinWatermark(["value"])
        .select("key", "value")
    )
    stage.run(frame)
    stage.forget_commits_from(0)
    stage.run(frame)
    stage.put_numbers(25)  # twenty of them were seen before
    stage.run(frame)
    assert sorted(stage.values()) == [b"%06d" % number for number in range(25)]


def test_which_queries_keep_state(spark: Any) -> None:
    rows = spark.readStream.format("rate").load()
    static = spark.range(3).withColumnRenamed("id", "value")
    for frame in (
        rows, rows.where("value > 3").selectExpr("value + 1 as value"), rows.union(rows), rows.repartition(2),
        rows.selectExpr("explode(array(1, 2)) as value"), rows.join(static.groupBy("value").count(), "value"),
        rows.mapInArrow(lambda batches: batches, rows.schema), rows.alias("r").drop("value"),
    ):  # fmt: skip
        assert not keeps_state(frame), frame._jdf.queryExecution().analyzed().toString()
    timed = rows.withWatermark("timestamp", "1 minute")
    for frame in (
        rows.groupBy("value").count(), rows.distinct(), rows.dropDuplicates(["value"]), rows.limit(3), timed,
        timed.dropDuplicatesWithinWatermark(["value"]), rows.where("value > 3").groupBy("value").count(),
        timed.alias("a").join(timed.alias("b"), "timestamp"),
    ):  # fmt: skip
        assert keeps_state(frame), frame._jdf.queryExecution().analyzed().toString()


def test_a_processor_with_state_of_its_own_runs(stage: Stage) -> None:
    """transformWithStateInPandas speaks protobuf with the state store: the extra `spark` brings it."""
    pytest.importorskip("google.protobuf")
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor

    class Counting(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState("seen", "count long")

        def handleInputRows(self, key: Any, rows: Any, timer_values: Any) -> Any:
            count = self.seen.get()[0] if self.seen.exists() else 0
            count += sum(len(part) for part in rows)
            self.seen.update((count,))
            yield pd.DataFrame({"key": [key[0]], "value": [str(count)]})

        def close(self) -> None:
            """Nothing is held."""

    name = "spark.sql.streaming.stateStore.providerClass"
    stage.spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        stage.put_numbers(40)
        frame = (
            stage.source(maxOffsetsPerTrigger=20)
            .groupBy("key")
            .transformWithStateInPandas(
                Counting(), outputStructType="key binary, value string", outputMode="Update", timeMode="None"
            )
        )
        stage.run(frame, output_mode="update")
        stage.forget_commits_from(1)
        assert stage.run(frame, output_mode="update") == [(Step.SKIPPED, 1)]
    finally:
        stage.spark.conf.unset(name)
    assert last(stage) == expected(40)

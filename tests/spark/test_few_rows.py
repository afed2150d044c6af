"""Small micro-batches, which the driver writes itself: the same promise, without a second Python in each task."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.client.cluster.cluster import Cluster
from semel.machines.pipeline.claims import ClaimRefused
from semel.machines.values import TopicPartition
from semel.records.partitioner import partition_for_key
from semel.spark import RowRefused, Step, batch_transaction
from semel.spark.batch_transaction import BatchTransaction
from semel.spark.checkpoint import BatchOffsets, records_between
from semel.spark.claims import ClaimServer, OwnTurns
from semel.spark.frames import adds_no_rows
from semel.testing.fault_proxy import Cut, Fault, FaultProxy, Passing, Way, every
from semel.wire.apis import ApiKey
from tests.spark.session import path_of_the_code
from tests.spark.stage import Stage
from tests.support.processes import Process
from tests.support.requirements import CHECKOUT, require_spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    return stage


@pytest.fixture
def by_tasks(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """For each write that tasks did: how many rows it had at most, if that was known."""
    writes: list[int | None] = []
    run_tasks = BatchTransaction._run_tasks

    def noted(transaction: BatchTransaction, frame: Any, plan: Any) -> Any:
        writes.append(transaction._most_rows)
        return run_tasks(transaction, frame, plan)

    monkeypatch.setattr(BatchTransaction, "_run_tasks", noted)
    return writes


def test_from_the_second_small_batch_on_the_driver_writes(stage: Stage, by_tasks: list[int | None]) -> None:
    """Where the first one begins is in no checkpoint, so its size is not known."""
    rows = [(b"account-%d" % (number % 5), b"%06d" % number) for number in range(60)]
    stage.put("payments", rows)
    steps = stage.run(stage.source(maxOffsetsPerTrigger=20))
    assert [batch for step, batch in steps if step is Step.COMMITTED][:3] == [0, 1, 2]
    assert by_tasks == [None]
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in stage.seen():
        by_key.setdefault(record.key, []).append(record.value)
        assert record.key is not None
        assert record.partition == partition_for_key(record.key, 3)
    assert by_key == {key: [value for other, value in rows if other == key] for key in {key for key, _ in rows}}
    assert sum(progress.observedMetrics["semel"]["rows"] for progress in stage.query.recentProgress) == len(rows)


def test_headers_and_rows_without_value_or_key_are_written_by_the_driver_too(
    stage: Stage, by_tasks: list[int | None]
) -> None:
    stage.put("payments", [(None, b"first")])
    frame = stage.source().selectExpr("key", "value", "array(named_struct('key', 'h', 'value', value)) as headers")
    stage.run(frame)
    stage.put("payments", [(b"gone", None), (None, b"second")])
    stage.run(frame)
    assert by_tasks == [None]
    seen = {(record.key, record.value, record.headers) for record in stage.seen()}
    assert seen == {
        (None, b"first", (("h", b"first"),)), (b"gone", None, (("h", None),)), (None, b"second", (("h", b"second"),)),
    }  # fmt: skip


@pytest.mark.parametrize("failing", [Step.BEGUN, Step.PRODUCED, Step.OFFSETS_ADDED])
def test_after_a_failure_tasks_write_the_batch_under_a_new_epoch(
    stage: Stage, by_tasks: list[int | None], failing: Step
) -> None:
    values = stage.put_numbers(80)
    failed: list[int] = []

    def fail_once(step: Step, batch_id: int) -> None:
        if step is failing and batch_id == 1 and not failed:
            failed.append(batch_id)
            raise RuntimeError("the driver lost its head")

    steps = stage.run(stage.source(maxOffsetsPerTrigger=20), observer=fail_once)
    assert (Step.RETRYING, 1) in steps
    first, rerun = by_tasks  # the driver wrote the others
    assert first is None
    assert rerun
    assert sorted(stage.values()) == values
    repeated = 0 if failing is Step.BEGUN else rerun
    assert len(stage.values(committed=False)) == len(values) + repeated  # nobody sees the first try


def test_an_error_after_the_commit_does_not_write_the_rows_again(stage: Stage, by_tasks: list[int | None]) -> None:
    values = stage.put_numbers(40)
    failed: list[int] = []

    def fail_once(step: Step, batch_id: int) -> None:
        if step is Step.COMMITTED and batch_id == 1 and not failed:
            failed.append(batch_id)
            raise RuntimeError("the driver lost its head")

    steps = stage.run(stage.source(maxOffsetsPerTrigger=20), observer=fail_once)
    assert steps[-2:] == [(Step.RETRYING, 1), (Step.SKIPPED, 1)]
    assert sorted(stage.values(committed=False)) == values


@pytest.mark.parametrize("protocol", [1, 2])
def test_lost_answers_to_the_driver_are_no_duplicates(
    stage: Stage, by_tasks: list[int | None], monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    if protocol == 1:
        monkeypatch.setattr(Cluster, "transaction_version", property(lambda _: 0))
    values = stage.put_numbers(80)
    joined: list[int] = []

    def lose_answers(passing: Passing) -> Fault | None:
        if passing.way is Way.REQUEST and passing.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
            joined.append(passing.api_key)
        return every(2, ApiKey.PRODUCE, Cut())(passing)

    with FaultProxy(stage.bootstrap_servers, lose_answers) as proxy:
        steps = stage.run(stage.source(maxOffsetsPerTrigger=20), bootstrap_servers=proxy.bootstrap_servers)
    assert proxy.faults["Cut"] >= 2
    assert bool(joined) is (protocol == 1)
    assert Step.RETRYING not in [step for step, _ in steps]
    assert by_tasks == [None]
    assert sorted(stage.values(committed=False)) == values


def test_a_row_that_the_driver_cannot_write_ends_the_query_at_once(stage: Stage, by_tasks: list[int | None]) -> None:
    frame = stage.source().selectExpr("key", "repeat('x', int(string(value))) as value")
    stage.put("payments", [(b"k", b"5")])
    stage.run(frame)
    stage.put("payments", [(b"k", b"6"), (b"k", b"3000000")])
    with pytest.raises(Exception, match=r"raise max\.message\.bytes of topic 'ledger'") as failed:
        stage.run(frame)
    assert isinstance(failed.value.__cause__, RowRefused)
    assert by_tasks == [None]
    assert stage.values() == [b"x" * 5]


def test_many_rows_and_rows_that_may_be_large_are_left_to_the_tasks(
    stage: Stage, by_tasks: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("payments", [(None, b"first")], partition=0)
    stage.run(stage.source())
    many = stage.put_numbers(batch_transaction._FEW_ROWS + 1)
    stage.run(stage.source())
    assert by_tasks == [None, len(many)]
    with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
        admin.alter_configs("topic", "ledger", {"max.message.bytes": str(64 << 20)})
    monkeypatch.setattr("semel.spark.limits._REMEMBERED_S", 0.0)
    stage.put_numbers(3)
    stage.run(stage.source())
    assert by_tasks == [None, len(many), 3]
    stage.put_numbers(2)
    stage.run(stage.source())
    assert by_tasks == [None, len(many), 3]
    assert len(stage.values()) == 1 + len(many) + 5


def test_which_queries_add_no_rows(stage: Stage) -> None:
    rows, rate = stage.source(), stage.spark.readStream.format("rate").load()
    for frame in (rows, rows.where("key is null").alias("r").drop("key"), rows.selectExpr("upper(string(value)) as v")):
        assert adds_no_rows(frame), frame._jdf.queryExecution().analyzed().toString()
    for frame in (
        rows.union(rows), rows.selectExpr("explode(array(1, 2)) as value"), rows.groupBy("key").count(),
        rows.distinct(), rows.mapInArrow(lambda batches: batches, rows.schema), rows.join(stage.spark.range(3)), rate,
    ):  # fmt: skip
        assert not adds_no_rows(frame), frame._jdf.queryExecution().analyzed().toString()


def test_the_size_of_a_batch_is_known_only_if_all_its_offsets_are() -> None:
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)

    def offsets(*by_source: dict[TopicPartition, int], named: bool = False) -> BatchOffsets:
        return BatchOffsets(("text",) * len(by_source), by_source, named)

    assert (
        records_between(offsets({first: 3, second: 5}, {first: 1}), offsets({first: 10, second: 5}, {first: 4})) == 10
    )
    assert records_between(offsets({first: 3, second: 5}), offsets({first: 10})) == 7  # the topic was deleted
    assert records_between(offsets(), offsets({first: 3})) is None  # the first batch
    assert records_between(offsets({first: 3}), offsets({first: 3, second: 1})) is None  # a new partition
    assert records_between(offsets({}), offsets({})) is None  # a source without such offsets
    assert records_between(offsets({first: 3}, {}), offsets({first: 3}, {})) is None
    assert records_between(offsets({first: 3}, named=True), offsets({first: 3}, named=True)) is None


def test_the_turns_of_the_driver_follow_the_same_rules() -> None:
    with ClaimServer("127.0.0.1") as server:
        server.begin_epoch((1, 2, 0), {("ledger", 0): 7})
        turns = OwnTurns(server, (1, 2, 0), 50)
        assert asyncio.run(turns.take_turn("ledger", 0, 3)) == 7
        with pytest.raises(ClaimRefused, match="had no turn"):
            asyncio.run(turns.take_turn("ledger", 0, 3))
        asyncio.run(turns.end_turn("ledger", 0))
        assert asyncio.run(turns.take_turn("ledger", 0, 3)) == 10
        with pytest.raises(ClaimRefused, match="it ran twice"):
            asyncio.run(OwnTurns(server, (1, 2, 0), 50).take_turn("ledger", 1, 3))
        assert server.given == {(0, "ledger", 0): 6}
        server.end_epoch()
        with pytest.raises(ClaimRefused, match="is over"):
            asyncio.run(turns.take_turn("ledger", 1, 3))


@pytest.mark.timeout(900)
def test_a_driver_killed_after_it_wrote_small_batches_itself_costs_no_record(
    semel_broker: semel.Broker, tmp_path: Path
) -> None:
    """Killed with its own records in an open transaction, and between its commit and Spark's."""
    require_spark()
    stage = Stage(None, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    payments = [{"id": number, "account": f"account-{number % 17}", "cents": 100} for number in range(80)]
    stage.put("payments", ((str(row["account"]).encode(), json.dumps(row).encode()) for row in payments))
    said = ""
    for die_at in ("PRODUCED:1", "COMMITTED:2", ""):
        command = [
            sys.executable, str(CHECKOUT / "examples" / "payments_pipeline.py"), "--bootstrap",
            stage.bootstrap_servers, "--checkpoint", stage.checkpoint, "--per-batch", "20", "--die-at", die_at,
        ]  # fmt: skip
        environment = {"PYTHONPATH": path_of_the_code()}
        with Process(command, name="payments", environment=environment, directory=tmp_path) as process:
            code, output = process.wait(within_s=280), process.output()
        said += output
        assert code == (-signal.SIGKILL if die_at else 0), output[-4000:]
    assert said.count("kill -9 now") == 2
    assert "batch 2: skipped" in said
    entries = [json.loads(value) for value in stage.values() if value]
    assert sorted(entry["id"] for entry in entries) == list(range(80))
    assert len(stage.values(committed=False)) > 80  # what was written when it was killed is in the log

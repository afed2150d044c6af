"""The same pipeline on Apache Kafka: the promise is the protocol's, not our broker's."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.client.cluster.cluster import Cluster
from semel.spark import Step, write
from semel.testing.fault_proxy import Cut, FaultProxy, Passing, every
from semel.wire.apis import ApiKey
from tests.spark import test_pipeline as on_semel
from tests.spark.session import path_of_the_code
from tests.spark.stage import Stage
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import Process
from tests.support.requirements import CHECKOUT, require_spark

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(300)]


@pytest.mark.parametrize("protocol", [1, 2])
def test_lost_answers_failures_and_reruns_leave_each_record_once(
    spark: Any, apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    stage = Stage(spark, apache_kafka.bootstrap_servers, tmp_path, f"pipeline-{protocol}")
    source, target = f"payments-{protocol}", f"ledger-{protocol}"
    stage.create_topics(**{source: 2, target: 3})
    values = stage.put_numbers(40, source)
    if protocol == 1:
        monkeypatch.setattr(Cluster, "transaction_version", property(lambda _: 0))
    failed: list[int] = []

    def fail_once(step: Step, batch_id: int) -> None:
        if step is Step.PRODUCED and batch_id == 1 and not failed:
            failed.append(batch_id)
            raise RuntimeError("the driver lost its head")

    def lose_answers(passing: Passing) -> Any:
        return every(2, ApiKey.END_TXN, Cut())(passing) or every(3, ApiKey.PRODUCE, Cut())(passing)

    with FaultProxy(stage.bootstrap_servers, lose_answers) as proxy:
        options = {"subscribe": source, "maxOffsetsPerTrigger": 20}
        settings = {"bootstrap_servers": proxy.bootstrap_servers, "topic": target}
        steps = stage.run(stage.source(**options), observer=fail_once, **settings)
        assert (Step.RETRYING, 1) in steps
        stage.forget_commits_from(1)
        assert stage.run(stage.source(**options), **settings) == [(Step.SKIPPED, 1)]
    assert sorted(value for value in stage.values(target) if value) == values
    assert len(stage.values(target, committed=False)) > len(values)


@pytest.mark.parametrize("protocol", [1, 2])
def test_several_outputs_and_loads_are_one_transaction_there_too(
    spark: Any, apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    stage = Stage(spark, apache_kafka.bootstrap_servers, tmp_path, f"outputs-{protocol}")
    source, even, odd = (f"{name}-of-{protocol}" for name in ("source", "even", "odd"))
    stage.create_topics(**{source: 2, even: 2, odd: 1})
    values = stage.put_numbers(40, source)
    if protocol == 1:
        monkeypatch.setattr(Cluster, "transaction_version", property(lambda _: 0))
    failed: list[int] = []

    def fail_once(step: Step, batch_id: int) -> None:
        if step is Step.OFFSETS_ADDED and batch_id == 1 and not failed:
            failed.append(batch_id)
            raise RuntimeError("the driver lost its head")

    outputs = {
        even: lambda rows: rows.where("int(string(value)) % 2 = 0"),
        odd: lambda rows: rows.where("int(string(value)) % 2 = 1"),
    }
    with FaultProxy(stage.bootstrap_servers, every(2, ApiKey.END_TXN, Cut())) as proxy:
        steps = stage.run(stage.source(subscribe=source, maxOffsetsPerTrigger=20), observer=fail_once, topic=None,
                          outputs=outputs, bootstrap_servers=proxy.bootstrap_servers)  # fmt: skip
        assert (Step.RETRYING, 1) in steps
        assert sorted(value for value in stage.values(even) if value) == values[::2]
        assert sorted(value for value in stage.values(odd) if value) == values[1::2]
        rows = spark.range(30).selectExpr("string(id) as value")
        load: dict[str, Any] = {
            "bootstrap_servers": proxy.bootstrap_servers, "transactional_id": f"loads-{protocol}", "topic": odd,
        }  # fmt: skip
        assert write(rows, name="monday", **load).rows == 30
        assert write(rows, name="monday", **load).was_done
    assert len(stage.values(odd)) == 20 + 30


#: Rows of the recovery table, each by the test that shows it on Semel. `test_recovery.py` has the others on both.
ROWS = [
    on_semel.test_a_task_that_dies_after_its_first_produce_makes_the_batch_run_again_under_a_new_epoch,
    on_semel.test_a_second_attempt_of_a_task_fails_the_job_and_the_batch_runs_again,
    on_semel.test_an_error_after_the_commit_does_not_write_the_batch_again,
    on_semel.test_a_checkpoint_set_back_several_batches_is_skipped_through,
    on_semel.test_a_checkpoint_set_back_that_takes_newer_data_into_an_old_batch_is_refused,
    on_semel.test_a_lost_checkpoint_is_refused_with_what_to_do,
]

_numbers = itertools.count()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_a_row_of_the_recovery_table_holds_on_apache_kafka(
    row: Callable[..., None], spark: Any, apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"row-{next(_numbers)}"
    stage = Stage(spark, apache_kafka.bootstrap_servers, tmp_path, name, suffix=f"-{name}")
    stage.create_topics(payments=2, ledger=3)
    row(stage, *([monkeypatch] if "monkeypatch" in row.__annotations__ else []))


@pytest.mark.timeout(900)
def test_a_driver_killed_before_and_after_end_txn_costs_no_record_on_apache_kafka(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    require_spark()
    stage = Stage(None, apache_kafka.bootstrap_servers, tmp_path, suffix="-killed")
    stage.create_topics(payments=2, ledger=3)
    payments = [{"id": number, "account": f"account-{number % 17}", "cents": 100} for number in range(300)]
    stage.put("payments", ((str(row["account"]).encode(), json.dumps(row).encode()) for row in payments))
    said = ""
    for die_at in ("PRODUCED:0", "COMMITTED:1", ""):
        command = [
            sys.executable, str(CHECKOUT / "examples" / "payments_pipeline.py"), "--bootstrap",
            stage.bootstrap_servers, "--checkpoint", stage.checkpoint, "--per-batch", "100", "--source",
            "payments-killed", "--target", "ledger-killed", "--transactional-id", "killed", "--die-at", die_at,
        ]  # fmt: skip
        environment = {"PYTHONPATH": path_of_the_code()}
        with Process(command, name="payments", environment=environment, directory=tmp_path) as process:
            code, output = process.wait(within_s=280), process.output()
        said += output
        assert code == (-signal.SIGKILL if die_at else 0), output[-4000:]
    assert said.count("kill -9 now") == 2
    assert "batch 1: skipped" in said
    entries = [json.loads(value) for value in stage.values() if value]
    assert sorted(entry["id"] for entry in entries) == list(range(300))
    assert len(stage.values(committed=False)) > 300

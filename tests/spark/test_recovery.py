"""Rows of the recovery table that need more than one actor, on Semel and on Apache Kafka, with a real Spark session.

The other rows are in `test_pipeline.py`; `test_on_apache_kafka.py` runs the main ones of them there too.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.spark import Step
from semel.testing.fault_proxy import Fault, FaultProxy, Hold, Passing, Way
from semel.wire.apis import ApiKey
from tests.spark.session import path_of_the_code
from tests.spark.stage import Stage, python_workers
from tests.support.processes import Process
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

_numbers = itertools.count()


@pytest.fixture(params=["semel", pytest.param("kafka", marks=pytest.mark.java)])
def stage(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Stage:
    broker = request.getfixturevalue("semel_broker" if request.param == "semel" else "apache_kafka")
    name = f"recovery-{next(_numbers)}"
    stage = Stage(spark, broker.bootstrap_servers, tmp_path, name, suffix=f"-{name}")
    stage.create_topics(payments=2, ledger=3)
    return stage


def test_a_produce_that_arrives_after_the_abort_is_refused(stage: Stage) -> None:
    """A zombie: the task is dead, its epoch is fenced, and its request comes out of the network only now."""
    values = stage.put_numbers(60)
    java = stage.spark.sparkContext._gateway.proc.pid
    killed: list[int] = []
    release = threading.Event()

    def kill_the_writer_and_hold_its_request(passing: Passing) -> Fault | None:
        if passing.api_key == ApiKey.PRODUCE and passing.way is Way.REQUEST and not killed:
            killed.extend(python_workers(java))
            for worker in killed:
                os.kill(worker, signal.SIGKILL)
            return Hold(release)
        return None

    with FaultProxy(stage.bootstrap_servers, kill_the_writer_and_hold_its_request) as proxy:
        steps = stage.run(stage.source(), bootstrap_servers=proxy.bootstrap_servers)
        assert (Step.RETRYING, 0) in steps
        before = stage.values(committed=False)
        answers = proxy.passed[Way.RESPONSE, ApiKey.PRODUCE]
        release.set()
        until(lambda: proxy.passed[Way.RESPONSE, ApiKey.PRODUCE] > answers, what="the broker's answer to the zombie")
    assert proxy.faults["Hold"] == 1
    assert stage.values(committed=False) == before, "not even a reader of uncommitted records gets it"
    assert sorted(stage.values()) == values


def test_a_broker_that_is_away_between_two_batches_is_waited_for(stage: Stage) -> None:
    values = stage.put_numbers(40)
    proxies = [FaultProxy(stage.bootstrap_servers).start()]
    direct, stage.bootstrap_servers = stage.bootstrap_servers, proxies[0].bootstrap_servers

    def come_back() -> None:
        proxies.append(FaultProxy(direct, port=proxies[0].port).start())

    def go_away(step: Step, batch_id: int) -> None:
        if step is Step.COMMITTED and batch_id == 0:
            proxies[0].stop()
            threading.Timer(3.0, come_back).start()  # longer than a source that does not wait would live

    try:
        stage.run(stage.source(maxOffsetsPerTrigger=20), observer=go_away)
        assert sorted(stage.values()) == values
    finally:
        until(lambda: len(proxies) == 2, what="the second proxy")
        proxies[1].stop()


def test_a_broker_that_stays_away_ends_the_query_at_the_deadline_and_a_restart_goes_on(stage: Stage) -> None:
    values = stage.put_numbers(40)
    proxy = FaultProxy(stage.bootstrap_servers).start()

    def go_away(step: Step, batch_id: int) -> None:
        if step is Step.PRODUCED and batch_id == 1:
            proxy.stop()

    with pytest.raises(Exception, match=r"gave up after 3000 ms.*; kafka's max.block.ms=3000 is how long"):
        stage.run(
            stage.source(maxOffsetsPerTrigger=20), observer=go_away, bootstrap_servers=proxy.bootstrap_servers,
            kafka={"max.block.ms": 3000}, attempts=2,
        )  # fmt: skip
    assert sorted(stage.values()) != values
    steps = stage.run(stage.source(maxOffsetsPerTrigger=20))
    assert steps[-1] == (Step.COMMITTED, 1)
    assert sorted(stage.values()) == values


def test_of_two_drivers_in_two_processes_the_older_stops_and_each_record_is_there_once(stage: Stage) -> None:
    values = stage.put_numbers(40)
    reached, released = threading.Event(), threading.Event()

    def hang(step: Step, batch_id: int) -> None:
        if step is Step.PRODUCED and batch_id == 1:
            reached.set()
            assert released.wait(300)

    older = stage.start(stage.source(maxOffsetsPerTrigger=20), observer=hang)
    until(lambda: reached.is_set() or not older.isActive, within_s=150, what="the older driver to have produced")
    if not reached.is_set():
        older.awaitTermination(1)  # raises why
    copied = stage.folder / "copied"
    shutil.copytree(stage.checkpoint, copied)
    script = Path(__file__).with_name("copying_pipeline.py")
    command = [
        sys.executable, str(script), "--bootstrap", stage.bootstrap_servers, "--checkpoint", str(copied),
        "--per-batch", "20", "--source", "payments" + stage.suffix, "--target", "ledger" + stage.suffix,
        "--transactional-id", stage.transactional_id,
    ]  # fmt: skip
    try:
        with Process(command, name="younger", environment={"PYTHONPATH": path_of_the_code()}) as younger:
            assert younger.wait(within_s=150) == 0, younger.output()[-4000:]
            assert "batch 1: COMMITTED" in younger.output()
    finally:
        released.set()
    with pytest.raises(Exception, match="another driver has taken over"):
        older.awaitTermination(60)
    assert (Step.RETRYING, 1) not in stage.steps, "it does not take the id back"
    assert sorted(stage.values()) == values
    assert len(stage.values(committed=False)) > len(values)


def test_the_error_of_a_batch_that_outlives_its_transaction_names_the_setting(stage: Stage) -> None:
    stage.put_numbers(5)
    with pytest.raises(Exception, match=r"raise it \(transaction_timeout_ms of the pipeline"):
        stage.run(
            stage.source(), observer=lambda step, _: outlive(stage, step), transaction_timeout_ms=4000, attempts=1
        )
    assert stage.values() == []


def outlive(stage: Stage, step: Step) -> None:
    """Wait after the produce until the coordinator has aborted the transaction."""
    if step is not Step.PRODUCED:
        return
    with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
        until(
            lambda: admin.describe_transactions([stage.transactional_id])[stage.transactional_id].state
            in ("CompleteAbort", "Empty"),
            within_s=90, what="the coordinator to abort the transaction", every_s=0.2,
        )  # fmt: skip

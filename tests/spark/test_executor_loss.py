"""Executors killed with -9 in the middle of a batch: two of them, each a JVM of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

import semel
from semel.testing.fault_proxy import Fault, FaultProxy, Passing, Way
from semel.wire.apis import ApiKey
from tests.spark.stage import Stage, descendants
from tests.support.processes import Process
from tests.support.requirements import CHECKOUT, require_spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_executors_killed_after_their_first_produce_cost_a_rerun_and_no_record(
    semel_broker: semel.Broker, tmp_path: Path
) -> None:
    require_spark()
    stage = Stage(None, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=4)
    payments = [{"id": number, "account": f"account-{number % 17}", "cents": 100} for number in range(300)]
    stage.put("payments", ((row["account"].encode(), json.dumps(row).encode()) for row in payments))  # type: ignore[attr-defined]
    killed: list[int] = []
    process: Process | None = None

    def kill_the_executors(passing: Passing) -> Fault | None:
        if passing.api_key == ApiKey.PRODUCE and passing.way is Way.RESPONSE and not killed:
            assert process is not None
            killed.extend(descendants(process.process_id, naming=b"CoarseGrainedExecutorBackend"))
            for executor in killed:
                os.kill(executor, signal.SIGKILL)
        return None

    with FaultProxy(semel_broker.bootstrap_servers, kill_the_executors) as proxy:
        command = [
            sys.executable, str(CHECKOUT / "examples" / "payments_pipeline.py"), "--master", "local-cluster[2,1,1024]",
            "--bootstrap", proxy.bootstrap_servers, "--checkpoint", stage.checkpoint, "--per-batch", "150",
        ]  # fmt: skip
        source = os.pathsep.join(part for part in (str(CHECKOUT / "src"), os.environ.get("PYTHONPATH")) if part)
        process = Process(command, name="cluster", environment={"PYTHONPATH": source}, directory=tmp_path)
        with process:
            code = process.wait(within_s=350)
            assert code == 0, process.output()[-4000:]
            assert "retrying" in process.output()
    assert len(killed) == 2
    entries = [json.loads(value) for value in stage.values() if value]
    assert sorted(entry["id"] for entry in entries) == list(range(300))
    assert {entry["cents"] for entry in entries} == {200}

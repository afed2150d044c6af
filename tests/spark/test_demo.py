"""The demo: it proves what it says, says NO when that is not so, and leaves nothing running."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

import semel
from tests.spark.stage import Stage
from tests.support.processes import Process
from tests.support.requirements import CHECKOUT, require_spark

pytestmark = pytest.mark.timeout(900)


def imported(name: str) -> ModuleType:
    """A program of `examples`."""
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def demo() -> ModuleType:
    return imported("demo")


def processes_that_name(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if text in command:
                found.append(command)
    return found


@pytest.mark.spark
def test_the_demo_counts_every_payment_once_though_its_driver_is_killed_twice(tmp_path: Path) -> None:
    require_spark()
    source = os.pathsep.join(part for part in (str(CHECKOUT / "src"), os.environ.get("PYTHONPATH")) if part)
    picture, work = tmp_path / "ledger.png", tmp_path / "work"
    work.mkdir()
    command = [sys.executable, str(CHECKOUT / "examples" / "demo.py"), "--payments", "600", "--plot", str(picture)]
    environment = {"PYTHONPATH": source, "TMPDIR": str(work)}
    with Process(command, name="demo", environment=environment, separate_stderr=True) as process:
        code = process.wait(within_s=850)
        said = process.output()
        assert code == 0, said + process.errors()
    lines = said.strip().splitlines()
    assert lines[-1] == "exactly once: yes"
    assert said.count("kill -9 now") == 2
    assert "it landed between the first produce and EndTxn" in said
    assert "it landed between EndTxn and Spark's commit log: the broker has batch 2, Spark has batch 1" in said
    assert "skipped" in said
    assert "every source offset is covered by exactly one committed micro-batch: yes" in said
    assert " aborted " in said, "the ledger shows the attempt that was killed"
    if (CHECKOUT / ".cache" / "spark-connector" / ".complete").exists():
        told = next(line for line in lines if "Spark's own sink (at least once)" in line)
        duplicates = re.search(r"(\d+) duplicates", told)
        assert duplicates is not None and int(duplicates[1]) > 0, told
    else:
        assert "Spark's own sink was left out" in said
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert processes_that_name(str(work)) == []
    assert list(work.iterdir()) == []


TAMPERING = [
    "nothing", "a wrong balance", "a missing account", "a payment counted twice on the way", "a lost suspicion",
    "a repeated suspicion",
]  # fmt: skip


@pytest.mark.parametrize("tampering", TAMPERING)
def test_the_judge_of_the_demo_says_no_to_any_tampering(
    demo: ModuleType, semel_broker: semel.Broker, tmp_path: Path, tampering: str
) -> None:
    stage = Stage(None, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=3, balances=3, fraud=3)
    demo.produce_payments(semel_broker.bootstrap_servers, 900)
    payments = [row for _, row in demo.read_all(semel_broker.bootstrap_servers, "payments", "read_committed")]
    balances: list[tuple[bytes, bytes]] = []
    for number in range(17):
        account = f"account-{number}"
        mine = [row for row in payments if row["account"] == account]
        for upto in (len(mine) // 2, len(mine)):
            balance = {"cents": sum(row["cents"] for row in mine[:upto]), "payments": upto}
            balances.append((account.encode(), json.dumps(balance).encode()))
    fraud = [
        (row["account"].encode(), json.dumps({"id": row["id"], "cents": row["cents"]}).encode())
        for row in payments
        if row["cents"] >= demo.SUSPICIOUS_CENTS
    ]
    assert len(fraud) > 5
    if tampering == "a wrong balance":
        balances[-1] = (balances[-1][0], json.dumps({"cents": 1, "payments": 1000}).encode())
    elif tampering == "a missing account":
        balances = [row for row in balances if row[0] != b"account-3"]
    elif tampering == "a payment counted twice on the way":
        balances.insert(1, balances[0])
    elif tampering == "a lost suspicion":
        fraud.pop()
    elif tampering == "a repeated suspicion":
        fraud.append(fraud[0])
    stage.put("balances", balances)
    stage.put("fraud", fraud)
    assert demo.judge(semel_broker.bootstrap_servers) is (tampering == "nothing")


@pytest.mark.parametrize(
    ("says", "starts"), [("Python worker failed to connect back.", 5), ("a task failed", 1)], ids=["slow", "failed"]
)
def test_the_pipeline_of_payments_is_started_again_only_if_spark_was_too_slow(says: str, starts: int) -> None:
    require_spark()
    from pyspark.errors import StreamingQueryException

    payments, ends = imported("payments_pipeline"), [StreamingQueryException(says)] * 5
    query = Mock(awaitTermination=Mock(side_effect=ends))
    with pytest.raises(StreamingQueryException, match=says):
        payments.run_patiently(lambda: query)
    assert query.awaitTermination.call_count == starts
    query.awaitTermination = Mock(side_effect=[StreamingQueryException("Python worker failed to connect back."), True])
    payments.run_patiently(lambda: query)
    assert query.awaitTermination.call_count == 2

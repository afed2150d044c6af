"""The demo: it proves what it says, says NO when that is not so, and leaves nothing running."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

import semel
from tests.spark.stage import Stage
from tests.support.processes import Process
from tests.support.requirements import CHECKOUT, require_spark

pytestmark = pytest.mark.timeout(500)


@pytest.fixture
def demo() -> ModuleType:
    """`examples/demo.py`, imported."""
    spec = importlib.util.spec_from_file_location("demo", CHECKOUT / "examples" / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    command = [sys.executable, str(CHECKOUT / "examples" / "demo.py"), "--payments", "600"]
    environment = {"PYTHONPATH": source, "TMPDIR": str(tmp_path)}
    with Process(command, name="demo", environment=environment, separate_stderr=True) as process:
        code = process.wait(within_s=450)
        said = process.output()
        assert code == 0, said + process.errors()
    lines = said.strip().splitlines()
    assert lines[-1] == "exactly once: yes"
    assert said.count("kill -9 now") == 2
    assert "skipped" in said
    assert processes_that_name(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tampering", ["nothing", "a lost entry", "a repeated entry", "a changed amount"])
def test_the_judge_of_the_demo_says_no_to_any_tampering(
    demo: ModuleType, semel_broker: semel.Broker, tmp_path: Path, tampering: str
) -> None:
    stage = Stage(None, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=3, ledger=3)
    demo.produce_payments(semel_broker.bootstrap_servers, 20)
    entries = [
        (None, b'{"id": %d, "account": "account-%d", "cents": %d}' % (number, number % 17, 2 * (100 + number)))
        for number in range(20)
    ]
    if tampering == "a lost entry":
        entries.pop()
    elif tampering == "a repeated entry":
        entries.append(entries[0])
    elif tampering == "a changed amount":
        entries[3] = (None, entries[3][1].replace(b"206", b"207"))
    stage.put("ledger", entries)
    assert demo.judge(semel_broker.bootstrap_servers) is (tampering == "nothing")

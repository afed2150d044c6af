"""`scripts/run_tests.py`, which runs these tests: a failure in either half is the exit code, nothing is left over."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.long_files import LONG_FILES
from tests.support.requirements import CHECKOUT
from tests.support.waiting import until


@pytest.fixture
def run_tests(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", CHECKOUT / "scripts" / "run_tests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its own
    return module


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(("others", "spark", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (-9, 0, 1)])
def test_a_failure_in_either_half_is_the_exit_code(
    run_tests: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str], others: int, spark: int, code: int
) -> None:
    ends = [f"import os, signal; print('{name} ran', flush=True); " for name in ("others", "spark")]
    ways = [f"os.kill(os.getpid(), {-end})" if end < 0 else f"os._exit({end})" for end in (others, spark)]
    commands = [python(first + way) for first, way in zip(ends, ways, strict=True)]
    assert run_tests.run(*commands, tmp_path / "log") == code
    said = capfd.readouterr().out
    assert said.index("others ran") < said.index("spark ran")
    assert said.count("passed") == (others == 0) + (spark == 0)


def test_the_last_lines_name_the_tests_that_failed(
    run_tests: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is kept of a long log is often its end, and clients that look for their broker write there for pages."""
    bad = tmp_path / "test_bad.py"
    bad.write_text(
        "import os\n"
        "def test_bad() -> None:\n"
        "    assert 'SEMEL_FAILED_TESTS' in os.environ, 'a pytest in a test would write there'\n"
    )
    plugins = ["-p", "no:cacheprovider", "-p", "tests.conftest"]
    tests = [sys.executable, "-m", "pytest", "-n", "1", *plugins, "--rootdir", str(tmp_path), str(bad)]
    assert run_tests.run(tests, python("print('noise ' * 1000)"), tmp_path / "log") == 1
    last = capfd.readouterr().out.splitlines()[-1]
    assert last == "FAILED test_bad.py::test_bad: AssertionError: a pytest in a test would write there"


def test_what_was_started_ends_when_it_is_told_to_stop(tmp_path: Path) -> None:
    names = [tmp_path / "others", tmp_path / "spark"]
    commands = [
        python(f"import os, pathlib, time; pathlib.Path({str(name)!r}).write_text(str(os.getpid())); time.sleep(600)")
        for name in names
    ]
    script = f"import pathlib, sys; sys.path.insert(0, {str(CHECKOUT / 'scripts')!r}); import run_tests; "
    script += f"run_tests.run({commands[0]!r}, {commands[1]!r}, pathlib.Path({str(tmp_path / 'log')!r}))"
    with subprocess.Popen(python(script)) as running:
        for name in names:
            until(lambda name=name: name.exists() and name.read_text(), what="both halves")
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 143
    for name in names:
        assert not Path(f"/proc/{name.read_text()}").exists()


def test_the_files_that_are_begun_first_are_there() -> None:
    assert [name for name in LONG_FILES if not (CHECKOUT / name).is_file()] == []
    assert len(LONG_FILES) == len(set(LONG_FILES))

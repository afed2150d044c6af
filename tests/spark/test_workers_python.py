"""Spark's workers run whatever `python3` is on the path, if nobody says otherwise: it may have no semel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.spark import PipelineMistake, workers_python
from semel.spark.workers_python import require_workers_python

pytest.importorskip("pyspark")


def session(python: str, master: str = "local[2]") -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec=python))


def program(folder: Path, exit_code: int) -> str:
    path = folder / f"python-{exit_code}"
    path.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    path.chmod(0o755)
    return str(path)


def test_workers_without_semel_are_refused_with_what_to_set(tmp_path: Path) -> None:
    python = program(tmp_path, 1)
    with pytest.raises(PipelineMistake) as refused:
        require_workers_python(session(python))
    assert f"Spark's Python workers run '{python}', which is {python} and cannot import semel: " in str(refused.value)
    assert f"set PYSPARK_PYTHON={sys.executable} in the environment" in str(refused.value)
    with pytest.raises(PipelineMistake, match="run 'no-python', which is not there"):
        require_workers_python(session("no-python"))


def test_workers_that_have_it_or_are_elsewhere_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_workers_python(session(program(tmp_path, 0)))
    require_workers_python(session(program(tmp_path, 1), master="spark://master:7077"))
    monkeypatch.setattr(workers_python.subprocess, "run", None)  # nobody is asked
    require_workers_python(session(sys.executable))
    require_workers_python(session(os.path.join(os.path.dirname(sys.executable), "python3")))

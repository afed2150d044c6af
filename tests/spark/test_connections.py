"""What a Python worker keeps between tasks."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from semel.spark.connections import spare_the_collector

pyspark = pytest.importorskip("pyspark")


def test_a_worker_takes_what_it_has_loaded_out_of_garbage_collection_and_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = gc.get_freeze_count()
    spare_the_collector()
    assert gc.get_freeze_count() == before
    task: Any = object()
    monkeypatch.setattr(pyspark.TaskContext, "get", staticmethod(lambda: task))
    try:
        spare_the_collector()
        assert gc.get_freeze_count() > before + 1000
    finally:
        gc.unfreeze()

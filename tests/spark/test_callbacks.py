"""The JVM's calls into Python arrive and are answered, or the query is not started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.spark import Step
from semel.spark.callbacks import CallbackBroken, CallbacksImpossible, answering
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=1, ledger=1)
    return stage


@pytest.fixture
def too_many_files(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A process in which every new descriptor is beyond what select() takes, and which has not listened yet."""
    from pyspark import java_gateway

    opened = [os.open(os.devnull, os.O_RDONLY)]

    def fill() -> None:
        opened.append(os.open(os.devnull, os.O_RDONLY))
        while opened[-1] < 1100:
            opened.append(os.open(os.devnull, os.O_RDONLY))

    def listen(gateway: Any) -> None:
        # Whatever closed meanwhile, here or in py4j's threads, must not leave room for a listener.
        fill()
        started(gateway)

    started = java_gateway.ensure_callback_server_started
    monkeypatch.setattr(java_gateway, "ensure_callback_server_started", listen)
    fill()
    gateway = spark.sparkContext._gateway
    gateway._callback_server = None
    yield opened
    for descriptor in opened:
        os.close(descriptor)


def close_most(opened: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for descriptor in sorted(opened)[:900]:
        os.close(descriptor)
        opened.remove(descriptor)


def test_a_process_that_cannot_be_called_back_is_told_so_and_nothing_hangs(
    stage: Stage, too_many_files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = stage.source()
    with pytest.raises(CallbacksImpossible, match=r"cannot use one from 1024 on.*close what is not needed"):
        stage.start(frame)
    close_most(too_many_files, monkeypatch)
    values = stage.put_numbers(3)
    stage.run(frame)
    assert stage.values() == values


def test_a_listener_that_died_is_started_again(
    stage: Stage, too_many_files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = stage.spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # as any foreachBatch does, and dies
    gateway._callback_server.thread.join(20)
    close_most(too_many_files, monkeypatch)
    values = stage.put_numbers(3)
    stage.run(stage.source())
    assert stage.values() == values


def test_an_exit_inside_a_micro_batch_ends_the_query_with_words(stage: Stage) -> None:
    stage.put_numbers(3)

    def leave(step: Step, batch_id: int) -> None:
        raise SystemExit("enough")

    with pytest.raises(Exception, match="batch 0 was ended by SystemExit: enough"):
        stage.run(stage.source(), observer=leave)
    assert stage.values() == []


def test_ordinary_errors_pass_as_they_are() -> None:
    def refuse(frame: Any, batch_id: int) -> None:
        raise ValueError("no")

    def leave(frame: Any, batch_id: int) -> None:
        raise SystemExit(2)

    with pytest.raises(ValueError, match="no"):
        answering(refuse)(None, 1)
    with pytest.raises(CallbackBroken, match="batch 1 was ended by SystemExit: 2"):
        answering(leave)(None, 1)

"""The JVM's calls into Python arrive and are answered, or the query is not started."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import semel
from semel.spark import Step
from semel.spark.callbacks import BatchCallback, CallbackBroken, CallbacksImpossible
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=1, ledger=1)
    return stage


class FarAway(socket.socket):
    """A socket beyond the descriptors that select() takes, as all are in a process with very many open files.

    Opening that many files would not do: another thread may close one of the first thousand at any moment, and the
    next socket would get its number.
    """

    def __init__(self, family: int = -1, kind: int = -1, *rest: Any) -> None:
        near = socket.socket(family, kind)
        super().__init__(family, kind, fileno=fcntl.fcntl(near.fileno(), fcntl.F_DUPFD_CLOEXEC, 1100))
        near.close()


@pytest.fixture
def too_many_files(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which every new listener is beyond what select() takes, and which has not listened yet."""
    import py4j.java_gateway

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096) if hard > 0 else 4096), hard))
    crowded = SimpleNamespace(**{**vars(socket), "socket": FarAway})
    monkeypatch.setattr(py4j.java_gateway, "socket", crowded)
    spark.sparkContext._gateway._callback_server = None
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_cannot_be_called_back_is_told_so_and_nothing_hangs(
    stage: Stage, too_many_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = stage.source()
    with pytest.raises(CallbacksImpossible, match=r"cannot use one above 1023.*close what is not needed"):
        stage.start(frame)
    monkeypatch.undo()  # what was not needed is closed
    values = stage.put_numbers(3)
    stage.run(frame)
    assert stage.values() == values


def test_a_listener_that_died_is_started_again(
    stage: Stage, too_many_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = stage.spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # as any foreachBatch does, and dies
    gateway._callback_server.thread.join(60)
    assert not gateway._callback_server.thread.is_alive()
    monkeypatch.undo()
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
        BatchCallback(refuse)(None, 1)
    with pytest.raises(CallbackBroken, match="batch 1 was ended by SystemExit: 2"):
        BatchCallback(leave)(None, 1)

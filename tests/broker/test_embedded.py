"""The embedded broker's arguments: what cannot be is refused before anything is made."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from semel import Broker, Producer
from semel.config import ConfigError


@pytest.mark.parametrize(
    ("arguments", "named", "kind", "said"),
    [
        (({"num.partitions": 3},), {}, TypeError, r"data_dir is a path, not dict: .* Broker\(settings="),
        ((5,), {}, TypeError, "data_dir is a path, not int"),
        ((b"data",), {}, TypeError, "data_dir is a path, not bytes"),
        ((["data"],), {}, TypeError, "data_dir is a path, not list"),
        ((True,), {}, TypeError, "data_dir is a path, not bool"),
        (("",), {}, ConfigError, "data_dir is empty"),
        ((__file__,), {}, ConfigError, "cannot be the data directory: it is a file"),
        ((Path(__file__) / "data",), {}, ConfigError, "cannot be the data directory: it is a file, or below one"),
        ((), {"listen": 9092}, TypeError, "listen is text such as"),
        ((), {"listen": "nonsense"}, ConfigError, "HOST:PORT"),
        ((), {"settings": [("num.partitions", 3)]}, TypeError, "settings are a dict of Kafka's names, not list"),
        ((), {"settings": "num.partitions=3"}, TypeError, "not str"),
        ((), {"settings": {1: 2}}, TypeError, "name of a setting is str, not int"),
        ((), {"settings": {"num.partition": 3}}, ConfigError, "did you mean 'num.partitions'"),
        ((), {"settings": {"num.partitions": "many"}}, ConfigError, "num.partitions"),
        ((), {"settings": {"log.dirs": "/elsewhere"}}, ConfigError, "data_dir"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, named: Any, kind: type[Exception], said: str
) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(kind, match=said):
        Broker(*arguments, **named).start()
    assert list((tmp_path / "here").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_path_may_be_text_or_anything_like_a_path(tmp_path: Path) -> None:
    for data_dir in (tmp_path, str(tmp_path)):
        with Broker(data_dir) as broker, Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            producer.send("t", b"x").result(30)
            assert broker.data_dir == tmp_path


def test_what_is_not_running_says_so(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with pytest.raises(RuntimeError, match="not started"):
        _ = broker.bootstrap_servers
    with broker, pytest.raises(RuntimeError, match="started before"):
        broker.start()
    with pytest.raises(RuntimeError, match="not running"):
        broker.call(broker.server.stop())


class Lingers(Broker):
    """Its thread is still there after its loop has ended."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.has_ended, self.may_go = threading.Event(), threading.Event()

    def _run(self) -> None:
        super()._run()
        self.has_ended.set()
        assert self.may_go.wait(30)


@pytest.mark.parametrize("closed", [True, False])
def test_a_broker_that_stopped_by_itself_can_be_stopped(tmp_path: Path, closed: bool) -> None:
    broker = Lingers(tmp_path).start()
    loop = broker._loop
    assert loop is not None
    if not closed:
        # Between its last turn and its end a loop takes what it will never do.
        broker._loop = asyncio.new_event_loop()
    try:
        loop.call_soon_threadsafe(broker.server.spawn_stop)
        assert broker.has_ended.wait(30)
        outcome: list[object] = []

        def stop() -> None:
            try:
                outcome.append(broker.stop())
            except RuntimeError as error:
                outcome.append(error)

        stopper = threading.Thread(target=stop, daemon=True)
        stopper.start()
        broker.may_go.set()
        stopper.join(15)
        assert outcome == [None]
    finally:
        broker.may_go.set()
        if not closed:
            broker._loop.close()  # type: ignore[union-attr]


def test_a_broker_that_nobody_stopped_leaves_no_temporary_files_at_exit(tmp_path: Path) -> None:
    """The certificates and passwords of `Security` are among them. Its client's last records still arrive."""
    program = """
import semel
security = semel.Security(users=["alice"])
broker = semel.Broker(security=security).start()
producer = semel.Producer({**broker.client_settings("alice"), "linger.ms": 60_000})
producer.send("t", b"x")
print(broker.data_dir)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert Path(done.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert "were not sent" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_modules_of_the_interface_need_no_import_of_their_own() -> None:
    program = """
import asyncio, semel
async def send(at):
    async with semel.aio.Producer({"bootstrap.servers": at}) as producer:
        return (await (await producer.send("t", b"x"))).offset
with semel.Broker() as broker:
    print(asyncio.run(send(broker.bootstrap_servers)), semel.errors.KafkaError.__name__, semel.testing.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["0", "KafkaError", "semel.testing"]

"""A broker that stops because its disk failed: it hands nothing over, and it does stop."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.replication.handing_over import hand_over
from semel.broker.replication.last_life import LastLife
from semel.broker.server import BrokerServer
from semel.cluster.session import SessionState
from semel.log.files import Buffer, Files
from semel.machines.controller.image import Image


class FullDisk(Files):
    """Takes nothing after so many files."""

    left = 0

    def replace(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "no space left on device", str(path))
        super().replace(path, data, durable=durable)


def membership(files: Files, directory: Path, asked: list[object]) -> Any:
    async def multi(operations: object) -> None:
        asked.append(operations)

    async def read_again() -> None:
        asked.append("reads again")

    return SimpleNamespace(
        broker_id=1,
        broker_epoch=4,
        session=SimpleNamespace(state=SessionState.CONNECTED, multi=multi),
        registration=lambda: SimpleNamespace(endpoints=()),
        last_life=LastLife(files, directory),
        image=Image(),
        goes_on_as=asked.append,
        read_again=read_again,
    )


def test_a_life_that_cannot_be_noted_is_not_begun_in_zookeeper(tmp_path: Path) -> None:
    """E12. The end of the session lets others lead."""
    asked: list[object] = []
    asyncio.run(hand_over(membership(FullDisk(), tmp_path, asked), "directory"))
    assert asked == []


def test_a_note_that_fails_after_zookeeper_knows_does_not_end_the_handing_over(tmp_path: Path) -> None:
    files = FullDisk()
    asked: list[object] = []
    files.left = 1
    asyncio.run(hand_over(membership(files, tmp_path, asked), "directory"))
    assert asked[-2:] == [5, "reads again"]


def test_a_note_that_failed_is_written_with_the_next_one(tmp_path: Path) -> None:
    async def story() -> None:
        files = FullDisk()
        last_life = LastLife(files, tmp_path)
        with pytest.raises(OSError, match="no space"):
            await last_life.begins(3)
        files.left = 1
        await last_life.write_down()

    asyncio.run(story())
    assert LastLife(Files(), tmp_path).broker_epoch == 3


def test_whatever_fails_while_a_broker_stops_it_is_stopped() -> None:
    """Else it would keep its session with ZooKeeper and lead on, and a signal would not end it either."""

    async def story() -> None:
        async def stop() -> None:
            raise OSError(errno.EIO, "input/output error")

        server = cast(Any, SimpleNamespace(_stopping=False, stopped=asyncio.Event(), _stop=stop))
        with pytest.raises(OSError, match="input/output"):
            await BrokerServer.stop(server)
        async with asyncio.timeout(10):
            await BrokerServer.stop(server)

    asyncio.run(story())

"""What a data directory remembers of its cluster's ZooKeeper (E12)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from semel.broker.replication.last_life import LAST_LIFE, MOST_SEEN, LastLife
from semel.broker.replication.older_zookeeper import _raise_producer_ids
from semel.cluster.session import NoNode, Stat
from semel.log.files import Buffer, Files
from semel.machines.znodes import paths
from semel.machines.znodes.values import ProducerIdBlock
from tests.simulation.zookeeper.worlds import SimulatedWorld


def stat(mzxid: int, version: int = 0, owner: int = 0) -> Stat:
    return Stat(1, mzxid, 0, 0, version, 0, 0, owner, 0, 0, 0)


class ZooKeeper:
    """As it is now."""

    def __init__(self, life: int | None = None, **changed_at: int) -> None:
        self._nodes = {f"/{name}": stat(at) for name, at in changed_at.items()}
        if life is not None:
            self._nodes[paths.life(1)] = stat(1, life)

    async def sync(self, path: str) -> None:
        pass

    async def exists(self, path: str) -> Stat | None:
        return self._nodes.get(path)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path not in self._nodes:
            raise NoNode(path)
        return b"", self._nodes[path]


async def remembered(directory: Path, epoch: int, *, begun: bool = True, **seen: int) -> LastLife:
    last_life = LastLife(Files(), directory)
    for name, at in seen.items():
        last_life.saw(f"/{name}", stat(at))
    await last_life.begins(epoch)
    if begun:
        await last_life.began()
    return LastLife(Files(), directory)


def missing(directory: Path, zookeeper: ZooKeeper, epoch: int, *, begun: bool = True, **seen: int) -> str:
    async def ask() -> str:
        last_life = await remembered(directory, epoch, begun=begun, **seen)
        return await last_life.what_is_missing(cast(Any, zookeeper), 1)

    return asyncio.run(ask())


def test_e12_a_zookeeper_that_has_everything_is_taken(tmp_path: Path) -> None:
    assert missing(tmp_path, ZooKeeper(7), 7) == ""
    assert missing(tmp_path, ZooKeeper(8, a=20), 7, a=20) == "", "this directory may be a copy, and that is older"
    assert missing(tmp_path, ZooKeeper(7, a=21), 7, a=20) == ""
    assert missing(tmp_path, ZooKeeper(7), 7, a=20) == "", "deleted meanwhile"


def test_e12_a_zookeeper_that_has_less_is_noticed(tmp_path: Path) -> None:
    assert "begun life 7, and there 6" in missing(tmp_path, ZooKeeper(6), 7)
    assert "begun life 7, and there none" in missing(tmp_path, ZooKeeper(), 7)
    assert "/a was changed by transaction 0x14, and there 0x13" in missing(tmp_path, ZooKeeper(7, a=19), 7, a=20)


def test_e12_a_life_that_perhaps_never_began_says_nothing(tmp_path: Path) -> None:
    """A broker that was killed between its note and ZooKeeper's answer."""
    assert missing(tmp_path, ZooKeeper(6), 7, begun=False) == ""
    assert missing(tmp_path, ZooKeeper(7), 7, begun=False) == ""
    assert "begun life 6, and there 5" in missing(tmp_path, ZooKeeper(5), 7, begun=False)
    assert missing(tmp_path, ZooKeeper(), 0, begun=False) == ""


def test_e12_a_directory_that_knows_less_than_zookeeper_is_an_old_copy(tmp_path: Path) -> None:
    last_life = asyncio.run(remembered(tmp_path, 7))
    assert last_life.is_older_than(8)
    assert not last_life.is_older_than(7) and not last_life.is_older_than(6)


def _is_gone(file: Path) -> None:
    file.unlink()


def _went_bad(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"7", b"9"))


def _is_torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:12])


@pytest.mark.parametrize("damage", [_is_gone, _went_bad, _is_torn])
def test_a_note_that_cannot_be_read_refuses_nobody(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    asyncio.run(remembered(tmp_path, 7, a=20))
    damage(tmp_path / LAST_LIFE)
    last_life = LastLife(Files(), tmp_path)
    assert asyncio.run(last_life.what_is_missing(cast(Any, ZooKeeper()), 1)) == ""
    assert last_life.is_older_than(100) is (damage is _is_gone), "more may be gone"


def test_the_newest_changes_are_remembered_and_no_nodes_of_sessions(tmp_path: Path) -> None:
    async def story() -> None:
        last_life = await remembered(tmp_path, 0)
        for number in range(2 * MOST_SEEN):
            last_life.saw(f"/{number % (MOST_SEEN + 2)}", stat(number))
        last_life.saw("/session", stat(1000, owner=5))
        assert LastLife(Files(), tmp_path).seen == {}, "it is written from time to time"
        await last_life.claimed(2999)
        again = LastLife(Files(), tmp_path)
        assert sorted(again.seen.values()) == [*range(MOST_SEEN, 2 * MOST_SEEN)]
        assert again.producer_ids_end == 2999

    asyncio.run(story())


class FullDisk(Files):
    """Full until somebody makes room."""

    is_full = True

    def replace(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device", str(path))
        super().replace(path, data, durable=durable)


def test_e12_what_a_full_disk_did_not_take_is_written_later(tmp_path: Path) -> None:
    async def story() -> None:
        disk = FullDisk()
        last_life = LastLife(disk, tmp_path)
        with pytest.raises(OSError):
            await last_life.begins(7)  # before ZooKeeper hears of it: then it must not hear of it
        await last_life.began()  # it has heard: nothing stops for want of this note
        disk.is_full = False
        await last_life.write_down()

    asyncio.run(story())
    again = LastLife(Files(), tmp_path)
    assert again.broker_epoch == 7 and again.has_begun


@pytest.mark.parametrize("own_end", [0, 999, 5999])
@pytest.mark.parametrize("known_end", [None, 1999])
def test_e12_no_producer_id_is_given_out_twice_whoever_comes_first(own_end: int, known_end: int | None) -> None:
    """Another broker, which starts later, may have claimed ids of which neither this one nor the old copy knows."""

    async def story() -> None:
        session = await SimulatedWorld().open()
        if known_end is not None:
            await session.create(paths.PRODUCER_ID_BLOCK, ProducerIdBlock(1, 1000, known_end).encode())
        await _raise_producer_ids(session, 1, own_end)
        raised = ProducerIdBlock.decode((await session.get(paths.PRODUCER_ID_BLOCK))[0])
        assert raised.next(1).start > max(own_end, known_end or 0) + 10**9

    asyncio.run(story())

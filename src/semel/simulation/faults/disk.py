"""Faults of the broker's disk."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable

from semel.simulation.disk import ProcessDied
from semel.simulation.faults import fault
from semel.simulation.play import Play
from semel.simulation.world import DATA, BrokerNode


def _fails(calls: tuple[str, ...], error: int, what: str, *, after: int, times: int) -> Callable[[str, str], None]:
    """An obstacle: calls of these kinds fail, after so many and for so many times."""
    left = [after, times]

    def obstacle(call: str, path: str) -> None:
        if call in calls and "/data/" in path:
            left[0] -= 1
            if left[0] < 0 and left[1] > 0:
                left[1] -= 1
                raise OSError(error, what, path)

    return obstacle


async def _until_restarted(play: Play, broker: BrokerNode, chance: random.Random, *, wait_s: float) -> None:
    """Leave the disk as it is for a while; then somebody repairs it and restarts the broker."""
    await asyncio.sleep(wait_s)

    async def end() -> None:
        disk = broker.machine.disk
        disk.obstacle, disk.free_bytes = None, None
        await broker.stop()

    await play.restart_broker(broker, end, chance.uniform(0.05, 1))


@fault("I/O error once")
async def io_error(play: Play, chance: random.Random) -> None:
    """One write or one fsync fails."""
    calls = chance.choice((("write",), ("sync",), ("rename",), ("write", "sync", "rename", "truncate")))
    broker = play.a_broker(chance)
    disk = broker.machine.disk
    disk.obstacle = _fails(calls, errno.EIO, "input/output error", after=chance.randint(0, 5), times=1)
    await _until_restarted(play, broker, chance, wait_s=chance.uniform(0.5, 5))


@fault("I/O error for ever", weight=0.5)
async def io_error_for_ever(play: Play, chance: random.Random) -> None:
    """Nothing can be written any more, until the disk is replaced."""
    calls = chance.choice((("sync",), ("write", "sync", "rename", "truncate", "remove", "mkdir")))
    broker = play.a_broker(chance)
    disk = broker.machine.disk
    disk.obstacle = _fails(calls, errno.EIO, "input/output error", after=chance.randint(0, 5), times=10**9)
    await _until_restarted(play, broker, chance, wait_s=chance.uniform(0.5, 5))


@fault("disk full")
async def disk_full(play: Play, chance: random.Random) -> None:
    """The disk takes no more bytes for a while."""
    broker = play.a_broker(chance)
    broker.machine.disk.free_bytes = chance.randint(0, 3_000)
    await _until_restarted(play, broker, chance, wait_s=chance.uniform(0.5, 5))


@fault("slow disk")
async def slow_disk(play: Play, chance: random.Random) -> None:
    """An fsync takes up to a second."""
    machine = play.a_broker(chance).machine
    machine.slowness = chance.choice((10.0, 100.0, 500.0))
    await asyncio.sleep(chance.uniform(0.5, 5))
    machine.slowness = 1.0


@fault("killed while writing", weight=2)
async def killed_while_writing(play: Play, chance: random.Random) -> None:
    """The broker dies in the middle of a call that changes the disk, also during its start."""
    calls = ("write", "sync", "rename", "truncate", "remove", "mkdir", "open")
    left = [chance.choice((0, 1, 2, 5, 10, 40))]
    broker = play.a_broker(chance)
    disk = broker.machine.disk

    def obstacle(call: str, path: str) -> None:
        if call in calls and "/data/" in path:
            left[0] -= 1
            if left[0] < 0:
                disk.obstacle = None
                if broker.process is not None:
                    broker.kill()
                raise ProcessDied

    disk.obstacle = obstacle
    await asyncio.sleep(chance.uniform(0.2, 3))
    disk.obstacle = None
    if not broker.is_running:
        await play.restart_broker(broker, lambda: None, 0.1)


@fault("I/O error in one partition")
async def io_error_in_one_partition(play: Play, chance: random.Random) -> None:
    """The files of one partition cannot be written: the others are served, and a transaction waits for its marker."""
    broker = play.a_broker(chance)
    disk = broker.machine.disk
    names = sorted({path.split("/")[2] for path, _ in disk.files(DATA) if path.endswith(".log")})
    names = [name for name in names if not name.startswith("__")]
    if not names:
        return
    place = f"{DATA}/{chance.choice(names)}/"
    calls = chance.choice((("write",), ("sync",), ("write", "sync", "rename", "truncate")))

    def obstacle(call: str, path: str) -> None:
        if call in calls and path.startswith(place):
            raise OSError(errno.EIO, "input/output error", path)

    disk.obstacle = obstacle
    await _until_restarted(play, broker, chance, wait_s=chance.uniform(1, 14))

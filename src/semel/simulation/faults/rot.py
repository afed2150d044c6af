"""Bits that go bad on the broker's disk while it is down.

What can be made anew is made anew, and nobody notices. A bad log is never served: somebody restores the file, and
restarts the broker. No client may see anything of it but errors.
"""

from __future__ import annotations

import asyncio
import random

from semel.errors import Refused
from semel.log.checkpoints import CLEAN_SHUTDOWN, LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from semel.records.batch import Batch, check
from semel.simulation.disk import File, Rot
from semel.simulation.faults import fault
from semel.simulation.play import Play
from semel.simulation.world import DATA, BrokerNode

#: These are checked whenever they are used.
ALWAYS_CHECKED = (".snapshot", ".snapshot", ".index", ".timeindex")
#: These have no checksum of their own; a clean stop leaves one.
CHECKED_AFTER_A_STOP = (".txnindex", LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA)


def _flip(play: Play, broker: BrokerNode, chance: random.Random, ending: str) -> list[Rot]:
    """Flip a bit in every file of one partition whose name ends like this. Returns what was flipped."""
    found: dict[str, list[File]] = {}
    for path, file in broker.machine.disk.files(DATA):
        if path.endswith(ending) and file.data:
            found.setdefault(path.rpartition("/")[0], []).append(file)
    flipped = []
    for file in found[chance.choice(sorted(found))] if found else ():
        flipped.append(Rot(file, chance.randrange(len(file.data)), 1 << chance.randrange(8)))
    play.world.trace.note("rot", f"{ending} {[(rot.file.number, rot.position) for rot in flipped]}")
    broker.machine.disk.rotten += flipped
    return flipped


def _flip_first_batch(play: Play, broker: BrokerNode, chance: random.Random) -> list[Rot]:
    """Flip a bit in the first batch of a log that has more of them. After a crash the last one would look like a write
    that was not finished, also where the beginning of another one follows it."""
    found = []
    for path, file in broker.machine.disk.files(DATA):
        size = _size_of_batch(file.data)
        if path.endswith(".log") and _is_batch(file.data[size:]):
            found.append((file, size))
    if not found:
        return []
    file, size = chance.choice(found)
    flipped = [Rot(file, chance.randrange(size), 1 << chance.randrange(8))]
    play.world.trace.note("rot", f"first batch of {file.number}")
    broker.machine.disk.rotten += flipped
    return flipped


def _size_of_batch(data: bytes | bytearray) -> int:
    """How long the batch is that begins there, by its own word."""
    return int.from_bytes(data[8:12], "big") + 12


def _is_batch(data: bytes | bytearray) -> bool:
    """Whether a whole batch begins there."""
    try:
        check(Batch.parse(bytes(data[: _size_of_batch(data)])), stored=True)
    except Refused:
        return False
    return True


def _was_stopped_cleanly(broker: BrokerNode) -> bool:
    return broker.machine.disk.find(f"{DATA}/{CLEAN_SHUTDOWN}") is not None


@fault("index goes bad")
async def index_goes_bad(play: Play, chance: random.Random) -> None:
    """Files that can be made anew from the log: indexes, snapshots, and what a stop leaves for the next start."""
    broker = play.a_broker(chance)

    async def end() -> None:
        if chance.random() < 0.5:
            broker.kill()
        else:
            await broker.stop()
        checked = ALWAYS_CHECKED + (CHECKED_AFTER_A_STOP if _was_stopped_cleanly(broker) else ())
        _flip(play, broker, chance, chance.choice(checked))

    await play.restart_broker(broker, end, 0.1)


@fault("log goes bad", in_a_cluster=False)
async def log_goes_bad(play: Play, chance: random.Random) -> None:
    """A bit of a log. After a while somebody notices, and restores it."""
    flipped: list[Rot] = []
    broker = play.a_broker(chance)

    async def stop() -> None:
        if chance.random() < 0.5:
            broker.kill()
        else:
            await broker.stop()
        if _was_stopped_cleanly(broker):
            flipped.extend(_flip(play, broker, chance, ".log"))
        else:
            flipped.extend(_flip_first_batch(play, broker, chance))

    async def restore() -> None:
        await broker.stop()
        for rot in flipped:
            rot.restore()

    await play.restart_broker(broker, stop, 0.1)
    await asyncio.sleep(chance.uniform(0.2, 4))
    await play.restart_broker(broker, restore, 0.1)

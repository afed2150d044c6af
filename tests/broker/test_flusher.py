"""Grouped fsync: what it may say about a log, and what it may not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel.broker.flusher import Flusher
from semel.environment import MACHINE
from semel.log.partition_log import PartitionLog
from tests.log.disk import NOW, batch, open_log


class OnePartition:
    """What the flusher needs of a partition."""

    def __init__(self, log: PartitionLog) -> None:
        self.open_log = log

    def wake_watchers(self) -> None:
        pass


@pytest.mark.parametrize("is_replicated", [False, True])
def test_of_a_replicated_log_an_fsync_commits_nothing(tmp_path: Path, is_replicated: bool) -> None:
    """R2: only the in-sync replicas decide how far it is committed, also with flush.messages and flush.ms."""
    log = open_log(tmp_path, is_replicated=is_replicated)
    log.high_watermark_follows_end = False
    log.append(batch(), NOW)

    async def flush() -> None:
        flusher = Flusher(MACHINE.threads)
        assert not await flusher.flush([OnePartition(log)])  # type: ignore[list-item]
        flusher.close()

    asyncio.run(flush())
    assert log.flusher.recovery_point == 1
    assert log.high_watermark == (0 if is_replicated else 1)


def test_one_that_gives_up_waiting_does_not_disturb_the_others(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(), NOW)
    partition = OnePartition(log)

    async def flush() -> None:
        flusher = Flusher(MACHINE.threads)
        one, other = (asyncio.ensure_future(flusher.flush([partition])) for _ in range(2))  # type: ignore[list-item]
        await asyncio.sleep(0)
        one.cancel()
        assert not await asyncio.wait_for(other, 60)
        assert one.cancelled()
        assert flusher.rounds == 1
        flusher.close()

    asyncio.run(flush())
    assert log.flusher.recovery_point == 1


def test_what_nobody_expected_is_told_to_everybody_who_waits(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(), NOW)
    partition = OnePartition(log)

    def broken() -> None:
        raise RuntimeError("nobody expected this")

    partition.wake_watchers = broken  # type: ignore[method-assign]

    async def flush() -> list[object]:
        flusher = Flusher(MACHINE.threads)
        waiting = (flusher.flush([partition]) for _ in range(2))  # type: ignore[list-item]
        found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        flusher.close()
        return found

    assert [str(error) for error in asyncio.run(flush())] == ["nobody expected this"] * 2

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

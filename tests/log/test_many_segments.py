"""A log of many segments: only a few of them are open, and only the indexes of those are in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from semel.log.partition_log import PartitionLog
from semel.records.batch import split
from tests.log.disk import NOW, batch, crash, open_log, read_all

SEGMENTS = 20
COMPACT = {"cleanup_policy": "compact", "index_interval_bytes": 50}


def many(data: Path) -> PartitionLog:
    log = open_log(data, **COMPACT)
    for number in range(SEGMENTS):
        for _ in range(3):
            log.append(batch(-1, 0, b"a", b"b", timestamp_ms=NOW + number), NOW)
        log.roll(NOW)
    return log


def in_turns(log: PartitionLog) -> None:
    """Slow readers, each somewhere else, that go on where they were."""
    positions = [segment.base_offset for segment in log.segments[:-1]]
    for _ in range(3):
        for number, offset in enumerate(positions):
            positions[number] = split(log.reader.read(offset, 1).data)[-1].next_offset


@pytest.mark.parametrize(
    "use",
    [
        read_all,
        in_turns,
        lambda log: log.times.offset_for_timestamp(NOW + SEGMENTS - 1),
        lambda log: log.times.max_timestamp_offset(),
        lambda log: log.retention.enforce(NOW),
        lambda log: log.cleaner.compact(NOW),
        lambda log: log.flusher.flush(),
    ],
    ids=["reading", "reading in turns", "by time", "latest by time", "retention", "compaction", "flush"],
)
@pytest.mark.parametrize("start", ["clean", "after a crash", "none"])
def test_only_a_few_are_open_and_in_memory(tmp_path: Path, use: Callable[[PartitionLog], object], start: str) -> None:
    log = many(tmp_path)
    if start == "clean":
        log.close(NOW)
        log = open_log(tmp_path, **COMPACT, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=10_000_000)
    elif start == "after a crash":
        crash(log)
        for path in (tmp_path / "t-0").glob("*.snapshot"):
            path.unlink()
        log = open_log(tmp_path, clean=False, **COMPACT)
    use(log)
    assert sum(segment.is_open for segment in log.segments) <= 9
    assert sum(len(segment.offset_index) > 0 for segment in log.segments) <= 9
    assert len(read_all(log)) == (6 * SEGMENTS if len(log.segments) > 2 else 1)
    latest = log.times.max_timestamp_offset()
    assert latest is not None and latest.timestamp_ms == NOW + SEGMENTS - 1

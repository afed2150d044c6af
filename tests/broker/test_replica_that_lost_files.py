"""A replica whose files have lost what was committed: it is not opened as if it had never had it (E11)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel.broker.topics.logs import TopicLogs
from semel.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, read_offsets, write_offsets
from semel.log.damage import DamagedLog
from semel.log.files import Files
from semel.log.truncation import lower_checkpoints
from tests.broker.test_whose_directory import logs_in, went_down
from tests.log.disk import NOW, FaultyFiles, batch, open_log

FIRST = "00000000000000000000"


def write(directory: Path, count: int, *, committed: int) -> None:
    """What a run has left that was killed."""
    logs, partition = logs_in(directory, FaultyFiles())
    logs.load([partition])
    logs.note_machine()
    log = partition.own_log
    for _ in range(count):
        log.append(batch(), NOW)
    log.high_watermark = committed
    logs.checkpoint_high_watermarks([partition])
    log.segments.close()


def reopened(directory: Path) -> tuple[TopicLogs, int]:
    """Where the log of the next run ends."""
    logs, partition = logs_in(directory, FaultyFiles())
    logs.load([partition])
    return logs, partition.own_log.end_offset


def test_what_was_committed_is_there_after_a_kill(tmp_path: Path) -> None:
    write(tmp_path, 3, committed=3)
    assert reopened(tmp_path)[1] == 3


def test_a_log_that_ends_before_what_was_committed_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, 3, committed=2)
    log = tmp_path / "t-0" / f"{FIRST}.log"
    size = log.stat().st_size // 3
    with log.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(DamagedLog, match="ends at offset 1, yet everything below offset 2 was committed"):
        reopened(tmp_path)
    with pytest.raises(DamagedLog, match="ends at offset 1"):
        reopened(tmp_path)  # the next start finds the same


@pytest.mark.parametrize("committed", [0, 3])
def test_a_log_file_that_is_gone_is_missed(tmp_path: Path, committed: int) -> None:
    """Also before a high watermark was written down."""
    write(tmp_path, 3, committed=committed)
    (tmp_path / "t-0" / f"{FIRST}.log").unlink()
    with pytest.raises(DamagedLog, match="is missing"):
        reopened(tmp_path)


def test_a_directory_that_is_gone_is_missed(tmp_path: Path) -> None:
    write(tmp_path, 3, committed=3)
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    with pytest.raises(DamagedLog, match="everything below offset 3 was committed"):
        reopened(tmp_path)


def test_a_machine_that_went_down_may_have_lost_it(tmp_path: Path) -> None:
    """E4: this broker has left the in-sync sets by then."""
    write(tmp_path, 3, committed=3)
    (tmp_path / "t-0" / f"{FIRST}.log").unlink()
    went_down(tmp_path, with_fsync=False)
    assert reopened(tmp_path)[1] == 0


def test_what_the_leader_has_cut_is_not_missed(tmp_path: Path) -> None:
    """After an unclean election a follower is cut below what it knew to be committed."""
    write(tmp_path, 3, committed=3)
    log = open_log(tmp_path)
    lower_checkpoints(log, 1)
    log.segments.close()
    assert read_offsets(Files(), tmp_path, HIGH_WATERMARKS) == {("t", 0): 1}


def test_a_replica_that_is_set_aside_begins_anew_and_keeps_what_was_there(tmp_path: Path) -> None:
    write(tmp_path, 3, committed=3)
    write_offsets(Files(), tmp_path, RECOVERY_POINTS, {("t", 0): 3, ("other", 1): 5})
    kept = (tmp_path / "t-0" / f"{FIRST}.index").read_bytes()
    (tmp_path / "t-0" / f"{FIRST}.log").unlink()
    logs, partition = logs_in(tmp_path, Files())
    logs.load([partition])

    async def set_aside() -> Path | None:
        place = await logs.set_aside(partition)
        partition.release()
        return place

    place = asyncio.run(set_aside())
    assert place is not None and place.name.endswith("-stray")
    assert (place / f"{FIRST}.index").read_bytes() == kept
    assert partition.own_log.end_offset == partition.own_log.high_watermark == 0
    assert ("t", 0) not in read_offsets(Files(), tmp_path, RECOVERY_POINTS)

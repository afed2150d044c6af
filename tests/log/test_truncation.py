"""Cutting a log back: beside the loop, in the right order, and killed at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.log import checkpoints
from semel.log.partition_log import PartitionLog
from tests.log.disk import NOW, FaultyFiles, InlineFiles, Killed, batch, crash, end, open_log, read_all, send, stored

SMALL = {"segment_bytes": 400, "index_interval_bytes": 100}


def written(directory: Path, files: FaultyFiles | None = None) -> PartitionLog:
    """A log of several segments and leader epochs, with a producer, an open transaction and an aborted one."""
    log = open_log(directory, files=files, **SMALL)
    for number in range(3):
        log.begin_leader_epoch(2 * number)
        for sequence in range(3):
            log.append(batch(5, 3 * number + sequence, b"x" * 50), NOW)
        send(log, 6 + number, 0)
        if number == 1:
            end(log, 7, commit=False)
    return log


def facts(log: PartitionLog) -> tuple[object, ...]:
    return (
        [bytes(found.data) for found in stored(log)],
        log.end_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.producers.facts(),
        log.leader_epochs.entries,
    )


def test_until_it_is_applied_a_cut_changes_nothing(tmp_path: Path) -> None:
    log = written(tmp_path)
    before, files = facts(log), {path: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
    truncation = log.following.truncation(6, NOW)
    truncation.run()
    assert facts(log) == before
    assert {path: path.read_bytes() for path in (tmp_path / "t-0").iterdir()} == files
    assert truncation.apply()
    assert (log.end_offset, log.high_watermark) == (6, 6)


@pytest.mark.parametrize("change", ["append", "retention"])
def test_a_log_that_changed_meanwhile_is_not_cut_by_an_old_plan(tmp_path: Path, change: str) -> None:
    log = written(tmp_path)
    truncation = log.following.truncation(6, NOW)
    truncation.run()
    if change == "append":
        log.append(batch(), NOW)
    else:
        log.retention.delete_records_before(3)
        assert log.retention.enforce(NOW) > 0
    before = facts(log)
    assert not truncation.apply()
    assert facts(log) == before
    log.truncate_to(6, NOW)
    assert log.end_offset == 6


def test_the_indexes_of_a_cut_log_are_those_of_a_log_that_was_never_longer(tmp_path: Path) -> None:
    log = written(tmp_path / "cut")
    for cut in (11, 8, 6, 5, 2):
        log.truncate_to(cut, NOW)
        other = open_log(tmp_path / f"up to {cut}", **SMALL)
        other.following.begin(99)
        other.following.append(b"".join(bytes(found.data) for found in stored(log)), NOW)
        if log.segments.active.size_bytes == 0:
            other.roll(NOW)
        for one, two in zip(log.segments, other.segments, strict=True):
            one.load_indexes()
            two.load_indexes()
            assert one.offset_index.entries() == two.offset_index.entries()
            assert one.time_index.entries() == two.time_index.entries()
            assert one.transaction_index.entries == two.transaction_index.entries
        assert log.leader_epochs.entries == other.leader_epochs.entries


def test_a_cut_within_a_batch_takes_the_whole_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(-1, 0, b"a"), NOW)
    log.append(batch(-1, 0, b"b", b"c", b"d"), NOW)
    log.truncate_to(2, NOW)
    assert (log.end_offset, len(stored(log))) == (1, 1)
    assert log.append(batch(), NOW).base_offset == 1


def test_a_cut_below_what_was_promised_to_be_on_disk_is_no_damage_after_a_crash(tmp_path: Path) -> None:
    log = written(tmp_path)
    log.flusher.flush()
    data, name = tmp_path, ("t", 0)
    checkpoints.write_offsets(log.files, data, checkpoints.RECOVERY_POINTS, {name: log.end_offset})
    log.truncate_to(6, NOW)
    assert log.flusher.recovery_point <= 6
    crash(log)
    point = checkpoints.read_offsets(log.files, data, checkpoints.RECOVERY_POINTS)[name]
    assert open_log(data, clean=False, recovery_point=point, **SMALL).end_offset == 6


@pytest.mark.parametrize("cut", [0, 2, 6, 8, 12])
def test_killed_at_any_step_of_a_cut_a_log_is_whole_and_can_be_cut_again(tmp_path: Path, cut: int) -> None:
    whole = written(tmp_path / "whole")
    batches = [bytes(found.data) for found in stored(whole)]
    for number in range(1, 100):
        directory, files = tmp_path / str(number), FaultyFiles()
        log = written(directory, files)
        log.flusher.flush(closing=True)
        checkpoints.write_offsets(files, directory, checkpoints.RECOVERY_POINTS, {("t", 0): log.end_offset})
        files.fail_at, files.error = files.changes + number, Killed()
        try:
            log.truncate_to(cut, NOW)
        except Killed:
            crash(log)
        else:
            assert number > 5
            return
        point = checkpoints.read_offsets(InlineFiles(), directory, checkpoints.RECOVERY_POINTS)["t", 0]
        again = open_log(directory, clean=False, recovery_point=point, **SMALL)
        left = [bytes(found.data) for found in stored(again)]
        assert left == batches[: len(left)]
        assert again.end_offset >= cut
        again.following.begin(99)
        assert again.leader_epochs.entries == [
            entry for entry in whole.leader_epochs.entries if entry[1] < again.end_offset
        ]
        again.truncate_to(cut, NOW)
        whole_again = open_log(tmp_path / f"again {number}", **SMALL)
        whole_again.following.begin(99)
        whole_again.following.append(b"".join(bytes(found.data) for found in stored(again)), NOW)
        assert again.producers.facts() == whole_again.producers.facts()
        assert again.end_offset == whole_again.end_offset == cut
    raise AssertionError("it never came to an end")


def test_after_a_failed_cut_nothing_is_written(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = written(tmp_path, files)
    files.fail_when = lambda call, path: call == "truncate"
    with pytest.raises(Exception, match="KAFKA_STORAGE_ERROR"):
        log.truncate_to(6, NOW)
    assert log.failed is not None
    with pytest.raises(Exception, match="KAFKA_STORAGE_ERROR"):
        log.following.truncation(6, NOW)


def test_readers_of_what_stays_are_served_after_a_cut(tmp_path: Path) -> None:
    log = written(tmp_path)
    assert len(read_all(log)) > 6
    log.truncate_to(6, NOW)
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3, 4, 5]

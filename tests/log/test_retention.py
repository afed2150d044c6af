"""Letting go by age, size and request."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from semel.errors import Refused
from semel.log.damage import DamagedLog
from tests.log.disk import NOW, FaultyFiles, Killed, batch, crash, open_log, read_all, send, settings

DAY_MS = 86_400_000


def filled(data: Path, segments: int = 5, **changes: object):  # type: ignore[no-untyped-def]
    """One batch per segment, an hour apart."""
    log = open_log(data, **changes)
    for number in range(segments):
        at_ms = NOW + number * 3_600_000
        log.append(batch(1, number, b"x" * 100, timestamp_ms=at_ms), at_ms)
        if number < segments - 1:
            log.roll(at_ms)
    return log


def names(data: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in (data / "t-0").iterdir() if path.name.endswith(suffix))


def test_segments_go_when_their_newest_record_is_too_old(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=DAY_MS)
    assert log.retention.enforce(NOW + DAY_MS) == 0
    assert log.retention.enforce(NOW + DAY_MS + 1) == 1
    assert log.log_start_offset == 1
    assert [record.offset for record in read_all(log)] == [1, 2, 3, 4]
    with pytest.raises(Refused, match="OFFSET_OUT_OF_RANGE"):
        log.reader.read(0, 100, 0)


def test_even_the_active_segment_goes_when_it_is_too_old(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=DAY_MS)
    assert log.retention.enforce(NOW + 30 * DAY_MS) == 5
    assert (log.log_start_offset, log.end_offset, log.size_bytes) == (5, 5, 0)
    assert log.append(batch(1, 5), NOW).base_offset == 5


def test_segments_go_from_the_front_until_the_size_fits(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_bytes=400, retention_ms=-1)
    one = log.segments[0].size_bytes
    assert log.retention.enforce(NOW) == (5 * one - 400) // one
    assert log.size_bytes >= 400


def test_nothing_above_the_high_watermark_goes(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=DAY_MS)
    log.high_watermark = 2
    assert log.retention.enforce(NOW + 30 * DAY_MS) == 2


def test_a_compacted_topic_keeps_what_is_old(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=DAY_MS, cleanup_policy="compact")
    assert log.retention.enforce(NOW + 30 * DAY_MS) == 0


def test_a_removed_segment_stays_on_disk_for_a_while_under_another_name(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=DAY_MS, file_delete_delay_ms=60_000)
    now_ms = NOW + DAY_MS + 1
    log.retention.enforce(now_ms)
    assert "00000000000000000000.log.deleted" in names(tmp_path, ".deleted")
    log.retention.enforce(now_ms + 59_999)
    assert names(tmp_path, ".deleted")
    log.retention.enforce(now_ms + 60_000)
    assert names(tmp_path, ".deleted") == []


def test_what_was_left_under_another_name_goes_at_the_next_start(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=DAY_MS)
    log.retention.enforce(NOW + DAY_MS + 1)
    log.close(NOW)
    again = open_log(tmp_path)
    assert names(tmp_path, ".deleted") == []
    assert again.log_start_offset == 1


@pytest.mark.parametrize("first_rename_is_lost", [False, True])
def test_retention_may_be_killed_at_any_point(tmp_path: Path, first_rename_is_lost: bool) -> None:
    """C6: the log begins a little earlier or later, and never has a hole"""
    step, killed = 0, True
    while killed:
        step += 1
        data = tmp_path / str(step)
        files = FaultyFiles()
        log = filled(data, files=files, retention_ms=DAY_MS)
        files.error, files.fail_at, files.changes = Killed(), step, 0
        try:
            log.retention.enforce(NOW + DAY_MS + 3 * 3_600_000)
            killed = False
        except Killed:
            killed = True
        crash(log)
        if first_rename_is_lost:
            for path in (data / "t-0").glob(f"{0:020d}.*.deleted"):
                path.rename(path.with_suffix(""))
        again = open_log(data, clean=False, now_ms=NOW)
        assert [record.offset for record in read_all(again)] == list(range(again.log_start_offset, 5))
        assert again.append(batch(1, 5), NOW).base_offset == 5
        crash(again)
    assert step > 6


@pytest.mark.parametrize("undone", [it for n in range(4) for it in itertools.combinations(range(3), n)], ids=str)
def test_a_power_failure_may_undo_any_of_the_renames(tmp_path: Path, undone: tuple[int, ...]) -> None:
    """C6: renames that no fsync followed are kept or lost, each by itself"""
    log = filled(tmp_path, retention_ms=DAY_MS)
    assert log.retention.enforce(NOW + DAY_MS + 3 * 3_600_000) == 3
    crash(log)
    for number in undone:
        for path in (tmp_path / "t-0").glob(f"{number:020d}.*.deleted"):
            path.rename(path.with_suffix(""))
    again = open_log(tmp_path, clean=False, recovery_point=5)
    # What came back is served if everything behind it came back too.
    expected = next(number for number in range(4) if all(each in undone for each in range(number, 3)))
    assert again.log_start_offset == expected
    assert [record.offset for record in read_all(again)] == list(range(expected, 5))
    has_hole = any(number < expected for number in undone)
    told = [repair for repair in again.repairs if "they were removed before (the log begins at offset 3)" in repair]
    assert len(told) == has_hole
    assert len(names(tmp_path, ".log")) == 5 - expected
    again.close(NOW)
    assert open_log(tmp_path).log_start_offset == expected


def test_a_hole_where_the_log_begins_or_later_is_damage(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=DAY_MS)
    assert log.retention.enforce(NOW + DAY_MS + 1) == 1
    crash(log)
    (tmp_path / "t-0" / "00000000000000000002.log").unlink()
    with pytest.raises(DamagedLog, match="offsets 2 to 2 are missing"):
        open_log(tmp_path, clean=False, recovery_point=5)


def test_a_hole_behind_what_somebody_deleted_is_damage(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=-1)
    log.retention.delete_records_before(2)
    crash(log)
    (tmp_path / "t-0" / "00000000000000000002.log").unlink()
    with pytest.raises(DamagedLog, match="offsets 2 to 2 are missing"):
        open_log(tmp_path, clean=False, recovery_point=5)


def test_deleted_records_stay_deleted_after_a_crash(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=-1)
    assert log.retention.delete_records_before(3) == 3
    assert [record.offset for record in read_all(log)] == [3, 4]
    crash(log)
    again = open_log(tmp_path, clean=False)
    assert again.log_start_offset == 3
    assert again.retention.enforce(NOW) == 3
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 3\n"


def test_records_can_be_deleted_up_to_the_high_watermark_and_no_further(tmp_path: Path) -> None:
    log = filled(tmp_path)
    with pytest.raises(Refused, match="OFFSET_OUT_OF_RANGE"):
        log.retention.delete_records_before(6)
    assert log.retention.delete_records_before(-1) == 5
    assert log.retention.delete_records_before(2) == 5
    assert read_all(log) == []


def test_a_topic_of_the_same_name_does_not_inherit_a_deleted_start(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.retention.delete_records_before(3)
    log.close(NOW)
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    (tmp_path / "t-0").rmdir()
    fresh = open_log(tmp_path)
    fresh.append(batch(), NOW)
    fresh.close(NOW)
    assert open_log(tmp_path).log_start_offset == 0


def test_the_last_stable_offset_is_never_below_the_start_of_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0)
    log.append(batch(), NOW)
    log.retention.delete_records_before(1)
    assert log.last_stable_offset == 1


def test_a_producers_state_outlives_its_deleted_records_and_expires_by_age(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=DAY_MS)
    log.retention.enforce(NOW + DAY_MS + 5 * 3_600_000 - 1)
    assert log.log_start_offset == 5
    assert 1 not in log.producers.entries
    log = filled(tmp_path / "b", retention_ms=3_600_000)
    log.retention.enforce(NOW + DAY_MS // 2)
    assert log.log_start_offset == 5 and 1 in log.producers.entries


def test_new_settings_hold_at_once(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=-1)
    assert log.retention.enforce(NOW + 30 * DAY_MS) == 0
    log.config = settings(retention_ms=DAY_MS, max_message_bytes=100)
    assert log.retention.enforce(NOW + 30 * DAY_MS) == 5
    with pytest.raises(Refused, match="MESSAGE_TOO_LARGE"):
        log.append(batch(-1, 0, b"x" * 100), NOW)


# Rolling


def test_a_segment_is_rolled_when_the_next_batch_does_not_fit(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    for _ in range(4):
        log.append(batch(-1, 0, b"x" * 60), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    assert all(segment.size_bytes <= 300 for segment in log.segments)


def test_a_segment_is_rolled_when_its_first_record_is_too_old(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=1000)
    log.append(batch(timestamp_ms=NOW), NOW)
    log.append(batch(timestamp_ms=NOW + 1000), NOW)
    assert len(log.segments) == 1
    log.append(batch(timestamp_ms=NOW + 1001), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_segments_of_many_logs_are_not_all_rolled_at_once_where_the_topic_wants_jitter(tmp_path: Path) -> None:
    def rolled(jitter_ms: int) -> int:
        logs = [
            open_log(tmp_path / str(jitter_ms), partition=number, segment_ms=1000, segment_jitter_ms=jitter_ms)
            for number in range(40)
        ]
        for log in logs:
            log.append(batch(timestamp_ms=NOW), NOW)
            log.append(batch(timestamp_ms=NOW + 500), NOW)
        early = sum(len(log.segments) > 1 for log in logs)
        for log in logs:
            log.append(batch(timestamp_ms=NOW + 1501), NOW)
            assert len(log.segments) > 1, "none stays longer than segment.ms"
        return early

    assert rolled(0) == 0
    assert 0 < rolled(1000) < 40


def test_a_segment_is_rolled_when_its_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=0, segment_index_bytes=60)
    for _ in range(12):
        log.append(batch(), NOW)
    assert len(log.segments) > 1
    log.close(NOW)
    assert all(path.stat().st_size <= 60 for path in (tmp_path / "t-0").glob("*.*index"))


def test_a_segment_is_rolled_before_its_relative_offsets_overflow(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(), NOW)
    log.end_offset = log.high_watermark = 2**31 - 1
    log.append(batch(), NOW)
    assert len(log.segments) == 1
    log.append(batch(), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]


def test_a_topic_that_may_keep_no_bytes_keeps_none(tmp_path: Path) -> None:
    """As Kafka: the active segment is let go too."""
    log = filled(tmp_path, retention_ms=-1, retention_bytes=0)
    assert log.retention.enforce(NOW) == 5
    assert (log.log_start_offset, log.end_offset, log.size_bytes) == (5, 5, 0)
    assert log.retention.enforce(NOW) == 0


def test_a_log_cut_before_its_deleted_start_begins_and_ends_there(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.retention.delete_records_before(4)
    log.truncate_to(2, NOW)
    assert (log.log_start_offset, log.end_offset, log.high_watermark) == (2, 2, 2)
    assert log.append(batch(), NOW).base_offset == 2
    log.close(NOW)
    again = open_log(tmp_path)
    assert (again.log_start_offset, again.end_offset) == (2, 3)


@pytest.mark.parametrize("stop", ["none", "clean", "crash", "crash after a roll"])
def test_a_producer_of_old_records_is_as_alive_as_any(tmp_path: Path, stop: str) -> None:
    """A backfill keeps the times of its records: its retries must be recognised nevertheless, also after a restart."""
    log = open_log(tmp_path)
    old = batch(1, 0, timestamp_ms=NOW - 30 * DAY_MS)
    log.append(old, NOW)
    if stop == "crash after a roll":
        log.roll(NOW)
        log.append(batch(), NOW)
    if stop == "clean":
        log.close(NOW)
    elif stop != "none":
        crash(log)
    if stop != "none":
        log = open_log(tmp_path, clean=stop == "clean", now_ms=NOW + 1000)
    log.retention.enforce(NOW + 60_000)
    answer = log.append(old, NOW + 60_000)
    assert answer.duplicate and answer.base_offset == 0
    log.producers.expire(NOW + 1000 + DAY_MS, DAY_MS)
    assert 1 not in log.producers.entries

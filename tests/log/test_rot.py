"""Bytes that were safely on disk go bad later: whoever comes across them is told, and nothing is skipped over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.errors import ErrorCode, Refused
from semel.log.partition_log import PartitionLog
from semel.log.recovery import DamagedLog
from semel.records.batch import split
from tests.log.disk import NOW, batch, crash, end, open_log, read_all, send, stored

FIRST = "00000000000000000000"
#: Where a batch says how long it is.
LENGTH_AT = slice(8, 12)


def two_segments(data: Path, **changes: object) -> PartitionLog:
    log = open_log(data, **changes)
    for number in range(6):
        log.append(batch(1, number, b"x" * 200, keys=[b"%d" % number]), NOW)
    log.roll(NOW)
    log.append(batch(1, 6, keys=[b"6"]), NOW)
    return log


def harm(path: Path, position: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[position : position + len(data)] = data
    path.write_bytes(whole)


@pytest.mark.parametrize("length", [-12, -13, 0, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_a_reader_is_told_of_a_batch_whose_length_went_bad_and_never_gets_past_it(
    tmp_path: Path, length: int, max_bytes: int
) -> None:
    log = two_segments(tmp_path)
    found = stored(log)
    path = tmp_path / "t-0" / f"{FIRST}.log"
    harm(path, found[0].size_bytes * 2 + LENGTH_AT.start, length.to_bytes(4, "big", signed=True))
    assert log.reader.read(0, 300, 0).data == bytes(found[0].data)
    if max_bytes < 1 << 20:
        with pytest.raises(Refused, match="CORRUPT_MESSAGE"):
            log.reader.read(2, max_bytes, 0)
    for offset in (3, 5):
        with pytest.raises(Refused, match="CORRUPT_MESSAGE"):
            log.reader.read(offset, max_bytes, 0)
    assert log.reader.read(6, max_bytes, 0).data


@pytest.mark.parametrize("at", [LENGTH_AT.start, 200], ids=["a length", "a value"])
def test_compaction_leaves_a_segment_alone_that_went_bad(tmp_path: Path, at: int) -> None:
    """Else what follows the bad batch would be gone, or the bad bytes would get a CRC that says they are good."""
    log = open_log(tmp_path, cleanup_policy="compact")
    for number in range(6):
        log.append(batch(-1, 0, b"x" * 200, b"y", keys=[b"%d" % number, b"same"]), NOW)
    log.roll(NOW)
    path = tmp_path / "t-0" / f"{FIRST}.log"
    harm(path, stored(log)[0].size_bytes * 3 + at, b"\xee\xee")
    before = path.read_bytes()
    with pytest.raises(Refused, match="CORRUPT_MESSAGE"):
        log.cleaner.compact(NOW, force=True)
    assert path.read_bytes() == before
    assert not list((tmp_path / "t-0").glob("*.cleaned"))


def test_a_start_that_must_replay_what_went_bad_is_told(tmp_path: Path) -> None:
    """C4: state rebuilt from half a segment would take a retry for something new."""
    log = two_segments(tmp_path)
    first = stored(log)[0].size_bytes
    log.close(NOW)
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    path = tmp_path / "t-0" / f"{FIRST}.log"
    harm(path, first * 2 + LENGTH_AT.start, b"\xff\xff")
    with pytest.raises(DamagedLog) as damage:
        open_log(tmp_path)
    assert (damage.value.path, damage.value.position) == (str(path), first * 2)


def with_aborts(data: Path) -> PartitionLog:
    log = open_log(data, index_interval_bytes=100)
    for number in range(4):
        send(log, 7, number, b"x" * 200)
        end(log, 7, commit=number % 2 == 0)
    log.roll(NOW)
    log.append(batch(), NOW)
    return log


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_an_index_that_went_bad_is_rebuilt_and_it_is_said(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = with_aborts(tmp_path)
    expected = read_all(log, 1)
    log.close(NOW)
    path = tmp_path / "t-0" / f"{FIRST}{suffix}"
    whole = path.read_bytes()
    harm(path, 8 if suffix == ".timeindex" else 0, b"\xf7" * 4)
    log = open_log(tmp_path, index_interval_bytes=100)
    assert read_all(log, 1) == expected
    assert log.times.offset_for_timestamp(NOW) is not None
    log.close(NOW)
    assert [record for record in caplog.records if f"{FIRST}{suffix}" in record.getMessage()]
    log = open_log(tmp_path, index_interval_bytes=100)
    assert read_all(log, 1) == expected
    if suffix == ".txnindex":
        assert path.read_bytes() == whole


def test_a_list_of_aborts_that_nobody_has_read_between_two_stops_is_checked_after_the_second(tmp_path: Path) -> None:
    """A producer id that went bad would show the records of an aborted transaction, and hide those of another."""
    log = with_aborts(tmp_path)
    expected = read_all(log, 1)
    log.close(NOW)
    log = open_log(tmp_path, index_interval_bytes=100, expected=log.marks)
    log.close(NOW)
    path = tmp_path / "t-0" / f"{FIRST}.txnindex"
    whole = path.read_bytes()
    harm(path, 9, b"\x08")
    log = open_log(tmp_path, index_interval_bytes=100, expected=log.marks)
    assert read_all(log, 1) == expected
    assert path.read_bytes() == whole
    log.close(NOW)


@pytest.mark.parametrize("harmed", ["a bit", "its end", "all of it"])
def test_a_list_of_aborts_that_went_bad_between_a_stop_and_a_crash_is_rebuilt(tmp_path: Path, harmed: str) -> None:
    """Nobody used the partition since the stop, so nobody else knows what the list was."""
    log = with_aborts(tmp_path)
    expected = read_all(log, 1)
    log.close(NOW)
    path = tmp_path / "t-0" / f"{FIRST}.txnindex"
    whole = path.read_bytes()
    if harmed == "a bit":
        harm(path, 9, b"\x08")
    elif harmed == "its end":
        path.write_bytes(whole[:-34])
    else:
        path.unlink()
    log = open_log(tmp_path, index_interval_bytes=100, clean=False, recovery_point=log.end_offset, before=log.marks)
    assert read_all(log, 1) == expected
    assert path.read_bytes() == whole
    log.close(NOW)


def test_a_list_of_aborts_that_has_grown_since_the_last_stop_is_not_taken_for_a_bad_one(tmp_path: Path) -> None:
    log = with_aborts(tmp_path)
    log.close(NOW)
    before = log.marks
    log = open_log(tmp_path, index_interval_bytes=100, expected=before)
    send(log, 7, 4, b"x" * 200)
    end(log, 7, commit=False)
    expected = read_all(log, 1)
    crash(log)
    log = open_log(tmp_path, index_interval_bytes=100, clean=False, recovery_point=0, before=before)
    assert read_all(log, 1) == expected
    log.close(NOW)


def test_a_list_of_aborts_that_went_bad_after_a_compaction_and_a_stop_is_rebuilt(tmp_path: Path) -> None:
    """The compacted segment is a new one, and knows what was written for it."""
    log = open_log(tmp_path, cleanup_policy="compact")
    for number in range(4):
        data = batch(7, number, b"%d" % number, keys=[b"%d" % number], transactional=True)
        log.append(data, NOW, guard=log.start_verification(7, 0, number))
        end(log, 7, commit=number % 2 == 0)
    expected = read_all(log, 1)
    log.roll(NOW)
    log.cleaner.compact(NOW, force=True)
    log.close(NOW)
    path = tmp_path / "t-0" / f"{FIRST}.txnindex"
    harm(path, 9, b"\x08")
    log = open_log(tmp_path, cleanup_policy="compact", expected=log.marks)
    assert read_all(log, 1) == expected
    assert [repair for repair in log.repairs if FIRST in repair]
    log.close(NOW)


HOUR_MS = 3_600_000


def one_an_hour(data: Path) -> PartitionLog:
    log = open_log(data, index_interval_bytes=100, retention_ms=20 * HOUR_MS)
    for number in range(12):
        at_ms = NOW + number * HOUR_MS
        log.append(batch(1, number, b"x" * 200, timestamp_ms=at_ms), at_ms)
    log.roll(NOW + 13 * HOUR_MS)
    log.append(batch(timestamp_ms=NOW + 13 * HOUR_MS), NOW + 13 * HOUR_MS)
    log.flusher.flush()
    return log


@pytest.mark.parametrize("bit", range(30, 64))
def test_after_a_crash_retention_is_not_deceived_by_a_time_index_that_went_bad(tmp_path: Path, bit: int) -> None:
    """The timestamps may rise all the same, and nobody knows the checksum of the file."""
    log = one_an_hour(tmp_path)
    end_offset, last_ms = log.end_offset, NOW + 11 * HOUR_MS
    crash(log)
    path = tmp_path / "t-0" / f"{FIRST}.timeindex"
    harm(path, len(path.read_bytes()) - 12, ((last_ms ^ 1 << bit) % 2**64).to_bytes(8, "big"))
    log = open_log(tmp_path, clean=False, recovery_point=end_offset, retention_ms=20 * HOUR_MS)
    assert log.retention.enforce(last_ms + 19 * HOUR_MS) == 0
    assert log.retention.enforce(last_ms + 21 * HOUR_MS) == 1
    log.close(NOW)


@pytest.mark.parametrize("bit", range(20, 34))
@pytest.mark.parametrize("field", ["timestamp", "offset"])
def test_after_a_crash_no_record_is_skipped_over_a_time_index_that_went_bad(
    tmp_path: Path, field: str, bit: int
) -> None:
    log = one_an_hour(tmp_path)
    end_offset = log.end_offset
    crash(log)
    path = tmp_path / "t-0" / f"{FIRST}.timeindex"
    at = 5 * 12 + (0 if field == "timestamp" else 8)
    size = 8 if field == "timestamp" else 4
    value = int.from_bytes(path.read_bytes()[at : at + size], "big") ^ 1 << (bit if field == "timestamp" else bit - 20)
    harm(path, at, value.to_bytes(size, "big"))
    log = open_log(tmp_path, clean=False, recovery_point=end_offset, index_interval_bytes=100)
    for number in range(12):
        found = log.times.offset_for_timestamp(NOW + number * HOUR_MS)
        assert found is not None
        assert found.offset == number
    log.close(NOW)


@pytest.mark.parametrize("change", [1, -1, 2**20])
@pytest.mark.parametrize("field", ["offset", "position"])
def test_an_index_entry_that_points_elsewhere_is_found_out_by_whoever_uses_it(
    tmp_path: Path, field: str, change: int
) -> None:
    """The entries may rise all the same: from a wrong place records would be skipped."""
    log = open_log(tmp_path, index_interval_bytes=100)
    for number in range(12):
        log.append(batch(1, number, b"x" * 200), NOW)
    log.roll(NOW)
    log.append(batch(), NOW)
    expected = read_all(log, 0)
    log.close(NOW)
    path = tmp_path / "t-0" / f"{FIRST}.index"
    at = 5 * 8 + (0 if field == "offset" else 4)
    value = int.from_bytes(path.read_bytes()[at : at + 4], "big") + change
    harm(path, at, value.to_bytes(4, "big"))
    log = open_log(tmp_path, index_interval_bytes=100)
    assert read_all(log, 0) == expected
    for offset in range(12):
        assert split(log.reader.read(offset, 300, 0).data)[0].base_offset == offset


def test_what_an_earlier_process_wrote_is_checked_when_it_is_first_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = two_segments(tmp_path)
    size = stored(log)[0].size_bytes
    log.close(NOW)
    path = tmp_path / "t-0" / f"{FIRST}.log"
    harm(path, size * 3 - 5, b"?")
    log = open_log(tmp_path)
    assert log.reader.read(0, size * 2, 0).data
    for _ in range(3):
        with pytest.raises(DamagedLog) as damage:
            log.reader.read(2, size * 2, 0)
        assert damage.value.code is ErrorCode.CORRUPT_MESSAGE
        assert (damage.value.path, damage.value.position) == (str(path), size * 2)
    assert len([record for record in caplog.records if "Restore the file" in record.getMessage()]) == 1
    assert log.reader.read(3, size * 2, 0).data


@pytest.mark.parametrize("base_offset", [0, 1, 3, 4, 9, 2**40, -1])
def test_a_batch_that_claims_another_offset_is_not_served(tmp_path: Path, base_offset: int) -> None:
    """Base offsets lie outside the CRC: a reader who believed one would skip records or read some twice."""
    log = two_segments(tmp_path)
    size = stored(log)[0].size_bytes
    log.close(NOW)
    harm(tmp_path / "t-0" / f"{FIRST}.log", size * 2, base_offset.to_bytes(8, "big", signed=True))
    for max_bytes in (1, size * 2, 1 << 20):
        log = open_log(tmp_path)
        with pytest.raises(Refused, match="CORRUPT_MESSAGE"):
            for offset in range(4):
                log.reader.read(offset, max_bytes, 0)
        log.close(NOW)


def test_a_search_by_time_does_not_answer_with_what_lies_behind_a_bad_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(4):
        log.append(batch(timestamp_ms=NOW + number), NOW)
    log.roll(NOW)
    log.append(batch(timestamp_ms=NOW + 9), NOW)
    harm(tmp_path / "t-0" / f"{FIRST}.log", stored(log)[0].size_bytes + LENGTH_AT.start, b"\xff\xff")
    assert log.times.offset_for_timestamp(NOW) == (NOW, 0, 0)
    with pytest.raises(Refused, match="CORRUPT_MESSAGE"):
        log.times.offset_for_timestamp(NOW + 2)


def test_a_compacted_segment_that_went_bad_before_it_took_its_place_removes_nothing(tmp_path: Path) -> None:
    log = two_segments(tmp_path)
    log.close(NOW)
    path = tmp_path / "t-0" / f"{FIRST}.log"
    swap = path.with_name(path.name + ".swap")
    swap.write_bytes(path.read_bytes())
    harm(swap, LENGTH_AT.start, b"\xff")
    before = path.read_bytes()
    with pytest.raises(DamagedLog, match="swap is damaged at byte 0"):
        open_log(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("harmed", ["cut", "removed"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_segments_that_do_not_join_are_told_without_a_manifest_too(
    tmp_path: Path, harmed: str, clean: bool, number: int
) -> None:
    log = open_log(tmp_path)
    for segment in range(4):
        for sequence in range(3):
            log.append(batch(1, segment * 3 + sequence, b"x" * 50), NOW)
        log.roll(NOW)
    size = stored(log)[0].size_bytes
    log.close(NOW)
    path = tmp_path / "t-0" / f"{3 * (number + 1):020d}.log"
    if harmed == "cut":
        path.write_bytes(path.read_bytes()[: size * 2])
    else:
        path.unlink()
    with pytest.raises(DamagedLog):
        open_log(tmp_path, clean=clean)
    with pytest.raises(DamagedLog):
        open_log(tmp_path, clean=False)


def test_an_index_is_not_rebuilt_from_a_batch_that_claims_a_far_offset(tmp_path: Path) -> None:
    """An index has no room for it, and with it readers would be led past the batches that follow."""
    log = two_segments(tmp_path)
    expected = read_all(log)
    log.close(NOW)
    path, index = tmp_path / "t-0" / f"{FIRST}.log", tmp_path / "t-0" / f"{FIRST}.index"
    whole = path.read_bytes()
    harm(path, 0, (2**40).to_bytes(8, "big"))
    index.write_bytes(index.read_bytes() + b"\xff" * 8 if index.read_bytes() else b"\xff" * 16)
    for clean in (True, False):
        try:
            log = open_log(tmp_path, clean=clean)
        except DamagedLog:
            continue
        for _ in range(2):
            with pytest.raises(Refused, match="CORRUPT_MESSAGE"):
                log.reader.read(0, 1 << 20, 0)
        log.segments.close()
    path.write_bytes(whole)
    assert read_all(open_log(tmp_path)) == expected


def test_producer_state_is_not_rebuilt_from_a_batch_that_claims_a_wrong_offset(tmp_path: Path) -> None:
    """A retry would be answered with that offset."""
    log = two_segments(tmp_path)
    second = stored(log)[0].size_bytes
    log.close(NOW)
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    path = tmp_path / "t-0" / f"{FIRST}.log"
    harm(path, second, (2**40).to_bytes(8, "big"))
    with pytest.raises(DamagedLog) as damage:
        open_log(tmp_path)
    assert (damage.value.path, damage.value.position) == (str(path), second)


@pytest.mark.parametrize("after_a_stop", [True, False], ids=["nothing was written since", "written since"])
def test_leader_epochs_that_went_bad_between_a_stop_and_a_crash_are_rebuilt(tmp_path: Path, after_a_stop: bool) -> None:
    """The log is sound: to give it up, as for a log that is damaged, would lose every record."""
    log = two_segments(tmp_path)
    log.close(NOW)
    before = log.marks
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    whole = path.read_bytes()
    if not after_a_stop:
        log = open_log(tmp_path, expected=before)
        log.append(batch(1, 7, keys=[b"7"]), NOW)
        crash(log)
    harm(path, whole.index(b"0 0"), b"8")
    log = open_log(tmp_path, clean=False, recovery_point=0, before=before)
    assert log.end_offset == (7 if after_a_stop else 8)
    assert log.leader_epochs.entries == [(0, 0)]
    assert path.read_bytes() == whole
    log.close(NOW)


def test_a_batch_whose_leader_epoch_went_bad_is_not_taken_for_bad_leader_epochs(tmp_path: Path) -> None:
    """The CRC of a batch does not cover it."""
    log = open_log(tmp_path)
    for number in range(3):
        log.append(batch(1, number), NOW)
    size = stored(log)[0].size_bytes
    log.close(NOW)
    harm(tmp_path / "t-0" / f"{FIRST}.log", 2 * size + 12, (8).to_bytes(4, "big"))
    for epochs in ("0\n1\n0 0\n", "0\n1\n8 0\n"):
        (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text(epochs)
        with pytest.raises(DamagedLog, match="claims leader epoch"):
            open_log(tmp_path, clean=False, recovery_point=0, before=log.marks)

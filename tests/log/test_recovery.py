"""After a crash: a torn tail is cut, damage is reported, and what is rebuilt is what was there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from semel.log.files import Files
from semel.log.partition_log import PartitionLog
from semel.log.recovery import DamagedLog
from semel.log.snapshots import DamagedSnapshot, decode_snapshot
from tests.log.disk import (
    NOW,
    FaultyFiles,
    InlineFiles,
    Killed,
    batch,
    crash,
    end,
    open_below,
    open_log,
    read_all,
    send,
    stored,
)

LOG = "00000000000000000000.log"


def written(data: Path, count: int = 8, **changes: object) -> PartitionLog:
    """A log with plain, idempotent and transactional batches, one of them compressed, some aborted."""
    log = open_log(data, **changes)
    for number in range(count):
        log.append(batch(1, number * 2, b"x%d" % number, b"y", codec=number % 2), NOW)
        send(log, 7, number, b"t%d" % number)
        end(log, 7, commit=number % 2 == 0)
    return log


def copied(data: Path, target: Path) -> Path:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(data, target)
    return target


def test_a_log_cut_at_any_byte_of_its_last_three_batches_keeps_every_whole_batch(tmp_path: Path) -> None:
    """C2, C3: what was not acknowledged is absent or whole"""
    log = written(tmp_path / "a")
    crash(log)
    found = stored(log)
    crash(log)
    path = tmp_path / "a" / "t-0" / LOG
    whole = path.read_bytes()
    ends = [0]
    for each in found:
        ends.append(ends[-1] + each.size_bytes)
    for cut in range(ends[-4], len(whole)):
        data = copied(tmp_path / "a", tmp_path / "b")
        (data / "t-0" / LOG).write_bytes(whole[:cut])
        again = open_log(data, clean=False)
        kept = sum(1 for end_of in ends[1:] if end_of <= cut)
        assert again.end_offset == found[kept - 1].next_offset
        assert (data / "t-0" / LOG).read_bytes() == whole[: ends[kept]]
        assert [each.base_offset for each in stored(again)] == [each.base_offset for each in found[:kept]]
        again.append(batch(), NOW)
        crash(again)


def test_a_bit_flipped_anywhere_before_the_last_batches_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    """C3: damage before the tail is never silently skipped"""
    log = written(tmp_path / "a", 4)
    found = stored(log)
    crash(log)
    path = tmp_path / "a" / "t-0" / LOG
    whole = path.read_bytes()
    safe = len(whole) - sum(each.size_bytes for each in found[-3:])
    open_before = open_below(tmp_path)
    for position in range(safe):
        harmed = bytearray(whole)
        harmed[position] ^= 1 << (position % 8)
        path.write_bytes(harmed)
        with pytest.raises(DamagedLog) as damage:
            open_log(tmp_path / "a", clean=False)
        assert damage.value.position <= position
        assert path.read_bytes() == harmed
    assert open_below(tmp_path) == open_before, "a log that could not be opened left files open"
    path.write_bytes(whole)
    assert open_log(tmp_path / "a", clean=False).end_offset == log.end_offset


def test_a_bit_flipped_in_the_last_batch_cuts_it_or_is_reported(tmp_path: Path) -> None:
    log = written(tmp_path / "a", 2)
    last = stored(log)[-1]
    crash(log)
    path = tmp_path / "a" / "t-0" / LOG
    whole = path.read_bytes()
    start = len(whole) - last.size_bytes
    outcomes = set()
    for position in range(start, len(whole)):
        harmed = bytearray(whole)
        harmed[position] ^= 1 << (position % 8)
        path.write_bytes(harmed)
        try:
            again = open_log(copied(tmp_path / "a", tmp_path / "b"), clean=False)
        except DamagedLog:
            outcomes.add("reported")
            assert position - start < 16, "only what no CRC covers can be whole and wrong"
        else:
            outcomes.add("cut")
            assert again.end_offset == last.base_offset
            crash(again)
    assert outcomes == {"reported", "cut"}


def test_damage_in_what_was_fsynced_is_reported_even_at_the_end(tmp_path: Path) -> None:
    """C1: what was acknowledged after fsync is there, or somebody is told"""
    log = written(tmp_path)
    flushed = log.flusher.flush()
    crash(log)
    path = tmp_path / "t-0" / LOG
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedLog, match="safely on disk"):
        open_log(tmp_path, clean=False, recovery_point=flushed)


def test_a_torn_segment_with_nothing_valid_after_it_is_the_end_of_the_log(tmp_path: Path) -> None:
    """A crash of the machine right after a roll: the older segment lost its tail, the newer one is still empty."""
    log = written(tmp_path)
    end_offset, last = log.end_offset, stored(log)[-1]
    log.roll(NOW)
    crash(log)
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    path = tmp_path / "t-0" / LOG
    path.write_bytes(path.read_bytes()[:-5])
    again = open_log(tmp_path, clean=False)
    assert again.end_offset == last.base_offset < end_offset
    assert len(again.segments) == 1
    assert len(list((tmp_path / "t-0").glob("*.log"))) == 1


def test_a_torn_segment_with_valid_batches_in_the_next_one_is_damage(tmp_path: Path) -> None:
    log = written(tmp_path)
    log.roll(NOW)
    log.append(batch(), NOW)
    crash(log)
    path = tmp_path / "t-0" / LOG
    path.write_bytes(path.read_bytes()[:-5])
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    with pytest.raises(DamagedLog, match="valid batches follow"):
        open_log(tmp_path, clean=False)


def test_a_report_of_damage_says_where_and_what_to_do(tmp_path: Path) -> None:
    log = written(tmp_path)
    crash(log)
    path = tmp_path / "t-0" / LOG
    harmed = bytearray(path.read_bytes())
    harmed[70] ^= 255
    path.write_bytes(harmed)
    with pytest.raises(DamagedLog) as damage:
        open_log(tmp_path, clean=False)
    for words in (str(path), "byte 0", "Nothing was changed", "Restore the file"):
        assert words in str(damage.value)


class CountingFiles(InlineFiles):
    """Knows how many bytes of logs were read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        data = super().read_at(descriptor, size, position)
        self.bytes_read += len(data)
        return data


def test_a_clean_start_does_not_scan(tmp_path: Path) -> None:
    small = {"segment_bytes": 200_000}
    log = open_log(tmp_path, **small)
    for number in range(600):
        log.append(batch(1, number, b"x" * 1000), NOW)
    log.close(NOW)
    files = CountingFiles()
    again = open_log(tmp_path, files=files, **small)
    assert again.end_offset == 600
    assert files.bytes_read < 20_000
    assert again.producers.facts() == log.producers.facts()


def test_after_a_crash_only_the_segments_since_the_last_snapshot_are_read(tmp_path: Path) -> None:
    small = {"segment_bytes": 200_000}
    log = open_log(tmp_path, **small)
    for number in range(600):
        log.append(batch(1, number, b"x" * 1000), NOW)
    crash(log)
    files = CountingFiles()
    again = open_log(tmp_path, clean=False, files=files, **small)
    assert again.end_offset == 600
    assert files.bytes_read <= 210_000
    assert again.producers.facts() == log.producers.facts()


def test_a_snapshot_is_written_only_after_what_it_vouches_for_is_on_disk(tmp_path: Path) -> None:
    """K-9892: snapshots are fsynced, and so is everything below them"""
    files = FaultyFiles()
    log = written(tmp_path, files=files)
    log.roll(NOW)
    log_synced = files.synced.index(str(tmp_path / "t-0" / LOG))
    assert log_synced < files.synced.index(str(tmp_path / "t-0" / f"{log.end_offset:020d}.snapshot.tmp"))


def test_two_snapshots_are_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(5):
        log.append(batch(1, number), NOW)
        log.roll(NOW)
    assert [path.name for path in sorted((tmp_path / "t-0").glob("*.snapshot"))] == [
        "00000000000000000004.snapshot",
        "00000000000000000005.snapshot",
    ]


def test_a_missing_index_is_rebuilt_at_a_clean_start_too(tmp_path: Path) -> None:
    small = {"segment_bytes": 2000, "index_interval_bytes": 100}
    log = written(tmp_path, 20, **small)
    log.close(NOW)
    directory = tmp_path / "t-0"
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".snapshot"}
    for victim in [path for path in directory.iterdir() if path.suffix in (".index", ".timeindex")]:
        victim.unlink()
    for victim in directory.glob("*.txnindex"):
        victim.write_bytes(victim.read_bytes()[:-1])
    again = open_log(tmp_path, **small)
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".snapshot"} == before
    assert again.producers.facts() == log.producers.facts()
    assert read_all(again, 1) == read_all(log, 1)


def test_recovery_may_be_killed_at_any_point(tmp_path: Path) -> None:
    """C6"""
    small = {"segment_bytes": 700, "index_interval_bytes": 100}
    log = written(tmp_path / "a", **small)
    facts, expected = log.producers.facts(), read_all(log, 1)
    crash(log)
    path = sorted((tmp_path / "a" / "t-0").glob("*.log"))[-1]
    with path.open("ab") as file:
        file.write(b"\0" * 30)
    for snapshot in (tmp_path / "a" / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    step, killed = 0, True
    while killed:
        step += 1
        data = copied(tmp_path / "a", tmp_path / "b")
        files = FaultyFiles()
        files.error, files.fail_at, files.torn = Killed(), step, 0.5
        try:
            crash(open_log(data, clean=False, files=files, **small))
            killed = False
        except Killed:
            killed = True
        again = open_log(data, clean=False, **small)
        assert again.producers.facts() == facts
        assert read_all(again, 1) == expected
        crash(again)
    assert step > 10


def test_a_marker_only_producer_survives_a_restart_with_its_coordinator_epoch(tmp_path: Path) -> None:
    """K-9144"""
    log = open_log(tmp_path)
    end(log, 5, commit=True, epoch=3, coordinator=9)
    log.close(NOW)
    again = open_log(tmp_path)
    assert again.producers.facts() == log.producers.facts()
    entry = again.producers.entries[5]
    assert (entry.producer_epoch, entry.coordinator_epoch, entry.last_timestamp_ms) == (3, 9, NOW)


def test_after_a_restart_each_of_the_last_five_is_still_recognised(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(8):
        log.append(batch(1, sequence), NOW)
    log.close(NOW)
    again = open_log(tmp_path)
    for sequence in range(3, 8):
        answer = again.append(batch(1, sequence), NOW)
        assert answer.duplicate and answer.base_offset == sequence


def test_a_snapshot_names_the_producers_as_kafka_would_read_them_and_a_changed_one_is_not_believed(
    tmp_path: Path,
) -> None:
    """K-9892"""
    log = open_log(tmp_path)
    for sequence in range(8):
        log.append(batch(1, sequence), NOW)
    log.close(NOW)
    path = tmp_path / "t-0" / "00000000000000000008.snapshot"
    (entry,) = decode_snapshot(path.read_bytes())
    assert (entry.producer_id, entry.last_sequence, entry.last_offset) == (1, 7, 7)
    changed = bytearray(path.read_bytes())
    changed[-30] ^= 1
    path.write_bytes(changed)
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(path.read_bytes())
    again = open_log(tmp_path)
    assert again.producers.facts() == log.producers.facts()
    again.close(NOW)


def test_expired_producers_do_not_come_back_from_a_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(1, 0), NOW)
    send(log, 2, 0)
    log.close(NOW)
    again = open_log(tmp_path, now_ms=NOW + 2 * 86_400_000)
    assert set(again.producers.entries) == {2}


def test_a_torn_checkpoint_of_leader_epochs_is_written_anew_without_a_batch(tmp_path: Path) -> None:
    """A power loss can tear it right after it was made. Apache Kafka does not start with such a file."""
    crash(open_log(tmp_path))
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n1\n0 \0\0")
    log = open_log(tmp_path, clean=False)
    assert path.read_bytes() == b"0\n0\n"
    log.append(batch(), NOW)
    assert path.read_bytes() == b"0\n1\n0 0\n"


def test_leader_epochs_are_found_again_from_the_batches(tmp_path: Path) -> None:
    """L5: the epoch cache equals a scan"""
    log = open_log(tmp_path)
    for epoch in (0, 3, 7):
        log.begin_leader_epoch(epoch)
        log.append(batch(), NOW)
    log.flusher.flush()
    crash(log)
    (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink()
    again = open_log(tmp_path, clean=False)
    assert again.leader_epochs.entries == [(0, 0), (3, 1), (7, 2)]
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n3\n0 0\n3 1\n7 2\n"
    assert again.offset_for_leader_epoch(3) == (3, 2)
    assert again.offset_for_leader_epoch(5) == (3, 2)
    assert again.offset_for_leader_epoch(7) == (7, 3)
    assert again.offset_for_leader_epoch(8) == (-1, -1)


def test_background_work_is_done_when_a_log_closes(tmp_path: Path) -> None:
    log = open_log(tmp_path, files=Files())
    for sequence in range(4):
        log.append(batch(1, sequence), NOW)
        log.roll(NOW)
    log.close(NOW)
    assert log.flusher.recovery_point == 4
    assert log.flusher.snapshots == [3, 4]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", ["nothing", "half of the batches", "no file", "no later segment"])
def test_a_log_that_ends_before_what_was_safely_on_disk_is_reported(tmp_path: Path, left: str, clean: bool) -> None:
    """C1: a file cut between two batches looks whole, yet what was acknowledged after fsync is not there"""
    log = written(tmp_path)
    half = stored(log)[: len(stored(log)) // 2]
    if left == "no later segment":
        log.roll(NOW)
        log.append(batch(), NOW)
    safe = log.flusher.flush()
    log.close(NOW)
    path = tmp_path / "t-0" / LOG
    if left == "nothing":
        path.write_bytes(b"")
    elif left == "no file":
        path.unlink()
    elif left == "no later segment":
        path.with_name(f"{safe - 1:020d}.log").unlink()
    else:
        path.write_bytes(path.read_bytes()[: sum(each.size_bytes for each in half)])
    before = sorted(each.name for each in path.parent.glob("*.snapshot"))
    with pytest.raises(DamagedLog, match=f"everything below offset {safe} was safely on disk"):
        open_log(tmp_path, clean=clean, recovery_point=safe)
    assert sorted(each.name for each in path.parent.glob("*.snapshot")) == before
    # What the report says to do if nobody has a copy.
    assert open_log(tmp_path, clean=False).end_offset < safe


def test_a_log_that_ends_before_its_deleted_start_begins_anew_at_that_start(tmp_path: Path) -> None:
    """A power cut took the tail, the start was durable: giving its offsets again would delete new records later."""
    log = written(tmp_path)
    end_offset = log.end_offset
    assert log.retention.delete_records_before(-1) == end_offset
    crash(log)
    path = tmp_path / "t-0" / LOG
    path.write_bytes(path.read_bytes()[:-5])
    for _ in range(2):
        again = open_log(tmp_path, clean=False)
        assert (again.log_start_offset, again.end_offset) == (end_offset, end_offset)
        crash(again)
    again = open_log(tmp_path, clean=False)
    assert again.append(batch(1, 0, b"new"), NOW).base_offset == end_offset
    again.close(NOW)
    assert [record.value for record in read_all(open_log(tmp_path))] == [b"new"]


def test_gaps_of_a_compaction_are_no_damage_after_the_topic_stopped_being_compacted(tmp_path: Path) -> None:
    log = open_log(tmp_path, cleanup_policy="compact")
    for number in range(4):
        log.append(batch(-1, 0, b"%d" % number, keys=[b"%d" % (number % 2)]), NOW)
    log.roll(NOW)
    log.cleaner.compact(NOW, force=True)
    log.append(batch(), NOW)
    log.close(NOW)
    expected = read_all(log)
    (tmp_path / "t-0" / "00000000000000000000.index").unlink()
    assert read_all(open_log(tmp_path, cleanup_policy="delete")) == expected


def test_however_often_a_log_was_stopped_a_crash_costs_its_last_segment_only(tmp_path: Path) -> None:
    small = {"segment_bytes": 200_000}
    log = open_log(tmp_path, **small)
    for number in range(600):
        log.append(batch(1, number, b"x" * 1000), NOW)
    for number in range(600, 605):
        log.close(NOW)
        assert len(list((tmp_path / "t-0").glob("*.snapshot"))) <= 2
        log = open_log(tmp_path, **small)
        log.append(batch(1, number), NOW)
    crash(log)
    files = CountingFiles()
    again = open_log(tmp_path, clean=False, files=files, **small)
    assert files.bytes_read <= 210_000
    assert again.producers.facts() == log.producers.facts()


@pytest.mark.parametrize("name", ["x.log.swap", "5.log", "x.snapshot", "0000000000000000000x.log", "²" * 20 + ".log"])
def test_a_file_that_is_none_of_a_logs_is_left_alone(tmp_path: Path, name: str) -> None:
    crash(written(tmp_path))
    (tmp_path / "t-0" / name).write_text("somebody's notes")
    assert open_log(tmp_path, clean=False).end_offset == 32


def test_batches_from_before_the_first_known_leader_epoch_are_no_damage(tmp_path: Path) -> None:
    """Kafka forgets epochs up to where DeleteRecords moved the start, which may be inside a segment."""
    log = written(tmp_path)
    crash(log)
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 9\n")
    assert open_log(tmp_path, clean=False).end_offset == log.end_offset


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_a_damaged_checkpoint_of_the_data_directory_is_told_and_done_without(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = written(tmp_path)
    log.close(NOW)
    (tmp_path / name).write_text("0\n7\nt 0")
    again = open_log(tmp_path, clean=False)
    assert again.end_offset == log.end_offset
    assert any(name in record.getMessage() for record in caplog.records)
    assert again.retention.delete_records_before(3) == 3

"""What a reader is given: whole batches, never past its limit, with the aborts of exactly what it was served."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from semel.errors import Refused
from semel.log.files import Buffer, Files
from semel.log.partition_log import PartitionLog
from semel.records.batch import build, split
from tests.log.disk import NOW, FaultyFiles, InlineFiles, batch, crash, end, open_below, open_log, read_all, send


def offsets(data: bytes) -> list[int]:
    return [found.base_offset for found in split(data)]


def test_a_read_is_cut_at_the_end_of_a_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=100)
    sizes = [log.append(batch(-1, 0, b"x" * 50 * (number % 3 + 1)), NOW) for number in range(20)]
    assert len(sizes) == 20
    for max_bytes in range(1, log.size_bytes + 50, 37):
        answer = log.reader.read(0, max_bytes, 0)
        found = split(answer.data)
        assert len(answer.data) <= max_bytes or len(found) == 1
        assert offsets(answer.data) == list(range(len(found)))


def test_at_least_one_batch_is_served_however_small_the_limit_unless_the_reader_says_otherwise(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(-1, 0, b"x" * 5000), NOW)
    log.append(batch(), NOW)
    assert offsets(log.reader.read(0, 1, 0).data) == [0]
    assert log.reader.read(0, 1, 0, at_least_one=False).data == b""


def test_read_committed_stops_at_the_first_open_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(), NOW)
    send(log, 7, 0, b"open")
    log.append(batch(), NOW)
    answer = log.reader.read(0, 1 << 20, 1)
    assert offsets(answer.data) == [0]
    assert (answer.last_stable_offset, answer.high_watermark) == (1, 3)
    assert offsets(log.reader.read(0, 1 << 20, 0).data) == [0, 1, 2]
    assert log.reader.read(1, 1 << 20, 1).data == b""
    end(log, 7, commit=True)
    assert offsets(log.reader.read(0, 1 << 20, 1).data) == [0, 1, 2, 3]


def test_a_reader_never_passes_the_high_watermark(tmp_path: Path) -> None:
    """K-9835, K-9807: neither an append nor a moving watermark shows through a read"""
    log = open_log(tmp_path)
    log.high_watermark_follows_end = False
    for number in range(4):
        log.append(batch(1, number), NOW)
    assert log.reader.read(0, 1 << 20, 0).data == b""
    log.advance_high_watermark(2)
    assert offsets(log.reader.read(0, 1 << 20, 0).data) == [0, 1]
    assert offsets(log.reader.read(0, 1 << 20, 1).data) == [0, 1]
    log.advance_high_watermark(1)
    assert log.high_watermark == 2
    log.advance_high_watermark(99)
    assert log.high_watermark == 4


class AppendsWhileReading(InlineFiles):
    """Another request is served between the decision what to read and the read itself."""

    log: PartitionLog | None = None

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        log, self.log = self.log, None
        if log is not None:
            log.append(batch(), NOW)
            end(log, 7, commit=False)
        return super().read_at(descriptor, size, position)


def test_what_is_appended_during_a_read_is_not_in_it(tmp_path: Path) -> None:
    files = AppendsWhileReading()
    log = open_log(tmp_path, files=files)
    log.append(batch(), NOW)
    send(log, 7, 0, b"open")
    files.log = log
    answer = log.reader.read(0, 1 << 20, 1)
    assert offsets(answer.data) == [0]
    assert answer.last_stable_offset == 1


def test_an_ended_transaction_stays_out_of_sight_until_its_marker_is_replicated(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.high_watermark_follows_end = False
    send(log, 7, 0, b"t")
    marker = end(log, 7, commit=True)
    log.advance_high_watermark(marker)
    assert log.last_stable_offset == 0
    log.advance_high_watermark(marker + 1)
    assert log.last_stable_offset == marker + 1


def test_the_aborts_of_exactly_the_served_range_come_with_it(tmp_path: Path) -> None:
    """K-5376: an empty list says there are none; a missing one would hand out aborted records"""
    log = open_log(tmp_path)
    send(log, 7, 0, b"aborted")
    send(log, 8, 0, b"aborted later")
    end(log, 7, commit=False)
    send(log, 9, 0, b"committed")
    end(log, 9, commit=True)
    end(log, 8, commit=False)
    send(log, 7, 1, b"aborted again")
    end(log, 7, commit=False)
    log.append(batch(), NOW)
    everything = log.reader.read(0, 1 << 20, 1)
    assert everything.aborted == [(7, 0), (8, 1), (7, 6)]
    one = len(split(everything.data)[0].data)
    assert log.reader.read(0, one, 1).aborted == [(7, 0)]
    assert log.reader.read(3, 1, 1).aborted == [(8, 1)]
    assert log.reader.read(8, 1, 1).aborted == []
    assert log.reader.read(9, 1, 1).aborted == []
    assert log.reader.read(0, 1 << 20, 0).aborted is None


def test_an_abort_whose_marker_is_segments_away_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0, b"aborted")
    for _ in range(3):
        log.roll(NOW)
        log.append(batch(), NOW)
    end(log, 7, commit=False)
    assert log.reader.read(0, 1, 1).aborted == [(7, 0)]
    assert log.reader.read(1, 1, 1).aborted == [(7, 0)]
    assert [record.offset for record in read_all(log, 1)] == [1, 2, 3]
    log.close(NOW)
    assert open_log(tmp_path).reader.read(0, 1, 1).aborted == [(7, 0)]


def test_a_transaction_whose_late_batch_was_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    """K-14884 through the log: a marker lands between verification and append"""
    log = open_log(tmp_path)
    guard = log.start_verification(7, 0, 0)
    end(log, 7, commit=False)
    with pytest.raises(Refused, match="INVALID_TXN_STATE"):
        log.append(batch(7, 0, b"late", transactional=True), NOW, guard=guard)
    assert log.last_stable_offset == log.end_offset == 1


def test_a_coordinators_batch_may_be_verified_too(tmp_path: Path) -> None:
    """K-15449"""
    log = open_log(tmp_path)
    data = build([(b"k", b"v")], producer_id=7, producer_epoch=0, transactional=True, timestamp_ms=NOW)
    guard = log.start_verification(7, 0, -1)
    end(log, 7, commit=False)
    with pytest.raises(Refused, match="INVALID_TXN_STATE"):
        log.append_internal(data, NOW, guard=guard)
    log.append_internal(data, NOW, guard=log.start_verification(7, 0, -1))
    assert log.producers.open_transactions == {1: 7}


def test_descriptors_of_old_segments_are_given_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(12):
        log.append(batch(1, number), NOW)
        log.roll(NOW)
    read_all(log)
    assert sum(segment.is_open for segment in log.segments) <= 9
    assert len(read_all(log)) == 12


@pytest.mark.parametrize("fails", [False, True])
def test_a_closed_log_has_given_back_every_descriptor(tmp_path: Path, fails: bool) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files, segment_bytes=1_000)
    for number in range(12):
        send(log, 1, number, b"x" * 300)
    end(log, 1, commit=False)
    read_all(log)
    log.retention.delete_records_before(5)
    log.cleaner.compact(NOW)
    assert open_below(tmp_path)
    files.fail_at = files.changes + 1 if fails else None
    log.close(NOW)
    assert open_below(tmp_path) == []


def test_a_read_is_one_call_when_a_consumer_goes_on_where_it_was(tmp_path: Path) -> None:
    class Counting(InlineFiles):
        reads = 0

        def read_at(self, descriptor: int, size: int, position: int) -> bytes:
            self.reads += 1
            return super().read_at(descriptor, size, position)

    files = Counting()
    log = open_log(tmp_path, files=files)
    for number in range(100):
        log.append(batch(1, number, b"x" * 3000), NOW)
    offset, calls = 0, []
    while offset < log.end_offset:
        files.reads = 0
        offset = split(log.reader.read(offset, 20_000, 1).data)[-1].next_offset
        calls.append(files.reads)
    assert set(calls[1:]) == {1}


def test_an_append_is_one_write_and_leaves_a_read_only_buffer_as_it_was(tmp_path: Path) -> None:
    class Counting(InlineFiles):
        writes = 0

        def write_at(self, descriptor: int, data: Buffer, position: int) -> None:
            self.writes += 1
            super().write_at(descriptor, data, position)

        def write_parts_at(self, descriptor: int, parts: object, position: int) -> None:
            self.writes += 1
            Files.write_parts_at(self, descriptor, parts, position)  # type: ignore[arg-type]

    files = Counting()
    log = open_log(tmp_path, files=files)
    log.append(batch(1, 0), NOW)
    for kind in (bytes, bytearray, lambda data: memoryview(bytearray(data)), memoryview):
        data = kind(batch(1, log.end_offset))
        files.writes = 0
        log.append(data, NOW)
        assert files.writes == 1
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3, 4]
    crash(log)
    assert open_log(tmp_path, clean=False).end_offset == 5


# What is let in


@pytest.mark.parametrize(
    ("code", "data", "changes"),
    [
        ("INVALID_RECORD", batch() + batch(), {}),
        ("INVALID_RECORD", build([(b"k", b"v")], control=True, timestamp_ms=NOW), {}),
        ("INVALID_RECORD", build([(b"k", b"v")], base_offset=5, timestamp_ms=NOW), {}),
        ("CORRUPT_MESSAGE", batch()[:-1], {}),
        ("CORRUPT_MESSAGE", batch()[:-1] + b"?", {}),
        ("INVALID_RECORD", batch(keys=[None]), {"cleanup_policy": "compact"}),
        ("MESSAGE_TOO_LARGE", batch(-1, 0, b"x" * 1000), {"max_message_bytes": 1000}),
        ("RECORD_LIST_TOO_LARGE", batch(-1, 0, b"x" * 1000), {"segment_bytes": 1000}),
        ("INVALID_TIMESTAMP", batch(timestamp_ms=NOW + 3_600_001), {}),
        ("INVALID_TIMESTAMP", batch(timestamp_ms=NOW - 1001), {"message_timestamp_before_max_ms": 1000}),
    ],
)
def test_what_a_topic_does_not_take_is_refused_whole(
    tmp_path: Path, code: str, data: bytes, changes: dict[str, object]
) -> None:
    log = open_log(tmp_path, **changes)
    with pytest.raises(Refused, match=code):
        log.append(data, NOW)
    assert (log.end_offset, log.size_bytes, len(log.producers)) == (0, 0, 0)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_the_brokers_clock_stands_in_records_where_the_topic_wants_it(tmp_path: Path, kind: type) -> None:
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime")
    answer = log.append(kind(batch(1, 0, timestamp_ms=5)), NOW)
    assert answer.append_time_ms == NOW
    assert [record.timestamp for record in read_all(log)] == [NOW]
    retried = log.append(kind(batch(1, 0, timestamp_ms=5)), NOW + 9)
    assert retried.duplicate and retried.append_time_ms == NOW
    crash(log)
    assert open_log(tmp_path, clean=False).end_offset == 1


def test_records_are_with_topic_codec_where_the_topic_wants_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, compression_type="zstd")
    log.append(batch(1, 0, b"a" * 500, b"b", codec=1), NOW)
    (found,) = split(log.reader.read(0, 1 << 20, 0).data)
    assert (found.codec, found.producer_id, found.base_sequence, found.record_count) == (4, 1, 0, 2)
    assert [record.value for record in read_all(log)] == [b"a" * 500, b"b"]


@pytest.mark.parametrize(
    ("codec", "quick", "thorough"), [("gzip", 1, 9), ("lz4", 9, 17), ("zstd", -5, 19)], ids=["gzip", "lz4", "zstd"]
)
def test_the_topic_decides_how_hard_its_codec_tries(tmp_path: Path, codec: str, quick: int, thorough: int) -> None:
    value = b" ".join(b"%d shillings and %d pence" % (n * n % 97, n % 12) for n in range(4000))
    sizes = []
    for level in (quick, thorough):
        settings = {"compression_type": codec, f"compression_{codec}_level": level}
        log = open_log(tmp_path / str(level), **settings)
        log.append(batch(1, 0, value), NOW)
        assert [record.value for record in read_all(log)] == [value]
        sizes.append(log.size_bytes)
    assert sizes[1] < sizes[0]


# By time


def test_the_first_record_as_late_as_a_time_is_found_wherever_it_lies(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2000, index_interval_bytes=100)
    times = [NOW + (number * 37) % 50 * 10 for number in range(60)]
    for at_ms in times:
        log.append(batch(timestamp_ms=at_ms), NOW)
    for asked in range(NOW - 5, NOW + 520, 7):
        expected = next((offset for offset, at_ms in enumerate(times) if at_ms >= asked), None)
        found = log.times.offset_for_timestamp(asked)
        assert (found and found.offset) == expected
    latest = log.times.max_timestamp_offset()
    assert latest is not None and (latest.timestamp_ms, latest.offset) == (max(times), times.index(max(times)))
    log.close(NOW)
    again = open_log(tmp_path, segment_bytes=2000, index_interval_bytes=100)
    assert again.times.max_timestamp_offset() == latest


def test_within_a_batch_the_record_itself_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(build([(b"k", b"v", (), NOW + i) for i in (0, 5, 9, 5)], timestamp_ms=NOW), NOW)
    assert log.times.offset_for_timestamp(NOW + 4) == (NOW + 5, 1, 0)
    assert log.times.max_timestamp_offset() == (NOW + 9, 2, 0)
    assert log.times.offset_for_timestamp(NOW + 10) is None
    assert open_log(tmp_path / "empty").times.max_timestamp_offset() is None


def test_the_latest_by_time_is_looked_for_among_what_was_not_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for at_ms in (NOW + 9, NOW + 1, NOW + 5, NOW + 3):
        log.append(batch(timestamp_ms=at_ms), NOW)
    assert log.times.max_timestamp_offset() == (NOW + 9, 0, 0)
    log.retention.delete_records_before(1)
    assert log.times.max_timestamp_offset() == (NOW + 5, 2, 0)
    log.roll(NOW)
    log.append(batch(timestamp_ms=NOW + 4), NOW)
    assert log.times.max_timestamp_offset() == (NOW + 5, 2, 0)
    log.retention.delete_records_before(4)
    assert log.times.max_timestamp_offset() == (NOW + 4, 4, 0)
    log.retention.delete_records_before(5)
    assert log.times.max_timestamp_offset() is None


def test_what_is_only_found_is_what_would_have_been_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=300)
    for number in range(20):
        send(log, 7, 3 * number, b"x" * 100 * (number % 3 + 1), b"y", b"z")
        log.append(batch(-1, 0, b"x" * 50 * (number % 4 + 1)), NOW)
        if number < 18:
            end(log, 7, commit=number % 2 == 0)
    extents = 0
    for isolation in (0, 1):
        for offset in range(0, log.end_offset, 7):
            for max_bytes in (1, 200, 1000, 2345, 1 << 20):
                for at_least_one in (True, False):
                    whole = log.reader.read(offset, max_bytes, isolation, at_least_one=at_least_one)
                    found = log.reader.read(
                        offset, max_bytes, isolation, at_least_one=at_least_one, at_once_bytes=150
                    )
                    data = found.data if found.extent is None else found.extent.read()
                    assert data == whole.data
                    assert found._replace(data=whole.data, extent=None) == whole
                    assert found.extent is None or found.extent.size_bytes == len(whole.data)
                    extents += found.extent is not None
    assert extents > 100


def test_what_was_found_can_be_read_though_its_segment_is_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2000)
    while len(log.segments) < 3:
        log.append(batch(-1, 0, b"x" * 500), NOW)
    whole = log.reader.read(0, 1 << 20, 0)
    before = len(open_below(tmp_path))
    found = log.reader.read(0, 1 << 20, 0, at_once_bytes=10)
    assert found.extent is not None
    for removed in log.segments.replace(0, 1, []):
        for path in removed.paths():
            log.files.remove(path)
    # What is opened now must not be taken for it.
    with open(tmp_path / "other", "wb") as other:
        other.write(b"o" * 5000)
        other.flush()
        assert found.extent.read() == whole.data
    del found
    assert len(open_below(tmp_path)) <= before, "its descriptor is given back"


def test_what_was_cut_off_since_it_was_found_is_not_served(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(4):
        log.append(batch(-1, 0, b"x" * 500), NOW)
    extent = log.reader.read(0, 1 << 20, 0, at_once_bytes=10).extent
    log.truncate_to(2, NOW)
    assert extent is not None
    assert extent.read() is None


def test_bytes_of_an_earlier_process_are_checked_and_never_only_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(4):
        log.append(batch(-1, 0, b"x" * 500), NOW)
    size = log.size_bytes
    log.close(NOW)
    again = open_log(tmp_path)
    assert again.reader.read(0, 10, 0, at_once_bytes=20).extent is None
    assert again.reader.read(0, 1 << 20, 0, at_once_bytes=20).extent is None, "this looks into it"
    extent = again.reader.read(0, 1 << 20, 0, at_once_bytes=20).extent
    assert extent is not None
    assert extent.size_bytes == size
    del extent
    assert len(open_below(tmp_path)) == 1, "its descriptor is given back"


class NoMoreDescriptors(InlineFiles):
    def duplicate(self, descriptor: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")


def test_without_a_further_descriptor_all_is_read_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path, files=NoMoreDescriptors())
    for _ in range(4):
        log.append(batch(-1, 0, b"x" * 500), NOW)
    for max_bytes in (10, 1500, 1 << 20):
        found = log.reader.read(0, max_bytes, 0, at_once_bytes=10)
        assert found.extent is None and found.data == log.reader.read(0, max_bytes, 0).data != b""

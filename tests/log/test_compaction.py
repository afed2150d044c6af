"""Compaction keeps the last value of every key and everything exactly-once still needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.errors import Refused
from semel.log.compaction import BYTES_PER_KEY, Cancelled, Compaction
from semel.log.partition_log import PartitionLog
from semel.records.batch import read_records
from semel.records.markers import read_marker
from tests.log.disk import NOW, FaultyFiles, InlineFiles, Killed, batch, crash, end, open_log, read_all, scratch, stored

DAY_MS = 86_400_000
COMPACT = {"cleanup_policy": "compact", "delete_retention_ms": DAY_MS, "segment_bytes": 100_000}


def put(log: PartitionLog, *pairs: tuple[bytes, bytes | None], producer_id: int = -1, sequence: int = 0) -> None:
    values = [value for _, value in pairs]
    log.append(batch(producer_id, sequence, *values, keys=[key for key, _ in pairs]), NOW)


def put_in_transaction(
    log: PartitionLog, producer_id: int, sequence: int, *pairs: tuple[bytes, bytes | None], epoch: int = 0
) -> None:
    guard = log.start_verification(producer_id, epoch, sequence)
    data = batch(
        producer_id,
        sequence,
        *[value for _, value in pairs],
        keys=[key for key, _ in pairs],
        transactional=True,
        epoch=epoch,
    )
    log.append(data, NOW, guard=guard)


def compact(log: PartitionLog, now_ms: int = NOW, *, roll: bool = True) -> None:
    """Everything so far is compacted."""
    if roll:
        log.roll(now_ms)
    log.cleaner.compact(now_ms, force=True)


def compact_a_bit(log: PartitionLog, keys: int, now_ms: int = NOW) -> Compaction | None:
    """One round with memory for this many keys."""
    compaction = log.cleaner.plan(now_ms, force=True, dedupe_buffer_bytes=keys * BYTES_PER_KEY)
    if compaction is not None:
        compaction.run()
        compaction.apply()
    return compaction


def contents(log: PartitionLog, isolation: int = 1) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in read_all(log, isolation)]


def markers(log: PartitionLog) -> list[tuple[int, bool]]:
    return [(found.base_offset, read_marker(found).commit) for found in stored(log) if found.is_control]


def test_the_last_value_of_every_key_stays_at_its_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, **COMPACT)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", b"2"), (b"c", b"1"))
    put(log, (b"a", b"3"))
    compact(log)
    assert contents(log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3")]
    assert log.end_offset == 5
    put(log, (b"b", b"2"))
    assert log.end_offset == 6


def test_the_active_segment_is_never_compacted(tmp_path: Path) -> None:
    log = open_log(tmp_path, **COMPACT)
    put(log, (b"a", b"1"))
    log.roll(NOW)
    put(log, (b"a", b"2"))
    put(log, (b"a", b"3"))
    compact(log, roll=False)
    assert contents(log) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]


def test_compaction_stops_at_the_last_stable_offset_and_at_the_high_watermark(tmp_path: Path) -> None:
    """K-13194"""
    log = open_log(tmp_path, **COMPACT)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(NOW)
    put_in_transaction(log, 7, 0, (b"a", b"open"))
    log.roll(NOW)
    put(log, (b"a", b"3"))
    compact(log)
    assert contents(log, 0) == [(1, b"a", b"2"), (2, b"a", b"open"), (3, b"a", b"3")]
    plain = open_log(tmp_path / "b", **COMPACT)
    put(plain, (b"a", b"1"))
    put(plain, (b"a", b"2"))
    plain.roll(NOW)
    plain.high_watermark = 1
    assert plain.cleaner.compact(NOW, force=True) is None


def test_a_topic_that_is_not_compacted_is_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll(NOW)
    assert log.cleaner.compact(NOW, force=True) is None


def test_a_log_is_compacted_when_enough_of_it_is_dirty(tmp_path: Path) -> None:
    log = open_log(tmp_path, **COMPACT, min_cleanable_dirty_ratio=0.5)
    for number in range(50):
        put(log, (b"%d" % number, b"x" * 50))
    log.roll(NOW)
    assert log.cleaner.compact(NOW) is not None
    assert log.cleaner.compact(NOW) is None
    put(log, (b"1", b"y"))
    log.roll(NOW)
    assert log.cleaner.compact(NOW) is None
    assert log.cleaner.compact(NOW, force=True) is not None
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n1\nt 0 51\n"


def test_a_young_record_is_safe_for_the_minimum_lag(tmp_path: Path) -> None:
    log = open_log(tmp_path, **COMPACT, min_compaction_lag_ms=1000)
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll(NOW)
    assert log.cleaner.compact(NOW + 999, force=True) is None
    assert log.cleaner.compact(NOW + 1000, force=True) is not None


def test_a_tombstone_stays_for_its_time_after_it_was_first_compacted_and_then_goes(tmp_path: Path) -> None:
    """K-8335: the time stands in the batch, so neither a restart nor another round begins it anew"""
    log = open_log(tmp_path, **COMPACT)
    put(log, (b"a", b"1"))
    put(log, (b"a", None))
    put(log, (b"z", b"1"))
    compact(log)
    assert contents(log) == [(1, b"a", None), (2, b"z", b"1")]
    log.close(NOW)
    log = open_log(tmp_path, **COMPACT)
    log.cleaner.compact(NOW + DAY_MS - 1, force=True)
    assert (1, b"a", None) in contents(log)
    log.cleaner.compact(NOW + DAY_MS, force=True)
    assert contents(log) == [(2, b"z", b"1")]


def test_aborted_data_goes_and_what_it_would_have_replaced_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path, **COMPACT)
    put(log, (b"a", b"kept"))
    put_in_transaction(log, 7, 0, (b"a", b"aborted"))
    end(log, 7, commit=False)
    put_in_transaction(log, 8, 0, (b"b", b"committed"))
    end(log, 8, commit=True)
    compact(log)
    assert contents(log) == [(0, b"a", b"kept"), (3, b"b", b"committed")]
    assert all(value != b"aborted" for _, _, value in contents(log, 0))


def test_a_marker_stays_while_data_of_its_transaction_does(tmp_path: Path) -> None:
    """K-8351"""
    log = open_log(tmp_path, **COMPACT)
    put_in_transaction(log, 7, 0, (b"a", b"1"))
    end(log, 7, commit=True)
    put(log, (b"z", b"1"))
    for later in (NOW, NOW + DAY_MS, NOW + 5 * DAY_MS):
        compact(log, later)
    assert markers(log) == [(1, True)]
    assert contents(log)[0] == (0, b"a", b"1")


def test_a_marker_whose_data_lies_in_another_segment_stays(tmp_path: Path) -> None:
    """K-8351: the rounds before and after a roll see one transaction"""
    log = open_log(tmp_path, **COMPACT)
    put_in_transaction(log, 7, 0, (b"a", b"1"))
    log.roll(NOW)
    put(log, (b"y", b"1"))
    end(log, 7, commit=True)
    put(log, (b"z", b"1"))
    log.config = open_log(tmp_path / "other", **{**COMPACT, "segment_bytes": 200}).config
    for later in (NOW, NOW + DAY_MS, NOW + 5 * DAY_MS):
        compact(log, later)
    assert markers(log) == [(2, True)]
    assert (0, b"a", b"1") in contents(log)


def test_an_abort_marker_outside_the_compacted_part_still_discards_the_data_inside(tmp_path: Path) -> None:
    """K-13727: a partial round must not take the marker for one without data"""
    log = open_log(tmp_path, **COMPACT)
    put_in_transaction(log, 7, 0, (b"a", b"aborted"))
    put(log, (b"y", b"1"))
    log.roll(NOW)
    end(log, 7, commit=False)
    put(log, (b"z", b"1"))
    compact(log, roll=False)
    assert contents(log) == [(1, b"y", b"1"), (3, b"z", b"1")]
    assert log.producers.open_transactions == {}
    log.close(NOW)
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    again = open_log(tmp_path, clean=False, **COMPACT)
    assert again.last_stable_offset == again.end_offset
    compact(again, NOW + 2 * DAY_MS)
    compact(again, NOW + 4 * DAY_MS)
    assert contents(again) == [(1, b"y", b"1"), (3, b"z", b"1")]


def test_a_users_key_that_looks_like_a_markers_removes_no_marker(tmp_path: Path) -> None:
    """K-14055"""
    log = open_log(tmp_path, **COMPACT)
    put_in_transaction(log, 7, 0, (b"a", b"1"))
    end(log, 7, commit=True)
    put_in_transaction(log, 8, 0, (b"b", b"1"))
    end(log, 8, commit=False)
    put(log, (b"\0\0\0\1", b"looks like COMMIT"), (b"\0\0\0\0", b"looks like ABORT"))
    compact(log)
    assert markers(log) == [(1, True), (3, False)]
    assert (4, b"\0\0\0\1", b"looks like COMMIT") in contents(log)


def test_a_marker_without_data_goes_after_its_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, **COMPACT)
    put_in_transaction(log, 7, 0, (b"a", b"1"))
    end(log, 7, commit=True)
    put_in_transaction(log, 7, 1, (b"a", b"2"))
    end(log, 7, commit=True)
    put(log, (b"z", b"1"))
    compact(log)
    assert [offset for offset, _ in markers(log)] == [1, 3]
    log.cleaner.compact(NOW + 1, force=True)
    log.cleaner.compact(NOW + 1 + DAY_MS, force=True)
    assert [offset for offset, _ in markers(log)] == [3]


def test_the_last_sequence_of_a_producer_stays_as_an_empty_batch(tmp_path: Path) -> None:
    """K-5490"""
    log = open_log(tmp_path, **COMPACT)
    for sequence in range(3):
        put(log, (b"a", b"%d" % sequence), producer_id=1, sequence=sequence)
    put(log, (b"a", b"other"))
    compact(log)
    assert contents(log) == [(3, b"a", b"other")]
    empty = [found for found in stored(log) if found.record_count == 0]
    assert [(found.producer_id, found.last_sequence, found.last_offset) for found in empty] == [(1, 2, 2)]
    crash(log)
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    again = open_log(tmp_path, clean=False, **COMPACT)
    assert again.producers.entries[1].last_sequence == 2
    with pytest.raises(Refused, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        put(again, (b"a", b"gap"), producer_id=1, sequence=4)
    put(again, (b"a", b"next"), producer_id=1, sequence=3)


def test_an_empty_transactional_batch_keeps_its_marker(tmp_path: Path) -> None:
    """Otherwise a rebuild would find a transaction that never ends."""
    log = open_log(tmp_path, **COMPACT)
    put_in_transaction(log, 7, 0, (b"a", b"1"))
    end(log, 7, commit=True)
    put(log, (b"a", b"2"))
    put(log, (b"z", b"2"))
    for later in (NOW, NOW + 1, NOW + 3 * DAY_MS, NOW + 9 * DAY_MS):
        compact(log, later)
    crash(log)
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    again = open_log(tmp_path, clean=False, **COMPACT)
    assert again.producers.open_transactions == {}
    assert again.last_stable_offset == again.end_offset


def test_a_marker_that_is_all_there_is_of_a_producer_stays(tmp_path: Path) -> None:
    """It carries the epochs that fence."""
    log = open_log(tmp_path, **COMPACT)
    end(log, 7, commit=True, epoch=5, coordinator=9)
    put(log, (b"z", b"2"))
    for later in (NOW, NOW + 1, NOW + 3 * DAY_MS):
        compact(log, later)
    assert markers(log) == [(0, True)]


def test_the_end_of_a_round_stays_so_that_a_loader_reaches_the_end(tmp_path: Path) -> None:
    """K-9065: a coordinator that loads the log reads up to the end though compaction left gaps"""
    log = open_log(tmp_path, **COMPACT)
    for _ in range(5):
        put(log, (b"a", b"1"))
    log.roll(NOW)
    put(log, (b"a", b"2"))
    compact(log, roll=False)
    assert contents(log) == [(4, b"a", b"1"), (5, b"a", b"2")] or contents(log) == [(5, b"a", b"2")]
    log.roll(NOW)
    compact(log, NOW + 1)
    offset, ends = 0, []
    while offset < log.end_offset:
        answer = log.reader.read(offset, 10, 0)
        assert answer.data, f"a reader is stuck at {offset}"
        offset = max(offset + 1, int.from_bytes(answer.data[:8], "big") + int.from_bytes(answer.data[23:27], "big") + 1)
        ends.append(offset)
    assert ends[-1] == log.end_offset


def test_neighbouring_segments_are_joined(tmp_path: Path) -> None:
    log = open_log(tmp_path, **COMPACT)
    for number in range(6):
        put(log, (b"%d" % number, b"x"))
        log.roll(NOW)
    assert len(log.segments) == 7
    log.cleaner.compact(NOW, force=True)
    assert [segment.base_offset for segment in log.segments] == [0, 6]
    assert len(contents(log)) == 6


def test_a_log_that_changed_under_a_compaction_is_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path, **{**COMPACT, "cleanup_policy": "compact,delete", "retention_ms": 1000})
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(NOW)
    compaction = log.cleaner.plan(NOW, force=True)
    assert compaction is not None
    compaction.run()
    log.retention.enforce(NOW + 10_000)
    assert compaction.apply() is None
    assert list((tmp_path / "t-0").glob("*.cleaned")) == []


def test_a_round_holds_as_many_keys_as_it_has_memory_for_and_the_next_goes_on(tmp_path: Path) -> None:
    log = open_log(tmp_path, **COMPACT)
    for turn in range(2):
        for number in range(0, 20, 2):
            put(log, *[(b"key %d" % key, b"%d" % turn) for key in (number, number + 1)])
    log.roll(NOW)
    expected = latest(log)
    first = compact_a_bit(log, keys=5)
    assert first is not None and first.stopped_short
    # What the round saw was six records of six keys: nothing to remove yet, and the rest is as it was.
    assert len(contents(log)) == 40 and len(first._latest_offsets()[0]) <= 6
    rounds = 1
    while (following := compact_a_bit(log, keys=5)) is not None and following.stopped_short:
        rounds += 1
        assert latest(log) == expected
    assert following is not None and rounds >= 6
    assert [key for _, key, _ in contents(log)] == [b"key %d" % key for key in range(20)]
    assert latest(log) == expected
    whole = compact_a_bit(log, keys=100)
    assert whole is not None and not whole.stopped_short


def test_what_a_short_round_left_is_still_dirty(tmp_path: Path) -> None:
    log = open_log(tmp_path, **{**COMPACT, "min_cleanable_dirty_ratio": 0.5})
    for number in range(40):
        put(log, (b"%d" % number, b"v"))
    log.roll(NOW)
    compact_a_bit(log, keys=5)
    assert log.cleaner.plan(NOW) is not None
    compact_a_bit(log, keys=100)
    assert log.cleaner.plan(NOW) is None


def busy(data: Path, files: InlineFiles | None = None) -> PartitionLog:
    log = open_log(data, files=files, **{**COMPACT, "segment_bytes": 600})
    for number in range(12):
        put(log, (b"%d" % (number % 3), b"x%d" % number), producer_id=1, sequence=number)
        put_in_transaction(log, 7, number, (b"t%d" % (number % 2), b"y%d" % number))
        end(log, 7, commit=number % 3 > 0)
    log.roll(NOW)
    return log


def latest(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in contents(log)}


def test_compaction_may_be_killed_at_any_point(tmp_path: Path) -> None:
    """C6: the old segments or the new one, never both, never neither"""
    step, killed = 0, True
    while killed:
        step += 1
        data = tmp_path / "d"
        shutil.rmtree(data, ignore_errors=True)
        files = FaultyFiles()
        log = busy(data, files)
        expected, facts = latest(log), log.producers.facts()
        files.error, files.fail_at, files.torn, files.changes = Killed(), step, 0.5, 0
        try:
            log.cleaner.compact(NOW, force=True)
            killed = False
        except Killed:
            killed = True
        crash(log)
        again = open_log(data, clean=False, **{**COMPACT, "segment_bytes": 600})
        assert latest(again) == expected
        assert again.producers.facts() == facts
        assert again.last_stable_offset == again.end_offset == log.end_offset
        again.cleaner.compact(NOW, force=True)
        assert latest(again) == expected
        assert not [path for path in (data / "t-0").iterdir() if path.suffix in (".cleaned", ".swap")]
        crash(again)
    assert step > 20


def test_a_full_disk_during_compaction_changes_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = busy(tmp_path, files)
    expected = contents(log)
    files.fail_when = lambda call, path: call == "write" and path.endswith(".cleaned")
    with pytest.raises(Refused, match="KAFKA_STORAGE_ERROR"):
        log.cleaner.compact(NOW, force=True)
    assert contents(log) == expected
    assert not list((tmp_path / "t-0").glob("*.cleaned"))
    put(log, (b"a", b"goes on"))


def test_a_swap_that_fails_half_way_stops_writes_until_a_restart_finishes_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = busy(tmp_path, files)
    expected = latest(log)
    files.fail_when = lambda call, path: call == "rename" and path.endswith(".deleted")
    with pytest.raises(Refused, match="KAFKA_STORAGE_ERROR"):
        log.cleaner.compact(NOW, force=True)
    with pytest.raises(Refused, match="KAFKA_STORAGE_ERROR"):
        put(log, (b"a", b"too late"))
    crash(log)
    again = open_log(tmp_path, clean=False, **{**COMPACT, "segment_bytes": 600})
    assert latest(again) == expected


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(-1, 1), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("send"), st.integers(11, 12), st.integers(0, 3), st.booleans()),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(11, 12), st.just(0), st.just(False)),
        st.tuples(st.sampled_from(["roll", "compact", "compact a bit", "day"]), st.just(0), st.just(0), st.just(False)),
    ),
    max_size=50,
)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_whatever_happens_a_reader_ends_with_the_same_values(history: list[tuple[str, int, int, bool]]) -> None:
    """Compacted or not: the same last value per key, the same producers, the same stable offset, rising offsets."""
    with scratch() as directory:
        compacted = open_log(Path(directory) / "a", **COMPACT)
        plain = open_log(Path(directory) / "b", cleanup_policy="compact", segment_bytes=100_000)
        sequences: dict[int, int] = {}
        now_ms = NOW
        for number, (what, producer_id, key, tombstone) in enumerate(history):
            value = None if tombstone else b"%d" % number
            sequence = sequences.get(producer_id, 0)
            if what == "day":
                now_ms += DAY_MS
            for log in (compacted, plain):
                if what == "put":
                    put(log, (b"%d" % key, value), producer_id=producer_id, sequence=sequence)
                elif what == "send":
                    put_in_transaction(log, producer_id, sequence, (b"%d" % key, value))
                elif what in ("commit", "abort"):
                    end(log, producer_id, commit=what == "commit")
                elif what == "roll":
                    log.roll(now_ms)
            if what in ("put", "send"):
                sequences[producer_id] = sequence + 1
            if what == "compact":
                compacted.cleaner.compact(now_ms, force=True)
            elif what == "compact a bit":
                compact_a_bit(compacted, 2, now_ms)
        assert alive(compacted) == alive(plain)
        assert compacted.producers.facts() == plain.producers.facts()
        offsets = [record.offset for found in stored(compacted) for record in read_records(found)]
        assert offsets == sorted(set(offsets))
        before = compacted.producers
        crash(compacted)
        for path in (Path(directory) / "a" / "t-0").glob("*.snapshot"):
            path.unlink()
        again = open_log(Path(directory) / "a", clean=False, **COMPACT)
        assert alive(again) == alive(plain)
        assert again.last_stable_offset == plain.last_stable_offset
        assert again.producers.open_transactions == before.open_transactions
        for producer_id, entry in before.entries.items():
            rebuilt = again.producers.entries[producer_id]
            assert (rebuilt.producer_epoch, rebuilt.last_sequence) == (entry.producer_epoch, entry.last_sequence)


def alive(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {key: value for key, value in latest(log).items() if value is not None}


def test_a_log_is_compacted_once_a_record_has_waited_too_long_whatever_the_ratio(tmp_path: Path) -> None:
    lazy = {**COMPACT, "min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 1000}
    log = open_log(tmp_path, **lazy)
    for number in range(3):
        put(log, (b"%d" % number, b"x" * 50))
    log.roll(NOW)
    assert log.cleaner.compact(NOW) is not None
    put(log, (b"1", b"y"))
    log.roll(NOW)
    assert log.cleaner.compact(NOW + 1000) is None
    assert log.cleaner.compact(NOW + 1001) is not None


def test_records_without_a_time_have_not_waited_too_long(tmp_path: Path) -> None:
    lazy = {**COMPACT, "min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 1000}
    log = open_log(tmp_path, **lazy)
    put(log, (b"1", b"x" * 50))
    log.roll(NOW)
    assert log.cleaner.compact(NOW) is not None
    log.append(batch(timestamp_ms=-1), NOW)
    log.roll(NOW)
    assert log.cleaner.compact(NOW + DAY_MS) is None


def test_a_round_that_is_called_off_ends_at_once_and_leaves_no_trace(tmp_path: Path) -> None:
    log = busy(tmp_path)
    expected = contents(log)
    called_off, other = (log.cleaner.plan(NOW, force=True) for _ in range(2))
    assert called_off is not None and other is not None
    called_off.cancel()
    with pytest.raises(Cancelled):
        called_off.run()
    assert list((tmp_path / "t-0").glob("*.cleaned")) == []
    assert contents(log) == expected
    other.run()
    # Called off too late, by somebody who stopped: what another round wrote is not its to remove.
    called_off.abandon()
    assert other.apply() is not None
    assert {key: value for _, key, value in contents(log)} == {key: value for _, key, value in expected}

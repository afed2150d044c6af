"""What compaction writes: fewer records, and everything that others remember about the batch as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.records.batch import Batch, Record, build, check, place, read_records, retain, without_records

from .strategies import codecs, record_lists

HORIZON = 1_800_000_000_000


def stored(records: list[Record], codec: int = 0) -> Batch:
    data = bytearray(
        build(
            records, timestamp_ms=0, codec=codec, producer_id=5, producer_epoch=1, base_sequence=70, transactional=True
        )
    )
    place(data, 1000, 4)
    return Batch.parse(data)


@given(record_lists, codecs, st.data())
def test_kept_records_are_unchanged_and_the_batch_keeps_its_place(
    records: list[Record], codec: int, data: st.DataObject
) -> None:
    batch = stored(records, codec)
    mask = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    horizon = data.draw(st.none() | st.just(HORIZON))
    before = list(read_records(batch))
    kept = [record for record, keep in zip(before, mask, strict=True) if keep]
    result = retain(batch, mask, horizon)
    wanted = {record.offset for record in kept}
    assert retain(batch, lambda record: record.offset in wanted, horizon) == result
    if not kept:
        assert result is None
        return
    after = Batch.parse(result)
    check(after, framing=True, stored=True)
    assert list(read_records(after)) == kept
    assert (after.base_offset, after.last_offset, after.leader_epoch) == (1000, batch.last_offset, 4)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (5, 1, 70)
    assert after.last_sequence == batch.last_sequence
    assert (after.is_transactional, after.codec, after.record_count) == (True, codec, len(kept))
    assert after.delete_horizon_ms == horizon
    if len(kept) < len(records):
        assert after.max_timestamp == max(record.timestamp for record in kept)


def test_a_batch_kept_whole_is_kept_as_it_is() -> None:
    batch = stored([Record(0, 5, b"k", b"v")])
    assert retain(batch, [True]) == bytes(batch.data)


def test_a_delete_horizon_is_set_once() -> None:
    batch = stored([Record(0, 5, b"k", None), Record(0, 6, b"l", None)])
    first = Batch.parse(retain(batch, [True, True], HORIZON) or b"")
    assert first.delete_horizon_ms == HORIZON
    assert retain(first, [True, True], HORIZON + 1) == bytes(first.data)
    second = Batch.parse(retain(first, [False, True], HORIZON + 1) or b"")
    assert second.delete_horizon_ms == HORIZON
    assert [record.timestamp for record in read_records(second)] == [6]


def test_an_emptied_batch_still_holds_the_producers_last_sequence() -> None:
    batch = stored([Record(0, 5, b"k", b"v"), Record(0, 6, b"k", b"w")], codec=1)
    data = retain(batch, [False, False], HORIZON, keep_empty=True)
    assert data == without_records(batch)
    empty = Batch.parse(data)
    check(empty, framing=True, stored=True)
    assert (empty.record_count, empty.last_sequence, empty.last_offset) == (0, 71, 1001)
    assert (empty.codec, empty.has_delete_horizon, empty.max_timestamp) == (0, False, 6)
    assert list(read_records(empty)) == []


def test_the_brokers_clock_survives_compaction() -> None:
    data = bytearray(build([(b"k", b"v"), (b"l", b"w")], timestamp_ms=5))
    place(data, 0, 0, append_time_ms=99)
    after = Batch.parse(retain(Batch.parse(data), [False, True], HORIZON) or b"")
    assert (after.timestamp_type, after.max_timestamp) == (1, 99)
    assert [record.timestamp for record in read_records(after)] == [99]

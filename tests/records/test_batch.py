"""What a batch says is what was put into it, and a batch that lies is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ErrorCode, InvariantViolation, Refused
from semel.records.batch import (
    HEADER_SIZE,
    Batch,
    BatchBuilder,
    Record,
    build,
    check,
    place,
    read_records,
    record_size_max,
    split,
)
from semel.records.building import build_pairs
from semel.records.layout import TRANSACTIONAL, checksum
from semel.records.markers import control_batch

from .strategies import codecs, numbered, record_lists, records

NOW = 1_700_000_000_000


def resealed(data: bytes | bytearray) -> bytes:
    """The batch with a CRC that fits what it now says."""
    data = bytearray(data)
    data[17:21] = checksum(data).to_bytes(4, "big")
    return bytes(data)


def patched(data: bytes, position: int, format: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(format, changed, position, value)
    return resealed(changed)


def refusal(data: bytes, **how: bool) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        check(Batch.parse(data), **how)
    return refused.value.code


@given(record_lists, codecs)
def test_records_come_out_of_a_batch_as_they_went_in(given_records: list[Record], codec: int) -> None:
    batch = Batch.parse(build(given_records, timestamp_ms=NOW, codec=codec, base_offset=0))
    check(batch, framing=True)
    assert list(read_records(batch)) == numbered(given_records)
    assert batch.codec == codec
    assert batch.max_timestamp == max(record.timestamp for record in given_records)
    assert batch.base_timestamp == given_records[0].timestamp


def test_the_header_tells_everything_that_was_said_when_building() -> None:
    data = build(
        [(b"k", b"v"), (None, None, [("h", None)]), (b"", b"", [], 7)],
        timestamp_ms=NOW,
        producer_id=2**40,
        producer_epoch=3,
        base_sequence=2**31 - 2,
        transactional=True,
        base_offset=100,
        leader_epoch=5,
    )
    batch = Batch.parse(data)
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (100, 102, 103)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (2**40, 3, 2**31 - 2)
    assert batch.last_sequence == 0, "sequences go from 2^31 - 1 to 0"
    assert batch.is_transactional and not batch.is_control and batch.has_producer_id
    assert (batch.leader_epoch, batch.record_count, batch.magic, batch.size_bytes) == (5, 3, 2, len(data))
    assert (batch.timestamp_type, batch.has_delete_horizon, batch.delete_horizon_ms) == (0, False, None)
    assert [record.timestamp for record in read_records(batch)] == [NOW, NOW, 7]
    assert "100..102" in repr(batch)


def test_a_batch_without_a_producer_has_no_sequence() -> None:
    batch = Batch.parse(build([(b"k", b"v")], timestamp_ms=NOW))
    assert not batch.has_producer_id
    assert batch.last_sequence == -1


@given(st.lists(record_lists, min_size=1, max_size=4))
def test_a_blob_splits_into_the_batches_it_was_joined_from(groups: list[list[Record]]) -> None:
    parts = [build(group, timestamp_ms=NOW) for group in groups]
    assert [bytes(batch.data) for batch in split(b"".join(parts))] == parts


def test_a_tail_cut_short_is_refused_unless_the_reader_expects_one() -> None:
    one, two = build([(b"k", b"v")], timestamp_ms=NOW), build([(b"k2", b"v2")], timestamp_ms=NOW)
    for cut in range(1, len(two)):
        blob = one + two[:-cut]
        assert [bytes(batch.data) for batch in split(blob, partial_tail=True)] == [one]
        if cut < len(two):
            with pytest.raises(Refused) as refused:
                split(blob)
            assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


@given(record_lists, codecs, st.data())
def test_every_flipped_bit_under_the_checksum_is_detected(
    given_records: list[Record], codec: int, data: st.DataObject
) -> None:
    blob = bytearray(build(given_records, timestamp_ms=NOW, codec=codec))
    # The first 17 bytes are the broker's to set (offset, leader epoch) or tell where and what the batch is.
    bit = data.draw(st.integers(min_value=17 * 8, max_value=len(blob) * 8 - 1))
    blob[bit >> 3] ^= 1 << (bit & 7)
    assert refusal(bytes(blob)) == ErrorCode.CORRUPT_MESSAGE


def test_a_flipped_bit_in_length_or_magic_is_detected() -> None:
    blob = build([(b"k", b"v" * 50)], timestamp_ms=NOW)
    for position in (8, 9, 10, 11, 16):
        for bit in range(8):
            changed = bytearray(blob)
            changed[position] ^= 1 << bit
            with pytest.raises(Refused) as refused:
                for batch in split(changed):
                    check(batch)
            assert refused.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("magic", [0, 1])
def test_the_old_message_formats_are_refused(magic: int) -> None:
    blob = bytearray(build([(b"k", b"v")], timestamp_ms=NOW))
    blob[16] = magic
    with pytest.raises(Refused) as refused:
        Batch.parse(blob)
    assert refused.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("position", "format", "value", "code"),
    [
        (57, ">i", 4, ErrorCode.INVALID_RECORD),  # more records than offsets
        (57, ">i", 2, ErrorCode.INVALID_RECORD),
        (57, ">i", 0, ErrorCode.INVALID_RECORD),
        (57, ">i", -1, ErrorCode.INVALID_RECORD),
        (23, ">i", 3, ErrorCode.INVALID_RECORD),  # last offset delta
        (23, ">i", -1, ErrorCode.INVALID_RECORD),
        (21, ">h", 0x20, ErrorCode.INVALID_RECORD),  # a control batch
        (21, ">h", 0x40, ErrorCode.INVALID_RECORD),  # a delete horizon
        (21, ">h", 0x10, ErrorCode.INVALID_RECORD),  # transactional, but no producer id
        (21, ">h", 0x08, ErrorCode.INVALID_TIMESTAMP),  # the broker's clock
        (21, ">h", 0x05, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (43, ">q", 9, ErrorCode.INVALID_RECORD),  # a producer id, but no epoch and no sequence
        (0, ">q", 7, ErrorCode.INVALID_RECORD),  # an offset of its own
    ],
)
def test_a_produced_batch_that_lies_is_refused_whole(position: int, format: str, value: int, code: ErrorCode) -> None:
    honest = build([(b"k", b"v"), (b"k", b"v"), (b"k", b"v")], timestamp_ms=NOW)
    assert refusal(patched(honest, position, format, value)) == code


def test_a_marker_is_in_order_in_the_log_and_refused_from_a_client() -> None:
    marker = control_batch(9, 1, True, 0, NOW)
    check(Batch.parse(marker), framing=True, stored=True)
    assert refusal(marker) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", range(5))
def test_keys_are_required_where_the_caller_says_so(codec: int) -> None:
    check(Batch.parse(build([(b"k", b"v")], timestamp_ms=NOW, codec=codec)), require_keys=True)
    keyless = build([(b"k", b"v"), (None, b"v")], timestamp_ms=NOW, codec=codec)
    check(Batch.parse(keyless), framing=True)
    assert refusal(keyless, require_keys=True) == ErrorCode.INVALID_RECORD


@given(record_lists, st.data())
def test_framing_refuses_records_that_do_not_fill_the_batch_exactly(
    given_records: list[Record], data: st.DataObject
) -> None:
    blob = build(given_records, timestamp_ms=NOW)
    cut = data.draw(st.integers(min_value=1, max_value=len(blob) - HEADER_SIZE))
    for changed in (bytearray(blob[:-cut]), bytearray(blob + bytes(cut))):
        struct.pack_into(">i", changed, 8, len(changed) - 12)
        assert refusal(resealed(changed), framing=True) == ErrorCode.INVALID_RECORD


def test_framing_refuses_records_out_of_their_place() -> None:
    one = build([(b"k", b"v"), (b"k", b"v")], timestamp_ms=NOW)
    assert one.count(b"\x02\x02k\x02v") == 1, "the second record's offset delta is 1"
    moved = resealed(bytearray(one.replace(b"\x02\x02k\x02v", b"\x04\x02k\x02v")))
    assert refusal(moved, framing=True) == ErrorCode.INVALID_RECORD


def test_a_forged_record_count_costs_no_memory() -> None:
    forged = patched(build([(b"k", b"v")], timestamp_ms=NOW), 57, ">i", 2**31 - 1)
    with pytest.raises(Refused) as refused:
        read_records(Batch.parse(forged))
    assert refused.value.code == ErrorCode.INVALID_RECORD


@given(record_lists, st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_placing_changes_offset_and_epoch_and_leaves_the_checksum_true(
    given_records: list[Record], base_offset: int, leader_epoch: int
) -> None:
    blob = bytearray(build(given_records, timestamp_ms=NOW))
    place(memoryview(blob), base_offset, leader_epoch)
    batch = Batch.parse(blob)
    check(batch, framing=True, stored=True)
    assert (batch.base_offset, batch.leader_epoch) == (base_offset, leader_epoch)
    assert list(read_records(batch)) == numbered(given_records, base_offset)


def test_placing_with_the_brokers_clock_dates_every_record() -> None:
    blob = bytearray(build([(b"k", b"v", [], 5), (b"k", b"v", [], 6)], timestamp_ms=NOW, codec=4))
    place(blob, 10, 0, append_time_ms=NOW)
    batch = Batch.parse(blob)
    check(batch, framing=True, stored=True)
    assert (batch.timestamp_type, batch.max_timestamp, batch.base_timestamp) == (1, NOW, 5)
    assert [record.timestamp for record in read_records(batch)] == [NOW, NOW]


@given(records)
def test_the_size_estimate_of_a_record_is_never_too_small(record: Record) -> None:
    builder = BatchBuilder()
    builder.append(b"", b"", (), record.timestamp - 2**40)
    before = builder.size_bytes
    builder.append(record.key, record.value, record.headers, record.timestamp)
    assert builder.size_bytes - before <= record_size_max(record.key, record.value, record.headers)


def test_a_builder_has_room_for_its_first_record_and_then_up_to_its_limit() -> None:
    builder = BatchBuilder(limit_bytes=200)
    assert builder.has_room_for(None, bytes(1000))
    positions = []
    while builder.has_room_for(b"key", b"value"):
        positions.append(builder.append(b"key", b"value", timestamp=NOW))
    assert positions == list(range(len(positions))) and len(positions) > 3
    assert builder.size_bytes <= 200
    assert len(builder.close()) == builder.size_bytes
    assert not builder.has_room_for(None, None)


def test_a_closed_batch_gives_the_same_bytes_for_ever() -> None:
    builder = BatchBuilder(codec=1)
    builder.append(b"k", b"v", timestamp=NOW)
    builder.set_producer(7, 0, 40, transactional=True)
    first = builder.close()
    assert builder.is_closed
    assert builder.close() is first
    assert builder.close(7, 0, 40, True) is first
    assert (builder.producer_id, builder.producer_epoch, builder.base_sequence) == (7, 0, 40)
    assert Batch.parse(first).is_transactional
    with pytest.raises(InvariantViolation):
        builder.close(7, 1, 0)
    with pytest.raises(InvariantViolation):
        builder.set_producer(7, 1, 0)
    with pytest.raises(InvariantViolation):
        builder.append(b"k", b"v", timestamp=NOW)


def test_an_empty_batch_cannot_be_built() -> None:
    with pytest.raises(InvariantViolation):
        build([], timestamp_ms=NOW)


def test_a_builder_takes_any_bytes_like_field() -> None:
    builder = BatchBuilder()
    builder.append(bytearray(b"key"), memoryview(b"xvaluex")[1:-1], timestamp=NOW)
    (record,) = read_records(Batch.parse(builder.close()))
    assert (record.key, record.value) == (b"key", b"value")


@given(
    st.lists(st.tuples(*[st.none() | st.binary(max_size=200)] * 2), min_size=1, max_size=5),
    st.integers(0, 2**40),
)
def test_a_coordinators_batch_is_what_the_general_builder_makes(
    pairs: list[tuple[bytes | None, bytes | None]], timestamp_ms: int
) -> None:
    assert build_pairs(pairs, timestamp_ms) == build(pairs, timestamp_ms=timestamp_ms)
    owned = build_pairs(
        pairs, timestamp_ms, producer_id=7, producer_epoch=3, attributes=TRANSACTIONAL, base_offset=9, leader_epoch=2
    )
    assert owned == build(
        pairs,
        timestamp_ms=timestamp_ms,
        producer_id=7,
        producer_epoch=3,
        transactional=True,
        base_offset=9,
        leader_epoch=2,
    )

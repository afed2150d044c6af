"""The compiled loops and their Python twins give the same answers, the same bytes and the same refusals."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import Refused
from semel.records import _pure, _select, _view
from semel.records.batch import Record
from semel.records.building import build
from semel.records.layout import Column, HeaderColumns, Stretch
from tests.support.requirements import has_c_compiler

from .strategies import fields, header_names, record_lists, records

try:
    from semel.records import _speedups
except ImportError:
    if has_c_compiler():
        pytest.fail("there is a C compiler, and yet the compiled loops are not built: make setup", pytrace=False)
    pytest.skip("no C compiler: the loops run in Python, there is no twin to compare", allow_module_level=True)

INT64 = st.integers(-(2**63), 2**63 - 1)


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives, or how it refuses."""
    try:
        return call(*arguments)
    except ValueError as error:
        return ("ValueError", str(error))


def same(name: str, *arguments: Any) -> Any:
    compiled, plain = getattr(_speedups, name), getattr(_pure, name)
    answer = outcome(plain, *arguments)
    assert outcome(compiled, *arguments) == answer
    return answer


def payload_of(given_records: list[Record], base_timestamp: int = 0) -> bytes:
    out = bytearray()
    for index, record in enumerate(given_records):
        _pure.write_record(out, record.timestamp - base_timestamp, index, record.key, record.value, record.headers)
    return bytes(out)


@st.composite
def damaged_payloads(draw: st.DrawFn) -> tuple[bytes, int]:
    """A payload and a record count, of which some bytes, or the count, may have been changed."""
    given_records = draw(record_lists)
    payload = bytearray(payload_of(given_records))
    for _ in range(draw(st.integers(0, 3))):
        payload[draw(st.integers(0, len(payload) - 1))] = draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]))
    if draw(st.booleans()):
        del payload[draw(st.integers(0, len(payload))) :]
    return bytes(payload), draw(st.just(len(given_records)) | st.integers(-1, len(given_records) + 2))


def test_the_compiled_loops_are_chosen_where_they_are_built() -> None:
    assert _select.COMPILED
    assert _select.check_framing is _speedups.check_framing


@given(INT64)
def test_varints(value: int) -> None:
    one, other = bytearray(b"x"), bytearray(b"x")
    _pure.write_varint(one, value)
    _speedups.write_varint(other, value)
    assert one == other
    assert same("varint_size", value) == len(one) - 1
    assert same("read_varlong", bytes(one), 1, len(one)) == (value, len(one))
    same("read_varint", bytes(one), 1, len(one))


@given(st.binary(max_size=12), st.integers(0, 12))
def test_varints_of_noise(noise: bytes, end: int) -> None:
    end = min(end, len(noise))
    same("read_varlong", noise, 0, end)
    same("read_varint", noise, 0, end)


@given(INT64, st.integers(0, 2**31 - 1), records)
def test_writing_a_record(timestamp_delta: int, offset_delta: int, record: Record) -> None:
    one, other = bytearray(b"before"), bytearray(b"before")
    for write, out in ((_pure.write_record, one), (_speedups.write_record, other)):
        write(out, timestamp_delta, offset_delta, record.key, record.value, record.headers)
    assert one == other
    parsed = same("parse_record", bytes(one), 6)
    assert parsed[:2] == (timestamp_delta, offset_delta)


def seen(view_class: Any, data: Any, position: int) -> Any:
    """All that a batch says of itself, or how it is refused."""
    try:
        batch = view_class.parse(data, position)
    except Refused as refused:
        return refused.code, refused.why
    names = [name for name in dir(_view.Batch) if not name.startswith("_") and name != "parse"]
    return {name: getattr(batch, name) for name in names}, repr(batch)


DAMAGE = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=4)


@given(record_lists, st.integers(0, 3), DAMAGE, st.data())
def test_seeing_a_batch(
    given_records: list[Record], before: int, damage: list[tuple[int, int]], data: st.DataObject
) -> None:
    whole = bytearray(before) + build(given_records, timestamp_ms=0, base_offset=5)
    for place, byte in damage:
        whole[before + place] = byte
    del whole[data.draw(st.integers(0, len(whole)), label="end") :]
    for given_bytes in (bytes(whole), whole, memoryview(whole)):
        assert seen(_speedups.Batch, given_bytes, before) == seen(_view.Batch, given_bytes, before)


@pytest.mark.parametrize("value", [b"\x7f" + b"\xff" * 60, b"\x80" + b"\x00" * 60, b"\xff" * 61])
def test_seeing_a_batch_of_extreme_numbers(value: bytes) -> None:
    whole = bytearray(value)
    whole[8:12], whole[16] = (49).to_bytes(4, "big"), 2
    assert seen(_speedups.Batch, whole, 0) == seen(_view.Batch, whole, 0)
    assert isinstance(seen(_view.Batch, whole, 0)[0], dict)


PAIRS = st.lists(st.tuples(*[st.none() | st.binary(max_size=200)] * 2), max_size=5)
INT16 = st.integers(-(2**15), 2**15 - 1)


@given(PAIRS, INT64, INT64, INT16, INT16, INT64, st.integers(-(2**31), 2**31 - 1))
def test_building_a_batch_of_pairs(
    pairs: list[tuple[bytes | None, bytes | None]],
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    attributes: int,
    base_offset: int,
    leader_epoch: int,
) -> None:
    given_header = {
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "attributes": attributes,
        "base_offset": base_offset,
        "leader_epoch": leader_epoch,
    }
    expected = _pure.build_pairs(pairs, timestamp_ms, **given_header)
    built = _speedups.build_pairs(pairs, timestamp_ms, **given_header)
    assert built == expected
    assert type(built) is bytearray
    views = [tuple(None if field is None else memoryview(field) for field in pair) for pair in pairs]
    assert _speedups.build_pairs(tuple(views), timestamp_ms, **given_header) == expected


@given(damaged_payloads(), st.booleans(), st.booleans(), st.integers(-1, 20))
def test_walking_records(damaged: tuple[bytes, int], dense: bool, require_keys: bool, last_offset_delta: int) -> None:
    payload, count = damaged
    same("check_framing", payload, count, dense, last_offset_delta, require_keys)


def walked(walk_class: Any, payload: bytes, pieces: list[int], *arguments: Any) -> Any:
    """Everything a walk says of a payload that comes in pieces of these sizes; what is left comes last."""
    try:
        walk = walk_class(*arguments)
        said: list[Any] = []
        left, position = b"", 0
        for size in [*pieces, len(payload)]:
            piece = left + payload[position : position + size]
            position += size
            is_last = position >= len(payload)
            if not is_last and len(piece) < walk.wanted:
                left = piece
                continue
            used = walk.feed(piece, is_last)
            said.append((used, walk.wanted, walk.walked))
            left = piece[used:]
            if is_last:
                break
    except ValueError as error:
        return ("ValueError", str(error))
    said += [walk.keyless, walk.far_off, bool(walk.has_keyless), bool(walk.has_far_off), walk.largest_timestamp]
    return [*said, walk.first_offset_delta]


WALKS = st.tuples(
    st.booleans(),
    st.integers(-1, 20),
    st.booleans(),
    INT64 | st.integers(0, 2**41),
    INT64 | st.just(-(2**63)),
    INT64 | st.just(2**63 - 1),
    st.integers(0, 3),
    st.integers(0, 5),
)


@given(damaged_payloads(), st.lists(st.integers(0, 30), max_size=20), WALKS)
def test_walking_records_piece_by_piece(damaged: tuple[bytes, int], pieces: list[int], walk: tuple[Any, ...]) -> None:
    payload, count = damaged
    answer = walked(_pure.RecordWalk, payload, pieces, count, *walk)
    assert walked(_speedups.RecordWalk, payload, pieces, count, *walk) == answer
    whole = walked(_pure.RecordWalk, payload, [], count, *walk)
    # However it comes, the same is found; only which of several flaws is met first may differ.
    assert (whole[0] == "ValueError") == (answer[0] == "ValueError")
    if whole[0] != "ValueError":
        assert answer[-6:] == whole[-6:]


@given(record_lists, st.integers(0, 2**41), st.integers(0, 2**41), st.integers(0, 2**41))
def test_a_walk_finds_what_a_reader_would(given_records: list[Record], base: int, one: int, other: int) -> None:
    oldest, newest = min(one, other), max(one, other)
    read = _pure.read_records(payload_of(given_records, base), len(given_records), 0, base, -1)
    said = walked(
        _speedups.RecordWalk, payload_of(given_records, base), [], len(read), True, 0, True, base, oldest, newest, 99
    )
    keyless = [record.offset for record in read if record.key is None]
    far_off = [
        (record.offset, record.timestamp)
        for record in read
        if record.key is not None and record.timestamp != -1 and not oldest <= record.timestamp <= newest
    ]
    assert said[-6:-4] == [keyless, far_off]
    assert said[-1] == 0
    assert said[-2] == max(-1, *(record.timestamp for record in read))


@given(damaged_payloads(), INT64, INT64, st.just(-1) | st.integers(0, 2**62))
def test_reading_records(damaged: tuple[bytes, int], base_offset: int, base_timestamp: int, append_time: int) -> None:
    payload, count = damaged
    same("read_records", payload, count, base_offset, base_timestamp, append_time)


@given(damaged_payloads(), st.lists(st.booleans(), min_size=20, max_size=20), st.just(0) | INT64)
def test_retaining_records(damaged: tuple[bytes, int], mask: list[bool], shift: int) -> None:
    payload, count = damaged
    same("retain_records", payload, count, mask, shift)


@given(st.lists(st.tuples(damaged_payloads(), INT64), max_size=3), INT64, INT64, st.booleans())
def test_decoding_columns(
    parts: list[tuple[tuple[bytes, int], int]], from_offset: int, to_offset: int, with_headers: bool
) -> None:
    stretches = [Stretch(payload, count, base, base // 3, -1 if base % 2 else 99) for (payload, count), base in parts]
    same("decode_columns", stretches, from_offset, to_offset, with_headers)


@given(record_lists, st.integers(0, 2**40), st.booleans())
def test_decoding_columns_that_are_whole(given_records: list[Record], base: int, with_headers: bool) -> None:
    stretch = Stretch(payload_of(given_records), len(given_records), base, 0, -1)
    answer = same("decode_columns", [stretch, stretch], base, base + 5, with_headers)
    assert answer[0] == [min(5, len(given_records))] * 2


def column(cells: list[bytes | None], wide: bool, first: int) -> Column:
    """An Arrow layout of `cells`, with `first` rows before them that are none of ours."""
    rows: list[bytes | None] = [b"not ours"] * first + cells
    offsets = array("q" if wide else "i", [0])
    data = bytearray()
    validity = bytearray((len(rows) + 7) // 8)
    for row, cell in enumerate(rows):
        if cell is not None:
            data += cell
            validity[row >> 3] |= 1 << (row & 7)
        offsets.append(len(data))
    return Column(offsets.tobytes(), bytes(data), bytes(validity) if None in rows else None, first, wide)


@st.composite
def header_columns(draw: st.DrawFn, rows: int) -> HeaderColumns:
    lists = draw(st.lists(st.lists(st.tuples(header_names, fields), max_size=3), min_size=rows, max_size=rows))
    flat = [entry for entries in lists for entry in entries]
    wide = draw(st.booleans())
    offsets = array("q" if wide else "i", [0])
    for entries in lists:
        offsets.append(offsets[-1] + len(entries))
    names = column([name.encode() for name, _ in flat], draw(st.booleans()), draw(st.integers(0, 9)))
    contents = column([content for _, content in flat], draw(st.booleans()), draw(st.integers(0, 9)))
    return HeaderColumns(offsets.tobytes(), names, contents, None, 0, wide)


@given(st.data(), st.integers(1, 12))
def test_encoding_columns(data: st.DataObject, rows: int) -> None:
    cells = st.lists(fields, min_size=rows, max_size=rows)
    keys, values = (
        data.draw(st.none() | st.builds(column, cells, st.booleans(), st.integers(0, 9)), label=name)
        for name in ("keys", "values")
    )
    headers = data.draw(st.none() | header_columns(rows), label="headers")
    times = data.draw(st.none() | st.lists(INT64, min_size=rows, max_size=rows), label="timestamps")
    start = data.draw(st.integers(0, rows - 1), label="start")
    limit = data.draw(st.integers(0, 400), label="limit")
    timestamps = None if times is None else array("q", times).tobytes()
    out, count, _, _ = same("encode_columns", keys, values, headers, timestamps, start, rows, 1234, limit, 61)
    assert 1 <= count <= rows - start
    assert count == 1 or len(out) <= limit
    same("check_framing", bytes(out[61:]), count, True, count - 1, False)


@given(st.lists(fields, max_size=20), st.integers(1, 1000), st.integers(0, 9), st.booleans())
def test_the_partitioner(keys: list[bytes | None], n_partitions: int, first: int, wide: bool) -> None:
    partitions = same("partition_rows", column(keys, wide, first), len(keys), n_partitions, -1)
    one_by_one = [-1 if key is None else same("partition_for_key", key, n_partitions) for key in keys]
    assert list(array("i", bytes(partitions))) == one_by_one
    assert all(key is None or 0 <= partition < n_partitions for key, partition in zip(keys, one_by_one, strict=True))
    for key in keys:
        if key is not None:
            same("murmur2", key)


def test_a_column_shorter_than_its_rows_is_never_read_past_its_end() -> None:
    short = column([b"a", b"b"], False, 0)
    with pytest.raises(IndexError):
        _speedups.encode_columns(short, None, None, None, 0, 3, 0, 1000, 61)
    with pytest.raises(IndexError):
        _speedups.encode_columns(short, None, None, bytes(8), 0, 2, 0, 1000, 61)
    with pytest.raises(IndexError):
        _speedups.partition_rows(short, 3, 5, -1)
    lying = Column(array("i", [0, 2**30]).tobytes(), b"ab")
    with pytest.raises(IndexError):
        _speedups.encode_columns(lying, None, None, None, 0, 1, 0, 1000, 61)
    with pytest.raises(IndexError):
        _speedups.partition_rows(lying, 1, 5, -1)

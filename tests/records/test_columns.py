"""Columns hold what the batches hold, and batches made from columns hold what the columns held."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ErrorCode, Refused
from semel.records import _pure, _select
from semel.records.batch import Batch, Record, build, check, place, read_records, split
from semel.records.columns import from_arrow, partition_column, schema, to_arrow
from semel.records.markers import control_batch
from semel.records.partitioner import partition_for_key

from .strategies import codecs, fields, numbered, record_lists

NOW = 1_700_000_000_123
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.fixture(params=["chosen", "pure"], autouse=True)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here runs with the loops that were chosen at import and with the Python ones."""
    if request.param == "pure":
        for name in ("decode_columns", "encode_columns", "partition_rows"):
            monkeypatch.setattr(_select, name, getattr(_pure, name))


def log_of(*batches: bytes) -> bytes:
    """The batches one after the other, each with the offset that follows the one before."""
    out, offset = bytearray(), 0
    for data in batches:
        placed = bytearray(data)
        place(placed, offset, 0)
        offset = Batch.parse(placed).next_offset
        out += placed
    return bytes(out)


def rows(*records: Record) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array([[{"key": k, "value": v} for k, v in record.headers] for record in records], pa.list_(HEADER)),
            pa.array([record.timestamp for record in records], pa.timestamp("ms", tz="UTC")),
        ],
        ["key", "value", "headers", "at"],
    )


@given(st.lists(st.tuples(record_lists, codecs), max_size=3), st.booleans())
def test_columns_say_what_the_records_say(groups: list[tuple[list[Record], int]], include_headers: bool) -> None:
    blob = log_of(*(build(group, timestamp_ms=0, codec=codec) for group, codec in groups))
    expected = [record for batch in split(blob) for record in read_records(batch)]
    table = to_arrow(blob, topic="t", partition=7, include_headers=include_headers, verify=True)
    table.validate(full=True)
    assert table.schema == schema(include_headers=include_headers)
    assert table.column("key").to_pylist() == [record.key for record in expected]
    assert table.column("value").to_pylist() == [record.value for record in expected]
    assert table.column("offset").to_pylist() == list(range(len(expected)))
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [record.timestamp * 1000 for record in expected]
    assert set(table.column("topic").to_pylist()) <= {"t"}
    assert set(table.column("partition").to_pylist()) <= {7}
    assert set(table.column("timestampType").to_pylist()) <= {0}
    if include_headers:
        shown = table.column("headers").to_pylist()
        headers = [None if row is None else [(entry["key"], entry["value"]) for entry in row] for row in shown]
        assert headers == [list(record.headers) or None for record in expected]


@given(record_lists, codecs, st.integers(120, 2000))
def test_batches_made_from_columns_hold_the_rows_in_order(records: list[Record], codec: int, limit: int) -> None:
    batches = from_arrow(
        rows(*records),
        timestamp_ms=NOW,
        producer_id=4,
        producer_epoch=1,
        base_sequence=2**31 - 2,
        transactional=True,
        codec=codec,
        max_batch_bytes=max(limit, 600),
        timestamp_column="at",
    )
    assert all(len(data) <= max(limit, 600) for data in batches)
    sequence = 2**31 - 2
    for data in batches:
        batch = Batch.parse(data)
        check(batch, framing=True)
        assert (batch.base_sequence, batch.producer_id, batch.producer_epoch) == (sequence, 4, 1)
        assert batch.is_transactional and batch.codec == codec
        sequence = (batch.last_sequence + 1) % 2**31
    got = [record for batch in split(log_of(*batches)) for record in read_records(batch)]
    assert got == numbered(records)


def test_the_same_rows_give_the_same_bytes_and_what_the_builder_gives() -> None:
    records = [Record(0, NOW, b"k%d" % i, b"v" * i, (("h", b"x"),) if i % 2 else ()) for i in range(50)]
    (data,) = from_arrow(rows(*records), timestamp_ms=NOW, timestamp_column="at")
    assert data == build(records, timestamp_ms=NOW)
    assert from_arrow(rows(*records), timestamp_ms=NOW) == [data]


def test_a_record_without_headers_has_none_as_in_spark() -> None:
    records = [Record(0, NOW, None, b"v", (("h", b"x"),) if number % 3 == 0 else ()) for number in range(20)]
    blob = log_of(build(records[:9], timestamp_ms=NOW), build(records[9:], timestamp_ms=NOW))
    shown = to_arrow(blob, topic="t", partition=0, include_headers=True).column("headers")
    assert shown.to_pylist() == [[{"key": "h", "value": b"x"}] if record.headers else None for record in records]
    assert shown.null_count == 13
    plain = to_arrow(build([(b"k", b"v")], timestamp_ms=NOW), topic="t", partition=0, include_headers=True)
    assert plain.column("headers").to_pylist() == [None]


def test_one_row_may_be_larger_than_batches_are_meant_to_be() -> None:
    table = pa.RecordBatch.from_pydict({"value": [b"s" * 100] * 3 + [b"l" * 5000] + [b"s" * 100] * 20})
    batches = from_arrow(table, timestamp_ms=NOW, max_batch_bytes=1000, max_row_bytes=6000)
    got = [record.value for batch in split(log_of(*batches)) for record in read_records(batch)]
    assert got == table.column("value").to_pylist()
    assert [len(data) > 1000 for data in batches].count(True) == 1
    with pytest.raises(Refused, match=r"row 3 makes a batch of 50\d\d bytes, and 5000 are allowed"):
        from_arrow(table, timestamp_ms=NOW, max_batch_bytes=1000, max_row_bytes=5000)


@pytest.mark.parametrize("codec", range(5))
def test_rows_that_compression_makes_larger_are_dealt_to_smaller_batches(codec: int) -> None:
    values = [hashlib.sha512(b"%d" % number).digest() for number in range(200)]
    batches = from_arrow(
        pa.RecordBatch.from_pydict({"value": values}), timestamp_ms=NOW, codec=codec, max_batch_bytes=700
    )
    assert all(len(data) <= 700 for data in batches)
    assert [record.value for batch in split(log_of(*batches)) for record in read_records(batch)] == values


def test_only_the_offsets_asked_for_are_read() -> None:
    blob = log_of(*(build([(b"k", b"%d" % i)] * 10, timestamp_ms=0, codec=i) for i in range(5)))
    table = to_arrow(blob, topic="t", partition=0, from_offset=15, to_offset=32)
    assert table.column("offset").to_pylist() == list(range(15, 32))
    assert to_arrow(blob, topic="t", partition=0, from_offset=50).num_rows == 0


def test_markers_never_show_and_the_reader_may_leave_out_aborted_batches() -> None:
    def transactional(producer_id: int) -> bytes:
        return build(
            [(b"k", b"%d" % producer_id)],
            timestamp_ms=0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    blob = log_of(transactional(1), transactional(2), control_batch(1, 0, False, 0, 0), control_batch(2, 0, True, 0, 0))
    seen: list[int] = []

    def skip(batch: Batch) -> bool:
        seen.append(batch.base_offset)
        return batch.producer_id == 1

    assert to_arrow(blob, topic="t", partition=0, skip=skip).column("value").to_pylist() == [b"2"]
    assert seen == [0, 1, 2, 3], "a reader of committed records must see the markers go by"
    assert to_arrow(split(blob), topic="t", partition=0).num_rows == 2


def test_the_timestamp_type_follows_each_batch() -> None:
    dated = bytearray(build([(b"k", b"v")] * 2, timestamp_ms=5))
    place(dated, 0, 0, append_time_ms=NOW)
    table = to_arrow(log_of(build([(b"k", b"v")], timestamp_ms=5), bytes(dated)), topic="t", partition=0)
    assert table.column("timestampType").to_pylist() == [0, 1, 1]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [5000, NOW * 1000, NOW * 1000]


def test_a_fetch_that_ends_inside_a_batch_gives_the_whole_ones() -> None:
    one = build([(b"k", b"v")], timestamp_ms=0)
    assert to_arrow(one + one[:-1], topic="t", partition=0).num_rows == 1


def test_a_damaged_batch_is_refused() -> None:
    blob = bytearray(build([(b"k", b"v")], timestamp_ms=0))
    blob[-5] ^= 0x40
    with pytest.raises(Refused) as refused:
        to_arrow(blob, topic="t", partition=0, verify=True)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(Refused) as refused:
        to_arrow(blob, topic="t", partition=0)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_a_row_too_large_for_any_batch_is_refused_by_its_number() -> None:
    table = pa.RecordBatch.from_pydict({"value": pa.array([b"x", b"x" * 2000], pa.binary())})
    with pytest.raises(Refused, match="row 1") as refused:
        from_arrow(table, timestamp_ms=NOW, max_batch_bytes=1000)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert len(from_arrow(table, timestamp_ms=NOW, max_batch_bytes=1000, codec=4)) == 2, "compressed, it fits"


@pytest.mark.parametrize(
    "make",
    [
        lambda: pa.array(["a", None, "c"], pa.string()),
        lambda: pa.array(["a", None, "c"], pa.large_string()),
        lambda: pa.array([b"a", None, b"c"], pa.large_binary()),
        lambda: pa.array([b"a", None, b"c"], pa.binary(1)),
        lambda: pa.array(["a", None, "c"]).dictionary_encode(),
        lambda: pa.array([b"a", None, b"c"], pa.binary_view()),
        lambda: pa.array([b"zz", b"a", None, b"c", b"zz"], pa.binary())[1:4],
    ],
    ids=["string", "large string", "large binary", "fixed size", "dictionary", "view", "slice"],
)
def test_values_may_be_any_kind_of_string_or_bytes(make: Callable[[], pa.Array]) -> None:
    table = pa.RecordBatch.from_arrays([make(), pa.nulls(3)], ["value", "key"])
    (data,) = from_arrow(table, timestamp_ms=NOW)
    assert [(r.key, r.value) for r in read_records(Batch.parse(data))] == [(None, b"a"), (None, None), (None, b"c")]


def test_a_table_of_several_chunks_is_one_run_of_sequences() -> None:
    chunk = pa.RecordBatch.from_pydict({"value": pa.array(["v"] * 4)})
    batches = from_arrow(
        pa.Table.from_batches([chunk, chunk]), timestamp_ms=NOW, producer_id=1, producer_epoch=0, base_sequence=0
    )
    assert [Batch.parse(data).base_sequence for data in batches] == [0, 4]


def test_a_header_that_is_null_is_no_header_without_a_name() -> None:
    """It was written as a header with an empty name and an empty value, which nobody has sent."""
    entries = pa.array([[{"key": "h", "value": b"1"}], [None]], pa.list_(HEADER))
    rows = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"]), entries], ["value", "headers"])
    with pytest.raises(ValueError, match="a header has no name"):
        from_arrow(rows, timestamp_ms=NOW)
    assert from_arrow(rows.slice(0, 1), timestamp_ms=NOW)


def test_headers_that_are_no_names_and_values_are_refused_in_words() -> None:
    entries = pa.array([[{"name": "h"}]], pa.list_(pa.struct([("name", pa.string())])))
    rows = pa.RecordBatch.from_arrays([pa.array([b"a"]), entries], ["value", "headers"])
    with pytest.raises(TypeError, match="not a list of structs with key and value"):
        from_arrow(rows, timestamp_ms=NOW)


def test_sliced_rows_keep_their_own_headers_and_timestamps() -> None:
    records = [Record(0, i, None, b"%d" % i, (("n", b"%d" % i),)) for i in range(10)]
    (data,) = from_arrow(rows(*records).slice(3, 4), timestamp_ms=NOW, timestamp_column="at")
    assert list(read_records(Batch.parse(data))) == numbered(records[3:7])


def test_columns_of_other_types_are_named_when_refused() -> None:
    with pytest.raises(TypeError, match="'value' is int64"):
        from_arrow(pa.RecordBatch.from_pydict({"value": [1]}), timestamp_ms=NOW)
    with pytest.raises(TypeError, match="headers"):
        from_arrow(pa.RecordBatch.from_pydict({"value": ["v"], "headers": ["h"]}), timestamp_ms=NOW)
    with pytest.raises(ValueError, match="'value'"):
        from_arrow(pa.RecordBatch.from_pydict({"key": ["k"]}), timestamp_ms=NOW)


@given(st.lists(fields, max_size=20), st.integers(1, 100))
def test_a_column_of_keys_goes_where_each_key_would(keys: list[bytes | None], n_partitions: int) -> None:
    expected = [-1 if key is None else partition_for_key(key, n_partitions) for key in keys]
    array = pa.array(keys, pa.binary())
    assert partition_column(array, n_partitions).to_pylist() == expected
    assert partition_column(pa.chunked_array([array, array]), n_partitions).to_pylist() == expected * 2
    assert partition_column(pa.nulls(2), n_partitions, null_partition=3).to_pylist() == [3, 3]

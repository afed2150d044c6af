"""Batches to Arrow columns and back, without a Python object per record.

Reading gives the columns of Spark's Kafka source; writing takes the columns of its sink. The loops are in `_select`;
this module wraps their flat buffers as Arrow arrays and unwraps them again, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import ErrorCode, Refused

from . import _select
from .batch import Batch, check, split
from .compression import NONE, compress, decompress
from .layout import (
    DECOMPRESSED_LIMIT,
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    Buffer,
    Column,
    HeaderColumns,
    Stretch,
    seal,
    with_header_room,
)
from .sequence import next_sequence

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET_MAX = 2**63 - 1


def schema(*, include_headers: bool = False) -> pa.Schema:
    """The columns `to_arrow` gives: those of Spark's own Kafka source, in its order."""
    import pyarrow as pa

    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        fields.append(pa.field("headers", pa.list_(_header_type())))
    return pa.schema(fields)


def _header_type() -> pa.StructType:
    import pyarrow as pa

    return pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def to_arrow(
    batches: Buffer | Iterable[Batch],
    *,
    topic: str,
    partition: int,
    skip: Callable[[Batch], bool] | None = None,
    from_offset: int = 0,
    to_offset: int = _OFFSET_MAX,
    include_headers: bool = False,
    verify: bool = False,
    limit: int = DECOMPRESSED_LIMIT,
) -> pa.RecordBatch:
    """The records with `from_offset` <= offset < `to_offset` as one Arrow record batch.

    `batches` are a fetched blob (a batch cut short at its end is left out) or batches already split. Control batches
    are left out; `skip` is asked for every batch, in order, whether to leave it out (aborted transactions). `verify`
    checks each CRC first. Refused if a batch is malformed.
    """
    import pyarrow as pa

    if isinstance(batches, (bytes, bytearray, memoryview)):
        batches = split(batches, partial_tail=True)
    stretches: list[Stretch] = []
    for batch in batches:
        # Ask for every batch: a read_committed reader learns from markers which transactions have ended.
        skipped = skip is not None and skip(batch)
        if skipped or batch.is_control or batch.last_offset < from_offset or batch.base_offset >= to_offset:
            continue
        if verify:
            check(batch, stored=True)
        payload = decompress(batch.codec, batch.payload, limit)
        append_time = batch.max_timestamp if batch.timestamp_type else NO_TIMESTAMP
        stretches.append(Stretch(payload, batch.record_count, batch.base_offset, batch.base_timestamp, append_time))
    try:
        decoded = _select.decode_columns(stretches, from_offset, to_offset, include_headers)
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_RECORD, str(error)) from None
    rows, keys, values, offsets, timestamps, headers = decoded
    total = sum(rows)
    columns = [
        _array(pa.binary(), total, keys),
        _array(pa.binary(), total, values),
        pa.repeat(pa.scalar(topic, pa.string()), total),
        pa.repeat(pa.scalar(partition, pa.int32()), total),
        pa.Array.from_buffers(pa.int64(), total, [None, pa.py_buffer(offsets)]),
        pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), total, [None, pa.py_buffer(timestamps)]),
        _timestamp_types(stretches, rows),
    ]
    if headers is not None:
        columns.append(_headers_array(total, headers))
    return pa.RecordBatch.from_arrays(columns, schema=schema(include_headers=include_headers))


def _array(kind: pa.DataType, rows: int, column: Column) -> pa.Array:
    import pyarrow as pa

    validity = None if column.validity is None else pa.py_buffer(column.validity)
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)])


def _timestamp_types(stretches: Sequence[Stretch], rows: Sequence[int]) -> pa.Array:
    """0 for CreateTime, 1 for LogAppendTime: one run per change, in practice one run."""
    import pyarrow as pa

    runs: list[list[int]] = []
    for stretch, count in zip(stretches, rows, strict=True):
        kind = int(stretch.append_time >= 0)
        if runs and runs[-1][0] == kind:
            runs[-1][1] += count
        else:
            runs.append([kind, count])
    arrays = [pa.repeat(pa.scalar(kind, pa.int32()), count) for kind, count in runs]
    return pa.concat_arrays(arrays) if arrays else pa.array([], pa.int32())


def _headers_array(rows: int, headers: HeaderColumns) -> pa.Array:
    import pyarrow as pa

    names, contents = headers.names or Column(bytes(4), b""), headers.contents or Column(bytes(4), b"")
    count = len(names.offsets) // 4 - 1
    children = [_array(pa.string(), count, names), _array(pa.binary(), count, contents)]
    entries = pa.StructArray.from_arrays(children, fields=list(_header_type()))
    offsets = pa.py_buffer(headers.offsets)
    validity = _where_offsets_move(offsets, rows)
    return pa.Array.from_buffers(pa.list_(_header_type()), rows, [validity, offsets], children=[entries])


def _where_offsets_move(offsets: pa.Buffer, rows: int) -> pa.Buffer | None:
    """The validity of a list column in which an empty list is null, as Spark shows a record without headers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not rows:
        return None
    starts = pa.Array.from_buffers(pa.int32(), rows, [None, offsets])
    ends = pa.Array.from_buffers(pa.int32(), rows, [None, offsets], offset=1)
    return pc.not_equal(starts, ends).buffers()[1]


@dataclass(frozen=True, slots=True, eq=False)
class UnsealedBatch:
    """Encoded rows that have no producer and no sequence number yet."""

    #: The records, behind room for the header.
    data: bytearray
    record_count: int
    base_timestamp: int
    max_timestamp: int
    attributes: int

    def seal(self, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
        """The finished batch."""
        return seal(
            self.data,
            attributes=self.attributes,
            last_offset_delta=self.record_count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.record_count,
        )


def encode_arrow(
    rows: pa.RecordBatch | pa.Table,
    *,
    timestamp_ms: int,
    transactional: bool = False,
    codec: int = NONE,
    level: int | None = None,
    max_batch_bytes: int = 1_048_576,
    max_row_bytes: int | None = None,
    timestamp_column: str | None = None,
) -> Iterator[UnsealedBatch]:
    """All rows, in order, as batches of at most `max_batch_bytes`, to be sealed.

    Columns `value` (required), `key` and `headers` are those of Spark's Kafka sink; others are left alone. Records
    have `timestamp_ms` unless `timestamp_column` names a column with their timestamps. A row that does not fit a batch
    gets one of its own of up to `max_row_bytes`, which is `max_batch_bytes` unless given; one that does not fit that
    either is refused (MESSAGE_TOO_LARGE). The same rows give the same bytes.
    """
    import pyarrow as pa

    for part in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        keys = _column(part, "key", required=False)
        values = _column(part, "value", required=True)
        headers = _header_columns(part)
        timestamps = None if timestamp_column is None else _milliseconds(part, timestamp_column, timestamp_ms)
        start = 0
        limit = max_batch_bytes
        while start < part.num_rows:
            data, count, base_timestamp, max_timestamp = _select.encode_columns(
                keys, values, headers, timestamps, start, part.num_rows, timestamp_ms, limit, HEADER_SIZE
            )
            if codec != NONE:
                data = with_header_room(compress(codec, memoryview(data)[HEADER_SIZE:], level))
            most = max_batch_bytes if max_row_bytes is None else max_row_bytes
            if len(data) > most and count > 1:
                limit = max(limit // 2, 1)  # incompressible data grows a little
                continue
            if len(data) > most:
                why = f"row {start} makes a batch of {len(data)} bytes, and {most} are allowed"
                raise Refused(ErrorCode.MESSAGE_TOO_LARGE, why)
            attributes = codec | (TRANSACTIONAL if transactional else 0)
            yield UnsealedBatch(data, count, base_timestamp, max_timestamp, attributes)
            start += count


def from_arrow(
    rows: pa.RecordBatch | pa.Table,
    *,
    timestamp_ms: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    codec: int = NONE,
    level: int | None = None,
    max_batch_bytes: int = 1_048_576,
    max_row_bytes: int | None = None,
    timestamp_column: str | None = None,
) -> list[bytes]:
    """All rows, in order, as finished batches with consecutive sequences. The arguments are those of `encode_arrow`."""
    sequence = base_sequence
    result: list[bytes] = []
    for batch in encode_arrow(
        rows, timestamp_ms=timestamp_ms, transactional=transactional, codec=codec, level=level,
        max_batch_bytes=max_batch_bytes, max_row_bytes=max_row_bytes, timestamp_column=timestamp_column,
    ):  # fmt: skip
        result.append(batch.seal(producer_id, producer_epoch, sequence))
        if sequence != NO_SEQUENCE:
            sequence = next_sequence(sequence, batch.record_count)
    return result


def partition_column(keys: pa.Array | pa.ChunkedArray, n_partitions: int, null_partition: int = -1) -> pa.Array:
    """The partition Kafka's default partitioner gives to each key; rows without one get `null_partition`."""
    import pyarrow as pa

    if isinstance(keys, pa.ChunkedArray):
        keys = pa.concat_arrays(keys.chunks) if keys.num_chunks else pa.array([], keys.type)
    partitions = _select.partition_rows(_bytes_column(keys, "key"), len(keys), n_partitions, null_partition)
    return pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(partitions)])


def _column(rows: pa.RecordBatch, name: str, *, required: bool) -> Column | None:
    index = rows.schema.get_field_index(name)
    if index < 0:
        if required:
            raise ValueError(f"there is no column {name!r} among {rows.schema.names}")
        return None
    return _bytes_column(rows.column(index), name)


def _bytes_column(array: pa.Array, name: str) -> Column | None:
    """The buffers of an Arrow array of strings or bytes. None where every row is null."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_null(kind):
        return None
    narrow = pa.types.is_binary(kind) or pa.types.is_string(kind)
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not (narrow or wide):
        if pa.types.is_dictionary(kind):
            return _bytes_column(array.dictionary_decode(), name)
        if not (pa.types.is_fixed_size_binary(kind) or str(kind) in ("binary_view", "string_view")):
            raise TypeError(f"column {name!r} is {kind}; keys and values are strings or bytes")
        array, wide = array.cast(pa.large_binary()), True
    validity, offsets, data = array.buffers()
    return Column(
        offsets=_view(offsets) if offsets is not None else bytes(8),
        data=_view(data) if data is not None else b"",
        validity=_view(validity) if validity is not None and array.null_count else None,
        first=array.offset,
        wide=wide,
    )


def _view(buffer: pa.Buffer) -> memoryview:
    return memoryview(buffer)


def _header_columns(rows: pa.RecordBatch) -> HeaderColumns | None:
    import pyarrow as pa

    index = rows.schema.get_field_index("headers")
    if index < 0:
        return None
    array = rows.column(index)
    if pa.types.is_null(array.type):
        return None
    wide = pa.types.is_large_list(array.type)
    if not (wide or pa.types.is_list(array.type)) or not pa.types.is_struct(array.type.value_type):
        raise TypeError(f"column 'headers' is {array.type}, not a list of structs with key and value")
    entries = array.values
    places = [entries.type.get_field_index(name) for name in ("key", "value")]
    if -1 in places:  # not there, or there twice
        raise TypeError(f"column 'headers' is {array.type}, not a list of structs with key and value")
    # Flattened, an entry that is null has no name, as it is to be; a bare child may have anything in its place.
    key, value = map(entries.flatten().__getitem__ if entries.null_count else entries.field, places)
    names, contents = _bytes_column(key, "headers.key"), _bytes_column(value, "headers.value")
    validity, offsets = array.buffers()[:2]
    return HeaderColumns(
        offsets=_view(offsets) if offsets is not None else bytes(8),
        names=names,
        contents=contents,
        validity=_view(validity) if validity is not None and array.null_count else None,
        first=array.offset,
        wide=wide,
    )


def _milliseconds(rows: pa.RecordBatch, name: str, timestamp_ms: int) -> memoryview:
    import pyarrow as pa
    import pyarrow.compute as pc

    array = rows.column(name)
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False)
    array = pc.fill_null(array.cast(pa.int64()), timestamp_ms)
    start = array.offset * 8
    return _view(array.buffers()[1])[start : start + 8 * len(array)]

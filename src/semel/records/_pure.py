"""The loops over records in plain Python. The compiled twin (`_speedups`) must behave the same; tests compare them.

Every function takes bytes from outside and trusts none of them: a length that points past the end raises
`ValueError` before anything is read or allocated there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias

from .layout import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RECORD_SIZE_MIN,
    Buffer,
    Column,
    HeaderColumns,
    Headers,
    Record,
    Stretch,
    write_header,
)

#: timestamp delta, offset delta, key from, key to, value from, value to (there the headers begin), where the record
#: ends; a field that is null begins at -1
Parsed: TypeAlias = tuple[int, int, int, int, int, int, int]

_INT64_MAX = 2**63 - 1
#: A varint of 32 bits takes no more.
_VARINT_BYTES_MAX = 5


def _int64(number: int) -> int:
    """`number` in 64-bit arithmetic: a forged delta wraps, as in every other reader of the format."""
    return number if -_INT64_MAX <= number <= _INT64_MAX else ((number + 2**63) & (2**64 - 1)) - 2**63


def varint_size(value: int) -> int:
    """How many bytes the zigzag varint of `value` takes."""
    zigzag = (value << 1) ^ (value >> 63)
    return (zigzag.bit_length() + 6) // 7 or 1


def write_varint(out: bytearray, value: int) -> None:
    """Append the zigzag varint of `value`, of up to 64 bits."""
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def _read(data: Buffer, position: int, end: int, last_shift: int, last_byte: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if position >= end:
            raise ValueError("a varint runs past the end")
        byte = data[position]
        position += 1
        if shift == last_shift and byte > last_byte:
            raise ValueError("a varint is too long")
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """The zigzag varint of up to 32 bits at `position`, and the position after it."""
    return _read(data, position, end, 28, 0x0F)


def read_varlong(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """The zigzag varint of up to 64 bits at `position`, and the position after it."""
    return _read(data, position, end, 63, 0x01)


def _field(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """From and to of a nullable byte field; from -1 when it is null."""
    length, position = read_varint(data, position, end)
    if length < 0:
        if length != -1:
            raise ValueError("a field has a negative length")
        return -1, position
    if length > end - position:
        raise ValueError("a field runs past the end of its record")
    return position, position + length


def parse_record(data: Buffer, position: int) -> Parsed:
    """Where the parts of the record at `position` lie. They must fill the record exactly."""
    length, position = read_varint(data, position, len(data))
    if length <= 0 or length > len(data) - position:
        raise ValueError("a record runs past the end of its batch")
    end = position + length
    timestamp_delta, position = read_varlong(data, position + 1, end)
    offset_delta, position = read_varint(data, position, end)
    key_from, key_to = _field(data, position, end)
    value_from, value_to = _field(data, key_to, end)
    count, position = read_varint(data, value_to, end)
    if count < 0 or count > end - position:
        raise ValueError("a record has an impossible number of headers")
    for _ in range(count):
        name_from, position = _field(data, position, end)
        if name_from < 0:
            raise ValueError("a header has no name")
        _, position = _field(data, position, end)
    if position != end:
        raise ValueError("a record is longer than what it holds")
    return timestamp_delta, offset_delta, key_from, key_to, value_from, value_to, end


def _check_count(payload: Buffer, count: int) -> None:
    if count < 0 or count > len(payload) // RECORD_SIZE_MIN:
        raise ValueError("more records are announced than the batch can hold")


def check_framing(payload: Buffer, count: int, dense: bool, last_offset_delta: int, require_keys: bool) -> int:
    """Walk `count` records that must fill `payload` exactly. Returns the largest timestamp delta.

    `dense`: offset deltas are 0, 1, 2, ...; otherwise (after compaction) they only rise, up to `last_offset_delta`.
    """
    _check_count(payload, count)
    position = 0
    previous = -1
    largest = -(2**63)
    for index in range(count):
        timestamp_delta, offset_delta, key_from, _, _, _, position = parse_record(payload, position)
        if offset_delta != index if dense else not previous < offset_delta <= last_offset_delta:
            raise ValueError("a record is out of its place in the batch")
        if require_keys and key_from < 0:
            raise ValueError("a record has no key, and the topic is compacted")
        previous = offset_delta
        largest = max(largest, timestamp_delta)
    if position != len(payload):
        raise ValueError("bytes are left over after the last record")
    return largest


class RecordWalk:
    """Walks the records of one batch, whose bytes may come in pieces, and notes what a topic may not accept.

    `dense` and `last_offset_delta` are those of `check_framing`. A record is far off if its timestamp is outside of
    `oldest` to `newest`, unless it has none (-1); a timestamp that does not fit 64 bits is always far off. With
    `require_keys` a record without a key is noted as keyless and not as far off. At most `named_max` records of both
    kinds are named. Records before `from_offset_delta` are walked like the others, but nothing is noted of them.
    """

    def __init__(
        self,
        count: int,
        dense: bool,
        last_offset_delta: int,
        require_keys: bool,
        base_timestamp: int,
        oldest: int,
        newest: int,
        named_max: int,
        from_offset_delta: int = 0,
    ) -> None:
        self._from_offset_delta = from_offset_delta
        self._count = count
        self._dense = dense
        self._last_offset_delta = last_offset_delta
        self._require_keys = require_keys
        self._base_timestamp = base_timestamp
        self._oldest = oldest
        self._newest = newest
        self._named_max = named_max
        self._previous = -1
        #: How many records were walked so far.
        self.walked = 0
        #: The offset delta of the first record at or after `from_offset_delta`; -1 before there is one.
        self.first_offset_delta = -1
        #: The largest timestamp so far; -1 where there is none.
        self.largest_timestamp = -1
        #: How long the next piece must be at least, counting what was left of this one; 0 when all is walked.
        self.wanted = 0
        #: Offset deltas, and times.
        self.keyless: list[int] = []
        self.far_off: list[tuple[int, int]] = []
        self.has_keyless = self.has_far_off = False
        if count < 0:
            raise ValueError("more records are announced than the batch can hold")

    def feed(self, piece: Buffer, is_last: bool) -> int:
        """Walk every whole record. Returns how many bytes were used; the rest must come again with the next piece.

        `ValueError`: these cannot be the records of this batch.
        """
        size = len(piece)
        if is_last and self._count - self.walked > size // RECORD_SIZE_MIN:
            raise ValueError("more records are announced than the batch can hold")
        self.wanted = 0
        position = 0
        while self.walked < self._count:
            if not is_last and (wanted := _wanted(piece, position, size)):
                self.wanted = wanted
                break
            timestamp_delta, offset_delta, key_from, _, _, _, end = parse_record(piece, position)
            if (
                offset_delta != self.walked
                if self._dense
                else not self._previous < offset_delta <= self._last_offset_delta
            ):
                raise ValueError("a record is out of its place in the batch")
            self._previous = offset_delta
            position = end
            self.walked += 1
            if offset_delta >= self._from_offset_delta:
                self._note(offset_delta, timestamp_delta, key_from < 0)
        if self.walked == self._count and position != size:
            raise ValueError("bytes are left over after the last record")
        return position

    def _note(self, offset_delta: int, timestamp_delta: int, is_keyless: bool) -> None:
        if self.first_offset_delta < 0:
            self.first_offset_delta = offset_delta
        exact = self._base_timestamp + timestamp_delta
        timestamp = ((exact + 2**63) & (2**64 - 1)) - 2**63
        self.largest_timestamp = max(self.largest_timestamp, timestamp)
        named = len(self.keyless) + len(self.far_off) < self._named_max
        if self._require_keys and is_keyless:
            self.has_keyless = True
            if named:
                self.keyless.append(offset_delta)
        elif timestamp != -1 and (not self._oldest <= timestamp <= self._newest or exact != timestamp):
            self.has_far_off = True
            if named:
                self.far_off.append((offset_delta, timestamp))


def _wanted(piece: Buffer, position: int, size: int) -> int:
    """0 if the record at `position` is whole. Otherwise how many bytes it takes, or one more than there are."""
    try:
        length, body = read_varint(piece, position, size)
    except ValueError:
        if size - position < _VARINT_BYTES_MAX:
            return size - position + 1
        raise
    return body - position + length if length > size - body else 0


def _headers(data: Buffer, position: int, end: int) -> Headers:
    count, position = read_varint(data, position, end)
    headers = []
    for _ in range(count):
        name_from, position = _field(data, position, end)
        name = bytes(data[name_from:position]).decode(errors="replace")
        content_from, position = _field(data, position, end)
        headers.append((name, None if content_from < 0 else bytes(data[content_from:position])))
    return tuple(headers)


def read_records(payload: Buffer, count: int, base_offset: int, base_timestamp: int, append_time: int) -> list[Record]:
    """Every record of a payload. `append_time` >= 0 stands in for each record's own timestamp."""
    _check_count(payload, count)
    records = []
    position = 0
    for _ in range(count):
        parsed = parse_record(payload, position)
        timestamp_delta, offset_delta, key_from, key_to, value_from, value_to, position = parsed
        records.append(
            Record(
                _int64(base_offset + offset_delta),
                append_time if append_time >= 0 else _int64(base_timestamp + timestamp_delta),
                None if key_from < 0 else bytes(payload[key_from:key_to]),
                None if value_from < 0 else bytes(payload[value_from:value_to]),
                _headers(payload, value_to, position) if position - value_to > 1 else (),
            )
        )
    if position != len(payload):
        raise ValueError("bytes are left over after the last record")
    return records


def write_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> None:
    """Append one encoded record."""
    body = bytearray(b"\0")
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_field(body, key)
    _write_field(body, value)
    write_varint(body, len(headers))
    for name, content in headers:
        _write_field(body, name.encode())
        _write_field(body, content)
    write_varint(out, len(body))
    out += body


def _write_field(out: bytearray, field: Buffer | None) -> None:
    if field is None:
        out.append(1)
    else:
        write_varint(out, len(field))
        out += field


def build_pairs(
    pairs: Sequence[tuple[Buffer | None, Buffer | None]],
    timestamp_ms: int,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """A coordinator's own batch: keys and values with one timestamp, uncompressed, without sequences.

    The same bytes as `build` makes, at a fraction of its cost: every step of a transaction writes one. They may be
    changed, so a log places them without a copy.
    """
    data = bytearray(HEADER_SIZE)
    for position, (key, value) in enumerate(pairs):
        write_record(data, 0, position, key, value, ())
    write_header(
        data,
        attributes=attributes,
        last_offset_delta=len(pairs) - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=len(pairs),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
    return data


def retain_records(payload: Buffer, count: int, mask: Sequence[bool], timestamp_shift: int) -> bytes:
    """The encoded records that `mask` keeps, offset deltas as they were, timestamp deltas moved by a constant."""
    _check_count(payload, count)
    out = bytearray()
    position = 0
    for index in range(count):
        begin = position
        timestamp_delta, _, _, _, _, _, position = parse_record(payload, position)
        if not mask[index]:
            continue
        if timestamp_shift:
            _, body = read_varint(payload, begin, position)
            _, rest = read_varlong(payload, body + 1, position)
            timestamp_delta = _int64(timestamp_delta + timestamp_shift)
            write_varint(out, 1 + varint_size(timestamp_delta) + position - rest)
            out.append(payload[body])
            write_varint(out, timestamp_delta)
            out += payload[rest:position]
        else:
            out += payload[begin:position]
    return bytes(out)


def _ints(buffer: Buffer, wide: bool) -> memoryview:
    return memoryview(buffer).cast("B").cast("q" if wide else "i")


def _is_valid(validity: Buffer | None, row: int) -> bool:
    return validity is None or bool(validity[row >> 3] >> (row & 7) & 1)


def _cell(column: Column | None, row: int) -> Buffer | None:
    if column is None:
        return None
    row += column.first
    if not _is_valid(column.validity, row):
        return None
    offsets = _ints(column.offsets, column.wide)
    return memoryview(column.data)[offsets[row] : offsets[row + 1]]


def encode_columns(
    keys: Column | None,
    values: Column | None,
    headers: HeaderColumns | None,
    timestamps: Buffer | None,
    start: int,
    stop: int,
    timestamp_ms: int,
    limit_bytes: int,
    reserve: int,
) -> tuple[bytearray, int, int, int]:
    """Encode rows from `start` until `stop` or until the next would pass `limit_bytes`; at least one.

    Returns `reserve` zero bytes (room for the batch header) and the records; how many; the first and the largest
    timestamp. `timestamps` are 64-bit milliseconds, one a row; without them every record has `timestamp_ms`.
    """
    out = bytearray(reserve)
    times = _ints(timestamps, True) if timestamps is not None else None
    base_timestamp = max_timestamp = timestamp_ms if times is None else times[start]
    count = 0
    for row in range(start, stop):
        timestamp = timestamp_ms if times is None else times[row]
        size = len(out)
        write_record(
            out,
            _int64(timestamp - base_timestamp),
            count,
            _cell(keys, row),
            _cell(values, row),
            _header_cells(headers, row) if headers else (),
        )
        if count and len(out) > limit_bytes:
            del out[size:]
            break
        count += 1
        max_timestamp = max(max_timestamp, timestamp)
    return out, count, base_timestamp, max_timestamp


def _header_cells(headers: HeaderColumns, row: int) -> list[tuple[str, bytes | None]]:
    row += headers.first
    if not _is_valid(headers.validity, row):
        return []
    offsets = _ints(headers.offsets, headers.wide)
    cells: list[tuple[str, bytes | None]] = []
    for index in range(offsets[row], offsets[row + 1]):
        name = _cell(headers.names, index)
        if name is None:
            raise ValueError("a header has no name")
        content = _cell(headers.contents, index)
        cells.append((bytes(name).decode(), None if content is None else bytes(content)))
    return cells


class _Growing:
    """A column being written: offsets, bytes and validity, all valid until a null comes."""

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self.data = bytearray()
        self.nulls: list[int] = []

    def append(self, payload: Buffer, begin: int, end: int) -> None:
        if begin < 0:
            self.nulls.append(len(self.offsets) - 1)
        else:
            self.data += payload[begin:end]
        self.offsets.append(len(self.data))

    def column(self) -> Column:
        validity = None
        if self.nulls:
            rows = len(self.offsets) - 1
            validity = bytearray(b"\xff" * ((rows + 7) // 8))
            for row in self.nulls:
                validity[row >> 3] &= ~(1 << (row & 7)) & 0xFF
        return Column(bytearray(self.offsets.tobytes()), self.data, validity)


def decode_columns(
    stretches: Sequence[Stretch], from_offset: int, to_offset: int, with_headers: bool
) -> tuple[list[int], Column, Column, bytearray, bytearray, HeaderColumns | None]:
    """Every record with `from_offset` <= offset < `to_offset`, as columns.

    Returns how many rows came of each stretch; keys; values; offsets (64-bit); timestamps (64-bit, microseconds);
    headers if wanted.
    """
    if sum(len(stretch.payload) for stretch in stretches) > 2**31 - 1:
        raise ValueError("more than 2 GiB of records do not fit one set of columns")
    keys, values, names, contents = _Growing(), _Growing(), _Growing(), _Growing()
    header_offsets = array("i", [0])
    offsets, timestamps = array("q"), array("q")
    rows = []
    for payload, count, base_offset, base_timestamp, append_time in stretches:
        _check_count(payload, count)
        before = len(offsets)
        position = 0
        for _ in range(count):
            parsed = parse_record(payload, position)
            timestamp_delta, offset_delta, key_from, key_to, value_from, value_to, position = parsed
            offset = _int64(base_offset + offset_delta)
            if not from_offset <= offset < to_offset:
                continue
            timestamp = append_time if append_time >= 0 else _int64(base_timestamp + timestamp_delta)
            offsets.append(offset)
            timestamps.append(min(max(timestamp * 1000, -_INT64_MAX), _INT64_MAX))
            keys.append(payload, key_from, key_to)
            values.append(payload, value_from, value_to)
            if with_headers:
                header_count, at = read_varint(payload, value_to, position)
                for _ in range(header_count):
                    begin, at = _field(payload, at, position)
                    names.append(payload, begin, at)
                    begin, at = _field(payload, at, position)
                    contents.append(payload, begin, at)
                header_offsets.append(len(names.offsets) - 1)
        if position != len(payload):
            raise ValueError("bytes are left over after the last record")
        rows.append(len(offsets) - before)
    headers = None
    if with_headers:
        headers = HeaderColumns(bytearray(header_offsets.tobytes()), names.column(), contents.column())
    return (
        rows,
        keys.column(),
        values.column(),
        bytearray(offsets.tobytes()),
        bytearray(timestamps.tobytes()),
        headers,
    )


def murmur2(data: Buffer) -> int:
    """Kafka's hash of a key, as an unsigned 32-bit number."""
    length = len(data)
    multiplier = 0x5BD1E995
    result = 0x9747B28C ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * multiplier & 0xFFFFFFFF
        word = (word ^ word >> 24) * multiplier & 0xFFFFFFFF
        result = result * multiplier & 0xFFFFFFFF ^ word
    if length > whole:
        result = (result ^ int.from_bytes(data[whole:], "little")) * multiplier & 0xFFFFFFFF
    result = (result ^ result >> 13) * multiplier & 0xFFFFFFFF
    return result ^ result >> 15


def partition_for_key(key: Buffer, n_partitions: int) -> int:
    """The partition Kafka's default partitioner gives to `key`."""
    return (murmur2(key) & 0x7FFFFFFF) % n_partitions


def partition_rows(keys: Column | None, rows: int, n_partitions: int, null_partition: int) -> bytearray:
    """The partition of each row, 32-bit; rows without a key get `null_partition`."""
    partitions = array("i")
    for row in range(rows):
        key = _cell(keys, row)
        partitions.append(null_partition if key is None else partition_for_key(key, n_partitions))
    return bytearray(partitions.tobytes())

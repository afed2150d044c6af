"""The loops over records in plain Python: the definition that the compiled twin (`_speedups`) is held equal to.

Every function takes bytes from outside and trusts none of them: a length that points past the end raises
`ValueError` before anything is read or allocated there.
"""

from __future__ import annotations

from collections.abc import Sequence

from .layout import Buffer, Record


def varint_size(value: int) -> int:
    """How many bytes the zigzag varint of a 64-bit `value` takes."""
    zigzag = (value << 1) ^ (value >> 63)
    return (zigzag.bit_length() + 6) // 7 or 1


def write_varint(out: bytearray, value: int) -> None:
    """Append the zigzag varint of a 64-bit `value`."""
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """The zigzag varint (up to 64 bits) at `position`, and the position after it."""
    result = shift = 0
    end = len(data)
    while True:
        if position >= end:
            raise ValueError("a varint runs past the end")
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            raise ValueError("a varint is longer than 64 bits")
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7


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
    for field in (key, value):
        if field is None:
            body.append(1)
        else:
            write_varint(body, len(field))
            body += field
    write_varint(body, len(headers))
    for name, content in headers:
        encoded = name.encode()
        write_varint(body, len(encoded))
        body += encoded
        if content is None:
            body.append(1)
        else:
            write_varint(body, len(content))
            body += content
    write_varint(out, len(body))
    out += body


def _field(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Start and end of a nullable byte field; start -1 when it is null."""
    length, position = read_varint(data, position)
    if length < 0:
        if length != -1:
            raise ValueError("a field has a negative length")
        return -1, position
    if length > end - position:
        raise ValueError("a field runs past the end of its record")
    return position, position + length


def _open_record(data: Buffer, position: int) -> tuple[int, int]:
    length, position = read_varint(data, position)
    if length < 0 or length > len(data) - position:
        raise ValueError("a record runs past the end of its batch")
    if length == 0:
        raise ValueError("a record is empty")
    return position, position + length


def _skip_headers(data: Buffer, position: int, end: int) -> None:
    count, position = read_varint(data, position)
    if count < 0 or count > end - position:
        raise ValueError("a record has an impossible number of headers")
    for _ in range(count):
        start, position = _field(data, position, end)
        if start < 0:
            raise ValueError("a header has no key")
        _, position = _field(data, position, end)
    if position != end:
        raise ValueError("a record is longer or shorter than what it holds")


def check_framing(payload: Buffer, count: int, dense: bool, last_offset_delta: int, require_keys: bool) -> int:
    """Walk `count` records that must fill `payload` exactly; answer the largest timestamp delta seen.

    `dense`: offset deltas are 0, 1, 2, ...; otherwise (after compaction) they only rise, up to `last_offset_delta`.
    """
    position = 0
    previous = -1
    largest = -(2**63)
    for index in range(count):
        position, end = _open_record(payload, position)
        timestamp_delta, position = read_varint(payload, position + 1)
        offset_delta, position = read_varint(payload, position)
        if offset_delta != index if dense else not previous < offset_delta <= last_offset_delta:
            raise ValueError("a record is out of its place in the batch")
        previous = offset_delta
        start, position = _field(payload, position, end)
        if require_keys and start < 0:
            raise ValueError("a record has no key, and the topic is compacted")
        _, position = _field(payload, position, end)
        _skip_headers(payload, position, end)
        position = end
        largest = max(largest, timestamp_delta)
    if position != len(payload):
        raise ValueError("bytes are left over after the last record")
    return largest


def read_records(payload: Buffer, count: int, base_offset: int, base_timestamp: int, append_time: int) -> list[Record]:
    """Every record of a payload. `append_time` >= 0 stands in for each record's own timestamp."""
    records = []
    position = 0
    for _ in range(count):
        position, end = _open_record(payload, position)
        timestamp_delta, position = read_varint(payload, position + 1)
        offset_delta, position = read_varint(payload, position)
        start, position = _field(payload, position, end)
        key = None if start < 0 else bytes(payload[start:position])
        start, position = _field(payload, position, end)
        value = None if start < 0 else bytes(payload[start:position])
        headers_at = position
        _skip_headers(payload, position, end)
        headers = _headers(payload, headers_at, end) if end - headers_at > 1 else ()
        timestamp = append_time if append_time >= 0 else base_timestamp + timestamp_delta
        records.append(Record(base_offset + offset_delta, timestamp, key, value, headers))
        position = end
    if position != len(payload):
        raise ValueError("bytes are left over after the last record")
    return records


def _headers(data: Buffer, position: int, end: int) -> tuple[tuple[str, bytes | None], ...]:
    count, position = read_varint(data, position)
    headers = []
    for _ in range(count):
        start, position = _field(data, position, end)
        name = bytes(data[start:position]).decode(errors="replace")
        start, position = _field(data, position, end)
        headers.append((name, None if start < 0 else bytes(data[start:position])))
    return tuple(headers)


def retain_records(payload: Buffer, count: int, mask: Sequence[bool], timestamp_shift: int) -> bytes:
    """The encoded records that `mask` keeps, deltas of offset as they were, deltas of timestamp moved by a constant."""
    out = bytearray()
    position = 0
    for index in range(count):
        first = position
        position, end = _open_record(payload, position)
        if mask[index]:
            if timestamp_shift:
                timestamp_delta, rest = read_varint(payload, position + 1)
                timestamp_delta += timestamp_shift
                write_varint(out, 1 + varint_size(timestamp_delta) + end - rest)
                out.append(payload[position])
                write_varint(out, timestamp_delta)
                out += payload[rest:end]
            else:
                out += payload[first:end]
        position = end
    return bytes(out)

"""The layout of a v2 record batch: the only place that knows where a field stands."""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

#: base offset, batch length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, max timestamp,
#: producer id, producer epoch, base sequence, record count
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
#: The bytes that the batch length does not count: base offset and the length itself.
LENGTH_OVERHEAD = 12
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
#: The CRC covers everything from the attributes on. Base offset and leader epoch come before, so a broker can set them.
CHECKED_FROM = 21
#: The low byte of the attributes: its bits say how a batch is compressed, and whether it belongs to a transaction.
ATTRIBUTES_AT = 22
MAX_TIMESTAMP_AT = 35
PRODUCER_AT = 43
MAGIC = 2

#: The header's first fields, and its last offset delta. Walking a log reads these alone.
OFFSET_AND_LENGTH = struct.Struct(">qi")
#: base offset, length, (leader epoch, magic, CRC, attributes skipped), last offset delta
OFFSETS = struct.Struct(">qi11xi")
#: base offset, length, (leader epoch skipped), magic, CRC, (attributes skipped), last offset delta
OFFSETS_AND_CRC = struct.Struct(">qi4xBI2xi")
_CRC = struct.Struct(">I")
_TIMESTAMP = struct.Struct(">q")
#: producer id, producer epoch, base sequence
PRODUCER = struct.Struct(">qhi")
#: base offset; leader epoch
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

#: The fewest bytes a record can take: one each for length, attributes, two deltas, two field lengths, header count.
RECORD_SIZE_MIN = 7

#: The largest payload a compressed batch may decompress to, unless the caller says otherwise.
DECOMPRESSED_LIMIT = 128 * 1024 * 1024


class Record(NamedTuple):
    """One record as a reader sees it: a tuple because a consumer makes millions of them."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Column(NamedTuple):
    """A column of nullable byte strings in Arrow's layout, without Arrow: what the compiled loops read and write."""

    #: 32- or 64-bit integers in the machine's byte order, one more than there are rows
    offsets: Buffer
    data: Buffer
    #: one bit a row, least significant first, set where there is a value; None where there are no nulls
    validity: Buffer | None = None
    #: which row of the buffers is row 0 of the column
    first: int = 0
    wide: bool = False


class HeaderColumns(NamedTuple):
    """Headers of many records: row i has the names and contents from `offsets[first + i]` to the next offset."""

    offsets: Buffer
    names: Column | None
    contents: Column | None
    validity: Buffer | None = None
    first: int = 0
    wide: bool = False


class Stretch(NamedTuple):
    """The records of one batch, decompressed, and what the batch's header says about them."""

    payload: Buffer
    record_count: int
    base_offset: int
    base_timestamp: int
    #: the time of the append, which replaces each record's own timestamp, or -1
    append_time: int


def checksum(data: Buffer) -> int:
    """CRC-32C of a whole batch's checked part."""
    return crc32c(memoryview(data)[CHECKED_FROM:])


def write_header(
    data: bytearray,
    *,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> None:
    """Write the header, with length and CRC, into the room before a payload."""
    length = len(data) - LENGTH_OVERHEAD
    HEADER.pack_into(
        data,
        0,
        base_offset,
        length,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    set_checksum(data)


def set_checksum(data: bytearray | memoryview) -> None:
    """Put the CRC that a whole batch should have into its header."""
    _CRC.pack_into(data, CRC_AT, checksum(data))


def set_place(data: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in a log. The CRC covers neither."""
    _BASE_OFFSET.pack_into(data, 0, base_offset)
    _LEADER_EPOCH.pack_into(data, LEADER_EPOCH_AT, leader_epoch)


def parts_in_place(data: memoryview, base_offset: int, leader_epoch: int) -> list[bytes | memoryview]:
    """The bytes of a batch with its place in a log, in two parts: nothing but the beginning of the header is copied."""
    head = _BASE_OFFSET.pack(base_offset) + bytes(data[LENGTH_AT:LEADER_EPOCH_AT]) + _LEADER_EPOCH.pack(leader_epoch)
    return [head, data[MAGIC_AT:]]


def set_max_timestamp(data: bytearray | memoryview, max_timestamp: int) -> None:
    """Change the largest timestamp in the header. `set_checksum` has to follow."""
    _TIMESTAMP.pack_into(data, MAX_TIMESTAMP_AT, max_timestamp)


def set_producer(data: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Change whose batch it is. `set_checksum` has to follow."""
    PRODUCER.pack_into(data, PRODUCER_AT, producer_id, producer_epoch, base_sequence)


def seal(data: bytearray, **header: int) -> bytes:
    """The batch that `write_header` makes, as bytes that never change again."""
    write_header(data, **header)
    return bytes(data)


def with_header_room(payload: Buffer) -> bytearray:
    """The payload behind an empty header, ready to be sealed."""
    data = bytearray(HEADER_SIZE)
    data += payload
    return data

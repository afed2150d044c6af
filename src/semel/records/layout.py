"""Where each byte of a v2 record batch stands. One place, so that views, builders and patches cannot disagree."""

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
#: Base offset and batch length: what the batch length does not count.
LENGTH_OVERHEAD = 12
#: The byte whose bits say how a batch is compressed, and whether it belongs to a transaction.
ATTRIBUTES_AT = 22
#: Everything from the attributes on is under the CRC; base offset and leader epoch are not, so a broker can set them.
CHECKED_FROM = 21
MAGIC = 2

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

#: The largest payload a compressed batch may unfold to before it is refused, unless the caller says otherwise.
DECOMPRESSED_LIMIT = 128 * 1024 * 1024


class Record(NamedTuple):
    """One record as a reader sees it: a tuple because a consumer makes millions of them."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Column(NamedTuple):
    """A column of nullable byte strings as Arrow lays it out, without Arrow: what the compiled loops read and write."""

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
    #: the broker's clock instead of each record's own, or -1
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
    """Make a whole batch, with length and CRC, of room for a header and a payload as compressed as it says."""
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
    data[17:21] = checksum(data).to_bytes(4, "big")


def seal(data: bytearray, **header: int) -> bytes:
    """The batch that `write_header` makes, as bytes that never change again."""
    write_header(data, **header)
    return bytes(data)


def with_header_room(payload: Buffer) -> bytearray:
    """The payload behind an empty header, ready to be sealed."""
    data = bytearray(HEADER_SIZE)
    data += payload
    return data

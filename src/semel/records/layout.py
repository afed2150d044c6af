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

#: The largest payload a compressed batch may unfold to before it is refused, unless the caller says otherwise.
DECOMPRESSED_LIMIT = 128 * 1024 * 1024


class Record(NamedTuple):
    """One record as a reader sees it: a tuple because a consumer makes millions of them."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def checksum(data: Buffer) -> int:
    """CRC-32C of a whole batch's checked part."""
    return crc32c(memoryview(data)[CHECKED_FROM:])


def assemble(
    payload: Buffer,
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
) -> bytes:
    """A whole batch, with length and CRC, around a payload that is already as compressed as the attributes say."""
    data = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(
        data,
        0,
        base_offset,
        len(data) - LENGTH_OVERHEAD,
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
    data[HEADER_SIZE:] = payload
    data[17:21] = checksum(data).to_bytes(4, "big")
    return bytes(data)

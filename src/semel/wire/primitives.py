"""The encodings of variable length, and the error of all decoders.

Fixed-width integers never come here: compiled codecs pack runs of them with one `struct`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NoReturn
from uuid import UUID

from semel.errors import ErrorCode, Refused

#: What a payload may be. Decoders hand out memoryviews into the frame, encoders pass all three through.
Buffer = bytes | bytearray | memoryview

ZERO_UUID = UUID(int=0)

#: The longest string, in bytes, in every version of every message.
MOST_STRING_BYTES = 0x7FFF
#: Far more than any schema has. Each one that is skipped takes time.
MOST_TAGGED_FIELDS = 1000

_VARINT_LIMIT = 1 << 32


class Malformed(Refused):
    """The bytes do not match their schema. The sender gets INVALID_REQUEST."""

    def __init__(self, why: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, why)

    def __reduce__(self) -> tuple[type[Malformed], tuple[str]]:
        return type(self), (self.why,)


class TooManyElements(Malformed):
    """The arrays of a message have more elements than its reader accepts."""

    def __init__(self, why: str = "more elements than are read") -> None:
        super().__init__(why)


class LongString(Malformed):
    """A string longer than Kafka allows. This may be a person's mistake, so its sender gets an answer."""


def lie(field: str, claimed: int, position: int, end: int) -> NoReturn:
    """Refuse a length or count that is larger than the remaining bytes, before anything is allocated for it."""
    raise Malformed(f"{field} claims {claimed}, with {max(end - position, 0)} bytes left at byte {position}")


def long_string(field: str, claimed: int, position: int) -> NoReturn:
    """Refuse a string longer than Kafka allows in any version: old versions have two bytes for its length."""
    raise LongString(f"{field} claims {claimed} bytes at byte {position}, a string has {MOST_STRING_BYTES} at most")


def null(field: str, position: int) -> NoReturn:
    """Refuse a null where the version allows none."""
    raise Malformed(f"{field} is null at byte {position}")


def unsigned_varint(value: int) -> bytes:
    """Seven bits to a byte, the lowest first; all bytes but the last have the high bit set."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_unsigned_varint(view: Buffer, position: int) -> tuple[int, int]:
    """The value at `position`, and the position after it."""
    first = view[position]
    if first < 0x80:
        return first, position + 1
    return rest_of_varint(view, position + 1, first)


def rest_of_varint(view: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read on after a first byte with the high bit set. More than 32 bits are refused."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _VARINT_LIMIT:
                break
            return value, position
    raise Malformed(f"a varint of more than 32 bits ends at byte {position}")


def count_of_tagged(view: Buffer, position: int, first: int) -> tuple[int, int]:
    """The number of tagged fields, where it takes more than one byte."""
    count, position = rest_of_varint(view, position, first)
    if count > MOST_TAGGED_FIELDS:
        raise Malformed(f"{count} tagged fields at byte {position}, {MOST_TAGGED_FIELDS} are the most that are read")
    return count, position


def skip_tagged_fields(view: Buffer, position: int, count: int, end: int) -> int:
    """Skip tagged fields of a newer schema. Returns the position after the last."""
    if count > 0x7F:
        count, position = count_of_tagged(view, position, count)
    for _ in range(count):
        _, position = read_unsigned_varint(view, position)
        size, position = read_unsigned_varint(view, position)
        if size > end - position:
            lie("a tagged field", size, position, end)
        position += size
    return position


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID:
    """The UUID of 16 bytes. Cached: to build one costs more than to decode the rest of a partition."""
    return UUID(bytes=raw)

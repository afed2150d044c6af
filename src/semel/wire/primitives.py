"""The few encodings that are not a fixed number of bytes, and the refusal every decoder shares.

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
#: No schema has nearly as many, and each that is skipped takes time.
MOST_TAGGED_FIELDS = 1000

_VARINT_LIMIT = 1 << 32


class Malformed(Refused):
    """The bytes do not hold what their schema promises. The sender gets INVALID_REQUEST."""

    def __init__(self, why: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, why)

    def __reduce__(self) -> tuple[type[Malformed], tuple[str]]:
        return type(self), (self.why,)


class TooManyElements(Malformed):
    """The arrays of a message have more elements than its reader wants to read."""

    def __init__(self, why: str = "more elements than are read") -> None:
        super().__init__(why)


class LongString(Malformed):
    """A string that no Kafka reads. Unlike other nonsense it may be a person's mistake, so its sender is answered."""


def lie(field: str, claimed: int, position: int, end: int) -> NoReturn:
    """Refuse a length or count that the remaining bytes cannot hold, before anything is allocated for it."""
    raise Malformed(f"{field} claims {claimed}, with {max(end - position, 0)} bytes left at byte {position}")


def long_string(field: str, claimed: int, position: int) -> NoReturn:
    """Refuse a string that no Kafka reads: what has two bytes for a length in old versions is no longer in new ones."""
    raise LongString(f"{field} claims {claimed} bytes at byte {position}, a string has {MOST_STRING_BYTES} at most")


def null(field: str, position: int) -> NoReturn:
    """Refuse a null where the version has none."""
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
    """Go on after a first byte that had the high bit set; more than 32 bits are refused."""
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
    """How many tagged fields follow, where one byte does not say it."""
    count, position = rest_of_varint(view, position, first)
    if count > MOST_TAGGED_FIELDS:
        raise Malformed(f"{count} tagged fields at byte {position}, {MOST_TAGGED_FIELDS} are the most that are read")
    return count, position


def skip_tagged_fields(view: Buffer, position: int, count: int, end: int) -> int:
    """Pass over tagged fields from a newer schema; returns the position after the last."""
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
    """The UUID of 16 bytes. Remembered, because building one costs more than decoding the rest of a partition."""
    return UUID(bytes=raw)

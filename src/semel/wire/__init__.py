"""Kafka's wire protocol: messages as typed values, and their bytes.

`encode` and `decode` work for every message class of `semel.wire.messages` and every version it declares. A decoder
returns a message or raises `Malformed`, for any input, and never allocates memory for bytes that were not sent.
Fields that a version does not have are left out when encoded and take their defaults when decoded. Bytes after a
message are ignored, as Kafka does.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar

from semel.wire.primitives import Buffer, Malformed, TooManyElements

__all__ = [
    "Buffer",
    "Malformed",
    "TooManyElements",
    "decode",
    "decode_versioned",
    "encode",
    "encode_parts",
    "encode_versioned",
]

M = TypeVar("M")

#: More elements than fit into a frame.
ANY_NUMBER = 1 << 31


def encode(message: Any, version: int) -> bytes:
    """The body of a message, without header or length."""
    parts: list[Buffer] = []
    message.__encoders__[version](message, bytearray(), parts)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


def encode_parts(message: Any, version: int) -> list[Buffer]:
    """The body as buffers to be sent one after another; large `records` are among them as they were given."""
    parts: list[Buffer] = []
    message.__encoders__[version](message, bytearray(), parts)
    return parts


def decode(
    message_class: type[M], version: int, buffer: Buffer, offset: int = 0, most_elements: int = ANY_NUMBER
) -> M:
    """The message at `offset`. Its `records` are views into `buffer`, everything else is copied out.

    A message whose arrays have more than `most_elements` in all is refused with `TooManyElements`, before more than
    that are read.
    """
    return decode_from(message_class, version, buffer, offset, most_elements)[0]


def decode_from(
    message_class: type[M], version: int, buffer: Buffer, offset: int = 0, most_elements: int = ANY_NUMBER
) -> tuple[M, int]:
    """The message at `offset`, and the offset after it."""
    decoder = message_class.__decoders__[version]  # type: ignore[attr-defined]
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    try:
        found: tuple[M, int] = decoder(view, offset, len(view), most_elements)
    except (struct.error, IndexError) as error:
        raise Malformed(f"{message_class.__name__} version {version} ends early, after {len(view)} bytes") from error
    except UnicodeDecodeError as error:
        raise Malformed(f"{message_class.__name__} version {version} has a string that is not UTF-8") from error
    return found


def encode_versioned(message: Any, version: int | None = None) -> bytes:
    """A record of an internal topic or an embedded protocol: its version in two bytes, then its body.

    Without a version it is the newest; for keys of coordinator records the version is the type of the record.
    """
    if version is None:
        version = message.__about__.max_version
    return version.to_bytes(2, "big", signed=True) + encode(message, version)


def decode_versioned(message_class: type[M], data: Buffer) -> M:
    """Decode what `encode_versioned` wrote. An unknown version is refused with UNSUPPORTED_VERSION."""
    if len(data) < 2:
        raise Malformed(f"{message_class.__name__} has {len(data)} bytes, no room for its version")
    return decode(message_class, int.from_bytes(data[:2], "big", signed=True), data, 2)

"""Compressed payloads: no more output than allowed, and what other libraries make of them."""

from __future__ import annotations

from collections.abc import Callable

import lz4.frame
import pyarrow
import zstandard

from semel.errors import ErrorCode, Refused
from semel.records.compression import (
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    compress,
    decompress,
    decompress_in_pieces,
    expected_size,
)
from tests.fuzz.target import Draw, Target, expect

LIMITS = (1, 100, 5_000, 70_000)
_REFUSALS = {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
_PLAIN = b"".join(b"value %d of many, " % (number % 7) for number in range(300))


def outcome(call: Callable[[], bytes]) -> bytes | ErrorCode:
    try:
        return call()
    except Refused as refused:
        expect(refused.code in _REFUSALS, f"refused with {refused.code}")
        return refused.code


def in_pieces(codec: int, data: bytes, limit: int) -> bytes:
    """All pieces together; only the last may say that it is the last."""
    pieces, is_over = [], False
    for piece, is_last in decompress_in_pieces(codec, data, limit, strict=False):
        expect(not is_over, "a piece after the last")
        pieces.append(bytes(piece))
        is_over = is_last
    return b"".join(pieces)


def of_others(codec: int, data: bytes, limit: int, size: int) -> bytes | None:
    """What another library makes of it; None where it refuses, or where it would be larger."""
    try:
        if codec == LZ4:
            reader = lz4.frame.LZ4FrameDecompressor()
            found = reader.decompress(data, max_length=limit + 1)
            return found if reader.eof and not reader.unused_data and len(found) <= limit else None
        if codec == ZSTD:
            with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data, read_across_frames=True) as z:
                found = z.read(limit + 1)
                return found if len(found) <= limit else None
        if codec == SNAPPY and not data.startswith(b"\x82SNAPPY\0"):
            return bytes(pyarrow.decompress(data, size, codec="snappy"))
    except (RuntimeError, zstandard.ZstdError, OSError, EOFError, ValueError):
        return None
    return None


def one(data: bytes) -> None:
    draw = Draw(data)
    codec = draw.byte() % 6
    limit = draw.pick(LIMITS)
    if draw.flag():
        plain = draw.rest()[:5_000] * (1 + len(data) % 7)
        packed = compress(min(codec, 4), plain)
        expect(bytes(decompress(min(codec, 4), packed, 70_000)) == plain, "a payload does not come back")
        return
    packed = draw.rest()
    expect(expected_size(codec, packed) >= 0, "a negative size")
    whole = outcome(lambda: bytes(decompress(codec, packed, limit)))
    if codec == 0:
        return
    expect(not isinstance(whole, bytes) or len(whole) <= limit, "more output than allowed")
    pieces = outcome(lambda: in_pieces(codec, packed, limit))
    if isinstance(whole, bytes) and isinstance(pieces, bytes):
        expect(whole == pieces, "other bytes in pieces than at once")
    # A batch is checked in pieces. What passes there must be readable for who fetches it.
    expect(not isinstance(pieces, bytes) or isinstance(whole, bytes), f"it passes in pieces, at once it is {whole}")
    if isinstance(whole, bytes) and (other := of_others(codec, packed, limit, len(whole))) is not None:
        expect(whole == other, "another library reads other bytes")


def seeds() -> list[bytes]:
    found = []
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        for limit in (1, 3):
            for plain in (_PLAIN, b"x", b"", bytes(66_000)):
                found.append(bytes([codec, limit, 0]) + compress(codec, plain))
        found.append(bytes([codec, 3, 1]) + _PLAIN[:200])
    found.append(bytes([SNAPPY, 3, 0]) + pyarrow.compress(_PLAIN, codec="snappy", asbytes=True))
    for linked in (False, True):
        frame = lz4.frame.compress(_PLAIN, block_linked=linked, content_checksum=True, block_checksum=True)
        found.append(bytes([LZ4, 3, 0]) + frame)
    found.append(bytes([ZSTD, 3, 0]) + zstandard.ZstdCompressor(write_content_size=False).compress(_PLAIN) * 2)
    found.append(bytes([GZIP, 3, 0]) + compress(GZIP, b"one") + compress(GZIP, b"two"))
    return [seed for seed in found if len(seed) <= 4096]


TARGET = Target(
    "a compressed payload never becomes larger than allowed, and is what other libraries make of it",
    one,
    seeds,
    max_bytes=2048,
)

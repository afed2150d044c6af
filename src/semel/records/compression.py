"""The four codecs as Kafka's Java clients write and read them, with an upper bound on what a payload may unfold to.

`decompress` never holds more than `limit` bytes of output: what would unfold further is refused, so that a small
request cannot take a broker's memory. cramjam is imported on first use: most brokers never look inside a batch.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

from semel.errors import ErrorCode, Refused

from .layout import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

#: snappy-java's stream header: magic, version 1, readable by version 1.
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
#: LZ4 frame header: version 1 with independent blocks (Java reads no others), blocks up to 64 KB, and the checksum of
#: those two bytes.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_END = b"\0\0\0\0"
#: The level of Kafka's that stands for lz4's own quick way; every other is one of its thorough way.
_LZ4_QUICK = 9

#: The setting, of a topic or a producer, that says how hard a codec tries.
LEVEL_SETTINGS = {
    GZIP: "compression.gzip.level",
    LZ4: "compression.lz4.level",
    ZSTD: "compression.zstd.level",
}


def codec_named(name: str) -> int:
    """The codec number of a `compression.type`; `ValueError` for a name that is none."""
    return NAMES.index(name)


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as codec number `codec` writes it; codec 0 gives the bytes themselves. Gzip, lz4 and zstd know levels."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        deflate = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        return deflate.compress(data) + deflate.flush()
    if codec == SNAPPY:
        return _compress_xerial(data)
    if codec == LZ4:
        return _compress_lz4(data, _LZ4_QUICK if level is None else level)
    if codec == ZSTD:
        import cramjam

        return bytes(cramjam.zstd.compress(data, level))
    raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has number {codec}")


def decompress(codec: int, data: Buffer, limit: int) -> Buffer:
    """What `data` unfolds to. Refused: CORRUPT_MESSAGE if it does not, MESSAGE_TOO_LARGE if past `limit` bytes."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return _decompress_gzip(data, limit)
    if codec == SNAPPY:
        return _decompress_snappy(data, limit)
    if codec == LZ4:
        import cramjam

        return _grow_into(cramjam.lz4.decompress_into, data, limit)
    if codec == ZSTD:
        import cramjam

        return _grow_into(cramjam.zstd.decompress_into, data, limit, hint=_zstd_content_size(data))
    raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has number {codec}")


def _too_large(limit: int) -> Refused:
    return Refused(ErrorCode.MESSAGE_TOO_LARGE, f"a compressed batch unfolds to more than {limit} bytes")


def _corrupt(why: object) -> Refused:
    return Refused(ErrorCode.CORRUPT_MESSAGE, f"a compressed batch does not decompress: {why}")


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    parts: list[bytes] = []
    room = limit
    rest: Buffer = data
    while True:
        inflate = zlib.decompressobj(31)
        try:
            part = inflate.decompress(rest, room + 1)
        except zlib.error as error:
            raise _corrupt(error) from None
        room -= len(part)
        if room < 0:
            raise _too_large(limit)
        if not inflate.eof:
            raise _corrupt("incomplete gzip stream")
        parts.append(part)
        rest = inflate.unused_data
        if not rest:
            return b"".join(parts) if len(parts) > 1 else part


def _compress_xerial(data: Buffer) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if view[:8] != _XERIAL_HEADER[:8]:
        return _decompress_snappy_block(view, limit, limit)
    if len(view) < len(_XERIAL_HEADER):
        raise _corrupt("incomplete snappy header")
    parts = []
    room = limit
    position = len(_XERIAL_HEADER)
    while position < len(view):
        length = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if length > len(view) - position:
            raise _corrupt("a snappy block runs past the end")
        part = _decompress_snappy_block(view[position : position + length], room, limit)
        room -= len(part)
        parts.append(part)
        position += length
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, room: int, limit: int) -> bytes:
    from cramjam import DecompressionError, snappy

    try:
        if snappy.decompress_raw_len(block) > room:
            raise _too_large(limit)
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise _corrupt(error) from None


def _compress_lz4(data: Buffer, level: int) -> bytes:
    write = _lz4_block if level == _LZ4_QUICK else _thorough_lz4_block
    view = memoryview(data)
    parts = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        parts += write(view[start : start + _LZ4_BLOCK_BYTES], level)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _lz4_block(plain: memoryview, level: int) -> tuple[bytes, bytes]:
    from cramjam import lz4

    block = bytes(lz4.compress_block(plain, store_size=False))
    if len(block) < len(plain):
        return len(block).to_bytes(4, "little"), block
    return (len(plain) | _LZ4_STORED).to_bytes(4, "little"), bytes(plain)


def _thorough_lz4_block(plain: memoryview, level: int) -> tuple[bytes]:
    """The one block of a frame of its own: cramjam knows levels only for whole frames, which Java could not read."""
    from cramjam import lz4

    frame = bytes(lz4.compress(plain, level=level))
    start = len(_LZ4_HEADER)
    size = int.from_bytes(frame[start : start + 4], "little") & ~_LZ4_STORED
    return (frame[start : start + 4 + size],)


def _zstd_content_size(data: Buffer) -> int:
    """What the first zstd frame says it unfolds to, or 0 where it does not say: a hint, never believed."""
    if len(data) < 14:
        return 0
    descriptor = data[4]
    start = 5 + (0 if descriptor & 0x20 else 1) + (0, 1, 2, 4)[descriptor & 3]
    width = (1 if descriptor & 0x20 else 0, 2, 4, 8)[descriptor >> 6]
    size = int.from_bytes(data[start : start + width], "little")
    return size + 256 if width == 2 else size


def _grow_into(
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, limit: int, hint: int = 0
) -> memoryview:
    """Decompress into a buffer that starts from a guess and grows, at most to `limit`."""
    from cramjam import DecompressionError

    size = min(max(min(hint, 64 * len(data)), 4 * len(data), 4096), limit)
    while True:
        out = bytearray(size)
        try:
            used = decompress_into(data, out)
        except DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise _corrupt(error) from None
            if size >= limit:
                raise _too_large(limit) from None
            size = min(size * 4, limit)
        else:
            return memoryview(out)[:used].toreadonly()

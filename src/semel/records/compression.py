"""The four codecs as Kafka's Java clients write and read them, with a limit on what a payload may decompress to.

`decompress` never holds more than `limit` bytes of output. A payload that is larger is refused, so a small request
cannot take all of a broker's memory. `decompress_in_pieces` gives the same output piece by piece, so that a check holds
one piece at a time; only zstd comes in one piece, because its decoder may refer back to all of the output. cramjam is
imported on first use.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

from semel.config.codecs import CODECS
from semel.errors import ErrorCode, Refused

from .layout import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(len(CODECS))

#: snappy-java's stream header: magic, version 1, readable by version 1.
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
#: LZ4 frame header: version 1 with independent blocks (Java reads no others), blocks up to 64 KB, and the checksum of
#: those two bytes.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_END = b"\0\0\0\0"
#: Kafka's level that means lz4's fast mode; every other level is one of its high-compression mode.
_LZ4_QUICK = 9

#: Largest block of an LZ4 frame by the number in its header.
_LZ4_BLOCK_MAX_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
#: Flags of an LZ4 frame: version 1, independent blocks, and nothing else (no sizes, no checksums, no dictionary).
_LZ4_PLAIN_FLAGS = 0x60
_LZ4_INDEPENDENT = 0x20
#: The largest compression ratio of an LZ4 block, and of a snappy block.
_LZ4_RATIO_MAX = 255
_SNAPPY_RATIO_MAX = 22
#: The largest decompressed size of a zstd block.
_ZSTD_BLOCK_BYTES = 128 * 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: At most this many blocks are counted; a payload with more is taken to be as large as allowed.
_BLOCKS_COUNTED = 1024
#: The size of a piece of `decompress_in_pieces`, where the codec leaves the choice to us.
PIECE_BYTES = 1024 * 1024

#: The setting, of a topic or a producer, for the level of a codec.
LEVEL_SETTINGS = {
    GZIP: "compression.gzip.level",
    LZ4: "compression.lz4.level",
    ZSTD: "compression.zstd.level",
}


def codec_named(name: str) -> int:
    """The codec number of a `compression.type`; `ValueError` for a name that is none."""
    return CODECS.index(name)


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` with a codec; codec 0 returns the bytes themselves. Gzip, lz4 and zstd have levels."""
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
    """Decompress `data`. Refused: CORRUPT_MESSAGE if it is invalid, MESSAGE_TOO_LARGE above `limit` bytes."""
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

        return _grow_into(cramjam.zstd.decompress_into, data, limit, size=_zstd_size_max(data))
    raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has number {codec}")


class DecompressionLimitExceeded(Refused):
    """A payload decompresses to more than the caller allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, f"a compressed batch decompresses to more than {limit} bytes")


def decompress_in_pieces(codec: int, data: Buffer, limit: int, *, strict: bool = True) -> Iterator[tuple[Buffer, bool]]:
    """Decompress `data` piece by piece: (piece, whether it is the last). Refused as soon as that is known.

    A piece is valid until the next is asked for. `strict`: what Java clients cannot read is corrupt here too.
    """
    if codec == GZIP:
        yield from _gzip_pieces(data, limit)
    elif codec == SNAPPY:
        yield from _snappy_pieces(memoryview(data), limit)
    elif codec == LZ4:
        if strict and len(data) > 4 and not data[4] & _LZ4_INDEPENDENT:
            raise _corrupt("its lz4 blocks depend on each other, which no Java client reads")
        if len(data) > len(_LZ4_HEADER) and data[4] == _LZ4_PLAIN_FLAGS:
            yield from _lz4_pieces(memoryview(data), limit)
        else:
            yield from _in_one_piece(codec, data, limit, _lz4_size_max(memoryview(data)))
    elif codec == ZSTD:
        yield from _in_one_piece(codec, data, limit, _zstd_size_max(data))
    else:
        yield decompress(codec, data, limit), True


def expected_size(codec: int, data: Buffer) -> int:
    """A cheap guess at the decompressed size of `data`. A forger can choose what it says: it is never a bound."""
    if codec == GZIP:
        return int.from_bytes(data[-4:], "little")
    if codec == SNAPPY:
        return _snappy_size(memoryview(data))
    if codec == LZ4:
        return _lz4_size_max(memoryview(data))
    if codec == ZSTD:
        return _zstd_size_max(data)
    return len(data)


def _corrupt(why: object) -> Refused:
    return Refused(ErrorCode.CORRUPT_MESSAGE, f"a compressed batch does not decompress: {why}")


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    pieces = [piece for piece, _ in _gzip_pieces(data, limit, limit + 1)]
    return b"".join(pieces) if len(pieces) > 1 else pieces[0]


def _gzip_pieces(data: Buffer, limit: int, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[bytes, bool]]:
    room = limit
    rest: Buffer = data
    while True:
        inflate = zlib.decompressobj(31)
        while not inflate.eof:
            try:
                piece = inflate.decompress(rest, min(room + 1, piece_bytes))
            except zlib.error as error:
                raise _corrupt(error) from None
            room -= len(piece)
            if room < 0:
                raise DecompressionLimitExceeded(limit)
            rest = inflate.unconsumed_tail
            if not rest and not piece and not inflate.eof:
                raise _corrupt("incomplete gzip stream")
            is_last = inflate.eof and not inflate.unused_data
            yield piece, is_last
            if is_last:
                return
        rest = inflate.unused_data


def _compress_xerial(data: Buffer) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    pieces = [piece for piece, _ in _snappy_pieces(memoryview(data), limit)]
    return b"".join(pieces) if len(pieces) != 1 else pieces[0]


def _snappy_pieces(view: memoryview, limit: int) -> Iterator[tuple[bytes, bool]]:
    if view[:8] != _XERIAL_HEADER[:8]:
        yield _decompress_snappy_block(view, limit, limit), True
        return
    if len(view) < len(_XERIAL_HEADER):
        raise _corrupt("incomplete snappy header")
    room = limit
    position = len(_XERIAL_HEADER)
    while position < len(view):
        length = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if length > len(view) - position:
            raise _corrupt("a snappy block runs past the end")
        piece = _decompress_snappy_block(view[position : position + length], room, limit)
        room -= len(piece)
        position += length
        yield piece, position == len(view)


def _snappy_size(view: memoryview) -> int:
    """The decompressed size that the blocks announce."""
    if view[:8] != _XERIAL_HEADER[:8]:
        return _said_by_snappy_block(view)
    total, position = 0, len(_XERIAL_HEADER)
    for _ in range(_BLOCKS_COUNTED):
        if position >= len(view):
            return total
        total += _said_by_snappy_block(view[position + 4 : position + 9])
        position += 4 + int.from_bytes(view[position : position + 4], "big")
    return total + _SNAPPY_RATIO_MAX * max(len(view) - position, 0)


def _said_by_snappy_block(start: memoryview) -> int:
    size = 0
    for place, byte in enumerate(start[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return size


def _decompress_snappy_block(block: memoryview, room: int, limit: int) -> bytes:
    from cramjam import DecompressionError, snappy

    try:
        size = snappy.decompress_raw_len(block)
        if size > _SNAPPY_RATIO_MAX * len(block):
            raise _corrupt("a snappy block claims more than any can hold")
        if size > room:
            raise DecompressionLimitExceeded(limit)
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


def _lz4_pieces(view: memoryview, limit: int) -> Iterator[tuple[Buffer, bool]]:
    """Block by block, of a frame as Kafka's clients write it."""
    from cramjam import DecompressionError, lz4

    position = len(_LZ4_HEADER)
    try:
        # A frame without blocks: only its header is checked.
        lz4.decompress(bytes(view[:position]) + _LZ4_END)
        block_bytes = _LZ4_BLOCK_MAX_BYTES.get(view[5] >> 4 & 7, 0)
        room = limit
        size = int.from_bytes(view[position : position + 4], "little")
        while size:
            position += 4
            stored, size = size & _LZ4_STORED, size & ~_LZ4_STORED
            # At least the size of the next block, or the end, follows.
            if size > block_bytes or size > len(view) - position - 4:
                raise _corrupt("an lz4 block runs past the end")
            piece: Buffer = view[position : position + size]
            position += size
            if not stored:
                out = bytearray(min(block_bytes, _LZ4_RATIO_MAX * size))
                piece = memoryview(out)[: lz4.decompress_block_into(piece, out, output_len=len(out))]
            room -= len(piece)
            if room < 0:
                raise DecompressionLimitExceeded(limit)
            size = int.from_bytes(view[position : position + 4], "little")
            yield piece, not size
        if position + 4 != len(view):
            raise _corrupt("bytes are left over after the lz4 frame")
    except DecompressionError as error:
        raise _corrupt(error) from None


def _lz4_size_max(view: memoryview) -> int:
    """The largest decompressed size of an LZ4 frame, by the sizes of its blocks."""
    if len(view) <= len(_LZ4_HEADER):
        return 0
    flags = view[4]
    block_bytes = _LZ4_BLOCK_MAX_BYTES.get(view[5] >> 4 & 7, 0)
    position = len(_LZ4_HEADER) + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    overhead = 8 if flags & 0x10 else 4
    total = 0
    for _ in range(_BLOCKS_COUNTED):
        size = int.from_bytes(view[position : position + 4], "little") & ~_LZ4_STORED
        if size == 0 or position > len(view):
            return total
        total += min(block_bytes, _LZ4_RATIO_MAX * size)
        position += overhead + size
    return total + _LZ4_RATIO_MAX * max(len(view) - position, 0)


def _in_one_piece(codec: int, data: Buffer, limit: int, size: int) -> Iterator[tuple[Buffer, bool]]:
    """All output at once. Large buffers come zeroed from the system: to zero them here would hold up every thread."""
    from mmap import mmap

    import cramjam

    size = min(size, limit)
    if size <= PIECE_BYTES:
        yield decompress(codec, data, limit), True
        return
    decompress_into = cramjam.lz4.decompress_into if codec == LZ4 else cramjam.zstd.decompress_into
    while True:
        with mmap(-1, size) as out:
            try:
                used = decompress_into(data, out)
            except cramjam.DecompressionError as error:
                if "write whole buffer" not in str(error):
                    raise _corrupt(error) from None
                if size >= limit:
                    raise DecompressionLimitExceeded(limit) from None
            else:
                with memoryview(out) as whole, whole[:used] as piece:
                    yield piece, True
                return
        size = min(size * 4, limit)


def _zstd_size_max(data: Buffer) -> int:
    """The largest decompressed size of zstd frames, by what they announce and by the number of their blocks; 0 if these
    are no zstd frames."""
    total = position = 0
    blocks = _BLOCKS_COUNTED
    while position < len(data):
        if data[position : position + 4] != _ZSTD_MAGIC or len(data) - position < 9:
            break
        descriptor = data[position + 4]
        single = descriptor & 0x20
        position += 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
        width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
        said = int.from_bytes(data[position : position + width], "little") + (256 if width == 2 else 0)
        position += width
        counted = 0
        is_last = 0
        while not is_last and position < len(data):
            header = int.from_bytes(data[position : position + 3], "little")
            is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
            counted += _ZSTD_BLOCK_BYTES if kind == 2 else size
            position += 3 + (1 if kind == 1 else size)
            blocks -= 1
            if not blocks:
                return total + counted + _ZSTD_BLOCK_BYTES * max(len(data) - position, 0)
        total += min(said, counted) if width else counted
        position += 4 if descriptor & 4 else 0
    return total


def _grow_into(
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, limit: int, size: int = 0
) -> memoryview:
    """Decompress into a buffer that starts from a guess, or is of `size`, and grows, at most to `limit`."""
    from cramjam import DecompressionError

    size = min(size or max(4 * len(data), 4096), limit)
    while True:
        out = bytearray(size)
        try:
            used = decompress_into(data, out)
        except DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise _corrupt(error) from None
            if size >= limit:
                raise DecompressionLimitExceeded(limit) from None
            size = min(size * 4, limit)
        else:
            return memoryview(out)[:used].toreadonly()

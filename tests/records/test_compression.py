"""Each codec gives back what it got, and no payload unfolds past its bound."""

from __future__ import annotations

import gzip

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from semel.config.codecs import CODECS as CODEC_NAMES
from semel.errors import ErrorCode, Refused
from semel.records.batch import Batch, build, check, read_records
from semel.records.compression import (
    PIECE_BYTES,
    DecompressionLimitExceeded,
    codec_named,
    compress,
    decompress,
    decompress_in_pieces,
    expected_size,
)

CODECS = range(1, 5)
BOMB = 64 * 1024 * 1024


def code_of(codec: int, data: bytes, limit: int = 1 << 20) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        decompress(codec, data, limit)
    return refused.value.code


@given(st.integers(0, 4), st.binary(max_size=300), st.integers(1, 2000))
def test_what_was_compressed_comes_back(codec: int, piece: bytes, times: int) -> None:
    data = piece * times
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, max(len(data), 1))) == data
    assert bytes(decompress(codec, memoryview(bytearray(packed)), max(len(data), 1))) == data


#: Text of few words in many orders: a codec that looks longer finds more in it.
WORDS = b" ".join(b"%d shillings and %d pence" % (n * n % 97, n % 12) for n in range(4000))


@pytest.mark.parametrize(("codec", "quick", "thorough"), [(1, 1, 9), (3, 9, 17), (4, -5, 19)])
def test_a_level_decides_how_small_a_payload_gets(codec: int, quick: int, thorough: int) -> None:
    sizes = []
    for level in (quick, thorough):
        packed = compress(codec, WORDS, level)
        assert bytes(decompress(codec, packed, len(WORDS))) == WORDS
        sizes.append(len(packed))
    assert sizes[1] < sizes[0]


def test_nine_is_the_level_at_which_lz4_is_quick() -> None:
    assert compress(3, WORDS, 9) == compress(3, WORDS)


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_may_fill_its_bound_and_not_one_byte_more(codec: int) -> None:
    data = bytes(range(256)) * 400
    packed = compress(codec, data)
    assert len(decompress(codec, packed, len(data))) == len(data)
    assert code_of(codec, packed, len(data) - 1) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused(codec: int) -> None:
    assert code_of(codec, compress(codec, bytes(BOMB))) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_in_a_batch_is_refused_by_its_reader(codec: int) -> None:
    batch = Batch.parse(build([(None, bytes(4 << 20))], timestamp_ms=0, codec=codec))
    for look in (lambda: check(batch, framing=True, limit=1 << 20), lambda: read_records(batch, limit=1 << 20)):
        with pytest.raises(Refused) as refused:
            look()
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_what_does_not_decompress_is_corrupt(codec: int) -> None:
    packed = compress(codec, bytes(range(256)) * 40)
    assert code_of(codec, packed[:-9]) == ErrorCode.CORRUPT_MESSAGE
    assert code_of(codec, b"no codec wrote this") == ErrorCode.CORRUPT_MESSAGE
    assert code_of(codec, b"") == ErrorCode.CORRUPT_MESSAGE


@given(st.integers(1, 4), st.binary(max_size=200))
def test_noise_is_refused_or_read_and_nothing_else(codec: int, noise: bytes) -> None:
    answer: object
    try:
        answer = len(decompress(codec, noise, 4096)) <= 4096
    except Refused as refused:
        answer = refused.code
    assert answer in (True, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


def test_an_unknown_codec_is_refused() -> None:
    assert code_of(5, b"") == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(Refused):
        compress(7, b"")


def test_codecs_go_by_kafkas_names() -> None:
    assert [codec_named(name) for name in CODEC_NAMES] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError):
        codec_named("brotli")


def test_snappy_is_read_with_and_without_javas_framing() -> None:
    data = b"snappy " * 20_000
    framed = compress(2, data)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert decompress(2, framed, len(data)) == data
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert decompress(2, raw, len(data)) == data
    assert code_of(2, raw, len(data) - 1) == ErrorCode.MESSAGE_TOO_LARGE


def test_gzip_of_several_members_is_read_whole() -> None:
    assert decompress(1, gzip.compress(b"one") + gzip.compress(b"two"), 100) == b"onetwo"


def test_lz4_is_written_in_the_independent_blocks_that_java_reads() -> None:
    packed = compress(3, bytes(200_000))
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0x20, "block independence"
    assert bytes(cramjam.lz4.decompress(packed)) == bytes(200_000)


def test_lz4_and_zstd_are_read_as_other_writers_frame_them() -> None:
    data = b"linked blocks, sizes and checksums " * 9000
    assert bytes(decompress(3, bytes(cramjam.lz4.compress(data)), len(data))) == data
    assert bytes(decompress(4, bytes(cramjam.zstd.compress(data, 19)), len(data))) == data


def frames(codec: int, data: bytes) -> list[bytes]:
    """`data` as different writers compress it."""
    if codec == 1:
        half = len(data) // 2
        return [compress(1, data), gzip.compress(data[:half]) + gzip.compress(data[half:])]
    if codec == 2:
        return [compress(2, data), bytes(cramjam.snappy.compress_raw(data))]
    if codec == 3:
        sums = {"content_checksum": True, "block_checksum": True, "block_size": 7}
        return [
            compress(3, data),
            compress(3, data, 12),
            lz4.frame.compress(data, block_linked=False),
            lz4.frame.compress(data, block_linked=False, **sums),
        ]
    streamed = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(data)
    return [compress(4, data), streamed, streamed + compress(4, b""), bytes(cramjam.zstd.compress(data, 19))]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 100, 70_000, 3_000_000])
def test_what_is_unfolded_piece_by_piece_is_the_same_and_bounded_alike(codec: int, size: int) -> None:
    data = (b"%d" % size + WORDS * (size // len(WORDS) + 1))[:size]
    for packed in frames(codec, data):
        pieces, lasts = [], []
        for piece, is_last in decompress_in_pieces(codec, packed, size):
            pieces.append(bytes(piece))
            lasts.append(is_last)
        assert b"".join(pieces) == data == bytes(decompress(codec, packed, size))
        assert lasts == [False] * (len(lasts) - 1) + [True]
        with pytest.raises(DecompressionLimitExceeded):
            list(decompress_in_pieces(codec, packed, size - 1))
        # The guess is good enough to tell small from large.
        assert size // 2 <= expected_size(codec, packed) <= max(255 * size, 300_000)


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_a_piece_is_small_however_far_a_payload_unfolds(codec: int) -> None:
    packed = compress(codec, bytes(BOMB))
    assert max(len(piece) for piece, _ in decompress_in_pieces(codec, packed, BOMB)) <= PIECE_BYTES


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_cut_anywhere_is_corrupt_when_it_is_unfolded_piece_by_piece(codec: int) -> None:
    data = WORDS[:5000]
    for packed in frames(codec, data):
        for end in range(0, len(packed), 97):
            with pytest.raises(Refused, match="CORRUPT_MESSAGE"):
                if b"".join(bytes(piece) for piece, _ in decompress_in_pieces(codec, packed[:end], 1 << 20)) != data:
                    raise Refused(ErrorCode.CORRUPT_MESSAGE)


@given(st.integers(1, 4), st.binary(max_size=200), st.integers(0, 199), st.integers(0, 255))
def test_noise_unfolds_or_is_refused_and_its_size_is_guessed(codec: int, noise: bytes, place: int, byte: int) -> None:
    harmed = bytearray(compress(codec, noise * 9))
    harmed[place % len(harmed)] = byte
    for data in (noise, bytes(harmed)):
        assert expected_size(codec, data) >= 0
        answer: object
        try:
            answer = sum(len(piece) for piece, _ in decompress_in_pieces(codec, data, 4096)) <= 4096
        except Refused as refused:
            answer = refused.code
        assert answer in (True, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


def test_a_snappy_block_that_claims_more_than_it_can_hold_gets_no_memory() -> None:
    assert code_of(2, b"\xff\xff\xff\x3f" + bytes(20), 1 << 30) == ErrorCode.CORRUPT_MESSAGE

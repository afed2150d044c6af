"""Batches that say one thing outside and another inside their compression, as no client in order would send them."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import cramjam

from semel.config.codecs import CODECS as NAMES
from semel.records import _pure
from semel.records.compression import compress
from semel.records.layout import HEADER_SIZE, seal, with_header_room
from tests.broker.raw import now_ms

GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)
CODECS = range(5)


def record(
    offset_delta: int, *, key: bytes | None = b"k", value: bytes | None = b"v", timestamp_delta: int = 0
) -> bytes:
    out = bytearray()
    _pure.write_record(out, timestamp_delta, offset_delta, key, value, ())
    return bytes(out)


def payload(count: int = 3, **fields: bytes | None) -> bytes:
    return b"".join(record(place, **fields) for place in range(count))  # type: ignore[arg-type]


def sealed(
    packed: bytes,
    codec: int,
    count: int = 3,
    *,
    last_offset_delta: int | None = None,
    at_ms: int | None = None,
    max_ms: int | None = None,
    **header: int,
) -> bytes:
    """A batch of these bytes, with a header that says so and a CRC that fits."""
    at_ms = now_ms() if at_ms is None else at_ms
    rest = {"attributes": codec, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1} | header
    return seal(
        with_header_room(packed),
        last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp=at_ms,
        max_timestamp=at_ms if max_ms is None else max_ms,
        record_count=count,
        **rest,
    )


def batch_of(plain: bytes, codec: int, count: int = 3, **header: int) -> bytes:
    """A batch of these records, compressed as it says."""
    return sealed(compress(codec, plain), codec, count, **header)


def bad_batches(codec: int) -> dict[str, bytes]:
    """What is wrong with each -> the batch. Every CRC fits."""
    plain = payload()
    packed = compress(codec, plain)
    garbage = b"this was never compressed by anybody at all"
    bad: dict[str, bytes] = {
        "garbage": sealed(garbage, codec),
        "nothing": sealed(b"", codec),
        "nothing, compressed": batch_of(b"", codec),
        "cut short": sealed(compress(codec, payload(300))[:-40], codec, 300),
        "records cut short": batch_of(plain[:-2], codec),
        "more counted than there are": batch_of(plain, codec, 4),
        "far more counted than there are": batch_of(plain, codec, 2**31 - 1),
        "fewer counted than there are": batch_of(plain, codec, 2),
        "none counted": sealed(packed, codec, 0, last_offset_delta=2),
        "a negative count": sealed(packed, codec, -1, last_offset_delta=2),
        "fewer offsets than records": sealed(packed, codec, 3, last_offset_delta=1),
        "more offsets than records": sealed(packed, codec, 3, last_offset_delta=5),
        "bytes after the last record": batch_of(plain + b"\0\0", codec),
        "a length that lies": batch_of(bytes([plain[0] + 4]) + plain[1:], codec),
        "a field past its record": batch_of(plain[:4] + b"\x7e" + plain[5:], codec),
        "a negative length": batch_of(b"\x01" + plain[1:], codec),
        "a key of length -2": batch_of(plain[:4] + b"\x03" + plain[5:], codec),
        "headers without end": batch_of(plain[:8] + b"\x7e" + plain[9:], codec),
        "a record twice": batch_of(record(0) + record(1) + record(1), codec),
        "records from 1 on": batch_of(b"".join(record(n + 1) for n in range(3)), codec),
        "a gap between records": batch_of(record(0) + record(2) + record(4), codec),
        "a record far ahead": batch_of(record(0) + record(1) + record(2**31 - 1), codec),
        "a time far ahead": batch_of(record(0) + record(1, timestamp_delta=10**11) + record(2), codec),
        "a latest time that lies": batch_of(plain, codec, max_ms=now_ms() + 10**9),
    }
    return bad


def of_unusual_framing() -> dict[str, bytes]:
    """Compressed in ways that some writers use -> the batch. What is inside is in order."""
    plain = payload(3000, value=bytes(range(100)))
    linked = cramjam.lz4.Compressor()
    linked.compress(plain)
    return {
        "gzip of two members": sealed(gzip.compress(plain[:1000]) + gzip.compress(plain[1000:]), GZIP, 3000),
        "gzip and bytes after it": sealed(gzip.compress(plain) + b"after", GZIP, 3000),
        "snappy without Java's framing": sealed(bytes(cramjam.snappy.compress_raw(plain)), SNAPPY, 3000),
        "lz4 of one call": sealed(bytes(cramjam.lz4.compress(plain)), LZ4, 3000),
        "lz4 of linked blocks": sealed(bytes(linked.finish()), LZ4, 3000),
        "lz4 and bytes after it": sealed(compress(LZ4, plain) + b"after", LZ4, 3000),
        "zstd of two frames": sealed(compress(ZSTD, plain[:1000]) + compress(ZSTD, plain[1000:]), ZSTD, 3000),
        "zstd and bytes after it": sealed(compress(ZSTD, plain) + b"after", ZSTD, 3000),
    }


def named(codecs: Sequence[int] = CODECS) -> dict[str, bytes]:
    """All of them, by codec and flaw."""
    return {f"{NAMES[codec]}: {name}": data for codec in codecs for name, data in bad_batches(codec).items()}


__all__ = ["HEADER_SIZE", "bad_batches", "batch_of", "named", "of_unusual_framing", "payload", "record", "sealed"]

"""v2 record batches: parsed, checked, given their place in a log, read.

A `Batch` is a view: it never copies and never reads a record. `check` validates a client's bytes before they reach the
log. It accepts and refuses what Apache Kafka's own validation does:

- CORRUPT_MESSAGE: the bytes are not what was sent (length, magic, CRC);
- INVALID_RECORD: the bytes arrived whole and are not valid (counts, deltas, a control batch, framing, a payload that
  does not decompress): to send them again would not help;
- INVALID_TIMESTAMP: a client's batch says LogAppendTime; UNSUPPORTED_COMPRESSION_TYPE: there is no such codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from semel.config.codecs import CODECS
from semel.errors import ErrorCode, Refused

from . import _select
from ._select import Batch
from .building import BatchBuilder, build, record_size_max
from .compression import NONE, DecompressionLimitExceeded, compress, decompress, decompress_in_pieces
from .layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    DECOMPRESSED_LIMIT,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC_AT,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    OFFSET_AND_LENGTH,
    TRANSACTIONAL,
    Buffer,
    Record,
    checksum,
    seal,
    set_checksum,
    set_max_timestamp,
    set_place,
    with_header_room,
)

CREATE_TIME: Final = 0
APPEND_TIME: Final = 1
#: At most this many of the records that a batch is refused for are named.
RECORD_ERRORS_MAX = 1000
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)


def split(data: Buffer, *, partial_tail: bool = False) -> list[Batch]:
    """Every batch of a produced, stored or fetched blob, one after the other with nothing between or after.

    `partial_tail`: a last batch that is cut short is left out, as a fetch bounded by bytes may end with one.
    """
    view = memoryview(data)
    batches = []
    position = 0
    end = len(view)
    while position < end:
        if partial_tail:
            room = end - position
            if room <= MAGIC_AT or room < OFFSET_AND_LENGTH.unpack_from(view, position)[1] + LENGTH_OVERHEAD:
                break
        batch = Batch.parse(view, position)
        batches.append(batch)
        position += len(batch.data)
    return batches


class Meter:
    """Counts decompressed bytes, also those of a batch that is refused half-way."""

    __slots__ = ("decompressed_bytes",)

    def __init__(self) -> None:
        self.decompressed_bytes = 0


def check(
    batch: Batch,
    *,
    framing: bool = False,
    require_keys: bool = False,
    stored: bool = False,
    limit: int = DECOMPRESSED_LIMIT,
) -> int | None:
    """Refuse an invalid batch. `framing` walks the records too; `require_keys` (implies it) is for compacted topics.

    `stored`: the batch comes from our own log, where markers, compacted batches and LogAppendTime are valid.
    Returns the largest timestamp of the records (-1 if none has one), if they were walked.
    """
    check_header(batch, stored=stored)
    if framing or require_keys:
        walk = look_into(batch, stored=stored, require_keys=require_keys, limit=limit)
        if walk.has_keyless:
            raise _invalid("a record has no key, and the topic is compacted")
        largest: int = walk.largest_timestamp
        return largest
    return None


def check_header(batch: Batch, *, stored: bool = False) -> None:
    """The checks that need no record: the CRC, the codec, a header that does not contradict itself."""
    if checksum(batch.data) != batch.crc:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC-32C does not match its bytes")
    if batch.codec >= len(CODECS):
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has number {batch.codec}")
    if stored:
        if batch.record_count < 0 or batch.last_offset_delta < 0 or batch.record_count > batch.last_offset_delta + 1:
            raise _invalid(f"{batch.record_count} records in {batch.last_offset_delta + 1} offsets")
    else:
        _check_produced(batch)


def look_into(
    batch: Batch,
    *,
    stored: bool = False,
    require_keys: bool = False,
    oldest: int = INT64_MIN,
    newest: int = INT64_MAX,
    limit: int = DECOMPRESSED_LIMIT,
    pieces_max: int | None = None,
    meter: Meter | None = None,
    named_max: int = RECORD_ERRORS_MAX,
    from_offset_delta: int = 0,
    strict: bool = True,
) -> _select.RecordWalk:
    """Walk every record, decompressing piece by piece, and report what was found. Refused at a malformed record.

    `DecompressionLimitExceeded` at more than `limit` bytes, or `pieces_max` pieces: each has a cost, even a small one.
    `strict`: also refuse what we can read and Java clients cannot.
    """
    try:
        walk = _select.RecordWalk(
            batch.record_count,
            not stored,
            batch.last_offset_delta,
            require_keys,
            batch.base_timestamp,
            oldest,
            newest,
            named_max,
            from_offset_delta,
        )
        left = bytearray()
        is_last = False
        for number, (piece, is_last) in enumerate(_pieces(batch, limit, strict)):
            if number == pieces_max:
                raise DecompressionLimitExceeded(limit)
            if meter is not None:
                meter.decompressed_bytes += len(piece)
            if left:
                left += piece
                piece = left
            if is_last or len(piece) >= walk.wanted:
                used = walk.feed(piece, is_last)
                if walk.wanted > limit:
                    raise DecompressionLimitExceeded(limit)
                if piece is left:
                    del left[:used]
                elif used < len(piece):
                    left += memoryview(piece)[used:]
            elif piece is not left:
                left += piece
        if not is_last:
            # Some codecs can encode nothing at all: then no piece came.
            walk.feed(left, True)
    except ValueError as error:
        raise _invalid(str(error)) from None
    except Refused as refused:
        if refused.code is ErrorCode.CORRUPT_MESSAGE:
            # The CRC is right, so the bytes are what the sender meant to send.
            raise _invalid(refused.why) from None
        raise
    return walk


def _pieces(batch: Batch, limit: int, strict: bool) -> Iterator[tuple[Buffer, bool]]:
    codec = batch.attributes & CODEC_MASK
    if codec == NONE or batch.record_count == 0:
        # Compaction may leave no record, and then nothing was compressed.
        return iter(((batch.payload, True),))
    return decompress_in_pieces(codec, batch.payload, limit, strict=strict)


def _check_produced(batch: Batch) -> None:
    if batch.base_offset != 0:
        raise _invalid(f"the broker assigns offsets, but this batch has one: {batch.base_offset}")
    count = batch.record_count
    if count <= 0 or batch.last_offset_delta != count - 1:
        raise _invalid(f"{count} records, but the last one has offset delta {batch.last_offset_delta}")
    attributes = batch.attributes
    if attributes & (CONTROL | DELETE_HORIZON):
        raise _invalid("only the broker writes control batches and delete horizons")
    if attributes & LOG_APPEND_TIME:
        raise Refused(ErrorCode.INVALID_TIMESTAMP, "only the broker may set the timestamp type LogAppendTime")
    if batch.producer_id > NO_PRODUCER_ID:
        if batch.base_sequence < 0 or batch.producer_epoch < 0:
            raise _invalid(f"producer epoch {batch.producer_epoch}, sequence {batch.base_sequence} of a known producer")
    elif attributes & TRANSACTIONAL:
        raise _invalid("a transactional batch without a producer id")


def _invalid(why: str) -> Refused:
    return Refused(ErrorCode.INVALID_RECORD, why)


def place(data: bytearray | memoryview, base_offset: int, leader_epoch: int, append_time_ms: int | None = None) -> None:
    """Write offset and leader epoch into a batch. The CRC covers neither; with `append_time_ms` it is computed anew."""
    set_place(data, base_offset, leader_epoch)
    if append_time_ms is not None:
        data[ATTRIBUTES_AT] |= LOG_APPEND_TIME
        set_max_timestamp(data, append_time_ms)
        set_checksum(data)


def with_max_timestamp(batch: Batch, max_timestamp: int) -> Batch:
    """The same batch with another largest timestamp in its header, and the CRC that goes with it."""
    data = bytearray(batch.data)
    set_max_timestamp(data, max_timestamp)
    set_checksum(data)
    return Batch.parse(data)


def read_records(batch: Batch, limit: int = DECOMPRESSED_LIMIT) -> Iterator[Record]:
    """The records of a batch in order; refused before the first one if any of them is malformed."""
    payload = decompress(batch.codec, batch.payload, limit)
    append_time = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else NO_TIMESTAMP
    try:
        count = batch.record_count
        records = _select.read_records(payload, count, batch.base_offset, batch.base_timestamp, append_time)
    except ValueError as error:
        raise _invalid(str(error)) from None
    return iter(records)


def retain(
    batch: Batch,
    keep: Callable[[Record], bool] | Sequence[bool],
    delete_horizon_ms: int | None = None,
    *,
    keep_empty: bool = False,
) -> bytes | None:
    """The batch with only the records that `keep` wants: what compaction writes.

    Offsets, the range of offsets, producer and sequences stay as they were, so that neither a reader's position nor a
    producer's last sequence is lost. With nothing kept: None, or with `keep_empty` a batch of no records that still
    holds the producer's last sequence. `delete_horizon_ms` is set once: a batch that has one keeps it.
    """
    mask = [bool(keep(record)) for record in read_records(batch)] if callable(keep) else keep
    kept = sum(map(bool, mask))
    horizon = batch.delete_horizon_ms if batch.has_delete_horizon else delete_horizon_ms
    if kept == 0:
        return without_records(batch) if keep_empty else None
    if kept == batch.record_count and (batch.has_delete_horizon or horizon is None):
        return bytes(batch.data)
    payload = decompress(batch.codec, batch.payload, DECOMPRESSED_LIMIT)
    base_timestamp = batch.base_timestamp if horizon is None else horizon
    shift = batch.base_timestamp - base_timestamp
    remaining = _select.retain_records(payload, batch.record_count, mask, shift)
    max_timestamp = batch.max_timestamp
    if not batch.attributes & LOG_APPEND_TIME:
        largest = _select.check_framing(remaining, kept, False, batch.last_offset_delta, False)
        max_timestamp = base_timestamp + largest
    return seal(
        with_header_room(compress(batch.codec, remaining)),
        attributes=batch.attributes | (0 if horizon is None else DELETE_HORIZON),
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        record_count=kept,
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
    )


def without_records(batch: Batch) -> bytes:
    """The batch without its records: compaction keeps it so that the producer's last sequence stays known."""
    return seal(
        bytearray(HEADER_SIZE),
        attributes=batch.attributes & ~(CODEC_MASK | DELETE_HORIZON),
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.max_timestamp,
        max_timestamp=batch.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        record_count=0,
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
    )


__all__ = [
    "HEADER_SIZE",
    "Batch",
    "BatchBuilder",
    "Record",
    "build",
    "check",
    "place",
    "read_records",
    "record_size_max",
    "retain",
    "split",
    "with_max_timestamp",
    "without_records",
]

"""Checks a client's batch against the topic's settings, before anything is written.

Every record of every batch is checked, also inside compressed batches: what was acknowledged can be read. That may take
long, so `is_light` says beforehand whether a batch can be checked on the thread that serves everybody. The others are
given to `prepare`, which touches nothing of the log and may run on any thread.
"""

from __future__ import annotations

from semel.config import INT64_MAX, Values
from semel.config.codecs import topic_codec
from semel.errors import ErrorCode, RecordsRefused, Refused
from semel.records import _select
from semel.records.batch import (
    INT64_MIN,
    RECORD_ERRORS_MAX,
    Batch,
    Meter,
    check_header,
    look_into,
    with_max_timestamp,
)
from semel.records.compression import LEVEL_SETTINGS, DecompressionLimitExceeded, compress, decompress, expected_size
from semel.records.layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    DECOMPRESSED_LIMIT,
    HEADER_SIZE,
    RECORD_SIZE_MIN,
    seal,
    with_header_room,
)

#: Up to this many bytes an uncompressed batch is checked at once. The compiled loops take a few milliseconds for it.
#: The Python twins are slower, so their limit is lower.
LIGHT_BYTES = 4 * 1024 * 1024 if _select.COMPILED else 64 * 1024
#: The same limit for a batch that has to be decompressed, and for one that has to be recompressed.
LIGHT_DECOMPRESSED_BYTES = 128 * 1024 if _select.COMPILED else 64 * 1024
LIGHT_COMPRESSED_BYTES = 4 * 1024
#: At most this many pieces: each piece has a cost, even a small one.
LIGHT_PIECES = 32
#: A batch that is recompressed is held in memory whole, so it may not decompress to as much.
RECOMPRESSED_LIMIT = 32 * 1024 * 1024
#: A batch may decompress to the first limit, or to the second times `max.message.bytes` if that is more, but never to
#: more than readers accept. It may have as many records as would fit uncompressed, or the third limit if that is more:
#: a reader makes an object of each.
DECOMPRESSED_MIN_LIMIT = 32 * 1024 * 1024
DECOMPRESSED_RATIO_LIMIT = 32
COMPRESSED_RECORDS_LIMIT = 1_000_000


class Admission:
    """The settings that matter here, read once per change of settings instead of once per batch."""

    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_compacted",
        "_max_message_bytes",
        "_most_bytes",
        "append_time",
        "codec",
        "decompressed_limit",
        "level",
    )

    def __init__(self, config: Values) -> None:
        self._max_message_bytes: int = config["max.message.bytes"]
        #: How many bytes a batch may decompress to.
        self.decompressed_limit = min(
            DECOMPRESSED_LIMIT, max(DECOMPRESSED_MIN_LIMIT, DECOMPRESSED_RATIO_LIMIT * self._max_message_bytes)
        )
        self._most_bytes: int = min(self._max_message_bytes, config["segment.bytes"])
        self._after_max_ms: int = config["message.timestamp.after.max.ms"]
        self._before_max_ms: int = config["message.timestamp.before.max.ms"]
        self._compacted = "compact" in config["cleanup.policy"]
        #: Whether records get the time of the append (`message.timestamp.type`).
        self.append_time = config["message.timestamp.type"] == "LogAppendTime"
        #: The codec that batches are stored with; None: as they were sent.
        self.codec: int | None = topic_codec(config["compression.type"])
        setting = LEVEL_SETTINGS.get(self.codec) if self.codec is not None else None
        #: The level of that codec; None: it has no levels.
        self.level: int | None = None if setting is None else config[setting]

    def check(
        self,
        data: bytes | bytearray | memoryview,
        now_ms: int,
        *,
        limit: int | None = None,
        pieces_max: int | None = None,
        meter: Meter | None = None,
    ) -> Batch:
        """Check that `data` is one batch which this topic accepts, and return it. `Refused` otherwise.

        `DecompressionLimitExceeded` if it decompresses to more than `limit` bytes or `pieces_max` pieces.
        """
        batch = Batch.parse(data)
        size = len(batch.data)
        if size != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "a partition is sent exactly one batch at a time")
        if size > self._most_bytes:
            raise self._too_large(size)
        if batch.base_offset != 0:
            raise Refused(ErrorCode.INVALID_RECORD, f"a client's batch begins at offset 0, not {batch.base_offset}")
        check_header(batch)
        if self._passes_quick_check(batch, now_ms):
            return batch
        walk = look_into(
            batch,
            require_keys=self._compacted,
            oldest=INT64_MIN if self.append_time else max(now_ms - self._before_max_ms, INT64_MIN),
            newest=INT64_MAX if self.append_time else min(now_ms + self._after_max_ms, INT64_MAX),
            limit=self.decompressed_limit if limit is None else limit,
            pieces_max=pieces_max,
            meter=meter,
        )
        if batch.record_count > max(COMPRESSED_RECORDS_LIMIT, size // RECORD_SIZE_MIN):
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{batch.record_count} records in a batch of {size} bytes, {COMPRESSED_RECORDS_LIMIT} are the most",
            )
        if walk.has_keyless or (walk.has_far_off and not self.append_time):
            raise self._for_records(walk, now_ms)
        if not self.append_time and walk.largest_timestamp != batch.max_timestamp:
            return with_max_timestamp(batch, walk.largest_timestamp)
        return batch

    def _passes_quick_check(self, batch: Batch, now_ms: int) -> bool:
        """A short check that most batches pass. False means that the full check has to decide."""
        if batch.attributes & CODEC_MASK or self._before_max_ms < INT64_MAX or batch.base_timestamp < 0:
            return False
        try:
            largest_delta = _select.check_framing(
                batch.data[HEADER_SIZE:], batch.record_count, True, batch.last_offset_delta, self._compacted
            )
        except ValueError:
            return False
        if self.append_time:
            return True
        newest: int = batch.base_timestamp + largest_delta
        return newest == batch.max_timestamp and newest - now_ms <= self._after_max_ms

    def is_light(self, data: bytes | bytearray | memoryview) -> bool:
        """Whether a batch looks quick to check, by its size. It may look so wrongly: `check_light` notices."""
        codec = data[ATTRIBUTES_AT] & CODEC_MASK
        changes = self.codec is not None and self.codec != codec
        if codec == 0:
            return len(data) <= (LIGHT_COMPRESSED_BYTES if changes else LIGHT_BYTES)
        return len(data) <= LIGHT_DECOMPRESSED_BYTES and expected_size(codec, memoryview(data)[HEADER_SIZE:]) <= (
            LIGHT_COMPRESSED_BYTES if changes else LIGHT_DECOMPRESSED_BYTES
        )

    def check_light(self, data: bytes | bytearray | memoryview, now_ms: int, meter: Meter) -> Batch | None:
        """`check` for a batch that `is_light`; None when it turns out to be more work than it looked."""
        changes = self.codec is not None and self.codec != data[ATTRIBUTES_AT] & CODEC_MASK
        limit = LIGHT_COMPRESSED_BYTES if changes else LIGHT_DECOMPRESSED_BYTES
        try:
            return self.check(data, now_ms, limit=limit, pieces_max=LIGHT_PIECES, meter=meter)
        except DecompressionLimitExceeded:
            return None

    def prepare(self, data: bytes | bytearray | memoryview, now_ms: int, limit: int, meter: Meter) -> Batch:
        """Check a batch and recompress it if the topic wants another codec. Returns it as it is to be written."""
        if self.codec is not None and self.codec != data[ATTRIBUTES_AT] & CODEC_MASK:
            limit = min(limit, RECOMPRESSED_LIMIT)
        return self.with_topic_codec(self.check(data, now_ms, limit=limit, meter=meter))

    def with_topic_codec(self, batch: Batch) -> Batch:
        """The batch in the codec of this topic. It must not be too large in that codec either."""
        if self.codec is None or self.codec == batch.codec:
            return batch
        changed = recompress(batch, self.codec, self.level)
        if changed.size_bytes > self._most_bytes:
            raise self._too_large(changed.size_bytes)
        return changed

    def _too_large(self, size: int) -> Refused:
        if size > self._max_message_bytes:
            return Refused(
                ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes, max.message.bytes is {self._max_message_bytes}"
            )
        why = f"a batch of {size} bytes is larger than a segment, segment.bytes is {self._most_bytes}"
        return Refused(ErrorCode.RECORD_LIST_TOO_LARGE, why)

    def _for_records(self, walk: _select.RecordWalk, now_ms: int) -> RecordsRefused:
        """Names the records that are refused, and why: a producer may send the others again without them."""
        no_key = "it has no key, and the topic is compacted"
        places = [(place, no_key) for place in walk.keyless]
        places += [(place, f"its timestamp is {timestamp_ms}") for place, timestamp_ms in walk.far_off]
        errors = tuple(sorted(places))
        named = "" if len(errors) < RECORD_ERRORS_MAX else f"; the first {len(errors)} are named"
        if walk.has_far_off and not self.append_time:
            why = (
                f"a record's timestamp is too far from the broker's, {now_ms}: message.timestamp.before.max.ms is "
                f"{self._before_max_ms}, message.timestamp.after.max.ms {self._after_max_ms}"
            )
            return RecordsRefused(ErrorCode.INVALID_TIMESTAMP, why + named, errors)
        why = "a record has no key, and the topic is compacted"
        return RecordsRefused(ErrorCode.INVALID_RECORD, why + named, errors)

    def check_internal(self, data: bytes | bytearray | memoryview) -> Batch:
        """Check a coordinator's own batch: it is trusted, but it must not be too large."""
        batch = Batch.parse(data)
        if len(batch.data) != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "exactly one batch at a time")
        if len(data) > self._most_bytes:
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(data)} bytes is larger than the topic allows")
        return batch


def recompress(batch: Batch, codec: int, level: int | None = None) -> Batch:
    """The same records in another codec. They were checked before and do not change."""
    plain = decompress(batch.codec, batch.payload, RECOMPRESSED_LIMIT)
    return Batch.parse(
        seal(
            with_header_room(compress(codec, plain, level)),
            attributes=batch.attributes & ~CODEC_MASK | codec,
            last_offset_delta=batch.last_offset_delta,
            base_timestamp=batch.base_timestamp,
            max_timestamp=batch.max_timestamp,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            record_count=batch.record_count,
        )
    )

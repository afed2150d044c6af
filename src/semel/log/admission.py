"""What a topic's settings let into its log: the checks of one client's batch before anything is written.

Every record of every batch is looked at, inside its compression too: what was acknowledged can be read. That may take
long, so `is_light` says beforehand whether a batch can be checked where others wait. What cannot is given to
`prepared`, which touches nothing of the log and may run on any thread.
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
from semel.records.compression import LEVEL_SETTINGS, UnfoldsTooFar, compress, decompress, expected_size
from semel.records.layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    DECOMPRESSED_LIMIT,
    HEADER_SIZE,
    RECORD_SIZE_MIN,
    seal,
    with_header_room,
)

#: A batch of so many bytes, compressed or not, is checked at once; the compiled loops take some milliseconds for it at
#: most, their Python twins as long for a small part of it.
LIGHT_BYTES = 4 * 1024 * 1024 if _select.COMPILED else 64 * 1024
#: The same for what is to be unfolded first, and for what is to be compressed anew.
LIGHT_UNFOLDED_BYTES = 128 * 1024 if _select.COMPILED else 64 * 1024
LIGHT_COMPRESSED_BYTES = 4 * 1024
#: Into so many pieces at most: each costs something, however little is in it.
LIGHT_PIECES = 32
#: What is to be compressed anew is held whole meanwhile, so it may not unfold as far.
COMPRESSED_ANEW_LIMIT = 32 * 1024 * 1024
#: A batch may unfold to so much, or to so many times `max.message.bytes` if that is more, and never to more than
#: readers take. Its records may be as many as would fit uncompressed, or so many: who reads makes an object of each.
UNFOLDED_MIN_LIMIT = 32 * 1024 * 1024
UNFOLDED_RATIO_LIMIT = 32
COMPRESSED_RECORDS_LIMIT = 1_000_000


class Admission:
    """The settings that decide, looked up once per change instead of once per batch."""

    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_compacted",
        "_max_message_bytes",
        "_most_bytes",
        "append_time",
        "codec",
        "level",
        "unfolded_limit",
    )

    def __init__(self, config: Values) -> None:
        self._max_message_bytes: int = config["max.message.bytes"]
        #: What a batch may unfold to.
        self.unfolded_limit = min(
            DECOMPRESSED_LIMIT, max(UNFOLDED_MIN_LIMIT, UNFOLDED_RATIO_LIMIT * self._max_message_bytes)
        )
        self._most_bytes: int = min(self._max_message_bytes, config["segment.bytes"])
        self._after_max_ms: int = config["message.timestamp.after.max.ms"]
        self._before_max_ms: int = config["message.timestamp.before.max.ms"]
        self._compacted = "compact" in config["cleanup.policy"]
        #: Records get the broker's clock.
        self.append_time = config["message.timestamp.type"] == "LogAppendTime"
        #: What records are compressed with here; None: as they come.
        self.codec: int | None = topic_codec(config["compression.type"])
        setting = LEVEL_SETTINGS.get(self.codec) if self.codec is not None else None
        #: How hard that codec tries; None: it knows no levels.
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
        """The one batch that `data` is, or `Refused`; `UnfoldsTooFar` beyond `limit` bytes or `pieces_max` pieces."""
        batch = Batch.parse(data)
        size = len(batch.data)
        if size != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "a partition is sent exactly one batch at a time")
        if size > self._most_bytes:
            raise self._too_large(size)
        if batch.base_offset != 0:
            raise Refused(ErrorCode.INVALID_RECORD, f"a client's batch begins at offset 0, not {batch.base_offset}")
        check_header(batch)
        if self._is_in_order_at_a_glance(batch, now_ms):
            return batch
        walk = look_into(
            batch,
            require_keys=self._compacted,
            oldest=INT64_MIN if self.append_time else max(now_ms - self._before_max_ms, INT64_MIN),
            newest=INT64_MAX if self.append_time else min(now_ms + self._after_max_ms, INT64_MAX),
            limit=self.unfolded_limit if limit is None else limit,
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

    def _is_in_order_at_a_glance(self, batch: Batch, now_ms: int) -> bool:
        """Whether a batch as most are is in order, found out in the shortest way; False leaves it open."""
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
        """Whether a client's bytes promise little work. A promise only: `check_light` is held to it."""
        codec = data[ATTRIBUTES_AT] & CODEC_MASK
        changes = self.codec is not None and self.codec != codec
        if codec == 0:
            return len(data) <= (LIGHT_COMPRESSED_BYTES if changes else LIGHT_BYTES)
        return len(data) <= LIGHT_UNFOLDED_BYTES and expected_size(codec, memoryview(data)[HEADER_SIZE:]) <= (
            LIGHT_COMPRESSED_BYTES if changes else LIGHT_UNFOLDED_BYTES
        )

    def check_light(self, data: bytes | bytearray | memoryview, now_ms: int, meter: Meter) -> Batch | None:
        """`check` of what `is_light`; None when it turns out to be more work than it promised."""
        changes = self.codec is not None and self.codec != data[ATTRIBUTES_AT] & CODEC_MASK
        limit = LIGHT_COMPRESSED_BYTES if changes else LIGHT_UNFOLDED_BYTES
        try:
            return self.check(data, now_ms, limit=limit, pieces_max=LIGHT_PIECES, meter=meter)
        except UnfoldsTooFar:
            return None

    def prepared(self, data: bytes | bytearray | memoryview, now_ms: int, limit: int, meter: Meter) -> Batch:
        """The batch as it is to be written, checked and compressed as this topic wants it."""
        if self.codec is not None and self.codec != data[ATTRIBUTES_AT] & CODEC_MASK:
            limit = min(limit, COMPRESSED_ANEW_LIMIT)
        return self.compressed_anew(self.check(data, now_ms, limit=limit, meter=meter))

    def compressed_anew(self, batch: Batch) -> Batch:
        """The same records under the codec this topic has: they must fit that way too."""
        if self.codec is None or self.codec == batch.codec:
            return batch
        changed = recompressed(batch, self.codec, self.level)
        if changed.size_bytes > self._most_bytes:
            raise self._too_large(changed.size_bytes)
        return changed

    def _too_large(self, size: int) -> Refused:
        if size > self._max_message_bytes:
            return Refused(
                ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes, max.message.bytes is {self._max_message_bytes}"
            )
        return Refused(ErrorCode.RECORD_LIST_TOO_LARGE, f"a batch of {size} bytes is larger than a segment")

    def _for_records(self, walk: _select.RecordWalk, now_ms: int) -> RecordsRefused:
        """Which records are refused, and why: a producer may send the others again without them."""
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
        """A coordinator's own batch: it is trusted, but it must fit."""
        batch = Batch.parse(data)
        if len(batch.data) != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "exactly one batch at a time")
        if len(data) > self._most_bytes:
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(data)} bytes is larger than the topic allows")
        return batch


def recompressed(batch: Batch, codec: int, level: int | None = None) -> Batch:
    """The same records under the codec the topic asks for. They were checked: what is inside stays as it is."""
    plain = decompress(batch.codec, batch.payload, COMPRESSED_ANEW_LIMIT)
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

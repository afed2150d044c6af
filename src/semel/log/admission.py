"""What a topic's settings let into its log: the checks of one client's batch before anything is written."""

from __future__ import annotations

from semel.config import INT64_MAX, Values
from semel.errors import ErrorCode, RecordsRefused, Refused
from semel.records.batch import Batch, build, check, read_records, with_max_timestamp
from semel.records.compression import LEVEL_SETTINGS
from semel.records.layout import CODEC_MASK, NO_TIMESTAMP

_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


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
    )

    def __init__(self, config: Values) -> None:
        self._max_message_bytes: int = config["max.message.bytes"]
        self._most_bytes: int = min(self._max_message_bytes, config["segment.bytes"])
        self._after_max_ms: int = config["message.timestamp.after.max.ms"]
        self._before_max_ms: int = config["message.timestamp.before.max.ms"]
        self._compacted = "compact" in config["cleanup.policy"]
        #: Records get the broker's clock.
        self.append_time = config["message.timestamp.type"] == "LogAppendTime"
        #: What records are compressed with here; None: as they come.
        self.codec: int | None = _CODECS.get(config["compression.type"])
        setting = LEVEL_SETTINGS.get(self.codec) if self.codec is not None else None
        #: How hard that codec tries; None: it knows no levels.
        self.level: int | None = None if setting is None else config[setting]

    def check(self, data: bytes | bytearray | memoryview, now_ms: int) -> Batch:
        """The one batch that `data` is, or `Refused`."""
        batch = Batch.parse(data)
        size = len(batch.data)
        if size != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "a partition is sent exactly one batch at a time")
        if size > self._most_bytes:
            raise self._too_large(size)
        if batch.base_offset != 0:
            raise Refused(ErrorCode.INVALID_RECORD, f"a client's batch begins at offset 0, not {batch.base_offset}")
        framing = not batch.attributes & CODEC_MASK
        try:
            largest_delta = check(batch, framing=framing, require_keys=self._compacted)
        except Refused as error:
            if self._compacted:
                check(batch, framing=framing)
                raise _for_missing_keys(batch, error.why) from None
            raise
        if not self.append_time:
            # Where the records were not looked at, the header is believed.
            newest = batch.max_timestamp if largest_delta is None else batch.base_timestamp + largest_delta
            if newest - now_ms > self._after_max_ms:
                raise self._for_timestamps(batch, now_ms)
            if self._before_max_ms < INT64_MAX and any(
                self._far_off(record.timestamp, now_ms) for record in read_records(batch)
            ):
                raise self._for_timestamps(batch, now_ms)
            if newest != batch.max_timestamp:
                if not -INT64_MAX <= newest <= INT64_MAX:
                    raise self._for_timestamps(batch, now_ms)
                batch = with_max_timestamp(batch, newest)
        return batch

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

    def _far_off(self, timestamp_ms: int, now_ms: int) -> bool:
        """A record without a time is never far off."""
        return timestamp_ms != NO_TIMESTAMP and (
            timestamp_ms - now_ms > self._after_max_ms or now_ms - timestamp_ms > self._before_max_ms
        )

    def _for_timestamps(self, batch: Batch, now_ms: int) -> RecordsRefused:
        return RecordsRefused(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamps from {batch.base_timestamp} to {batch.max_timestamp} are too far from the broker's, {now_ms}",
            tuple(
                (record.offset, f"its timestamp is {record.timestamp}")
                for record in read_records(batch)
                if self._far_off(record.timestamp, now_ms)
            ),
        )

    def check_internal(self, data: bytes | bytearray | memoryview) -> Batch:
        """A coordinator's own batch: it is trusted, but it must fit."""
        batch = Batch.parse(data)
        if len(batch.data) != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "exactly one batch at a time")
        if len(data) > self._most_bytes:
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(data)} bytes is larger than the topic allows")
        return batch


def _for_missing_keys(batch: Batch, why: str) -> RecordsRefused:
    """Which records have no key: a producer may send the others again without them."""
    keyless = tuple((record.offset, why) for record in read_records(batch) if record.key is None)
    return RecordsRefused(ErrorCode.INVALID_RECORD, why, keyless)


def recompressed(batch: Batch, codec: int, level: int | None = None) -> Batch:
    """The same records under the codec the topic asks for."""
    return Batch.parse(
        build(
            read_records(batch),
            codec=codec,
            level=level,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
            timestamp_ms=batch.base_timestamp,
        )
    )

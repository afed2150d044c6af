"""What a topic's settings let into its log: the checks of one client's batch before anything is written."""

from __future__ import annotations

from semel.config import Values
from semel.errors import ErrorCode, Refused
from semel.records.batch import Batch, build, check, read_records
from semel.records.layout import CODEC_MASK

_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Admission:
    """The settings that decide, looked up once per change instead of once per batch."""

    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_compacted",
        "_max_message_bytes",
        "_segment_bytes",
        "append_time",
        "codec",
    )

    def __init__(self, config: Values) -> None:
        self._segment_bytes: int = config["segment.bytes"]
        self._max_message_bytes: int = config["max.message.bytes"]
        self._after_max_ms: int = config["message.timestamp.after.max.ms"]
        self._before_max_ms: int = config["message.timestamp.before.max.ms"]
        self._compacted = "compact" in config["cleanup.policy"]
        #: Records get the broker's clock.
        self.append_time = config["message.timestamp.type"] == "LogAppendTime"
        #: What records are compressed with here; None: as they come.
        self.codec: int | None = _CODECS.get(config["compression.type"])

    def check(self, data: bytes | bytearray | memoryview, now_ms: int) -> Batch:
        """The one batch that `data` is, or `Refused`."""
        batch = Batch.parse(data)
        size = len(batch.data)
        if size != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "a partition is sent exactly one batch at a time")
        if size > self._max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes, max.message.bytes is {self._max_message_bytes}"
            )
        if size > self._segment_bytes:
            raise Refused(ErrorCode.RECORD_LIST_TOO_LARGE, f"a batch of {size} bytes is larger than a segment")
        if batch.base_offset != 0:
            raise Refused(ErrorCode.INVALID_RECORD, f"a client's batch begins at offset 0, not {batch.base_offset}")
        check(batch, framing=not batch.attributes & CODEC_MASK, require_keys=self._compacted)
        if not self.append_time:
            newest, oldest = batch.max_timestamp, batch.base_timestamp
            if newest - now_ms > self._after_max_ms or now_ms - max(oldest, 0) > self._before_max_ms:
                raise Refused(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"timestamps from {oldest} to {newest} are too far from the broker's clock, {now_ms}",
                )
        return batch

    def check_internal(self, data: bytes | bytearray | memoryview) -> Batch:
        """A coordinator's own batch: it is trusted, but it must fit."""
        batch = Batch.parse(data)
        if len(batch.data) != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "exactly one batch at a time")
        if len(data) > min(self._max_message_bytes, self._segment_bytes):
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(data)} bytes is larger than the topic allows")
        return batch


def recompressed(batch: Batch, codec: int) -> Batch:
    """The same records under the codec the topic asks for."""
    return Batch.parse(
        build(
            read_records(batch),
            codec=codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
            timestamp_ms=batch.base_timestamp,
        )
    )

"""A batch seen through its header, in plain Python: the definition that the compiled `Batch` is held equal to."""

from __future__ import annotations

from semel.errors import ErrorCode, Refused

from .layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    OFFSET_AND_LENGTH,
    TRANSACTIONAL,
    Buffer,
)
from .sequence import MAX_SEQUENCE

#: A batch length below this cannot even hold a message of the oldest format.
_SMALLEST_LENGTH = 14


class Batch:
    """A view of one batch: the fields of its header, and `data`, a memoryview of exactly its bytes."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "data",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    data: memoryview
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def parse(cls, view: Buffer, position: int = 0) -> Batch:
        """The batch that starts at `position`; only its header is read. Refused if cut short or not a v2 batch."""
        data = memoryview(view)
        room = len(data) - position
        if room < HEADER_SIZE:
            raise no_batch(data, position)
        batch = cls.__new__(cls)
        (
            batch.base_offset,
            length,
            batch.leader_epoch,
            batch.magic,
            batch.crc,
            batch.attributes,
            batch.last_offset_delta,
            batch.base_timestamp,
            batch.max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.record_count,
        ) = HEADER.unpack_from(data, position)
        size = length + LENGTH_OVERHEAD
        if batch.magic != MAGIC or not HEADER_SIZE <= size <= room:
            raise no_batch(data, position)
        batch.data = data[position : position + size]
        return batch

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def payload(self) -> memoryview:
        """The records, compressed as they were sent."""
        return self.data[HEADER_SIZE:]

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record sent in this batch, which compaction may since have removed; -1 if none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """0 the producer's clock (CreateTime), 1 the broker's (LogAppendTime)."""
        return 1 if self.attributes & LOG_APPEND_TIME else 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the tombstones and markers left in this batch; it stands in the base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    def __repr__(self) -> str:
        return (
            f"Batch(offsets={self.base_offset}..{self.last_offset}, records={self.record_count}, "
            f"producer={self.producer_id}/{self.producer_epoch}, sequence={self.base_sequence}, "
            f"attributes={self.attributes:#x}, size_bytes={len(self.data)})"
        )


def no_batch(data: memoryview, position: int) -> Refused:
    """Why no v2 batch can be read at `position`. Magic stands in the same place in all formats, so it comes first."""
    room = len(data) - position
    if room < MAGIC_AT + 1:
        return Refused(ErrorCode.CORRUPT_MESSAGE, f"{room} bytes are left where a batch should start")
    length = OFFSET_AND_LENGTH.unpack_from(data, position)[1]
    magic = data[position + MAGIC_AT]
    if magic < MAGIC and length >= _SMALLEST_LENGTH:
        return Refused(ErrorCode.INVALID_RECORD, f"message format {magic} is not read here, only v2")
    if magic != MAGIC or length + LENGTH_OVERHEAD < HEADER_SIZE:
        return Refused(ErrorCode.CORRUPT_MESSAGE, f"no batch starts here: length {length}, magic {magic}")
    return Refused(ErrorCode.CORRUPT_MESSAGE, f"a batch of {length + LENGTH_OVERHEAD} bytes is cut short at {room}")

"""Building batches. A closed batch never changes: a retry sends exactly the bytes of the first attempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from semel.errors import invariant

from ._pure import read_varint, read_varlong
from ._select import build_pairs, write_record
from .compression import NONE, compress
from .layout import (
    CONTROL,
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    Buffer,
    Record,
    seal,
    with_header_room,
)

__all__ = ["BatchBuilder", "build", "build_pairs", "record_size_max"]

#: key, value, then optionally headers, then optionally a timestamp
Fields: TypeAlias = (
    tuple[Buffer | None, Buffer | None]
    | tuple[Buffer | None, Buffer | None, Sequence[tuple[str, bytes | None]]]
    | tuple[Buffer | None, Buffer | None, Sequence[tuple[str, bytes | None]], int]
)

#: The most that length, attributes, both deltas, two field lengths and the header count of one record can take.
RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5


def record_size_max(key: Buffer | None, value: Buffer | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> int:
    """An upper bound on the encoded size of a record, whatever its place in a batch."""
    size = RECORD_OVERHEAD_MAX + (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
    for name, content in headers:
        size += 10 + 3 * len(name) + (len(content) if content is not None else 0)
    return size


class BatchBuilder:
    """A batch that is being built: `append` records, then `close` it. After that its bytes never change.

    The producer's identity and sequence are decided late (`set_producer`), just before the batch is first sent.
    """

    __slots__ = (
        "_base_sequence",
        "_base_timestamp",
        "_closed",
        "_codec",
        "_control",
        "_max_timestamp",
        "_payload",
        "_producer_epoch",
        "_producer_id",
        "_transactional",
        "level",
        "limit_bytes",
        "record_count",
    )

    def __init__(
        self,
        limit_bytes: int = 2**31 - 1,
        *,
        codec: int = NONE,
        level: int | None = None,
        transactional: bool = False,
        control: bool = False,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.level = level
        self.record_count = 0
        self._codec = codec
        self._control = control
        self._payload = bytearray()
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = NO_PRODUCER_EPOCH
        self._base_sequence = NO_SEQUENCE
        self._transactional = transactional
        self._closed: bytes | None = None

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    @property
    def size_bytes(self) -> int:
        """The size so far, before compression; once closed, the size that is sent."""
        return HEADER_SIZE + len(self._payload) if self._closed is None else len(self._closed)

    @property
    def base_sequence(self) -> int:
        return self._base_sequence

    @property
    def producer_id(self) -> int:
        return self._producer_id

    @property
    def producer_epoch(self) -> int:
        return self._producer_epoch

    def has_room_for(
        self, key: Buffer | None, value: Buffer | None, headers: Sequence[tuple[str, bytes | None]] = ()
    ) -> bool:
        """An open batch takes its first record of any size, and then every record that keeps it within the limit."""
        if self._closed is not None:
            return False
        return self.record_count == 0 or self.size_bytes + record_size_max(key, value, headers) <= self.limit_bytes

    def append(
        self,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: int = NO_TIMESTAMP,
    ) -> int:
        """Add a record. Returns its position in the batch: its offset relative to the one that the broker assigns."""
        invariant(self._closed is None, "a closed batch takes no records")
        position = self.record_count
        base = self._base_timestamp if position else timestamp
        # This comes first: a record that cannot be encoded raises here and leaves the batch as it was.
        write_record(self._payload, timestamp - base, position, key, value, headers)
        if position == 0:
            self._base_timestamp = self._max_timestamp = timestamp
        elif timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self.record_count = position + 1
        return position

    def mend(self) -> None:
        """Drop the record whose `append` was interrupted (Ctrl-C): it may be written and not counted."""
        payload, at, latest = self._payload, 0, self._base_timestamp
        for _ in range(self.record_count):
            length, body = read_varint(payload, at, len(payload))
            delta, _ = read_varlong(payload, body + 1, len(payload))  # after the attributes
            at, latest = body + length, max(latest, self._base_timestamp + delta)
        del payload[at:]
        self._max_timestamp = latest

    def set_producer(
        self, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool | None = None
    ) -> None:
        """Set producer and sequence. Only before `close`: bytes that were sent keep their sequence."""
        invariant(self._closed is None, "a closed batch keeps its producer")
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        if transactional is not None:
            self._transactional = transactional

    def close(
        self,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        base_sequence: int | None = None,
        transactional: bool | None = None,
        *,
        base_offset: int = 0,
        leader_epoch: int = -1,
    ) -> bytes:
        """The finished batch. Arguments left out keep what `set_producer` set. Closing again returns the same bytes."""
        identity = (
            self._producer_id if producer_id is None else producer_id,
            self._producer_epoch if producer_epoch is None else producer_epoch,
            self._base_sequence if base_sequence is None else base_sequence,
            self._transactional if transactional is None else transactional,
        )
        if self._closed is not None:
            known = (self._producer_id, self._producer_epoch, self._base_sequence, self._transactional)
            invariant(identity == known, "a closed batch keeps its producer")
            return self._closed
        self.set_producer(*identity)
        invariant(self.record_count > 0, "a batch has at least one record")
        attributes = self._codec | (TRANSACTIONAL if self._transactional else 0) | (CONTROL if self._control else 0)
        self._closed = seal(
            with_header_room(compress(self._codec, self._payload, self.level) if self._codec else self._payload),
            attributes=attributes,
            last_offset_delta=self.record_count - 1,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._base_sequence,
            record_count=self.record_count,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        )
        self._payload = bytearray()
        return self._closed


def build(
    records: Iterable[Record | Fields],
    *,
    timestamp_ms: int,
    codec: int = NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """One batch of all `records`, offsets consecutive from `base_offset`.

    A `Record` brings its own timestamp and headers (its offset is ignored); a plain tuple is (key, value[, headers[,
    timestamp]]) and takes `timestamp_ms` where it has none.
    """
    builder = BatchBuilder(codec=codec, level=level, transactional=transactional, control=control)
    for record in records:
        if isinstance(record, Record):
            builder.append(record.key, record.value, record.headers, record.timestamp)
        else:
            builder.append(
                record[0],
                record[1],
                record[2] if len(record) > 2 else (),
                record[3] if len(record) > 3 else timestamp_ms,
            )
    return builder.close(producer_id, producer_epoch, base_sequence, base_offset=base_offset, leader_epoch=leader_epoch)

"""Records that wait to be sent, gathered into batches.

Guarantees: records of a partition leave in the order they came; no more than `buffer_memory_bytes` wait at any time,
except that a single record may always enter an empty buffer; once a batch is encoded, every attempt to send it under
the same identity sends the same bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from semel.errors import ErrorCode, KafkaError, RecordTooLarge, invariant
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.records.batch import HEADER_SIZE, Batch, BatchBuilder, read_records
from semel.records.layout import ATTRIBUTES_AT, TRANSACTIONAL, set_checksum, set_producer

Headers = Sequence[tuple[str, bytes | None]]

#: What a record costs beyond its key, value and headers: an upper bound close to what small records really take.
RECORD_OVERHEAD_BYTES = 16


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """One batch of one partition, from its first record to the broker's word on it."""

    partition: TopicPartition
    created_ms: int
    #: Where records go until the batch has an identity; None for a batch that came encoded.
    builder: BatchBuilder | None = None
    size_bytes: int = HEADER_SIZE
    record_count: int = 0
    closed: bool = False
    #: The batch as it is sent, once it has an identity and a sequence.
    data: bytes | None = None
    identity: ProducerIdentity | None = None
    base_sequence: int = -1
    #: Which of the batches sent to its partition this is.
    place: int = 0
    attempts: int = 0
    not_before_ms: int = 0
    on_wire: bool = False
    #: The broker's word: where the batch begins, or why it was not written.
    done: bool = False
    base_offset: int = -1
    append_time_ms: int = -1
    error: KafkaError | None = None
    #: A batch that its topic does not take whole lives on in two parts; the second has the records in these places.
    halves: tuple[ProducerBatch, ProducerBatch] | None = None
    second: Sequence[int] = ()
    parent: ProducerBatch | None = None

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, size_bytes: int) -> int:
        """Take a record in; the answer is its place in the batch."""
        builder = self.builder
        assert builder is not None
        position = builder.append(key, value, headers, timestamp_ms)  # counted only once it is written
        self.size_bytes += size_bytes
        self.record_count += 1
        return position

    def stamp(self, identity: ProducerIdentity | None, base_sequence: int, transactional: bool) -> None:
        """Give the batch its identity and sequence, and with them its bytes."""
        invariant(not self.on_wire, "a batch that is on its way keeps its bytes")
        self.identity, self.base_sequence = identity, base_sequence
        producer_id, producer_epoch = (identity.producer_id, identity.producer_epoch) if identity else (-1, -1)
        if self.builder is not None:
            self.data = self.builder.close(producer_id, producer_epoch, base_sequence, transactional)
            self.builder = None
        elif self.data is not None:
            self.data = stamped(self.data, producer_id, producer_epoch, base_sequence, transactional)

    def split(self, second_part: Iterable[int] | None = None) -> tuple[ProducerBatch, ProducerBatch]:
        """Two parts that together are this batch, each in order: its halves, unless told which records part from it."""
        invariant(self.data is not None and self.record_count > 1, "only an encoded batch of several records is split")
        whole = Batch.parse(self.data or b"")
        records = list(read_records(whole))
        halved = range(len(records) // 2, len(records))
        self.second = halved if second_part is None else sorted(second_part)
        apart = set(self.second)
        first, second = (
            ProducerBatch(self.partition, self.created_ms, BatchBuilder(codec=whole.codec), closed=True, parent=self)
            for _ in range(2)
        )
        for number, record in enumerate(records):
            half = second if number in apart else first
            size = record_size(record.key, record.value, record.headers)
            half.add(record.key, record.value, record.headers, record.timestamp, size)
        self.halves = (first, second)
        self.data = None
        return self.halves

    def finish(self, base_offset: int, append_time_ms: int, error: KafkaError | None) -> ProducerBatch | None:
        """Take the broker's word. The answer is the batch callers know of that is done now, if any."""
        if self.done:
            return None
        self.done, self.base_offset, self.append_time_ms, self.error = True, base_offset, append_time_ms, error
        self.builder = None
        if not self.on_wire:
            self.data = None  # whoever keeps the promise of a record does not keep the bytes of its batch
        if self.parent is None:
            return self
        siblings = self.parent.halves
        invariant(siblings is not None, "the parent of a half has halves")
        if not all(half.done for half in siblings or ()):
            return None
        return self.parent.finish(-1, -1, next((half.error for half in siblings or () if half.error), None))

    def outcome(self, position: int) -> tuple[int, int, KafkaError | None]:
        """Offset, append time and error of the record at this place."""
        if self.halves is not None:
            first, second = self.halves
            before = bisect_left(self.second, position)
            if before < len(self.second) and self.second[before] == position:
                return second.outcome(before)
            return first.outcome(position - before)
        return (-1 if self.base_offset < 0 else self.base_offset + position), self.append_time_ms, self.error


def stamped(data: bytes, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> bytes:
    """The same records under another identity and sequence."""
    copy = bytearray(data)
    set_producer(copy, producer_id, producer_epoch, base_sequence)
    if transactional:
        copy[ATTRIBUTES_AT] |= TRANSACTIONAL
    else:
        copy[ATTRIBUTES_AT] &= ~TRANSACTIONAL & 0xFF
    set_checksum(copy)
    return bytes(copy)


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """What a record is taken to need in a batch."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += 4 + len(name) + (len(content) if content else 0)
    return size


@dataclass(slots=True)
class Accumulator:
    """Batches that wait, by partition."""

    batch_size_bytes: int = 16_384
    linger_ms: int = 5
    buffer_memory_bytes: int = 33_554_432
    max_request_bytes: int = 1_048_576
    codec: int = 0
    level: int | None = None
    waiting: dict[TopicPartition, deque[ProducerBatch]] = field(default_factory=dict)
    used_bytes: int = 0

    def append(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        now_ms: int,
    ) -> tuple[ProducerBatch, int, bool] | None:
        """Add a record: its batch, its place there, and whether a batch became ready. None when the buffer is full.

        Raises `RecordTooLarge` for a record no request could carry.
        """
        size = record_size(key, value, headers)
        if HEADER_SIZE + size > self.max_request_bytes:
            raise RecordTooLarge(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size} bytes for {partition}: max.request.size is {self.max_request_bytes}",
            )
        if self.used_bytes and self.used_bytes + HEADER_SIZE + size > self.buffer_memory_bytes:
            return None
        queue = self.waiting.get(partition)
        if queue:
            position = self.extend(queue[-1], key, value, headers, timestamp_ms)
            if position >= 0:
                return queue[-1], position, False
        batch = ProducerBatch(partition, now_ms, BatchBuilder(codec=self.codec, level=self.level))
        position = batch.add(key, value, headers, timestamp_ms, size)
        # The record is written. Nothing was changed before, so that one which cannot be written leaves no trace.
        if queue is None:
            queue = self.waiting[partition] = deque()
        elif queue:
            queue[-1].closed = True
        queue.append(batch)
        self.used_bytes += HEADER_SIZE + size
        # The sender has to look: at a batch that just closed, or to know when this one will have lingered enough.
        return batch, position, True

    def extend(
        self, batch: ProducerBatch, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> int:
        """Add a record to an open batch if it has room: its place there, else -1. What most records go through."""
        size = RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if headers:
            size = record_size(key, value, headers)
        if (
            batch.closed
            or batch.size_bytes + size > self.batch_size_bytes
            or self.used_bytes + size > self.buffer_memory_bytes
        ):
            return -1
        builder = batch.builder
        assert builder is not None
        position = builder.append(key, value, headers, timestamp_ms)  # as `add` does, without a call of its own
        batch.size_bytes += size
        batch.record_count += 1
        self.used_bytes += size
        return position

    def append_encoded(
        self, partition: TopicPartition, data: bytes, record_count: int, now_ms: int
    ) -> ProducerBatch | None:
        """Add a batch that was encoded elsewhere, from Arrow columns. None when the buffer is full."""
        if len(data) > self.max_request_bytes:
            raise RecordTooLarge(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(data)} bytes for {partition}: max.request.size is {self.max_request_bytes}",
            )
        if self.used_bytes and self.used_bytes + len(data) > self.buffer_memory_bytes:
            return None
        queue = self.waiting.setdefault(partition, deque())
        if queue:
            queue[-1].closed = True
        batch = ProducerBatch(
            partition, now_ms, None, size_bytes=len(data), record_count=record_count, closed=True, data=data
        )
        queue.append(batch)
        self.used_bytes += len(data)
        return batch

    def ready_at_ms(self, partition: TopicPartition) -> int | None:
        """When the partition's next batch may go: 0 for now, None when there is none."""
        queue = self.waiting.get(partition)
        if not queue:
            return None
        first = queue[0]
        exhausted = self.used_bytes + self.batch_size_bytes > self.buffer_memory_bytes
        if first.closed or exhausted or first.size_bytes >= self.batch_size_bytes:
            return 0
        return first.created_ms + self.linger_ms

    def take(self, partition: TopicPartition) -> ProducerBatch:
        """The partition's next batch, closed: it takes no more records."""
        queue = self.waiting[partition]
        batch = queue.popleft()
        batch.closed = True
        if not queue:
            del self.waiting[partition]
        return batch

    def release(self, batch: ProducerBatch) -> None:
        """The batch will not be sent again: its memory is free."""
        self.used_bytes -= batch.size_bytes
        batch.size_bytes = 0

    def close_all(self) -> None:
        """Close every open batch: a flush waits for these and for nothing that comes later."""
        for batch in self.batches():
            batch.closed = True

    def batches(self) -> Iterator[ProducerBatch]:
        """Every batch that waits."""
        for queue in self.waiting.values():
            yield from queue

    def partitions(self) -> Iterable[TopicPartition]:
        """Partitions with batches that wait."""
        return [partition for partition, queue in self.waiting.items() if queue]

    @property
    def is_empty(self) -> bool:
        return not any(self.waiting.values())

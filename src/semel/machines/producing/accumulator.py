"""Records that wait to be sent, collected into batches.

Guarantees: the records of a partition are sent in the order in which they were added. At most `buffer_memory_bytes`
wait at any time, except that an empty buffer takes any single record. Once a batch is encoded, every attempt to send
it under the same identity sends the same bytes.
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

#: The size of a record without its key, value and headers: an upper bound, close for small records.
RECORD_OVERHEAD_BYTES = 16


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """One batch of one partition, from its first record to the broker's answer."""

    partition: TopicPartition
    created_ms: int
    #: Collects the records until the batch is encoded; None for a batch that was added encoded.
    builder: BatchBuilder | None = None
    size_bytes: int = HEADER_SIZE
    record_count: int = 0
    closed: bool = False
    #: The encoded batch, once it has an identity and a sequence.
    data: bytes | None = None
    identity: ProducerIdentity | None = None
    base_sequence: int = -1
    #: Counts the batches sent to this partition: 0 is the first.
    place: int = 0
    attempts: int = 0
    not_before_ms: int = 0
    #: Why it has to be sent again.
    last_refusal: str = ""
    on_wire: bool = False
    #: The broker's answer: the base offset, or why the batch was not written.
    done: bool = False
    base_offset: int = -1
    append_time_ms: int = -1
    error: KafkaError | None = None
    #: A batch that was too large is split in two. `second` holds the places of the second half's records.
    halves: tuple[ProducerBatch, ProducerBatch] | None = None
    second: Sequence[int] = ()
    parent: ProducerBatch | None = None
    #: Freed with a batch that failed. The client hears by it that nobody can ask for the outcome any more.
    witness: object = None

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, size_bytes: int) -> int:
        """Add a record. Returns its place in the batch."""
        builder = self.builder
        assert builder is not None
        position = builder.append(key, value, headers, timestamp_ms)  # may raise: count it only afterwards
        self.size_bytes += size_bytes
        self.record_count += 1
        return position

    def mend(self) -> None:
        """Count again, after an `add` that was interrupted (Ctrl-C) and whose caller cannot know how far it came."""
        if self.builder is not None:
            self.builder.mend()
            self.record_count = self.builder.record_count

    def stamp(self, identity: ProducerIdentity | None, base_sequence: int, transactional: bool) -> None:
        """Set identity and sequence, and encode the batch."""
        invariant(not self.on_wire, "a batch in flight is not changed")
        self.identity, self.base_sequence = identity, base_sequence
        producer_id, producer_epoch = (identity.producer_id, identity.producer_epoch) if identity else (-1, -1)
        if self.builder is not None:
            self.data = self.builder.close(producer_id, producer_epoch, base_sequence, transactional)
            self.builder = None
        elif self.data is not None:
            self.data = with_producer(self.data, producer_id, producer_epoch, base_sequence, transactional)

    def split(self, second_part: Iterable[int] | None = None) -> tuple[ProducerBatch, ProducerBatch]:
        """Split into two batches that keep the order: two halves, or `second_part` and the rest."""
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
        """Store the broker's answer. Returns the batch that callers wait for, if it is done now."""
        if self.done:
            return None
        self.done, self.base_offset, self.append_time_ms, self.error = True, base_offset, append_time_ms, error
        self.builder = None
        if not self.on_wire:
            self.data = None  # a caller that keeps a record's future must not keep the batch's bytes in memory
        parent = self.parent
        if parent is None:
            return self
        invariant(parent.halves is not None, "the parent of a half has halves")
        siblings = parent.halves or ()
        if not all(half.done for half in siblings):
            return None
        for half in siblings:
            half.parent = None  # no cycle: a batch that nobody holds is freed at once
        return parent.finish(-1, -1, next((half.error for half in siblings if half.error), None))

    def outcome(self, position: int) -> tuple[int, int, KafkaError | None]:
        """Offset, append time and error of the record at `position`."""
        if self.halves is not None:
            first, second = self.halves
            before = bisect_left(self.second, position)
            if before < len(self.second) and self.second[before] == position:
                return second.outcome(before)
            return first.outcome(position - before)
        return (-1 if self.base_offset < 0 else self.base_offset + position), self.append_time_ms, self.error


def with_producer(data: bytes, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> bytes:
    """A copy of an encoded batch with another identity and sequence."""
    copy = bytearray(data)
    set_producer(copy, producer_id, producer_epoch, base_sequence)
    if transactional:
        copy[ATTRIBUTES_AT] |= TRANSACTIONAL
    else:
        copy[ATTRIBUTES_AT] &= ~TRANSACTIONAL & 0xFF
    set_checksum(copy)
    return bytes(copy)


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The estimated size of a record in a batch."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += 4 + len(name) + (len(content) if content else 0)
    return size


@dataclass(slots=True)
class Accumulator:
    """The batches that wait, by partition."""

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
        """Add a record. Returns its batch, its place there, and whether the sender must look. None: the buffer is full.

        Raises `RecordTooLarge` for a record larger than max.request.size.
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
        # Only now change anything: `add` raises for a record that cannot be encoded.
        if queue is None:
            queue = self.waiting[partition] = deque()
        elif queue:
            queue[-1].closed = True
        queue.append(batch)
        self.used_bytes += HEADER_SIZE + size
        # The sender must look: a batch was closed, or a new one has its own linger time.
        return batch, position, True

    def extend(
        self, batch: ProducerBatch, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> int:
        """Add a record to an open batch. Returns its place, or -1 if there is no room. The fast path of `append`."""
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
        position = builder.append(key, value, headers, timestamp_ms)  # inlined from `add`: this is the hot path
        batch.size_bytes += size
        batch.record_count += 1
        self.used_bytes += size
        return position

    def mend(self) -> list[TopicPartition]:
        """Make whole what an interrupted `append` or `extend` left half done. Returns the partitions with batches."""
        for queue in self.waiting.values():
            if queue:
                queue[-1].mend()  # only the newest takes records
        return list(self.partitions())

    def append_encoded(
        self, partition: TopicPartition, data: bytes, record_count: int, now_ms: int
    ) -> ProducerBatch | None:
        """Add a batch that is already encoded, from Arrow columns. None if the buffer is full."""
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
        """When the partition's next batch may be sent: 0 means now, None means that there is none."""
        queue = self.waiting.get(partition)
        if not queue:
            return None
        first = queue[0]
        exhausted = self.used_bytes + self.batch_size_bytes > self.buffer_memory_bytes
        if first.closed or exhausted or first.size_bytes >= self.batch_size_bytes:
            return 0
        return first.created_ms + self.linger_ms

    def take(self, partition: TopicPartition) -> ProducerBatch:
        """Remove and return the partition's next batch, closed."""
        queue = self.waiting[partition]
        batch = queue.popleft()
        batch.closed = True
        if not queue:
            del self.waiting[partition]
        return batch

    def release(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch that will not be sent again."""
        self.used_bytes -= batch.size_bytes
        batch.size_bytes = 0

    def close_all(self) -> None:
        """Close every open batch. A flush waits for these, not for later ones."""
        for batch in self.batches():
            batch.closed = True

    def batches(self) -> Iterator[ProducerBatch]:
        """All batches that wait."""
        for queue in self.waiting.values():
            yield from queue

    def partitions(self) -> Iterable[TopicPartition]:
        """The partitions with batches that wait."""
        return [partition for partition, queue in self.waiting.items() if queue]

    @property
    def is_empty(self) -> bool:
        return not any(self.waiting.values())

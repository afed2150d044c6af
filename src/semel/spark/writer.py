"""What a task does: write its rows of the micro-batch into the driver's transaction.

Guarantees: a task produces to a partition only after it has claimed it, with sequences from 0 (or from where an earlier
DataFrame of the same transaction ended) and one request at a time, which keeps the order. A batch that must be sent
again has the same sequence and the same bytes. A task reports only what the broker has acknowledged. Rows are encoded
while earlier ones are being sent.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster, Leader
from semel.errors import ErrorCode, Misuse, Refused, error_for
from semel.machines.pipeline.claims import Epoch
from semel.machines.values import ProducerIdentity
from semel.records.batch import Batch
from semel.records.columns import from_arrow
from semel.records.sequence import next_sequence
from semel.wire.messages.produce import ProduceRequest

from .claims import ClaimDesk, refuse_row
from .connections import cluster_of
from .kafka_options import DEFAULT_PRODUCER, ClientSettings, ProducerOptions
from .limits import forget_largest_batch, largest_batch
from .routing import TARGET

REPORT_SCHEMA = "topic string, partition int, records long, first_offset long, last_offset long, size_bytes long"
_REPORT = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)

#: The broker's errors for a batch that is too large for the topic.
_LIMITS = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What a task needs to know. Pickled by the driver for the executors."""

    client_settings: ClientSettings
    transactional_id: str
    identity: ProducerIdentity
    desk: ClaimDesk
    implicit_add: bool
    topic: str | None
    producer: ProducerOptions = DEFAULT_PRODUCER
    #: How many DataFrames were written in this transaction before.
    write_number: int = 0
    #: The next sequence number of each partition that was written in this transaction before.
    sequences: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @property
    def epoch(self) -> Epoch:
        """The epoch in which tasks claim partitions."""
        return self.identity.producer_id, self.identity.producer_epoch, self.write_number

    @property
    def refuse_row(self) -> Callable[[str], NoReturn]:
        """What a task calls for a row that can never be written. Pickled with the plan."""
        return functools.partial(refuse_row, self.desk, self.epoch)


def write(batches: Iterator[pa.RecordBatch], plan: WritePlan) -> Iterator[pa.RecordBatch]:
    """Write this task's rows. Yields a report per output partition: what the broker acknowledged."""
    loop, cluster = cluster_of(plan.client_settings)
    writers: dict[tuple[str, int], _PartitionWriter] = {}
    outbox = _Outbox(loop, plan.producer.unsent_bytes)
    try:
        for batch in batches:
            for topic, partition, rows in _by_destination(batch, plan.topic):
                writer = writers.get((topic, partition))
                if writer is None:
                    _check_partition(loop, cluster, topic, partition, plan)
                    plan.desk.claim(plan.epoch, topic, partition)
                    writer = writers[topic, partition] = _PartitionWriter(cluster, plan, topic, partition)
                writer.add(rows)
                if writer.waiting_bytes >= plan.producer.batch_bytes:
                    writer.encode_into(outbox)
        for writer in writers.values():
            writer.encode_into(outbox)
        outbox.wait_for_all()
    except Misuse as error:
        if error.code in _LIMITS:
            forget_largest_batch(plan.client_settings)  # it was lowered meanwhile: the next attempt asks again
            raise
        plan.refuse_row(str(error))
    finally:
        outbox.cancel()
    yield pa.RecordBatch.from_pylist([writer.report() for writer in writers.values()], schema=_REPORT)


def _by_destination(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """The rows of a batch by topic and partition, in their order."""
    if topic is None:
        topics = batch.column("topic")
        for name in pc.unique(topics).to_pylist():
            yield from _by_destination(batch.filter(pc.equal(topics, name)).drop_columns(["topic"]), name)
        return
    targets = batch.column(TARGET)
    rows = batch.drop_columns([TARGET])
    counts = pc.value_counts(targets)
    if len(counts) == 1:
        yield topic, targets[0].as_py(), rows
        return
    rows = rows.take(pc.array_sort_indices(targets))  # a stable sort
    start = 0
    for count in sorted(counts.to_pylist(), key=lambda count: count["values"]):
        yield topic, count["values"], rows.slice(start, count["counts"])
        start += count["counts"]


def _check_partition(loop: LoopThread, cluster: Cluster, topic: str, partition: int, plan: WritePlan) -> None:
    """Refuse a partition that does not exist. The broker would answer with a retriable error."""
    count = len(loop.run(cluster.topic(topic)).partitions)
    if not 0 <= partition < count:
        cluster.forget_topic(topic)  # the topic may have grown since
        count = len(loop.run(cluster.topic(topic)).partitions)
    if not 0 <= partition < count:
        plan.refuse_row(no_such_partition(topic, partition, count))


def no_such_partition(topic: str, partition: int, count: int) -> str:
    """The message for a row that names a partition its topic does not have."""
    return (
        f"the column 'partition' says {partition}, and topic '{topic}' has partitions 0 to {count - 1}: correct the "
        "column, or drop it to let the key decide"
    )


def _largest_of(rows: pa.RecordBatch) -> str:
    """Which row is the largest, for a message: by the source's offset, if the rows have it."""
    if "offset" not in rows.schema.names:
        return ""
    sizes = pc.fill_null(pc.binary_length(rows.column("value")), 0)
    return f" (the largest came from offset {rows.column('offset')[pc.index(sizes, pc.max(sizes)).as_py()]})"


class _Outbox:
    """Encoded batches that are being sent. Blocks the encoder if too much waits, and raises the first failure."""

    def __init__(self, loop: LoopThread, most_bytes: int) -> None:
        self._loop = loop
        self._most_bytes = most_bytes
        self._sending: deque[tuple[Future[None], int]] = deque()
        self._unsent_bytes = 0

    def put(self, sending: Any, size_bytes: int) -> None:
        while self._sending and (self._unsent_bytes > self._most_bytes or self._sending[0][0].done()):
            self._take_first()
        self._sending.append((asyncio.run_coroutine_threadsafe(sending, self._loop.loop), size_bytes))
        self._unsent_bytes += size_bytes

    def _take_first(self) -> None:
        future, size_bytes = self._sending.popleft()
        self._unsent_bytes -= size_bytes
        future.result()

    def wait_for_all(self) -> None:
        while self._sending:
            self._take_first()

    def cancel(self) -> None:
        """Send nothing more after a failure."""
        for future, _ in self._sending:
            future.cancel()


class _PartitionWriter:
    """The only writer of one partition in this epoch."""

    def __init__(self, cluster: Cluster, plan: WritePlan, topic: str, partition: int) -> None:
        self._cluster, self._plan, self._topic, self._partition = cluster, plan, topic, partition
        self._largest = self._ask_for_the_limit()
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._next_sequence = plan.sequences.get((topic, partition), 0)
        self._turn = asyncio.Lock()
        self._failed = False
        self._acknowledged = self._acknowledged_bytes = 0
        self._first_offset = self._last_offset = -1

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes

    def encode_into(self, outbox: _Outbox) -> None:
        """Encode the rows that wait, and put the batches into the outbox in order."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self.waiting_bytes = [], 0
        for rows in table.combine_chunks().to_batches():
            for encoded in self._encode(rows):
                records = Batch.parse(memoryview(encoded)).record_count
                self._next_sequence = next_sequence(self._next_sequence, records)
                outbox.put(self._send(encoded, records), len(encoded))

    def _encode(self, rows: pa.RecordBatch) -> list[bytes]:
        try:
            return from_arrow(
                rows,
                timestamp_ms=time.time_ns() // 1_000_000,
                producer_id=self._plan.identity.producer_id,
                producer_epoch=self._plan.identity.producer_epoch,
                base_sequence=self._next_sequence,
                codec=self._plan.producer.codec,
                level=self._plan.producer.level,
                transactional=True,
                max_batch_bytes=min(self._plan.producer.batch_bytes, self._largest),
                max_row_bytes=self._largest,
            )
        except Refused as refused:
            if refused.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            forget_largest_batch(self._plan.client_settings)
            before, self._largest = self._largest, self._ask_for_the_limit()
            if self._largest > before:  # the limit was raised meanwhile
                return self._encode(rows)
            limit = f"max.message.bytes of topic '{self._topic}'"
            if self._largest == self._plan.producer.largest_request_bytes:
                limit = "the option kafka.max.request.size"
            self._plan.refuse_row(
                f"a row for {self._topic}-{self._partition} is too large: {refused.why}{_largest_of(rows)}; make it "
                f"smaller, compress, or raise {limit}"
            )

    def _ask_for_the_limit(self) -> int:
        """The largest batch: what the topic allows, or max.request.size if that is less."""
        allowed = largest_batch(self._plan.client_settings, self._topic)
        given = self._plan.producer.largest_request_bytes
        return allowed if given is None else min(allowed, given)

    async def _send(self, encoded: bytes, records: int) -> None:
        async with self._turn:  # the lock is fair, so batches are sent in the order of their sequences
            if self._failed:
                return  # the outbox raises the failure of the earlier batch
            try:
                await self._produce(encoded, records)
            except BaseException:
                self._failed = True
                raise

    async def _produce(self, encoded: bytes, records: int) -> None:
        request = ProduceRequest(
            transactional_id=self._plan.transactional_id,
            acks=-1,
            timeout_ms=self._cluster.config["request.timeout.ms"],
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=self._topic,
                    partition_data=[ProduceRequest.PartitionProduceData(index=self._partition, records=encoded)],
                )
            ],
        )
        answer: Any = await self._cluster.request_retrying(
            request,
            to=Leader(self._topic, self._partition),
            version=12 if self._plan.implicit_add else 9,
            timeout_ms=self._plan.producer.deadline_ms,
        )
        row = answer.responses[0].partition_responses[0]
        if row.error_code:
            code = ErrorCode.of(row.error_code)
            raise error_for(code, f"producing to {self._topic}-{self._partition}: {code.meaning}")
        self._acknowledged += records
        self._acknowledged_bytes += len(encoded)
        if self._first_offset < 0:
            self._first_offset = row.base_offset
        self._last_offset = row.base_offset + records - 1

    def report(self) -> dict[str, Any]:
        return {
            "topic": self._topic,
            "partition": self._partition,
            "records": self._acknowledged,
            "first_offset": self._first_offset,
            "last_offset": self._last_offset,
            "size_bytes": self._acknowledged_bytes,
        }

"""What a task does: write its rows of the micro-batch into the driver's transaction. The driver does it for a few rows.

Guarantees: a task produces to a partition only in its turn, with the sequence numbers that the driver gave it, and ends
its turn when all is acknowledged. At most five requests of a partition are on their way at once, and never the first
one of a transaction with others: until it is acknowledged a broker could accept a later one in its place. What must be
sent again is sent in order, with the same sequences and the same bytes. A task reports only what the broker has
acknowledged. Rows are encoded while earlier ones are being sent.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster, Leader
from semel.errors import ErrorCode, Misuse, Refused, Retriable, error_for
from semel.machines.pipeline.claims import Epoch
from semel.machines.values import ProducerIdentity
from semel.records.columns import UnsealedBatch, encode_arrow
from semel.records.sequence import next_sequence
from semel.wire.messages.produce import ProduceRequest

from .claims import ClaimDesk, OwnTurns, TaskClaims, refuse_row
from .connections import cluster_of
from .kafka_options import DEFAULT_PRODUCER, ClientSettings, ProducerOptions
from .limits import forget_largest_batch, largest_batch
from .routing import Router, came_from

_REPORT = pa.schema(
    [
        ("task", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)
#: The same for Spark. As a type and not as text, which the JVM would have to parse for every micro-batch.
REPORT_SCHEMA = from_arrow_schema(_REPORT)

#: Who gives out the turns at the partitions: the driver, over a socket or in its own process.
Turns = TaskClaims | OwnTurns

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
    #: The partition count of `topic`, the same for all tasks: a key must not move if the topic grows meanwhile.
    partitions: int | None = None

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
    claims = plan.desk.writer(plan.epoch, task_number(), plan.producer.deadline_ms)
    yield pa.RecordBatch.from_pylist(write_rows(batches, plan, loop, cluster, claims), schema=_REPORT)


def write_rows(
    batches: Iterable[pa.RecordBatch], plan: WritePlan, loop: LoopThread, cluster: Cluster, claims: Turns
) -> list[dict[str, Any]]:
    """Write rows in the turns that `claims` gives. Returns the reports."""
    turn = plan.identity.producer_epoch + claims.task
    router = Router(plan.topic, plan.partitions, plan.client_settings, plan.refuse_row, turn)
    writers: dict[tuple[str, int], _PartitionWriter] = {}
    outbox = _Outbox(loop, plan.producer.unsent_bytes)
    try:
        for batch in batches:
            for topic, partition, rows in router.route(batch):
                writer = writers.get((topic, partition))
                if writer is None:
                    _check_partition(loop, cluster, topic, partition, plan, rows)
                    writer = _PartitionWriter(loop, cluster, plan, claims, topic, partition)
                    writers[topic, partition] = writer
                writer.add(rows)
                if writer.waiting_bytes >= plan.producer.rows_bytes:
                    writer.encode_into(outbox)
                    router.is_full(topic, partition)
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
        loop.run(claims.close())
    return [writer.report() for writer in writers.values()]


def task_number() -> int:
    """The number of this task in its stage. It stays the same when Spark runs the task again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _check_partition(
    loop: LoopThread, cluster: Cluster, topic: str, partition: int, plan: WritePlan, rows: pa.RecordBatch
) -> None:
    """Refuse a partition that does not exist. The broker would answer with a retriable error."""
    count = len(loop.run(cluster.topic(topic)).partitions)
    if not 0 <= partition < count:
        cluster.forget_topic(topic)  # the topic may have grown since
        count = len(loop.run(cluster.topic(topic)).partitions)
    if not 0 <= partition < count:
        plan.refuse_row(no_such_partition(topic, partition, count, came_from(rows, 0)))


def no_such_partition(topic: str, partition: int, count: int, which: str = "") -> str:
    """The message for a row that names a partition its topic does not have. `which` says which row it is."""
    return (
        f"the column 'partition' says {partition}, and topic '{topic}' has partitions 0 to {count - 1}{which}: correct "
        "the column, or drop it to let the key decide"
    )


def _without_a_name(rows: pa.RecordBatch, since: int) -> int:
    """The first row from `since` on that has a header without a name."""
    headers = rows.column("headers").slice(since).to_pylist()
    return next(
        (row for row, found in enumerate(headers, since) if any(not one or one["key"] is None for one in found or ())),
        since,
    )


class _Outbox:
    """Encoded batches that are being sent. Blocks the encoder if too much waits, and raises the first failure."""

    def __init__(self, loop: LoopThread, most_bytes: int) -> None:
        self._loop = loop
        self._most_bytes = most_bytes
        self._sending: deque[tuple[Future[None], int]] = deque()
        self._unsent_bytes = 0

    def put(self, sending: Any, size_bytes: int) -> None:
        try:
            while self._sending and (self._unsent_bytes > self._most_bytes or self._sending[0][0].done()):
                self._take_first()
        except BaseException:
            sending.close()  # it was never begun, and Python would warn of that
            raise
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
    """This task's writer of one partition."""

    def __init__(
        self, loop: LoopThread, cluster: Cluster, plan: WritePlan, claims: Turns, topic: str, partition: int
    ) -> None:
        self._loop, self._cluster, self._plan, self._claims = loop, cluster, plan, claims
        self._topic, self._partition = topic, partition
        self._largest = self._ask_for_the_limit()
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._encoded: deque[UnsealedBatch] = deque()
        self._one_sender = asyncio.Lock()
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
            for batch in self._encode(rows):
                self._encoded.append(batch)
                outbox.put(self._send(batch), len(batch.data))

    def _encode(self, rows: pa.RecordBatch) -> Iterator[UnsealedBatch]:
        done = 0
        try:
            for batch in encode_arrow(
                rows,
                timestamp_ms=time.time_ns() // 1_000_000,
                transactional=True,
                codec=self._plan.producer.codec,
                level=self._plan.producer.level,
                max_batch_bytes=min(self._plan.producer.batch_bytes, self._largest),
                max_row_bytes=self._largest,
            ):
                yield batch
                done += batch.record_count
        except ValueError as error:
            self._plan.refuse_row(
                f"a row for {self._topic}-{self._partition} cannot be a record: {error}"
                f"{came_from(rows, _without_a_name(rows, done))}; each of the column 'headers' needs a key that is not "
                "null"
            )
        except Refused as refused:
            if refused.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            forget_largest_batch(self._plan.client_settings)
            before, self._largest = self._largest, self._ask_for_the_limit()
            if self._largest > before:  # the limit was raised meanwhile
                yield from self._encode(rows.slice(done))
                return
            limit = f"max.message.bytes of topic '{self._topic}'"
            if self._largest == self._plan.producer.largest_request_bytes:
                limit = "the option kafka.max.request.size"
            self._plan.refuse_row(
                f"a row for {self._topic}-{self._partition} is too large: {refused.why}{came_from(rows, done)}; make "
                f"it smaller, compress, or raise {limit}"
            )

    def _ask_for_the_limit(self) -> int:
        """The largest batch: what the topic allows, or max.request.size if that is less."""
        allowed = largest_batch(self._loop, self._cluster, self._plan.client_settings, self._topic)
        given = self._plan.producer.largest_request_bytes
        return allowed if given is None else min(allowed, given)

    async def _send(self, batch: UnsealedBatch) -> None:
        """Returns when this batch is acknowledged. It may go together with earlier or later ones."""
        async with self._one_sender:
            if self._failed:
                return  # the outbox raises the failure of the earlier batch
            try:
                while batch in self._encoded:
                    await self._take_a_turn([self._encoded[number] for number in range(min(5, len(self._encoded)))])
            except BaseException:
                self._failed = True
                raise

    async def _take_a_turn(self, batches: list[UnsealedBatch]) -> None:
        """Send these batches with the sequence numbers of one turn, and wait until all are acknowledged."""
        records = sum(batch.record_count for batch in batches)
        sequence = await self._claims.take_turn(self._topic, self._partition, records)
        is_first, requests = sequence == 0, []
        identity = self._plan.identity
        for batch in batches:
            encoded = batch.seal(identity.producer_id, identity.producer_epoch, sequence)
            requests.append((self._request(encoded), batch.record_count, len(encoded)))
            sequence = next_sequence(sequence, batch.record_count)
            self._encoded.popleft()
        alone = requests[:1] if is_first or len(requests) == 1 else []
        for request in alone:
            self._note(await self._produce(request[0]), *request[1:])
        await self._send_at_once(requests[len(alone) :])
        await self._claims.end_turn(self._topic, self._partition)

    async def _send_at_once(self, requests: list[tuple[ProduceRequest, int, int]]) -> None:
        """Send without waiting for answers in between. From the first failure on, send again one after the other."""
        answers = await asyncio.gather(*(self._try(request) for request, _, _ in requests))
        in_order = True
        for (request, records, size_bytes), answer in zip(requests, answers, strict=True):
            in_order = in_order and answer is not None
            self._note(answer if in_order else await self._produce(request), records, size_bytes)

    async def _try(self, request: ProduceRequest) -> Any:
        """The broker's answer, or None if it has to be sent again."""
        try:
            answer = await self._cluster.request(
                Leader(self._topic, self._partition), request, version=12 if self._plan.implicit_add else 9
            )
        except Retriable:
            return None
        return None if answer.responses[0].partition_responses[0].error_code else answer

    async def _produce(self, request: ProduceRequest) -> Any:
        """The broker's answer. Retriable errors are waited out."""
        return await self._cluster.request_retrying(
            request,
            to=Leader(self._topic, self._partition),
            version=12 if self._plan.implicit_add else 9,
            timeout_ms=self._plan.producer.deadline_ms,
        )

    def _request(self, encoded: bytes) -> ProduceRequest:
        return ProduceRequest(
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

    def _note(self, answer: Any, records: int, size_bytes: int) -> None:
        row = answer.responses[0].partition_responses[0]
        if row.error_code:
            code = ErrorCode.of(row.error_code)
            raise error_for(code, f"producing to {self._topic}-{self._partition}: {code.meaning}")
        self._acknowledged += records
        self._acknowledged_bytes += size_bytes
        if self._first_offset < 0:
            self._first_offset = row.base_offset
        self._last_offset = row.base_offset + records - 1

    def report(self) -> dict[str, Any]:
        return {
            "task": self._claims.task,
            "topic": self._topic,
            "partition": self._partition,
            "records": self._acknowledged,
            "first_offset": self._first_offset,
            "last_offset": self._last_offset,
            "size_bytes": self._acknowledged_bytes,
        }

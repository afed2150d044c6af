"""What a task does: choose each row's partition, and write its share of the micro-batch into the driver's transaction.

Guarantees: a task produces to a partition only after it has claimed it, with sequences from 0; a batch that must be
sent again is sent with the same sequence and the same bytes; what is reported was acknowledged by the broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.client.cluster import Cluster, Leader
from semel.client.loop_thread import LoopThread
from semel.errors import ErrorCode, error_for
from semel.machines.contract import ProducerIdentity
from semel.records.batch import Batch
from semel.records.columns import from_arrow, partition_column
from semel.records.compression import codec_named
from semel.wire.messages.produce import ProduceRequest

from .claims import ClaimDesk

#: The column that carries a row's destination through the shuffle.
TARGET = "__semel_target"
_SEPARATOR = "\x00"

REPORT_SCHEMA = "topic string, partition int, records long, first_offset long, last_offset long"
_REPORT = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """All a task needs to know; travels from the driver to the executors."""

    client_settings: tuple[tuple[str, str], ...]
    transactional_id: str
    identity: ProducerIdentity
    desk: ClaimDesk
    implicit_add: bool
    topic: str | None
    compression: str = "none"
    batch_bytes: int = 900_000
    deadline_ms: int = 120_000


_clusters: dict[tuple[tuple[str, str], ...], tuple[LoopThread, Cluster]] = {}


def cluster_of(settings: tuple[tuple[str, str], ...]) -> tuple[LoopThread, Cluster]:
    """This process's connection to the cluster: Spark reuses its Python workers, and so do we."""
    if settings not in _clusters:
        loop = LoopThread("semel-spark-task")
        _clusters[settings] = (loop, loop.run(_opened(dict(settings))))
    return _clusters[settings]


async def _opened(settings: dict[str, str]) -> Cluster:
    cluster = Cluster(settings)
    await cluster.connect()
    return cluster


def choose_targets(batches: Iterator[pa.RecordBatch], plan: WritePlan) -> Iterator[pa.RecordBatch]:
    """Add each row's destination: its own partition column, else Kafka's hash of the key, else spread evenly."""
    loop, cluster = cluster_of(plan.client_settings)
    spread = 0
    for batch in batches:
        rows = batch.num_rows
        if rows == 0:
            continue
        topics = pa.array([plan.topic] * rows, pa.string()) if plan.topic else batch.column("topic")
        if topics.null_count:
            raise error_for(
                ErrorCode.INVALID_TOPIC_EXCEPTION, "a row has no topic: give the option topic, or fill the topic column"
            )
        targets = []
        for name in pc.unique(topics).to_pylist():
            count = len(loop.run(cluster.topic(name)).partitions)
            mine = pc.equal(topics, name)
            part = batch.filter(mine)
            partitions = _partitions_for(part, count, spread)
            spread += part.num_rows
            target = pc.binary_join_element_wise(
                pa.array([name] * part.num_rows, pa.string()), partitions.cast(pa.string()), _SEPARATOR
            )
            targets.append(part.append_column(TARGET, target))
        yield from targets


def _partitions_for(batch: pa.RecordBatch, count: int, spread: int) -> pa.Array:
    names = batch.schema.names
    evenly = pa.array([(spread + row) % count for row in range(batch.num_rows)], pa.int32())
    chosen = evenly
    if "key" in names:
        key = batch.column("key").cast(pa.binary())
        chosen = partition_column(key, count)
        if key.null_count:
            chosen = pc.if_else(pc.is_valid(key), chosen, evenly)
    if "partition" in names:
        chosen = pc.coalesce(batch.column("partition").cast(pa.int32()), chosen)
    return chosen


def write(batches: Iterator[pa.RecordBatch], plan: WritePlan) -> Iterator[pa.RecordBatch]:
    """Write this task's rows and report what the broker acknowledged, per output partition."""
    loop, cluster = cluster_of(plan.client_settings)
    writers: dict[str, _PartitionWriter] = {}
    for batch in batches:
        if batch.num_rows == 0:
            continue
        targets = batch.column(TARGET)
        rows = batch.drop_columns([TARGET])
        for target in pc.unique(targets).to_pylist():
            if target not in writers:
                topic, partition = target.split(_SEPARATOR)
                plan.desk.claim((plan.identity.producer_id, plan.identity.producer_epoch), topic, int(partition))
                writers[target] = _PartitionWriter(cluster, plan, topic, int(partition))
            writers[target].add(rows.filter(pc.equal(targets, target)))
        full = [writer for writer in writers.values() if writer.waiting_bytes >= plan.batch_bytes]
        if full:
            loop.run(_all(full))
    if writers:
        loop.run(_all(list(writers.values())))
    reports = [writer.report() for writer in writers.values()]
    yield pa.RecordBatch.from_pylist(reports, schema=_REPORT)


async def _all(writers: list[_PartitionWriter]) -> None:
    await asyncio.gather(*(writer.send() for writer in writers))


class _PartitionWriter:
    """Sole writer of one partition in this epoch."""

    def __init__(self, cluster: Cluster, plan: WritePlan, topic: str, partition: int) -> None:
        self._cluster, self._plan, self._topic, self._partition = cluster, plan, topic, partition
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._sequence = 0
        self._first_offset = self._last_offset = -1

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes

    async def send(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self.waiting_bytes = [], 0
        for rows in table.to_batches():
            for encoded in from_arrow(
                rows,
                timestamp_ms=time.time_ns() // 1_000_000,
                producer_id=self._plan.identity.producer_id,
                producer_epoch=self._plan.identity.producer_epoch,
                base_sequence=self._sequence,
                codec=codec_named(self._plan.compression),
                transactional=True,
                max_batch_bytes=self._plan.batch_bytes,
            ):
                await self._produce(encoded, Batch.parse(memoryview(encoded)).record_count)

    async def _produce(self, encoded: bytes, records: int) -> None:
        request = ProduceRequest(
            transactional_id=self._plan.transactional_id,
            acks=-1,
            timeout_ms=30_000,
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
            timeout_ms=self._plan.deadline_ms,
        )
        row = answer.responses[0].partition_responses[0]
        if row.error_code:
            code = ErrorCode(row.error_code)
            raise error_for(code, f"producing to {self._topic}-{self._partition}: {code.meaning}")
        self._sequence += records
        if self._first_offset < 0:
            self._first_offset = row.base_offset
        self._last_offset = row.base_offset + records - 1

    def report(self) -> dict[str, Any]:
        return {
            "topic": self._topic,
            "partition": self._partition,
            "records": self._sequence,
            "first_offset": self._first_offset,
            "last_offset": self._last_offset,
        }

"""A driver process reduced to its transaction: what a test needs to play one micro-batch by hand, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from semel.client.blocking.loop_thread import LoopThread
from semel.machines.pipeline.batch_marker import BatchMarker
from semel.machines.pipeline.driver_transaction import DriverTransaction
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.spark.claims import ClaimServer
from semel.spark.connections import connect
from semel.spark.kafka_options import ClientSettings, ProducerOptions
from semel.spark.transaction_client import TransactionClient
from semel.spark.writer import WritePlan, write
from semel.wire.messages.transactions import ListTransactionsRequest

SOURCE = TopicPartition("payments", 0)


class Driver:
    """A driver process reduced to its transaction: what a test needs to play one micro-batch by hand."""

    def __init__(self, bootstrap_servers: str, transactional_id: str = "pipeline", timeout_ms: int = 60_000) -> None:
        self.loop = LoopThread("test-driver")
        self.settings = ClientSettings({"bootstrap.servers": bootstrap_servers})
        self.cluster = self.loop.run(connect(self.settings))
        self.transaction = DriverTransaction(transactional_id, transactional_id, timeout_ms=timeout_ms)
        self.client = TransactionClient(self.cluster, self.transaction, deadline_ms=20_000)
        self.claims = ClaimServer("127.0.0.1", self._join)

    def _join(self, topic: str, partition: int) -> None:
        if not self.transaction.implicit_add:
            self.loop.run(self.client.add_partition(topic, partition))

    def begin(self) -> ProducerIdentity:
        identity = self.loop.run(self.client.begin())
        self.claims.begin_epoch((identity.producer_id, identity.producer_epoch, 0))
        return identity

    def plan(self) -> WritePlan:
        identity = self.transaction.identity
        assert identity is not None
        return WritePlan(
            self.settings, self.transaction.transactional_id, identity, self.claims.desk,
            self.transaction.implicit_add, "ledger", ProducerOptions(deadline_ms=20_000),
        )  # fmt: skip

    def task(self, values: list[bytes], plan: WritePlan | None = None) -> list[dict[str, Any]]:
        """One task that writes these rows."""
        plan = plan or self.plan()
        return [row for part in write(iter([rows_of(values)]), plan) for row in part.to_pylist()]

    def commit(self, batch_id: int, offset: int = 10, **details: Any) -> None:
        self.add_offsets(batch_id, offset, **details)
        self.loop.run(self.client.end(commit=True))

    def add_offsets(
        self, batch_id: int, offset: int, *, begin: int | None = None, rows: int | None = None, query: str = "query"
    ) -> None:
        marker, begins = BatchMarker(query, batch_id, "aa"), {} if begin is None else {SOURCE: begin}
        self.loop.run(self.client.commit_offsets({SOURCE: offset}, marker, begins=begins, rows=rows))

    def commit_elsewhere(self, batch_id: int) -> None:
        """As a pipeline commits whose sources are on another cluster: the marker alone, in an output partition."""
        place = {TopicPartition("ledger", 0): batch_id}
        self.loop.run(self.client.commit_offsets(place, BatchMarker("query", batch_id, "aa"), of_sources=False))
        self.loop.run(self.client.end(commit=True))

    def ongoing(self) -> list[str]:
        answer = self.loop.run(self.cluster.request_retrying(ListTransactionsRequest(state_filters=["Ongoing"])))
        return [row.transactional_id for row in answer.transaction_states]

    def close(self) -> None:
        self.claims.close()
        self.loop.run(self.cluster.close())
        self.loop.close()


def rows_of(values: list[bytes]) -> pa.RecordBatch:
    """Rows as Spark hands them to a task, all for partition 0."""
    return pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "partition": pa.array([0] * len(values), pa.int32())}
    )

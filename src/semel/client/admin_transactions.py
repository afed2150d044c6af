"""Administration of transactions: who has what open, and how to end it (KIP-664)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from semel.client.admin_part import AdminPart
from semel.client.admin_values import ProducerDescription, TransactionDescription, TransactionListing
from semel.client.answers import check
from semel.client.cluster import Coordinator, Leader
from semel.client.offsets import PartitionLike, as_partition
from semel.machines.contract import ProducerIdentity, TopicPartition
from semel.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)


class TransactionAdmin(AdminPart):
    """Transactions, as an administrator sees them."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        transactional_id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators; `duration_ms` keeps those open for longer than that."""
        await self.cluster.refresh_metadata((), timeout_ms=self._timeout_ms)
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=duration_ms,
            transactional_id_pattern=transactional_id_pattern,
        )
        nodes = list(self.cluster.metadata.nodes)
        answers = await asyncio.gather(*(self._ask(request, node) for node in nodes))
        found = []
        for node_id, response in zip(nodes, answers, strict=True):
            check(response.error_code, "listing transactions")
            found += [
                TransactionListing(row.transactional_id, row.producer_id, row.transaction_state, node_id)
                for row in response.transaction_states
            ]
        return sorted(found, key=lambda row: row.transactional_id)

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """State, identity, age and partitions of these transactional ids, as their coordinators see them."""
        found = {}
        for transactional_id in transactional_ids:
            to = Coordinator("transaction", transactional_id)
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            response = await self._ask(request, to)
            row = response.transaction_states[0]
            check(row.error_code, f"describing the transaction of '{transactional_id}'")
            found[transactional_id] = TransactionDescription(
                transactional_id,
                await self.cluster.coordinator("transaction", transactional_id),
                row.transaction_state,
                row.producer_id,
                row.producer_epoch,
                row.transaction_timeout_ms,
                row.transaction_start_time_ms,
                tuple(TopicPartition(topic.topic, number) for topic in row.topics for number in topic.partitions),
            )
        return found

    async def describe_producers(
        self, partitions: Iterable[PartitionLike]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The producers each partition knows, as its leader sees them."""
        found = {}
        for given in partitions:
            partition = as_partition(given)
            request = DescribeProducersRequest(
                topics=[
                    DescribeProducersRequest.TopicRequest(name=partition.topic, partition_indexes=[partition.partition])
                ]
            )
            to = Leader(partition.topic, partition.partition)
            response = await self._ask(request, to)
            row = response.topics[0].partitions[0]
            check(row.error_code, f"producers of {partition}", row.error_message)
            found[partition] = [
                ProducerDescription(
                    p.producer_id,
                    p.producer_epoch,
                    p.last_sequence,
                    p.last_timestamp,
                    p.coordinator_epoch,
                    p.current_txn_start_offset,
                )
                for p in row.active_producers
            ]
        return found

    async def abort_transaction(
        self, partition: PartitionLike, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write an abort marker into one partition: the end of a transaction that its coordinator has forgotten.

        For a transaction the coordinator still knows, `fence_producers` is the safe way.
        """
        target = as_partition(partition)
        request = WriteTxnMarkersRequest(
            markers=[
                WriteTxnMarkersRequest.WritableTxnMarker(
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    transaction_result=False,
                    coordinator_epoch=coordinator_epoch,
                    topics=[
                        WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                            name=target.topic, partition_indexes=[target.partition]
                        )
                    ],
                )
            ]
        )
        to = Leader(target.topic, target.partition)
        response = await self._ask(request, to)
        for marker in response.markers:
            for topic in marker.topics:
                for row in topic.partitions:
                    check(row.error_code, f"aborting producer {producer_id} in {topic.name}-{row.partition_index}")

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity]:
        """Shut out whoever uses these transactional ids: what they have open is aborted, what they send refused."""
        found = {}
        for transactional_id in transactional_ids:
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1)
            response = await self._ask(request, Coordinator("transaction", transactional_id))
            check(response.error_code, f"fencing '{transactional_id}'")
            found[transactional_id] = ProducerIdentity(response.producer_id, response.producer_epoch)
        return found

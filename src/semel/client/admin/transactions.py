"""Transactions: list and describe them, and abort those that are stuck (KIP-664)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from semel.client.admin.requests import AdminRequests, within_api_timeout
from semel.client.admin.values import ProducerDescription, TransactionDescription, TransactionListing
from semel.client.argument_lists import as_ids, as_list, as_texts
from semel.client.arguments import INT32_MAX, INT64_MAX, as_number, as_text
from semel.client.cluster.cluster import Coordinator
from semel.client.cluster.response_errors import check
from semel.client.offset_arguments import PartitionLike, as_partition, as_partitions
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)


class TransactionAdmin:
    """The part of the admin client for transactions."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    @within_api_timeout
    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        transactional_id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators; with `duration_ms`, only those open for longer than that."""
        pattern = transactional_id_pattern
        request = ListTransactionsRequest(
            state_filters=as_texts(states, "states"),
            producer_id_filters=as_list(
                producer_ids, "producer_ids", lambda item: as_number(item, "each of producer_ids", 0, INT64_MAX)
            ),
            duration_filter=as_number(duration_ms, "duration_ms", -1, INT64_MAX),
            transactional_id_pattern=None if pattern is None else as_text(pattern, "transactional_id_pattern"),
        )
        await self._requests.refresh(())
        nodes = list(self._requests.cluster.metadata.nodes)
        answers = await asyncio.gather(*(self._requests.send(request, node) for node in nodes))
        found = []
        for node_id, response in zip(nodes, answers, strict=True):
            check(response.error_code, "listing transactions")
            found += [
                TransactionListing(row.transactional_id, row.producer_id, row.transaction_state, node_id)
                for row in response.transaction_states
            ]
        return sorted(found, key=lambda row: row.transactional_id)

    @within_api_timeout
    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """What the coordinators know of these transactional ids: state, identity, start time and partitions."""
        found = {}
        for transactional_id in as_ids(transactional_ids, "transactional_ids"):
            to = Coordinator("transaction", transactional_id)
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            response = await self._requests.send(request, to)
            row = response.transaction_states[0]
            check(row.error_code, f"describing the transaction of '{transactional_id}'")
            found[transactional_id] = TransactionDescription(
                transactional_id,
                await self._requests.cluster.coordinator("transaction", transactional_id),
                row.transaction_state,
                row.producer_id,
                row.producer_epoch,
                row.transaction_timeout_ms,
                row.transaction_start_time_ms,
                tuple(TopicPartition(topic.topic, number) for topic in row.topics for number in topic.partitions),
            )
        return found

    @within_api_timeout
    async def describe_producers(
        self, partitions: Iterable[PartitionLike]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The producers that each partition knows, from its leader."""
        found = {}
        for partition in as_partitions(partitions):
            request = DescribeProducersRequest(
                topics=[
                    DescribeProducersRequest.TopicRequest(name=partition.topic, partition_indexes=[partition.partition])
                ]
            )
            response = await self._requests.send_to_leader(request, partition)
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

    @within_api_timeout
    async def abort_transaction(
        self, partition: PartitionLike, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write an abort marker into one partition, for a transaction that its coordinator does not know any more.

        If the coordinator still knows the transaction, use `fence_producers`.
        """
        target = as_partition(partition)
        request = WriteTxnMarkersRequest(
            markers=[
                WriteTxnMarkersRequest.WritableTxnMarker(
                    producer_id=as_number(producer_id, "producer_id", 0, INT64_MAX),
                    producer_epoch=as_number(producer_epoch, "producer_epoch", 0, 2**15 - 1),
                    transaction_result=False,
                    coordinator_epoch=as_number(coordinator_epoch, "coordinator_epoch", -1, INT32_MAX),
                    topics=[
                        WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                            name=target.topic, partition_indexes=[target.partition]
                        )
                    ],
                )
            ]
        )
        response = await self._requests.send_to_leader(request, target)
        for marker in response.markers:
            for topic in marker.topics:
                for row in topic.partitions:
                    check(row.error_code, f"aborting producer {producer_id} in {topic.name}-{row.partition_index}")

    @within_api_timeout
    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity]:
        """Fence the producers of these transactional ids: abort what they have open and refuse what they send."""
        found = {}
        for transactional_id in as_ids(transactional_ids, "transactional_ids"):
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1)
            response = await self._requests.send(request, Coordinator("transaction", transactional_id))
            check(response.error_code, f"fencing '{transactional_id}'")
            found[transactional_id] = ProducerIdentity(response.producer_id, response.producer_epoch)
        return found

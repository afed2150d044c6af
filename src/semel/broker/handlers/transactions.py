"""Transactions: requests to the coordinator, and markers that an administrator sends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from copy import copy
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.coordinators.marker_sender import write_marker
from semel.broker.dispatch import Pace
from semel.broker.topics.internal import INTERNAL_TOPICS, TRANSACTION_STATE
from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, Refused
from semel.machines.contract import AT_ONCE
from semel.machines.transactions.metadata import TransactionMetadata
from semel.machines.transactions.states import TransactionState
from semel.machines.values import TopicPartition
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

#: From this version on an AddPartitionsToTxn has many transactions.
BATCHED_SINCE = 4


def once_settled(broker: BrokerServer, transactional_ids: Sequence[str], serve: Callable[[], Any]) -> Any:
    """Call `serve` once no transaction of these ids waits for its markers: at once, if none does."""
    is_settled = broker.transactions.is_settled
    must_wait = False
    for transactional_id in transactional_ids:
        must_wait = not is_settled(transactional_id) or must_wait
    return _serve_when_settled(broker, transactional_ids, serve) if must_wait else serve()


async def _serve_when_settled(broker: BrokerServer, transactional_ids: Sequence[str], serve: Callable[[], Any]) -> Any:
    await broker.transactions.settled(*transactional_ids)
    reply = serve()
    return await reply if type(reply) is CoroutineType else reply


def init_producer_id(broker: BrokerServer, request: InitProducerIdRequest, call: Call) -> Any:
    """Give an idempotent producer an id, or a transactional producer its next id and epoch."""
    shell = broker.transactions
    keys = () if request.transactional_id is None else (request.transactional_id,)

    def serve() -> Any:
        take_id = broker.stores.producer_ids.take
        decision = shell.coordinator.init_producer_id(request, call.version, broker.now_ms(), take_id)
        return shell.host.answer(decision, *keys)

    return once_settled(broker, keys, serve)


def add_partitions_to_txn(broker: BrokerServer, request: AddPartitionsToTxnRequest, call: Call) -> Any:
    """Add partitions to transactions. If one does not exist, none is added, as in Kafka."""
    if call.version < BATCHED_SINCE:
        if _all_exist(broker, request):
            return _add(broker, request, call, [request.v3_and_below_transactional_id])
        return _add_of_a_client(broker, request, call)
    if len(request.transactions) > 1:
        return _add_to_each(broker, request, call)
    return _add(broker, request, call, [transaction.transactional_id for transaction in request.transactions])


def _add(broker: BrokerServer, request: AddPartitionsToTxnRequest, call: Call, ids: list[str]) -> Any:
    shell = broker.transactions

    def serve() -> Any:
        return shell.host.answer(shell.coordinator.add_partitions_to_txn(request, call.version, broker.now_ms()), *ids)

    return once_settled(broker, ids, serve)


def _all_exist(broker: BrokerServer, request: AddPartitionsToTxnRequest) -> bool:
    """Whether all partitions can be added, for a request with few of them. False: look at each one."""
    topics = broker.topics.topics
    left = AT_ONCE
    for asked in request.v3_and_below_topics:
        left -= 1 + len(asked.partitions)
        topic = topics.get(asked.name)
        if topic is None or topic.internal or left < 0:
            return False
        most = len(topic.partitions)
        for index in asked.partitions:
            if not 0 <= index < most:
                return False
    return True


def _add_of_a_client(
    broker: BrokerServer, request: AddPartitionsToTxnRequest, call: Call
) -> Generator[None, None, Any]:
    refused = yield from refused_partitions(broker, request)
    return refused or _add(broker, request, call, [request.v3_and_below_transactional_id])


async def _add_to_each(broker: BrokerServer, request: AddPartitionsToTxnRequest, call: Call) -> Any:
    """Add to one transaction after the other. Each is decided by itself."""
    pace = Pace(broker, call)
    response = AddPartitionsToTxnResponse()
    for transaction in request.transactions:
        part = copy(request)
        part.transactions = [transaction]
        reply = _add(broker, part, call, [transaction.transactional_id])
        if type(reply) is CoroutineType:
            reply = await reply
        response.results_by_transaction += reply.results_by_transaction
        await pace.rest()
    return response


def refused_partitions(
    broker: BrokerServer, request: AddPartitionsToTxnRequest, denied: frozenset[str] = frozenset()
) -> Generator[None, None, AddPartitionsToTxnResponse | None]:
    """The refusal, if a partition does not exist, is internal or in a topic that is denied; else None."""
    codes: dict[tuple[str, int], ErrorCode] = {}
    for asked in request.v3_and_below_topics:
        topic = broker.topics.topics.get(asked.name)
        yield
        for number, index in enumerate(asked.partitions):
            if number % AT_ONCE == AT_ONCE - 1:
                yield
            if asked.name in INTERNAL_TOPICS or asked.name in denied:
                codes[asked.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= index < len(topic.partitions):
                codes[asked.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not codes:
        return None
    results = []
    for asked in request.v3_and_below_topics:
        row = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=asked.name)
        results.append(row)
        yield
        for number, index in enumerate(asked.partitions):
            if number % AT_ONCE == AT_ONCE - 1:
                yield
            row.results_by_partition.append(
                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=codes.get((asked.name, index), ErrorCode.OPERATION_NOT_ATTEMPTED),
                )
            )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def add_offsets_to_txn(broker: BrokerServer, request: AddOffsetsToTxnRequest, call: Call) -> Any:
    """Add a group's partition of `__consumer_offsets` to a transaction."""
    shell = broker.transactions

    def serve() -> Any:
        if not broker.groups.host.ready_for(request.group_id):
            # A marker could not be written there: the transaction would never end.
            return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition_for = broker.groups.coordinator.partition_for
        decision = shell.coordinator.add_offsets_to_txn(request, call.version, broker.now_ms(), partition_for)
        return shell.host.answer(decision, request.transactional_id)

    return once_settled(broker, (request.transactional_id,), serve)


def end_txn(broker: BrokerServer, request: EndTxnRequest, call: Call) -> Any:
    """Commit or abort. Answered when the outcome is durable; `broker.durability` says when the markers are written."""
    shell = broker.transactions

    def serve() -> Any:
        decision = shell.coordinator.end_txn(request, call.version, broker.now_ms(), broker.stores.producer_ids.take)
        return shell.host.answer(decision, request.transactional_id)

    return once_settled(broker, (request.transactional_id,), serve)


def describe_transactions(
    broker: BrokerServer, request: DescribeTransactionsRequest, call: Call
) -> Generator[None, None, Any]:
    """Describe transactional ids, each once."""
    shell = broker.transactions
    response = DescribeTransactionsResponse()
    for transactional_id in dict.fromkeys(request.transactional_ids):
        shell.host.ready_for(transactional_id)
        asked = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        reply = shell.host.answer(shell.coordinator.describe_transactions(asked))
        response.transaction_states += reply.transaction_states
        yield
    return response


def list_transactions(
    broker: BrokerServer, request: ListTransactionsRequest, call: Call
) -> Generator[None, None, Any]:
    """List transactional ids that match the filters."""
    shell = broker.transactions
    yield from shell.host.load_all()
    return (yield from shell.coordinator.list_transactions_in_steps(request, broker.now_ms()))


def write_txn_markers(
    broker: BrokerServer, request: WriteTxnMarkersRequest, call: Call
) -> Generator[None, None, Any]:
    """Write markers for an administrator, who ends a hanging transaction. There is no other coordinator to send any.

    A marker may not contradict our coordinator. A commit is written only if the coordinator has decided it and the
    partition has no marker yet. An abort is written if the coordinator does not know the transaction. If the
    transaction is open, the coordinator aborts it in every partition: else its producer could commit the rest.
    """
    response = WriteTxnMarkersResponse()
    written: dict[Partition, list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]] = {}
    shell = broker.transactions
    shell.host.load_all()
    known = shell.coordinator.open_by_producer()
    aborting: dict[str, None] = {}
    for marker in request.markers:
        result = WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=marker.producer_id)
        metadata = known.get(marker.producer_id)
        for topic in marker.topics:
            answers = []
            for index in topic.partition_indexes:
                yield
                code = ErrorCode.NONE
                target = TopicPartition(topic.name, index)
                try:
                    if _is_for_the_coordinator(target, marker, metadata):
                        assert metadata is not None
                        aborting[metadata.transactional_id] = None
                    else:
                        write_marker(
                            broker,
                            target,
                            marker.producer_id,
                            marker.producer_epoch,
                            marker.transaction_result,
                            marker.coordinator_epoch,
                            marker.transaction_version,
                        )
                except Refused as error:
                    code = error.code
                    logger.info("a marker of producer %d for %s is refused: %s", marker.producer_id, target, error)
                answer = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                    partition_index=index, error_code=code
                )
                answers.append(answer)
                if code == ErrorCode.NONE:
                    written.setdefault(broker.topics.partition(topic.name, index), []).append(answer)
            result.topics.append(
                WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=topic.name, partitions=answers)
            )
        response.markers.append(result)
    for transactional_id in aborting:
        shell.host.settle(shell.coordinator.abort_for_administrator(transactional_id, broker.now_ms()))
    if aborting or broker.durability.to_flush(written):
        return _after_markers(broker, tuple(aborting), written, response)
    return response


def _is_for_the_coordinator(
    target: TopicPartition,
    marker: WriteTxnMarkersRequest.WritableTxnMarker,
    metadata: TransactionMetadata | None,
) -> bool:
    """Whether the coordinator must abort the transaction itself; `Refused` if the marker contradicts its state."""
    if target.topic == TRANSACTION_STATE:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"no transaction writes to {target.topic}")
    state = metadata.state if metadata is not None and target in metadata.partitions else None
    if marker.transaction_result:
        if state is not TransactionState.PREPARE_COMMIT:
            raise Refused(ErrorCode.INVALID_TXN_STATE, "the coordinator has not decided to commit this transaction")
        return False
    if state is TransactionState.PREPARE_COMMIT:
        raise Refused(ErrorCode.INVALID_TXN_STATE, "the transaction is committed: its markers are being written")
    if state is not TransactionState.ONGOING:
        return False
    assert metadata is not None
    if marker.producer_epoch < metadata.producer_epoch:
        raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"the transaction has epoch {metadata.producer_epoch}")
    return True


async def _after_markers(
    broker: BrokerServer,
    aborting: tuple[str, ...],
    written: dict[Partition, list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]],
    response: WriteTxnMarkersResponse,
) -> WriteTxnMarkersResponse:
    """Answer once the markers are in the partitions and as durable as the broker promises."""
    broker.after_reply.run_all()
    await broker.transactions.settled(*aborting)
    for partition in await broker.durability.flusher.flush(broker.durability.to_flush(written)):
        for answer in written[partition]:
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return response

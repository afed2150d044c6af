"""Transactions: requests to the coordinator, and markers that an administrator sends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.coordinators.marker_sender import write_marker
from semel.broker.dispatch import Pace
from semel.broker.topics.internal import CONSUMER_OFFSETS, INTERNAL_TOPICS, TRANSACTION_STATE
from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, Refused
from semel.machines.contract import AT_ONCE
from semel.machines.transactions.metadata import TransactionMetadata
from semel.machines.transactions.replies import topic_results
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
    EndTxnResponse,
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

#: What no transaction writes to. Its offsets are in `__consumer_offsets`.
_NEVER_WRITTEN = frozenset((TRANSACTION_STATE,))


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
    if broker.cluster is not None:
        return _add_for_brokers(broker, request, call)
    return _add_to_each(broker, request, call)


def _add(broker: BrokerServer, request: AddPartitionsToTxnRequest, call: Call, ids: list[str]) -> Any:
    shell = broker.transactions

    def serve() -> Any:
        return shell.host.answer(shell.coordinator.add_partitions_to_txn(request, call.version, broker.now_ms()), *ids)

    return once_settled(broker, ids, serve)


def _add_for_brokers(broker: BrokerServer, request: AddPartitionsToTxnRequest, call: Call) -> Any:
    """Other brokers ask for their producers, and ask again if a transaction still waits for its markers: nobody is held
    back here, since others wait behind this request.

    Without an authorizer a client may send it as well. A partition that we do not know may be new: who leads it knows
    it. What no partition can be is refused.
    """
    shell = broker.transactions
    refused = [number for number, asked in enumerate(request.transactions) if _names_none(asked.topics)]
    if refused:
        return _add_others_for_brokers(broker, request, call, refused)
    ids = [transaction.transactional_id for transaction in request.transactions]
    for transactional_id in ids:
        shell.host.ready_for(transactional_id)
    return shell.host.answer(shell.coordinator.add_partitions_to_txn(request, call.version, broker.now_ms()), *ids)


async def _add_others_for_brokers(
    broker: BrokerServer, request: AddPartitionsToTxnRequest, call: Call, refused: Sequence[int]
) -> Any:
    """All but the refused, which are numbers of transactions. The answer has them in the order of the request."""
    others = copy(request)
    left_out = frozenset(refused)
    others.transactions = [asked for number, asked in enumerate(request.transactions) if number not in left_out]
    reply = _add_for_brokers(broker, others, call)
    if type(reply) is CoroutineType:
        reply = await reply
    for number in refused:
        transaction = request.transactions[number]
        row = _refused_transaction(transaction, _codes_of_none(transaction.topics))
        reply.results_by_transaction.insert(number, row)
    return reply


def _names_none(topics: Iterable[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]) -> bool:
    """Whether any of these is a partition that no transaction can write to, in whatever cluster."""
    return any(topic.name in _NEVER_WRITTEN or min(topic.partitions, default=0) < 0 for topic in topics)


def _codes_of_none(
    topics: Iterable[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic],
) -> dict[tuple[str, int], ErrorCode]:
    """Those that no transaction can write to."""
    codes = {}
    for topic in topics:
        for index in topic.partitions:
            if topic.name in _NEVER_WRITTEN:
                codes[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif index < 0:
                codes[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


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
    """Add to one transaction after the other. Each is decided by itself.

    Kafka's brokers send this for their producers, and it is served to any client: what it names may not exist.
    """
    pace = Pace(broker, call)
    response = AddPartitionsToTxnResponse()
    for transaction in request.transactions:
        part = copy(request)
        part.transactions = [transaction]
        steps = _codes_of_refused(broker, transaction.topics, _NEVER_WRITTEN)
        try:
            while True:
                next(steps)
                await pace.rest()
        except StopIteration as done:
            codes: dict[tuple[str, int], ErrorCode] = done.value
        if codes:
            response.results_by_transaction.append(_refused_transaction(transaction, codes))
            continue
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
    codes = yield from _codes_of_refused(broker, request.v3_and_below_topics, INTERNAL_TOPICS | denied)
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


def _codes_of_refused(
    broker: BrokerServer, topics: Iterable[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic], denied: frozenset[str]
) -> Generator[None, None, dict[tuple[str, int], ErrorCode]]:
    """The partitions that cannot be added: those of topics that are denied, and those that do not exist."""
    codes: dict[tuple[str, int], ErrorCode] = {}
    for asked in topics:
        topic = broker.topics.topics.get(asked.name)
        yield
        for number, index in enumerate(asked.partitions):
            if number % AT_ONCE == AT_ONCE - 1:
                yield
            if asked.name in denied:
                codes[asked.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= index < len(topic.partitions):
                codes[asked.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


def _refused_transaction(
    transaction: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction, codes: dict[tuple[str, int], ErrorCode]
) -> AddPartitionsToTxnResponse.AddPartitionsToTxnResult:
    """The answer for a transaction to which nothing is added, as these partitions cannot be."""
    asked = [TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    results = {one: codes.get((one.topic, one.partition), ErrorCode.OPERATION_NOT_ATTEMPTED) for one in asked}
    return AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id, topic_results=topic_results(results)
    )


def add_offsets_to_txn(broker: BrokerServer, request: AddOffsetsToTxnRequest, call: Call) -> Any:
    """Add a group's partition of `__consumer_offsets` to a transaction."""
    shell = broker.transactions

    def serve() -> Any:
        if broker.cluster is None and not broker.groups.host.ready_for(request.group_id):
            # A marker could not be written there: the transaction would never end.
            return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition_for = broker.groups.coordinator.partition_for
        decision = shell.coordinator.add_offsets_to_txn(request, call.version, broker.now_ms(), partition_for)
        return shell.host.answer(decision, request.transactional_id)

    if broker.cluster is not None and CONSUMER_OFFSETS not in broker.topics.topics:
        return _once_there(broker, CONSUMER_OFFSETS, lambda: once_settled(broker, (request.transactional_id,), serve))
    return once_settled(broker, (request.transactional_id,), serve)


async def _once_there(broker: BrokerServer, topic: str, serve: Callable[[], Any]) -> Any:
    """Call `serve` once the cluster has the internal topic."""
    assert broker.cluster is not None
    await broker.cluster.coordinators.internal_topic(topic)
    reply = serve()
    return await reply if type(reply) is CoroutineType else reply


def end_txn(broker: BrokerServer, request: EndTxnRequest, call: Call) -> Any:
    """Commit or abort. Answered when the outcome is durable; `broker.durability` says when the markers are written."""
    shell = broker.transactions

    def serve() -> Any:
        decision = shell.coordinator.end_txn(request, call.version, broker.now_ms(), broker.stores.producer_ids.take)
        reply = decision.reply
        is_final = reply is not None and reply.error_code and not ErrorCode(reply.error_code).retriable
        if is_final and broker.cluster is not None and not broker.cluster.reaches_zookeeper:
            # Another may coordinate by now and know more: what ends a producer for good is not said on a guess (C1).
            return EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR)
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


def write_txn_markers(broker: BrokerServer, request: WriteTxnMarkersRequest, call: Call) -> Any:
    """Write markers for the coordinator on another broker, or for an administrator, who ends a hanging transaction.

    A coordinator has decided. An old one is refused by the partition, which has seen a newer epoch.

    An administrator's marker may not contradict a coordinator. A commit is written only if the coordinator has
    decided it and the partition has no marker yet. An abort is written if no coordinator knows the transaction. If the
    transaction is open here, the coordinator aborts it in every partition: else its producer could commit the rest.
    """
    if broker.cluster is None:
        return _write_markers(broker, request, is_decided=False, refused={})
    if broker.cluster.is_of_a_broker(call):
        return _write_markers(broker, request, is_decided=True, refused={})
    return _write_once_nobody_knows(broker, request, call)


async def _write_once_nobody_knows(broker: BrokerServer, request: WriteTxnMarkersRequest, call: Call) -> Any:
    """In a cluster the coordinators on other brokers are asked first."""
    from semel.broker.replication.open_elsewhere import open_elsewhere

    written_before = _last_offsets(broker, request)
    refused = await open_elsewhere(broker, (marker.producer_id for marker in request.markers))
    for (producer_id, target), offset in _last_offsets(broker, request).items():
        if written_before[producer_id, target] != offset:
            why = f"producer {producer_id} has written to {target} meanwhile"
            refused.setdefault(producer_id, Refused(ErrorCode.CONCURRENT_TRANSACTIONS, why))
    steps = _write_markers(broker, request, is_decided=False, refused=refused)
    pace = Pace(broker, call)
    try:
        while True:
            next(steps)
            await pace.rest()
    except StopIteration as done:
        return await done.value


def _last_offsets(broker: BrokerServer, request: WriteTxnMarkersRequest) -> dict[tuple[int, TopicPartition], int]:
    """The last record that each producer has in each of its partitions here."""
    found = {}
    for marker in request.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                entry = None
                with suppress(Refused):
                    entry = broker.topics.partition(topic.name, index).log.producers.entries.get(marker.producer_id)
                target = TopicPartition(topic.name, index)
                found[marker.producer_id, target] = -1 if entry is None else entry.last_offset
    return found


def _write_markers(
    broker: BrokerServer, request: WriteTxnMarkersRequest, *, is_decided: bool, refused: Mapping[int, Refused]
) -> Generator[None, None, Any]:
    """`is_decided`: a coordinator has sent them. `refused` has producers whose markers are not written, and why."""
    response = WriteTxnMarkersResponse()
    written: dict[Partition, list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]] = {}
    shell = broker.transactions
    if not is_decided:
        yield from shell.host.load_all()  # a transaction that is not loaded yet would count as unknown
    known = {} if is_decided else shell.coordinator.open_by_producer()
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
                    if marker.producer_id in refused:
                        raise refused[marker.producer_id]
                    if not is_decided and _is_for_the_coordinator(target, marker, metadata):
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
    if broker.cluster is not None:
        return _once_committed(broker, tuple(aborting), written, response)
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


async def _once_committed(
    broker: BrokerServer,
    aborting: tuple[str, ...],
    written: dict[Partition, list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]],
    response: WriteTxnMarkersResponse,
) -> WriteTxnMarkersResponse:
    """In a cluster: answer once the markers are committed (C4)."""
    from semel.broker.replication.durability import all_committed

    codes = await all_committed(written)
    for partition, answers in written.items():
        for answer in answers:
            answer.error_code = codes[partition]
    await broker.transactions.settled(*aborting)
    return response


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

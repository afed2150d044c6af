"""Guards of the transaction APIs."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import made_of, split
from semel.broker.handlers.transactions import BATCHED_SINCE, refused_partitions
from semel.broker.topics.internal import INTERNAL_TOPICS
from semel.broker.topics.topic import check_topic_name
from semel.errors import ErrorCode, Refused
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def may_use_id(access: AccessControl, call: Call, transactional_id: str) -> bool:
    """Write on a transactional id: what every request of its producer needs."""
    return access.allows(call, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)


def init_producer_id(access: AccessControl, request: InitProducerIdRequest, call: Call) -> Verdict:
    """Write on the transactional id, and TwoPhaseCommit if it asks for that.

    Without an id IdempotentWrite on the cluster or Write on any topic.
    """
    transactional_id = request.transactional_id
    if transactional_id is None:
        if access.allows_on_cluster(call, Operation.IDEMPOTENT_WRITE, logged=False):
            return None
        if access.allows_on_any(call, Operation.WRITE, ResourceType.TOPIC):
            return None
        access.allows_on_cluster(call, Operation.IDEMPOTENT_WRITE)  # for the audit log
        return _no_producer_id(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not may_use_id(access, call, transactional_id):
        return _no_producer_id(_ID_DENIED)
    if request.enable2_pc and not access.allows(
        call, Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        return _no_producer_id(_ID_DENIED)
    return None


def _no_producer_id(code: ErrorCode) -> Answer:
    return Answer(InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))


def add_partitions_to_txn(
    access: AccessControl, request: AddPartitionsToTxnRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Write on the transactional id and on each topic. Later versions are for brokers, which need ClusterAction."""
    if call.version >= BATCHED_SINCE:
        if access.allows_on_cluster(call, Operation.CLUSTER_ACTION):
            return None
        return Answer(AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    topics = request.v3_and_below_topics
    if not may_use_id(access, call, request.v3_and_below_transactional_id):
        row = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
        answers = []
        for topic in topics:
            rows = [row(partition_index=index, partition_error_code=_ID_DENIED) for index in topic.partitions]
            answers.append(
                AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=rows)
            )
            yield
        return Answer(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=answers))
    # The handler refuses internal topics, whatever the rules say.
    names = [topic.name for topic in topics if topic.name not in INTERNAL_TOPICS]
    _, denied = yield from split(access, call, Operation.WRITE, ResourceType.TOPIC, names, lambda name: name)
    if not denied:
        return None
    return Answer((yield from refused_partitions(access.broker, request, frozenset(denied))))


def add_offsets_to_txn(access: AccessControl, request: AddOffsetsToTxnRequest, call: Call) -> Verdict:
    """Write on the transactional id, and Read on the group."""
    if not may_use_id(access, call, request.transactional_id):
        return Answer(AddOffsetsToTxnResponse(error_code=_ID_DENIED))
    if not access.allows(call, Operation.READ, ResourceType.GROUP, request.group_id):
        return Answer(AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    return None


def end_txn(access: AccessControl, request: EndTxnRequest, call: Call) -> Verdict:
    """Write on the transactional id."""
    if may_use_id(access, call, request.transactional_id):
        return None
    return Answer(EndTxnResponse(error_code=_ID_DENIED))


def write_txn_markers(
    access: AccessControl, request: WriteTxnMarkersRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Alter on the cluster, for an administrator, or ClusterAction, for a broker."""
    if access.allows_on_cluster(call, Operation.ALTER, logged=False):
        return None
    if access.allows_on_cluster(call, Operation.CLUSTER_ACTION):
        return None
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    row = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult
    response = WriteTxnMarkersResponse()
    for marker in request.markers:
        result = WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=marker.producer_id)
        for topic in marker.topics:
            rows = [row(partition_index=index, error_code=code) for index in topic.partition_indexes]
            result.topics.append(WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=topic.name, partitions=rows))
            yield
        response.markers.append(result)
    return Answer(response)


def describe_transactions(
    access: AccessControl, request: DescribeTransactionsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Describe on each transactional id. Topics that may not be described are left out."""
    names = dict.fromkeys(request.transactional_ids)
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, names, lambda name: name
    )
    row = DescribeTransactionsResponse.TransactionState
    answers = yield from made_of(denied, lambda name: row(error_code=_ID_DENIED, transactional_id=name))
    request.transactional_ids = allowed

    def merge(reply: DescribeTransactionsResponse) -> Generator[None, None, DescribeTransactionsResponse]:
        for state in reply.transaction_states:
            yield
            state.topics, _ = yield from split(
                access,
                call,
                Operation.DESCRIBE,
                ResourceType.TOPIC,
                state.topics,
                lambda topic: topic.topic,
                logged=False,
            )
        reply.transaction_states += answers
        return reply

    return merge


def list_transactions(access: AccessControl, request: ListTransactionsRequest, call: Call) -> Verdict:
    """Ids that may not be described are left out. Another broker, with ClusterAction, sees all."""
    if access.is_of_a_broker(call):
        return None

    def merge(reply: ListTransactionsResponse) -> Generator[None, None, ListTransactionsResponse]:
        reply.transaction_states, _ = yield from split(
            access,
            call,
            Operation.DESCRIBE,
            ResourceType.TRANSACTIONAL_ID,
            reply.transaction_states,
            lambda state: state.transactional_id,
            logged=False,
        )
        return reply

    return merge


def describe_producers(
    access: AccessControl, request: DescribeProducersRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Read on each topic; of a coordinator on another broker ClusterAction. A name that no topic can have is refused by
    the handler."""
    if access.is_of_a_broker(call):
        return None
    allowed, denied = yield from split(
        access, call, Operation.READ, ResourceType.TOPIC, request.topics, lambda topic: _legal(topic.name)
    )
    if not denied:
        return None
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    row = DescribeProducersResponse.PartitionResponse
    answers = []
    for topic in denied:
        rows = [
            row(partition_index=index, error_code=code, error_message=code.meaning) for index in topic.partition_indexes
        ]
        answers.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=rows))
        yield
    request.topics = allowed

    def merge(reply: DescribeProducersResponse) -> DescribeProducersResponse:
        reply.topics += answers
        return reply

    return merge


def _legal(name: str) -> str | None:
    try:
        check_topic_name(name)
    except Refused:
        return None
    return name

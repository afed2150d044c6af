"""Builds the replies of the transaction coordinator. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from semel.errors import ErrorCode
from semel.machines.contract import AT_ONCE, Steps
from semel.machines.name_pattern import NamePattern
from semel.machines.transactions.metadata import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionMetadata
from semel.machines.transactions.states import STATES_BY_TITLE
from semel.machines.values import TopicPartition, by_topic
from semel.wire.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

Response = TypeVar("Response")


def partitions_of(topics: Iterable[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions)


def topic_results(
    codes: dict[TopicPartition, ErrorCode],
) -> list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    results: dict[str, AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = {}
    for partition, code in sorted(codes.items(), key=lambda item: (item[0].topic, item[0].partition)):
        topic = results.get(partition.topic)
        if topic is None:
            topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=partition.topic)
            results[partition.topic] = topic
        topic.results_by_partition.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                partition_index=partition.partition, partition_error_code=code
            )
        )
    return list(results.values())


def init_error(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


def for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def refusal_of(reply: Response, code: ErrorCode, failed: set[str]) -> Response:
    """A reply of the same type, with this error for the `failed` ids."""
    answer: Any = reply
    if isinstance(reply, InitProducerIdResponse):
        answer = init_error(code)
    elif isinstance(reply, EndTxnResponse):
        answer = EndTxnResponse(error_code=code)
    elif isinstance(reply, AddOffsetsToTxnResponse):
        answer = AddOffsetsToTxnResponse(error_code=code)
    elif isinstance(reply, ErrorCode):
        answer = code
    elif isinstance(reply, AddPartitionsToTxnResponse):
        topics = list(reply.results_by_topic_v3_and_below)
        for result in reply.results_by_transaction:
            if result.transactional_id in failed:
                topics.extend(result.topic_results)
        for topic in topics:
            for partition in topic.results_by_partition:
                partition.partition_error_code = code
    refusal: Response = answer
    return refusal


def description(
    metadata: TransactionMetadata, partitions: Iterable[TopicPartition]
) -> DescribeTransactionsResponse.TransactionState:
    return DescribeTransactionsResponse.TransactionState(
        transactional_id=metadata.transactional_id,
        transaction_state=metadata.state.title,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[
            DescribeTransactionsResponse.TopicData(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(partitions).items()
        ],
    )


def list_reply(
    entries: Iterable[TransactionMetadata], request: ListTransactionsRequest, now_ms: int
) -> Steps[ListTransactionsResponse]:
    """The ids that pass every filter of the request. An empty filter passes all."""
    states = {STATES_BY_TITLE[title] for title in request.state_filters if title in STATES_BY_TITLE}
    response = ListTransactionsResponse(
        unknown_state_filters=[title for title in dict.fromkeys(request.state_filters) if title not in STATES_BY_TITLE]
    )
    producer_ids = set(request.producer_id_filters)
    pattern = NamePattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    for number, metadata in enumerate(list(entries)):
        if number % AT_ONCE == 0 or pattern is not None:
            yield
        if producer_ids and metadata.producer_id not in producer_ids:
            continue
        if request.state_filters and metadata.state not in states:
            continue
        if request.duration_filter >= 0 and now_ms - metadata.start_ms <= request.duration_filter:
            continue
        if pattern is not None and not pattern.matches(metadata.transactional_id):
            continue
        response.transaction_states.append(
            ListTransactionsResponse.TransactionState(
                transactional_id=metadata.transactional_id,
                producer_id=metadata.producer_id,
                transaction_state=metadata.state.title,
            )
        )
    return response

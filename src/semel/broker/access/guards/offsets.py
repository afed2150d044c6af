"""Guards of ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import split
from semel.errors import ErrorCode
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.fetch import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def list_offsets(
    access: AccessControl, request: ListOffsetsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Describe on each topic."""
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.TOPIC, request.topics, lambda topic: topic.name
    )
    if not denied:
        return None
    row = ListOffsetsResponse.ListOffsetsPartitionResponse
    answers = []
    for topic in denied:
        rows = [row(partition_index=asked.partition_index, error_code=_DENIED) for asked in topic.partitions]
        answers.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        yield

    def merge(reply: ListOffsetsResponse) -> ListOffsetsResponse:
        reply.topics += answers
        return reply

    if not allowed:
        return Answer(merge(ListOffsetsResponse()))
    request.topics = allowed
    return merge


def offset_for_leader_epoch(
    access: AccessControl, request: OffsetForLeaderEpochRequest, call: Call
) -> Generator[None, None, Verdict]:
    """ClusterAction, or Describe on each topic."""
    if access.allows_on_cluster(call, Operation.CLUSTER_ACTION, logged=False):
        return None
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.TOPIC, request.topics, lambda topic: topic.topic
    )
    if not denied:
        return None
    row = OffsetForLeaderEpochResponse.EpochEndOffset
    answers = []
    for topic in denied:
        rows = [row(partition=asked.partition, error_code=_DENIED) for asked in topic.partitions]
        answers.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
        yield

    def merge(reply: OffsetForLeaderEpochResponse) -> OffsetForLeaderEpochResponse:
        reply.topics += answers
        return reply

    if not allowed:
        return Answer(merge(OffsetForLeaderEpochResponse()))
    request.topics = allowed
    return merge

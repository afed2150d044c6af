"""Guards of ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import made_of, split
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
    """Describe on each topic; of a replica ClusterAction."""
    if request.replica_id >= 0 and access.is_of_a_broker(call):
        return None
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.TOPIC, request.topics, lambda topic: topic.name
    )
    row = ListOffsetsResponse.ListOffsetsPartitionResponse

    def refusal(topic: ListOffsetsRequest.ListOffsetsTopic) -> ListOffsetsResponse.ListOffsetsTopicResponse:
        rows = [row(partition_index=asked.partition_index, error_code=_DENIED) for asked in topic.partitions]
        return ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=rows)

    return (yield from _verdict(request, allowed, denied, refusal, ListOffsetsResponse()))


def offset_for_leader_epoch(
    access: AccessControl, request: OffsetForLeaderEpochRequest, call: Call
) -> Generator[None, None, Verdict]:
    """ClusterAction, or Describe on each topic."""
    if access.allows_on_cluster(call, Operation.CLUSTER_ACTION, logged=False):
        return None
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.TOPIC, request.topics, lambda topic: topic.topic
    )
    row = OffsetForLeaderEpochResponse.EpochEndOffset

    def refusal(
        topic: OffsetForLeaderEpochRequest.OffsetForLeaderTopic,
    ) -> OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult:
        rows = [row(partition=asked.partition, error_code=_DENIED) for asked in topic.partitions]
        return OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows)

    return (yield from _verdict(request, allowed, denied, refusal, OffsetForLeaderEpochResponse()))


def _verdict(
    request: ListOffsetsRequest | OffsetForLeaderEpochRequest,
    allowed: list[Any],
    denied: list[Any],
    refusal: Callable[[Any], Any],
    empty: ListOffsetsResponse | OffsetForLeaderEpochResponse,
) -> Generator[None, None, Verdict]:
    """The allowed topics are asked for; a refusal of each denied one comes behind their answers."""
    if not denied:
        return None
    answers = yield from made_of(denied, refusal)

    def merge(reply: Any) -> Any:
        reply.topics += answers
        return reply

    if not allowed:
        return Answer(merge(empty))
    request.topics = allowed
    return merge

"""Guards of Metadata and DescribeTopicPartitions. Neither tells whether a topic exists that may not be described."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import split, topic_name
from semel.broker.handlers.metadata import NO_ID, is_no_cursor, may_create
from semel.broker.topics.internal import INTERNAL_TOPICS
from semel.errors import ErrorCode
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_Asked = MetadataRequest.MetadataRequestTopic
_Answered = MetadataResponse.MetadataResponseTopic
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def metadata(access: AccessControl, request: MetadataRequest, call: Call) -> Generator[None, None, Verdict]:
    """Describe on each topic; Create on the cluster or on the topic, for one that is to be created."""
    if request.topics is None or (not request.topics and call.version == 0):
        return (yield from _all_topics(access, call))

    def name_of(row: _Asked) -> str | None:
        by_id = call.version >= 10 and row.topic_id != NO_ID
        return topic_name(access, row.topic_id) if by_id else row.name

    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.TOPIC, request.topics, name_of
    )
    answers: dict[object, _Answered] = {}
    for row in denied:
        if call.version >= 10 and row.topic_id != NO_ID:
            # Whoever knows an id may know that it exists, as in Kafka; the name stays hidden.
            name = None if call.version >= 12 else ""
            answers[row.topic_id] = _Answered(error_code=_DENIED, name=name, topic_id=row.topic_id)
        else:
            answers[row.name] = _Answered(error_code=_DENIED, name=row.name, topic_id=NO_ID)
        yield
    if may_create(access.broker, request, call) and not access.allows_on_cluster(call, Operation.CREATE, logged=False):
        topics = access.broker.topics.topics
        wanted, allowed = allowed, []
        for row in wanted:
            name = name_of(row)
            if name is None or name in topics or access.allows(call, Operation.CREATE, ResourceType.TOPIC, name):
                allowed.append(row)
            else:
                answers[name] = _Answered(
                    error_code=_DENIED, name=name, topic_id=NO_ID, is_internal=name in INTERNAL_TOPICS
                )
            yield
    if not answers:
        return None
    request.topics = allowed

    def merge(reply: MetadataResponse) -> MetadataResponse:
        # In version 0 a request without topics asks for all of them.
        reply.topics = [*(reply.topics if allowed else ()), *answers.values()]
        return reply

    return merge


def _all_topics(access: AccessControl, call: Call) -> Generator[None, None, Verdict]:
    visible, hidden = yield from split(
        access,
        call,
        Operation.DESCRIBE,
        ResourceType.TOPIC,
        list(access.broker.topics.topics),
        lambda name: name,
        logged=False,
    )
    if not hidden and not call.is_long:
        return None
    # Those that are created until the handler answers were not asked about, so they are hidden as well.
    names = set(visible)

    def merge(reply: MetadataResponse) -> MetadataResponse:
        reply.topics = [row for row in reply.topics if row.name in names]
        return reply

    return merge


def describe_topic_partitions(
    access: AccessControl, request: DescribeTopicPartitionsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Describe on each topic. Of all topics, those that may be described are counted and paged through."""
    if is_no_cursor(request.cursor):
        return None
    named = request.topics
    first = "" if request.cursor is None else request.cursor.topic_name
    names = dict.fromkeys(row.name for row in named) if named else list(access.broker.topics.topics)
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.TOPIC, names, lambda name: name, logged=bool(named)
    )
    if not denied:
        return None
    row = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    answers = [row(error_code=_DENIED, name=name, topic_id=NO_ID) for name in denied if named and name >= first]

    def merge(reply: DescribeTopicPartitionsResponse) -> DescribeTopicPartitionsResponse:
        reply.topics += answers
        return reply

    if not allowed:
        return Answer(merge(DescribeTopicPartitionsResponse()))
    asked = DescribeTopicPartitionsRequest.TopicRequest
    request.topics = [asked(name=name) for name in allowed]
    return merge

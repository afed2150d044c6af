"""Guards of topics: create and delete them, add partitions, delete records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import made_of, split, topic_name
from semel.broker.handlers.metadata import NO_ID
from semel.errors import ErrorCode
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_Doomed = DeleteTopicsRequest.DeleteTopicState
_Result = DeleteTopicsResponse.DeletableTopicResult


def create_topics(
    access: AccessControl, request: CreateTopicsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Create on the cluster, or on each topic. The settings of a new topic are told with DescribeConfigs on it."""
    denied: list[CreateTopicsRequest.CreatableTopic] = []
    if not access.allows_on_cluster(call, Operation.CREATE, logged=False):
        request.topics, denied = yield from _split_named_once(access, call, Operation.CREATE, request.topics)
    row = CreateTopicsResponse.CreatableTopicResult
    answers = yield from made_of(
        denied, lambda topic: row(name=topic.name, error_code=_DENIED, error_message=_DENIED.meaning)
    )
    if not request.topics:
        return Answer(CreateTopicsResponse(topics=answers))

    def merge(reply: CreateTopicsResponse) -> Generator[None, None, CreateTopicsResponse]:
        for created in reply.topics:
            yield
            if created.error_code == ErrorCode.NONE and not access.allows(
                call, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, created.name, logged=False
            ):
                created.topic_config_error_code = _DENIED
                created.num_partitions = created.replication_factor = -1
                created.configs = []
        reply.topics += answers
        return reply

    return merge


def delete_topics(
    access: AccessControl, request: DeleteTopicsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Delete on the cluster, or on each topic.

    Without Describe nobody learns whether a topic exists, or what the topic with an id is called.
    """
    if not access.broker.settings["delete.topic.enable"] or access.allows_on_cluster(
        call, Operation.DELETE, logged=False
    ):
        return None
    topics = [*request.topics, *(_Doomed(name=name) for name in request.topic_names)]
    times = yield from _times(topic.name if topic.name is not None else topic.topic_id for topic in topics)
    allowed: list[_Doomed] = []
    answers: list[_Result] = []
    for topic in topics:
        refused = None
        # The handler refuses what is named twice, or both by its name and by its id, or not at all.
        if times[topic.name if topic.name is not None else topic.topic_id] == 1:
            if topic.name is None:
                refused = _refused_by_id(access, call, topic)
            elif topic.topic_id == NO_ID:
                refused = _refused_by_name(access, call, topic.name)
        if refused is None:
            allowed.append(topic)
        else:
            answers.append(refused)
        yield
    if not answers:
        return None
    if not allowed:
        return Answer(DeleteTopicsResponse(responses=answers))
    request.topics, request.topic_names = allowed, []

    def merge(reply: DeleteTopicsResponse) -> DeleteTopicsResponse:
        reply.responses += answers
        return reply

    return merge


def _refused_by_id(access: AccessControl, call: Call, topic: _Doomed) -> _Result | None:
    name = topic_name(access, topic.topic_id)
    if name is None or access.allows(call, Operation.DELETE, ResourceType.TOPIC, name):
        return None
    may_see = access.allows(call, Operation.DESCRIBE, ResourceType.TOPIC, name, logged=False)
    return _result(_DENIED, name if may_see else None, topic)


def _refused_by_name(access: AccessControl, call: Call, name: str) -> _Result | None:
    if not access.allows(call, Operation.DESCRIBE, ResourceType.TOPIC, name):
        return _result(_DENIED, name)
    if name not in access.broker.topics.topics:
        # Not left to the handler: the topic could be created until then.
        return _result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
    return None if access.allows(call, Operation.DELETE, ResourceType.TOPIC, name) else _result(_DENIED, name)


def _result(code: ErrorCode, name: str | None, topic: _Doomed | None = None) -> _Result:
    topic_id = NO_ID if topic is None else topic.topic_id
    return _Result(name=name, topic_id=topic_id, error_code=code, error_message=code.meaning)


def create_partitions(
    access: AccessControl, request: CreatePartitionsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Alter on each topic."""
    allowed, denied = yield from _split_named_once(access, call, Operation.ALTER, request.topics)
    if not denied:
        return None
    row = CreatePartitionsResponse.CreatePartitionsTopicResult
    answers = yield from made_of(
        denied, lambda topic: row(name=topic.name, error_code=_DENIED, error_message=_DENIED.meaning)
    )
    if not allowed:
        return Answer(CreatePartitionsResponse(results=answers))
    request.topics = allowed

    def merge(reply: CreatePartitionsResponse) -> CreatePartitionsResponse:
        reply.results += answers
        return reply

    return merge


def delete_records(
    access: AccessControl, request: DeleteRecordsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Delete on each topic."""
    allowed, denied = yield from split(
        access, call, Operation.DELETE, ResourceType.TOPIC, request.topics, lambda topic: topic.name
    )
    if not denied:
        return None
    row = DeleteRecordsResponse.DeleteRecordsPartitionResult
    answers = []
    for topic in denied:
        rows = [
            row(partition_index=asked.partition_index, low_watermark=-1, error_code=_DENIED)
            for asked in topic.partitions
        ]
        answers.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=rows))
        yield
    if not allowed:
        return Answer(DeleteRecordsResponse(topics=answers))
    request.topics = allowed

    def merge(reply: DeleteRecordsResponse) -> DeleteRecordsResponse:
        reply.topics += answers
        return reply

    return merge


def _split_named_once(
    access: AccessControl, call: Call, operation: Operation, topics: list[Any]
) -> Generator[None, None, tuple[list[Any], list[Any]]]:
    """As `split`. Topics that are named twice stay: the handler refuses them, as Kafka does before it asks."""
    times = yield from _times(topic.name for topic in topics)
    return (
        yield from split(
            access,
            call,
            operation,
            ResourceType.TOPIC,
            topics,
            lambda topic: topic.name if times[topic.name] == 1 else None,
        )
    )


def _times(names: Iterable[Any]) -> Generator[None, None, Counter[Any]]:
    times: Counter[Any] = Counter()
    for name in names:
        times[name] += 1
        yield
    return times

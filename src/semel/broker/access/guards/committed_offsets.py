"""Guards of the offsets of groups: a right on the group, then one on each topic."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import made_of, split, topic_name
from semel.broker.access.guards.transactions import may_use_id
from semel.broker.handlers.groups import txn_offset_commit_refused
from semel.errors import ErrorCode
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from semel.wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

#: From these versions on topics have ids, and an OffsetFetch has many groups.
COMMIT_TOPIC_IDS_SINCE = 10
FETCH_TOPIC_IDS_SINCE = 10
GROUPS_SINCE = 8
#: Before this version an OffsetFetch has no error code of its own.
GROUP_ERROR_SINCE = 2

_GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def offset_commit(
    access: AccessControl, request: OffsetCommitRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Read on the group, then Read on each topic."""
    if not access.allows(call, Operation.READ, ResourceType.GROUP, request.group_id):
        return Answer(OffsetCommitResponse(topics=(yield from _commit_refusals(request.topics, _GROUP_DENIED))))
    name_of = _by_id(access) if call.version >= COMMIT_TOPIC_IDS_SINCE else _by_name
    allowed, denied = yield from split(access, call, Operation.READ, ResourceType.TOPIC, request.topics, name_of)
    if not denied:
        return None
    answers = yield from _commit_refusals(denied, _TOPIC_DENIED)
    if not allowed:
        return Answer(OffsetCommitResponse(topics=answers))
    request.topics = allowed
    return _add_topics(answers)


def _commit_refusals(topics: list[Any], code: ErrorCode) -> Generator[None, None, list[Any]]:
    row = OffsetCommitResponse.OffsetCommitResponsePartition
    answers = []
    for topic in topics:
        rows = [row(partition_index=one.partition_index, error_code=code) for one in topic.partitions]
        answers.append(
            OffsetCommitResponse.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=rows)
        )
        yield
    return answers


def txn_offset_commit(
    access: AccessControl, request: TxnOffsetCommitRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Write on the transactional id, Read on the group, then Read on each topic."""
    if not may_use_id(access, call, request.transactional_id):
        return Answer(txn_offset_commit_refused(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    if not access.allows(call, Operation.READ, ResourceType.GROUP, request.group_id):
        return Answer(txn_offset_commit_refused(request, _GROUP_DENIED))
    allowed, denied = yield from split(access, call, Operation.READ, ResourceType.TOPIC, request.topics, _by_name)
    if not denied:
        return None
    refused: TxnOffsetCommitResponse = txn_offset_commit_refused(
        TxnOffsetCommitRequest(topics=denied), _TOPIC_DENIED
    )
    if not allowed:
        return Answer(refused)
    request.topics = allowed
    return _add_topics(refused.topics)


def offset_delete(
    access: AccessControl, request: OffsetDeleteRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Delete on the group, then Read on each topic. An error of the group comes before those of topics."""
    if not access.allows(call, Operation.DELETE, ResourceType.GROUP, request.group_id):
        return Answer(OffsetDeleteResponse(error_code=_GROUP_DENIED))
    allowed, denied = yield from split(access, call, Operation.READ, ResourceType.TOPIC, request.topics, _by_name)
    if not denied:
        return None
    row = OffsetDeleteResponse.OffsetDeleteResponsePartition
    answers = []
    for topic in denied:
        rows = [row(partition_index=one.partition_index, error_code=_TOPIC_DENIED) for one in topic.partitions]
        answers.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=rows))
        yield
    request.topics = allowed

    def merge(reply: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if reply.error_code == ErrorCode.NONE:
            reply.topics += answers
        return reply

    return merge


def offset_fetch(access: AccessControl, request: OffsetFetchRequest, call: Call) -> Generator[None, None, Verdict]:
    """Describe on each group, then Describe on each topic. Of all topics, only those that may be described."""
    if call.version >= GROUPS_SINCE:
        return (yield from _fetch_of_groups(access, request, call))
    if not access.allows(call, Operation.DESCRIBE, ResourceType.GROUP, request.group_id):
        if call.version >= GROUP_ERROR_SINCE:
            return Answer(OffsetFetchResponse(error_code=_GROUP_DENIED))
        return Answer(OffsetFetchResponse(topics=(yield from _fetch_refusals(request.topics or [], _GROUP_DENIED))))
    if request.topics is None:

        def hide(reply: OffsetFetchResponse) -> Generator[None, None, OffsetFetchResponse]:
            reply.topics = yield from _visible(access, call, reply.topics, _by_name)
            return reply

        return hide
    request.topics, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.TOPIC, request.topics, _by_name
    )
    if not denied:
        return None
    answers = yield from _fetch_refusals(denied, _TOPIC_DENIED)

    def merge(reply: OffsetFetchResponse) -> OffsetFetchResponse:
        if reply.error_code == ErrorCode.NONE:
            reply.topics += answers
        return reply

    return merge


def _fetch_of_groups(
    access: AccessControl, request: OffsetFetchRequest, call: Call
) -> Generator[None, None, Verdict]:
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.GROUP, request.groups, lambda group: group.group_id
    )
    name_of = _by_id(access) if call.version >= FETCH_TOPIC_IDS_SINCE else _by_name
    #: The refused topics of each group, and the groups of which all topics were asked for.
    refused: dict[str, list[Any]] = {}
    of_all: set[str] = set()
    for group in allowed:
        if group.topics is None:
            of_all.add(group.group_id)
            continue
        group.topics, hidden = yield from split(
            access, call, Operation.DESCRIBE, ResourceType.TOPIC, group.topics, name_of
        )
        if hidden:
            refused.setdefault(group.group_id, []).extend((yield from _group_fetch_refusals(hidden)))
    if not denied and not refused and not of_all:
        return None
    request.groups = allowed

    def merge(reply: OffsetFetchResponse) -> Generator[None, None, OffsetFetchResponse]:
        for group in reply.groups:
            yield
            if group.error_code != ErrorCode.NONE:
                continue
            if group.group_id in of_all:
                group.topics = yield from _visible(access, call, group.topics, name_of)
            group.topics += refused.get(group.group_id, ())
        row = OffsetFetchResponse.OffsetFetchResponseGroup
        reply.groups += yield from made_of(
            denied, lambda group: row(group_id=group.group_id, error_code=_GROUP_DENIED)
        )
        return reply

    return merge


def _visible(
    access: AccessControl, call: Call, topics: list[Any], name_of: Callable[[Any], str | None]
) -> Generator[None, None, list[Any]]:
    visible, _ = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.TOPIC, topics, name_of, logged=False
    )
    return visible


def _fetch_refusals(topics: list[Any], code: ErrorCode) -> Generator[None, None, list[Any]]:
    row = OffsetFetchResponse.OffsetFetchResponsePartition
    answers = []
    for topic in topics:
        rows = [row(partition_index=index, committed_offset=-1, error_code=code) for index in topic.partition_indexes]
        answers.append(OffsetFetchResponse.OffsetFetchResponseTopic(name=topic.name, partitions=rows))
        yield
    return answers


def _group_fetch_refusals(topics: list[Any]) -> Generator[None, None, list[Any]]:
    row = OffsetFetchResponse.OffsetFetchResponsePartitions
    answers = []
    for topic in topics:
        rows = [
            row(partition_index=index, committed_offset=-1, error_code=_TOPIC_DENIED)
            for index in topic.partition_indexes
        ]
        answers.append(
            OffsetFetchResponse.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=rows)
        )
        yield
    return answers


def _by_name(topic: Any) -> str | None:
    name: str = topic.name
    return name


def _by_id(access: AccessControl) -> Callable[[Any], str | None]:
    return lambda topic: topic_name(access, topic.topic_id)


def _add_topics(answers: list[Any]) -> Callable[[Any], Any]:
    def merge(reply: Any) -> Any:
        reply.topics += answers
        return reply

    return merge

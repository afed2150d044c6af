"""Guards of groups: Read for members, Describe to look at a group, Delete to delete it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import made_of, split
from semel.broker.handlers.groups import serves_consumer_protocol
from semel.errors import ErrorCode
from semel.machines.groups.coordinator import PROTOCOL_NAMED_SINCE
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from semel.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _may_be_member(access: AccessControl, call: Call, group_id: str) -> bool:
    return access.allows(call, Operation.READ, ResourceType.GROUP, group_id)


def join_group(access: AccessControl, request: JoinGroupRequest, call: Call) -> Verdict:
    """Read on the group."""
    if _may_be_member(access, call, request.group_id):
        return None
    return Answer(JoinGroupResponse(error_code=_DENIED, protocol_name=None if call.version >= 7 else ""))


def sync_group(access: AccessControl, request: SyncGroupRequest, call: Call) -> Verdict:
    """Read on the group. A request without its protocol is refused before that, as in Kafka."""
    if call.version >= PROTOCOL_NAMED_SINCE and (request.protocol_type is None or request.protocol_name is None):
        return Answer(SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    if _may_be_member(access, call, request.group_id):
        return None
    return Answer(SyncGroupResponse(error_code=_DENIED))


def heartbeat(access: AccessControl, request: HeartbeatRequest, call: Call) -> Verdict:
    """Read on the group."""
    if _may_be_member(access, call, request.group_id):
        return None
    return Answer(HeartbeatResponse(error_code=_DENIED))


def leave_group(access: AccessControl, request: LeaveGroupRequest, call: Call) -> Verdict:
    """Read on the group."""
    if _may_be_member(access, call, request.group_id):
        return None
    return Answer(LeaveGroupResponse(error_code=_DENIED))


def describe_groups(
    access: AccessControl, request: DescribeGroupsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Describe on each group."""
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.GROUP, dict.fromkeys(request.groups), lambda name: name
    )
    if not denied:
        return None
    row = DescribeGroupsResponse.DescribedGroup
    answers = yield from made_of(denied, lambda name: row(group_id=name, error_code=_DENIED))
    request.groups = allowed

    def merge(reply: DescribeGroupsResponse) -> DescribeGroupsResponse:
        reply.groups = [*answers, *reply.groups]
        return reply

    return merge


def list_groups(access: AccessControl, request: ListGroupsRequest, call: Call) -> Verdict:
    """Describe on the cluster; else only groups that may be described are listed."""
    if access.allows_on_cluster(call, Operation.DESCRIBE, logged=False):
        return None

    def merge(reply: ListGroupsResponse) -> Generator[None, None, ListGroupsResponse]:
        reply.groups, _ = yield from split(
            access,
            call,
            Operation.DESCRIBE,
            ResourceType.GROUP,
            reply.groups,
            lambda group: group.group_id,
            logged=False,
        )
        return reply

    return merge


def delete_groups(
    access: AccessControl, request: DeleteGroupsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Delete on each group."""
    allowed, denied = yield from split(
        access, call, Operation.DELETE, ResourceType.GROUP, dict.fromkeys(request.groups_names), lambda name: name
    )
    if not denied:
        return None
    row = DeleteGroupsResponse.DeletableGroupResult
    answers = yield from made_of(denied, lambda name: row(group_id=name, error_code=_DENIED))
    request.groups_names = allowed

    def merge(reply: DeleteGroupsResponse) -> DeleteGroupsResponse:
        reply.results += answers
        return reply

    return merge


def consumer_group_heartbeat(
    access: AccessControl, request: ConsumerGroupHeartbeatRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Read on the group, then Describe on every topic that it subscribes to by name."""
    if not serves_consumer_protocol(access.broker):
        return None
    if not _may_be_member(access, call, request.group_id):
        return Answer(ConsumerGroupHeartbeatResponse(error_code=_DENIED, error_message=_DENIED.meaning))
    names = dict.fromkeys(request.subscribed_topic_names or ())
    _, denied = yield from split(access, call, Operation.DESCRIBE, ResourceType.TOPIC, names, lambda name: name)
    return Answer(ConsumerGroupHeartbeatResponse(error_code=_TOPIC_DENIED)) if denied else None


def consumer_group_describe(
    access: AccessControl, request: ConsumerGroupDescribeRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Describe on each group. A group is hidden if a member has a topic that may not be described."""
    if not serves_consumer_protocol(access.broker):
        return None
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, ResourceType.GROUP, dict.fromkeys(request.group_ids), lambda name: name
    )
    row = ConsumerGroupDescribeResponse.DescribedGroup
    answers = yield from made_of(denied, lambda name: row(group_id=name, error_code=_DENIED))
    request.group_ids = allowed

    def merge(reply: ConsumerGroupDescribeResponse) -> Generator[None, None, ConsumerGroupDescribeResponse]:
        for group in reply.groups:
            yield
            _, hidden = yield from split(
                access, call, Operation.DESCRIBE, ResourceType.TOPIC, _topics_of(group), lambda name: name
            )
            if hidden:
                why = "The group has described topic(s) that the client is not authorized to describe."
                answers.append(row(group_id=group.group_id, error_code=_TOPIC_DENIED, error_message=why))
            else:
                answers.append(group)
        reply.groups = answers
        return reply

    return merge


def _topics_of(group: ConsumerGroupDescribeResponse.DescribedGroup) -> dict[str, None]:
    topics: dict[str, None] = {}
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            topics.update(dict.fromkeys(part.topic_name for part in assignment.topic_partitions))
    return topics

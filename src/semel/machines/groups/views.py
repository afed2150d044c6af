"""Builds the replies of DescribeGroups and ListGroups, and replies after a failed append."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from semel.errors import ErrorCode
from semel.machines.groups.classic.group import ClassicGroup, ClassicGroupState
from semel.machines.groups.consumer.group import ConsumerGroup
from semel.machines.groups.registry import Group
from semel.machines.internal_topics import after_failed_append
from semel.wire.error_codes import with_error
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeResponse
from semel.wire.messages.groups import DescribeGroupsResponse, ListGroupsResponse
from semel.wire.messages.offsets import OffsetCommitResponse, OffsetFetchResponse
from semel.wire.messages.transactions import TxnOffsetCommitResponse

_Reply = TypeVar("_Reply")

#: The member types of ConsumerGroupDescribe.
CLASSIC_MEMBER_TYPE, CONSUMER_MEMBER_TYPE = 0, 1

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


def classic_description(group: ClassicGroup) -> DescribeGroupsResponse.DescribedGroup:
    """Describe a classic group. Subscriptions are given only while the group is stable."""
    stable = group.state is ClassicGroupState.STABLE
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def missing_description(
    group_id: str, code: ErrorCode, why: str, version: int
) -> DescribeGroupsResponse.DescribedGroup:
    """Describe a group that could not be found. Before version 6 a missing group is described as dead."""
    missing = code is ErrorCode.GROUP_ID_NOT_FOUND
    return DescribeGroupsResponse.DescribedGroup(
        error_code=ErrorCode.NONE if missing and version < 6 else code,
        error_message=why if version >= 6 else None,
        group_id=group_id,
        group_state=ClassicGroupState.DEAD.value if missing else "",
    )


def consumer_description(
    group: ConsumerGroup, assignor: str, name_of: Callable[[UUID], str | None]
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    """Describe a consumer group: what its members have, and their targets."""
    response = ConsumerGroupDescribeResponse

    def assignment(places: Mapping[UUID, Iterable[int]]) -> ConsumerGroupDescribeResponse.Assignment:
        return response.Assignment(
            topic_partitions=[
                response.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(partitions))
                for topic_id, partitions in places.items()
                if (name := name_of(topic_id)) is not None
            ]
        )

    return response.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=assignor,
        members=[
            response.Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.subscribed_topic_names),
                subscribed_topic_regex=member.subscribed_topic_regex,
                assignment=assignment(member.assigned),
                target_assignment=assignment(group.target.get(member.member_id, {})),
                member_type=CONSUMER_MEMBER_TYPE if member.classic is None else CLASSIC_MEMBER_TYPE,
            )
            for member in group.members.values()
        ],
    )


def list_row(group: Group, states: set[str], types: set[str]) -> ListGroupsResponse.ListedGroup | None:
    """The group's row in the list; None if a filter excludes it."""
    kind = "classic" if isinstance(group, ClassicGroup) else "consumer"
    state = group.state.value
    if states and state.lower() not in states:
        return None
    if types and kind not in types:
        return None
    return ListGroupsResponse.ListedGroup(
        group_id=group.group_id,
        protocol_type=(group.protocol_type or "") if isinstance(group, ClassicGroup) else "consumer",
        group_state=state,
        group_type=kind,
    )


def failed_reply(reply: _Reply, append_error: ErrorCode) -> _Reply:
    """A copy of the reply with this error in place of every NONE."""
    code = after_failed_append(append_error)
    if append_error in _TOO_LARGE and isinstance(reply, OffsetCommitResponse | TxnOffsetCommitResponse):
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    failed = with_error(reply, code)
    if isinstance(failed, OffsetFetchResponse):
        # What is not committed is told to nobody, beside an error neither.
        rows: list[Any] = [row for topic in failed.topics for row in topic.partitions]
        rows += [row for group in failed.groups for topic in group.topics for row in topic.partitions]
        for row in rows:
            if row.error_code == code:
                row.committed_offset, row.committed_leader_epoch, row.metadata = -1, -1, ""
    return failed

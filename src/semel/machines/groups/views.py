"""Groups as people and tools see them: what DescribeGroups and ListGroups answer, and answers that went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from semel.errors import ErrorCode
from semel.machines.groups.classic.group import ClassicGroup, ClassicGroupState
from semel.machines.groups.consumer.group import ConsumerGroup
from semel.machines.groups.registry import Group
from semel.machines.internal_topics import after_failed_append
from semel.wire.error_codes import with_error
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeResponse
from semel.wire.messages.groups import DescribeGroupsResponse, ListGroupsResponse
from semel.wire.messages.offsets import OffsetCommitResponse
from semel.wire.messages.transactions import TxnOffsetCommitResponse

_Reply = TypeVar("_Reply")

#: What ConsumerGroupDescribe calls the protocol a member speaks.
CLASSIC_MEMBER_TYPE, CONSUMER_MEMBER_TYPE = 0, 1

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


def described(group: ClassicGroup) -> DescribeGroupsResponse.DescribedGroup:
    """What members subscribe to only means something while the group is stable."""
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


def not_described(group_id: str, code: ErrorCode, why: str, version: int) -> DescribeGroupsResponse.DescribedGroup:
    """Before version 6 a group that is not there is described as dead."""
    missing = code is ErrorCode.GROUP_ID_NOT_FOUND
    return DescribeGroupsResponse.DescribedGroup(
        error_code=ErrorCode.NONE if missing and version < 6 else code,
        error_message=why if version >= 6 else None,
        group_id=group_id,
        group_state=ClassicGroupState.DEAD.value if missing else "",
    )


def described_consumers(
    group: ConsumerGroup, assignor: str, name_of: Callable[[UUID], str | None]
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    """What members have, and what they are to have."""
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


def listed(group: Group, states: set[str], types: set[str]) -> ListGroupsResponse.ListedGroup | None:
    """The group in the list, unless a filter leaves it out."""
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


def failed(reply: _Reply, append_error: ErrorCode) -> _Reply:
    """The same answer with an error wherever it would have said that all is well."""
    code = after_failed_append(append_error)
    if append_error in _TOO_LARGE and isinstance(reply, OffsetCommitResponse | TxnOffsetCommitResponse):
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return with_error(reply, code)

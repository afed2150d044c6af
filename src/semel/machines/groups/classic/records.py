"""A classic group as one record: its generation, its members and their assignments."""

from __future__ import annotations

from sys import intern

from semel.machines.contract import StateRecord
from semel.machines.groups.classic.group import ClassicGroup, ClassicGroupState, ClassicMember
from semel.machines.groups.records import record
from semel.wire.messages.coordinator_records import GroupMetadataKey, GroupMetadataValue


def empty_group_record(partition: int, group: ClassicGroup) -> StateRecord:
    """A new group, without members."""
    return record(
        partition,
        GroupMetadataKey(group=group.group_id),
        GroupMetadataValue(
            protocol_type="",
            generation=0,
            protocol=None,
            leader=None,
            current_state_timestamp=group.state_timestamp_ms,
        ),
    )


def group_record(partition: int, group: ClassicGroup, assignments: dict[str, bytes] | None = None) -> StateRecord:
    """The group with these assignments, or with those that the members have."""
    return record(
        partition,
        GroupMetadataKey(group=group.group_id),
        GroupMetadataValue(
            protocol_type=group.protocol_type or "",
            generation=group.generation_id,
            protocol=group.protocol_name,
            leader=group.leader_id,
            current_state_timestamp=group.state_timestamp_ms,
            members=[
                GroupMetadataValue.MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(group.protocol_name),
                    assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in group.members.values()
            ],
        ),
    )


def read_group(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """The group in a record. With members it is stable, without members it is empty."""
    group = ClassicGroup(group_id, value.current_state_timestamp)
    group.generation_id = value.generation
    group.protocol_type = intern(value.protocol_type) if value.protocol_type else None
    group.protocol_name = value.protocol and intern(value.protocol)
    group.leader_id = value.leader
    if value.members:
        group.members = {
            member.member_id: ClassicMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout if member.rebalance_timeout >= 0 else member.session_timeout,
                member.session_timeout,
                ((value.protocol or "", bytes(member.subscription)),),
                bytes(member.assignment),
            )
            for member in value.members
        }
    group.restore(ClassicGroupState.STABLE if group.members else ClassicGroupState.EMPTY)
    return group

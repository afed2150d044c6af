"""Encodes and replays the records of consumer groups (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from semel.machines.contract import StateRecord
from semel.machines.groups.consumer.assignors import Assignment
from semel.machines.groups.consumer.group import (
    LEAVE_EPOCH,
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
    ConsumerMemberState,
    Owned,
    ResolvedRegex,
)
from semel.machines.groups.idle_entries import with_entry, without_entry
from semel.machines.groups.records import record
from semel.wire.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)


class ConsumerRecords:
    """Builds the records of one group, for its partition."""

    __slots__ = ("_group_id", "_partition")

    def __init__(self, partition: int, group_id: str) -> None:
        self._partition = partition
        self._group_id = group_id

    def member(self, member: ConsumerMember) -> StateRecord:
        return record(
            self._partition,
            ConsumerGroupMemberMetadataKey(group_id=self._group_id, member_id=member.member_id),
            ConsumerGroupMemberMetadataValue(
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.subscribed_topic_names),
                subscribed_topic_regex=member.subscribed_topic_regex,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                server_assignor=member.server_assignor,
                classic_member_metadata=_written_classic(member.classic),
            ),
        )

    def epoch(self, epoch: int, metadata_hash: int) -> StateRecord:
        return record(
            self._partition,
            ConsumerGroupMetadataKey(group_id=self._group_id),
            ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
        )

    def target(self, member_id: str, target: Assignment) -> StateRecord:
        return record(
            self._partition,
            ConsumerGroupTargetAssignmentMemberKey(group_id=self._group_id, member_id=member_id),
            ConsumerGroupTargetAssignmentMemberValue(
                topic_partitions=[
                    ConsumerGroupTargetAssignmentMemberValue.TopicPartition(
                        topic_id=topic_id, partitions=sorted(partitions)
                    )
                    for topic_id, partitions in target.items()
                ]
            ),
        )

    def target_epoch(self, epoch: int, now_ms: int) -> StateRecord:
        return record(
            self._partition,
            ConsumerGroupTargetAssignmentMetadataKey(group_id=self._group_id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms),
        )

    def current(self, member: ConsumerMember) -> StateRecord:
        return record(
            self._partition,
            ConsumerGroupCurrentMemberAssignmentKey(group_id=self._group_id, member_id=member.member_id),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=member.member_epoch,
                previous_member_epoch=member.previous_member_epoch,
                state=int(member.state),
                assigned_partitions=_written(member.assigned),
                partitions_pending_revocation=_written(member.pending_revocation),
            ),
        )

    def regex(self, expression: str, resolved: ResolvedRegex | None) -> StateRecord:
        value = resolved and ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
        )
        return record(
            self._partition,
            ConsumerGroupRegularExpressionKey(group_id=self._group_id, regular_expression=expression),
            value or None,
        )

    def whole_group(self, group: ConsumerGroup, now_ms: int) -> list[StateRecord]:
        """All records of a group that was just converted."""
        members = group.members.values()
        return [
            *(self.member(member) for member in members),
            self.epoch(group.epoch, group.metadata_hash),
            *(self.target(member_id, target) for member_id, target in group.target.items()),
            self.target_epoch(group.target_epoch, now_ms),
            *(self.current(member) for member in members),
        ]

    def end_of_member(self, member_id: str) -> list[StateRecord]:
        keys = (
            ConsumerGroupCurrentMemberAssignmentKey(group_id=self._group_id, member_id=member_id),
            ConsumerGroupTargetAssignmentMemberKey(group_id=self._group_id, member_id=member_id),
            ConsumerGroupMemberMetadataKey(group_id=self._group_id, member_id=member_id),
        )
        return [record(self._partition, key, None) for key in keys]

    def end_of_group(self, group: ConsumerGroup) -> list[StateRecord]:
        ended = [one for member_id in group.members for one in self.end_of_member(member_id)]
        ended += [self.regex(expression, None) for expression in group.regexes]
        keys = (
            ConsumerGroupTargetAssignmentMetadataKey(group_id=self._group_id),
            ConsumerGroupPartitionMetadataKey(group_id=self._group_id),
            ConsumerGroupMetadataKey(group_id=self._group_id),
        )
        return ended + [record(self._partition, key, None) for key in keys]


def replay(group: ConsumerGroup, key: Any, value: Any) -> None:
    """Take in one record of the group.

    After compaction the records of a member may come in any order.
    """
    if isinstance(key, ConsumerGroupMetadataKey):
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
    elif isinstance(key, ConsumerGroupMemberMetadataKey):
        if value is None:
            group.remove_member(key.member_id)
        else:
            group.put_member(
                replace(
                    _known(group, key.member_id),
                    instance_id=value.instance_id,
                    rack_id=value.rack_id,
                    client_id=value.client_id,
                    client_host=value.client_host,
                    subscribed_topic_names=frozenset(value.subscribed_topic_names),
                    subscribed_topic_regex=value.subscribed_topic_regex,
                    server_assignor=value.server_assignor,
                    rebalance_timeout_ms=value.rebalance_timeout_ms,
                    classic=_read_classic(value.classic_member_metadata),
                )
            )
    elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
        group.target_epoch = LEAVE_EPOCH if value is None else value.assignment_epoch
    elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
        if value is None:
            group.target = without_entry(group.target, key.member_id)
        else:
            target = {part.topic_id: frozenset(part.partitions) for part in value.topic_partitions}
            group.target = with_entry(group.target, key.member_id, target)
    elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
        if value is not None:
            group.put_member(
                replace(
                    _known(group, key.member_id),
                    member_epoch=value.member_epoch,
                    previous_member_epoch=value.previous_member_epoch,
                    state=ConsumerMemberState(value.state),
                    assigned=_read(value.assigned_partitions, value.member_epoch),
                    pending_revocation=_read(value.partitions_pending_revocation, value.member_epoch),
                )
            )
        elif key.member_id in group.members:
            group.put_member(
                replace(group.members[key.member_id], member_epoch=LEAVE_EPOCH, assigned={}, pending_revocation={})
            )
    elif isinstance(key, ConsumerGroupRegularExpressionKey):
        if value is None:
            group.regexes = without_entry(group.regexes, key.regular_expression)
        else:
            resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            group.regexes = with_entry(group.regexes, key.regular_expression, resolved)


def _known(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    return group.members.get(member_id) or ConsumerMember(member_id)


def _written_classic(classic: ClassicSide | None) -> ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None:
    if classic is None:
        return None
    return ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            ConsumerGroupMemberMetadataValue.ClassicProtocol(name=name, metadata=metadata)
            for name, metadata in classic.protocols
        ],
    )


def _read_classic(value: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None) -> ClassicSide | None:
    if value is None or not value.supported_protocols:
        return None
    return ClassicSide(
        value.session_timeout_ms, tuple((one.name, bytes(one.metadata)) for one in value.supported_protocols)
    )


def _written(owned: Owned) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[partition] for partition in sorted(partitions)],
        )
        for topic_id, partitions in owned.items()
    ]


def _read(parts: list[Any], member_epoch: int) -> Mapping[UUID, Mapping[int, int]]:
    """Records from before 4.3 have no epoch per partition. Then the member's epoch is taken."""
    return {
        part.topic_id: dict(
            zip(part.partitions, part.assignment_epochs or [member_epoch] * len(part.partitions), strict=False)
        )
        for part in parts
    }

"""Converts a live group from the classic to the consumer protocol, and back.

Members keep their ids and their partitions: the first epoch starts with the assignment of the last generation, and the
other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from semel.errors import ErrorCode, Refused
from semel.machines.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicGroupState, ClassicMember
from semel.machines.groups.consumer.group import ClassicSide, ConsumerGroup, ConsumerMember, ConsumerMemberState, Owned
from semel.machines.groups.idle_entries import with_entry
from semel.machines.groups.registry import TopicsView
from semel.wire import Malformed
from semel.wire.consumer_protocol import encode_assignment, read_assignment, read_subscription, version_of
from semel.wire.messages.coordinator_records import ConsumerProtocolSubscription

_M = TypeVar("_M")


def read_embedded(read: Callable[[bytes], _M], data: bytes) -> _M:
    """Decode the metadata or assignment of a classic client; `Refused` if it cannot be read."""
    try:
        return read(data)
    except Malformed as error:
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the embedded consumer protocol cannot be read") from error


def encode_owned(assigned: Owned, like: bytes, topics: TopicsView) -> bytes:
    """Encode an assignment for a classic client, in the version of the subscription it sent."""
    names = {info.topic_id: name for name, info in topics.items()}
    rows = sorted(
        (names[topic_id], sorted(partitions)) for topic_id, partitions in assigned.items() if topic_id in names
    )
    return encode_assignment(dict(rows), version_of(like))


def owned_of(subscription: ConsumerProtocolSubscription, topics: TopicsView) -> dict[UUID, frozenset[int]]:
    """The partitions that a classic member still owns, by its subscription."""
    return {
        topics[part.topic].topic_id: frozenset(part.partitions)
        for part in subscription.owned_partitions
        if part.topic in topics
    }


def to_consumer_group(group: ClassicGroup, topics: TopicsView) -> ConsumerGroup:
    """The classic group as a consumer group whose members all use the classic protocol.

    `Refused` if the members' metadata cannot be read: then the broker cannot assign for them.
    """
    converted = ConsumerGroup(group.group_id)
    converted.epoch = converted.target_epoch = group.generation_id
    for member in group.members.values():
        name = group.protocol_name or member.protocols[0][0]
        subscription = read_embedded(read_subscription, member.metadata(name))
        assigned: dict[UUID, dict[int, int]] = {}
        if member.assignment:
            assignment = read_embedded(read_assignment, member.assignment)
            if assignment.user_data:
                raise Refused(ErrorCode.UNSUPPORTED_VERSION, "the user data of a custom assignor would be lost")
            assigned = {
                topics[part.topic].topic_id: dict.fromkeys(part.partitions, group.generation_id)
                for part in assignment.assigned_partitions
                if part.topic in topics
            }
        converted.put_member(
            ConsumerMember(
                member.member_id,
                instance_id=member.group_instance_id,
                rack_id=subscription.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=frozenset(subscription.topics),
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                member_epoch=group.generation_id,
                previous_member_epoch=group.generation_id,
                state=ConsumerMemberState.STABLE,
                assigned=assigned,
                classic=ClassicSide(member.session_timeout_ms, member.protocols),
            )
        )
        target = {topic_id: frozenset(partitions) for topic_id, partitions in assigned.items()}
        converted.target = with_entry(converted.target, member.member_id, target)
    return converted


def to_classic_group(group: ConsumerGroup, gone: set[str], topics: TopicsView, now_ms: int) -> ClassicGroup:
    """The consumer group as a classic group, without the members in `gone`."""
    converted = ClassicGroup(group.group_id, now_ms)
    converted.generation_id = group.epoch
    converted.protocol_type = CONSUMER_PROTOCOL_TYPE
    for member in group.members.values():
        if member.member_id in gone or member.classic is None:
            continue
        target = {t: dict.fromkeys(p, group.epoch) for t, p in group.target.get(member.member_id, {}).items()}
        classic_member = ClassicMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.classic.session_timeout_ms,
            member.classic.protocols,
            encode_owned(target, member.classic.protocols[0][1], topics),
        )
        converted.add(classic_member, CONSUMER_PROTOCOL_TYPE)
    converted.protocol_name = converted.select_protocol()
    converted.restore(ClassicGroupState.STABLE)
    return converted

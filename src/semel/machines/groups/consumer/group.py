"""A group under the consumer protocol (KIP-848): the broker assigns, members reconcile.

All state of the group is in its records. A partition has one owner at a time: a member gets a partition only after its
last owner has reported that it revoked it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from semel.errors import ErrorCode, Refused
from semel.machines.groups.committed_offsets import CommittedOffset
from semel.machines.groups.consumer.assignors import Assignment
from semel.machines.groups.idle_entries import SHARED_EMPTY, with_entry, without_entry

#: Special values of the member epoch in a heartbeat.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
UNKNOWN_MEMBER_EPOCH = -1
#: The epoch of a new group, before its first record.
FIRST_GROUP_EPOCH = 1

#: topic id -> partition -> the epoch in which the member got it
Owned = Mapping[UUID, Mapping[int, int]]


class ConsumerGroupState(enum.Enum):
    """The states of a consumer group. The values are the names that Kafka's tools print."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerMemberState(enum.IntEnum):
    """How far a member is with its target. The numbers are those in the record."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ClassicSide(NamedTuple):
    """What is stored of a member that uses the classic protocol in a consumer group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member. Immutable: a change makes a new object."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    rebalance_timeout_ms: int = -1
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: ConsumerMemberState = ConsumerMemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    pending_revocation: Owned = field(default_factory=dict)
    classic: ClassicSide | None = None

    def given_in(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch in which the member got a partition that it still has."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        return self.pending_revocation.get(topic_id, {}).get(partition) if epoch is None else epoch

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is ConsumerMemberState.STABLE and self.member_epoch == target_epoch


class ResolvedRegex(NamedTuple):
    """The topics that matched a regular expression when it was last checked."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """A consumer group, as replayed from its records."""

    __slots__ = (
        "checked_topics",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "owners",
        "regexes",
        "static_members",
        "target",
        "target_epoch",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_GROUP_EPOCH
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = SHARED_EMPTY
        self.static_members: dict[str, str] = SHARED_EMPTY
        self.target_epoch = 0
        self.target: dict[str, Assignment] = SHARED_EMPTY
        self.regexes: dict[str, ResolvedRegex] = SHARED_EMPTY
        #: partition -> the member that owns it, or has not revoked it yet
        self.owners: dict[tuple[UUID, int], str] = SHARED_EMPTY
        #: The topics against which the subscriptions were last checked. If they changed, check again.
        self.checked_topics: Mapping[str, object] | None = None

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def owner_of(self, topic_id: UUID, partition: int) -> str | None:
        return self.owners.get((topic_id, partition))

    def waits_for_release(self, member: ConsumerMember) -> bool:
        """Whether another member still has a partition of this member's target."""
        return any(
            partition not in member.assigned.get(topic_id, {}) and (topic_id, partition) in self.owners
            for topic_id, partitions in self.target.get(member.member_id, {}).items()
            for partition in partitions
        )

    def member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of {self.group_id}")
        return member

    def subscribed_topics(self) -> frozenset[str]:
        """The topics that any member subscribes to, by name or by regular expression."""
        return frozenset().union(*(topics_of(member, self.regexes) for member in self.members.values()))

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topics()

    # Replay

    def put_member(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._release(before)
            if before.instance_id is not None and self.static_members.get(before.instance_id) == before.member_id:
                self.static_members = without_entry(self.static_members, before.instance_id)
        self.members = with_entry(self.members, member.member_id, member)
        if member.instance_id is not None:
            self.static_members = with_entry(self.static_members, member.instance_id, member.member_id)
        for place in _places(member):
            self.owners = with_entry(self.owners, place, member.member_id)

    def remove_member(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        self.members = without_entry(self.members, member_id)
        self._release(member)
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            self.static_members = without_entry(self.static_members, member.instance_id)

    def _release(self, member: ConsumerMember) -> None:
        for place in _places(member):
            if self.owners.get(place) == member.member_id:
                self.owners = without_entry(self.owners, place)

    # Offsets

    def validate_commit(
        self, member_id: str, group_instance_id: str | None, member_epoch: int, version: int, *, transactional: bool
    ) -> ConsumerMember | None:
        """Refuse a commit unless its sender is a member.

        Returns the member if its epoch is behind. Then each partition has to be checked with `validate_commit_of`.
        """
        if member_epoch < 0 and not self.members:
            return None
        if transactional and member_epoch == UNKNOWN_MEMBER_EPOCH and not member_id and group_instance_id is None:
            return None
        member = self.member(member_id)
        if not transactional and member.classic is None and version < 9:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, "members of a consumer group commit with version 9 or newer")
        if member_epoch > member.member_epoch:
            self.validate_epoch(member, member_epoch)
        return None if member_epoch == member.member_epoch else member

    @staticmethod
    def validate_commit_of(member: ConsumerMember, member_epoch: int, topic_id: UUID, partition: int) -> None:
        """A member with an older epoch may commit partitions that it has had since that epoch."""
        given_in = member.given_in(topic_id, partition)
        if given_in is None or member_epoch < given_in:
            raise Refused(_stale(member), f"partition {partition} is not the member's since {member_epoch}")

    def validate_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        self.validate_epoch(self.member(member_id or ""), member_epoch)

    @staticmethod
    def validate_epoch(member: ConsumerMember, member_epoch: int) -> None:
        if member_epoch != member.member_epoch:
            raise Refused(_stale(member), f"epoch {member_epoch}, but the member is at {member.member_epoch}")

    def expires(self, offset: CommittedOffset, topic: str, retention_ms: int, now_ms: int) -> bool:
        """Whether an offset is expired. Only offsets of topics without a subscriber expire."""
        return not self.is_subscribed_to(topic) and offset.is_expired(offset.commit_timestamp_ms, retention_ms, now_ms)


def _stale(member: ConsumerMember) -> ErrorCode:
    """The code for a stale epoch in the member's protocol."""
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def _places(member: ConsumerMember) -> Iterator[tuple[UUID, int]]:
    for assignment in (member.assigned, member.pending_revocation):
        for topic_id, partitions in assignment.items():
            for partition in partitions:
                yield topic_id, partition


def topics_of(member: ConsumerMember, regexes: Mapping[str, ResolvedRegex]) -> frozenset[str]:
    """The topics that a member subscribes to, by name and by regular expression."""
    resolved = regexes.get(member.subscribed_topic_regex or "")
    return member.subscribed_topic_names if resolved is None else member.subscribed_topic_names | resolved.topics

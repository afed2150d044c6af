"""A group under the classic protocol: its members, the choice of a protocol, and its states.

A group has one leader, one generation and one protocol that all members support. The leader assigns the partitions. The
group only passes its assignment on: all members of a generation get the same one.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from copy import copy
from typing import NamedTuple

from semel.errors import ErrorCode, InvariantViolation, Refused, invariant
from semel.machines.contract import Token
from semel.machines.groups.committed_offsets import CommittedOffset
from semel.machines.groups.idle_entries import SHARED_EMPTY, with_entry, without_entry
from semel.machines.table import StateTable
from semel.wire.consumer_protocol import read_subscription

NO_MEMBER_ID = ""
CONSUMER_PROTOCOL_TYPE = "consumer"

#: (protocol name, metadata) in the member's order of preference
Protocols = tuple[tuple[str, bytes], ...]


class ClassicGroupState(enum.Enum):
    """The states of a classic group. The values are the names that Kafka's tools print."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroupEvent(enum.Enum):
    """What happens to a group. The value is the event's name on the page."""

    REBALANCE = "a rebalance begins"
    JOINED = "all members have joined, or the rebalance timeout has passed"
    EMPTIED = "the join ends without members"
    ASSIGNED = "the leader's assignment is written"


S, E = ClassicGroupState, ClassicGroupEvent

#: From (state, event) to the next state; a blank cell is a mistake in the broker.
CLASSIC_GROUP_STEPS: dict[ClassicGroupState, dict[ClassicGroupEvent, ClassicGroupState]] = {
    S.EMPTY: {E.REBALANCE: S.PREPARING_REBALANCE},
    S.PREPARING_REBALANCE: {E.JOINED: S.COMPLETING_REBALANCE, E.EMPTIED: S.EMPTY},
    S.COMPLETING_REBALANCE: {E.ASSIGNED: S.STABLE, E.REBALANCE: S.PREPARING_REBALANCE},
    S.STABLE: {E.REBALANCE: S.PREPARING_REBALANCE},
    S.DEAD: {},
}

CLASSIC_GROUP_TABLE: StateTable[ClassicGroupState, ClassicGroupEvent, ClassicGroupState | None] = StateTable(
    ClassicGroupState, ClassicGroupEvent, CLASSIC_GROUP_STEPS, blank=None
)

_NO_TOPICS: frozenset[str] = frozenset()


class Parked(NamedTuple):
    """A parked request: its token, and the version to answer in."""

    token: Token
    version: int


class ClassicMember:
    """One member: a consumer, a Connect worker, or anything else."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "group_instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync",
        "timer_at_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        #: A new member does not know its id and cannot send heartbeats. So it times out even while its join is parked.
        self.is_new = False
        self.join: Parked | None = None
        self.sync: Parked | None = None
        #: When the session ends; None while no heartbeat is expected.
        self.deadline_ms: int | None = None
        #: The earliest timer of this member. A heartbeat sets no other one.
        self.timer_at_ms: int | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """The candidate that this member prefers."""
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    """The members of a group and the rules between them. Timers, answers and records are for `rebalance`."""

    __slots__ = (
        "generation_id",
        "group_id",
        "join_deadline_ms",
        "join_remaining_ms",
        "leader_id",
        "members",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "subscribed_topics",
        "sync_deadline_ms",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.previous_state = ClassicGroupState.DEAD
        self.state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = SHARED_EMPTY
        self.static_members: dict[str, str] = SHARED_EMPTY
        #: Ids that were given with MEMBER_ID_REQUIRED and not used yet, each with its deadline.
        self.pending_join: dict[str, int] = SHARED_EMPTY
        #: Members of this generation that have not sent SyncGroup yet.
        self.pending_sync: dict[str, None] = SHARED_EMPTY
        self.new_member_added = False
        #: The topics of all subscriptions; None if unknown (another protocol type, unreadable metadata).
        self.subscribed_topics: frozenset[str] | None = None
        self.join_deadline_ms: int | None = None
        self.join_remaining_ms = 0
        self.sync_deadline_ms: int | None = None

    # State

    def step(self, event: ClassicGroupEvent, now_ms: int) -> None:
        state = CLASSIC_GROUP_TABLE.step(self.state, event)
        if state is None:
            raise InvariantViolation(f"group {self.group_id} is {self.state.value}, and now {event.value}")
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def is_simple(self) -> bool:
        """Whether the group only stores offsets: no member ever joined it."""
        return self.state is ClassicGroupState.EMPTY and self.protocol_type is None and not self.pending_join

    @property
    def can_rebalance(self) -> bool:
        return CLASSIC_GROUP_TABLE.step(self.state, ClassicGroupEvent.REBALANCE) is not None

    @property
    def awaiting_join(self) -> int:
        return sum(member.join is not None for member in self.members.values())

    @property
    def has_all_members_joined(self) -> bool:
        return not self.pending_join and all(member.join is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Members

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        if member.group_instance_id is not None:
            self.static_members = with_entry(self.static_members, member.group_instance_id, member.member_id)
        self.members = with_entry(self.members, member.member_id, member)
        self.pending_join = without_entry(self.pending_join, member.member_id)

    def await_join(self, member_id: str, until_ms: int) -> None:
        """Expect a join with this new id until then."""
        self.pending_join = with_entry(self.pending_join, member_id, until_ms)

    def remove(self, member_id: str) -> ClassicMember | None:
        member = self.members.get(member_id)
        self.members = without_entry(self.members, member_id)
        if member is not None and member.group_instance_id is not None:
            self.static_members = without_entry(self.static_members, member.group_instance_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_join = without_entry(self.pending_join, member_id)
        self.pending_sync = without_entry(self.pending_sync, member_id)
        return member

    def with_static_replaced(self, old: ClassicMember, new: ClassicMember) -> ClassicGroup:
        """A copy of the group in which `replace_static` was done."""
        replaced = copy(self)
        replaced.static_members = dict(self.static_members)
        replaced.pending_sync = dict(self.pending_sync)
        replaced.replace_static(old, new)
        return replaced

    def replace_static(self, old: ClassicMember, new: ClassicMember) -> None:
        """Replace a static member by the same instance with a new id, at the same position."""
        self.members = {
            (new.member_id if member_id == old.member_id else member_id): (new if member is old else member)
            for member_id, member in self.members.items()
        }
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id
        if old.member_id in self.pending_sync:
            del self.pending_sync[old.member_id]
            self.pending_sync[new.member_id] = None
        if new.group_instance_id is not None:
            self.static_members = with_entry(self.static_members, new.group_instance_id, new.member_id)

    def validate_member(self, member_id: str, group_instance_id: str | None) -> ClassicMember:
        """The member with this id. A static member is fenced if a newer id has its instance id."""
        if group_instance_id is not None:
            holder = self.static_members.get(group_instance_id)
            if holder is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {group_instance_id}")
            if holder != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"{holder} took over instance id {group_instance_id}")
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of {self.group_id}")
        return member

    def validate_generation(self, generation_id: int) -> None:
        if generation_id != self.generation_id:
            raise Refused(
                ErrorCode.ILLEGAL_GENERATION, f"generation {generation_id}, but the group is at {self.generation_id}"
            )

    def elect_leader(self) -> bool:
        """Elect another leader if the leader has not joined again. Returns whether there is one."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].join is not None:
            return True
        for member in self.members.values():
            if member.join is not None:
                self.leader_id = member.member_id
                return True
        return False

    # Protocols

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if self.protocol_type != protocol_type:
            return False
        if not self.members:
            return bool(protocols)
        candidates = self._candidates()
        return any(name in candidates for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol that most members prefer, of those that all support."""
        invariant(self.members, "a group without members cannot choose a protocol")
        candidates = self._candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _candidates(self) -> set[str]:
        counts = Counter(name for member in self.members.values() for name in {name for name, _ in member.protocols})
        return {name for name, count in counts.items() if count == len(self.members)}

    def begin_generation(self, now_ms: int) -> None:
        self.generation_id = 1 if self.generation_id == 2**31 - 1 else self.generation_id + 1
        self.pending_sync = dict.fromkeys(self.members) if self.members else SHARED_EMPTY
        if self.members:
            self.protocol_name = self.select_protocol()
            self.step(ClassicGroupEvent.JOINED, now_ms)
        else:
            self.protocol_name = None
            self.step(ClassicGroupEvent.EMPTIED, now_ms)
        self.subscribed_topics = self._subscriptions()

    def restore(self, state: ClassicGroupState) -> None:
        """Set the fields that follow from the members, after a record was read."""
        self.state = state
        static = (member for member in self.members.values() if member.group_instance_id is not None)
        self.static_members = {str(member.group_instance_id): member.member_id for member in static} or SHARED_EMPTY
        self.subscribed_topics = self._subscriptions()

    def _subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        return _topics_of(member.metadata(self.protocol_name) for member in self.members.values())

    # Offsets

    @property
    def uses_consumer_protocol_type(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol_type
        return topic in self.subscribed_topics

    def validate_commit(
        self, member_id: str, group_instance_id: str | None, generation_id: int, *, transactional: bool
    ) -> None:
        """Refuse a commit unless its sender is a member of this generation (KIP-447 if transactional)."""
        if self.state is ClassicGroupState.DEAD:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is being removed")
        if generation_id < 0 and self.state is ClassicGroupState.EMPTY:
            return
        if generation_id >= 0 or member_id != NO_MEMBER_ID or group_instance_id is not None:
            self.validate_member(member_id, group_instance_id)
            self.validate_generation(generation_id)
        elif not transactional and self.state is not ClassicGroupState.EMPTY:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "only members may commit to a group with members")
        if not transactional and self.state is ClassicGroupState.COMPLETING_REBALANCE:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "the new generation has no assignment yet")

    def expires(self, offset: CommittedOffset, topic: str, retention_ms: int, now_ms: int) -> bool:
        """Whether an offset is expired.

        In an empty group the retention starts when it became empty. In a stable group only offsets of topics without a
        subscriber expire. During a rebalance none does, because the subscriptions are not known.
        """
        if self.protocol_type is None:
            return offset.is_expired(offset.commit_timestamp_ms, retention_ms, now_ms)
        if self.state is ClassicGroupState.EMPTY:
            # Records of old brokers lack the time at which the group became empty.
            known = self.state_timestamp_ms >= 0
            since_ms = self.state_timestamp_ms if known else offset.commit_timestamp_ms
            return offset.is_expired(since_ms, retention_ms, now_ms)
        if (
            self.state is ClassicGroupState.STABLE
            and self.subscribed_topics is not None
            and topic not in self.subscribed_topics
        ):
            return offset.is_expired(offset.commit_timestamp_ms, retention_ms, now_ms)
        return False


def _topics_of(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    topics: set[str] = set()
    for subscription in subscriptions:
        try:
            topics.update(read_subscription(subscription).topics)
        except Refused:
            # A client may send any bytes. Then the subscriptions are unknown.
            return None
    return frozenset(topics) or _NO_TOPICS

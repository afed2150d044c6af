"""A group under the classic protocol: its members, their votes and the states they go through together.

One leader, one generation, one protocol that every member supports. The members assign partitions among themselves;
the group only carries the leader's decision, so all it promises is that everybody in a generation got the same one.
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
from semel.machines.groups.idle_entries import NOTHING, with_entry, without_entry
from semel.machines.table import StateTable
from semel.wire.consumer_protocol import read_subscription

NO_MEMBER_ID = ""
CONSUMER_PROTOCOL_TYPE = "consumer"

#: (protocol name, metadata) in the member's order of preference
Protocols = tuple[tuple[str, bytes], ...]


class ClassicGroupState(enum.Enum):
    """Under the names Kafka's tools print."""

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
    """A request that waits for its answer, and the version to answer in."""

    token: Token
    version: int


class ClassicMember:
    """One consumer (or Connect worker, or anything else) as the group sees it."""

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
        #: A member not yet told its id cannot send heartbeats, so it is timed out even while its join is parked.
        self.is_new = False
        self.join: Parked | None = None
        self.sync: Parked | None = None
        #: When the session ends, or None while nothing is expected of the member.
        self.deadline_ms: int | None = None
        #: The earliest timer set for this member, so that a heartbeat need not set another.
        self.timer_at_ms: int | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """The candidate this member likes best."""
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    """The group itself. Knows the rules between its members; timers, answers and records are its coordinator's."""

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
        self.members: dict[str, ClassicMember] = NOTHING
        self.static_members: dict[str, str] = NOTHING
        #: Ids given out with MEMBER_ID_REQUIRED and not yet used, each with the time it is given up.
        self.pending_join: dict[str, int] = NOTHING
        #: Members of this generation that have not sent SyncGroup yet.
        self.pending_sync: dict[str, None] = NOTHING
        self.new_member_added = False
        #: Topics the members subscribe to; None when it cannot be known (another protocol type, unreadable metadata).
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
        """A group that only stores offsets: nobody ever joined it."""
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
        """This id was given out; whoever got it has until then to join with it."""
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
        """The same instance under a new member id, in the same place."""
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
        """The member, if it is who it says: an instance id held by a newer member id fences the older one."""
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
        """Whether a leader that has rejoined exists, electing one when the old leader has not."""
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
        """What most members like best among what all of them support."""
        invariant(self.members, "a protocol is chosen by members")
        candidates = self._candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _candidates(self) -> set[str]:
        counts = Counter(name for member in self.members.values() for name in {name for name, _ in member.protocols})
        return {name for name, count in counts.items() if count == len(self.members)}

    def begin_generation(self, now_ms: int) -> None:
        self.generation_id = 1 if self.generation_id == 2**31 - 1 else self.generation_id + 1
        self.pending_sync = dict.fromkeys(self.members) if self.members else NOTHING
        if self.members:
            self.protocol_name = self.select_protocol()
            self.step(ClassicGroupEvent.JOINED, now_ms)
        else:
            self.protocol_name = None
            self.step(ClassicGroupEvent.EMPTIED, now_ms)
        self.subscribed_topics = self._subscriptions()

    def restore(self, state: ClassicGroupState) -> None:
        """Set what follows from the members after they were read back from a record."""
        self.state = state
        static = (member for member in self.members.values() if member.group_instance_id is not None)
        self.static_members = {str(member.group_instance_id): member.member_id for member in static} or NOTHING
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
        """Refuse a commit that does not come from a member of this generation (KIP-447 when transactional)."""
        if self.state is ClassicGroupState.DEAD:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is being removed")
        if generation_id < 0 and self.state is ClassicGroupState.EMPTY:
            return
        if generation_id >= 0 or member_id != NO_MEMBER_ID or group_instance_id is not None:
            self.validate_member(member_id, group_instance_id)
            self.validate_generation(generation_id)
        elif not transactional and self.state is not ClassicGroupState.EMPTY:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "only members commit to a group that has members")
        if not transactional and self.state is ClassicGroupState.COMPLETING_REBALANCE:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "the new generation has no assignment yet")

    def expires(self, offset: CommittedOffset, topic: str, retention_ms: int, now_ms: int) -> bool:
        """Whether an offset is past its time.

        In an empty group the clock starts when it became empty; in a stable one only topics nobody subscribes to
        grow old; during a rebalance nothing does, for the members' subscriptions are not known then.
        """
        if self.protocol_type is None:
            return offset.expired(offset.commit_timestamp_ms, retention_ms, now_ms)
        if self.state is ClassicGroupState.EMPTY:
            # Records of old brokers do not say when the group became empty.
            known = self.state_timestamp_ms >= 0
            since_ms = self.state_timestamp_ms if known else offset.commit_timestamp_ms
            return offset.expired(since_ms, retention_ms, now_ms)
        if (
            self.state is ClassicGroupState.STABLE
            and self.subscribed_topics is not None
            and topic not in self.subscribed_topics
        ):
            return offset.expired(offset.commit_timestamp_ms, retention_ms, now_ms)
        return False


def _topics_of(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    topics: set[str] = set()
    for subscription in subscriptions:
        try:
            topics.update(read_subscription(subscription).topics)
        except Refused:
            # A client may put anything there; then the group cannot say what it subscribes to.
            return None
    return frozenset(topics) or _NO_TOPICS

"""The member's half of the classic group protocol: join, sync, heartbeat, leave.

Guarantees: partitions are used only from the sync that assigned them until the member learns of a rebalance. An eager
member revokes all partitions before it joins. A cooperative member revokes only what was taken from it, and joins
again. A member that the group has removed drops its partitions as lost, without a commit, before it joins again. It
drops its member id only on UNKNOWN_MEMBER_ID: if it joined under a new id too early, the group would wait for the old
one until its session ends.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from semel.errors import ErrorCode, KafkaError, error_for, invariant
from semel.machines.groups.classic.assignors import ASSIGNORS, COOPERATIVE, Subscriber
from semel.machines.table import StateTable
from semel.machines.transactions.producer import GroupMetadata
from semel.machines.values import TopicPartition, by_topic
from semel.wire import encode_versioned
from semel.wire.consumer_protocol import NEWEST_VERSION, encode_assignment, read_assignment, read_subscription
from semel.wire.messages.coordinator_records import ConsumerProtocolSubscription
from semel.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

_PROTOCOL_TYPE = "consumer"


class ClassicMembershipState(enum.Enum):
    """The states of a member."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    STABLE = "stable"
    LEFT = "left"
    FAILED = "failed"


class ClassicMembershipEvent(enum.Enum):
    """What happens to a member. The value is the event's name on the page."""

    JOIN = "JoinGroup sent"
    JOINED = "JoinGroup answered"
    LEADING = "JoinGroup answered, to the leader"
    ASSIGNED = "the leader has shared the partitions out"
    SYNCED = "SyncGroup answered"
    REBALANCE = "the group rebalances"
    FORGOTTEN = "the group does not know this member, or not in this generation"
    LEAVE = "leave"
    FAIL = "refused for good"


S, E = ClassicMembershipState, ClassicMembershipEvent

#: From (state, event) to the next state; a blank cell means that the answer came too late and is ignored.
CLASSIC_MEMBERSHIP_STEPS: dict[ClassicMembershipState, dict[ClassicMembershipEvent, ClassicMembershipState]] = {
    S.UNJOINED: {
        E.JOIN: S.JOINING,
        E.REBALANCE: S.UNJOINED,
        E.FORGOTTEN: S.UNJOINED,
        E.LEAVE: S.LEFT,
        E.FAIL: S.FAILED,
    },
    S.JOINING: {
        E.JOINED: S.SYNCING,
        E.LEADING: S.ASSIGNING,
        E.REBALANCE: S.UNJOINED,
        E.FORGOTTEN: S.UNJOINED,
        E.LEAVE: S.LEFT,
        E.FAIL: S.FAILED,
    },
    S.ASSIGNING: {
        E.ASSIGNED: S.SYNCING,
        E.REBALANCE: S.UNJOINED,
        E.FORGOTTEN: S.UNJOINED,
        E.LEAVE: S.LEFT,
        E.FAIL: S.FAILED,
    },
    S.SYNCING: {
        E.SYNCED: S.STABLE,
        E.REBALANCE: S.UNJOINED,
        E.FORGOTTEN: S.UNJOINED,
        E.LEAVE: S.LEFT,
        E.FAIL: S.FAILED,
    },
    S.STABLE: {E.REBALANCE: S.UNJOINED, E.FORGOTTEN: S.UNJOINED, E.LEAVE: S.LEFT, E.FAIL: S.FAILED},
    S.LEFT: {E.JOIN: S.JOINING},
    S.FAILED: {E.LEAVE: S.LEFT},
}

CLASSIC_MEMBERSHIP_TABLE: StateTable[ClassicMembershipState, ClassicMembershipEvent, ClassicMembershipState | None] = (
    StateTable(ClassicMembershipState, ClassicMembershipEvent, CLASSIC_MEMBERSHIP_STEPS, blank=None)
)


@dataclass(slots=True)
class ClassicMembership:
    """One member of one classic group."""

    group_id: str
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000
    assignors: tuple[str, ...] = ("range", "cooperative-sticky")
    rack_id: str | None = None
    state: ClassicMembershipState = ClassicMembershipState.UNJOINED
    topics: frozenset[str] = frozenset()
    member_id: str = ""
    generation_id: int = -1
    #: The partitions this member may read: assigned by the last sync, minus those it has revoked.
    owned: frozenset[TopicPartition] = frozenset()
    #: Partitions that were lost. The caller of `poll` must be told before the next join.
    lost: frozenset[TopicPartition] = frozenset()
    error: KafkaError | None = None
    next_heartbeat_ms: int = 0
    #: The generation and member id of the last assignment.
    _assigned_as: GroupMetadata | None = None
    _protocol: str = ""
    _shares: dict[str, list[TopicPartition]] = field(default_factory=dict)
    _subscribers: list[Subscriber] = field(default_factory=list)
    _told_topics: frozenset[str] = frozenset()

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance: every assignor must allow it."""
        return all(name in COOPERATIVE for name in self.assignors)

    @property
    def metadata(self) -> GroupMetadata:
        """The group metadata for a commit: those of the last assignment.

        Kept after a rebalance or a leave, so that a late commit is refused. Without member id and generation it would
        be accepted.
        """
        return self._assigned_as or GroupMetadata(self.group_id)

    @property
    def is_stable(self) -> bool:
        return self.state is ClassicMembershipState.STABLE

    @property
    def is_alive(self) -> bool:
        """Whether heartbeats are due. Not during a join: the coordinator waits for that by itself."""
        return (
            self.state in (ClassicMembershipState.STABLE, ClassicMembershipState.UNJOINED) and self.generation_id >= 0
        )

    def subscribe(self, topics: Iterable[str]) -> None:
        """Change the subscription. The member joins again to tell the group."""
        wanted = frozenset(topics)
        if wanted != self.topics:
            self.topics = wanted
            if self.state is ClassicMembershipState.STABLE:
                self._step(ClassicMembershipEvent.REBALANCE)

    @property
    def has_news(self) -> bool:
        """Whether the subscription changed after the last JoinGroup was sent."""
        return self.topics != self._told_topics

    def rejoin(self) -> None:
        """Join again: topics have changed, or partitions were revoked."""
        if self.state is ClassicMembershipState.STABLE:
            self._step(ClassicMembershipEvent.REBALANCE)

    def to_revoke(self) -> frozenset[TopicPartition]:
        """The partitions to revoke before joining."""
        if self.is_cooperative:
            return frozenset(p for p in self.owned if p.topic not in self.topics)
        return self.owned

    def let_go(self, partitions: Iterable[TopicPartition]) -> None:
        self.owned -= frozenset(partitions)
        self.lost -= frozenset(partitions)

    # --- requests -------------------------------------------------------------------------------------------------

    def join_request(self) -> JoinGroupRequest:
        invariant(not self.to_revoke() and not self.lost, "a member revokes partitions before it joins")
        self._step(ClassicMembershipEvent.JOIN)
        self._told_topics = self.topics
        subscription = ConsumerProtocolSubscription(
            topics=sorted(self.topics),
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in by_topic(self.owned).items()
            ],
            generation_id=self.generation_id,
            rack_id=self.rack_id or None,
        )
        metadata = encode_versioned(subscription, NEWEST_VERSION)
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self.assignors
            ],
        )

    def sync_request(self) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=encode_assignment(by_topic(share))
                )
                for member_id, share in self._shares.items()
            ],
        )

    def heartbeat_request(self, now_ms: int) -> HeartbeatRequest | None:
        """A heartbeat if one is due: also while the group waits for this member to join again."""
        if not self.is_alive or now_ms < self.next_heartbeat_ms:
            return None
        self.next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
        return HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
        )

    def leave_request(self, reason: str) -> LeaveGroupRequest | None:
        """Leave the group. None if there is nothing to send: no member, or a static member, which keeps its place."""
        known = self.member_id and self.state not in (ClassicMembershipState.LEFT, ClassicMembershipState.FAILED)
        member_id = self.member_id
        if self.state is not ClassicMembershipState.LEFT:
            self._step(ClassicMembershipEvent.LEAVE)
        self.owned = self.lost = frozenset()
        self.member_id, self.generation_id = "", -1
        if not known or self.group_instance_id is not None:
            return None
        return LeaveGroupRequest(
            group_id=self.group_id,
            member_id=member_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=reason)],
        )

    # --- answers --------------------------------------------------------------------------------------------------

    def on_join(self, response: Any) -> None:
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self._step(ClassicMembershipEvent.REBALANCE)
        elif code is not ErrorCode.NONE:
            self._on_error(code, "joining")
        else:
            self.member_id, self.generation_id = response.member_id, response.generation_id
            self._protocol = response.protocol_name or ""
            self._shares, self._subscribers = {}, []
            leads = response.leader == response.member_id and not response.skip_assignment
            if leads:
                self._subscribers = [_subscriber(row) for row in response.members]
            self._step(ClassicMembershipEvent.LEADING if leads else ClassicMembershipEvent.JOINED)

    def topics_to_assign(self) -> frozenset[str]:
        """As leader: every subscribed topic. The caller looks up their partition counts."""
        return frozenset(topic for member in self._subscribers for topic in member.topics)

    def assign(self, partition_counts: Mapping[str, int]) -> None:
        """As leader: assign the partitions with the assignor that the group agreed on."""
        self._shares = ASSIGNORS[self._protocol](self._subscribers, partition_counts)
        self._step(ClassicMembershipEvent.ASSIGNED)

    def on_sync(self, response: Any, now_ms: int) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        """Take the assignment: (added, to be revoked). After a revocation the member joins again."""
        code = ErrorCode.of(response.error_code)
        nothing: frozenset[TopicPartition] = frozenset()
        if self.state is not ClassicMembershipState.SYNCING:
            return nothing, nothing
        if code is not ErrorCode.NONE:
            self._on_error(code, "syncing")
            return nothing, nothing
        self._step(ClassicMembershipEvent.SYNCED)
        self._assigned_as = GroupMetadata(self.group_id, self.generation_id, self.member_id, self.group_instance_id)
        self.next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
        given = _partitions_of(response.assignment)
        added, gone = given - self.owned, self.owned - given
        self.owned = given | gone
        return added, gone

    def on_heartbeat(self, response: Any) -> None:
        code = ErrorCode.of(response.error_code)
        if not self.is_alive:
            return  # sent before the join that is in progress, whose answer is newer
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._step(ClassicMembershipEvent.REBALANCE)
        elif code is not ErrorCode.NONE and not code.retriable:
            self._on_error(code, "a heartbeat")

    def on_commit_refused(self, code: ErrorCode, committed_as: GroupMetadata) -> None:
        """A commit was refused because the group has rebalanced.

        This matters only to a stable member, and only for its current generation. A member that is joining learns more
        from the answer to its join, and must not drop that.
        """
        if self.state is not ClassicMembershipState.STABLE or committed_as != self.metadata:
            return
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._step(ClassicMembershipEvent.REBALANCE)
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
            self._on_error(code, "a commit")

    def on_silence(self) -> None:
        """No answer from the coordinator for a session timeout: the group has probably removed this member."""
        if self.is_alive:
            self._lose()

    def on_poll_interval_passed(self) -> LeaveGroupRequest | None:
        """The user has not polled in time: leave, so that others get the partitions. The next poll joins again."""
        owned = self.owned
        request = self.leave_request("no poll within max.poll.interval.ms")
        self.state, self.owned, self.lost = ClassicMembershipState.UNJOINED, owned, owned
        return request

    def on_disconnect(self) -> None:
        """No answer to a join or a sync: start again."""
        if self.state in (
            ClassicMembershipState.JOINING,
            ClassicMembershipState.SYNCING,
            ClassicMembershipState.ASSIGNING,
        ):
            self._step(ClassicMembershipEvent.REBALANCE)

    def _on_error(self, code: ErrorCode, doing: str) -> None:
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            # A static member is known by its instance id, and gets a member id by joining.
            self.member_id = ""
            self._lose()
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self._lose()
        elif code is ErrorCode.REBALANCE_IN_PROGRESS or code.retriable:
            self._step(ClassicMembershipEvent.REBALANCE)
        else:
            self.error = error_for(code, f"{doing} as a member of group '{self.group_id}': {code.meaning}")
            self.lost |= self.owned
            self._step(ClassicMembershipEvent.FAIL)

    def _lose(self) -> None:
        """Other members may have the partitions now. Keep the member id: the group may still know it."""
        self.lost |= self.owned
        self.generation_id = -1
        self._step(ClassicMembershipEvent.FORGOTTEN)

    def _step(self, event: ClassicMembershipEvent) -> None:
        following = CLASSIC_MEMBERSHIP_TABLE.step(self.state, event)
        if following is not None:
            self.state = following


def _subscriber(row: Any) -> Subscriber:
    told = read_subscription(row.metadata)
    owned = frozenset(TopicPartition(t.topic, number) for t in told.owned_partitions for number in t.partitions)
    return Subscriber(row.member_id, frozenset(told.topics), row.group_instance_id, owned, told.generation_id)


def _partitions_of(assignment: bytes) -> frozenset[TopicPartition]:
    if not assignment:
        return frozenset()
    told = read_assignment(assignment)
    return frozenset(TopicPartition(t.topic, number) for t in told.assigned_partitions for number in t.partitions)

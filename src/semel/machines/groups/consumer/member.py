"""The member's half of the consumer protocol (KIP-848): one heartbeat request joins, confirms and leaves.

Guarantees: partitions that the coordinator takes away are revoked before new ones are taken on, and the next heartbeat
confirms both. A fenced member drops its partitions as lost, without a commit, and joins again under its own id. After a
heartbeat without an answer the next one repeats everything, because it is unknown what arrived.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from semel.errors import ErrorCode, KafkaError, error_for
from semel.machines.table import StateTable
from semel.machines.transactions.producer import GroupMetadata
from semel.machines.values import TopicPartition, by_topic
from semel.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2


class ConsumerMembershipState(enum.Enum):
    """The states of a member."""

    IDLE = "not subscribed"
    JOINING = "joining"
    MEMBER = "a member"
    FAILED = "failed"


class ConsumerMembershipEvent(enum.Enum):
    """What happens to a member. The value is the event's name on the page."""

    SUBSCRIBE = "subscribe"
    ACCEPTED = "heartbeat answered"
    FENCED = "fenced"
    LEAVE = "leave"
    FAIL = "refused for good"


S, E = ConsumerMembershipState, ConsumerMembershipEvent

#: From (state, event) to the next state; a blank cell means that the answer came too late and is ignored.
CONSUMER_MEMBERSHIP_STEPS: dict[ConsumerMembershipState, dict[ConsumerMembershipEvent, ConsumerMembershipState]] = {
    S.IDLE: {E.SUBSCRIBE: S.JOINING},
    S.JOINING: {
        E.SUBSCRIBE: S.JOINING,
        E.ACCEPTED: S.MEMBER,
        E.FENCED: S.JOINING,
        E.LEAVE: S.IDLE,
        E.FAIL: S.FAILED,
    },
    S.MEMBER: {
        E.SUBSCRIBE: S.MEMBER,
        E.ACCEPTED: S.MEMBER,
        E.FENCED: S.JOINING,
        E.LEAVE: S.IDLE,
        E.FAIL: S.FAILED,
    },
    S.FAILED: {E.LEAVE: S.IDLE},
}

CONSUMER_MEMBERSHIP_TABLE: StateTable[
    ConsumerMembershipState, ConsumerMembershipEvent, ConsumerMembershipState | None
] = StateTable(ConsumerMembershipState, ConsumerMembershipEvent, CONSUMER_MEMBERSHIP_STEPS, blank=None)

_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)

Share = frozenset[tuple[UUID, int]]


@dataclass(slots=True)
class ConsumerMembership:
    """One member of one group. The coordinator assigns the partitions."""

    group_id: str
    #: Chosen by the client once.
    member_id: str
    group_instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = 300_000
    server_assignor: str | None = None
    state: ConsumerMembershipState = ConsumerMembershipState.IDLE
    topics: frozenset[str] = frozenset()
    member_epoch: int = JOIN_EPOCH
    #: The partitions that the coordinator has assigned to this member.
    target: Share = frozenset()
    owned: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()
    error: KafkaError | None = None
    heartbeat_interval_ms: int = 3_000
    next_heartbeat_ms: int = 0
    _topic_ids: dict[str, UUID] = field(default_factory=dict)
    _told_topics: frozenset[str] | None = None
    _told_owned: frozenset[TopicPartition] | None = None
    _last_epoch: int = -1
    _in_flight: bool = False

    @property
    def metadata(self) -> GroupMetadata:
        """The group metadata for a commit. It keeps the last epoch after the membership ended, to be refused then."""
        return GroupMetadata(self.group_id, self._last_epoch, self.member_id, self.group_instance_id)

    def subscribe(self, topics: Iterable[str]) -> None:
        self.topics = frozenset(topics)
        self._step(ConsumerMembershipEvent.SUBSCRIBE)

    # --- the assignment -------------------------------------------------------------------------------------------

    def wanted(self, topic_names: Mapping[UUID, str]) -> frozenset[TopicPartition]:
        """The assigned partitions. Topics whose name is not known yet are left out."""
        for topic_id, _ in self.target:
            if topic_id in topic_names:
                self._topic_ids[topic_names[topic_id]] = topic_id
        return frozenset(
            TopicPartition(topic_names[topic_id], number) for topic_id, number in self.target if topic_id in topic_names
        )

    def unnamed(self, topic_names: Mapping[UUID, str]) -> bool:
        """Whether the assignment has topic ids whose names are not known yet."""
        return any(topic_id not in topic_names for topic_id, _ in self.target)

    def take_on(self, partitions: Iterable[TopicPartition]) -> None:
        self.owned |= frozenset(partitions)

    def let_go(self, partitions: Iterable[TopicPartition]) -> None:
        self.owned -= frozenset(partitions)
        self.lost -= frozenset(partitions)

    # --- requests and answers -------------------------------------------------------------------------------------

    def heartbeat_request(self, now_ms: int) -> ConsumerGroupHeartbeatRequest | None:
        """A heartbeat if one is due, or if something changed. It holds only what changed."""
        if (
            self._in_flight
            or self.state not in (ConsumerMembershipState.JOINING, ConsumerMembershipState.MEMBER)
            or self.lost
        ):
            return None
        joining = self.state is ConsumerMembershipState.JOINING
        news = self._told_topics != self.topics or self._told_owned != self.owned
        if now_ms < self.next_heartbeat_ms and not (news and self._told_owned is not None):
            return None
        self._in_flight = True
        whole = joining or self._told_topics is None
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=JOIN_EPOCH if joining else self.member_epoch,
            instance_id=self.group_instance_id,
        )
        if whole:
            request.rack_id = self.rack_id or None
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
            request.server_assignor = self.server_assignor
        if whole or self._told_topics != self.topics:
            request.subscribed_topic_names = sorted(self.topics)
        if whole or self._told_owned != self.owned:
            request.topic_partitions = [] if joining else self._owned_by_id()
        self._told_topics, self._told_owned = self.topics, self.owned
        return request

    def _owned_by_id(self) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        return [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self._topic_ids[topic], partitions=listed)
            for topic, listed in by_topic(self.owned).items()
        ]

    def on_response(self, response: Any, now_ms: int, backoff_ms: int) -> ErrorCode:
        """Take an answer. Returns its error code, so that the caller can look up the coordinator again."""
        self._in_flight = False
        code = ErrorCode.of(response.error_code)
        if self.state not in (ConsumerMembershipState.JOINING, ConsumerMembershipState.MEMBER):
            return code
        if code is ErrorCode.NONE:
            self._step(ConsumerMembershipEvent.ACCEPTED)
            self.member_epoch = self._last_epoch = response.member_epoch
            self.heartbeat_interval_ms = response.heartbeat_interval_ms or self.heartbeat_interval_ms
            self.next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
            if response.assignment is not None:
                self.target = frozenset(
                    (row.topic_id, number) for row in response.assignment.topic_partitions for number in row.partitions
                )
        elif code in _FENCED or self._has_lost_its_group(code):
            self.fence()
        elif code.retriable:
            self._say_all_again(now_ms + backoff_ms)
        else:
            why = response.error_message or code.meaning
            self.error = error_for(code, f"a heartbeat as a member of group '{self.group_id}': {why}")
            self.lost |= self.owned
            self._step(ConsumerMembershipEvent.FAIL)
        return code

    def _has_lost_its_group(self, code: ErrorCode) -> bool:
        """Whether the brokers have forgotten the group, as after a loss of their data. A join makes it again."""
        return code is ErrorCode.GROUP_ID_NOT_FOUND and self.state is ConsumerMembershipState.MEMBER

    def on_no_answer(self, now_ms: int, backoff_ms: int) -> None:
        """No answer: it is unknown whether the heartbeat arrived."""
        self._in_flight = False
        self._say_all_again(now_ms + backoff_ms)

    def fence(self) -> None:
        """The group has removed this member and given its partitions to others."""
        self.lost |= self.owned
        self.target = frozenset()
        self.member_epoch = JOIN_EPOCH
        self._say_all_again(0)
        self._step(ConsumerMembershipEvent.FENCED)

    def on_commit_refused(self, code: ErrorCode, committed_as: GroupMetadata) -> None:
        """A commit was refused because the group has changed. Ignored if it was made in an older epoch."""
        if self.state is not ConsumerMembershipState.MEMBER or committed_as != self.metadata:
            return
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            self.next_heartbeat_ms = 0  # the next answer brings the new epoch
        elif code in _FENCED:
            self.fence()

    def leave_request(self) -> ConsumerGroupHeartbeatRequest | None:
        """The last heartbeat; None if this is no member."""
        was_member = self.state is ConsumerMembershipState.MEMBER
        self._step(ConsumerMembershipEvent.LEAVE)
        self.owned = self.lost = frozenset()
        self.target = frozenset()
        self.member_epoch = JOIN_EPOCH
        self._say_all_again(0)
        if not was_member:
            return None
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=LEAVE_EPOCH if self.group_instance_id is None else STATIC_LEAVE_EPOCH,
            instance_id=self.group_instance_id,
        )

    def _say_all_again(self, at_ms: int) -> None:
        self._told_topics = self._told_owned = None
        self.next_heartbeat_ms = at_ms

    def _step(self, event: ConsumerMembershipEvent) -> None:
        following = CONSUMER_MEMBERSHIP_TABLE.step(self.state, event)
        if following is not None:
            self.state = following

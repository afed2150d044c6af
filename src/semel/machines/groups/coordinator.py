"""The group coordinator: members, assignments and committed offsets.

Guarantees:

- A partition has one owner per generation.
- A commit from a stale generation, member or epoch is refused.
- An offset that is committed in a transaction is visible if and only if the transaction commits.
- No decision is visible before it is written. Stored state changes by `replay` alone.

It fulfils `machines.contract.Coordinator`. Its one effect is `AnswerParked`. What is not stored (parked joins and
syncs, sessions, timers, the members of a classic group between two generations) is lost with a restart, and the members
join again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from semel.errors import ErrorCode, Refused
from semel.machines.contract import AT_ONCE, AnswerParked, Decision, Effect, StateRecord, Steps, Token, run_all
from semel.machines.groups import views as group_views
from semel.machines.groups.classic.group import ClassicGroup, ClassicGroupState, Parked
from semel.machines.groups.classic.rebalance import ClassicRebalance, end_all_parked, refuse_join
from semel.machines.groups.committed_offsets import CommittedOffsets
from semel.machines.groups.consumer.classic_members import ClassicMembers
from semel.machines.groups.consumer.group import ConsumerGroup
from semel.machines.groups.consumer.heartbeat import ConsumerRebalance
from semel.machines.groups.offsets import GroupOffsets
from semel.machines.groups.records import group_tombstone, read
from semel.machines.groups.registry import (
    DecisionDraft,
    Group,
    GroupRegistry,
    GroupSettings,
    GroupTimeouts,
    MaySee,
    TopicInfo,
    TopicsView,
)
from semel.machines.groups.replay import GroupReplay
from semel.machines.internal_topics import after_failed_append
from semel.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from semel.wire.messages.coordinator_records import ConsumerGroupMetadataKey, GroupMetadataKey, OffsetCommitKey
from semel.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from semel.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from semel.wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

__all__ = ["GroupCoordinator", "GroupSettings", "TopicInfo", "TopicsView"]

Result = TypeVar("Result")

#: From this version on a member names in SyncGroup the protocol that was chosen.
PROTOCOL_NAMED_SINCE = 5
#: The most tombstones in one decision of the retention check.
_EXPIRED_AT_ONCE = 500


class GroupCoordinator:
    """All groups whose partition of `__consumer_offsets` this broker leads."""

    __slots__ = (
        "_answers",
        "_check_offsets_at_ms",
        "_classic",
        "_classic_members",
        "_consumer",
        "_now_ms",
        "_offset_requests",
        "_offsets",
        "_registry",
        "_replay",
    )

    def __init__(self, settings: GroupSettings | None = None, topics: TopicsView | None = None) -> None:
        self._registry = GroupRegistry(settings or GroupSettings())
        self._registry.topics = topics
        self._offsets = CommittedOffsets()
        self._offset_requests = GroupOffsets(self._registry, self._offsets)
        self._classic = ClassicRebalance(self._registry)
        self._consumer = ConsumerRebalance(self._registry)
        self._classic_members = ClassicMembers(self._registry, self._consumer)
        self._replay = GroupReplay(self._registry, self._offsets, self._classic)
        #: Answers from `replay` and `append_failed`. The next tick, which is due at once, hands them out.
        self._answers: list[Effect] = []
        self._check_offsets_at_ms: int | None = None
        self._now_ms = 0

    @property
    def settings(self) -> GroupSettings:
        return self._registry.settings

    @property
    def groups(self) -> dict[str, Group]:
        """The groups by id. To be read only."""
        return self._registry.groups

    @property
    def offsets(self) -> CommittedOffsets:
        """The committed and pending offsets. To be read only."""
        return self._offsets

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that stores a group."""
        return self._registry.partition_for(group_id)

    def set_timeouts(self, group_id: str, timeouts: GroupTimeouts | None) -> None:
        """Give a group its own timeouts, from its members' next heartbeats on. None restores the broker's."""
        if timeouts is None:
            self._registry.own_timeouts.pop(group_id, None)
        else:
            self._registry.own_timeouts[group_id] = timeouts

    # The classic protocol

    def join_group(
        self,
        request: JoinGroupRequest,
        version: int,
        now_ms: int,
        token: Token,
        client_id: str,
        client_host: str,
        new_member_id: Callable[[], str],
        may_see: MaySee | None = None,
    ) -> Decision[JoinGroupResponse]:
        """Join a member. `new_member_id` returns the unique part of a member id, a UUID.

        `may_see` says which topics the client may see; None where that is all of them.
        """
        self._now_ms = now_ms
        out = DecisionDraft()
        try:
            self._require(request.group_id)
            if not (
                self.settings.group_min_session_timeout_ms
                <= request.session_timeout_ms
                <= self.settings.group_max_session_timeout_ms
            ):
                raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT, f"{request.session_timeout_ms} ms")
            existing = self._registry.groups.get(request.group_id)
            if isinstance(existing, ConsumerGroup) and existing.members:
                mixed = self._classic_members.join(
                    existing, request, version, now_ms, client_id, client_host, new_member_id, out, may_see
                )
                return cast("Decision[JoinGroupResponse]", out.decision(mixed))
            created = not isinstance(existing, ClassicGroup)
            if created and request.member_id:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group_id} does not exist")
            if isinstance(existing, ConsumerGroup):
                # It has no members, so it may change its protocol.
                out.records += self._group_tombstones(existing)
            group = existing if isinstance(existing, ClassicGroup) else ClassicGroup(request.group_id, now_ms)
            self._classic.join(
                group, request, Parked(token, version), now_ms, client_id, client_host, new_member_id, out
            )
        except Refused as refused:
            return Decision(refuse_join(refused.code, version, request.member_id))
        if created:
            # A new group is written at once, so that a restart knows it.
            self._classic.create(group, out)
        return cast("Decision[JoinGroupResponse]", out.decision(token=token))

    def sync_group(
        self, request: SyncGroupRequest, version: int, now_ms: int, token: Token
    ) -> Decision[SyncGroupResponse]:
        self._now_ms = now_ms
        out = DecisionDraft()
        try:
            if version >= PROTOCOL_NAMED_SINCE and (request.protocol_type is None or request.protocol_name is None):
                raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "protocol type and name are needed")
            group = self._group_of_members(request.group_id)
            if isinstance(group, ConsumerGroup):
                return Decision(self._classic_members.sync(group, request, now_ms))
            self._classic.sync(group, request, Parked(token, version), now_ms, out)
        except Refused as refused:
            return Decision(SyncGroupResponse(error_code=refused.code))
        return cast("Decision[SyncGroupResponse]", out.decision(token=token))

    def heartbeat(self, request: HeartbeatRequest, version: int, now_ms: int) -> Decision[HeartbeatResponse]:
        self._now_ms = now_ms
        try:
            group = self._group_of_members(request.group_id)
            if isinstance(group, ConsumerGroup):
                return Decision(HeartbeatResponse(error_code=self._classic_members.heartbeat(group, request, now_ms)))
            return Decision(HeartbeatResponse(error_code=self._classic.heartbeat(group, request, now_ms)))
        except Refused as refused:
            # While the group is loaded nobody is missed: its members' time begins when that is over. Kafka says nothing
            # of it either, and aiokafka takes it for the end of its membership.
            is_loading = refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return Decision(HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else refused.code))

    def leave_group(self, request: LeaveGroupRequest, version: int, now_ms: int) -> Decision[LeaveGroupResponse]:
        self._now_ms = now_ms
        members = request.members if version >= 3 else [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        out = DecisionDraft()
        try:
            group = self._group_of_members(request.group_id)
            leaving = self._classic_members if isinstance(group, ConsumerGroup) else self._classic
            results = leaving.leave(group, members, now_ms, out)  # type: ignore[arg-type]
        except Refused as refused:
            if refused.code is not ErrorCode.UNKNOWN_MEMBER_ID:
                return Decision(LeaveGroupResponse(error_code=refused.code))
            results = [
                LeaveGroupResponse.MemberResponse(
                    member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=refused.code
                )
                for member in members
            ]
        reply = LeaveGroupResponse(members=results)
        if version < 3:
            reply = LeaveGroupResponse(error_code=results[0].error_code)
        return cast("Decision[LeaveGroupResponse]", out.decision(reply))

    # The consumer protocol

    def consumer_group_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        now_ms: int,
        client_id: str,
        client_host: str,
        new_member_id: Callable[[], str],
        may_see: MaySee | None = None,
    ) -> Decision[ConsumerGroupHeartbeatResponse]:
        self._now_ms = now_ms
        out = DecisionDraft()
        try:
            if not request.group_id:
                raise Refused(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
            self._registry.require_served(request.group_id)
            reply = self._consumer.heartbeat(
                request, version, now_ms, client_id, client_host, new_member_id, out, may_see
            )
        except Refused as refused:
            return Decision(ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=refused.why))
        return cast("Decision[ConsumerGroupHeartbeatResponse]", out.decision(reply))

    # Offsets

    def offset_commit(self, request: OffsetCommitRequest, version: int, now_ms: int) -> Decision[OffsetCommitResponse]:
        self._now_ms = now_ms

        def heard_from(group: ClassicGroup, member_id: str) -> None:
            member = group.members[member_id]
            self._classic.expect(group, member, now_ms + member.session_timeout_ms)

        return self._offset_requests.commit(request, version, now_ms, heard_from)

    def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, version: int, now_ms: int
    ) -> Decision[TxnOffsetCommitResponse]:
        self._now_ms = now_ms
        return self._offset_requests.txn_commit(request, version, now_ms)

    def complete_transaction(self, producer_id: int, partition: int, commit: bool) -> None:
        """A marker is in this partition of `__consumer_offsets`: commit or drop the producer's pending offsets."""
        self._offsets.complete(partition, producer_id, commit=commit)

    def offset_fetch(self, request: OffsetFetchRequest, version: int, now_ms: int) -> Decision[OffsetFetchResponse]:
        return Decision(run_all(self.fetch_offsets_in_steps(request, version)))

    def fetch_offsets_in_steps(self, request: OffsetFetchRequest, version: int) -> Steps[OffsetFetchResponse]:
        """`offset_fetch` in steps. What it returns of one group was true at one moment."""
        return self._offset_requests.fetch(request, version)

    def offset_delete(self, request: OffsetDeleteRequest, version: int, now_ms: int) -> Decision[OffsetDeleteResponse]:
        return self._offset_requests.delete(request)

    # Administration

    def delete_groups(self, request: DeleteGroupsRequest, version: int, now_ms: int) -> Decision[DeleteGroupsResponse]:
        records: list[StateRecord] = []
        results = []
        for group_id in request.groups_names:
            code = ErrorCode.NONE
            try:
                group = self._existing(group_id)
                if group.members or (isinstance(group, ClassicGroup) and group.state is not ClassicGroupState.EMPTY):
                    raise Refused(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members")
                records += self._end_of_group(group)
            except Refused as refused:
                code = refused.code
            results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code))
        return Decision(DeleteGroupsResponse(results=results), tuple(records))

    def describe_groups(
        self, request: DescribeGroupsRequest, version: int, now_ms: int
    ) -> Decision[DescribeGroupsResponse]:
        groups = []
        for group_id in request.groups:
            try:
                group = self._existing(group_id)
                if not isinstance(group, ClassicGroup):
                    raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
                groups.append(group_views.classic_description(group))
            except Refused as refused:
                groups.append(group_views.missing_description(group_id, refused.code, refused.why, version))
        return Decision(DescribeGroupsResponse(groups=groups))

    def consumer_group_describe(
        self, request: ConsumerGroupDescribeRequest, version: int, now_ms: int
    ) -> Decision[ConsumerGroupDescribeResponse]:
        groups = []
        for group_id in request.group_ids:
            try:
                if not group_id:
                    raise Refused(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
                group = self._existing(group_id)
                if not isinstance(group, ConsumerGroup):
                    raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
                assignor = self._consumer.assignor_name(group.members.values())
                groups.append(group_views.consumer_description(group, assignor, self._registry.topic_name))
            except Refused as refused:
                groups.append(
                    ConsumerGroupDescribeResponse.DescribedGroup(
                        error_code=refused.code, error_message=refused.why, group_id=group_id
                    )
                )
        return Decision(ConsumerGroupDescribeResponse(groups=groups))

    def list_groups(self, request: ListGroupsRequest, version: int, now_ms: int) -> Decision[ListGroupsResponse]:
        return Decision(run_all(self.list_groups_in_steps(request)))

    def list_groups_in_steps(self, request: ListGroupsRequest) -> Steps[ListGroupsResponse]:
        """`list_groups` in steps."""
        if self._registry.loading:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {wanted.lower() for wanted in request.states_filter}
        types = {wanted.lower() for wanted in request.types_filter}
        listed = []
        for number, group in enumerate(list(self._registry.groups.values())):
            if (found := group_views.list_row(group, states, types)) is not None:
                listed.append(found)
            if number % AT_ONCE == 0:
                yield
        return ListGroupsResponse(groups=listed)

    # Time

    def tick(self, now_ms: int) -> list[Decision[Any]]:
        """Do what is due: end sessions, complete rebalances, expire offsets."""
        self._now_ms = now_ms
        decisions: list[Decision[Any]] = []
        if self._answers:
            decisions.append(Decision(None, effects=tuple(self._answers)))
            self._answers = []
        changing: set[str] = set()
        later = []
        for timer in self._registry.timers.due(now_ms):
            group = self._registry.groups.get(timer.group_id)
            out = DecisionDraft()
            if isinstance(group, ClassicGroup):
                self._classic.on_timer(group, timer, now_ms, out)
            elif timer.group_id in changing:
                # A consumer group changes by replay alone: its next change has to wait for that.
                later.append(timer)
            else:
                self._consumer.on_timer(group, timer, now_ms, out)
                if out.records:
                    changing.add(timer.group_id)
            if out.records or out.effects:
                decisions.append(out.decision())
        for timer in later:
            self._registry.timers.set(timer.at_ms, timer.kind, timer.group_id, timer.member_id)
        if self._check_offsets_at_ms is not None and self._check_offsets_at_ms <= now_ms:
            self._check_offsets_at_ms = now_ms + self.settings.offsets_retention_check_interval_ms
            decisions += self._expire_offsets(now_ms)
        return decisions

    def next_wake_ms(self) -> int | None:
        """When `tick` has something to do next. A time in the past means now, None means nothing is due."""
        if self._answers:
            return self._now_ms
        times = [at for at in (self._registry.timers.next_at_ms, self._check_offsets_at_ms) if at is not None]
        return min(times, default=None)

    def _expire_offsets(self, now_ms: int) -> list[Decision[Any]]:
        decisions: list[Decision[Any]] = []
        records: list[StateRecord] = []
        for group in self._registry.groups.values():
            if not self._registry.is_loaded(self.partition_for(group.group_id)):
                continue
            expired, nothing_left = self._offset_requests.expired_tombstones(group, now_ms)
            records += expired
            if nothing_left and not group.members and self._is_idle(group):
                records += self._group_tombstones(group)
            if len(records) >= _EXPIRED_AT_ONCE:
                decisions.append(Decision(None, tuple(records)))
                records = []
        if records:
            decisions.append(Decision(None, tuple(records)))
        return decisions

    @staticmethod
    def _is_idle(group: Group) -> bool:
        return not isinstance(group, ClassicGroup) or (
            group.state is ClassicGroupState.EMPTY and not group.pending_join
        )

    def topics_changed(self, topics: TopicsView, now_ms: int) -> list[Decision[Any]]:
        """Topics were created, changed or deleted. The offsets of deleted topics are deleted."""
        self._now_ms = now_ms
        before = self._registry.topics
        self._registry.topics = topics
        gone = (
            set()
            if before is None
            else {name for name, info in before.items() if name not in topics or topics[name].topic_id != info.topic_id}
        )
        if not gone:
            return []
        return [Decision(None, tuple(records)) for _, records in self._offset_requests.topic_tombstones(gone)]

    # Loading and replay

    def load(self, partition: int, coordinator_epoch: int) -> None:
        """Start to load a partition. Until `loaded`, its groups get COORDINATOR_LOAD_IN_PROGRESS."""
        self.unload(partition)
        self._registry.begin_loading(partition)

    def key_of(self, record: StateRecord) -> str:
        """The group of a record that a client wrote; `Refused` if its key is of no known type."""
        found = read(record.key, record.value)
        if found is None:
            raise Refused(ErrorCode.INVALID_RECORD, "its key is of no known type")
        key = found[0]
        return str(key.group if isinstance(key, OffsetCommitKey | GroupMetadataKey) else key.group_id)

    def replay(self, record: StateRecord) -> None:
        """Take in a written record. With a producer it belongs to a transaction that has not ended yet."""
        out = DecisionDraft()
        self._replay.replay(record, self._now_ms, out)
        self._answers += out.effects

    def loaded(self, partition: int, now_ms: int) -> list[Decision[Any]]:
        """Serve the partition. All members have a full session from now on."""
        self._now_ms = now_ms
        self._registry.finish_loading(partition)
        if self._check_offsets_at_ms is None:
            self._check_offsets_at_ms = now_ms + self.settings.offsets_retention_check_interval_ms
        decisions: list[Decision[Any]] = []
        for group in self._registry.groups_of(partition):
            if outlived := self._offset_requests.tombstones_of_recreated_topics(group):
                decisions.append(Decision(None, tuple(outlived)))
            if isinstance(group, ClassicGroup):
                out = DecisionDraft()
                for member in group.members.values():
                    self._classic.expect(group, member, now_ms + member.session_timeout_ms)
                if len(group.members) > self.settings.group_max_size:
                    self._classic.prepare_rebalance(group, now_ms, out)
                if out.records or out.effects:
                    decisions.append(out.decision())
            else:
                self._consumer.sessions.start(group, now_ms)
        return decisions

    def unload(self, partition: int) -> list[Decision[Any]]:
        """Forget a partition. Parked requests in it get NOT_COORDINATOR."""
        out = DecisionDraft()
        for group in self._registry.groups_of(partition):
            if isinstance(group, ClassicGroup):
                end_all_parked(group, ErrorCode.NOT_COORDINATOR, out)
            else:
                self._consumer.sessions.forget(group.group_id, group.members)
        gone = self._registry.drop(partition)
        self._offsets.drop_partition(partition, {group.group_id for group in gone})
        return [out.decision()] if out.effects else []

    def append_failed(self, decision: Decision[Result], code: ErrorCode) -> Result | None:
        """Drop a decision whose records could not be written. Returns the reply to send instead.

        `code` is the error of the log. Parked requests that the decision would have answered, and those that waited
        for its records, get an error from the next tick.
        """
        out = DecisionDraft()
        for effect in decision.effects:
            if isinstance(effect, AnswerParked):
                out.answer(effect.token, group_views.failed_reply(effect.reply, code))
        for record in decision.records:
            found = read(record.key, None)
            key = None if found is None else found[0]
            if isinstance(key, GroupMetadataKey):
                self._classic.drop_pending(key.group, after_failed_append(code), self._now_ms, out)
            elif isinstance(key, ConsumerGroupMetadataKey):
                group = self._registry.groups.get(key.group_id)
                if isinstance(group, ConsumerGroup):
                    group.checked_topics = None
                    self._consumer.sessions.start(group, self._now_ms)
        self._answers += out.effects
        return None if decision.reply is None else group_views.failed_reply(decision.reply, code)

    def refused_reply(self, reply: Result, code: ErrorCode) -> Result:
        """The reply to send instead: what it tells is written, but not replicated. Nothing changes here."""
        return group_views.failed_reply(reply, code)

    def set_partition_count(self, count: int) -> None:
        """How many partitions `__consumer_offsets` has, once the topic is there."""
        self._registry.set_partition_count(count)

    # Shared

    def _require(self, group_id: str) -> None:
        if not group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        self._registry.require_served(group_id)

    def _group_of_members(self, group_id: str) -> Group:
        self._require(group_id)
        group = self._registry.groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} does not exist")
        return group

    def _existing(self, group_id: str) -> Group:
        """A group to describe or delete. The group with the empty id counts: a commit can create it."""
        self._registry.require_served(group_id)
        group = self._registry.groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def _end_of_group(self, group: Group) -> list[StateRecord]:
        return self._offset_requests.tombstones(group.group_id) + self._group_tombstones(group)

    def _group_tombstones(self, group: Group) -> list[StateRecord]:
        if isinstance(group, ConsumerGroup):
            return self._consumer.records_of(group.group_id).end_of_group(group)
        return [group_tombstone(self.partition_for(group.group_id), group.group_id)]

"""The classic protocol's requests: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and the timers behind them.

Guarantees:

- A generation begins only with members that joined it.
- Its assignment is written before any member gets it.
- A request from another generation, or from a client that is no member, is refused.

The members between two generations are in memory alone. After a restart the last written generation counts, and members
that were joining join again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semel.errors import ErrorCode, Refused
from semel.machines.groups.classic.group import (
    NO_MEMBER_ID,
    ClassicGroup,
    ClassicGroupEvent,
    ClassicGroupState,
    ClassicMember,
    Parked,
    Protocols,
)
from semel.machines.groups.classic.records import empty_group_record, group_record
from semel.machines.groups.idle_entries import without_entry
from semel.machines.groups.registry import DecisionDraft, GroupRegistry, Timer
from semel.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

#: How long a new member may take to join with the id that it was given. It does so at once; its session timeout, which
#: Kafka waits for, may be half an hour, and anybody may ask for any number of ids.
JOIN_WITH_ID_WITHIN_MS = 60_000
#: How much of a client id, or of an instance id, is in a member id.
MOST_BYTES_OF_A_NAME = 255
#: How long a new member may wait in its first join. It has no id yet and cannot send heartbeats.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
#: The shortest wait for joins.
SHORTEST_WAIT_MS = 100
#: From this version on a new member gets its id first and then joins with it. So a lost answer leaves no member behind.
MEMBER_ID_REQUIRED_SINCE = 4
#: From this version on a static leader can be told to keep the current assignment.
SKIP_ASSIGNMENT_SINCE = 9

JOIN, SYNC, SESSION = "classic join", "classic sync", "classic session"


def generated_member_id(name: str, unique: str) -> str:
    """The member's name and a unique part, as in Kafka. A long name is cut: ids are kept of whoever asks for one."""
    if len(name) > MOST_BYTES_OF_A_NAME // 4:
        name = name.encode()[:MOST_BYTES_OF_A_NAME].decode(errors="ignore")
    return f"{name}-{unique}"


def refuse_join(code: ErrorCode, version: int, member_id: str = NO_MEMBER_ID) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code, member_id=member_id, protocol_name=None if version >= 7 else "", generation_id=-1
    )


@dataclass(frozen=True, slots=True)
class PendingCreation:
    """A new group, whose first record is not written yet."""

    group: ClassicGroup


@dataclass(frozen=True, slots=True)
class PendingReplacement:
    """A static member that takes the place of its former id in a stable group."""

    group: ClassicGroup
    old: ClassicMember
    new: ClassicMember


@dataclass(frozen=True, slots=True)
class PendingAssignment:
    """The assignment that the leader of a generation sent, by member id."""

    group: ClassicGroup
    assignments: dict[str, bytes]


#: A change that is decided and not yet written. Its replay applies it; if the append fails, it is dropped.
PendingChange = PendingCreation | PendingReplacement | PendingAssignment


class ClassicRebalance:
    """Serves the classic groups of a registry. Records and effects go into `out`."""

    __slots__ = ("_pending", "_registry")

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        #: Changes whose record is not replayed yet, by group id.
        self._pending: dict[str, PendingChange] = {}

    # JoinGroup

    def join(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        parked: Parked,
        now_ms: int,
        client_id: str,
        client_host: str,
        new_member_id: Callable[[], str],
        out: DecisionDraft,
    ) -> None:
        """Join a member, or give it its id first. The request is parked until the next generation begins."""
        protocols: Protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)
        member_id = request.member_id
        instance_id = request.group_instance_id
        if not self._has_room(group, member_id):
            group.remove(member_id)
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {group.group_id} is full")
        if not group.supports(request.protocol_type, protocols):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol is supported by every member")
        rebalance_timeout_ms = (
            request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
        )

        def newcomer(new_id: str) -> ClassicMember:
            return ClassicMember(
                new_id,
                instance_id,
                client_id,
                client_host,
                rebalance_timeout_ms,
                request.session_timeout_ms,
                protocols,
            )

        if member_id == NO_MEMBER_ID:
            new_id = generated_member_id(client_id if instance_id is None else instance_id, new_member_id())
            if instance_id is not None and (old_id := group.static_members.get(instance_id)) is not None:
                self._replace_static(group, group.members[old_id], newcomer(new_id), parked, now_ms, out)
            elif instance_id is None and parked.version >= MEMBER_ID_REQUIRED_SINCE:
                deadline_ms = now_ms + min(request.session_timeout_ms, JOIN_WITH_ID_WITHIN_MS)
                group.await_join(new_id, deadline_ms)
                self._registry.timers.set(deadline_ms, SESSION, group.group_id, new_id)
                out.answer(parked.token, refuse_join(ErrorCode.MEMBER_ID_REQUIRED, parked.version, new_id))
            else:
                self._add(group, newcomer(new_id), request.protocol_type, parked, now_ms, out)
            return
        if member_id in group.pending_join:
            if instance_id is not None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "a static member is never asked to join again with an id")
            self._add(group, newcomer(member_id), request.protocol_type, parked, now_ms, out)
            return
        member = group.validate_member(member_id, instance_id)
        unchanged = member.protocols == protocols
        if group.state is ClassicGroupState.EMPTY:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "the group is empty")
        if unchanged and (
            group.state is ClassicGroupState.COMPLETING_REBALANCE
            or (group.state is ClassicGroupState.STABLE and group.leader_id != member_id)
        ):
            # Its answer was lost, or nothing has changed: answer with the current generation.
            out.answer(parked.token, self._join_reply(group, member, parked.version))
            return
        self._update(member, protocols, rebalance_timeout_ms, request.session_timeout_ms, parked, out)
        self._rebalance_or_complete(group, now_ms, out)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        most = self._registry.settings.group_max_size
        if group.state is ClassicGroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            # Members that wait already stay. The limit may have been lowered, so only those that wait are counted.
            return (member is not None and member.join is not None) or group.awaiting_join < most
        return member is not None or len(group.members) < most

    def _add(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        protocol_type: str,
        parked: Parked,
        now_ms: int,
        out: DecisionDraft,
    ) -> None:
        member.is_new = True
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.previous_state is ClassicGroupState.EMPTY:
            group.new_member_added = True
        group.add(member, protocol_type)
        member.join = parked
        self.expect(group, member, now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group, now_ms, out)

    @staticmethod
    def _update(
        member: ClassicMember,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        parked: Parked,
        out: DecisionDraft,
    ) -> None:
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        if member.join is not None:
            # The member joined again on another connection. The first request is answered, though nobody may read it.
            out.answer(
                member.join.token,
                refuse_join(ErrorCode.REBALANCE_IN_PROGRESS, member.join.version, member.member_id),
            )
        member.join = parked

    def _replace_static(
        self,
        group: ClassicGroup,
        old: ClassicMember,
        new: ClassicMember,
        parked: Parked,
        now_ms: int,
        out: DecisionDraft,
    ) -> None:
        """A static member came back with a new id. The old id is fenced.

        If the group is stable and would choose the same protocol, the assignment stays and no rebalance begins.
        """
        new.assignment = old.assignment
        if group.state is ClassicGroupState.STABLE:
            after = group.with_static_replaced(old, new)
            if after.select_protocol() == group.protocol_name:
                self._pending[group.group_id] = PendingReplacement(group, old, new)
                out.records.append(group_record(self._partition(group), after))
                reply = self._join_reply(after, new, parked.version)
                if parked.version >= SKIP_ASSIGNMENT_SINCE:
                    reply.skip_assignment = after.leader_id == new.member_id
                else:
                    # A static leader that gets the old id as leader acts as a follower, and does not assign again.
                    reply.members = []
                    reply.leader = group.leader_id or ""
                out.answer(parked.token, reply)
                return
        _end_parked(old, ErrorCode.FENCED_INSTANCE_ID, out)
        group.replace_static(old, new)
        self.expect(group, new, now_ms + new.session_timeout_ms)
        new.join = parked
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(group, now_ms, out)
        else:
            self._rebalance_or_complete(group, now_ms, out)

    # Rebalancing

    def _rebalance_or_complete(self, group: ClassicGroup, now_ms: int, out: DecisionDraft) -> None:
        if group.can_rebalance:
            self.prepare_rebalance(group, now_ms, out)
        else:
            self._complete_if_all_joined(group, now_ms, out)

    def prepare_rebalance(self, group: ClassicGroup, now_ms: int, out: DecisionDraft) -> None:
        """Begin a rebalance: all members have to join again."""
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                _end_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        group.sync_deadline_ms = None
        delay_ms = self._registry.settings.group_initial_rebalance_delay_ms
        initial = group.state is ClassicGroupState.EMPTY
        group.step(ClassicGroupEvent.REBALANCE, now_ms)
        if initial:
            group.new_member_added = False
            group.join_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            if delay_ms > 0:
                self._wait_for_joins(group, now_ms + delay_ms)
            else:
                self._complete_join(group, now_ms, out)
        elif group.has_all_members_joined:
            self._complete_join(group, now_ms, out)
        else:
            self._wait_for_joins(group, now_ms + group.rebalance_timeout_ms)

    def _wait_for_joins(self, group: ClassicGroup, until_ms: int) -> None:
        group.join_deadline_ms = until_ms
        self._registry.timers.set(until_ms, JOIN, group.group_id)

    def _complete_if_all_joined(self, group: ClassicGroup, now_ms: int, out: DecisionDraft) -> None:
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is not ClassicGroupState.EMPTY
            and group.has_all_members_joined
        ):
            self._complete_join(group, now_ms, out)

    def _complete_join(self, group: ClassicGroup, now_ms: int, out: DecisionDraft) -> None:
        """Begin the next generation with the members that joined. Static members may join late."""
        group.join_deadline_ms = None
        for member in [m for m in group.members.values() if m.join is None and m.group_instance_id is None]:
            group.remove(member.member_id)
        if group.members and not group.elect_leader():
            # Wait, even if the clients' rebalance timeout is 0: else nobody could join in time.
            self._wait_for_joins(group, now_ms + max(group.rebalance_timeout_ms, SHORTEST_WAIT_MS))
            return
        group.begin_generation(now_ms)
        if group.state is ClassicGroupState.EMPTY:
            out.records.append(group_record(self._partition(group), group))
            return
        for member in group.members.values():
            if member.join is not None:
                out.answer(member.join.token, self._join_reply(group, member, member.join.version))
                member.join = None
            member.is_new = False
            self.expect(group, member, now_ms + member.session_timeout_ms)
        group.sync_deadline_ms = now_ms + group.rebalance_timeout_ms
        self._registry.timers.set(group.sync_deadline_ms, SYNC, group.group_id)

    @staticmethod
    def _join_reply(group: ClassicGroup, member: ClassicMember, version: int) -> JoinGroupResponse:
        leads = group.leader_id == member.member_id
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name if group.protocol_name is not None or version >= 7 else "",
            leader=group.leader_id or "",
            member_id=member.member_id,
            members=[
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.group_instance_id,
                    metadata=other.metadata(group.protocol_name),
                )
                for other in group.members.values()
            ]
            if leads
            else [],
        )

    # SyncGroup

    def sync(
        self, group: ClassicGroup, request: SyncGroupRequest, parked: Parked, now_ms: int, out: DecisionDraft
    ) -> None:
        member = group.validate_member(request.member_id, request.group_instance_id)
        group.validate_generation(request.generation_id)
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group's protocol type is {group.protocol_type}")
        if request.protocol_name is not None and request.protocol_name != group.protocol_name:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group chose {group.protocol_name}")
        if group.state is ClassicGroupState.EMPTY:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "the group is empty")
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance is in progress")
        group.pending_sync = without_entry(group.pending_sync, member.member_id)
        if not group.pending_sync:
            group.sync_deadline_ms = None
        if group.state is ClassicGroupState.STABLE:
            self.expect(group, member, now_ms + member.session_timeout_ms)
            out.answer(parked.token, self._sync_reply(group, member.assignment))
            return
        _end_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        member.sync = parked
        if group.leader_id == member.member_id:
            given = {assignment.member_id: bytes(assignment.assignment) for assignment in request.assignments}
            self._pending[group.group_id] = PendingAssignment(group, given)
            out.records.append(group_record(self._partition(group), group, given))
            for other in group.members.values():
                if other.sync is not None:
                    out.answer(other.sync.token, self._sync_reply(group, given.get(other.member_id, b"")))

    @staticmethod
    def _sync_reply(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            assignment=assignment,
        )

    # Replay

    def create(self, group: ClassicGroup, out: DecisionDraft) -> None:
        """Write a new group. It is registered when the record is replayed, with the members that joined it so far."""
        self._pending[group.group_id] = PendingCreation(group)
        out.records.append(empty_group_record(self._partition(group), group))

    def replay_pending(self, group_id: str, now_ms: int) -> bool:
        """The record of this group's pending change is written: apply the change. False if none is pending."""
        match self._pending.pop(group_id, None):
            case PendingCreation(group):
                self._registry.put(group)
            case PendingReplacement(group, old, new):
                group.replace_static(old, new)
                self.expect(group, new, now_ms + new.session_timeout_ms)
            case PendingAssignment(group, assignments):
                for member in group.members.values():
                    member.assignment = assignments.get(member.member_id, b"")
                    member.sync = None
                    self.expect(group, member, now_ms + member.session_timeout_ms)
                group.step(ClassicGroupEvent.ASSIGNED, now_ms)
            case None:
                return False
        return True

    def drop_pending(self, group_id: str, code: ErrorCode, now_ms: int, out: DecisionDraft) -> None:
        """The record of this group's pending change could not be written; `code` is for requests that still wait."""
        match self._pending.pop(group_id, None):
            case PendingCreation(group):
                end_all_parked(group, code, out)
            case PendingAssignment(group):
                # Those that wait for the assignment are answered by `append_failed`. The members assign again.
                for member in group.members.values():
                    member.sync = None
                self.prepare_rebalance(group, now_ms, out)

    # Heartbeat

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        member = group.validate_member(request.member_id, request.group_instance_id)
        group.validate_generation(request.generation_id)
        if group.state is ClassicGroupState.EMPTY:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "the group is empty")
        self.expect(group, member, now_ms + member.session_timeout_ms)
        return (
            ErrorCode.REBALANCE_IN_PROGRESS if group.state is ClassicGroupState.PREPARING_REBALANCE else ErrorCode.NONE
        )

    def expect(self, group: ClassicGroup, member: ClassicMember, deadline_ms: int) -> None:
        """Expect a heartbeat of the member until the deadline."""
        member.deadline_ms = deadline_ms
        if member.timer_at_ms is None or member.timer_at_ms > deadline_ms:
            member.timer_at_ms = deadline_ms
            self._registry.timers.set(deadline_ms, SESSION, group.group_id, member.member_id)

    # LeaveGroup

    def leave(
        self, group: ClassicGroup, members: list[LeaveGroupRequest.MemberIdentity], now_ms: int, out: DecisionDraft
    ) -> list[LeaveGroupResponse.MemberResponse]:
        results = []
        anybody_left = False
        for leaving in members:
            code = ErrorCode.NONE
            try:
                self._remove_leaving(group, leaving.member_id, leaving.group_instance_id, out)
                anybody_left = True
            except Refused as refused:
                code = refused.code
            results.append(
                LeaveGroupResponse.MemberResponse(
                    member_id=leaving.member_id, group_instance_id=leaving.group_instance_id, error_code=code
                )
            )
        if anybody_left:
            self._after_removal(group, now_ms, out)
        return results

    def _remove_leaving(self, group: ClassicGroup, member_id: str, instance_id: str | None, out: DecisionDraft) -> None:
        if member_id == NO_MEMBER_ID:
            # An administrator may remove a static member by its instance id alone.
            holder = None if instance_id is None else group.static_members.get(instance_id)
            if holder is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id}")
            member = group.members[holder]
        elif member_id in group.pending_join:
            group.remove(member_id)
            return
        else:
            member = group.validate_member(member_id, instance_id)
        _end_parked(member, ErrorCode.UNKNOWN_MEMBER_ID, out)
        group.remove(member.member_id)

    def _after_removal(self, group: ClassicGroup, now_ms: int, out: DecisionDraft) -> None:
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE):
            self._rebalance_or_complete(group, now_ms, out)
        else:
            self._complete_if_all_joined(group, now_ms, out)

    # Time

    def on_timer(self, group: ClassicGroup, timer: Timer, now_ms: int, out: DecisionDraft) -> None:
        if timer.kind == SESSION:
            self._session_ended(group, timer, now_ms, out)
        elif timer.kind == JOIN and group.join_deadline_ms is not None and group.join_deadline_ms <= now_ms:
            delay_ms = self._registry.settings.group_initial_rebalance_delay_ms
            if (
                group.previous_state is ClassicGroupState.EMPTY
                and group.new_member_added
                and group.join_remaining_ms > 0
            ):
                group.new_member_added = False
                wait_ms = min(delay_ms, group.join_remaining_ms)
                group.join_remaining_ms = max(group.join_remaining_ms - delay_ms, 0)
                self._wait_for_joins(group, now_ms + wait_ms)
            else:
                self._complete_join(group, now_ms, out)
        elif timer.kind == SYNC and group.sync_deadline_ms is not None and group.sync_deadline_ms <= now_ms:
            group.sync_deadline_ms = None
            for member_id in list(group.pending_sync):
                group.remove(member_id)
            self.prepare_rebalance(group, now_ms, out)

    def _session_ended(self, group: ClassicGroup, timer: Timer, now_ms: int, out: DecisionDraft) -> None:
        member_id = timer.member_id
        if member_id in group.pending_join:
            if group.pending_join[member_id] <= now_ms:
                group.pending_join = without_entry(group.pending_join, member_id)
                self._complete_if_all_joined(group, now_ms, out)
            return
        member = group.members.get(member_id)
        if member is None or member.timer_at_ms != timer.at_ms:
            return
        member.timer_at_ms = None
        if member.deadline_ms is None:
            return
        if member.deadline_ms > now_ms:
            self.expect(group, member, member.deadline_ms)
        elif not member.is_new and (member.join is not None or member.sync is not None):
            # A member with a parked request is alive. Its answer sets a new deadline.
            member.deadline_ms = None
        else:
            _end_parked(member, ErrorCode.UNKNOWN_MEMBER_ID, out)
            group.remove(member_id)
            self._after_removal(group, now_ms, out)

    def _partition(self, group: ClassicGroup) -> int:
        return self._registry.partition_for(group.group_id)

    def begin_again(self, group: ClassicGroup, now_ms: int, out: DecisionDraft) -> None:
        """The group was converted back to this protocol: its members have to join again."""
        for member in group.members.values():
            self.expect(group, member, now_ms + member.session_timeout_ms)
        self.prepare_rebalance(group, now_ms, out)


def _end_sync(member: ClassicMember, code: ErrorCode, out: DecisionDraft) -> None:
    if member.sync is not None:
        out.answer(member.sync.token, SyncGroupResponse(error_code=code))
        member.sync = None


def _end_parked(member: ClassicMember, code: ErrorCode, out: DecisionDraft) -> None:
    _end_sync(member, code, out)
    if member.join is not None:
        known_by = NO_MEMBER_ID if code == ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        out.answer(member.join.token, refuse_join(code, member.join.version, known_by))
        member.join = None


def end_all_parked(group: ClassicGroup, code: ErrorCode, out: DecisionDraft) -> None:
    """Answer all parked joins and syncs with `code`."""
    for member in group.members.values():
        _end_parked(member, code, out)

"""The deadlines of the members of consumer groups.

They are in memory alone: a new coordinator gives all members a full session. A member is overdue if it sent no
heartbeat within its session, did not revoke partitions within its rebalance timeout, or, with the classic protocol, did
not join or sync within that time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from semel.machines.groups.consumer.group import LEAVE_EPOCH, ConsumerGroup, ConsumerMember, ConsumerMemberState
from semel.machines.groups.registry import GroupRegistry, Timer

SESSION, REVOCATION, NEXT_STEP = "consumer session", "consumer revocation", "consumer next step"


@dataclass(slots=True)
class Session:
    """One member's deadlines."""

    deadline_ms: int
    #: The earliest timer of this session. A heartbeat sets no other one.
    timer_at_ms: int
    #: Until when the member must revoke its partitions, and the epoch of that request.
    revoke_by_ms: int | None = None
    revoke_epoch: int = LEAVE_EPOCH
    #: Until when a member of the classic protocol must join again or sync.
    next_step_by_ms: int | None = None


class ConsumerSessions:
    """The sessions of all members of all consumer groups."""

    __slots__ = ("_registry", "_sessions")

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        self._sessions: dict[tuple[str, str], Session] = {}

    def heard_from(self, group_id: str, member: ConsumerMember, now_ms: int) -> Session:
        """A member sent a request: start its session again, and update its revocation deadline."""
        timeout_ms = self._registry.timeouts_of(group_id).session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        deadline_ms = now_ms + timeout_ms
        key = (group_id, member.member_id)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(deadline_ms, deadline_ms)
            self._registry.timers.set(deadline_ms, SESSION, group_id, member.member_id)
        elif deadline_ms < session.timer_at_ms:
            # The group's session timeout was made shorter.
            session.timer_at_ms = deadline_ms
            self._registry.timers.set(deadline_ms, SESSION, group_id, member.member_id)
        session.deadline_ms = deadline_ms
        if member.state is not ConsumerMemberState.UNREVOKED_PARTITIONS or member.classic is not None:
            session.revoke_by_ms = None
        elif session.revoke_by_ms is None or session.revoke_epoch != member.member_epoch:
            session.revoke_epoch = member.member_epoch
            session.revoke_by_ms = now_ms + member.rebalance_timeout_ms
            self._registry.timers.set(session.revoke_by_ms, REVOCATION, group_id, member.member_id)
        return session

    def expect_next(self, group_id: str, member: ConsumerMember, session: Session, now_ms: int) -> None:
        """Expect a join or sync of a classic member within its rebalance timeout."""
        if session.next_step_by_ms is None:
            session.next_step_by_ms = now_ms + member.rebalance_timeout_ms
            self._registry.timers.set(session.next_step_by_ms, NEXT_STEP, group_id, member.member_id)

    def start(self, group: ConsumerGroup, now_ms: int) -> None:
        """Start a full session for all members of a group."""
        for member in group.members.values():
            self.heard_from(group.group_id, member, now_ms)

    def forget(self, group_id: str, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            self._sessions.pop((group_id, member_id), None)

    def is_overdue(self, timer: Timer, member: ConsumerMember | None, now_ms: int) -> bool:
        """Whether this timer is still valid and the member missed its deadline."""
        key = (timer.group_id, timer.member_id)
        session = self._sessions.get(key)
        if session is None:
            return False
        if member is None:
            del self._sessions[key]
            return False
        if timer.kind == REVOCATION:
            return (
                session.revoke_by_ms == timer.at_ms
                and member.state is ConsumerMemberState.UNREVOKED_PARTITIONS
                and member.member_epoch == session.revoke_epoch
            )
        if timer.kind == NEXT_STEP:
            return session.next_step_by_ms == timer.at_ms
        if timer.kind != SESSION or session.timer_at_ms != timer.at_ms:
            return False
        if session.deadline_ms > now_ms:
            session.timer_at_ms = session.deadline_ms
            self._registry.timers.set(session.deadline_ms, SESSION, timer.group_id, timer.member_id)
            return False
        return True

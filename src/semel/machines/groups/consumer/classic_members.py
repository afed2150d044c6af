"""Serves members that use the classic protocol in a group that was converted to the consumer protocol.

The broker assigns for them as for the others. A join carries their subscription and owned partitions, and returns a
generation, which is their member epoch. A sync returns the assignment. To make them act, a heartbeat tells them to
rejoin, as in a classic group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from semel.errors import ErrorCode, Refused
from semel.machines.groups.classic.group import CONSUMER_PROTOCOL_TYPE, Protocols
from semel.machines.groups.classic.rebalance import MEMBER_ID_REQUIRED_SINCE, refuse_join
from semel.machines.groups.consumer.group import ClassicSide, ConsumerGroup, ConsumerMember, ConsumerMemberState
from semel.machines.groups.consumer.heartbeat import ConsumerGroupDraft, ConsumerRebalance
from semel.machines.groups.migration import encode_owned, owned_of, read_embedded
from semel.machines.groups.registry import DecisionDraft, GroupRegistry, MaySee
from semel.wire.consumer_protocol import read_subscription
from semel.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


class ClassicMembers:
    """Serves the classic protocol's requests to consumer groups."""

    __slots__ = ("_consumer", "_registry")

    def __init__(self, registry: GroupRegistry, consumer: ConsumerRebalance) -> None:
        self._registry = registry
        self._consumer = consumer

    def join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        version: int,
        now_ms: int,
        client_id: str,
        client_host: str,
        new_member_id: Callable[[], str],
        out: DecisionDraft,
        may_see: MaySee | None = None,
    ) -> JoinGroupResponse:
        """Join a member. A refusal does not repeat the member id, as in Kafka."""
        try:
            return self._join(group, request, version, now_ms, client_id, client_host, new_member_id, out, may_see)
        except Refused as refused:
            out.records.clear()
            return refuse_join(refused.code, version)

    def _join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        version: int,
        now_ms: int,
        client_id: str,
        client_host: str,
        new_member_id: Callable[[], str],
        out: DecisionDraft,
        may_see: MaySee | None = None,
    ) -> JoinGroupResponse:
        protocols: Protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)
        unknown = not request.member_id
        member_id = request.member_id or new_member_id()
        if len(group.members) >= self._registry.settings.group_consumer_max_size and member_id not in group.members:
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {group.group_id} is full")
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not _supports(group, protocols):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol is supported by every classic member")
        if unknown and request.group_instance_id is None and version >= MEMBER_ID_REQUIRED_SINCE:
            return refuse_join(ErrorCode.MEMBER_ID_REQUIRED, version, member_id)
        subscription = read_embedded(read_subscription, protocols[0][1])
        draft = ConsumerGroupDraft(group)
        before = self._member(group, draft, member_id, request.group_instance_id, unknown, out)
        timeout_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
        member = replace(
            before,
            instance_id=request.group_instance_id or before.instance_id,
            rack_id=subscription.rack_id or before.rack_id,
            rebalance_timeout_ms=timeout_ms,
            subscribed_topic_names=frozenset(subscription.topics),
            subscribed_topic_regex="" if before.subscribed_topic_regex else before.subscribed_topic_regex,
            client_id=client_id,
            client_host=client_host,
            classic=ClassicSide(request.session_timeout_ms, protocols),
        )
        said = owned_of(subscription, self._registry.topics or {})
        after = self._consumer.advance(group, draft, before, member, said, now_ms, out, may_see)
        session = self._consumer.sessions.heard_from(group.group_id, after, now_ms)
        session.next_step_by_ms = None
        self._consumer.sessions.expect_next(group.group_id, after, session, now_ms)
        return JoinGroupResponse(
            member_id=after.member_id,
            generation_id=after.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocols[0][0],
        )

    def _member(
        self,
        group: ConsumerGroup,
        draft: ConsumerGroupDraft,
        member_id: str,
        instance_id: str | None,
        unknown: bool,
        out: DecisionDraft,
    ) -> ConsumerMember:
        if instance_id is None or (unknown and instance_id not in group.static_members):
            return group.members.get(member_id) or ConsumerMember(member_id)
        holder = self._consumer.static_holder(group, instance_id, member_id, must_be_same=not unknown)
        return self._consumer.replace_static(group, draft, holder, member_id, out) if unknown else holder

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, now_ms: int) -> SyncGroupResponse:
        member, classic = self._classic_member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the group's protocol type is consumer")
        if request.protocol_name not in (None, classic.protocols[0][0]):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the member joined with {classic.protocols[0][0]}")
        session = self._consumer.sessions.heard_from(group.group_id, member, now_ms)
        if group.epoch > member.member_epoch and member.state is not ConsumerMemberState.UNREVOKED_PARTITIONS:
            self._consumer.sessions.expect_next(group.group_id, member, session, now_ms)
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "the group is in a newer epoch")
        session.next_step_by_ms = None
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encode_owned(member.assigned, classic.protocols[0][1], self._registry.topics or {}),
        )

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """REBALANCE_IN_PROGRESS if the member has to rejoin: it is behind, must revoke, or can get more now."""
        member, _ = self._classic_member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        session = self._consumer.sessions.heard_from(group.group_id, member, now_ms)
        if (
            member.member_epoch < group.epoch
            or member.state is ConsumerMemberState.UNREVOKED_PARTITIONS
            or (member.state is ConsumerMemberState.UNRELEASED_PARTITIONS and not group.waits_for_release(member))
        ):
            self._consumer.sessions.expect_next(group.group_id, member, session, now_ms)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, group: ConsumerGroup, members: list[LeaveGroupRequest.MemberIdentity], now_ms: int, out: DecisionDraft
    ) -> list[LeaveGroupResponse.MemberResponse]:
        """Remove members of either protocol, by member id or by instance id."""
        gone: set[str] = set()
        results = []
        for leaving in members:
            code = ErrorCode.NONE
            try:
                if leaving.group_instance_id is None:
                    gone.add(group.member(leaving.member_id).member_id)
                else:
                    holder = self._consumer.static_holder(
                        group, leaving.group_instance_id, leaving.member_id, must_be_same=bool(leaving.member_id)
                    )
                    gone.add(holder.member_id)
            except Refused as refused:
                code = refused.code
            results.append(
                LeaveGroupResponse.MemberResponse(
                    member_id=leaving.member_id, group_instance_id=leaving.group_instance_id, error_code=code
                )
            )
        if gone:
            self._consumer.remove(group, gone, now_ms, out)
        return results

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerMember, ClassicSide]:
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = self._consumer.static_holder(group, instance_id, member_id, must_be_same=True)
        if member.classic is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} does not use the classic protocol")
        return member, member.classic


def _supports(group: ConsumerGroup, protocols: Protocols) -> bool:
    names = {name for name, _ in protocols}
    for member in group.members.values():
        if member.classic is not None:
            names &= {name for name, _ in member.classic.protocols}
    return bool(names)


def _check_generation(member: ConsumerMember, generation_id: int) -> None:
    if generation_id != member.member_epoch:
        raise Refused(
            ErrorCode.ILLEGAL_GENERATION, f"generation {generation_id}, but the member is at {member.member_epoch}"
        )

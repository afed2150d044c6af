"""One step of a member towards its target: revoke first, acknowledge, then take what is free.

A member stays in its epoch until it has let go of what the target does not give it; only then does it move to the
target's epoch, and of the target it gets what nobody else holds. That order is what keeps one owner per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from semel.machines.groups.consumer.assignors import Assignment
from semel.machines.groups.consumer.group import ConsumerMember, ConsumerMemberState, Owned

#: Whether somebody else holds a partition, or has not let go of it.
HeldByAnother = Callable[[UUID, int], bool]


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    subscribed: frozenset[UUID],
    owned: Mapping[UUID, frozenset[int]] | None,
    held_by_another: HeldByAnother,
    *,
    subscription_changed: bool,
) -> ConsumerMember:
    """The member's next state, or the member itself if it cannot move. `owned` is what it says it has, if it said."""
    if member.state is ConsumerMemberState.STABLE and member.member_epoch == target_epoch:
        return _drop_unsubscribed(member, subscribed, owned) if subscription_changed else member
    if member.state is ConsumerMemberState.UNREVOKED_PARTITIONS and _still_owns(owned, member.pending_revocation):
        return _drop_unsubscribed(member, subscribed, owned) if subscription_changed else member
    return _next(member, target_epoch, target, subscribed, owned, held_by_another)


def _next(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    subscribed: frozenset[UUID],
    owned: Mapping[UUID, frozenset[int]] | None,
    held_by_another: HeldByAnother,
) -> ConsumerMember:
    keeps: dict[UUID, dict[int, int]] = {}
    revokes: dict[UUID, dict[int, int]] = {}
    takes: dict[UUID, list[int]] = {}
    unreleased = False
    for topic_id in [*member.assigned, *(topic_id for topic_id in target if topic_id not in member.assigned)]:
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        current = member.assigned.get(topic_id, {})
        kept = {partition: epoch for partition, epoch in current.items() if partition in wanted}
        revoked = {partition: epoch for partition, epoch in current.items() if partition not in wanted}
        if kept:
            keeps[topic_id] = kept
        if revoked:
            revokes[topic_id] = revoked
        for partition in sorted(wanted - current.keys()):
            if held_by_another(topic_id, partition):
                unreleased = True
            else:
                takes.setdefault(topic_id, []).append(partition)
    if revokes and _still_owns(owned, revokes):
        return _moved(
            member,
            member.member_epoch,
            ConsumerMemberState.UNREVOKED_PARTITIONS,
            assigned=keeps,
            pending_revocation=revokes,
        )
    for topic_id, partitions in takes.items():
        keeps.setdefault(topic_id, {}).update(dict.fromkeys(partitions, target_epoch))
    state = ConsumerMemberState.UNRELEASED_PARTITIONS if unreleased else ConsumerMemberState.STABLE
    return _moved(member, target_epoch, state, assigned=keeps, pending_revocation={})


def _drop_unsubscribed(
    member: ConsumerMember, subscribed: frozenset[UUID], owned: Mapping[UUID, frozenset[int]] | None
) -> ConsumerMember:
    """The member no longer subscribes to something it has: take that back at once, without a new target."""
    dropped = {topic_id: dict(places) for topic_id, places in member.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return member
    keeps = {topic_id: places for topic_id, places in member.assigned.items() if topic_id in subscribed}
    pending = {topic_id: dict(places) for topic_id, places in member.pending_revocation.items()}
    for topic_id, places in dropped.items():
        pending.setdefault(topic_id, {}).update(places)
    if _still_owns(owned, pending):
        return _moved(
            member,
            member.member_epoch,
            ConsumerMemberState.UNREVOKED_PARTITIONS,
            assigned=keeps,
            pending_revocation=pending,
        )
    return _moved(
        member, member.member_epoch, member.state, assigned=keeps, pending_revocation=member.pending_revocation
    )


def _moved(
    member: ConsumerMember, epoch: int, state: ConsumerMemberState, *, assigned: Owned, pending_revocation: Owned
) -> ConsumerMember:
    """The epoch it had is remembered: a member that lost the answer comes back with it once more."""
    return replace(
        member,
        member_epoch=epoch,
        previous_member_epoch=member.member_epoch,
        state=state,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )


def _still_owns(owned: Mapping[UUID, frozenset[int]] | None, places: Owned) -> bool:
    """Whether the member has any of these. Not having said so means that it may."""
    if owned is None:
        return True
    return any(not partitions.isdisjoint(places.get(topic_id, {})) for topic_id, partitions in owned.items())

"""One step of a member towards its target: revoke first, then take what is free.

A member stays in its epoch until it has revoked what is not in its target. Then it moves to the target's epoch and gets
the partitions of the target that no other member holds. This order guarantees one owner per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from semel.machines.groups.consumer.assignors import Assignment
from semel.machines.groups.consumer.group import ConsumerMember, ConsumerMemberState, Owned

#: Whether another member holds a partition, or has not revoked it yet.
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
    """The member after this step, or the same object if nothing changes. `owned` is None if it was not reported."""
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
        return _member_after_step(
            member,
            member.member_epoch,
            ConsumerMemberState.UNREVOKED_PARTITIONS,
            assigned=keeps,
            pending_revocation=revokes,
        )
    for topic_id, partitions in takes.items():
        keeps.setdefault(topic_id, {}).update(dict.fromkeys(partitions, target_epoch))
    state = ConsumerMemberState.UNRELEASED_PARTITIONS if unreleased else ConsumerMemberState.STABLE
    return _member_after_step(member, target_epoch, state, assigned=keeps, pending_revocation={})


def _drop_unsubscribed(
    member: ConsumerMember, subscribed: frozenset[UUID], owned: Mapping[UUID, frozenset[int]] | None
) -> ConsumerMember:
    """Revoke partitions of topics that the member no longer subscribes to, at once and without a new target."""
    dropped = {topic_id: dict(places) for topic_id, places in member.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return member
    keeps = {topic_id: places for topic_id, places in member.assigned.items() if topic_id in subscribed}
    pending = {topic_id: dict(places) for topic_id, places in member.pending_revocation.items()}
    for topic_id, places in dropped.items():
        pending.setdefault(topic_id, {}).update(places)
    if _still_owns(owned, pending):
        return _member_after_step(
            member,
            member.member_epoch,
            ConsumerMemberState.UNREVOKED_PARTITIONS,
            assigned=keeps,
            pending_revocation=pending,
        )
    return _member_after_step(
        member, member.member_epoch, member.state, assigned=keeps, pending_revocation=member.pending_revocation
    )


def _member_after_step(
    member: ConsumerMember, epoch: int, state: ConsumerMemberState, *, assigned: Owned, pending_revocation: Owned
) -> ConsumerMember:
    """The member after a step. Its previous epoch is kept: a member that lost the answer sends it once more."""
    return replace(
        member,
        member_epoch=epoch,
        previous_member_epoch=member.member_epoch,
        state=state,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )


def _still_owns(owned: Mapping[UUID, frozenset[int]] | None, places: Owned) -> bool:
    """Whether the member may own any of these. If it did not report what it owns, it may."""
    if owned is None:
        return True
    return any(not partitions.isdisjoint(places.get(topic_id, {})) for topic_id, partitions in owned.items())

"""Who leads a partition, and who leaves its in-sync set (E2, E3, E5). One partition at a time; the rest is packing."""

from __future__ import annotations

from semel.machines.controller.image import Image
from semel.machines.replication.values import NO_LEADER, PartitionState, state_with_isr
from semel.machines.values import TopicPartition


def next_state(
    state: PartitionState, replicas: tuple[int, ...], needed: int, image: Image, *, unclean_allowed: bool = False
) -> PartitionState | None:
    """What the register should say, given who lives; None if it says so already.

    An election is due when the leader is not live, is leaving, or has restarted since (E2).
    """
    leads_on = image.is_live(state.leader) and image.broker_epoch(state.leader) == state.leader_broker_epoch
    if leads_on and image.may_lead(state.leader):
        return _without_the_dead(state, needed, image)
    elected = _elected(state, replicas, needed, image, unclean_allowed)
    if elected is not None:
        return elected
    if leads_on:
        return _without_the_dead(state, needed, image)  # it is leaving, and nobody can take over
    if state.leader == NO_LEADER:
        return None
    # The set stays as it is: each of its members has all that is committed, and the first that is back leads.
    return state._replace(leader=NO_LEADER, leader_epoch=state.leader_epoch + 1, leader_broker_epoch=-1)


def _without_the_dead(state: PartitionState, needed: int, image: Image) -> PartitionState | None:
    """A follower that is dead or leaving leaves the set, and the leader leads on under the same epoch (E3)."""
    isr = tuple(member for member in state.isr if member == state.leader or image.may_lead(member))
    # Fewer replicas may be needed than before: then nobody is eligible any more, and the leader commits again.
    none_eligible = len(isr) >= needed and bool(state.elr)
    return state_with_isr(state, isr, needed) if isr != state.isr or none_eligible else None


def _elected(
    state: PartitionState, replicas: tuple[int, ...], needed: int, image: Image, unclean_allowed: bool
) -> PartitionState | None:
    able = [broker for broker in replicas if image.may_lead(broker)]
    in_sync = tuple(member for member in state.isr if image.may_lead(member))
    for broker in able:
        if broker in in_sync:
            return led_by(broker, state_with_isr(state, in_sync, needed), image)
    eligible = next((broker for broker in able if broker in state.elr), None)
    if eligible is not None and not any(image.is_live(member) for member in state.isr):
        return led_by(eligible, state_with_isr(state, (eligible,), needed), image)
    # A broker that is leaving and has restarted leads rather than nobody.
    last = next((member for member in state.isr if image.is_live(member)), None)
    if last is not None and (last != state.leader or image.broker_epoch(last) != state.leader_broker_epoch):
        return led_by(last, state, image)
    if last is None and unclean_allowed and able:
        return led_by(able[0], state._replace(isr=(able[0],), elr=()), image)
    return None


def led_by(broker: int, state: PartitionState, image: Image) -> PartitionState:
    """Always a new leader epoch, and the life of the broker that is meant."""
    return state._replace(
        leader=broker, leader_epoch=state.leader_epoch + 1, leader_broker_epoch=image.broker_epoch(broker)
    )


def first_state(replicas: tuple[int, ...], image: Image) -> PartitionState:
    """Of a new partition: whoever lives is in sync, for there is nothing to have."""
    able = tuple(broker for broker in replicas if image.may_lead(broker))
    if not able:
        return PartitionState(NO_LEADER, 0, replicas, controller_epoch=image.controller_epoch)
    return PartitionState(able[0], 0, able, image.broker_epoch(able[0]), controller_epoch=image.controller_epoch)


def could_be_led_by_their_first(image: Image) -> tuple[TopicPartition, ...]:
    """The partitions that another than the first of their replicas leads, though that one is in sync."""
    found = []
    for partition, (state, _) in image.states.items():
        topic = image.topics.get(partition.topic)
        if topic is not None and image.may_lead(state.leader):
            first = topic.assignment.target(partition.partition)[0]
            if first != state.leader and first in state.isr and image.may_lead(first):
                found.append(partition)
    return tuple(found)


def without_unclean(state: PartitionState, broker: int, needed: int) -> PartitionState | None:
    """A broker whose machine went down uncleanly leaves the set, even as the last, and is not eligible either (E4)."""
    if broker not in state.isr and broker not in state.elr:
        return None
    left = state_with_isr(state, (member for member in state.isr if member != broker), needed, frozenset((broker,)))
    if state.leader != broker:
        return left
    return left._replace(leader=NO_LEADER, leader_epoch=state.leader_epoch + 1, leader_broker_epoch=-1)


def without_damaged(state: PartitionState, broker: int, needed: int) -> PartitionState | None:
    """A broker whose files are damaged leaves the set, and is not eligible either (E11); None where it is not in it, or
    where nobody else has what is committed."""
    if not {*state.isr, *state.elr} - {broker}:
        return None
    return without_unclean(state, broker, needed)

"""Topics of a cluster: created, grown and deleted in ZooKeeper (E7), by any broker (E10).

Every change is conditional on what was read. One that is refused is decided again with what is there now; one whose
answer is lost is told to the client as a timeout, for nobody knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from semel.cluster.session import MultiRefused, NodeExists, NoNode, ZooKeeperError
from semel.errors import ErrorCode, Refused
from semel.log.checkpoints import topic_id_text
from semel.machines.controller.admin import AddPartitions, AdminEvent, CreateTopic, DeleteTopic, check_assignment
from semel.machines.controller.decide import decide
from semel.machines.controller.placement import place
from semel.machines.znodes import paths

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.topics.topic import Topic

logger = logging.getLogger(__name__)

#: How long a creation waits until this broker knows its topic.
KNOWN_WITHIN_S = 10.0
#: Of how many deletions it is noted that there were any.
DELETIONS_KEPT = 1000
#: How often a creation is tried that others have made old.
ATTEMPTS = 10


def _brokers(membership: Membership, replication_factor: int) -> dict[int, str | None]:
    """Where replicas can be placed, with the racks: on the brokers that are there. If these are too few, also on those
    that were a moment ago, as in Kafka: a topic can be created while a broker is restarted, and is led by another."""
    brokers = {each.id: each.rack for each in membership.image.brokers.values() if each.may_lead}
    if 0 < len(brokers) < replication_factor:
        for broker, rack in membership.named_brokers.there_lately().items():
            if broker in membership.image.brokers:
                brokers.setdefault(broker, rack)
    return brokers


def placement(
    membership: Membership, name: str, count: int, replication_factor: int
) -> dict[int, tuple[int, ...]]:
    """The replicas of a new topic's partitions. Where they begin comes from the topic's name, so that topics spread."""
    brokers = _brokers(membership, replication_factor)
    start = sum(name.encode())
    return place(brokers, count, replication_factor, start=start, shift=start // max(len(brokers), 1))


async def _create_once(membership: Membership, topic: Topic, partitions: Mapping[int, tuple[int, ...]]) -> bool:
    """False if what this broker knows is old."""
    has_config = await membership.session.exists(paths.config("topics", topic.name)) is not None
    event = CreateTopic(topic.name, topic_id_text(topic.topic_id), partitions, topic.overrides, has_config)
    for number, multi in enumerate(decide(membership.image, event)):
        try:
            await membership.session.multi(multi.operations)
        except MultiRefused as refused:
            is_there = isinstance(refused.error, NodeExists)
            if is_there and multi.operations[refused.index].path == paths.topic(topic.name):
                raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} already exists") from None
            refused.raise_unless_outrun()
            # Of a large topic the controller makes what is missing.
            return number > 0
    return True


async def create(membership: Membership, topic: Topic, partitions: Mapping[int, tuple[int, ...]]) -> None:
    """Create a topic, and wait until it is known here."""
    await membership.connected()
    try:
        for _ in range(ATTEMPTS):
            if await _create_once(membership, topic, partitions):
                break
            await membership.read_again()
        else:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "brokers have come or gone meanwhile; try again")
    except ZooKeeperError as error:
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper did not answer: {error}") from None
    await known_here(membership, lambda: membership.is_known(topic.name, len(partitions)), f"topic {topic.name!r}")


async def known_here(membership: Membership, is_known: Callable[[], bool], what: str) -> None:
    """Wait until this broker knows what was changed: its client's next request is about it."""
    until_s = asyncio.get_running_loop().time() + KNOWN_WITHIN_S
    while not is_known():
        if asyncio.get_running_loop().time() > until_s:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"{what} is changed; it is not known here yet")
        await membership.changed()


async def carry_out(membership: Membership, event: AdminEvent) -> None:
    """Decide and write what an administrator asks for. `Refused` says why it cannot be."""
    has_begun = False
    await membership.connected()
    try:
        for _ in range(ATTEMPTS):
            try:
                for multi in decide(membership.image, event):
                    await membership.session.multi(multi.operations)
                    has_begun = True
                return
            except MultiRefused as refused:
                refused.raise_unless_outrun()
                await membership.read_again()
            except Refused:
                if has_begun:
                    return  # the first piece is written, and what follows from it is the controller's
                raise
    except ZooKeeperError as error:
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper did not answer: {error}") from None
    raise Refused(ErrorCode.REQUEST_TIMED_OUT, "others are changing the same; try again")


async def delete(membership: Membership, topic: Topic) -> None:
    """Delete a topic. Its data goes on every broker that holds a replica, on one that is away when it is back."""
    await carry_out(membership, DeleteTopic(topic.name))
    with suppress(ZooKeeperError):  # it is deleted; whoever deletes the next one tidies up
        await _forget_old_deletions(membership)
    await known_here(membership, lambda: not membership.has_topic(topic), f"topic {topic.name!r}")


async def _forget_old_deletions(membership: Membership) -> None:
    """A broker that was away for longer sets the data of a deleted topic aside in any case."""
    names = sorted((await membership.session.get_children(paths.DELETIONS))[0], key=lambda name: name[-10:])
    for name in names[:-DELETIONS_KEPT]:
        with suppress(NoNode):  # another broker tidies up as well
            await membership.session.delete(f"{paths.DELETIONS}/{name}")


async def grow(membership: Membership, topic: Topic, count: int, assigned: list[tuple[int, ...]] | None) -> None:
    """Add partitions. Without an assignment they go on where the first partition's replicas began, as in Kafka."""
    placed = new_partitions(membership, topic, count, assigned)
    await carry_out(membership, AddPartitions(topic.name, placed))
    await known_here(membership, lambda: membership.is_known(topic.name, count), f"topic {topic.name!r}")


def new_partitions(
    membership: Membership, topic: Topic, count: int, assigned: list[tuple[int, ...]] | None
) -> dict[int, tuple[int, ...]]:
    """Where new partitions go. `Refused` if they cannot."""
    present = len(topic.partitions)
    image = membership.image
    if topic.name not in image.topics:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name!r}")
    assignment = image.topics[topic.name].assignment
    if assignment.adding or assignment.removing:
        raise Refused(
            ErrorCode.REASSIGNMENT_IN_PROGRESS, f"partitions of {topic.name} are being moved; add others afterwards"
        )
    first = assignment.partitions[0]
    if assigned is not None:
        if any(len(replicas) != len(first) for replicas in assigned):
            why = f"each new partition of {topic.name} needs {len(first)} replicas, like the others"
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)
        placed = dict(enumerate(assigned, present))
        check_assignment(image, placed)
    else:
        brokers = _brokers(membership, len(first))
        start = next((index for index, broker in enumerate(sorted(brokers)) if broker >= first[0]), 0)
        placed = place(brokers, count - present, len(first), start=start, shift=start, first_partition=present)
    decide(image, AddPartitions(topic.name, placed))
    return placed

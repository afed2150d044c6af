"""Topics of a cluster: created in ZooKeeper with one multi, states and leaders included (E7), by any broker (E10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from semel.cluster.session import MultiRefused, NodeExists, ZooKeeperError
from semel.errors import ErrorCode, Refused
from semel.log.checkpoints import topic_id_text
from semel.machines.controller.admin import CreateTopic
from semel.machines.controller.decide import decide
from semel.machines.controller.placement import place
from semel.machines.znodes import paths

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.topics.topic import Topic

logger = logging.getLogger(__name__)

#: How long a creation waits until this broker knows its topic.
KNOWN_WITHIN_S = 10.0
#: How often a creation is tried that others have made old.
ATTEMPTS = 10


def placement(
    membership: Membership, name: str, count: int, replication_factor: int
) -> dict[int, tuple[int, ...]]:
    """The replicas of a new topic's partitions. Where they begin comes from the topic's name, so that topics spread."""
    image = membership.image
    brokers = {each.id: each.rack for each in image.brokers.values() if each.may_lead}
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
            # Of a large topic the controller makes what is missing.
            return number > 0
    return True


async def create(membership: Membership, topic: Topic, partitions: Mapping[int, tuple[int, ...]]) -> None:
    """Create a topic, and wait until it is known here."""
    try:
        for _ in range(ATTEMPTS):
            if await _create_once(membership, topic, partitions):
                break
            await membership.read_again()
        else:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "brokers have come or gone meanwhile; try again")
    except ZooKeeperError as error:
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper did not answer: {error}") from None
    known = asyncio.get_running_loop().time() + KNOWN_WITHIN_S
    while not membership.is_known(topic.name, len(partitions)):
        if asyncio.get_running_loop().time() > known:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"topic {topic.name!r} is created; it is not known here yet")
        await membership.changed()

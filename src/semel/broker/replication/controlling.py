"""What the controller does with what has been decided: it carries it out, whatever is wrong with single partitions.

Guarantee: a change that ZooKeeper refuses, however often, keeps only itself from being made. Most changes go in one
multi. If that is refused, what we know is old, and is read again. If it is refused once more, the changes go in smaller
and smaller multis, at last each in its own. So a node that somebody has damaged by hand stops the elections of its own
partition and no others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from semel.cluster.session import MultiRefused
from semel.machines.controller.decide import Examine, decide
from semel.machines.controller.image import Image
from semel.machines.controller.packing import MULTI_MAX_BYTES
from semel.machines.controller.registration import BecomeController
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership

logger = logging.getLogger(__name__)

#: The size of a multi after so many refusals.
BOUNDS = (MULTI_MAX_BYTES, MULTI_MAX_BYTES, 16 * 1024, 1024, 0)
#: How long what was refused alone waits for the next attempt.
REFUSED_ALONE_PAUSE_S = 2.0


class Controlling:
    """Of one broker, whether it is the controller just now or not."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        #: How often a multi was refused since everything was carried out.
        self._refusals = 0
        self._told: set[str] = set()

    async def look(self, image: Image) -> None:
        """Become the controller if there is none; as the controller do what is due."""
        membership = self._membership
        if image.controller is None:
            await self._become(image)
        elif image.controller == membership.broker_id:
            await self._carry_out(image)

    async def _become(self, image: Image) -> None:
        membership = self._membership
        (multi,) = decide(image, BecomeController(membership.broker_id, membership.now_ms()))
        try:
            await membership.session.multi(multi.operations)
            logger.info("broker %d is the controller", membership.broker_id)
        except MultiRefused as refused:
            refused.raise_unless_outrun()
        membership.reader.refresh_brokers()

    async def _carry_out(self, image: Image) -> None:
        membership = self._membership
        bound = BOUNDS[min(self._refusals, len(BOUNDS) - 1)]
        is_refused = False
        for multi in decide(image, Examine(bound_bytes=bound, absent=await self._absent(image))):
            try:
                await membership.session.multi(multi.operations)
            except MultiRefused as refused:
                is_refused = True
                if bound == MULTI_MAX_BYTES:
                    break
                if bound == 0:
                    self._tell(multi.operations[refused.index].path, refused)
        if not is_refused:
            self._refusals = 0
            self._told.clear()
            return
        # What we know is old. It is read again, and then we decide again.
        self._refusals += 1
        membership.reader.refresh(after_s=REFUSED_ALONE_PAUSE_S if bound == 0 else 0.0)

    def _tell(self, path: str, refused: MultiRefused) -> None:
        if path not in self._told:
            self._told.add(path)
            logger.error(
                "ZooKeeper refuses again and again what the controller decides about %s (%s). Everything else goes on. "
                "Was that node changed by hand?",
                path,
                type(refused.error).__name__,
            )

    async def _absent(self, image: Image) -> dict[TopicPartition, tuple[str, ...]]:
        """What is missing above the registers that are to be created: a Kafka that was killed leaves a topic without
        these."""
        session, absent = self._membership.session, {}
        for topic in image.topics.values():
            if topic.name in image.deleting:
                continue
            for number in topic.assignment.partitions:
                partition = TopicPartition(topic.name, number)
                if partition not in image.states:
                    above = (paths.partitions(topic.name), paths.partition(topic.name, number))
                    absent[partition] = tuple([path for path in above if await session.exists(path) is None])
        return absent

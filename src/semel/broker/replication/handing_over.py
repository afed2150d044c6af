"""Before a broker stops: it says so, and the controller moves everything that it leads to others (E8).

Guarantees: requests are served meanwhile, so a client finds the next leader before this one is gone. A stop does not
wait for what cannot be moved, nor longer than `HAND_OVER_WITHIN_S`, nor for a ZooKeeper that does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from semel.cluster.session import SessionState, ZooKeeperError
from semel.machines.controller.decide import decide
from semel.machines.controller.registration import SayLeaving

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.machines.controller.image import Image

logger = logging.getLogger(__name__)

HAND_OVER_WITHIN_S = 30.0


def can_be_moved(image: Image, broker: int) -> int:
    """How many partitions this broker still leads, or is in sync with, though others could go on without it."""
    count = 0
    for state, _ in image.states.values():
        if broker in state.isr and any(member != broker and image.may_lead(member) for member in state.isr):
            count += 1
    return count


async def hand_over(membership: Membership, directory_id: str) -> None:
    """Say that this broker leaves, and wait until others lead."""
    if membership.broker_epoch < 0 or membership.session.state is not SessionState.CONNECTED:
        return
    try:
        async with asyncio.timeout(HAND_OVER_WITHIN_S):
            endpoints = membership.registration().endpoints
            event = SayLeaving(membership.broker_id, directory_id, membership.broker_epoch, endpoints)
            await membership.last_life.begins(membership.broker_epoch + 1)
            for multi in decide(membership.image, event):
                await membership.session.multi(multi.operations)
            membership.goes_on_as(membership.broker_epoch + 1)
            await membership.last_life.began()
            # The first look must be at an image that has the others' state of today.
            await membership.read_again()
            while can_be_moved(membership.image, membership.broker_id):
                await membership.changed()
    except TimeoutError:
        left = can_be_moved(membership.image, membership.broker_id)
        logger.warning("%d partitions were not handed over within %g s", left, HAND_OVER_WITHIN_S)
    except (ZooKeeperError, OSError) as error:
        # Also if we were certified dead: then others lead already. Or the disk is full, and the note of the next life
        # (E12) cannot be written: others lead as soon as our session ends.
        logger.warning("nothing is handed over: %s", error)
    else:
        logger.info("broker %d leads nothing that others can lead", membership.broker_id)

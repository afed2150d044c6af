"""Leaders go back to the first replica of their partition, from time to time, so that a restart unbalances nobody.

The controller does it, every `leader.imbalance.check.interval.seconds`, where the first replica is in sync.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from semel.broker.replication.topics import carry_out
from semel.errors import Refused
from semel.machines.controller.admin import ElectLeaders
from semel.machines.controller.elections import could_be_led_by_their_first

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)


async def keep_preferred_leaders(broker: BrokerServer, membership: Membership) -> None:
    """For as long as the broker lives."""
    while True:
        await asyncio.sleep(broker.settings["leader.imbalance.check.interval.seconds"])
        if not broker.settings["auto.leader.rebalance.enable"] or membership.image.controller != membership.broker_id:
            continue
        chosen = could_be_led_by_their_first(membership.image)
        if chosen:
            try:
                await carry_out(membership, ElectLeaders(chosen))
                logger.info("%d partitions are led by their first replica again", len(chosen))
            except Refused as error:
                logger.info("leaders stay where they are: %s", error.why)

"""Producer ids of a cluster: blocks claimed in ZooKeeper by conditional update, so no id is given out twice (Z8)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from semel.cluster.session import BadVersion, NodeExists, NoNode, ZooKeeperError
from semel.errors import ErrorCode, Refused
from semel.machines.znodes import paths
from semel.machines.znodes.values import ProducerIdBlock, UnreadableZnode

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership

logger = logging.getLogger(__name__)

BLOCK_SIZE = 1000


class ClusterProducerIds:
    """Hands out ids. The next block is claimed when half of this one is gone."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._ready: list[ProducerIdBlock] = []
        self._next = 0
        self._is_claiming = False

    def take(self) -> int:
        """The next unused producer id."""
        while self._ready and self._next > self._ready[0].end:
            del self._ready[0]
            self._next = self._ready[0].start if self._ready else 0
        if not self._ready:
            self.claim_soon()
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a block of producer ids is being claimed")
        block, taken = self._ready[0], self._next
        self._next += 1
        if len(self._ready) == 1 and block.end - self._next < BLOCK_SIZE // 2:
            self.claim_soon()
        return taken

    def claim_soon(self) -> None:
        if not self._is_claiming:
            self._is_claiming = True
            self._membership.spawn(self._claim())

    async def _claim(self) -> None:
        session, path = self._membership.session, paths.PRODUCER_ID_BLOCK
        try:
            while True:
                try:
                    data, stat = await session.get(path)
                    block = ProducerIdBlock.decode(data).next(self._membership.broker_id, BLOCK_SIZE)
                    await session.set(path, block.encode(), stat.version)
                except NoNode:
                    block = ProducerIdBlock(self._membership.broker_id, 0, BLOCK_SIZE - 1)
                    try:
                        await session.create(path, block.encode())
                    except NodeExists:
                        continue
                except BadVersion:
                    continue  # another broker has claimed this block
                break
            await self._membership.last_life.claimed(block.end)
        except (ZooKeeperError, UnreadableZnode, OSError) as error:
            # Perhaps it was claimed: then its ids are lost, and none is given out twice.
            logger.warning("no block of producer ids: %s", error)
        else:
            if not self._ready:
                self._next = block.start
            self._ready.append(block)
        finally:
            self._is_claiming = False

"""A replica whose files are damaged: others lead, and it is fetched anew (E11).

Guarantees: it leaves the in-sync set, and stops being eligible, only where somebody else has all that is committed; the
only one who has it stays, offline, until a person decides. Its files are set aside, not removed, and only once the
register says that nobody relies on them and another leads. That is asked of ZooKeeper then, not of what is known here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from semel.cluster.session import MultiRefused, NoNode, ZooKeeperError
from semel.log.damage import DamagedLog
from semel.machines.controller.elections import without_damaged
from semel.machines.controller.writing import write_state
from semel.machines.values import TopicPartition
from semel.machines.znodes.values import UnreadableZnode

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.replication.partition import ReplicatedPartition
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)


class DamagedReplicas:
    """Those of this broker, and what is done about them."""

    def __init__(self, broker: BrokerServer, membership: Membership) -> None:
        self._broker = broker
        self._membership = membership
        #: What is being repaired just now.
        self._at_work: set[TopicPartition] = set()

    def cannot_open(self, partition: ReplicatedPartition) -> None:
        """Its log cannot be opened, which was logged, so it has no role. Called again at every change in the cluster,
        until it has one."""
        key = TopicPartition(partition.topic.name, partition.index)
        if key not in self._at_work:
            self._at_work.add(key)
            self._membership.spawn(self._repair(key, partition))

    async def _repair(self, key: TopicPartition, partition: ReplicatedPartition) -> None:
        try:
            while not await self._step(key, partition):
                pass
        except ZooKeeperError as error:
            # Once it answers, everything is looked at again.
            logger.info("%s waits for ZooKeeper: %s", partition, error)
        except (UnreadableZnode, OSError) as error:
            logger.error("%s stays offline: %s", partition, error)
        finally:
            self._at_work.discard(key)

    async def _step(self, key: TopicPartition, partition: ReplicatedPartition) -> bool:
        """Whether nothing more can be done before something changes in the cluster."""
        membership, own = self._membership, self._membership.broker_id
        topic = membership.image.topics.get(key.topic)
        try:
            state, version = await membership.read_state(key)
        except NoNode:
            return True
        is_here = partition.is_local and membership.has_topic(partition.topic)
        if topic is None or not is_here or partition.replica is not None or partition.offline is None:
            return True  # deleted, moved away, or it could be opened after all
        if own in state.isr or own in state.elr:
            left = without_damaged(state, own, topic.needed(key.partition))
            if left is None:
                return True
            try:
                await membership.session.multi([write_state(key, left, version)])
            except MultiRefused as refused:
                refused.raise_unless_outrun()
                return False  # somebody was faster: look again
            logger.warning("%s cannot be opened here: this broker has left its in-sync set", partition)
            return True  # the change brings us here again
        if state.leader in (own, -1) or not isinstance(partition.offline, DamagedLog):
            return True  # there is nobody to fetch it from, or it may be readable later
        place = await self._broker.topics.set_aside(partition)
        logger.warning(
            "%s is fetched anew from broker %d: what is left of its files is in %s. Remove that when nobody needs it",
            partition, state.leader, place or "no directory",
        )
        membership.look_again()
        return True

"""The coordinators of a cluster: who coordinates what, and when this broker begins and ends to (C2, C6).

Guarantees:

- The leader of a partition of `__consumer_offsets` or `__transaction_state` coordinates its groups or transactional
  ids, under the partition's leader epoch. It serves once it knows that all of its log is committed (R12), and forgets
  everything when it no longer leads.
- What a predecessor has decided is finished soon after the election, whether a client asks or not.
- The internal topics get the replication factor that is set, or are not created yet.
- While too few replicas are in sync, nobody joins a group: its generations could not be written, and its members would
  begin one after the other, as fast as they can.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from semel.broker.replication.partition import ReplicatedPartition
from semel.broker.replication.topics import KNOWN_WITHIN_S, create, placement
from semel.broker.topics.internal import (
    CONSUMER_OFFSETS,
    PARTITIONS_OF_INTERNAL_TOPICS,
    TRANSACTION_STATE,
    internal_settings,
)
from semel.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from semel.broker.coordinators.host import CoordinatorHost
    from semel.broker.replication.membership import Membership
    from semel.broker.replication.replica import LocalReplica
    from semel.broker.server import BrokerServer
    from semel.broker.topics.partition import Partition
    from semel.broker.topics.topic import Topic

#: The settings that say how many replicas the internal topics have.
REPLICAS_OF_INTERNAL_TOPICS = {
    TRANSACTION_STATE: "transaction.state.log.replication.factor",
    CONSUMER_OFFSETS: "offsets.topic.replication.factor",
}
#: Where they are not set: as in Kafka, or all brokers that the cluster has ever had.
USUAL_REPLICAS, USUAL_MIN_ISR = 3, 2
#: How long a client that looks for its coordinator is held back during an election. Without an answer, or with the name
#: of a broker that is dead, clients wait for a second and more before they ask again. Also a member that joins a group
#: while too few replicas are in sync.
MOST_HELD_S = 0.8


class Coordinators:
    """The coordinators of one broker: `broker.cluster.coordinators`."""

    def __init__(self, broker: BrokerServer, membership: Membership) -> None:
        self._broker = broker
        self._membership = membership
        #: Partitions that are to be loaded, in the order in which they became ready.
        self._to_load: dict[tuple[str, int], None] = {}
        self._is_loading = False
        self._creating = asyncio.Lock()

    # Roles

    def _host(self, topic: str) -> CoordinatorHost:
        broker = self._broker
        return broker.groups.host if topic == CONSUMER_OFFSETS else broker.transactions.host

    def announce(self, partition: ReplicatedPartition, leader_epoch: int) -> None:
        """This broker leads a partition of an internal topic, and does not know yet how far it is committed."""
        host = self._host(partition.topic.name)
        host.unload(partition.index)
        host.announce(partition.index, leader_epoch)

    def look(self, replica: LocalReplica) -> None:
        """Load the partition soon, if it can be."""
        topic, index = replica.key
        if self.may_load(topic, index) and index not in self._host(topic).loaded:
            self._to_load[topic, index] = None
            if not self._is_loading:
                self._is_loading = True
                self._broker.spawn(self._load_each())

    def unload(self, partition: ReplicatedPartition) -> None:
        """This broker no longer leads the partition."""
        self._host(partition.topic.name).unload(partition.index)

    async def _load_each(self) -> None:
        """One at a time: clients are served in between."""
        try:
            while self._to_load:
                await asyncio.sleep(0)
                topic, index = next(iter(self._to_load))
                del self._to_load[topic, index]
                self._host(topic).ready(index)
        finally:
            self._is_loading = False

    def may_load(self, topic_name: str, index: int) -> bool:
        """Whether this broker leads the partition and knows that all of it is committed (R12)."""
        topic = self._broker.topics.topics.get(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return False
        partition = topic.partitions[index]
        assert isinstance(partition, ReplicatedPartition)
        return partition.is_served and partition.knows_its_end

    def lacks_replicas(self, topic_name: str, index: int) -> bool:
        """Whether this broker coordinates the partition, and could write nothing now: too few replicas are in sync."""
        if not self.may_load(topic_name, index):
            return False
        partition = self._broker.topics.topics[topic_name].partitions[index]
        assert isinstance(partition, ReplicatedPartition)
        leader = None if partition.replica is None else partition.replica.leader
        return leader is not None and not leader.has_enough_replicas

    async def enough_replicas(self, topic_name: str, index: int) -> bool:
        """Wait until there are, at most `MOST_HELD_S`. Returns whether there are."""
        until_s = self._broker.loop.time() + MOST_HELD_S
        while self.lacks_replicas(topic_name, index):
            if self._broker.loop.time() >= until_s:
                return False
            await self._membership.changed()
        return True

    @staticmethod
    def epoch_of(partition: Partition) -> int:
        """The coordinator epoch of a partition that this broker leads."""
        assert isinstance(partition, ReplicatedPartition)
        return partition.leader_epoch

    # Who coordinates

    def leader_of(self, topic: str, index: int) -> int:
        """The broker that coordinates this partition; -1 if none does now."""
        state, _ = self._membership.state_of(topic, index)
        return state.leader if state is not None and state.leader in self._membership.reader.registrations else -1

    def coordinator_of(self, transactional_id: str) -> int:
        """The broker that coordinates a transactional id; -1 if none does now."""
        if TRANSACTION_STATE not in self._broker.topics.topics:
            return -1
        return self.leader_of(TRANSACTION_STATE, self._broker.transactions.coordinator.partition_for(transactional_id))

    async def find(self, topic_name: str, key: str) -> int:
        """The broker that coordinates a group or transactional id. The internal topic is created if need be."""
        await self.internal_topic(topic_name)
        self._membership.certificates.expects_elections()
        index = self._host(topic_name).coordinator.partition_for(key)
        leader = self.leader_of(topic_name, index)
        until_s = self._broker.loop.time() + MOST_HELD_S
        while leader < 0 or self._membership.is_suspected(leader):
            if self._broker.loop.time() >= until_s:
                break
            await self._membership.changed()
            leader = self.leader_of(topic_name, index)
        if leader < 0:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"nobody leads the partition of {key!r} now")
        return leader

    # Internal topics

    async def internal_topic(self, name: str) -> Topic:
        """The internal topic of this name; COORDINATOR_NOT_AVAILABLE if it cannot be created now."""
        topics = self._broker.topics.topics
        if name not in topics:
            async with self._creating:
                if name not in topics:
                    await self._create(name)
        return topics[name]

    async def _create(self, name: str) -> None:
        membership = self._membership
        await membership.know_brokers()
        settings = self._broker.settings
        setting = REPLICAS_OF_INTERNAL_TOPICS[name]
        factor: int = min(USUAL_REPLICAS, len(membership.image.brokers))
        if setting in settings.explicit:
            factor = settings[setting]
        overrides = internal_settings(name, settings)
        if name == TRANSACTION_STATE and "transaction.state.log.min.isr" not in settings.explicit:
            overrides["min.insync.replicas"] = str(min(USUAL_MIN_ISR, factor))
        count: int = settings[PARTITIONS_OF_INTERNAL_TOPICS[name]]
        try:
            if name not in self._broker.topics.topics:
                topic = self._broker.topics.new_topic(name, overrides)
                await create(membership, topic, placement(membership, name, count, factor))
        except Refused as refused:
            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise Refused(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{name} cannot be created ({setting}={factor}): {refused.why}",
                ) from None
        topics, until_s = self._broker.topics.topics, self._broker.loop.time() + KNOWN_WITHIN_S
        while name not in topics or not membership.is_known(name, len(topics[name].partitions)):
            # Another broker was faster.
            if self._broker.loop.time() >= until_s:
                raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} is created; it is not known here yet")
            await membership.changed()

"""This broker's topics, made those of the cluster: adopted, grown, configured, deleted.

Guarantees:

- Data is removed only after ZooKeeper has said, after a sync, that the topic was deleted or the replica is elsewhere.
  What this broker knows may be old: a new session can be with a server that lags. Of a topic whose nodes were removed
  by hand, perhaps with all others, the data is set aside.
- A topic that was deleted and created again under its name begins with empty logs: the topic's id tells them apart.
- A setting that was changed, through any broker, holds here from the next look at the image on.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from semel.broker.replication.partition import ReplicatedPartition
from semel.broker.topics.registry import no_rest
from semel.cluster.session import NoNode
from semel.config import ConfigError
from semel.log.checkpoints import topic_id_text
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.values import TopicAssignment, UnreadableZnode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer
    from semel.broker.topics.partition import Partition
    from semel.broker.topics.topic import Topic
    from semel.machines.controller.image import Topic as ImageTopic

logger = logging.getLogger(__name__)

#: The node of the settings that hold for all brokers, as Kafka names it.
ALL_BROKERS_NODE = "<default>"


class LocalTopics:
    """Keeps `broker.topics` like the image."""

    def __init__(self, broker: BrokerServer, membership: Membership) -> None:
        self._broker = broker
        self._membership = membership
        #: Partitions of which it was told that they stay.
        self._told: set[TopicPartition] = set()

    def adopt(self) -> None:
        """Know every topic of the image, with its partitions and settings."""
        registry, membership = self._broker.topics, self._membership
        for name, topic in membership.image.topics.items():
            own = membership.reader.configs.get(name, {})
            known = registry.topics.get(name)
            if known is None:
                if topic.assignment.topic_id is not None:
                    count = len(topic.assignment.partitions)
                    self._place(registry.adopt(name, topic.assignment.topic_id, count, own).partitions, topic)
                continue
            if topic_id_text(known.topic_id) != topic.assignment.topic_id:
                continue  # an earlier topic of this name, which is about to go
            if len(known.partitions) < len(topic.assignment.partitions):
                self._place(registry.adopt_partitions(known, len(topic.assignment.partitions)), topic)
            if known.overrides != own:
                registry.adopt_settings(known, own)
                logger.info("the settings of %s are now %s", name, own)

    def _place(self, partitions: Iterable[Partition], topic: ImageTopic) -> None:
        for partition in partitions:
            assert isinstance(partition, ReplicatedPartition)
            partition.replica = None
            partition.is_local = self._membership.broker_id in topic.assignment.partitions[partition.index]

    async def follow_image(self) -> None:
        """Everything that the image says about topics."""
        await self._apply_broker_settings()
        await self._drop_deleted()
        self.adopt()
        await self._move()

    # Settings of brokers

    async def _apply_broker_settings(self) -> None:
        stored = self._broker.stores.broker_settings
        configs = self._membership.reader.broker_configs
        changed = {"" if name == ALL_BROKERS_NODE else name: own for name, own in configs.items() if own}
        had_tls = stored.changes_tls
        if not stored.adopt(changed):
            return
        self._broker.settings = stored.values
        if had_tls or stored.changes_tls:
            try:
                self._broker.listening.use_tls(await self._broker.listening.read_tls(stored.values))
            except ConfigError as error:
                logger.error("the certificates stay as they were: %s", error)
        await self._broker.topics.change_defaults(self._broker.settings, no_rest)
        # min.insync.replicas and unclean elections of topics may follow the broker's settings.
        self._membership.image = self._membership.reader.image()
        logger.info("settings were changed: %s", changed)

    # What is gone

    async def _drop_deleted(self) -> None:
        image, doomed = self._membership.image, []
        for topic in list(self._broker.topics.topics.values()):
            known = image.topics.get(topic.name)
            if known is None or known.assignment.topic_id != topic_id_text(topic.topic_id):
                with suppress(UnreadableZnode):  # then it is there, and the reader tells what is wrong
                    if await self._assignment_now(topic) is None:
                        doomed.append(topic)
        if not doomed:
            return
        names, _ = await self._membership.session.get_children(paths.DELETIONS)
        deleted_ids = {paths.deleted_id(name) for name in names}
        deleted = [topic for topic in doomed if topic_id_text(topic.topic_id) in deleted_ids]
        vanished = [topic for topic in doomed if topic not in deleted]
        for topic in doomed:
            for partition in topic.partitions:
                self._resign(partition)
        for topic in deleted:
            logger.info("topic %s was deleted", topic.name)
        for topic in vanished:
            logger.error(
                "topic %s is not in ZooKeeper any more, and nobody has deleted it as a topic: what is here of it is "
                "kept in directories that end in -stray",
                topic.name,
            )
        await self._broker.topics.drop(deleted)
        await self._broker.topics.drop(vanished, keeps_data=True)

    async def _assignment_now(self, topic: Topic) -> TopicAssignment | None:
        """What ZooKeeper says now about this very topic; None if it is gone."""
        session, path = self._membership.session, paths.topic(topic.name)
        await session.sync(path)
        try:
            found = TopicAssignment.decode((await session.get(path))[0], path)
        except NoNode:
            return None
        return found if found.topic_id == topic_id_text(topic.topic_id) else None

    async def _move(self) -> None:
        """Take up replicas that were moved to this broker, and remove those that were moved away (E9)."""
        registry, membership = self._broker.topics, self._membership
        for name, known in membership.image.topics.items():
            topic = registry.topics.get(name)
            if topic is None:
                continue
            now: TopicAssignment | None = None
            for partition in topic.partitions:
                assert isinstance(partition, ReplicatedPartition)
                replicas = known.assignment.partitions.get(partition.index, ())
                is_here = membership.broker_id in replicas
                if partition.replica is not None and is_here:
                    partition.replica.assigned(replicas, known.needed(partition.index))
                if is_here or not partition.is_local:
                    partition.is_local = is_here
                    continue
                try:
                    now = now or await self._assignment_now(topic)
                except UnreadableZnode:
                    break
                if now is None or membership.broker_id in now.partitions.get(partition.index, ()):
                    continue  # what we know is old
                if await self._is_counted_on(partition):
                    continue
                logger.info("%s is on other brokers now: its data here is removed", partition)
                self._resign(partition)
                partition.is_local = False
                await registry.drop_partition(partition)

    async def _is_counted_on(self, partition: Partition) -> bool:
        """Whether the register says that this broker has what is committed. A move takes a broker out of assignment and
        register together (E9), so somebody has changed the assignment by hand. Then the data stays."""
        membership, key = self._membership, TopicPartition(partition.topic.name, partition.index)
        try:
            state, _ = await membership.read_state(key)
        except (NoNode, UnreadableZnode):
            return True  # what we know is old, or the node is damaged: the reader tells
        is_counted_on = membership.broker_id in (state.leader, *state.isr, *state.elr)
        if is_counted_on and key not in self._told:
            self._told.add(key)
            logger.error(
                "%s is not assigned to this broker any more, and its register counts on the data here, which stays: "
                "was %s in ZooKeeper changed by hand? Replicas are moved by kafka-reassign-partitions",
                key,
                paths.topic(key.topic),
            )
        return is_counted_on

    def _resign(self, partition: Partition) -> None:
        assert isinstance(partition, ReplicatedPartition)
        if partition.replica is not None:
            partition.replica.resign()
            partition.replica = None

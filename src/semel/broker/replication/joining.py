"""A broker that was alone brings its topics into ZooKeeper, and is from then on the first broker of a cluster.

Guarantees:

- Nothing of it happens without consent (`semel.cluster.join.with.topics`): afterwards ZooKeeper is the truth, and the
  broker cannot be alone again.
- It can be killed at every point, and goes on at its next start. ZooKeeper holds a mark from the first change to the
  last; until it is gone no other broker starts, so that nobody makes a topic or hands out a producer id meanwhile.
- The topics here are forgotten, in one write, after ZooKeeper has all of them, and before the mark goes.
- A ZooKeeper that another cluster uses is refused: its producer ids would be taken for ours.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from semel.broker.data_directory import METADATA
from semel.broker.replication.bringing_access import bring_access
from semel.broker.replication.local_topics import ALL_BROKERS_NODE
from semel.broker.stored.dynamic_settings import dynamic_setting
from semel.broker.stored.metadata_store import PRODUCER_ID_BLOCK, TOPICS, LocalMetadataStore
from semel.broker.stored.producer_ids import PRODUCER_ID_BLOCK_SIZE
from semel.broker.topics.registry import JOINED, TopicRegistry
from semel.cluster.session import MultiRefused, NodeExists, NoNode, ZooKeeperSession
from semel.config import ConfigError
from semel.errors import Refused
from semel.log.checkpoints import read_leader_epochs, topic_id_text
from semel.machines.controller.joining import OwnTopic, join
from semel.machines.znodes import paths
from semel.machines.znodes.entities import GROUPS, entity_path
from semel.machines.znodes.operations import Create
from semel.machines.znodes.values import (
    Joining,
    ProducerIdBlock,
    decode_cluster_id,
    encode_cluster_id,
    encode_config,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.broker.data_directory import DataDirectory
    from semel.broker.server import BrokerServer
    from semel.broker.topics.logs import TopicLogs
    from semel.log.files import Files

logger = logging.getLogger(__name__)

CONSENT = "semel.cluster.join.with.topics"


def holds_own_topics(files: Files, path: Path) -> bool:
    """Whether a data directory has topics that no ZooKeeper knows, or not all of them."""
    if not files.exists(path / METADATA / TOPICS):
        return False
    value, _ = LocalMetadataStore(path / METADATA, files).get(TOPICS)
    return not isinstance(value, dict) or JOINED not in value


def ask_for_consent(path: Path, *, given: bool) -> None:
    if not given:
        raise ConfigError(
            f"zookeeper.connect: {path} holds the topics of a broker that was alone. To make it the first broker of a "
            f"cluster, start it once with --set {CONSENT}=true: its topics, groups and transactions go on where they "
            "are, and ZooKeeper knows them from then on. This cannot be undone"
        )


async def begin(session: ZooKeeperSession, broker_id: int, data: DataDirectory) -> str:
    """Claim a ZooKeeper that nobody has used, for the cluster that this directory has always been. Returns its id."""
    own = Joining(broker_id, data.directory_id)
    try:
        await session.multi(
            (Create(paths.CLUSTER_ID, encode_cluster_id(data.cluster_id)), Create(paths.JOINING, own.encode()))
        )
    except MultiRefused as refused:
        if not isinstance(refused.error, NodeExists):
            raise
        found = decode_cluster_id((await session.get(paths.CLUSTER_ID))[0])
        if found != data.cluster_id or await _joining(session) != own:
            raise ConfigError(
                f"zookeeper.connect: this ZooKeeper belongs to cluster {found} already, and {data.path} holds the "
                f"topics of a broker that was alone, of cluster {data.cluster_id}. A broker with topics can only begin "
                "a cluster: give a ZooKeeper, or a chroot in it, that no broker has used, and start the other brokers "
                "after this one, on empty directories"
            ) from None
    logger.info("ZooKeeper now belongs to cluster %s, which this broker begins with its topics", data.cluster_id)
    return data.cluster_id


async def _joining(session: ZooKeeperSession) -> Joining | None:
    try:
        return Joining.decode((await session.get(paths.JOINING))[0])
    except NoNode:
        return None


async def refuse_amid_joining(session: ZooKeeperSession, broker_id: int) -> None:
    """Another broker may be bringing its topics: nobody else starts before it has finished."""
    found = await _joining(session)
    if found is not None and found.broker != broker_id:
        raise ConfigError(
            f"zookeeper.connect: broker {found.broker} is bringing its topics into this ZooKeeper and has not "
            "finished. Start it, and this one when that one is ready"
        )


async def finish_joining(session: ZooKeeperSession, data: DataDirectory) -> None:
    """The topics here were forgotten, so ZooKeeper has all of them: only the mark may be left."""
    found = await _joining(session)
    if found is None:
        return
    if found.directory_id != data.directory_id:
        raise ConfigError(
            f"zookeeper.connect: broker {found.broker} was bringing the topics of another data directory into this "
            f"ZooKeeper, and has not finished. Start it with that directory; {data.path} has none of its records"
        )
    await session.delete(paths.JOINING)


async def bring_topics(broker: BrokerServer, store: LocalMetadataStore, logs: TopicLogs) -> None:
    """Write everything that ZooKeeper lacks, then forget it here."""
    assert broker.cluster is not None
    await bring_access(broker, store)
    session = broker.cluster.session
    registry = TopicRegistry(store, broker.settings, logs)
    registry.read_stored()
    logs.name_partitions(registry.all_partitions())
    await _bring_producer_ids(session, broker.node_id, store, registry)
    await _bring_settings(broker, session)
    topics = [
        OwnTopic(
            topic.name,
            topic_id_text(topic.topic_id),
            tuple(_newest_epoch(logs.files, str(partition.directory)) for partition in topic.partitions),
            topic.overrides,
        )
        for topic in registry.topics.values()
    ]
    while True:
        await broker.cluster.reader.load()
        configured = frozenset((await session.get_children("/config/topics"))[0])
        try:
            multis = join(broker.cluster.reader.image(), broker.node_id, topics, configured)
        except Refused as refused:
            raise ConfigError(
                f"zookeeper.connect: {refused}. Nothing of it was changed. Delete one of them, or use another chroot"
            ) from None
        if not multis:
            break
        for multi in multis:
            try:
                await session.multi(multi.operations)
            except MultiRefused as refused:
                refused.raise_unless_outrun()
                break  # a try whose answer was lost had come further: what is there is read again
    value, version = store.get(TOPICS)
    store.update(TOPICS, {**value, "topics": {}, JOINED: broker.data.cluster_id, "before": value["topics"]}, version)
    logger.info("%d topics are in ZooKeeper now, with this broker as their only replica", len(topics))


def _newest_epoch(files: Files, directory: str) -> int:
    # A log without the file is one that this broker wrote alone, and has no other epoch than 0.
    epochs = read_leader_epochs(files, directory) if files.exists(directory) else None
    return 0 if epochs is None else epochs.latest


async def _bring_producer_ids(
    session: ZooKeeperSession, broker_id: int, store: LocalMetadataStore, registry: TopicRegistry
) -> None:
    """The cluster's ids begin after those that this broker has handed out, and after those it knows (Z8)."""
    value, version = store.get(PRODUCER_ID_BLOCK)
    if version >= 0:
        block = ProducerIdBlock(broker_id, int(value["block_start"]), int(value["block_end"]))
    else:
        first = max(registry.highest_producer_id(), 0) // PRODUCER_ID_BLOCK_SIZE * PRODUCER_ID_BLOCK_SIZE
        block = ProducerIdBlock(broker_id, first, first + PRODUCER_ID_BLOCK_SIZE - 1)
    await _create(session, paths.PRODUCER_ID_BLOCK, block.encode())


async def _bring_settings(broker: BrokerServer, session: ZooKeeperSession) -> None:
    stored = broker.stores.broker_settings
    for name, node in ((str(broker.node_id), str(broker.node_id)), ("", ALL_BROKERS_NODE)):
        overrides: Mapping[str, str] = stored.overrides_of(name)
        for setting in overrides:
            if dynamic_setting(setting).kind == "password":
                raise ConfigError(
                    f"{setting} was changed while the broker ran, and is secret: ZooKeeper would show it. Write it "
                    "into the broker's file, remove the change while the broker is alone, and start again"
                )
        if overrides:
            await _create(session, paths.config("brokers", node), encode_config(overrides))
    groups = broker.stores.group_settings
    for group in groups:
        await _create(session, f"/config/{entity_path(GROUPS, group)}", encode_config(groups.overrides_of(group)))


async def _create(session: ZooKeeperSession, path: str, data: bytes) -> None:
    try:
        await session.create(path, data)
    except NodeExists:
        # An earlier try wrote it: until the mark is gone, nobody else is here.
        await session.set(path, data)

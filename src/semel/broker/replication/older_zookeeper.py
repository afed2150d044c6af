"""A ZooKeeper that does not know what this broker has seen, or that has no cluster: a start is refused (E12).

Guarantees: a start that is refused has changed nothing that ZooKeeper knows. With consent
(`semel.cluster.accept.older.zookeeper`) a start makes an old one safe to go on with, as far as this broker knows: no
producer id is given out twice, and leader epochs rise above those that its logs have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from semel.broker.data_directory import META_PROPERTIES, stored_cluster_id
from semel.cluster.session import BadVersion, MultiRefused, NodeExists, NoNode, ZooKeeperSession
from semel.config import ConfigError
from semel.log.checkpoints import read_leader_epochs
from semel.machines.controller.packing import Change, pack
from semel.machines.controller.writing import write_state
from semel.machines.replication.values import NO_LEADER
from semel.machines.znodes import paths
from semel.machines.znodes.values import BrokerLife, ProducerIdBlock

if TYPE_CHECKING:
    from semel.broker.replication.last_life import LastLife
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer
    from semel.broker.topics.partition import Partition

logger = logging.getLogger(__name__)

CONSENT = "semel.cluster.accept.older.zookeeper"
#: Other brokers may have claimed producer ids that this one does not know of, but not as many.
PRODUCER_IDS_APART = 2**32


async def refuse_without_cluster(session: ZooKeeperSession, broker: BrokerServer, directory: Path) -> None:
    """A directory that belongs to a cluster, and a ZooKeeper that never had one: its data is lost, or it is another."""
    if await session.exists(paths.CLUSTER_ID) is not None:
        return
    own = stored_cluster_id(broker.files, directory)
    if own is not None:
        raise ConfigError(
            f"zookeeper.connect={broker.settings['zookeeper.connect']}: there is no cluster in this ZooKeeper, and "
            f"{directory} belongs to cluster {own}. Is the address right, and the chroot? If ZooKeeper has lost its "
            "data, restore it from a copy. To begin a new cluster, give an empty data directory"
        )


async def remedy(session: ZooKeeperSession, broker_id: int, cluster_id: str) -> str:
    """What to do without `meta.properties`: ZooKeeper knows what was in it."""
    lines = ["version=0", f"broker.id={broker_id}", f"cluster.id={cluster_id}"]
    path = paths.life(broker_id)
    try:
        lines.append(f"directory.id={BrokerLife.decode((await session.get(path))[0], path).directory_id}")
    except NoNode:
        pass  # this broker was never here: then the directory may have a new id
    return (
        "Restore it from a copy of the data directory. Without one, and if this is surely the directory of broker "
        f"{broker_id}, write a {META_PROPERTIES} with these lines: {', '.join(lines)}."
    )


async def refuse_older(session: ZooKeeperSession, broker: BrokerServer, last_life: LastLife) -> bool:
    """Whether ZooKeeper is older than what this broker remembers, and that was agreed to."""
    missing = await last_life.what_is_missing(session, broker.node_id)
    if not missing:
        return False
    if not broker.settings[CONSENT]:
        raise ConfigError(
            f"zookeeper.connect={broker.settings['zookeeper.connect']}: this ZooKeeper has forgotten something "
            f"({missing}). It was restored from an old copy, or is another one. Start it with its newest data. Only if "
            f"that is lost for good, start every broker once with --set {CONSENT}=true: topics, settings and rules are "
            "then as they were at the time of the copy, and records may be lost where another replica is in sync now "
            "than was then"
        )
    logger.warning("ZooKeeper is older than this broker (%s), and that was agreed to", missing)
    await _raise_producer_ids(session, broker.node_id, last_life.producer_ids_end)
    last_life.forget()
    return True


async def refuse_wiped(session: ZooKeeperSession, broker_id: int, broker_epoch: int) -> None:
    """ConfigError if somebody has removed this cluster from ZooKeeper while this broker ran, which is to register
    again. It would begin another cluster with the directory of this one."""
    own = paths.life(broker_id)
    for path in (paths.CLUSTER_ID, paths.BROKER_IDS, paths.TOPICS, own):
        await session.sync(path)
        stat = await session.exists(path)
        if stat is None or (path == own and stat.version < broker_epoch):
            raise ConfigError(
                f"{path} was removed from ZooKeeper, or is older than before, while the broker ran: somebody has "
                "removed the cluster there. What is on disk stays. Restore ZooKeeper's newest data, and start it again"
            )


def refuse_lost(membership: Membership, partitions: Iterable[Partition], broker: BrokerServer) -> None:
    """ConfigError if a directory that has lost files lacks what no other broker has: it would begin at offset 0."""
    if not membership.last_life.is_missing:
        return
    lost = []
    for partition in partitions:
        topic = membership.image.topics.get(partition.topic.name)
        is_only_here = topic is not None and topic.assignment.partitions[partition.index] == (broker.node_id,)
        if is_only_here and not broker.files.exists(partition.directory):
            lost.append(f"{partition.topic.name}-{partition.index}")
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise ConfigError(
            f"{broker.data.path} has lost files: nothing is there of {lost[0]}{more}, which no other broker has. "
            "Restore the directory from a copy. If it is lost for good: start a broker with another node.id, and "
            "delete such topics"
        )


async def _raise_producer_ids(session: ZooKeeperSession, broker_id: int, end: int) -> None:
    """No id that was claimed before is claimed again (Z8), also by another broker, and since the copy was made."""

    def used(known: int) -> bytes:
        start = max(known, end)
        return ProducerIdBlock(broker_id, start, start + PRODUCER_IDS_APART).encode()

    while True:
        try:
            data, stat = await session.get(paths.PRODUCER_ID_BLOCK)
            await session.set(paths.PRODUCER_ID_BLOCK, used(ProducerIdBlock.decode(data).end), stat.version)
            return
        except NoNode:
            try:
                await session.create(paths.PRODUCER_ID_BLOCK, used(0))
                return
            except NodeExists:
                continue
        except BadVersion:
            continue


async def raise_leader_epochs(membership: Membership, broker: BrokerServer) -> None:
    """Where a log here has a later leader epoch than its register, the next one is later than both (R4)."""
    while True:
        image, changes = membership.image, list[Change]()
        for partition, (state, version) in image.states.items():
            topic = broker.topics.topics.get(partition.topic)
            if topic is None or partition.partition >= len(topic.partitions):
                continue
            directory = str(topic.partitions[partition.partition].directory)
            epochs = read_leader_epochs(broker.files, directory) if broker.files.exists(directory) else None
            if epochs is not None and epochs.latest > state.leader_epoch:
                later = state._replace(leader=NO_LEADER, leader_epoch=epochs.latest, leader_broker_epoch=-1)
                changes.append((write_state(partition, later, version),))
        try:
            for multi in pack(changes):
                await membership.session.multi(multi.operations)
            return
        except MultiRefused as refused:
            refused.raise_unless_outrun()
            await membership.read_again()

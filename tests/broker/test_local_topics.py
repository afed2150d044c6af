"""A broker's topics made those of the cluster: when data may be removed, and when what is known is merely old."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from semel.broker.replication.handing_over import can_be_moved
from semel.broker.replication.local_topics import LocalTopics
from semel.broker.replication.partition import ReplicatedPartition
from semel.cluster.session import NoNode
from semel.log.checkpoints import topic_id_text
from semel.machines.controller.image import Broker, Image, Topic
from semel.machines.replication.values import PartitionState
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.values import TopicAssignment

OURS, ANOTHER = UUID(int=1), UUID(int=2)


class Registry:
    """Remembers what was removed."""

    def __init__(self, topic: Any) -> None:
        self.topics = {topic.name: topic}
        self.removed: list[str] = []

    async def drop(self, topics: list[Any], *, keeps_data: bool = False) -> None:
        self.removed += [f"{topic.name}-stray" if keeps_data else topic.name for topic in topics]

    async def drop_partition(self, partition: Any) -> None:
        self.removed.append(f"t-{partition.index}")


class ZooKeeper:
    """What is true, whatever this broker knows."""

    def __init__(self, assignment: TopicAssignment | None, deleted: tuple[UUID, ...]) -> None:
        self._assignment = assignment
        self._deleted = deleted
        self.synced = False

    async def sync(self, path: str) -> None:
        assert path == paths.topic("t")
        self.synced = True

    async def get(self, path: str) -> tuple[bytes, None]:
        assert self.synced, "what a server that lags says is not good enough to remove data"
        if self._assignment is None:
            raise NoNode(path)
        return self._assignment.encode(), None

    async def get_children(self, path: str) -> tuple[list[str], None]:
        assert path == paths.DELETIONS and self.synced
        return [f"{topic_id_text(topic_id)}-{number:010}" for number, topic_id in enumerate(self._deleted)], None


def assigned(topic_id: UUID, *brokers: int) -> TopicAssignment:
    return TopicAssignment(topic_id_text(topic_id), {0: brokers})


def removed(
    known: TopicAssignment | None,
    true: TopicAssignment | None,
    *,
    deleted: tuple[UUID, ...] = (OURS,),
    in_sync: tuple[int, ...] = (2,),
) -> list[str]:
    """What broker 1 removes of its topic, given what it knows and what is so."""
    topic = SimpleNamespace(name="t", topic_id=OURS, partitions=[], overrides={})
    partition = ReplicatedPartition(cast(Any, topic), 0, cast(Any, None), cast(Any, None), cast(Any, None))
    partition.is_local, partition.replica = True, None
    topic.partitions.append(partition)
    registry = Registry(topic)

    async def read_state(_: TopicPartition) -> tuple[PartitionState, int]:
        return PartitionState(in_sync[0], 0, in_sync, 0), 0

    image = Image(topics={} if known is None else {"t": Topic("t", known, 0)})
    membership = SimpleNamespace(
        broker_id=1,
        image=image,
        session=ZooKeeper(true, deleted),
        read_state=read_state,
        reader=SimpleNamespace(configs={}, broker_configs={}),
    )
    stores = SimpleNamespace(broker_settings=SimpleNamespace(adopt=lambda changed: False, changes_tls=False))
    broker = SimpleNamespace(topics=registry, stores=stores)
    asyncio.run(LocalTopics(cast(Any, broker), cast(Any, membership)).follow_image())
    return registry.removed


def test_a_topic_that_zookeeper_does_not_have_is_removed() -> None:
    assert removed(None, None) == ["t"]
    assert removed(assigned(ANOTHER, 1), assigned(ANOTHER, 1)) == ["t"], "another of the same name"


def test_a_topic_that_nobody_has_deleted_is_set_aside() -> None:
    assert removed(None, None, deleted=(ANOTHER,)) == ["t-stray"]


def test_a_replica_that_the_register_counts_on_stays() -> None:
    """Somebody has taken it out of the assignment by hand: a move takes it out of both (E9)."""
    assert removed(assigned(OURS, 2, 3), assigned(OURS, 2, 3), in_sync=(2, 1)) == []


def test_a_topic_that_only_a_server_that_lags_does_not_know_stays() -> None:
    assert removed(None, assigned(OURS, 1, 2)) == []
    assert removed(assigned(ANOTHER, 1), assigned(OURS, 1)) == []


def test_a_replica_goes_only_when_it_is_elsewhere_now() -> None:
    assert removed(assigned(OURS, 2, 3), assigned(OURS, 2, 3)) == ["t-0"]
    assert removed(assigned(OURS, 2, 3), assigned(OURS, 1, 2)) == []
    assert removed(assigned(OURS, 1, 2), assigned(OURS, 1, 2)) == []


@pytest.mark.parametrize(
    ("state", "others", "count"),
    [
        (PartitionState(1, 0, (1, 2), 0), "live", 1),
        (PartitionState(2, 0, (2, 1), 0), "live", 1),
        (PartitionState(2, 0, (2,), 0), "live", 0),
        (PartitionState(1, 0, (1,), 0), "live", 0),
        (PartitionState(1, 0, (1, 2), 0), "leaving", 0),
        (PartitionState(1, 0, (1, 2), 0), "dead", 0),
    ],
)
def test_e8_a_stop_waits_for_what_others_can_take_and_for_nothing_else(
    state: PartitionState, others: str, count: int
) -> None:
    brokers = {1: Broker(1, 0, leaving=True), 2: Broker(2, 0, others != "dead", others == "leaving")}
    assert can_be_moved(Image(brokers, states={TopicPartition("t", 0): (state, 0)}), 1) == count

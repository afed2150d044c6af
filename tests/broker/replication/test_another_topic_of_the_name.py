"""A topic that is deleted and created again under its name: its registers begin anew, and are not the old replicas'."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from semel.broker.replication.membership import Membership
from semel.broker.replication.partition import ReplicatedPartition
from semel.broker.topics.topic import Topic
from semel.cluster.image_reader import ImageReader
from semel.cluster.session import ZooKeeperSession
from semel.config import BROKER, topic_values
from semel.log.checkpoints import topic_id_text
from semel.machines.controller.image import Image
from semel.machines.controller.image import Topic as ImageTopic
from semel.machines.replication.values import PartitionState
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.values import TopicAssignment, encode_state
from tests.simulation.zookeeper.worlds import SimulatedWorld

OURS, ANOTHER = UUID(int=1), UUID(int=2)
PARTITION = TopicPartition("t", 0)


@pytest.mark.parametrize("topic_id", [OURS, ANOTHER])
def test_a_replica_takes_no_role_from_the_register_of_another_topic_of_its_name(topic_id: UUID) -> None:
    topic = Topic("t", OURS, {}, topic_values(BROKER.parse({}), {}))
    partition = ReplicatedPartition(topic, 0, cast(Any, None), cast(Any, None), cast(Any, None))
    taken: list[PartitionState] = []
    replica = SimpleNamespace(register=lambda state, version: taken.append(state), follower=None)
    partition.is_local, partition.replica = True, cast(Any, replica)
    state = PartitionState(1, 0, (1,), 0)
    membership = SimpleNamespace(
        image=Image(
            topics={"t": ImageTopic("t", TopicAssignment(topic_id_text(topic_id), {0: (1,)}), 0)},
            states={PARTITION: (state, 0)},
        ),
        _partitions=lambda: [partition],
        _follow=lambda following: None,
        _has_left=False,
    )
    Membership._take_roles(cast(Any, membership))
    assert taken == ([state] if topic_id == OURS else [])


def test_a_register_is_not_known_before_the_topic_is_whose_it_is() -> None:
    """Where the old topic and the new register were known at once, a broker took a role with the old topic's data."""

    async def create(session: ZooKeeperSession, topic_id: UUID, leader: int) -> None:
        await session.create(paths.topic("t"), TopicAssignment(topic_id_text(topic_id), {0: (1, 2)}).encode())
        await session.create(f"{paths.topic('t')}/partitions")
        await session.create(paths.partition("t", 0))
        await session.create(paths.state("t", 0), encode_state(PartitionState(leader, 0, (1, 2), 0)))

    async def story() -> None:
        session = await SimulatedWorld().open()
        for path in paths.PERSISTENT:
            await session.create(path)
        await session.create(paths.CONTROLLER_EPOCH, b"0")
        await create(session, OURS, leader=1)
        reader = ImageReader(session, lambda overrides: (1, False), lambda: None)
        await reader.load()
        assert reader.image().states[PARTITION][0].leader == 1
        for path in (paths.state("t", 0), paths.partition("t", 0), f"{paths.topic('t')}/partitions", paths.topic("t")):
            await session.delete(path)
        await create(session, ANOTHER, leader=2)
        await reader._read(("state", "t", 0))  # before the topic, which we take for the old one
        image = reader.image()
        assert image.topics["t"].assignment.topic_id == topic_id_text(OURS)
        assert PARTITION not in image.states
        await reader._read_dirty(keep_going=False)
        image = reader.image()
        assert image.topics["t"].assignment.topic_id == topic_id_text(ANOTHER)
        assert image.states[PARTITION][0].leader == 2

    asyncio.run(story())

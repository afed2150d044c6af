"""Changes of a partition's register as operations on znodes."""

from __future__ import annotations

from semel.machines.controller.image import Image, Topic
from semel.machines.controller.packing import Change
from semel.machines.replication.values import PartitionState, WriteState
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import ANY_VERSION, Check, Create, Multi, Operation, SetData
from semel.machines.znodes.values import encode_state


def write_state(partition: TopicPartition, state: PartitionState, version: int) -> SetData:
    """At the version that was read (Z1)."""
    return SetData(paths.state(*partition), encode_state(state), version)


def checks_of(image: Image, old: PartitionState | None, new: PartitionState) -> tuple[Operation, ...]:
    """That a new leader is in the life that was elected (E2)."""
    if new.leader < 0 or (old is not None and old.leader_epoch == new.leader_epoch):
        return ()
    return (Check(paths.life(new.leader), image.broker_epoch(new.leader)),)


def create_state(
    image: Image, topic: Topic, number: int, state: PartitionState, absent: tuple[str, ...] | None = None
) -> Change:
    """The nodes of a partition that has none yet; the topic must still be the one that was read.

    `absent`: the nodes above the register that are not there; the partition's own, if it is not said.
    """
    above = (paths.partition(topic.name, number),) if absent is None else absent
    return (
        Check(paths.topic(topic.name), topic.version),
        *checks_of(image, None, state),
        *map(Create, above),
        Create(paths.state(topic.name, number), encode_state(state)),
    )


def leader_write(partition: TopicPartition, effect: WriteState) -> Multi:
    """What a leader asked for: a follower that joins must live, and in the life that has fetched (R8)."""
    operations: list[Operation] = []
    if effect.joining is not None:
        broker, broker_epoch = effect.joining
        operations += (Check(paths.broker(broker), ANY_VERSION), Check(paths.life(broker), broker_epoch))
    return Multi((*operations, write_state(partition, effect.state, effect.version)))

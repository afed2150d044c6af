"""The topics of a broker that was alone, taken into ZooKeeper with that broker as their only replica.

Guarantees:

- What was done is not done again: `join` gives the changes that are still missing, from whatever an earlier try left.
- A partition's register begins at the newest leader epoch of its log, so that its first election is above all that was
  ever written. Nobody leads it before its broker is registered, for nobody else has its records.
- A topic that ZooKeeper knows under another id is another topic: nothing is changed, and somebody has to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from semel.errors import ErrorCode, Refused
from semel.machines.controller.image import Image, Topic
from semel.machines.controller.packing import Change, pack
from semel.machines.controller.writing import write_state
from semel.machines.replication.values import NO_LEADER, PartitionState
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import Check, Create, Multi, SetData
from semel.machines.znodes.values import TopicAssignment, encode_config, encode_state


@dataclass(frozen=True, slots=True)
class OwnTopic:
    """A topic of one broker; `leader_epochs` has the newest of each partition's log."""

    name: str
    topic_id: str
    leader_epochs: tuple[int, ...]
    settings: Mapping[str, str]


def join(image: Image, broker_id: int, topics: Iterable[OwnTopic], configured: frozenset[str]) -> list[Multi]:
    """What is still to be written, in this order. `configured` are the topics that have a node with settings.

    `Refused` if ZooKeeper has another topic of the same name.
    """
    changes: list[Change] = []
    for own in topics:
        known = image.topics.get(own.name)
        if known is None:
            changes += _new_topic(image, broker_id, own, has_config=own.name in configured)
        elif known.assignment.topic_id != own.topic_id:
            raise Refused(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                f"ZooKeeper has a topic {own.name} with the id {known.assignment.topic_id}, and the one here has the "
                f"id {own.topic_id}: they are different topics",
            )
        else:
            changes += _missing_states(image, broker_id, own, known)
    return pack(changes)


def _first_state(image: Image, broker_id: int, leader_epoch: int) -> PartitionState:
    return PartitionState(NO_LEADER, max(leader_epoch, 0), (broker_id,), controller_epoch=image.controller_epoch)


def _new_topic(image: Image, broker_id: int, own: OwnTopic, *, has_config: bool) -> list[Change]:
    assignment = TopicAssignment(own.topic_id, dict.fromkeys(range(len(own.leader_epochs)), (broker_id,)))
    path, config = paths.config("topics", own.name), encode_config(own.settings)
    settings = SetData(path, config) if has_config else Create(path, config)
    itself: Change = (settings, Create(paths.topic(own.name), assignment.encode()), Create(paths.partitions(own.name)))
    states: list[Change] = [
        (
            Create(paths.partition(own.name, number)),
            Create(paths.state(own.name, number), encode_state(_first_state(image, broker_id, epoch))),
        )
        for number, epoch in enumerate(own.leader_epochs)
    ]
    return [itself, *states]


def _missing_states(image: Image, broker_id: int, own: OwnTopic, known: Topic) -> list[Change]:
    """A try that was killed has left some, or a controller has made them and does not know the log's epochs."""
    changes: list[Change] = []
    for number, epoch in enumerate(own.leader_epochs):
        partition = TopicPartition(own.name, number)
        found = image.states.get(partition)
        first = _first_state(image, broker_id, epoch)
        if found is None:
            changes.append(
                (
                    Check(paths.topic(own.name), known.version),
                    Create(paths.partition(own.name, number)),
                    Create(paths.state(own.name, number), encode_state(first)),
                )
            )
        elif found[0].leader_epoch < first.leader_epoch:
            changes.append((write_state(partition, first, found[1]),))
    return changes

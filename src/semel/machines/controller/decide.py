"""What is to be changed in ZooKeeper, given what is known and what has happened. Pure: an image, an event, the multis.

Guarantees: every change carries the version that its decision was read at, so that a decision from an old image changes
nothing (Z1). What the controller decides by itself also checks that it is still the controller (Z2). A new leader is
checked to be in the life that was meant. No multi is above 512 KB.

The multis of one event are carried out in order. If one is refused, the image is old: read again, and decide again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semel.machines.controller import admin, elections
from semel.machines.controller.admin import (
    AddPartitions,
    CancelReassignment,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
)
from semel.machines.controller.image import Image
from semel.machines.controller.packing import MULTI_MAX_BYTES, Change, pack
from semel.machines.controller.registration import BecomeController, Certify, LeaveUncleanly, Register, SayLeaving
from semel.machines.controller.registration import decide as decide_registration
from semel.machines.controller.writing import checks_of, create_state, write_state
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import Check, Multi


@dataclass(frozen=True, slots=True)
class Examine:
    """Something has changed: brokers, states, topics. The controller looks at all partitions, or at some."""

    partitions: tuple[TopicPartition, ...] | None = None
    #: How large a multi becomes. With 0 each change has its own.
    bound_bytes: int = MULTI_MAX_BYTES
    #: Of partitions without a register: the nodes above it that are missing. Of others the partition's node is.
    absent: Mapping[TopicPartition, tuple[str, ...]] = field(default_factory=dict, hash=False)


Event = (
    Examine
    | BecomeController
    | Register
    | SayLeaving
    | LeaveUncleanly
    | Certify
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | Reassign
    | CancelReassignment
    | ElectLeaders
)


def decide(image: Image, event: Event) -> list[Multi]:
    """`Refused` where an admin request asks for what cannot be."""
    match event:
        case Examine():
            return _examine(image, event)
        case BecomeController() | Register() | SayLeaving() | LeaveUncleanly() | Certify():
            return decide_registration(image, event)
        case _:
            return admin.decide(image, event)


def _examine(image: Image, event: Examine) -> list[Multi]:
    still_controller = (Check(paths.CONTROLLER_EPOCH, image.controller_epoch_version),)
    changes: list[Change] = []
    deletions: list[Multi] = []
    wanted = None if event.partitions is None else set(event.partitions)
    for topic in image.topics.values():
        if topic.name in image.deleting:
            deletions += admin.decide(image, DeleteTopic(topic.name))
            continue
        finished = admin.finished_reassignments(image, topic) if wanted is None else None
        if finished is not None:
            changes.append(finished.change)
        for number, replicas in topic.assignment.partitions.items():
            partition = TopicPartition(topic.name, number)
            if (wanted is not None and partition not in wanted) or (finished and number in finished.partitions):
                continue
            known = image.states.get(partition)
            if known is None:
                first = elections.first_state(replicas, image)
                changes.append(create_state(image, topic, number, first, event.absent.get(partition)))
                continue
            state, version = known
            new = elections.next_state(
                state, replicas, topic.needed(number), image, unclean_allowed=topic.unclean_allowed
            )
            if new is not None:
                new = new._replace(controller_epoch=image.controller_epoch)
                changes.append((*checks_of(image, state, new), write_state(partition, new, version)))
    return pack(changes, still_controller, event.bound_bytes) + deletions

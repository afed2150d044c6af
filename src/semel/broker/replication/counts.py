"""How many partitions are led, under-replicated, offline: what metrics and `semel cluster status` go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.machines.controller.image import Image


@dataclass(slots=True)
class ReplicaCounts:
    """Of one broker, by Kafka's names. A broker that is alone has and leads everything."""

    here: int = 0
    led: int = 0
    is_controller: bool = True
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    moving: int = 0
    #: Of the whole cluster.
    offline: int = 0
    partitions: int = 0
    not_preferred: int = 0
    brokers: int = 1


def count_replicas(image: Image, broker_id: int) -> ReplicaCounts:
    """What the image says, seen from one broker."""
    counts = ReplicaCounts(is_controller=image.controller == broker_id)
    counts.brokers = sum(broker.live for broker in image.brokers.values())
    for partition, (state, _) in image.states.items():
        topic = image.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.assignment.partitions:
            continue
        number, assignment = partition.partition, topic.assignment
        replicas, target = assignment.partitions[number], assignment.target(number)
        counts.partitions += 1
        counts.here += broker_id in replicas
        counts.offline += not image.is_live(state.leader)
        counts.not_preferred += state.leader != target[0]
        if state.leader != broker_id:
            continue
        needed = topic.needed(number)
        counts.led += 1
        # Replicas that are still on their way in are not missed, as in Kafka.
        expected = [each for each in replicas if each not in assignment.adding.get(number, ())]
        counts.under_replicated += any(each not in state.isr for each in expected)
        counts.under_min_isr += len(state.isr) < needed
        counts.at_min_isr += len(state.isr) == needed
        counts.moving += number in assignment.adding or number in assignment.removing
    return counts

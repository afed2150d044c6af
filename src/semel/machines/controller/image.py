"""What a broker knows about the cluster: what it has read from ZooKeeper, with the versions that it was read at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semel.machines.replication.values import PartitionState
from semel.machines.values import TopicPartition
from semel.machines.znodes.values import TopicAssignment


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that was there at some time. Its epoch is the version of its life in ZooKeeper."""

    id: int
    epoch: int
    live: bool = True
    #: It is about to stop, and leads nothing new (E8).
    leaving: bool = False
    rack: str | None = None

    @property
    def may_lead(self) -> bool:
        return self.live and not self.leaving


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    assignment: TopicAssignment
    #: The version of its znode.
    version: int
    min_insync_replicas: int = 1
    #: unclean.leader.election.enable
    unclean_allowed: bool = False
    #: Whether /config/topics/<name> is there.
    has_config: bool = True

    def needed(self, number: int) -> int:
        """How many replicas in sync it takes to commit. While replicas move, the smaller number of them counts: a
        topic that gets more replicas is written on while they are filled."""
        replicas = min(len(self.assignment.origin(number)), len(self.assignment.target(number)))
        return min(self.min_insync_replicas, max(1, replicas))


@dataclass(frozen=True, slots=True)
class Image:
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    #: The register of each partition, and its version.
    states: Mapping[TopicPartition, tuple[PartitionState, int]] = field(default_factory=dict)
    controller: int | None = None
    controller_epoch: int = 0
    controller_epoch_version: int = 0
    #: Topics whose deletion has begun (E7).
    deleting: frozenset[str] = frozenset()

    def may_lead(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.may_lead

    def is_live(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.live

    def broker_epoch(self, broker_id: int) -> int:
        broker = self.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

"""What a client knows of the cluster: brokers, topics and leaders.

Guarantees: the leader epoch of a partition never goes back. A response from a broker that is behind does not replace
newer metadata of the same topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from semel.errors import ErrorCode
from semel.wire.messages.metadata import MetadataResponse

NO_TOPIC_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and its address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition: its leader, leader epoch and replicas."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic and its partitions, in order."""

    name: str
    topic_id: uuid.UUID
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class Metadata:
    """The metadata of one client. `update` merges a response into it."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    fetched_at: dict[str, float] = field(default_factory=dict)

    def update(self, response: MetadataResponse, at: float) -> None:
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if response.brokers:
            self.nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        for info in topics_of(response):
            if info.error is not ErrorCode.NONE:
                self.forget(info.name)
                continue
            known = self.topics.get(info.name)
            if known is not None and known.topic_id == info.topic_id:
                info = replace(info, partitions=_newer_of_each(known.partitions, info.partitions))
            elif known is not None:
                self.topic_names.pop(known.topic_id, None)
            self.topics[info.name] = info
            self.fetched_at[info.name] = at
            if info.topic_id != NO_TOPIC_ID:
                self.topic_names[info.topic_id] = info.name

    def forget(self, topic: str) -> None:
        known = self.topics.pop(topic, None)
        self.fetched_at.pop(topic, None)
        if known is not None:
            self.topic_names.pop(known.topic_id, None)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        return known.partitions[partition]

    def leader(self, topic: str, partition: int) -> int | None:
        """The node that leads the partition, or None if it is not known."""
        info = self.partition(topic, partition)
        return None if info is None or info.leader < 0 else info.leader


def topics_of(response: MetadataResponse) -> Iterator[TopicMetadata]:
    """The topics of a response, with their partitions in order."""
    for topic in response.topics:
        yield TopicMetadata(
            topic.name or "",
            topic.topic_id,
            topic.is_internal,
            tuple(
                PartitionMetadata(
                    topic.name or "",
                    p.partition_index,
                    p.leader_id,
                    p.leader_epoch,
                    tuple(p.replica_nodes),
                    tuple(p.isr_nodes),
                    tuple(p.offline_replicas),
                    ErrorCode.of(p.error_code),
                )
                for p in sorted(topic.partitions, key=lambda p: p.partition_index)
            ),
            ErrorCode.of(topic.error_code),
        )


def _newer_of_each(
    known: tuple[PartitionMetadata, ...], given: Iterable[PartitionMetadata]
) -> tuple[PartitionMetadata, ...]:
    return tuple(
        known[info.partition]
        if info.partition < len(known) and info.leader_epoch < known[info.partition].leader_epoch
        else info
        for info in given
    )

"""What a broker knows of all topics, as it is now: partitions that nobody leads are an answer here, not an error."""

from __future__ import annotations

import time
from typing import Any

from semel.client.blocking.cluster import BlockingCluster
from semel.errors import Retriable
from semel.machines.values import TopicPartition
from semel.wire.messages.metadata import DescribeClusterRequest, MetadataRequest

PATIENCE_S = 10.0
PAUSE_S = 0.2


def whole_metadata(client: BlockingCluster) -> Any:
    """Of all topics, and of the brokers that run."""
    answer = _asked(client, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    live = live_brokers(client)
    answer.brokers = [row for row in answer.brokers if row.node_id in live]
    return answer


def live_brokers(client: BlockingCluster) -> set[int]:
    """Metadata names a broker for a while after it is gone; this does not."""
    return {row.broker_id for row in _asked(client, DescribeClusterRequest()).brokers}


def _asked(client: BlockingCluster, message: Any) -> Any:
    """Tried again only while no broker answers."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return client.request(None, message)
        except Retriable:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


def leaderships(metadata: Any) -> dict[TopicPartition, tuple[int, int] | None]:
    """Who leads each partition and since which epoch; None if nobody who runs does."""
    live = {row.node_id for row in metadata.brokers}
    return {
        TopicPartition(topic.name, row.partition_index): (
            (row.leader_id, row.leader_epoch) if row.leader_id in live else None
        )
        for topic in metadata.topics
        for row in topic.partitions
    }

"""DescribeQuorum: the nodes that hold the metadata. Here it is one node, which is always up to date."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.topics.topic import CLUSTER_METADATA
from semel.errors import ErrorCode
from semel.log.checkpoints import topic_id_from_text
from semel.wire.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer


def describe_quorum(
    broker: BrokerServer, request: DescribeQuorumRequest, call: Call
) -> Generator[None, None, DescribeQuorumResponse]:
    """Answer that this node leads and votes. Any partition except that of the metadata is unknown, as in Kafka."""
    topics, partition_class = [], DescribeQuorumResponse.PartitionData
    for topic in request.topics:
        partitions = []
        yield
        for asked in topic.partitions:
            yield
            row = partition_class(partition_index=asked.partition_index, error_message=None)
            partitions.append(row)
            if (topic.topic_name, asked.partition_index) != (CLUSTER_METADATA, 0):
                row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                row.error_message = row.error_code.meaning
                continue
            row.leader_id, row.leader_epoch = broker.node_id, broker.leader_epoch
            row.high_watermark = broker.topics.metadata_changes
            row.current_voters = [_this_node(broker)]
        topics.append(DescribeQuorumResponse.TopicData(topic_name=topic.topic_name, partitions=partitions))
    listeners = [
        DescribeQuorumResponse.Listener(name=listener.name, host=listener.endpoint[0], port=listener.endpoint[1])
        for listener in broker.listening.listeners
    ]
    node = DescribeQuorumResponse.Node(node_id=broker.node_id, listeners=listeners)
    return DescribeQuorumResponse(error_message=None, topics=topics, nodes=[node])


def _this_node(broker: BrokerServer) -> DescribeQuorumResponse.ReplicaState:
    now_ms = broker.now_ms()
    return DescribeQuorumResponse.ReplicaState(
        replica_id=broker.node_id,
        replica_directory_id=topic_id_from_text(broker.data.directory_id),
        log_end_offset=broker.topics.metadata_changes,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )

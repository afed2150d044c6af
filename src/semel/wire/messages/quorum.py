"""The replicas of the cluster's metadata log."""

from __future__ import annotations

from semel.wire.primitives import ZERO_UUID
from semel.wire.schema import Int16, Int32, Int64, String, Uint16, Uuid, field, message, struct


@message(key=55, versions="0-2", flexible=0)
class DescribeQuorumRequest:
    """Ask for the voters and observers of partitions. There is one partition: that of the metadata log."""

    @struct
    class PartitionData:
        partition_index: Int32 = 0

    @struct
    class TopicData:
        topic_name: String = ""
        partitions: list[DescribeQuorumRequest.PartitionData] = field(list)

    topics: list[TopicData] = field(list)


@message(key=55, versions="0-2", flexible=0)
class DescribeQuorumResponse:
    """Leader, high watermark and replicas, from version 2 with the addresses of voters."""

    @struct
    class ReplicaState:
        replica_id: Int32 = 0
        replica_directory_id: Uuid = field(ZERO_UUID, since=2)
        log_end_offset: Int64 = 0
        last_fetch_timestamp: Int64 = field(-1, since=1)
        last_caught_up_timestamp: Int64 = field(-1, since=1)

    @struct
    class PartitionData:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = field("", since=2)
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0
        high_watermark: Int64 = 0
        current_voters: list[DescribeQuorumResponse.ReplicaState] = field(list)
        observers: list[DescribeQuorumResponse.ReplicaState] = field(list)

    @struct
    class TopicData:
        topic_name: String = ""
        partitions: list[DescribeQuorumResponse.PartitionData] = field(list)

    @struct
    class Listener:
        name: String = field("", since=2)
        host: String = field("", since=2)
        port: Uint16 = field(0, since=2)

    @struct
    class Node:
        node_id: Int32 = field(0, since=2)
        listeners: list[DescribeQuorumResponse.Listener] = field(list, since=2)

    error_code: Int16 = 0
    error_message: String | None = field("", since=2)
    topics: list[TopicData] = field(list)
    nodes: list[Node] = field(list, since=2)

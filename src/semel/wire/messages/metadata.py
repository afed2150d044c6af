"""The brokers, the leaders of partitions, and the coordinators of groups and transactions."""

from __future__ import annotations

from semel.wire.primitives import ZERO_UUID
from semel.wire.schema import Bool, Int8, Int16, Int32, String, Uuid, field, message, struct


@message(key=3, versions="0-13", flexible=9)
class MetadataRequest:
    """Ask for the leaders of topics; null asks for all topics, in version 0 an empty list."""

    @struct
    class MetadataRequestTopic:
        topic_id: Uuid = field(ZERO_UUID, since=10)
        name: String | None = field("", nullable_since=10)

    topics: list[MetadataRequestTopic] | None = field(list, nullable_since=1)
    allow_auto_topic_creation: Bool = field(True, since=4)
    include_cluster_authorized_operations: Bool = field(False, since=8, until=10)
    include_topic_authorized_operations: Bool = field(False, since=8)


@message(key=3, versions="0-13", flexible=9)
class MetadataResponse:
    """The brokers, and for every partition its leader and replicas."""

    @struct
    class MetadataResponseBroker:
        node_id: Int32 = 0
        host: String = ""
        port: Int32 = 0
        rack: String | None = field(None, since=1)

    @struct
    class MetadataResponsePartition:
        error_code: Int16 = 0
        partition_index: Int32 = 0
        leader_id: Int32 = 0
        leader_epoch: Int32 = field(-1, since=7)
        replica_nodes: list[Int32] = field(list)
        isr_nodes: list[Int32] = field(list)
        offline_replicas: list[Int32] = field(list, since=5)

    @struct
    class MetadataResponseTopic:
        error_code: Int16 = 0
        name: String | None = field("", nullable_since=12)
        topic_id: Uuid = field(ZERO_UUID, since=10)
        is_internal: Bool = field(False, since=1)
        partitions: list[MetadataResponse.MetadataResponsePartition] = field(list)
        topic_authorized_operations: Int32 = field(-2_147_483_648, since=8)

    throttle_time_ms: Int32 = field(0, since=3)
    brokers: list[MetadataResponseBroker] = field(list)
    cluster_id: String | None = field(None, since=2)
    controller_id: Int32 = field(-1, since=1)
    topics: list[MetadataResponseTopic] = field(list)
    cluster_authorized_operations: Int32 = field(-2_147_483_648, since=8, until=10)
    error_code: Int16 = field(0, since=13)


@message(key=10, versions="0-6", flexible=3)
class FindCoordinatorRequest:
    """Ask which broker coordinates a group (key type 0) or a transactional id (1)."""

    key: String = field("", until=3)
    key_type: Int8 = field(0, since=1)
    coordinator_keys: list[String] = field(list, since=4)


@message(key=10, versions="0-6", flexible=3)
class FindCoordinatorResponse:
    """Up to version 3 one answer at the top, from version 4 one for each key."""

    @struct
    class Coordinator:
        key: String = field("", since=4)
        node_id: Int32 = field(0, since=4)
        host: String = field("", since=4)
        port: Int32 = field(0, since=4)
        error_code: Int16 = field(0, since=4)
        error_message: String | None = field("", since=4)

    throttle_time_ms: Int32 = field(0, since=1)
    error_code: Int16 = field(0, until=3)
    error_message: String | None = field("", since=1, until=3)
    node_id: Int32 = field(0, until=3)
    host: String = field("", until=3)
    port: Int32 = field(0, until=3)
    coordinators: list[Coordinator] = field(list, since=4)


@message(key=60, versions="0-2", flexible=0)
class DescribeClusterRequest:
    """The brokers only, for tools."""

    include_cluster_authorized_operations: Bool = False
    endpoint_type: Int8 = field(1, since=1)
    include_fenced_brokers: Bool = field(False, since=2)


@message(key=60, versions="0-2", flexible=0)
class DescribeClusterResponse:
    """The brokers, the controller, and what the asking principal may do."""

    @struct
    class DescribeClusterBroker:
        broker_id: Int32 = 0
        host: String = ""
        port: Int32 = 0
        rack: String | None = None
        is_fenced: Bool = field(False, since=2)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Int8 = field(1, since=1)
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = field(list)
    cluster_authorized_operations: Int32 = -2_147_483_648


@message(key=75, versions="0", flexible=0)
class DescribeTopicPartitionsRequest:
    """Topics page by page: `cursor` is where the last answer stopped."""

    @struct
    class TopicRequest:
        name: String = ""

    @struct
    class Cursor:
        topic_name: String = ""
        partition_index: Int32 = 0

    topics: list[TopicRequest] = field(list)
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


@message(key=75, versions="0", flexible=0)
class DescribeTopicPartitionsResponse:
    """One page of topics; `next_cursor` is null on the last."""

    @struct
    class DescribeTopicPartitionsResponsePartition:
        error_code: Int16 = 0
        partition_index: Int32 = 0
        leader_id: Int32 = 0
        leader_epoch: Int32 = -1
        replica_nodes: list[Int32] = field(list)
        isr_nodes: list[Int32] = field(list)
        eligible_leader_replicas: list[Int32] | None = None
        last_known_elr: list[Int32] | None = None
        offline_replicas: list[Int32] = field(list)

    @struct
    class DescribeTopicPartitionsResponseTopic:
        error_code: Int16 = 0
        name: String | None = ""
        topic_id: Uuid = ZERO_UUID
        is_internal: Bool = False
        partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = field(list)
        topic_authorized_operations: Int32 = -2_147_483_648

    @struct
    class Cursor:
        topic_name: String = ""
        partition_index: Int32 = 0

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = field(list)
    next_cursor: Cursor | None = None

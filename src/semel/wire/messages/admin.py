"""Topics and partitions: create, change, describe, delete."""

from __future__ import annotations

from semel.wire.primitives import ZERO_UUID
from semel.wire.schema import Bool, Int8, Int16, Int32, Int64, String, Uuid, field, message, struct


@message(key=19, versions="2-7", flexible=5)
class CreateTopicsRequest:
    """Create topics, or with `validate_only` only check the request."""

    @struct
    class CreatableReplicaAssignment:
        partition_index: Int32 = 0
        broker_ids: list[Int32] = field(list)

    @struct
    class CreatableTopicConfig:
        name: String = ""
        value: String | None = ""

    @struct
    class CreatableTopic:
        name: String = ""
        num_partitions: Int32 = 0
        replication_factor: Int16 = 0
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = field(list)
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = field(list)

    topics: list[CreatableTopic] = field(list)
    timeout_ms: Int32 = 60_000
    validate_only: Bool = False


@message(key=19, versions="2-7", flexible=5)
class CreateTopicsResponse:
    """The result for each topic, from version 5 with its settings."""

    @struct
    class CreatableTopicConfigs:
        name: String = field("", since=5)
        value: String | None = field("", since=5)
        read_only: Bool = field(False, since=5)
        config_source: Int8 = field(-1, since=5)
        is_sensitive: Bool = field(False, since=5)

    @struct
    class CreatableTopicResult:
        name: String = ""
        topic_id: Uuid = field(ZERO_UUID, since=7)
        error_code: Int16 = 0
        error_message: String | None = ""
        topic_config_error_code: Int16 = field(0, since=5, tag=0)
        num_partitions: Int32 = field(-1, since=5)
        replication_factor: Int16 = field(-1, since=5)
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = field(list, since=5)

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = field(list)


@message(key=20, versions="1-6", flexible=4)
class DeleteTopicsRequest:
    """Delete topics, by name or from version 6 by id."""

    @struct
    class DeleteTopicState:
        name: String | None = field(None, since=6)
        topic_id: Uuid = field(ZERO_UUID, since=6)

    topics: list[DeleteTopicState] = field(list, since=6)
    topic_names: list[String] = field(list, until=5)
    timeout_ms: Int32 = 0


@message(key=20, versions="1-6", flexible=4)
class DeleteTopicsResponse:
    """The result for each topic."""

    @struct
    class DeletableTopicResult:
        name: String | None = field("", nullable_since=6)
        topic_id: Uuid = field(ZERO_UUID, since=6)
        error_code: Int16 = 0
        error_message: String | None = field(None, since=5)

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = field(list)


@message(key=21, versions="0-2", flexible=2)
class DeleteRecordsRequest:
    """Delete everything before these offsets; -1 stands for the high watermark."""

    @struct
    class DeleteRecordsPartition:
        partition_index: Int32 = 0
        offset: Int64 = 0

    @struct
    class DeleteRecordsTopic:
        name: String = ""
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = field(list)

    topics: list[DeleteRecordsTopic] = field(list)
    timeout_ms: Int32 = 0


@message(key=21, versions="0-2", flexible=2)
class DeleteRecordsResponse:
    """The new start of each partition."""

    @struct
    class DeleteRecordsPartitionResult:
        partition_index: Int32 = 0
        low_watermark: Int64 = 0
        error_code: Int16 = 0

    @struct
    class DeleteRecordsTopicResult:
        name: String = ""
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = field(list)

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = field(list)


@message(key=37, versions="0-3", flexible=2)
class CreatePartitionsRequest:
    """Add partitions to topics: `count` is the new total."""

    @struct
    class CreatePartitionsAssignment:
        broker_ids: list[Int32] = field(list)

    @struct
    class CreatePartitionsTopic:
        name: String = ""
        count: Int32 = 0
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = field(list)

    topics: list[CreatePartitionsTopic] = field(list)
    timeout_ms: Int32 = 0
    validate_only: Bool = False


@message(key=37, versions="0-3", flexible=2)
class CreatePartitionsResponse:
    """The result for each topic."""

    @struct
    class CreatePartitionsTopicResult:
        name: String = ""
        error_code: Int16 = 0
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = field(list)


@message(key=35, versions="1-5", flexible=2)
class DescribeLogDirsRequest:
    """Ask for the size of partitions on disk; null asks for all."""

    @struct
    class DescribableLogDirTopic:
        topic: String = ""
        partitions: list[Int32] = field(list)

    topics: list[DescribableLogDirTopic] | None = field(list)


@message(key=35, versions="1-5", flexible=2)
class DescribeLogDirsResponse:
    """Sizes by directory and partition."""

    @struct
    class DescribeLogDirsPartition:
        partition_index: Int32 = 0
        partition_size: Int64 = 0
        offset_lag: Int64 = 0
        is_future_key: Bool = False

    @struct
    class DescribeLogDirsTopic:
        name: String = ""
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = field(list)

    @struct
    class DescribeLogDirsResult:
        error_code: Int16 = 0
        log_dir: String = ""
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = field(list)
        total_bytes: Int64 = field(-1, since=4)
        usable_bytes: Int64 = field(-1, since=4)
        is_cordoned: Bool = field(False, since=5)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(0, since=3)
    results: list[DescribeLogDirsResult] = field(list)


@message(key=45, versions="0-1", flexible=0)
class AlterPartitionReassignmentsRequest:
    """Move these partitions to other brokers; null replicas cancel a move."""

    @struct
    class ReassignablePartition:
        partition_index: Int32 = 0
        replicas: list[Int32] | None = None

    @struct
    class ReassignableTopic:
        name: String = ""
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = field(list)

    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Bool = field(True, since=1)
    topics: list[ReassignableTopic] = field(list)


@message(key=45, versions="0-1", flexible=0)
class AlterPartitionReassignmentsResponse:
    """The result for each move."""

    @struct
    class ReassignablePartitionResponse:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = ""

    @struct
    class ReassignableTopicResponse:
        name: String = ""
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = field(list)

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Bool = field(True, since=1)
    error_code: Int16 = 0
    error_message: String | None = ""
    responses: list[ReassignableTopicResponse] = field(list)


@message(key=46, versions="0", flexible=0)
class ListPartitionReassignmentsRequest:
    """Ask which of these partitions are being moved between brokers."""

    @struct
    class ListPartitionReassignmentsTopics:
        name: String = ""
        partition_indexes: list[Int32] = field(list)

    timeout_ms: Int32 = 60_000
    topics: list[ListPartitionReassignmentsTopics] | None = None


@message(key=46, versions="0", flexible=0)
class ListPartitionReassignmentsResponse:
    """The partitions that are being moved."""

    @struct
    class OngoingPartitionReassignment:
        partition_index: Int32 = 0
        replicas: list[Int32] = field(list)
        adding_replicas: list[Int32] = field(list)
        removing_replicas: list[Int32] = field(list)

    @struct
    class OngoingTopicReassignment:
        name: String = ""
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = field(list)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    topics: list[OngoingTopicReassignment] = field(list)


@message(key=43, versions="0-2", flexible=2)
class ElectLeadersRequest:
    """Elect leaders: the preferred ones (type 0) or any (1)."""

    @struct
    class TopicPartitions:
        topic: String = ""
        partitions: list[Int32] = field(list)

    election_type: Int8 = field(0, since=1)
    topic_partitions: list[TopicPartitions] | None = field(list)
    timeout_ms: Int32 = 60_000


@message(key=43, versions="0-2", flexible=2)
class ElectLeadersResponse:
    """The result of each election."""

    @struct
    class PartitionResult:
        partition_id: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = ""

    @struct
    class ReplicaElectionResult:
        topic: String = ""
        partition_result: list[ElectLeadersResponse.PartitionResult] = field(list)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(0, since=1)
    replica_election_results: list[ReplicaElectionResult] = field(list)


@message(key=34, versions="1-2", flexible=2)
class AlterReplicaLogDirsRequest:
    """Move partitions into these directories."""

    @struct
    class AlterReplicaLogDirTopic:
        name: String = ""
        partitions: list[Int32] = field(list)

    @struct
    class AlterReplicaLogDir:
        path: String = ""
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = field(list)

    dirs: list[AlterReplicaLogDir] = field(list)


@message(key=34, versions="1-2", flexible=2)
class AlterReplicaLogDirsResponse:
    """The result for each partition."""

    @struct
    class AlterReplicaLogDirPartitionResult:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class AlterReplicaLogDirTopicResult:
        topic_name: String = ""
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = field(list)

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = field(list)

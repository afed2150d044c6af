"""Reading record batches, and finding the offset to read from."""

from __future__ import annotations

from semel.wire.primitives import ZERO_UUID
from semel.wire.schema import EMPTY, Int8, Int16, Int32, Int64, Records, String, Uuid, field, message, struct


@message(key=1, versions="4-18", flexible=12)
class FetchRequest:
    """Read records from these offsets on; wait up to `max_wait_ms` for `min_bytes` of them."""

    @struct
    class ReplicaState:
        replica_id: Int32 = field(-1, since=15)
        replica_epoch: Int64 = field(-1, since=15)

    @struct
    class FetchPartition:
        partition: Int32 = 0
        current_leader_epoch: Int32 = field(-1, since=9)
        fetch_offset: Int64 = 0
        last_fetched_epoch: Int32 = field(-1, since=12)
        log_start_offset: Int64 = field(-1, since=5)
        partition_max_bytes: Int32 = 0
        replica_directory_id: Uuid = field(ZERO_UUID, since=17, tag=0)
        high_watermark: Int64 = field(9_223_372_036_854_775_807, since=18, tag=1)

    @struct
    class FetchTopic:
        topic: String = field("", until=12)
        topic_id: Uuid = field(ZERO_UUID, since=13)
        partitions: list[FetchRequest.FetchPartition] = field(list)

    @struct
    class ForgottenTopic:
        topic: String = field("", since=7, until=12)
        topic_id: Uuid = field(ZERO_UUID, since=13)
        partitions: list[Int32] = field(list, since=7)

    cluster_id: String | None = field(None, since=12, tag=0)
    replica_id: Int32 = field(-1, until=14)
    replica_state: ReplicaState = field(EMPTY, since=15, tag=1)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Int32 = field(0, since=7)
    session_epoch: Int32 = field(-1, since=7)
    topics: list[FetchTopic] = field(list)
    forgotten_topics_data: list[ForgottenTopic] = field(list, since=7)
    rack_id: String = field("", since=11)


@message(key=1, versions="4-18", flexible=12)
class FetchResponse:
    """Batches as they are stored, and for read_committed which of the transactions in them were aborted."""

    @struct
    class EpochEndOffset:
        epoch: Int32 = field(-1, since=12)
        end_offset: Int64 = field(-1, since=12)

    @struct
    class LeaderIdAndEpoch:
        leader_id: Int32 = field(-1, since=12)
        leader_epoch: Int32 = field(-1, since=12)

    @struct
    class SnapshotId:
        end_offset: Int64 = -1
        epoch: Int32 = -1

    @struct
    class AbortedTransaction:
        producer_id: Int64 = 0
        first_offset: Int64 = 0

    @struct
    class PartitionData:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        high_watermark: Int64 = 0
        last_stable_offset: Int64 = -1
        log_start_offset: Int64 = field(-1, since=5)
        diverging_epoch: FetchResponse.EpochEndOffset = field(EMPTY, since=12, tag=0)
        current_leader: FetchResponse.LeaderIdAndEpoch = field(EMPTY, since=12, tag=1)
        snapshot_id: FetchResponse.SnapshotId = field(EMPTY, since=12, tag=2)
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = field(list)
        preferred_read_replica: Int32 = field(-1, since=11)
        records: Records | None = None

    @struct
    class FetchableTopicResponse:
        topic: String = field("", until=12)
        topic_id: Uuid = field(ZERO_UUID, since=13)
        partitions: list[FetchResponse.PartitionData] = field(list)

    @struct
    class NodeEndpoint:
        node_id: Int32 = field(0, since=16)
        host: String = field("", since=16)
        port: Int32 = field(0, since=16)
        rack: String | None = field(None, since=16)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(0, since=7)
    session_id: Int32 = field(0, since=7)
    responses: list[FetchableTopicResponse] = field(list)
    node_endpoints: list[NodeEndpoint] = field(list, since=16, tag=0)


@message(key=2, versions="1-11", flexible=6)
class ListOffsetsRequest:
    """Which offset belongs to a timestamp; -1 asks for the end, -2 for the start, -3 for the newest timestamp."""

    @struct
    class ListOffsetsPartition:
        partition_index: Int32 = 0
        current_leader_epoch: Int32 = field(-1, since=4)
        timestamp: Int64 = 0

    @struct
    class ListOffsetsTopic:
        name: String = ""
        partitions: list[ListOffsetsRequest.ListOffsetsPartition] = field(list)

    replica_id: Int32 = 0
    isolation_level: Int8 = field(0, since=2)
    topics: list[ListOffsetsTopic] = field(list)
    timeout_ms: Int32 = field(0, since=10)


@message(key=2, versions="1-11", flexible=6)
class ListOffsetsResponse:
    """The offset, and the timestamp of the record it belongs to."""

    @struct
    class ListOffsetsPartitionResponse:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        timestamp: Int64 = -1
        offset: Int64 = -1
        leader_epoch: Int32 = field(-1, since=4)

    @struct
    class ListOffsetsTopicResponse:
        name: String = ""
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = field(list)

    throttle_time_ms: Int32 = field(0, since=2)
    topics: list[ListOffsetsTopicResponse] = field(list)


@message(key=23, versions="2-4", flexible=4)
class OffsetForLeaderEpochRequest:
    """Ask where a leader epoch ended. A reader uses it to detect that the log was truncated."""

    @struct
    class OffsetForLeaderPartition:
        partition: Int32 = 0
        current_leader_epoch: Int32 = -1
        leader_epoch: Int32 = 0

    @struct
    class OffsetForLeaderTopic:
        topic: String = ""
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = field(list)

    replica_id: Int32 = field(-2, since=3)
    topics: list[OffsetForLeaderTopic] = field(list)


@message(key=23, versions="2-4", flexible=4)
class OffsetForLeaderEpochResponse:
    """The end of the asked epoch, or of the closest one before it."""

    @struct
    class EpochEndOffset:
        error_code: Int16 = 0
        partition: Int32 = 0
        leader_epoch: Int32 = -1
        end_offset: Int64 = -1

    @struct
    class OffsetForLeaderTopicResult:
        topic: String = ""
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = field(list)

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = field(list)

"""The committed offsets of groups."""

from __future__ import annotations

from semel.wire.primitives import ZERO_UUID
from semel.wire.schema import Bool, Int16, Int32, Int64, String, Uuid, field, message, struct


@message(key=8, versions="2-10", flexible=8)
class OffsetCommitRequest:
    """Commit offsets of a group."""

    @struct
    class OffsetCommitRequestPartition:
        partition_index: Int32 = 0
        committed_offset: Int64 = 0
        committed_leader_epoch: Int32 = field(-1, since=6)
        committed_metadata: String | None = ""

    @struct
    class OffsetCommitRequestTopic:
        name: String = field("", until=9)
        topic_id: Uuid = field(ZERO_UUID, since=10)
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = field(list)

    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: String | None = field(None, since=7)
    retention_time_ms: Int64 = field(-1, until=4)
    topics: list[OffsetCommitRequestTopic] = field(list)


@message(key=8, versions="2-10", flexible=8)
class OffsetCommitResponse:
    """The result for each partition."""

    @struct
    class OffsetCommitResponsePartition:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class OffsetCommitResponseTopic:
        name: String = field("", until=9)
        topic_id: Uuid = field(ZERO_UUID, since=10)
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = field(list)

    throttle_time_ms: Int32 = field(0, since=3)
    topics: list[OffsetCommitResponseTopic] = field(list)


@message(key=9, versions="1-10", flexible=6)
class OffsetFetchRequest:
    """Ask for committed offsets. With `require_stable` offsets of open transactions are an error."""

    @struct
    class OffsetFetchRequestTopic:
        name: String = field("", until=7)
        partition_indexes: list[Int32] = field(list, until=7)

    @struct
    class OffsetFetchRequestTopics:
        name: String = field("", since=8, until=9)
        topic_id: Uuid = field(ZERO_UUID, since=10)
        partition_indexes: list[Int32] = field(list, since=8)

    @struct
    class OffsetFetchRequestGroup:
        group_id: String = field("", since=8)
        member_id: String | None = field(None, since=9)
        member_epoch: Int32 = field(-1, since=9)
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = field(list, since=8)

    group_id: String = field("", until=7)
    topics: list[OffsetFetchRequestTopic] | None = field(list, until=7, nullable_since=2)
    groups: list[OffsetFetchRequestGroup] = field(list, since=8)
    require_stable: Bool = field(False, since=7)


@message(key=9, versions="1-10", flexible=6)
class OffsetFetchResponse:
    """Offsets, -1 where there is none. From version 8 several groups at once."""

    @struct
    class OffsetFetchResponsePartition:
        partition_index: Int32 = field(0, until=7)
        committed_offset: Int64 = field(0, until=7)
        committed_leader_epoch: Int32 = field(-1, since=5, until=7)
        metadata: String | None = field("", until=7)
        error_code: Int16 = field(0, until=7)

    @struct
    class OffsetFetchResponseTopic:
        name: String = field("", until=7)
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = field(list, until=7)

    @struct
    class OffsetFetchResponsePartitions:
        partition_index: Int32 = field(0, since=8)
        committed_offset: Int64 = field(0, since=8)
        committed_leader_epoch: Int32 = field(-1, since=8)
        metadata: String | None = field("", since=8)
        error_code: Int16 = field(0, since=8)

    @struct
    class OffsetFetchResponseTopics:
        name: String = field("", since=8, until=9)
        topic_id: Uuid = field(ZERO_UUID, since=10)
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = field(list, since=8)

    @struct
    class OffsetFetchResponseGroup:
        group_id: String = field("", since=8)
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = field(list, since=8)
        error_code: Int16 = field(0, since=8)

    throttle_time_ms: Int32 = field(0, since=3)
    topics: list[OffsetFetchResponseTopic] = field(list, until=7)
    error_code: Int16 = field(0, since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = field(list, since=8)


@message(key=47, versions="0", flexible=None)
class OffsetDeleteRequest:
    """Delete committed offsets of a group."""

    @struct
    class OffsetDeleteRequestPartition:
        partition_index: Int32 = 0

    @struct
    class OffsetDeleteRequestTopic:
        name: String = ""
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = field(list)

    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = field(list)


@message(key=47, versions="0", flexible=None)
class OffsetDeleteResponse:
    """The result for each partition."""

    @struct
    class OffsetDeleteResponsePartition:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class OffsetDeleteResponseTopic:
        name: String = ""
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = field(list)

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = field(list)

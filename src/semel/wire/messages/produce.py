"""Writing record batches to partitions."""

from __future__ import annotations

from semel.wire.primitives import ZERO_UUID
from semel.wire.schema import EMPTY, Int16, Int32, Int64, Records, String, Uuid, field, message, struct


@message(key=0, versions="3-13", flexible=9)
class ProduceRequest:
    """Append these batches. `acks` is -1 (all in-sync replicas), 1 (the leader) or 0 (no answer at all)."""

    @struct
    class PartitionProduceData:
        index: Int32 = 0
        records: Records | None = None

    @struct
    class TopicProduceData:
        name: String = field("", until=12)
        topic_id: Uuid = field(ZERO_UUID, since=13)
        partition_data: list[ProduceRequest.PartitionProduceData] = field(list)

    transactional_id: String | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = field(list)


@message(key=0, versions="3-13", flexible=9)
class ProduceResponse:
    """The offset of each batch, or an error."""

    @struct
    class BatchIndexAndErrorMessage:
        batch_index: Int32 = field(0, since=8)
        batch_index_error_message: String | None = field(None, since=8)

    @struct
    class LeaderIdAndEpoch:
        leader_id: Int32 = field(-1, since=10)
        leader_epoch: Int32 = field(-1, since=10)

    @struct
    class PartitionProduceResponse:
        index: Int32 = 0
        error_code: Int16 = 0
        base_offset: Int64 = 0
        log_append_time_ms: Int64 = -1
        log_start_offset: Int64 = field(-1, since=5)
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = field(list, since=8)
        error_message: String | None = field(None, since=8)
        current_leader: ProduceResponse.LeaderIdAndEpoch = field(EMPTY, since=10, tag=0)

    @struct
    class TopicProduceResponse:
        name: String = field("", until=12)
        topic_id: Uuid = field(ZERO_UUID, since=13)
        partition_responses: list[ProduceResponse.PartitionProduceResponse] = field(list)

    @struct
    class NodeEndpoint:
        node_id: Int32 = field(0, since=10)
        host: String = field("", since=10)
        port: Int32 = field(0, since=10)
        rack: String | None = field(None, since=10)

    responses: list[TopicProduceResponse] = field(list)
    throttle_time_ms: Int32 = 0
    node_endpoints: list[NodeEndpoint] = field(list, since=10, tag=0)

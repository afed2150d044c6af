"""Producer ids and transactions."""

from __future__ import annotations

from semel.wire.schema import Bool, Int8, Int16, Int32, Int64, String, field, message, struct


@message(key=22, versions="0-6", flexible=2)
class InitProducerIdRequest:
    """Get a producer id. With a transactional id, fence its last producer and abort the transaction it left open."""

    transactional_id: String | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Int64 = field(-1, since=3)
    producer_epoch: Int16 = field(-1, since=3)
    enable2_pc: Bool = field(False, since=6)
    keep_prepared_txn: Bool = field(False, since=6)


@message(key=22, versions="0-6", flexible=2)
class InitProducerIdResponse:
    """The producer id, and the epoch that fences all older ones."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Int64 = field(-1, since=6)
    ongoing_txn_producer_epoch: Int16 = field(-1, since=6)


@message(key=24, versions="0-5", flexible=3)
class AddPartitionsToTxnRequest:
    """Add partitions to a transaction. From version 4 brokers send several transactions at once, to verify only."""

    @struct
    class AddPartitionsToTxnTopic:
        name: String = ""
        partitions: list[Int32] = field(list)

    @struct
    class AddPartitionsToTxnTransaction:
        transactional_id: String = field("", since=4)
        producer_id: Int64 = field(0, since=4)
        producer_epoch: Int16 = field(0, since=4)
        verify_only: Bool = field(False, since=4)
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = field(list, since=4)

    transactions: list[AddPartitionsToTxnTransaction] = field(list, since=4)
    v3_and_below_transactional_id: String = field("", until=3)
    v3_and_below_producer_id: Int64 = field(0, until=3)
    v3_and_below_producer_epoch: Int16 = field(0, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(list, until=3)


@message(key=24, versions="0-5", flexible=3)
class AddPartitionsToTxnResponse:
    """Up to version 3 the result of the one transaction asked about, from version 4 of each."""

    @struct
    class AddPartitionsToTxnPartitionResult:
        partition_index: Int32 = 0
        partition_error_code: Int16 = 0

    @struct
    class AddPartitionsToTxnTopicResult:
        name: String = ""
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = field(list)

    @struct
    class AddPartitionsToTxnResult:
        transactional_id: String = field("", since=4)
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = field(list, since=4)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(0, since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(list, since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(list, until=3)


@message(key=25, versions="0-4", flexible=3)
class AddOffsetsToTxnRequest:
    """Add a group's partition of `__consumer_offsets` to a transaction."""

    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


@message(key=25, versions="0-4", flexible=3)
class AddOffsetsToTxnResponse:
    """Whether TxnOffsetCommit may follow."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


@message(key=26, versions="0-5", flexible=3)
class EndTxnRequest:
    """Commit or abort."""

    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


@message(key=26, versions="0-5", flexible=3)
class EndTxnResponse:
    """The transaction is committed or aborted; from version 5 with the identity for the next one (KIP-890)."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = field(-1, since=5)
    producer_epoch: Int16 = field(-1, since=5)


@message(key=28, versions="0-5", flexible=3)
class TxnOffsetCommitRequest:
    """Commit offsets of a group as part of a transaction."""

    @struct
    class TxnOffsetCommitRequestPartition:
        partition_index: Int32 = 0
        committed_offset: Int64 = 0
        committed_leader_epoch: Int32 = field(-1, since=2)
        committed_metadata: String | None = ""

    @struct
    class TxnOffsetCommitRequestTopic:
        name: String = ""
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = field(list)

    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Int32 = field(-1, since=3)
    member_id: String = field("", since=3)
    group_instance_id: String | None = field(None, since=3)
    topics: list[TxnOffsetCommitRequestTopic] = field(list)


@message(key=28, versions="0-5", flexible=3)
class TxnOffsetCommitResponse:
    """The result for each partition."""

    @struct
    class TxnOffsetCommitResponsePartition:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class TxnOffsetCommitResponseTopic:
        name: String = ""
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = field(list)

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = field(list)


@message(key=27, versions="1-2", flexible=1)
class WriteTxnMarkersRequest:
    """From the coordinator to the partitions: commit or abort these transactions."""

    @struct
    class WritableTxnMarkerTopic:
        name: String = ""
        partition_indexes: list[Int32] = field(list)

    @struct
    class WritableTxnMarker:
        producer_id: Int64 = 0
        producer_epoch: Int16 = 0
        transaction_result: Bool = False
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = field(list)
        coordinator_epoch: Int32 = 0
        transaction_version: Int8 = field(0, since=2)

    markers: list[WritableTxnMarker] = field(list)


@message(key=27, versions="1-2", flexible=1)
class WriteTxnMarkersResponse:
    """The result for each partition."""

    @struct
    class WritableTxnMarkerPartitionResult:
        partition_index: Int32 = 0
        error_code: Int16 = 0

    @struct
    class WritableTxnMarkerTopicResult:
        name: String = ""
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = field(list)

    @struct
    class WritableTxnMarkerResult:
        producer_id: Int64 = 0
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = field(list)

    markers: list[WritableTxnMarkerResult] = field(list)


@message(key=61, versions="0", flexible=0)
class DescribeProducersRequest:
    """Ask for the active producers of partitions."""

    @struct
    class TopicRequest:
        name: String = ""
        partition_indexes: list[Int32] = field(list)

    topics: list[TopicRequest] = field(list)


@message(key=61, versions="0", flexible=0)
class DescribeProducersResponse:
    """Each producer with its last sequence and the start of its open transaction."""

    @struct
    class ProducerState:
        producer_id: Int64 = 0
        producer_epoch: Int32 = 0
        last_sequence: Int32 = -1
        last_timestamp: Int64 = -1
        coordinator_epoch: Int32 = 0
        current_txn_start_offset: Int64 = -1

    @struct
    class PartitionResponse:
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None
        active_producers: list[DescribeProducersResponse.ProducerState] = field(list)

    @struct
    class TopicResponse:
        name: String = ""
        partitions: list[DescribeProducersResponse.PartitionResponse] = field(list)

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = field(list)


@message(key=65, versions="0", flexible=0)
class DescribeTransactionsRequest:
    """Ask for the state of transactional ids."""

    transactional_ids: list[String] = field(list)


@message(key=65, versions="0", flexible=0)
class DescribeTransactionsResponse:
    """State, identity, age and partitions of each."""

    @struct
    class TopicData:
        topic: String = ""
        partitions: list[Int32] = field(list)

    @struct
    class TransactionState:
        error_code: Int16 = 0
        transactional_id: String = ""
        transaction_state: String = ""
        transaction_timeout_ms: Int32 = 0
        transaction_start_time_ms: Int64 = 0
        producer_id: Int64 = 0
        producer_epoch: Int16 = 0
        topics: list[DescribeTransactionsResponse.TopicData] = field(list)

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = field(list)


@message(key=66, versions="0-2", flexible=0)
class ListTransactionsRequest:
    """List transactional ids; an empty filter matches all."""

    state_filters: list[String] = field(list)
    producer_id_filters: list[Int64] = field(list)
    duration_filter: Int64 = field(-1, since=1)
    transactional_id_pattern: String | None = field(None, since=2)


@message(key=66, versions="0-2", flexible=0)
class ListTransactionsResponse:
    """The transactional ids this broker coordinates."""

    @struct
    class TransactionState:
        transactional_id: String = ""
        producer_id: Int64 = 0
        transaction_state: String = ""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = field(list)
    transaction_states: list[TransactionState] = field(list)

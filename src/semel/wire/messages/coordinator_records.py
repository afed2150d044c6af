"""What coordinators write into `__transaction_state` and `__consumer_offsets`, byte for byte as Kafka does.

Every key begins with the type of the record, which is the version of its class here: `encode_versioned` writes the
right one by itself. Values begin with the version of their schema. A tombstone is a key without a value. At the end
are the three other schemas that travel inside records: transaction markers, and what classic consumers tell each
other through their group.
"""

from __future__ import annotations

from typing import Any

from semel.wire.primitives import ZERO_UUID
from semel.wire.schema import EMPTY, Bytes, Int8, Int16, Int32, Int64, String, Uuid, field, message, struct


@message(key=-1, versions="0", flexible=None)
class TransactionLogKey:
    """The transactional id."""

    transactional_id: String = ""


@message(key=-1, versions="0-1", flexible=1)
class TransactionLogValue:
    """The state of a transactional id. Version 0 up to transaction.version 0, then version 1."""

    @struct
    class PartitionsSchema:
        topic: String = ""
        partition_ids: list[Int32] = field(list)

    producer_id: Int64 = 0
    previous_producer_id: Int64 = field(-1, since=1, tag=0)
    next_producer_id: Int64 = field(-1, since=1, tag=1)
    producer_epoch: Int16 = 0
    next_producer_epoch: Int16 = field(-1, since=1, tag=3)
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = field(list)
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Int16 = field(0, since=1, tag=2)


@message(key=-1, versions="0-1", flexible=None)
class OffsetCommitKey:
    """Group, topic and partition."""

    group: String = ""
    topic: String = ""
    partition: Int32 = 0


@message(key=-1, versions="0-4", flexible=4)
class OffsetCommitValue:
    """A committed offset."""

    offset: Int64 = 0
    leader_epoch: Int32 = field(-1, since=3)
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Int64 = field(-1, since=1, until=1)
    topic_id: Uuid = field(ZERO_UUID, since=4, tag=0)


@message(key=-1, versions="2", flexible=None)
class GroupMetadataKey:
    """A classic group."""

    group: String = ""


@message(key=-1, versions="0-4", flexible=4)
class GroupMetadataValue:
    """Its generation and its members."""

    @struct
    class MemberMetadata:
        member_id: String = ""
        group_instance_id: String | None = field(None, since=3)
        client_id: String = ""
        client_host: String = ""
        rebalance_timeout: Int32 = field(-1, since=1)
        session_timeout: Int32 = 0
        subscription: Bytes = b""
        assignment: Bytes = b""

    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = ""
    leader: String | None = ""
    current_state_timestamp: Int64 = field(-1, since=2)
    members: list[MemberMetadata] = field(list)


@message(key=-1, versions="3", flexible=None)
class ConsumerGroupMetadataKey:
    """A group of KIP-848."""

    group_id: String = ""


@message(key=-1, versions="0", flexible=0)
class ConsumerGroupMetadataValue:
    """Its epoch."""

    epoch: Int32 = 0
    metadata_hash: Int64 = field(0, tag=0)


@message(key=-1, versions="4", flexible=None)
class ConsumerGroupPartitionMetadataKey:
    """The topics a group reads, as Kafka before 4.1 remembered them."""

    group_id: String = ""


@message(key=-1, versions="0", flexible=0)
class ConsumerGroupPartitionMetadataValue:
    """Their partitions."""

    @struct
    class PartitionMetadata:
        partition: Int32 = 0
        racks: list[String] = field(list)

    @struct
    class TopicMetadata:
        topic_id: Uuid = ZERO_UUID
        topic_name: String = ""
        num_partitions: Int32 = 0
        partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata] = field(list)

    topics: list[TopicMetadata] = field(list)


@message(key=-1, versions="5", flexible=None)
class ConsumerGroupMemberMetadataKey:
    """A member of a group."""

    group_id: String = ""
    member_id: String = ""


@message(key=-1, versions="0", flexible=0)
class ConsumerGroupMemberMetadataValue:
    """What it subscribes to, and from where."""

    @struct
    class ClassicProtocol:
        name: String = ""
        metadata: Bytes = b""

    @struct
    class ClassicMemberMetadata:
        session_timeout_ms: Int32 = 0
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol] = field(list)

    instance_id: String | None = ""
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field(list)
    subscribed_topic_regex: String | None = ""
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = ""
    classic_member_metadata: ClassicMemberMetadata | None = field(EMPTY, tag=0)


@message(key=-1, versions="6", flexible=None)
class ConsumerGroupTargetAssignmentMetadataKey:
    """The target assignment of a group."""

    group_id: String = ""


@message(key=-1, versions="0", flexible=0)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch it was computed in."""

    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(0, tag=0)


@message(key=-1, versions="7", flexible=None)
class ConsumerGroupTargetAssignmentMemberKey:
    """A member's part in the target assignment."""

    group_id: String = ""
    member_id: String = ""


@message(key=-1, versions="0", flexible=0)
class ConsumerGroupTargetAssignmentMemberValue:
    """Its target partitions."""

    @struct
    class TopicPartition:
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = field(list)

    topic_partitions: list[TopicPartition] = field(list)


@message(key=-1, versions="8", flexible=None)
class ConsumerGroupCurrentMemberAssignmentKey:
    """A member's current assignment."""

    group_id: String = ""
    member_id: String = ""


@message(key=-1, versions="0", flexible=0)
class ConsumerGroupCurrentMemberAssignmentValue:
    """The partitions it has, and those it has to give back."""

    @struct
    class TopicPartitions:
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = field(list)
        assignment_epochs: list[Int32] | None = field(list, tag=0)

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = field(list)
    partitions_pending_revocation: list[TopicPartitions] = field(list)


@message(key=-1, versions="16", flexible=None)
class ConsumerGroupRegularExpressionKey:
    """A regular expression a group subscribes by."""

    group_id: String = ""
    regular_expression: String = ""


@message(key=-1, versions="0", flexible=0)
class ConsumerGroupRegularExpressionValue:
    """The topics it matched."""

    topics: list[String] = field(list)
    version: Int64 = 0
    timestamp: Int64 = 0


@message(key=-1, versions="0", flexible=None)
class EndTxnMarker:
    """The value of a control record that ends a transaction."""

    coordinator_epoch: Int32 = 0


@message(key=-1, versions="0-3", flexible=None)
class ConsumerProtocolSubscription:
    """What a classic consumer sends to the leader of its group: its topics, and the partitions it holds."""

    @struct
    class TopicPartition:
        topic: String = field("", since=1)
        partitions: list[Int32] = field(list, since=1)

    topics: list[String] = field(list)
    user_data: Bytes | None = None
    owned_partitions: list[TopicPartition] = field(list, since=1)
    generation_id: Int32 = field(-1, since=2)
    rack_id: String | None = field(None, since=3)


@message(key=-1, versions="0-3", flexible=None)
class ConsumerProtocolAssignment:
    """The partitions that the leader of a classic group assigns to a consumer."""

    @struct
    class TopicPartition:
        topic: String = ""
        partitions: list[Int32] = field(list)

    assigned_partitions: list[TopicPartition] = field(list)
    user_data: Bytes | None = None


#: The type that begins a key of `__consumer_offsets` -> the classes of key and value. Types 0 and 1 are both offset
#: commits: 0 is what Kafka 0.8 wrote.
CONSUMER_OFFSETS_RECORDS: dict[int, tuple[type[Any], type[Any]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}

#: The same for `__transaction_state`.
TRANSACTION_STATE_RECORDS: dict[int, tuple[type[Any], type[Any]]] = {0: (TransactionLogKey, TransactionLogValue)}

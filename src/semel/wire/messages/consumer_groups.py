"""Consumer groups of KIP-848, where the coordinator assigns."""

from __future__ import annotations

from semel.wire.primitives import ZERO_UUID
from semel.wire.schema import EMPTY, Bool, Int8, Int16, Int32, String, Uuid, field, message, struct


@message(key=68, versions="0-1", flexible=0)
class ConsumerGroupHeartbeatRequest:
    """Join (epoch 0), stay, or leave (-1, static -2). Null: unchanged since the last heartbeat."""

    @struct
    class TopicPartitions:
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = field(list)

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: String | None = field(None, since=1)
    server_assignor: String | None = None
    topic_partitions: list[TopicPartitions] | None = None


@message(key=68, versions="0-1", flexible=0)
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment when that has changed."""

    @struct
    class TopicPartitions:
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = field(list)

    @struct
    class Assignment:
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = field(list)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None


@message(key=69, versions="0-1", flexible=0)
class ConsumerGroupDescribeRequest:
    """Ask for the state of groups."""

    group_ids: list[String] = field(list)
    include_authorized_operations: Bool = False


@message(key=69, versions="0-1", flexible=0)
class ConsumerGroupDescribeResponse:
    """State and epochs of each group; current and target assignment of each member."""

    @struct
    class TopicPartitions:
        topic_id: Uuid = ZERO_UUID
        topic_name: String = ""
        partitions: list[Int32] = field(list)

    @struct
    class Assignment:
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = field(list)

    @struct
    class Member:
        member_id: String = ""
        instance_id: String | None = None
        rack_id: String | None = None
        member_epoch: Int32 = 0
        client_id: String = ""
        client_host: String = ""
        subscribed_topic_names: list[String] = field(list)
        subscribed_topic_regex: String | None = None
        assignment: ConsumerGroupDescribeResponse.Assignment = field(EMPTY)
        target_assignment: ConsumerGroupDescribeResponse.Assignment = field(EMPTY)
        member_type: Int8 = field(-1, since=1)

    @struct
    class DescribedGroup:
        error_code: Int16 = 0
        error_message: String | None = None
        group_id: String = ""
        group_state: String = ""
        group_epoch: Int32 = 0
        assignment_epoch: Int32 = 0
        assignor_name: String = ""
        members: list[ConsumerGroupDescribeResponse.Member] = field(list)
        authorized_operations: Int32 = -2_147_483_648

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = field(list)

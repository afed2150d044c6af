"""Metadata, DescribeTopicPartitions, DescribeCluster: who leads what, and where to find it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from semel.broker.partitions import INTERNAL_TOPICS, Topic, check_topic_name
from semel.errors import ErrorCode, Refused
from semel.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

NO_ID = uuid.UUID(int=0)
#: What Kafka reports where nobody asked for the operations one may perform.
NOT_ASKED = -(2**31)
#: Everything an unrestricted client may do to a topic and to the cluster, as Kafka's operation bits.
TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


def metadata(broker: BrokerServer, request: MetadataRequest, call: Call) -> MetadataResponse:
    """The cluster and the topics asked for, created first where that is allowed."""
    wanted = request.topics
    if wanted is None or (not wanted and call.version == 0):
        topics = [_described(broker, topic, call.version, request) for topic in broker.topics.topics.values()]
    else:
        topics = [_one(broker, row, call.version, request) for row in wanted]
    host, port = broker.endpoint
    node = MetadataResponse.MetadataResponseBroker(node_id=broker.node_id, host=host, port=port, rack=broker.rack)
    return MetadataResponse(
        brokers=[node],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _one(
    broker: BrokerServer, row: MetadataRequest.MetadataRequestTopic, version: int, request: MetadataRequest
) -> MetadataResponse.MetadataResponseTopic:
    by_id = version >= 10 and row.topic_id != NO_ID
    try:
        if by_id:
            topic = broker.topics.by_topic_id(row.topic_id)
        elif row.name is None:
            raise Refused(ErrorCode.INVALID_REQUEST, "a topic is asked for by neither name nor id")
        else:
            topic = _found_or_created(broker, row.name, request.allow_auto_topic_creation or version < 4)
    except Refused as error:
        return MetadataResponse.MetadataResponseTopic(
            error_code=error.code, name=row.name if version >= 12 else row.name or "", topic_id=row.topic_id
        )
    return _described(broker, topic, version, request)


def _found_or_created(broker: BrokerServer, name: str, may_create: bool) -> Topic:
    topic = broker.topics.topics.get(name)
    if topic is not None:
        return topic
    check_topic_name(name)
    if not may_create or not broker.settings["auto.create.topics.enable"]:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    if name in INTERNAL_TOPICS:
        return broker.internal_topic(name)
    return broker.topics.create(name, broker.settings["num.partitions"])


def _described(
    broker: BrokerServer, topic: Topic, version: int, request: MetadataRequest
) -> MetadataResponse.MetadataResponseTopic:
    node = [broker.node_id]
    row = MetadataResponse.MetadataResponsePartition
    return MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            row(
                partition_index=index,
                leader_id=broker.node_id,
                leader_epoch=broker.leader_epoch,
                replica_nodes=node,
                isr_nodes=node,
            )
            for index in range(len(topic.partitions))
        ],
        topic_authorized_operations=TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED,
    )


def describe_topic_partitions(
    broker: BrokerServer, request: DescribeTopicPartitionsRequest, call: Call
) -> DescribeTopicPartitionsResponse:
    """Topics in name order, at most as many partitions as asked, and where to go on."""
    names = sorted({row.name for row in request.topics}) if request.topics else sorted(broker.topics.topics)
    first_partition = 0
    cursor = request.cursor
    if cursor is not None:
        if cursor.partition_index < 0:
            raise Refused(ErrorCode.INVALID_REQUEST, "the cursor's partition is negative")
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_partition = cursor.partition_index
    left = max(1, min(request.response_partition_limit, 2000))
    response = DescribeTopicPartitionsResponse()
    node = [broker.node_id]
    for name in names:
        if left <= 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
            break
        found = broker.topics.topics.get(name)
        row = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(name=name)
        response.topics.append(row)
        if found is None:
            row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        row.topic_id, row.is_internal = found.topic_id, found.internal
        row.topic_authorized_operations = TOPIC_OPERATIONS
        end = min(len(found.partitions), first_partition + left)
        for index in range(first_partition, end):
            row.partitions.append(
                DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
                    partition_index=index,
                    leader_id=broker.node_id,
                    leader_epoch=broker.leader_epoch,
                    replica_nodes=node,
                    isr_nodes=node,
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                )
            )
        left -= max(0, end - first_partition)
        if end < len(found.partitions):
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=end)
            break
        first_partition = 0
    return response


def describe_cluster(broker: BrokerServer, request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    """The one broker there is."""
    if request.endpoint_type != 1:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == 2
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this endpoint serves brokers",
            endpoint_type=request.endpoint_type,
        )
    host, port = broker.endpoint
    node = DescribeClusterResponse.DescribeClusterBroker(
        broker_id=broker.node_id, host=host, port=port, rack=broker.rack
    )
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=[node],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )

"""Metadata, DescribeTopicPartitions, DescribeCluster: the brokers, the topics, and who leads each partition."""

from __future__ import annotations

import heapq
import logging
import uuid
from collections.abc import Generator
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.access.operations import authorized_operations, cluster_operations
from semel.broker.dispatch import Pace
from semel.broker.topics.internal import INTERNAL_TOPICS
from semel.broker.topics.topic import Topic, check_new_partitions, check_topic_name, flat_name
from semel.errors import ErrorCode, Refused
from semel.machines.security.access import Operation, ResourceType
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
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

NO_ID = uuid.UUID(int=0)
#: To sort the names of the largest request at once would take too long.
SORTED_AT_ONCE = 2000
#: How many nodes of ZooKeeper that cannot be read are named in one answer.
UNREADABLE_NAMED = 100
#: What Kafka reports if the client did not ask for the authorized operations.
NOT_ASKED = -(2**31)


def may_create(broker: BrokerServer, request: MetadataRequest, call: Call) -> bool:
    """Whether a topic that is asked for and missing is created."""
    return (request.allow_auto_topic_creation or call.version < 4) and broker.settings["auto.create.topics.enable"]


def metadata(broker: BrokerServer, request: MetadataRequest, call: Call) -> Generator[None, None, Any]:
    """Describe the cluster and the requested topics.

    A missing topic is created if that is allowed. As in Kafka it is still answered as unknown: clients ask again, and
    find it then. In a cluster, while a leader has just died, the answer waits for the election: a client that is sent
    to the dead one, or told of none, waits longer before it asks again.
    """
    if broker.cluster is not None and broker.cluster.certificates.expects_elections():
        return _once_elected(broker, request, call)
    return (yield from _metadata(broker, request, call))


def _names(broker: BrokerServer, request: MetadataRequest) -> list[str] | None:
    """The topics that are asked for; None for all."""
    if request.topics is None:
        return None
    by_id = broker.topics.by_id
    return [row.name or (by_id[row.topic_id].name if row.topic_id in by_id else "") for row in request.topics]


async def _once_elected(broker: BrokerServer, request: MetadataRequest, call: Call) -> Any:
    assert broker.cluster is not None
    await broker.cluster.certificates.elected(_names(broker, request))
    pace, steps = Pace(broker, call), _metadata(broker, request, call)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return await done.value if type(done.value) is CoroutineType else done.value
        await pace.rest()


def _metadata(broker: BrokerServer, request: MetadataRequest, call: Call) -> Generator[None, None, Any]:
    wanted = request.topics
    missing: list[str] = []
    if wanted is None or (not wanted and call.version == 0):
        topics = []
        for topic in list(broker.topics.topics.values()):
            topics.append(_topic_row(broker, topic, call, request))
            yield
    else:
        topics, missing = yield from _requested_topics(broker, wanted, call, request)
    row = MetadataResponse.MetadataResponseBroker
    response = MetadataResponse(
        brokers=[row(node_id=node, host=host, port=port, rack=rack) for node, host, port, rack in _nodes(broker, call)],
        cluster_id=broker.data.cluster_id,
        controller_id=_who_serves_administrators(broker),
        topics=topics,
        cluster_authorized_operations=(
            cluster_operations(broker, call) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
    if missing and may_create(broker, request, call):
        return _after_creating(broker, missing, call, response)
    return response


def _nodes(broker: BrokerServer, call: Call, *, live_only: bool = False) -> list[tuple[int, str, int, str | None]]:
    """(id, host, port, rack) of every broker, as this client is told."""
    if broker.cluster is None:
        return [(broker.node_id, *call.connection.endpoint, broker.rack)]
    from semel.broker.replication.answers import brokers

    return brokers(broker.cluster, call, live_only=live_only)


def _fenced(broker: BrokerServer, call: Call) -> list[tuple[int, str, int, str | None]]:
    """The same of brokers that the cluster knows and that are not there."""
    if broker.cluster is None:
        return []
    from semel.broker.replication.answers import fenced_brokers

    return fenced_brokers(broker.cluster, call)


def _who_serves_administrators(broker: BrokerServer) -> int:
    """The controller; while there is none, this broker. Any broker serves administrators (E10), and a client that is
    told that nobody does may wait for minutes before it asks again."""
    controller = _controller(broker)
    if broker.cluster is not None and controller not in broker.cluster.reader.registrations:
        return broker.node_id
    return controller


def _controller(broker: BrokerServer) -> int:
    if broker.cluster is None:
        return broker.node_id
    controller = broker.cluster.image.controller
    return -1 if controller is None else controller


def _controller_now(broker: BrokerServer) -> int:
    """Nobody while ZooKeeper is away: then nothing is decided, whoever decided before."""
    is_known = broker.cluster is None or broker.cluster.reaches_zookeeper
    return _controller(broker) if is_known else -1


def _requested_topics(
    broker: BrokerServer,
    wanted: list[MetadataRequest.MetadataRequestTopic],
    call: Call,
    request: MetadataRequest,
) -> Generator[None, None, tuple[list[MetadataResponse.MetadataResponseTopic], list[str]]]:
    """The rows of the requested topics, each once, and the names of those that could be created.

    In Kafka's order: unknown ids, existing topics, unknown names.
    """
    version = call.version
    known: dict[str, MetadataResponse.MetadataResponseTopic] = {}
    missing: dict[str, MetadataResponse.MetadataResponseTopic] = {}
    by_neither = []
    for row in wanted:
        yield
        by_id = version >= 10 and row.topic_id != NO_ID
        name = str(row.topic_id) if by_id else row.name
        if name is None:
            by_neither.append(
                MetadataResponse.MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name="", topic_id=NO_ID)
            )
            continue
        if name in missing:
            continue
        topic = broker.topics.by_id.get(row.topic_id) if by_id else broker.topics.topics.get(name)
        if topic is None:
            missing[name] = _unknown_id(row, version) if by_id else _unknown_name(broker, name, call, request)
        elif topic.name not in known:
            known[topic.name] = _topic_row(broker, topic, call, request)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    could_be = [name for name, answer in missing.items() if answer.error_code == unknown]
    ids = [answer for answer in missing.values() if answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID]
    names = [answer for answer in missing.values() if answer.error_code != ErrorCode.UNKNOWN_TOPIC_ID]
    return [*ids, *known.values(), *names, *by_neither], could_be


def _unknown_id(row: MetadataRequest.MetadataRequestTopic, version: int) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None if version >= 12 else row.name or "", topic_id=row.topic_id
    )


def _unknown_name(
    broker: BrokerServer, name: str, call: Call, request: MetadataRequest
) -> MetadataResponse.MetadataResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except Refused as error:
        code = error.code
    return MetadataResponse.MetadataResponseTopic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_id=NO_ID,
        topic_authorized_operations=_operations(broker, name, call, request),
    )


def _operations(broker: BrokerServer, name: str, call: Call, request: MetadataRequest) -> int:
    if not request.include_topic_authorized_operations:
        return NOT_ASKED
    return authorized_operations(broker, call, ResourceType.TOPIC, name)


async def _after_creating(
    broker: BrokerServer, names: list[str], call: Call, response: MetadataResponse
) -> MetadataResponse:
    await broker.changes.run(_create(broker, names, call))
    return response


async def _create(broker: BrokerServer, names: list[str], call: Call) -> None:
    """Create topics, unless there are too many. The answer only says that they do not exist yet."""
    partition_count = broker.settings["num.partitions"]
    try:
        check_new_partitions(len(names) * partition_count)
    except Refused as error:
        logger.warning("%d topics were asked for and cannot be created: %s", len(names), error)
        return
    pace = Pace(broker, call)
    planned: list[tuple[Topic, int]] = []
    flat_names: dict[str, str] = {}
    for name in names:
        await pace.rest()
        if name in broker.topics.topics:
            continue  # another request has created it
        if not _is_allowed(broker, call, name):
            continue  # when the guard looked, the topic was there
        if broker.cluster is not None:
            await _create_in_cluster(broker, broker.cluster, name, partition_count)
            continue
        try:
            if name in INTERNAL_TOPICS:
                broker.internal_topics.get(name)
                continue
            topic = broker.topics.new_topic(name, planned_names=flat_names)
            if broker.quotas is not None:
                broker.quotas.mutation(call, strict_since=0).take(partition_count)
            planned.append((topic, partition_count))
            flat_names[flat_name(name)] = name
        except Refused as error:
            if broker.topics.gone is None:  # that was logged once, and clients ask again and again
                logger.warning("topic %s was asked for and cannot be created: %s", name, error)
    if planned:
        try:
            await broker.topics.create_all(planned, pace.rest)
            broker.open_soon([partition for topic, _ in planned for partition in topic.partitions])
        except Refused as error:
            if broker.topics.gone is None:
                logger.warning("%d topics were asked for and cannot be created: %s", len(planned), error)


def _is_allowed(broker: BrokerServer, call: Call, name: str) -> bool:
    access = broker.access
    return (
        access is None
        or access.allows_on_cluster(call, Operation.CREATE, logged=False)
        or access.allows(call, Operation.CREATE, ResourceType.TOPIC, name)
    )


async def _create_in_cluster(broker: BrokerServer, cluster: Membership, name: str, partition_count: int) -> None:
    from semel.broker.replication.topics import create, placement

    if name in INTERNAL_TOPICS:
        return
    try:
        await cluster.know_brokers()
        topic = broker.topics.new_topic(name)
        factor = broker.settings["default.replication.factor"]
        await create(cluster, topic, placement(cluster, name, partition_count, factor))
    except Refused as error:
        logger.warning("topic %s was asked for and cannot be created: %s", name, error)


def _topic_row(
    broker: BrokerServer, topic: Topic, call: Call, request: MetadataRequest
) -> MetadataResponse.MetadataResponseTopic:
    node = [broker.node_id]
    row = MetadataResponse.MetadataResponsePartition
    if broker.cluster is not None:
        return _replicated_row(broker, topic, call, request)
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
        topic_authorized_operations=_operations(broker, topic.name, call, request),
    )


def _replicated_row(
    broker: BrokerServer, topic: Topic, call: Call, request: MetadataRequest
) -> MetadataResponse.MetadataResponseTopic:
    from semel.broker.replication.answers import led

    assert broker.cluster is not None
    partitions = []
    for index in range(len(topic.partitions)):
        code, leader, epoch, replicas, in_sync, offline = led(broker.cluster, topic.name, index)
        partitions.append(
            MetadataResponse.MetadataResponsePartition(
                error_code=code,
                partition_index=index,
                leader_id=leader,
                leader_epoch=epoch,
                replica_nodes=replicas,
                isr_nodes=in_sync,
                offline_replicas=offline,
            )
        )
    return MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=_operations(broker, topic.name, call, request),
    )


def is_no_cursor(cursor: DescribeTopicPartitionsRequest.Cursor | None) -> bool:
    """Whether it is where no answer could have ended: the request is refused, whoever asks about whatever topics."""
    return cursor is not None and cursor.partition_index < 0


def describe_topic_partitions(
    broker: BrokerServer, request: DescribeTopicPartitionsRequest, call: Call
) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    """Describe topics in name order, up to the requested number of partitions, and say where to continue."""
    cursor = request.cursor
    if is_no_cursor(cursor):
        # The response has no error of its own: Kafka puts it beside each name, and says nothing if there is none.
        refused = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
        answers = [refused(name=row.name, error_code=ErrorCode.INVALID_REQUEST) for row in request.topics]
        return DescribeTopicPartitionsResponse(topics=answers)
    names = [row.name for row in request.topics] if request.topics else list(broker.topics.topics)
    runs = []
    for start in range(0, len(names), SORTED_AT_ONCE):
        runs.append(sorted(names[start : start + SORTED_AT_ONCE]))
        yield
    left = max(1, min(request.response_partition_limit, 2000))
    response = DescribeTopicPartitionsResponse()
    node = [broker.node_id]
    previous = None
    for name in heapq.merge(*runs):
        yield
        if name == previous or (cursor is not None and name < cursor.topic_name):
            continue
        first_partition = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        previous = name
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
        row.topic_authorized_operations = authorized_operations(broker, call, ResourceType.TOPIC, name)
        end = min(len(found.partitions), first_partition + left)
        for index in range(first_partition, end):
            described = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=broker.node_id,
                leader_epoch=broker.leader_epoch,
                replica_nodes=node,
                isr_nodes=node,
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            if broker.cluster is not None:
                _describe_replicas(broker.cluster, name, described)
            row.partitions.append(described)
        left -= max(0, end - first_partition)
        if end < len(found.partitions):
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=end)
            break
    return response


def _describe_replicas(
    cluster: Membership,
    name: str,
    row: DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition,
) -> None:
    from semel.broker.replication.answers import led

    row.error_code, row.leader_id, row.leader_epoch, row.replica_nodes, row.isr_nodes, row.offline_replicas = led(
        cluster, name, row.partition_index
    )
    state = cluster.state_of(name, row.partition_index)[0]
    row.eligible_leader_replicas = [] if state is None else list(state.elr)


def describe_cluster(broker: BrokerServer, request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    """Describe the brokers."""
    if request.endpoint_type != 1:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == 2
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this endpoint serves brokers",
        )
    row = DescribeClusterResponse.DescribeClusterBroker
    fenced = _fenced(broker, call) if request.include_fenced_brokers else []
    return DescribeClusterResponse(
        # Beside success clients do not look at it. `semel cluster status` does.
        error_message=_unreadable_nodes(broker, call),
        cluster_id=broker.data.cluster_id,
        controller_id=_controller_now(broker),
        brokers=[
            row(broker_id=node, host=host, port=port, rack=rack)
            for node, host, port, rack in _nodes(broker, call, live_only=True)
        ]
        + [
            row(broker_id=node, host=host, port=port, rack=rack, is_fenced=True) for node, host, port, rack in fenced
        ],
        cluster_authorized_operations=(
            cluster_operations(broker, call) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _unreadable_nodes(broker: BrokerServer, call: Call) -> str | None:
    """What this broker cannot read in ZooKeeper, a line for each, for who may describe the cluster; None if nothing."""
    if broker.cluster is None or not (nodes := broker.cluster.unreadable_nodes()):
        return None
    access = broker.access
    if access is not None and not access.allows_on_cluster(call, Operation.DESCRIBE, logged=False):
        return None
    return "\n".join(nodes[:UNREADABLE_NAMED])

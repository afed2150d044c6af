"""Topics: create, delete, add partitions, delete records, reassign partitions, elect leaders."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.broker.configs import describe_topic_settings
from semel.broker.dispatch import Pace
from semel.broker.handlers.metadata import NO_ID
from semel.broker.topics.internal import INTERNAL_TOPICS, PARTITIONS_OF_INTERNAL_TOPICS
from semel.broker.topics.partition import Partition
from semel.broker.topics.topic import Topic, check_new_partitions, flat_name
from semel.errors import ErrorCode, Refused
from semel.log.retention import Deletion, write_deletions
from semel.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.quotas import MutationQuota
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer


#: The preferred leaders, or any.
ELECTION_TYPES = (0, 1)


def create_topics(broker: BrokerServer, request: CreateTopicsRequest, call: Call) -> Any:
    """Create topics. A topic that cannot be created gets an error, the others are created."""
    return broker.changes.run(_create_topics(broker, request, call))


async def _create_topics(broker: BrokerServer, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    pace = Pace(broker, call)
    asked = {topic.name: topic for topic in request.topics}
    times = Counter(topic.name for topic in request.topics)
    new_partitions = sum(len(topic.assignments) or max(topic.num_partitions, 1) for topic in request.topics)
    mutation = None if broker.quotas is None else broker.quotas.mutation(call, strict_since=6)
    results = []
    planned: list[tuple[Topic, int]] = []
    written: list[CreateTopicsResponse.CreatableTopicResult] = []
    flat_names: dict[str, str] = {}
    if broker.cluster is not None:
        await broker.cluster.know_brokers()
    for name, topic in asked.items():
        await pace.rest()
        result = CreateTopicsResponse.CreatableTopicResult(name=name, error_message=None)
        results.append(result)
        try:
            check_new_partitions(new_partitions)
            if times[name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, f"topic {name!r} is in the request more than once")
            # In Kafka's order. Programs that create what may exist expect TOPIC_ALREADY_EXISTS, whatever else is wrong.
            broker.topics.check_new_name(name, flat_names)
            overrides = _settings(topic)
            created = broker.topics.new_topic(name, overrides, flat_names)
            count = _count(broker, topic)
            _check_coordinators_topic(broker, name, count, overrides)
            if mutation is not None:
                mutation.take(count)
            replicas = _placed(broker, topic, count)
            if not request.validate_only:
                if broker.cluster is not None:
                    await _create_in_cluster(broker.cluster, created, replicas)
                elif created.internal:
                    # Created at once: the broker may create its own topics at any time.
                    created = broker.topics.create(name, count, overrides)
                    broker.open_soon(created.partitions)
                else:
                    planned.append((created, count))
                    written.append(result)
                flat_names[flat_name(name)] = name
                result.topic_id = created.topic_id
            _describe(broker, created, count, result)
            if replicas:
                result.replication_factor = len(replicas[0])
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
    if planned:
        try:
            await broker.topics.create_all(planned, pace.rest)
            broker.open_soon([partition for topic, _ in planned for partition in topic.partitions])
        except Refused as error:
            for result in written:
                result.topic_id, result.configs = NO_ID, []
                result.num_partitions = result.replication_factor = -1
                result.error_code, result.error_message = error.code, error.why
    return CreateTopicsResponse(topics=results, throttle_time_ms=_throttle_time_ms(mutation))


def _placed(
    broker: BrokerServer, topic: CreateTopicsRequest.CreatableTopic, count: int
) -> dict[int, tuple[int, ...]]:
    """In a cluster: where the partitions of a new topic go."""
    if broker.cluster is None:
        return {}
    from semel.broker.replication.topics import placement
    from semel.machines.controller.admin import check_assignment

    if topic.name in INTERNAL_TOPICS:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal: a cluster creates it by itself")
    if topic.assignments:
        chosen = {row.partition_index: tuple(row.broker_ids) for row in topic.assignments}
        check_assignment(broker.cluster.image, chosen)
        return chosen
    factor = topic.replication_factor
    if factor == -1:
        factor = broker.settings["default.replication.factor"]
    return placement(broker.cluster, topic.name, count, factor)


async def _create_in_cluster(cluster: Membership, topic: Topic, replicas: dict[int, tuple[int, ...]]) -> None:
    from semel.broker.replication.topics import create

    await create(cluster, topic, replicas)


def _check_coordinators_topic(broker: BrokerServer, name: str, count: int, overrides: dict[str, str]) -> None:
    """Refuse an internal topic with other settings: a coordinator needs its number of partitions and compaction."""
    if name not in INTERNAL_TOPICS:
        return
    setting = PARTITIONS_OF_INTERNAL_TOPICS[name]
    if count != broker.settings[setting]:
        why = f"{name} is internal and has {setting}={broker.settings[setting]} partitions, not {count}"
        raise Refused(ErrorCode.INVALID_PARTITIONS, why)
    if overrides["cleanup.policy"] != "compact":
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name} is internal: its cleanup.policy is compact")


def _throttle_time_ms(mutation: MutationQuota | None) -> int:
    return 0 if mutation is None else mutation.throttle_time_ms


def _settings(topic: CreateTopicsRequest.CreatableTopic) -> dict[str, str]:
    """The settings of its own that a new topic is to have."""
    overrides: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{config.name} has no value")
        if config.name in overrides:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{config.name} is given more than once")
        overrides[config.name] = config.value
    if topic.name in INTERNAL_TOPICS:
        overrides.setdefault("cleanup.policy", "compact")
    return overrides


def _count(broker: BrokerServer, topic: CreateTopicsRequest.CreatableTopic) -> int:
    """The number of partitions of a new topic."""
    if topic.assignments:
        return _assigned_count(broker, topic)
    partition_count: int = broker.settings["num.partitions"] if topic.num_partitions == -1 else topic.num_partitions
    if partition_count < 1:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"{topic.num_partitions} partitions: at least one is needed")
    if broker.cluster is None and topic.replication_factor not in (-1, 1):
        why = f"replication factor {topic.replication_factor}: there is one broker"
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, why)
    return partition_count


def _describe(
    broker: BrokerServer, topic: Topic, partition_count: int, result: CreateTopicsResponse.CreatableTopicResult
) -> None:
    result.num_partitions, result.replication_factor = partition_count, 1
    result.configs = [
        CreateTopicsResponse.CreatableTopicConfigs(name=row.name, value=row.value, config_source=row.source)
        for row in describe_topic_settings(broker.stores.broker_settings, topic)
    ]


def _assigned_count(broker: BrokerServer, topic: CreateTopicsRequest.CreatableTopic) -> int:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise Refused(ErrorCode.INVALID_REQUEST, "give either an assignment or counts, not both")
    if sorted(one.partition_index for one in topic.assignments) != list(range(len(topic.assignments))):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without gaps")
    for one in topic.assignments:
        if broker.cluster is None and list(one.broker_ids) != [broker.node_id]:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {broker.node_id}")
    return len(topic.assignments)


def delete_topics(broker: BrokerServer, request: DeleteTopicsRequest, call: Call) -> Any:
    """Delete topics by name or by id."""
    return broker.changes.run(_delete_topics(broker, request, call))


def _doomed_by_request(
    request: DeleteTopicsRequest,
) -> tuple[list[tuple[str | None, uuid.UUID]], Counter[str], Counter[uuid.UUID]]:
    """The requested topics by name and id, and how often each name and each id is in the request."""
    asked = [(row.name, row.topic_id) for row in request.topics]
    asked += [(name, NO_ID) for name in request.topic_names]
    names = Counter(name for name, _ in asked if name is not None)
    ids = Counter(topic_id for name, topic_id in asked if name is None)
    return list(dict.fromkeys(asked)), names, ids


async def _delete_topics(broker: BrokerServer, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    look_over = partial(_doomed_by_request, request)
    asked, names, ids = await broker.beside(look_over) if call.is_long else look_over()
    pace = Pace(broker, call)
    mutation = None if broker.quotas is None else broker.quotas.mutation(call, strict_since=5)
    responses = []
    doomed: dict[str, tuple[Topic, DeleteTopicsResponse.DeletableTopicResult]] = {}
    if broker.cluster is not None:
        await broker.cluster.know_topics(name for name, _ in asked)
    for name, topic_id in asked:
        await pace.rest()
        result = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
        responses.append(result)
        try:
            if not broker.settings["delete.topic.enable"]:
                raise Refused(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
            if (name is None) == (topic_id == NO_ID):
                raise Refused(ErrorCode.INVALID_REQUEST, "give either the name or the id of a topic")
            if (names[name] if name is not None else ids[topic_id]) > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{name or topic_id} is in the request more than once")
            topic = broker.topics.get(name) if name is not None else broker.topics.by_topic_id(topic_id)
            if name is None and names[topic.name]:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{topic.name} is in the request by its name as well")
            result.name, result.topic_id = topic.name, topic.topic_id
            if name is not None and ids[topic.topic_id]:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{name} is in the request by its id as well")
            if topic.internal:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{topic.name} is internal: it cannot be deleted")
            if mutation is not None:
                mutation.take(len(topic.partitions))
            doomed[topic.name] = topic, result
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
    if broker.cluster is not None:
        await _delete_in_cluster(broker.cluster, doomed.values())
    elif doomed:
        try:
            await broker.topics.delete_all([topic for topic, _ in doomed.values()], pace.rest)
        except Refused as error:
            for _, result in doomed.values():
                result.error_code, result.error_message = error.code, error.why
    return DeleteTopicsResponse(responses=responses, throttle_time_ms=_throttle_time_ms(mutation))


async def _delete_in_cluster(
    cluster: Membership, doomed: Iterable[tuple[Topic, DeleteTopicsResponse.DeletableTopicResult]]
) -> None:
    from semel.broker.replication.topics import delete

    for topic, result in doomed:
        try:
            await delete(cluster, topic)
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why


def create_partitions(broker: BrokerServer, request: CreatePartitionsRequest, call: Call) -> Any:
    """Add partitions to topics."""
    return broker.changes.run(_create_partitions(broker, request, call))


async def _create_partitions(
    broker: BrokerServer, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    pace = Pace(broker, call)
    results = []
    asked = {row.name: row for row in request.topics}
    times = Counter(row.name for row in request.topics)
    mutation = None if broker.quotas is None else broker.quotas.mutation(call, strict_since=3)
    grown: dict[str, tuple[Topic, int, CreatePartitionsResponse.CreatePartitionsTopicResult]] = {}
    added = 0
    if broker.cluster is not None:
        await broker.cluster.know_topics(asked)
        await broker.cluster.know_brokers()
    for name, row in asked.items():
        await pace.rest()
        result = CreatePartitionsResponse.CreatePartitionsTopicResult(name=name)
        results.append(result)
        try:
            if times[name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, f"topic {name!r} is in the request more than once")
            topic = broker.topics.get(name)
            if topic.internal:
                why = f"{name} is the broker's own: with more partitions it would look for its ids in other ones"
                raise Refused(ErrorCode.INVALID_PARTITIONS, why)
            present = len(topic.partitions)
            if row.count == present:
                raise Refused(ErrorCode.INVALID_PARTITIONS, f"{name} already has {present} partitions")
            if row.count < present:
                raise Refused(ErrorCode.INVALID_PARTITIONS, f"{name} has {present} partitions and cannot shrink")
            if row.assignments is not None:
                if len(row.assignments) != row.count - present:
                    raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "one assignment per new partition is needed")
                if broker.cluster is None and any(
                    list(one.broker_ids) != [broker.node_id] for one in row.assignments
                ):
                    raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {broker.node_id}")
            if mutation is not None:
                mutation.take(row.count - present)
            if broker.cluster is not None:
                check_new_partitions(row.count - present)
                await _grow_in_cluster(broker.cluster, topic, row, validate_only=request.validate_only)
            elif not request.validate_only:
                check_new_partitions(added + row.count - present)
                added += row.count - present
                grown[name] = topic, row.count, result
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
    if grown:
        before = {name: len(topic.partitions) for name, (topic, _, _) in grown.items()}
        try:
            await broker.topics.grow_all([(topic, count) for topic, count, _ in grown.values()], pace.rest)
            broker.open_soon(
                [partition for name, (topic, _, _) in grown.items() for partition in topic.partitions[before[name] :]]
            )
        except Refused as error:
            for _, _, result in grown.values():
                result.error_code, result.error_message = error.code, error.why
    return CreatePartitionsResponse(results=results, throttle_time_ms=_throttle_time_ms(mutation))


async def _grow_in_cluster(
    cluster: Membership, topic: Topic, row: CreatePartitionsRequest.CreatePartitionsTopic, *, validate_only: bool
) -> None:
    from semel.broker.replication.topics import grow, new_partitions

    assigned = None if row.assignments is None else [tuple(one.broker_ids) for one in row.assignments]
    if validate_only:
        new_partitions(cluster, topic, row.count, assigned)
    else:
        await grow(cluster, topic, row.count, assigned)


def delete_records(broker: BrokerServer, request: DeleteRecordsRequest, call: Call) -> Generator[None, None, Any]:
    """Delete records before the given offsets; -1 is the high watermark. Of two offsets for a log the last counts."""
    topics: dict[str, dict[int, DeleteRecordsResponse.DeleteRecordsPartitionResult]] = {}
    deletions: dict[tuple[str, int], tuple[Partition, Deletion]] = {}
    for row in request.topics:
        answers = topics.setdefault(row.name, {})
        for asked in row.partitions:
            index = asked.partition_index
            answer = DeleteRecordsResponse.DeleteRecordsPartitionResult(partition_index=index)
            answers[index] = answer
            try:
                partition = broker.topics.partition(row.name, index)
                if partition.topic.internal:
                    raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{row.name} is internal")
                if "delete" not in partition.topic.values["cleanup.policy"]:
                    raise Refused(ErrorCode.POLICY_VIOLATION, f"{row.name} is compacted: its records cannot be deleted")
                deletions[row.name, index] = partition, Deletion(partition.log, asked.offset)
            except Refused as error:
                answer.error_code, answer.low_watermark = error.code, -1
                deletions.pop((row.name, index), None)
            yield
        yield
    # Not for logs that were deleted meanwhile.
    present = {key: found for key, found in deletions.items() if found[0].open_log is found[1].log}
    code = ErrorCode.NONE
    deleted: list[tuple[Partition, int, DeleteRecordsResponse.DeleteRecordsPartitionResult]] = []
    try:
        write_deletions([deletion for _, deletion in present.values()])
    except Refused as error:
        code = error.code
    for (name, index), (partition, deletion) in deletions.items():
        answer = topics[name][index]
        if (name, index) not in present:
            answer.error_code, answer.low_watermark = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
        elif code != ErrorCode.NONE:
            answer.error_code, answer.low_watermark = code, -1
        else:
            answer.low_watermark = deletion.apply()
            partition.wake_watchers()
            deleted.append((partition, deletion.target, answer))
        yield
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(name=name, partitions=list(answers.values()))
            for name, answers in topics.items()
        ]
    )
    if broker.cluster is None or not deleted:
        return response
    from semel.broker.replication.deleting import once_deleted

    return once_deleted(deleted, request.timeout_ms, response)


def alter_partition_reassignments(
    broker: BrokerServer, request: AlterPartitionReassignmentsRequest, call: Call
) -> Any:
    """Move partitions; a broker that is alone accepts a move to itself: the partition is here already."""
    if broker.cluster is not None:
        from semel.broker.replication.moving import alter_reassignments

        return broker.changes.run(alter_reassignments(broker.cluster, request, call))
    return _move_to_itself(broker, request)


def _move_to_itself(
    broker: BrokerServer, request: AlterPartitionReassignmentsRequest
) -> Generator[None, None, AlterPartitionReassignmentsResponse]:
    responses = []
    for row in request.topics:
        answers = []
        for asked in row.partitions:
            answer = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                partition_index=asked.partition_index, error_message=None
            )
            answers.append(answer)
            try:
                broker.topics.partition(row.name, asked.partition_index)
                if asked.replicas is None:
                    raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being moved")
                if list(asked.replicas) != [broker.node_id]:
                    raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {broker.node_id}")
            except Refused as error:
                answer.error_code, answer.error_message = error.code, error.why
            yield
        yield
        responses.append(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=row.name, partitions=answers)
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )


def list_partition_reassignments(
    broker: BrokerServer, request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    """What is being moved: nothing where there is one broker. Tools ask before they describe a topic."""
    if broker.cluster is not None:
        from semel.broker.replication.moving import list_reassignments

        return list_reassignments(broker.cluster, request)
    return ListPartitionReassignmentsResponse(error_message=None)


def elect_leaders(
    broker: BrokerServer, request: ElectLeadersRequest, call: Call
) -> Any:
    """Elect leaders. A broker that is alone leads every partition; for all partitions the answer is empty then."""
    if request.election_type not in ELECTION_TYPES:
        return _no_such_election(request)
    if broker.cluster is not None:
        from semel.broker.replication.moving import elect

        return broker.changes.run(elect(broker.cluster, request))
    return _no_election_needed(broker, request)


def _no_such_election(request: ElectLeadersRequest) -> Generator[None, None, ElectLeadersResponse]:
    """As in Kafka. It must not be taken for an unclean election, which may lose records."""
    code, why = ErrorCode.INVALID_REQUEST, f"there is no election of type {request.election_type}"
    results = []
    for row in request.topic_partitions or ():
        answers = []
        for index in row.partitions:
            answers.append(ElectLeadersResponse.PartitionResult(partition_id=index, error_code=code, error_message=why))
            yield
        yield
        results.append(ElectLeadersResponse.ReplicaElectionResult(topic=row.topic, partition_result=answers))
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


def _no_election_needed(
    broker: BrokerServer, request: ElectLeadersRequest
) -> Generator[None, None, ElectLeadersResponse]:
    results = []
    for row in request.topic_partitions or ():
        answers = []
        for index in row.partitions:
            answer = ElectLeadersResponse.PartitionResult(partition_id=index)
            answers.append(answer)
            try:
                broker.topics.partition(row.topic, index)
                answer.error_code = ErrorCode.ELECTION_NOT_NEEDED
                answer.error_message = f"{broker.node_id} leads the partition"
            except Refused as error:
                answer.error_code, answer.error_message = error.code, error.why
            yield
        yield
        results.append(ElectLeadersResponse.ReplicaElectionResult(topic=row.topic, partition_result=answers))
    return ElectLeadersResponse(replica_election_results=results)

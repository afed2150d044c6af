"""Topics: create, delete, grow, delete records from their beginning, and who leads and holds them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from semel.broker.configs import described_topic_settings
from semel.broker.handlers.metadata import NO_ID
from semel.broker.partitions import check_new_partitions
from semel.errors import ErrorCode, Refused
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
    from semel.broker.server import BrokerServer


def create_topics(broker: BrokerServer, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    """Create each topic, or say why not."""
    asked = {topic.name: topic for topic in request.topics}
    times = Counter(topic.name for topic in request.topics)
    new_partitions = sum(len(topic.assignments) or max(topic.num_partitions, 1) for topic in request.topics)
    mutation = None if broker.quotas is None else broker.quotas.mutation(call, strict_since=6)
    results = []
    for name, topic in asked.items():
        result = CreateTopicsResponse.CreatableTopicResult(name=name, error_message=None, configs=None)
        results.append(result)
        try:
            check_new_partitions(new_partitions)
            if times[name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, f"topic {name!r} is in the request more than once")
            _create(broker, topic, request.validate_only, result, mutation)
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
    return CreateTopicsResponse(topics=results, throttle_time_ms=_throttle_time_ms(mutation))


def _throttle_time_ms(mutation: MutationQuota | None) -> int:
    return 0 if mutation is None else mutation.throttle_time_ms


def _create(
    broker: BrokerServer,
    topic: CreateTopicsRequest.CreatableTopic,
    validate_only: bool,
    result: CreateTopicsResponse.CreatableTopicResult,
    mutation: MutationQuota | None,
) -> None:
    if topic.assignments:
        partition_count = _assigned(broker, topic)
    else:
        partition_count = broker.settings["num.partitions"] if topic.num_partitions == -1 else topic.num_partitions
        if partition_count < 1:
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"{topic.num_partitions} partitions: at least one is needed")
        if topic.replication_factor != -1 and topic.replication_factor != 1:
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {topic.replication_factor}: there is one broker",
            )
    overrides = {}
    for config in topic.configs:
        if config.value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{config.name} has no value")
        if config.name in overrides:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{config.name} is given more than once")
        overrides[config.name] = config.value
    if mutation is not None:
        broker.topics.create(topic.name, partition_count, overrides, validate_only=True)
        mutation.take(partition_count)
    created = broker.topics.create(topic.name, partition_count, overrides, validate_only=validate_only)
    if not validate_only:
        result.topic_id = created.topic_id
        broker.open_soon(created.partitions)
    result.num_partitions, result.replication_factor = partition_count, 1
    result.configs = [
        CreateTopicsResponse.CreatableTopicConfigs(name=row.name, value=row.value, config_source=row.source)
        for row in described_topic_settings(broker.dynamic, created)
    ]


def _assigned(broker: BrokerServer, topic: CreateTopicsRequest.CreatableTopic) -> int:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise Refused(ErrorCode.INVALID_REQUEST, "either an assignment or counts, not both")
    if sorted(one.partition_index for one in topic.assignments) != list(range(len(topic.assignments))):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without gaps")
    for one in topic.assignments:
        if list(one.broker_ids) != [broker.node_id]:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {broker.node_id}")
    return len(topic.assignments)


def delete_topics(broker: BrokerServer, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    """Delete by name or by id."""
    asked = [(row.name, row.topic_id) for row in request.topics]
    asked += [(name, NO_ID) for name in request.topic_names]
    mutation = None if broker.quotas is None else broker.quotas.mutation(call, strict_since=5)
    responses = []
    for name, topic_id in asked:
        result = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
        responses.append(result)
        try:
            if not broker.settings["delete.topic.enable"]:
                raise Refused(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
            if (name is None) == (topic_id == NO_ID):
                raise Refused(ErrorCode.INVALID_REQUEST, "a topic is deleted by its name or by its id")
            topic = broker.topics.get(name) if name is not None else broker.topics.by_topic_id(topic_id)
            result.name, result.topic_id = topic.name, topic.topic_id
            if topic.internal:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own")
            if mutation is not None:
                mutation.take(len(topic.partitions))
            broker.topics.delete(topic)
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
    return DeleteTopicsResponse(responses=responses, throttle_time_ms=_throttle_time_ms(mutation))


def create_partitions(broker: BrokerServer, request: CreatePartitionsRequest, call: Call) -> CreatePartitionsResponse:
    """Topics only ever grow."""
    results = []
    times = Counter(row.name for row in request.topics)
    mutation = None if broker.quotas is None else broker.quotas.mutation(call, strict_since=3)
    for row in request.topics:
        result = CreatePartitionsResponse.CreatePartitionsTopicResult(name=row.name)
        results.append(result)
        try:
            if times[row.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, f"topic {row.name!r} is in the request more than once")
            topic = broker.topics.get(row.name)
            present = len(topic.partitions)
            if row.count == present:
                raise Refused(ErrorCode.INVALID_PARTITIONS, f"{row.name} already has {present} partitions")
            if row.count < present:
                raise Refused(ErrorCode.INVALID_PARTITIONS, f"{row.name} has {present} partitions and cannot shrink")
            if row.assignments is not None:
                if len(row.assignments) != row.count - present:
                    raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "one assignment per new partition is needed")
                if any(list(one.broker_ids) != [broker.node_id] for one in row.assignments):
                    raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {broker.node_id}")
            if mutation is not None:
                mutation.take(row.count - present)
            if not request.validate_only:
                broker.topics.add_partitions(topic, row.count)
                broker.open_soon(topic.partitions[present:])
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
    return CreatePartitionsResponse(results=results, throttle_time_ms=_throttle_time_ms(mutation))


def delete_records(broker: BrokerServer, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """The log begins at the given offset from now on; -1 is the high watermark."""
    topics = []
    for row in request.topics:
        answers = []
        for asked in row.partitions:
            answer = DeleteRecordsResponse.DeleteRecordsPartitionResult(partition_index=asked.partition_index)
            answers.append(answer)
            try:
                partition = broker.topics.partition(row.name, asked.partition_index)
                if partition.topic.internal:
                    raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{row.name} is the broker's own")
                if "delete" not in partition.topic.values["cleanup.policy"]:
                    raise Refused(ErrorCode.POLICY_VIOLATION, f"{row.name} is compacted, not deleted from")
                answer.low_watermark = partition.log.delete_records_before(asked.offset)
                partition.changed()
            except Refused as error:
                answer.error_code, answer.low_watermark = error.code, -1
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=row.name, partitions=answers))
    return DeleteRecordsResponse(topics=topics)


def alter_partition_reassignments(
    broker: BrokerServer, request: AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    """A partition may be moved to where it is, which is done at once."""
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
    """With one broker nothing is ever on the move; tools ask before they describe a topic."""
    return ListPartitionReassignmentsResponse(error_message=None)


def elect_leaders(broker: BrokerServer, request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    """This broker leads every partition already. Asked about all of them, there is none to tell about."""
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
        results.append(ElectLeadersResponse.ReplicaElectionResult(topic=row.topic, partition_result=answers))
    return ElectLeadersResponse(replica_election_results=results)

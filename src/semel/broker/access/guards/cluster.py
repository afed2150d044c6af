"""Guards of what needs a right on the cluster, and nothing else: Alter to change it, Describe to look at it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import made_of
from semel.errors import ErrorCode
from semel.machines.security.access import Operation
from semel.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from semel.wire.messages.configs import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from semel.wire.messages.features import UpdateFeaturesRequest, UpdateFeaturesResponse
from semel.wire.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from semel.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_WHY = _DENIED.meaning


def describe_log_dirs(access: AccessControl, request: DescribeLogDirsRequest, call: Call) -> Verdict:
    """Describe. Before version 3 the answer has no place for the error."""
    if access.allows_on_cluster(call, Operation.DESCRIBE):
        return None
    return Answer(DescribeLogDirsResponse(error_code=_DENIED))


def alter_replica_log_dirs(
    access: AccessControl, request: AlterReplicaLogDirsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Alter."""
    if access.allows_on_cluster(call, Operation.ALTER):
        return None
    row = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
    answers: dict[str, dict[int, Any]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            rows = answers.setdefault(topic.name, {})
            rows.update({index: row(partition_index=index, error_code=_DENIED) for index in topic.partitions})
            yield
    topic_row = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
    return Answer(
        AlterReplicaLogDirsResponse(
            results=[topic_row(topic_name=name, partitions=list(rows.values())) for name, rows in answers.items()]
        )
    )


def elect_leaders(
    access: AccessControl, request: ElectLeadersRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Alter."""
    if access.allows_on_cluster(call, Operation.ALTER):
        return None
    row = ElectLeadersResponse.PartitionResult
    answers = []
    for topic in request.topic_partitions or ():
        rows = [row(partition_id=index, error_code=_DENIED, error_message=_WHY) for index in topic.partitions]
        answers.append(ElectLeadersResponse.ReplicaElectionResult(topic=topic.topic, partition_result=rows))
        yield
    return Answer(ElectLeadersResponse(error_code=_DENIED, replica_election_results=answers))


def alter_partition_reassignments(
    access: AccessControl, request: AlterPartitionReassignmentsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Alter."""
    if access.allows_on_cluster(call, Operation.ALTER):
        return None
    row = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
    answers = []
    for topic in request.topics:
        rows = [
            row(partition_index=asked.partition_index, error_code=_DENIED, error_message=_WHY)
            for asked in topic.partitions
        ]
        answers.append(AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=topic.name, partitions=rows))
        yield
    return Answer(
        AlterPartitionReassignmentsResponse(error_code=_DENIED, error_message=_WHY, responses=answers)
    )


def list_partition_reassignments(
    access: AccessControl, request: ListPartitionReassignmentsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Describe. As in Kafka the answer repeats what was asked for."""
    if access.allows_on_cluster(call, Operation.DESCRIBE):
        return None
    row = ListPartitionReassignmentsResponse.OngoingPartitionReassignment
    answers = []
    for topic in request.topics or ():
        rows = [row(partition_index=index) for index in topic.partition_indexes]
        answers.append(ListPartitionReassignmentsResponse.OngoingTopicReassignment(name=topic.name, partitions=rows))
        yield
    return Answer(ListPartitionReassignmentsResponse(error_code=_DENIED, error_message=_WHY, topics=answers))


def describe_client_quotas(access: AccessControl, request: DescribeClientQuotasRequest, call: Call) -> Verdict:
    """DescribeConfigs."""
    if access.allows_on_cluster(call, Operation.DESCRIBE_CONFIGS):
        return None
    return Answer(DescribeClientQuotasResponse(error_code=_DENIED, error_message=_WHY, entries=None))


def alter_client_quotas(
    access: AccessControl, request: AlterClientQuotasRequest, call: Call
) -> Generator[None, None, Verdict]:
    """AlterConfigs."""
    if access.allows_on_cluster(call, Operation.ALTER_CONFIGS):
        return None
    entity = AlterClientQuotasResponse.EntityData
    answers = []
    for entry in request.entries:
        named = [entity(entity_type=one.entity_type, entity_name=one.entity_name) for one in entry.entity]
        answers.append(AlterClientQuotasResponse.EntryData(error_code=_DENIED, error_message=_WHY, entity=named))
        yield
    return Answer(AlterClientQuotasResponse(entries=answers))


def describe_user_scram_credentials(
    access: AccessControl, request: DescribeUserScramCredentialsRequest, call: Call
) -> Verdict:
    """Describe."""
    if access.allows_on_cluster(call, Operation.DESCRIBE):
        return None
    # The error is in it twice, as in Kafka: once for nobody in particular.
    row = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    nobody = row(error_code=_DENIED, error_message=_WHY)
    return Answer(DescribeUserScramCredentialsResponse(error_code=_DENIED, error_message=_WHY, results=[nobody]))


def alter_user_scram_credentials(
    access: AccessControl, request: AlterUserScramCredentialsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Alter."""
    if access.allows_on_cluster(call, Operation.ALTER):
        return None
    users: dict[str, None] = {}
    changed: list[Any] = [*request.deletions, *request.upsertions]
    for change in changed:
        users[change.name] = None
        yield
    row = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    answers = yield from made_of(users, lambda user: row(user=user, error_code=_DENIED, error_message=_WHY))
    return Answer(AlterUserScramCredentialsResponse(results=answers))


def update_features(access: AccessControl, request: UpdateFeaturesRequest, call: Call) -> Verdict:
    """Alter."""
    if access.allows_on_cluster(call, Operation.ALTER):
        return None
    return Answer(UpdateFeaturesResponse(error_code=_DENIED, error_message=_WHY))


def describe_quorum(access: AccessControl, request: DescribeQuorumRequest, call: Call) -> Verdict:
    """Describe."""
    if access.allows_on_cluster(call, Operation.DESCRIBE):
        return None
    return Answer(DescribeQuorumResponse(error_code=_DENIED, error_message=_WHY))

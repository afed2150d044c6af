"""What the matrix asks: for every API a request, and the rights that it needs.

A name with @ in it is another one for every version and user, where a request changes what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from semel.machines.security.access import (
    CLUSTER_NAME,
    AccessRule,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from semel.wire.apis import APIS, ApiKey
from semel.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from semel.wire.messages.configs import (
    AlterClientQuotasRequest,
    AlterConfigsRequest,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from semel.wire.messages.features import ApiVersionsRequest, UpdateFeaturesRequest
from semel.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from semel.wire.messages.quorum import DescribeQuorumRequest
from semel.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeUserScramCredentialsRequest,
)
from tests.broker.access.rules import creation, describe_request, only, rule
from tests.broker.access.sides import GROUP, HIDDEN, HIDDEN_GROUP, HIDDEN_ID, ID, MISSING, Side, T

#: What a right is about: the operation, and the resource by type and name.
Right = tuple[Operation, ResourceType, str]
#: The broker, the version, what stands for @ in names -> the request.
Make = Callable[[Side, int, str], Any]
Prepare = Callable[[Side, int, str], None]


@dataclass(frozen=True)
class Case:
    """One request to one API."""

    key: ApiKey
    make: Make
    #: Each of these is enough: all rights of one of them.
    rights: tuple[tuple[Right, ...], ...] = ()
    #: What tells it from other requests to this API.
    about: str = ""
    prepare: Prepare | None = None
    since: int = 0
    until: int = 99
    #: Whether each right is needed for anything to happen; if not, it only makes a difference to what is told.
    is_strict: bool = True
    #: Why it is not compared where it is allowed. What is done there is not about access.
    not_alike_when_allowed: str = ""

    def __str__(self) -> str:
        return APIS[self.key].name + (f", {self.about}" if self.about else "")

    @property
    def versions(self) -> range:
        api = APIS[self.key]
        return range(max(api.min_version, self.since), min(api.max_version, self.until) + 1)

    def rules(self) -> dict[str, list[AccessRule]]:
        """The users that ask, by what they are for, each with its rules."""
        found: dict[str, list[AccessRule]] = {"no": []}
        every = [right for rights in self.rights for right in rights]
        if not every:
            return found
        deny = self._expanded("deny", every, Permission.DENY)
        allow = [one._replace(operation=Operation.ALL, permission=Permission.ALLOW) for one in deny]
        found["deny"] = list(dict.fromkeys([*allow, *deny]))
        for number, rights in enumerate(self.rights):
            tag = f"allow{number}"
            found[tag] = self._expanded(tag, rights)
            for left_out in range(len(rights) if len(rights) > 1 else 0):
                tag = f"part{number}{left_out}"
                found[tag] = self._expanded(tag, [*rights[:left_out], *rights[left_out + 1 :]])
        return found

    def is_denied(self, tag: str) -> bool:
        """Whether a user with this tag may change nothing."""
        return bool(self.rights) and (tag in ("no", "deny") or (self.is_strict and tag.startswith("part")))

    def _expanded(
        self, tag: str, rights: Iterable[Right], permission: Permission = Permission.ALLOW
    ) -> list[AccessRule]:
        return [
            AccessRule(
                kind, name.replace("@", self.at(version, tag)), PatternType.LITERAL, f"User:{self.user(tag)}", "*",
                operation, permission,
            )
            for operation, kind, name in rights
            for version in (self.versions if "@" in name else self.versions[:1])
        ]

    def user(self, tag: str) -> str:
        return f"{self._word}-{tag}"

    def at(self, version: int, tag: str) -> str:
        """What stands for @ in names."""
        return f"{self._word}-{version}-{tag}"

    @property
    def _word(self) -> str:
        return "".join(letter for letter in str(self) if letter.isalnum())


# Rights


def on_topic(operation: Operation, name: str = T) -> Right:
    return operation, ResourceType.TOPIC, name


def on_group(operation: Operation, name: str = GROUP) -> Right:
    return operation, ResourceType.GROUP, name


def on_id(operation: Operation, name: str = ID) -> Right:
    return operation, ResourceType.TRANSACTIONAL_ID, name


def on_cluster(operation: Operation) -> Right:
    return operation, ResourceType.CLUSTER, CLUSTER_NAME


def needs(*rights: Right) -> tuple[tuple[Right, ...], ...]:
    """All of them."""
    return (rights,)


def any_of(*rights: Right) -> tuple[tuple[Right, ...], ...]:
    return tuple((right,) for right in rights)


# Requests


def metadata(names: tuple[str, ...] | None, side: Side, version: int, at: str) -> MetadataRequest:
    row = MetadataRequest.MetadataRequestTopic
    rows = None if names is None else [row(name=name.replace("@", at)) for name in names]
    return MetadataRequest(
        topics=([] if version == 0 else None) if rows is None else rows,
        allow_auto_topic_creation=names == ("auto-@",),
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )


def metadata_by_id(side: Side, version: int, at: str) -> MetadataRequest:
    row = MetadataRequest.MetadataRequestTopic
    rows = [row(name=None, topic_id=side.ids[name]) for name in (T, HIDDEN, MISSING)]
    return MetadataRequest(topics=rows, allow_auto_topic_creation=False)


def describe_partitions(names: tuple[str, ...], side: Side, version: int, at: str) -> DescribeTopicPartitionsRequest:
    row = DescribeTopicPartitionsRequest.TopicRequest
    return DescribeTopicPartitionsRequest(
        topics=[row(name=name) for name in names], response_partition_limit=2000, cursor=None
    )


def find_coordinator(kind: int, keys: tuple[str, ...], side: Side, version: int, at: str) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key=keys[0], key_type=kind, coordinator_keys=list(keys))


def create_topics(side: Side, version: int, at: str) -> CreateTopicsRequest:
    row = CreateTopicsRequest.CreatableTopic
    names = (f"new-{at}", "never", "twice", "twice", HIDDEN)
    return CreateTopicsRequest(topics=[row(name=name, num_partitions=1, replication_factor=1) for name in names])


def make_topic(side: Side, version: int, at: str) -> None:
    side.create(f"topic-{at}")


def delete_topics(side: Side, version: int, at: str) -> DeleteTopicsRequest:
    names = (f"topic-{at}", HIDDEN, MISSING, "twice", "twice")
    row = DeleteTopicsRequest.DeleteTopicState
    return DeleteTopicsRequest(
        topic_names=list(names), topics=[row(name=name) for name in names], timeout_ms=10_000
    )


def delete_topics_by_id(side: Side, version: int, at: str) -> DeleteTopicsRequest:
    row = DeleteTopicsRequest.DeleteTopicState
    ids = [side.ids[name] for name in (f"topic-{at}", HIDDEN, MISSING)]
    return DeleteTopicsRequest(topics=[row(topic_id=topic_id) for topic_id in ids], timeout_ms=10_000)


def create_partitions(side: Side, version: int, at: str) -> CreatePartitionsRequest:
    row = CreatePartitionsRequest.CreatePartitionsTopic
    names = (f"topic-{at}", HIDDEN, MISSING, "twice", "twice")
    return CreatePartitionsRequest(
        topics=[row(name=name, count=2, assignments=None) for name in names], timeout_ms=10_000
    )


def delete_records(side: Side, version: int, at: str) -> DeleteRecordsRequest:
    row = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    return DeleteRecordsRequest(
        topics=[topic(name=name, partitions=[row]) for name in (T, HIDDEN, MISSING)], timeout_ms=10_000
    )


#: Everything that has settings, by type and name, and a setting of it with a value. Kafka refuses AlterConfigs of the
#: cluster without its min.insync.replicas.
RESOURCES = (
    (2, T, "retention.ms", "86400000"),
    (2, HIDDEN, "retention.ms", "86400000"),
    (4, "", "min.insync.replicas", "1"),
    (32, GROUP, "consumer.session.timeout.ms", "50000"),
    (32, HIDDEN_GROUP, "consumer.session.timeout.ms", "50000"),
)


def describe_configs(side: Side, version: int, at: str) -> DescribeConfigsRequest:
    row = partial(DescribeConfigsRequest.DescribeConfigsResource, configuration_keys=None)
    return DescribeConfigsRequest(
        resources=[row(resource_type=kind, resource_name=name) for kind, name, _, _ in RESOURCES]
    )


def alter_configs(side: Side, version: int, at: str) -> AlterConfigsRequest:
    row, config = AlterConfigsRequest.AlterConfigsResource, AlterConfigsRequest.AlterableConfig
    return AlterConfigsRequest(
        resources=[
            row(resource_type=kind, resource_name=name, configs=[config(name=key, value=value)])
            for kind, name, key, value in RESOURCES
        ]
    )


def incremental_alter_configs(side: Side, version: int, at: str) -> IncrementalAlterConfigsRequest:
    request = IncrementalAlterConfigsRequest
    row, config = request.AlterConfigsResource, request.AlterableConfig
    return request(
        resources=[
            row(resource_type=kind, resource_name=name, configs=[config(name=key, value=value)])
            for kind, name, key, value in RESOURCES
            if kind != 4
        ]
        + [row(resource_type=4, resource_name="", configs=[config(name="log.retention.ms", value="60000")])]
    )


def describe_log_dirs(side: Side, version: int, at: str) -> DescribeLogDirsRequest:
    row = DescribeLogDirsRequest.DescribableLogDirTopic
    return DescribeLogDirsRequest(topics=[row(topic=T, partitions=[0, 1])])


def alter_replica_log_dirs(side: Side, version: int, at: str) -> AlterReplicaLogDirsRequest:
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=T, partitions=[0, 1])
    return AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/not-there", topics=[topic])]
    )


def elect_leaders(side: Side, version: int, at: str) -> ElectLeadersRequest:
    row = ElectLeadersRequest.TopicPartitions
    return ElectLeadersRequest(
        topic_partitions=[row(topic=T, partitions=[0]), row(topic=MISSING, partitions=[0])], timeout_ms=10_000
    )


def alter_reassignments(side: Side, version: int, at: str) -> AlterPartitionReassignmentsRequest:
    request = AlterPartitionReassignmentsRequest
    row = request.ReassignablePartition(partition_index=0, replicas=[1])
    return request(topics=[request.ReassignableTopic(name=name, partitions=[row]) for name in (T, MISSING)])


def list_reassignments(side: Side, version: int, at: str) -> ListPartitionReassignmentsRequest:
    row = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    return ListPartitionReassignmentsRequest(topics=[row(name=T, partition_indexes=[0])])


def describe_quotas(side: Side, version: int, at: str) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(components=[])


def alter_quotas(side: Side, version: int, at: str) -> AlterClientQuotasRequest:
    request = AlterClientQuotasRequest
    entity = [request.EntityData(entity_type="user", entity_name=f"quota-{at}")]
    change = request.OpData(key="producer_byte_rate", value=1000.0)
    return request(entries=[request.EntryData(entity=entity, ops=[change])])


def describe_scram(side: Side, version: int, at: str) -> DescribeUserScramCredentialsRequest:
    row = DescribeUserScramCredentialsRequest.UserName
    return DescribeUserScramCredentialsRequest(users=[row(name="not-there")])


def alter_scram(side: Side, version: int, at: str) -> AlterUserScramCredentialsRequest:
    request = AlterUserScramCredentialsRequest
    row = request.ScramCredentialUpsertion(
        name=f"scram-{at}", mechanism=1, iterations=4096, salt=b"salt" * 4, salted_password=b"p" * 32
    )
    return request(upsertions=[row], deletions=[request.ScramCredentialDeletion(name="not-there", mechanism=1)])


def describe_quorum(side: Side, version: int, at: str) -> DescribeQuorumRequest:
    row = DescribeQuorumRequest.PartitionData(partition_index=0)
    topic = DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[row])
    return DescribeQuorumRequest(topics=[topic])


def update_features(side: Side, version: int, at: str) -> UpdateFeaturesRequest:
    row = UpdateFeaturesRequest.FeatureUpdateKey(feature="group.version", max_version_level=1, upgrade_type=1)
    return UpdateFeaturesRequest(feature_updates=[row], validate_only=True)


def _rule(at: str) -> AccessRule:
    return rule(name=f"ruled-{at}", who="User:somebody")


def create_acls(side: Side, version: int, at: str) -> CreateAclsRequest:
    return CreateAclsRequest(creations=[creation(_rule(at)), creation(rule(name="")), creation(_rule(at))])


def delete_acls(side: Side, version: int, at: str) -> DeleteAclsRequest:
    return DeleteAclsRequest(filters=[only(rule(name=f"not-there-{at}"))])


ALTER, DESCRIBE = on_cluster(Operation.ALTER), on_cluster(Operation.DESCRIBE)
SEE_TOPIC = on_topic(Operation.DESCRIBE)

CASES = [
    Case(
        ApiKey.API_VERSIONS,
        lambda side, version, at: ApiVersionsRequest(client_software_name="matrix", client_software_version="1"),
    ),
    Case(
        ApiKey.METADATA,
        partial(metadata, (T, HIDDEN, MISSING)),
        any_of(SEE_TOPIC, on_topic(Operation.DESCRIBE, MISSING)),
        since=4,
    ),
    Case(ApiKey.METADATA, partial(metadata, (T, HIDDEN)), needs(SEE_TOPIC), "old", until=3),
    Case(ApiKey.METADATA, partial(metadata, None), any_of(SEE_TOPIC, DESCRIBE), "of all topics"),
    Case(ApiKey.METADATA, metadata_by_id, needs(SEE_TOPIC), "by id", since=12),
    Case(
        ApiKey.METADATA,
        partial(metadata, ("auto-@",)),
        (
            (on_topic(Operation.DESCRIBE, "auto-@"), on_topic(Operation.CREATE, "auto-@")),
            (on_topic(Operation.DESCRIBE, "auto-@"), on_cluster(Operation.CREATE)),
        ),
        "of a topic that is created",
    ),
    Case(ApiKey.DESCRIBE_TOPIC_PARTITIONS, partial(describe_partitions, (T, HIDDEN, MISSING)), needs(SEE_TOPIC)),
    Case(ApiKey.DESCRIBE_TOPIC_PARTITIONS, partial(describe_partitions, ()), needs(SEE_TOPIC), "of all topics"),
    Case(
        ApiKey.DESCRIBE_CLUSTER,
        lambda side, version, at: DescribeClusterRequest(include_cluster_authorized_operations=True),
        any_of(DESCRIBE, ALTER, on_cluster(Operation.CREATE)),
    ),
    Case(
        ApiKey.FIND_COORDINATOR,
        partial(find_coordinator, 0, (GROUP, HIDDEN_GROUP)),
        needs(on_group(Operation.DESCRIBE)),
        "of a group",
    ),
    Case(
        ApiKey.FIND_COORDINATOR,
        partial(find_coordinator, 1, (ID, HIDDEN_ID)),
        any_of(on_id(Operation.DESCRIBE), on_id(Operation.WRITE)),
        "of a transactional id",
        since=1,
    ),
    Case(
        ApiKey.CREATE_TOPICS,
        create_topics,
        (
            (on_topic(Operation.CREATE, "new-@"),),
            (on_topic(Operation.CREATE, "new-@"), on_topic(Operation.DESCRIBE_CONFIGS, "new-@")),
        ),
        is_strict=False,
    ),
    Case(
        ApiKey.CREATE_TOPICS,
        lambda side, version, at: CreateTopicsRequest(
            topics=[CreateTopicsRequest.CreatableTopic(name=f"new-{at}", num_partitions=1, replication_factor=1)]
        ),
        any_of(on_cluster(Operation.CREATE)),
        "by the cluster",
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        delete_topics,
        any_of(on_topic(Operation.DELETE, "topic-@")),
        prepare=make_topic,
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        delete_topics,
        any_of(on_topic(Operation.DESCRIBE, "topic-@"), on_topic(Operation.DESCRIBE, MISSING)),
        "only described",
        prepare=make_topic,
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        delete_topics_by_id,
        any_of(on_topic(Operation.DELETE, "topic-@"), on_topic(Operation.DESCRIBE, "topic-@")),
        "by id",
        prepare=make_topic,
        since=6,
    ),
    Case(
        ApiKey.CREATE_PARTITIONS, create_partitions, any_of(on_topic(Operation.ALTER, "topic-@")), prepare=make_topic
    ),
    Case(ApiKey.DELETE_RECORDS, delete_records, needs(on_topic(Operation.DELETE))),
    Case(
        ApiKey.DESCRIBE_CONFIGS,
        describe_configs,
        any_of(
            on_topic(Operation.DESCRIBE_CONFIGS),
            on_cluster(Operation.DESCRIBE_CONFIGS),
            on_group(Operation.DESCRIBE_CONFIGS),
            on_topic(Operation.ALTER_CONFIGS),
        ),
    ),
    *(
        Case(
            key,
            make,
            any_of(
                on_topic(Operation.ALTER_CONFIGS),
                on_cluster(Operation.ALTER_CONFIGS),
                on_group(Operation.ALTER_CONFIGS),
            ),
        )
        for key, make in (
            (ApiKey.ALTER_CONFIGS, alter_configs),
            (ApiKey.INCREMENTAL_ALTER_CONFIGS, incremental_alter_configs),
        )
    ),
    Case(
        ApiKey.LIST_CONFIG_RESOURCES,
        lambda side, version, at: ListConfigResourcesRequest(resource_types=[4]),
        any_of(on_cluster(Operation.DESCRIBE_CONFIGS), on_cluster(Operation.ALTER_CONFIGS)),
    ),
    Case(ApiKey.DESCRIBE_LOG_DIRS, describe_log_dirs, any_of(DESCRIBE, ALTER)),
    Case(ApiKey.ALTER_REPLICA_LOG_DIRS, alter_replica_log_dirs, any_of(ALTER)),
    Case(ApiKey.ELECT_LEADERS, elect_leaders, any_of(ALTER)),
    Case(ApiKey.ALTER_PARTITION_REASSIGNMENTS, alter_reassignments, any_of(ALTER)),
    Case(ApiKey.LIST_PARTITION_REASSIGNMENTS, list_reassignments, any_of(DESCRIBE)),
    Case(ApiKey.DESCRIBE_CLIENT_QUOTAS, describe_quotas, any_of(on_cluster(Operation.DESCRIBE_CONFIGS))),
    Case(ApiKey.ALTER_CLIENT_QUOTAS, alter_quotas, any_of(on_cluster(Operation.ALTER_CONFIGS))),
    Case(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, describe_scram, any_of(DESCRIBE)),
    Case(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, alter_scram, any_of(ALTER)),
    Case(ApiKey.DESCRIBE_QUORUM, describe_quorum, any_of(DESCRIBE)),
    Case(ApiKey.UPDATE_FEATURES, update_features, any_of(ALTER)),
    Case(ApiKey.DESCRIBE_ACLS, lambda side, version, at: describe_request(principal_filter="x"), any_of(DESCRIBE)),
    Case(ApiKey.CREATE_ACLS, create_acls, any_of(ALTER)),
    Case(ApiKey.DELETE_ACLS, delete_acls, any_of(ALTER)),
]

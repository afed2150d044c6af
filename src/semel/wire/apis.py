"""The table of APIs and their versions: those that Apache Kafka 4.3 serves.

The table is enough to answer ApiVersions. The message classes of an API are imported with its first request.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from importlib import import_module
from typing import Any


class ApiKey(IntEnum):
    """The number an API has on the wire, for the APIs that are served."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class Api:
    """One API: its name as in the schemas, its versions, and its two message classes."""

    def __init__(self, name: str, family: str, key: ApiKey, versions: str, flexible_since: int | None) -> None:
        low, _, high = versions.partition("-")
        self.key = key
        self.name = name
        self.family = family
        self.min_version = int(low)
        self.max_version = int(high or low)
        #: The first version whose header and body carry tagged fields.
        self.flexible_since = flexible_since
        #: What ApiVersions says. librdkafka up to 2.x takes a broker without Produce 0 for one too old to compress.
        self.advertised_min_version = 0 if key is ApiKey.PRODUCE else self.min_version

    def __repr__(self) -> str:
        return f"Api({self.name} {self.min_version}-{self.max_version})"

    def is_flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since

    @cached_property
    def request(self) -> type[Any]:
        return self._class("Request")

    @cached_property
    def response(self) -> type[Any]:
        return self._class("Response")

    def _class(self, half: str) -> type[Any]:
        found: type[Any] = getattr(import_module(f"semel.wire.messages.{self.family}"), self.name + half)
        return found


#: Name, family, key, versions served, first flexible version.
APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api("Produce", "produce", ApiKey.PRODUCE, "3-13", 9),
        Api("Fetch", "fetch", ApiKey.FETCH, "4-18", 12),
        Api("ListOffsets", "fetch", ApiKey.LIST_OFFSETS, "1-11", 6),
        Api("Metadata", "metadata", ApiKey.METADATA, "0-13", 9),
        Api("OffsetCommit", "offsets", ApiKey.OFFSET_COMMIT, "2-10", 8),
        Api("OffsetFetch", "offsets", ApiKey.OFFSET_FETCH, "1-10", 6),
        Api("FindCoordinator", "metadata", ApiKey.FIND_COORDINATOR, "0-6", 3),
        Api("JoinGroup", "groups", ApiKey.JOIN_GROUP, "0-9", 6),
        Api("Heartbeat", "groups", ApiKey.HEARTBEAT, "0-4", 4),
        Api("LeaveGroup", "groups", ApiKey.LEAVE_GROUP, "0-5", 4),
        Api("SyncGroup", "groups", ApiKey.SYNC_GROUP, "0-5", 4),
        Api("DescribeGroups", "groups", ApiKey.DESCRIBE_GROUPS, "0-6", 5),
        Api("ListGroups", "groups", ApiKey.LIST_GROUPS, "0-5", 3),
        Api("SaslHandshake", "security", ApiKey.SASL_HANDSHAKE, "0-1", None),
        Api("ApiVersions", "features", ApiKey.API_VERSIONS, "0-4", 3),
        Api("CreateTopics", "admin", ApiKey.CREATE_TOPICS, "2-7", 5),
        Api("DeleteTopics", "admin", ApiKey.DELETE_TOPICS, "1-6", 4),
        Api("DeleteRecords", "admin", ApiKey.DELETE_RECORDS, "0-2", 2),
        Api("InitProducerId", "transactions", ApiKey.INIT_PRODUCER_ID, "0-5", 2),
        Api("OffsetForLeaderEpoch", "fetch", ApiKey.OFFSET_FOR_LEADER_EPOCH, "2-4", 4),
        Api("AddPartitionsToTxn", "transactions", ApiKey.ADD_PARTITIONS_TO_TXN, "0-5", 3),
        Api("AddOffsetsToTxn", "transactions", ApiKey.ADD_OFFSETS_TO_TXN, "0-4", 3),
        Api("EndTxn", "transactions", ApiKey.END_TXN, "0-5", 3),
        Api("WriteTxnMarkers", "transactions", ApiKey.WRITE_TXN_MARKERS, "1-2", 1),
        Api("TxnOffsetCommit", "transactions", ApiKey.TXN_OFFSET_COMMIT, "0-5", 3),
        Api("DescribeAcls", "security", ApiKey.DESCRIBE_ACLS, "1-3", 2),
        Api("CreateAcls", "security", ApiKey.CREATE_ACLS, "1-3", 2),
        Api("DeleteAcls", "security", ApiKey.DELETE_ACLS, "1-3", 2),
        Api("DescribeConfigs", "configs", ApiKey.DESCRIBE_CONFIGS, "1-4", 4),
        Api("AlterConfigs", "configs", ApiKey.ALTER_CONFIGS, "0-2", 2),
        Api("AlterReplicaLogDirs", "admin", ApiKey.ALTER_REPLICA_LOG_DIRS, "1-2", 2),
        Api("DescribeLogDirs", "admin", ApiKey.DESCRIBE_LOG_DIRS, "1-5", 2),
        Api("SaslAuthenticate", "security", ApiKey.SASL_AUTHENTICATE, "0-2", 2),
        Api("CreatePartitions", "admin", ApiKey.CREATE_PARTITIONS, "0-3", 2),
        Api("CreateDelegationToken", "tokens", ApiKey.CREATE_DELEGATION_TOKEN, "1-3", 2),
        Api("RenewDelegationToken", "tokens", ApiKey.RENEW_DELEGATION_TOKEN, "1-2", 2),
        Api("ExpireDelegationToken", "tokens", ApiKey.EXPIRE_DELEGATION_TOKEN, "1-2", 2),
        Api("DescribeDelegationToken", "tokens", ApiKey.DESCRIBE_DELEGATION_TOKEN, "1-3", 2),
        Api("DeleteGroups", "groups", ApiKey.DELETE_GROUPS, "0-2", 2),
        Api("ElectLeaders", "admin", ApiKey.ELECT_LEADERS, "0-2", 2),
        Api("IncrementalAlterConfigs", "configs", ApiKey.INCREMENTAL_ALTER_CONFIGS, "0-1", 1),
        Api("AlterPartitionReassignments", "admin", ApiKey.ALTER_PARTITION_REASSIGNMENTS, "0-1", 0),
        Api("ListPartitionReassignments", "admin", ApiKey.LIST_PARTITION_REASSIGNMENTS, "0", 0),
        Api("OffsetDelete", "offsets", ApiKey.OFFSET_DELETE, "0", None),
        Api("DescribeClientQuotas", "configs", ApiKey.DESCRIBE_CLIENT_QUOTAS, "0-1", 1),
        Api("AlterClientQuotas", "configs", ApiKey.ALTER_CLIENT_QUOTAS, "0-1", 1),
        Api("DescribeUserScramCredentials", "security", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "0", 0),
        Api("AlterUserScramCredentials", "security", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "0", 0),
        Api("DescribeQuorum", "quorum", ApiKey.DESCRIBE_QUORUM, "0-2", 0),
        Api("UpdateFeatures", "features", ApiKey.UPDATE_FEATURES, "0-2", 0),
        Api("DescribeCluster", "metadata", ApiKey.DESCRIBE_CLUSTER, "0-2", 0),
        Api("DescribeProducers", "transactions", ApiKey.DESCRIBE_PRODUCERS, "0", 0),
        Api("DescribeTransactions", "transactions", ApiKey.DESCRIBE_TRANSACTIONS, "0", 0),
        Api("ListTransactions", "transactions", ApiKey.LIST_TRANSACTIONS, "0-2", 0),
        Api("ConsumerGroupHeartbeat", "consumer_groups", ApiKey.CONSUMER_GROUP_HEARTBEAT, "0-1", 0),
        Api("ConsumerGroupDescribe", "consumer_groups", ApiKey.CONSUMER_GROUP_DESCRIBE, "0-1", 0),
        Api("ListConfigResources", "configs", ApiKey.LIST_CONFIG_RESOURCES, "0-1", 0),
        Api("DescribeTopicPartitions", "metadata", ApiKey.DESCRIBE_TOPIC_PARTITIONS, "0", 0),
    )
}

#: KIP-939, two-phase commit: the messages have this version, a broker serves it only when told to.
INIT_PRODUCER_ID_TWO_PHASE_VERSION = 6

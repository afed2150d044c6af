"""The largest legal request of every API: what holds up a broker whose work per request is not bounded.

`python -m tests.broker.largest_requests` sends them to a broker one after the other and prints how long, beside each, a
heartbeat of 5 ms had to wait. `test_largest_requests.py` sends smaller ones, and counts.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from semel.broker.embedded import Broker
from semel.wire.apis import ApiKey
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
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from semel.wire.messages.features import ApiVersionsRequest, UpdateFeaturesRequest
from semel.wire.messages.fetch import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from semel.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from semel.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from semel.wire.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from semel.wire.messages.produce import ProduceRequest
from semel.wire.messages.quorum import DescribeQuorumRequest
from semel.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from semel.wire.messages.tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.broker.raw import Raw, batch

#: The longest id there is.
LONG = 32_000
#: The bar.
MOST_MS = 100.0
HEARTBEAT_S = 0.005


@dataclass(frozen=True)
class Size:
    """How large the requests are."""

    #: Elements of all arrays of one request.
    elements: int
    #: Partitions of the one topic that has many, and topics that have one.
    partitions: int
    topics: int
    #: Topics that one request creates.
    created: int


FULL = Size(elements=99_000, partitions=1000, topics=1000, created=4000)
SMALL = Size(elements=20_000, partitions=200, topics=200, created=400)

#: Requests of one family, sent one after the other on one connection: (message, version).
Requests = Iterator[tuple[Any, int | None]]


class Largest:
    """Makes the requests, of a broker that was `prepared`."""

    def __init__(self, raw: Raw, size: Size) -> None:
        self.raw = raw
        self.size = size
        self.many = range(size.partitions)
        self.producer = (-1, -1)

    def prepare(self) -> None:
        self.raw.socket.settimeout(120)
        assert self.raw.ask(_create(iter(["many"]), self.size.partitions)).topics[0].error_code == 0
        for start in range(0, self.size.topics, 100):
            self.raw.ask(_create(f"one-{number}" for number in range(start, start + 100)))
        self.raw.ask(_create(iter(["wide"])))
        data = b"".join([batch(b"v" * 100, b"w" * 100)])
        for number in self.many:
            self.raw.produce("many", data, partition=number)
        large = batch(*[b"v" * 1000] * 900)
        for _ in range(20):
            self.raw.produce("wide", large)
        self._first_use()

    def _first_use(self) -> None:
        """What is done once in a broker's life: its own topics are created, its coordinators imported."""
        for kind in (0, 1):
            self.raw.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[str(n) for n in range(500)]))
        small = Largest(self.raw, replace(self.size, elements=1, partitions=1))
        for requests in (small.offset_commit, small.txn_offset_commit, small.consumer_group_heartbeat):
            for message, version in requests():
                self.raw.ask(message, version)

    def indexes(self) -> list[int]:
        """Every partition there is, then as many that are not there."""
        return list(range(self.size.elements))

    def names(self, stem: str = "name") -> list[str]:
        return [f"{stem}-{number}" for number in range(self.size.elements)]

    def long_names(self, stem: str) -> list[str]:
        return [f"{stem}{number:05}" + "x" * LONG for number in range(min(1000, self.size.elements // 20))]

    # Records

    def produce(self) -> Requests:
        part = ProduceRequest.PartitionProduceData
        data = batch(b"v" * 10)
        rows = [part(index=index, records=data if index in self.many else None) for index in self.indexes()]
        topic = ProduceRequest.TopicProduceData(name="many", partition_data=rows)
        yield ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 12

    def fetch(self) -> Requests:
        row = FetchRequest.FetchPartition
        for wait_ms, last in ((0, self.size.elements), (50, self.size.partitions)):
            rows = [row(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in range(last)]
            topic = FetchRequest.FetchTopic(topic="many", partitions=rows)
            yield FetchRequest(max_wait_ms=wait_ms, min_bytes=10**9, max_bytes=10**8, topics=[topic]), 12

    def list_offsets(self) -> Requests:
        row = ListOffsetsRequest.ListOffsetsPartition
        asked = ListOffsetsRequest.ListOffsetsTopic
        by_time = [row(partition_index=index, timestamp=1) for index in self.indexes()]
        yield ListOffsetsRequest(topics=[asked(name="many", partitions=by_time)]), 9
        again = [row(partition_index=0, timestamp=int(time.time() * 1000) + 10**6)] * 1000
        yield ListOffsetsRequest(topics=[asked(name="wide", partitions=again)]), 9
        latest = [row(partition_index=0, timestamp=-3)]
        yield ListOffsetsRequest(topics=[asked(name="wide", partitions=latest)] * (self.size.elements // 2)), 9

    def offset_for_leader_epoch(self) -> Requests:
        row = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="many", partitions=[row] * self.size.elements)
        yield OffsetForLeaderEpochRequest(topics=[asked]), None

    # What there is

    def metadata(self) -> Requests:
        asked = MetadataRequest.MetadataRequestTopic
        yield MetadataRequest(topics=[asked(name=name) for name in self.names()], allow_auto_topic_creation=False), 12
        yield MetadataRequest(topics=None), 12
        new = [asked(name=f"auto-{number}") for number in range(self.size.created)]
        yield MetadataRequest(topics=new, allow_auto_topic_creation=True), 12

    def describe_topic_partitions(self) -> Requests:
        asked = DescribeTopicPartitionsRequest.TopicRequest
        rows = [asked(name=name) for name in self.names()]
        yield DescribeTopicPartitionsRequest(topics=rows, response_partition_limit=2000, cursor=None), None
        yield DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2000, cursor=None), None

    def describe_cluster(self) -> Requests:
        yield DescribeClusterRequest(), None

    def describe_quorum(self) -> Requests:
        partition = DescribeQuorumRequest.PartitionData(partition_index=0)
        partitions = [partition] * self.size.elements
        topic = DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=partitions)
        yield DescribeQuorumRequest(topics=[topic]), None

    def api_versions(self) -> Requests:
        yield ApiVersionsRequest(client_software_name="n" * LONG, client_software_version="1"), None

    def update_features(self) -> Requests:
        row = UpdateFeaturesRequest.FeatureUpdateKey(feature="group.version", max_version_level=1, upgrade_type=1)
        yield UpdateFeaturesRequest(feature_updates=[row] * self.size.elements), None

    # Topics

    def create_topics(self) -> Requests:
        yield _create(f"new_{number}" for number in range(self.size.created)), None

    def delete_topics(self) -> Requests:
        row = DeleteTopicsRequest.DeleteTopicState
        gone = [row(name=f"new_{number}") for number in range(self.size.created)]
        yield DeleteTopicsRequest(topics=gone + [row(name=name) for name in self.names("gone")][: -len(gone)]), None

    def create_partitions(self) -> Requests:
        row = CreatePartitionsRequest.CreatePartitionsTopic
        grown = [row(name=f"one-{number}", count=2, assignments=None) for number in range(self.size.topics)]
        yield CreatePartitionsRequest(topics=grown, timeout_ms=1000), None
        wide = row(name="wide", count=self.size.created, assignments=None)
        yield CreatePartitionsRequest(topics=[wide], timeout_ms=1000), None

    def delete_records(self) -> Requests:
        row = DeleteRecordsRequest.DeleteRecordsPartition
        rows = [row(partition_index=index, offset=1) for index in self.indexes()]
        yield DeleteRecordsRequest(topics=[DeleteRecordsRequest.DeleteRecordsTopic(name="many", partitions=rows)]), None

    def alter_partition_reassignments(self) -> Requests:
        row = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[1])
        rows = [row] * (self.size.elements // 2)
        topic = AlterPartitionReassignmentsRequest.ReassignableTopic(name="many", partitions=rows)
        yield AlterPartitionReassignmentsRequest(topics=[topic]), None

    def list_partition_reassignments(self) -> Requests:
        row = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
        topic = row(name="many", partition_indexes=self.indexes())
        yield ListPartitionReassignmentsRequest(topics=[topic]), None

    def elect_leaders(self) -> Requests:
        topic = ElectLeadersRequest.TopicPartitions(topic="many", partitions=[0] * self.size.elements)
        yield ElectLeadersRequest(topic_partitions=[topic], timeout_ms=1000), None

    # Settings

    def describe_configs(self) -> Requests:
        row = partial(DescribeConfigsRequest.DescribeConfigsResource, configuration_keys=None)
        rows = [row(resource_type=2, resource_name="many")] * (self.size.elements // 2)
        rows += [row(resource_type=2, resource_name=f"one-{number}") for number in range(self.size.topics)]
        rows += [row(resource_type=4, resource_name="1")] * (self.size.elements // 4)
        yield DescribeConfigsRequest(resources=rows, include_synonyms=True, include_documentation=True), None

    def alter_configs(self) -> Requests:
        row = AlterConfigsRequest.AlterConfigsResource
        config = AlterConfigsRequest.AlterableConfig(name="retention.ms", value="86400000")
        topics = [f"one-{number}" for number in range(self.size.topics)]
        rows = [row(resource_type=2, resource_name=name, configs=[config]) for name in topics]
        session = AlterConfigsRequest.AlterableConfig(name="consumer.session.timeout.ms", value="50000")
        groups = [row(resource_type=32, resource_name=f"g{n}", configs=[session]) for n in range(self.size.topics)]
        yield AlterConfigsRequest(resources=rows + groups), None

    def incremental_alter_configs(self) -> Requests:
        row = IncrementalAlterConfigsRequest.AlterConfigsResource
        change = IncrementalAlterConfigsRequest.AlterableConfig
        configs = [change(name="retention.ms", config_operation=0, value="86400001")]
        topics = [f"one-{number}" for number in range(self.size.topics)]
        rows = [row(resource_type=2, resource_name=name, configs=configs) for name in topics]
        session = [change(name="consumer.session.timeout.ms", config_operation=0, value="50001")]
        rows += [row(resource_type=32, resource_name=f"g{n}", configs=session) for n in range(self.size.topics)]
        again = [row(resource_type=2, resource_name="many", configs=configs)] * (self.size.elements // 4)
        yield IncrementalAlterConfigsRequest(resources=rows + again), None

    def list_config_resources(self) -> Requests:
        yield ListConfigResourcesRequest(resource_types=[2, 4, 32] * (self.size.elements // 3)), None

    # What lies where

    def describe_log_dirs(self) -> Requests:
        yield DescribeLogDirsRequest(topics=None), None
        row = DescribeLogDirsRequest.DescribableLogDirTopic
        yield DescribeLogDirsRequest(topics=[row(topic="many", partitions=[0] * self.size.elements)]), None

    def describe_producers(self) -> Requests:
        row = DescribeProducersRequest.TopicRequest
        yield DescribeProducersRequest(topics=[row(name="many", partition_indexes=self.indexes())]), None
        yield DescribeProducersRequest(topics=[row(name="many", partition_indexes=[0] * self.size.elements)]), None

    def alter_replica_log_dirs(self) -> Requests:
        topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="many", partitions=[0])
        row = AlterReplicaLogDirsRequest.AlterReplicaLogDir
        rows = [row(path=f"/a/b/c/{number}", topics=[topic]) for number in range(self.size.elements // 3)]
        yield AlterReplicaLogDirsRequest(dirs=rows), None

    # Quotas and security

    def alter_client_quotas(self) -> Requests:
        request = AlterClientQuotasRequest
        operation = request.OpData(key="producer_byte_rate", value=1e9)
        rows = [
            request.EntryData(entity=[request.EntityData(entity_type="client-id", entity_name=name)], ops=[operation])
            for name in self.names("client")[: self.size.elements // 3]
        ]
        yield AlterClientQuotasRequest(entries=rows), None

    def describe_client_quotas(self) -> Requests:
        component = DescribeClientQuotasRequest.ComponentData(entity_type="client-id", match_type=2, match=None)
        yield DescribeClientQuotasRequest(components=[component]), None

    def alter_user_scram_credentials(self) -> Requests:
        row = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
        rows = [
            row(name=name, mechanism=1, iterations=4096, salt=b"salt", salted_password=b"password")
            for name in self.names("user")[: self.size.elements // 2]
        ]
        yield AlterUserScramCredentialsRequest(deletions=[], upsertions=rows), None

    def describe_user_scram_credentials(self) -> Requests:
        row = DescribeUserScramCredentialsRequest.UserName
        yield DescribeUserScramCredentialsRequest(users=[row(name=name) for name in self.names("user")]), None
        yield DescribeUserScramCredentialsRequest(users=None), None

    def sasl_handshake(self) -> Requests:
        yield SaslHandshakeRequest(mechanism="m" * LONG), None

    def sasl_authenticate(self) -> Requests:
        yield SaslAuthenticateRequest(auth_bytes=b"a" * 50_000_000), None

    def describe_acls(self) -> Requests:
        yield DescribeAclsRequest(
            resource_type_filter=2, pattern_type_filter=3, operation=3, permission_type=3, host_filter="h" * LONG
        ), None

    def create_acls(self) -> Requests:
        row = CreateAclsRequest.AclCreation(
            resource_type=2, resource_pattern_type=3, operation=3, permission_type=3, host="*"
        )
        yield CreateAclsRequest(creations=[row] * self.size.elements), None

    def delete_acls(self) -> Requests:
        row = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=2, pattern_type_filter=3, operation=3, permission_type=3
        )
        yield DeleteAclsRequest(filters=[row] * self.size.elements), None

    def create_delegation_token(self) -> Requests:
        row = CreateDelegationTokenRequest.CreatableRenewers(principal_type="User", principal_name="p")
        yield CreateDelegationTokenRequest(renewers=[row] * self.size.elements), None

    def renew_delegation_token(self) -> Requests:
        yield RenewDelegationTokenRequest(hmac=b"h" * 50_000_000), None

    def expire_delegation_token(self) -> Requests:
        yield ExpireDelegationTokenRequest(hmac=b"h" * 50_000_000), None

    def describe_delegation_token(self) -> Requests:
        row = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner(principal_type="User", principal_name="p")
        yield DescribeDelegationTokenRequest(owners=[row] * self.size.elements), None

    # Transactions

    def find_coordinator(self) -> Requests:
        yield FindCoordinatorRequest(key_type=0, coordinator_keys=self.names("group")), None
        yield FindCoordinatorRequest(key_type=1, coordinator_keys=self.long_names("id")), None

    def init_producer_id(self) -> Requests:
        yield InitProducerIdRequest(transactional_id="i" * LONG, transaction_timeout_ms=60_000), None

    def add_partitions_to_txn(self) -> Requests:
        request = AddPartitionsToTxnRequest
        wanted = InitProducerIdRequest(transactional_id="many", transaction_timeout_ms=60_000)
        identity = self.raw.ask(wanted, 5)
        self.producer = identity.producer_id, identity.producer_epoch
        topic = request.AddPartitionsToTxnTopic
        for indexes in (self.indexes(), list(self.many)):
            yield (
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id="many",
                    v3_and_below_producer_id=self.producer[0],
                    v3_and_below_producer_epoch=self.producer[1],
                    v3_and_below_topics=[topic(name="many", partitions=indexes)],
                ),
                3,
            )
        ids = self.names("id")[: self.size.elements // 3]
        rows = [
            request.AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=1, producer_epoch=0, topics=[topic(name="many", partitions=[0])]
            )
            for name in ids
        ]
        yield AddPartitionsToTxnRequest(transactions=rows), 5

    def add_offsets_to_txn(self) -> Requests:
        yield AddOffsetsToTxnRequest(
            transactional_id="i" * LONG, producer_id=0, producer_epoch=0, group_id="g" * LONG
        ), None

    def end_txn(self) -> Requests:
        yield EndTxnRequest(
            transactional_id="many", producer_id=self.producer[0], producer_epoch=self.producer[1], committed=True
        ), 3

    def write_txn_markers(self) -> Requests:
        request = WriteTxnMarkersRequest
        topic = request.WritableTxnMarkerTopic(name="many", partition_indexes=self.indexes())
        marker = request.WritableTxnMarker(producer_id=10**9, transaction_result=False, topics=[topic])
        yield WriteTxnMarkersRequest(markers=[marker]), 1

    def describe_transactions(self) -> Requests:
        yield DescribeTransactionsRequest(transactional_ids=self.names("id")), None
        yield DescribeTransactionsRequest(transactional_ids=["many"] * self.size.elements), None
        yield DescribeTransactionsRequest(transactional_ids=self.long_names("id")), None

    def list_transactions(self) -> Requests:
        yield ListTransactionsRequest(
            state_filters=self.names("state")[: self.size.elements // 2],
            producer_id_filters=self.indexes()[: self.size.elements // 2],
        ), None

    # Groups

    def offset_commit(self) -> Requests:
        row = OffsetCommitRequest.OffsetCommitRequestPartition
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        rows = [row(partition_index=index, committed_offset=1, committed_metadata="m") for index in self.indexes()]
        for partitions in (rows, rows[: self.size.partitions], [rows[0]] * (self.size.elements)):
            yield OffsetCommitRequest(
                group_id="group", member_id="", generation_id_or_member_epoch=-1,
                topics=[topic(name="many", partitions=partitions)],
            ), 9

    def txn_offset_commit(self) -> Requests:
        identity = self.raw.ask(InitProducerIdRequest(transactional_id="offsets", transaction_timeout_ms=60_000), 5)
        row = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
        rows = [row(partition_index=index, committed_offset=1, committed_metadata="m") for index in self.indexes()]
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        for partitions in (rows, rows[: self.size.partitions], [rows[0]] * (self.size.elements)):
            yield TxnOffsetCommitRequest(
                transactional_id="offsets", group_id="group", producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch, generation_id=-1, member_id="",
                topics=[topic(name="many", partitions=partitions)],
            ), 5

    def offset_fetch(self) -> Requests:
        group = OffsetFetchRequest.OffsetFetchRequestGroup
        topic = OffsetFetchRequest.OffsetFetchRequestTopics(name="many", partition_indexes=self.indexes())
        yield OffsetFetchRequest(groups=[group(group_id="group", topics=[topic])]), 9
        groups = [group(group_id="group", topics=None)] * max(2, self.size.elements // 1000)
        yield OffsetFetchRequest(groups=groups), 9
        yield OffsetFetchRequest(groups=[group(group_id=name, topics=[]) for name in self.names("g")]), 9
        old = OffsetFetchRequest.OffsetFetchRequestTopic(name="many", partition_indexes=self.indexes())
        yield OffsetFetchRequest(group_id="group", topics=[old]), 7

    def offset_delete(self) -> Requests:
        row = OffsetDeleteRequest.OffsetDeleteRequestPartition
        rows = [row(partition_index=index) for index in self.indexes()]
        topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(name="many", partitions=rows)
        yield OffsetDeleteRequest(group_id="group", topics=[topic]), None

    def join_group(self) -> Requests:
        row = JoinGroupRequest.JoinGroupRequestProtocol
        protocols = [row(name=name, metadata=b"m") for name in self.names("p")[:1000]]
        yield JoinGroupRequest(
            group_id="classic", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            protocol_type="consumer", protocols=protocols,
        ), 3

    def sync_group(self) -> Requests:
        row = SyncGroupRequest.SyncGroupRequestAssignment
        rows = [row(member_id=name, assignment=b"a") for name in self.names("m")]
        yield SyncGroupRequest(group_id="classic", generation_id=1, member_id="m", assignments=rows), 4

    def heartbeat(self) -> Requests:
        yield HeartbeatRequest(group_id="g" * LONG, generation_id=1, member_id="m"), None

    def leave_group(self) -> Requests:
        row = LeaveGroupRequest.MemberIdentity
        yield LeaveGroupRequest(group_id="classic", members=[row(member_id=name) for name in self.names("m")]), None

    def describe_groups(self) -> Requests:
        yield DescribeGroupsRequest(groups=self.names("g")), None
        yield DescribeGroupsRequest(groups=["classic"] * self.size.elements), None
        yield DescribeGroupsRequest(groups=self.long_names("g")), None

    def list_groups(self) -> Requests:
        yield ListGroupsRequest(states_filter=self.names("state")), None

    def delete_groups(self) -> Requests:
        yield DeleteGroupsRequest(groups_names=["group", *self.names("g")][:-1]), None

    def consumer_group_heartbeat(self) -> Requests:
        yield ConsumerGroupHeartbeatRequest(
            group_id="consumers", member_id=str(uuid.uuid4()), member_epoch=0, rebalance_timeout_ms=10_000,
            subscribed_topic_names=["many", *self.names("t")][:5000], topic_partitions=[],
        ), None
        yield ConsumerGroupHeartbeatRequest(
            group_id="patterns", member_id=str(uuid.uuid4()), member_epoch=0, rebalance_timeout_ms=10_000,
            # Every topic is held against it, and few match: what a group over all topics is assigned is another matter.
            subscribed_topic_regex="(one|two|[a-z-]*)*.{0,200}(many|wide)", topic_partitions=[],
        ), None

    def consumer_group_describe(self) -> Requests:
        yield ConsumerGroupDescribeRequest(group_ids=self.names("g")), None
        yield ConsumerGroupDescribeRequest(group_ids=["consumers"] * (self.size.elements)), None


def _create(names: Iterator[str], partitions: int = 1) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=name, num_partitions=partitions, replication_factor=1) for name in names], timeout_ms=1000
    )


#: What has to come before the rest, because others delete it or end it.
FIRST = (
    ApiKey.CREATE_TOPICS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.OFFSET_COMMIT,
)


def method_of(key: ApiKey) -> str:
    return key.name.lower()


# Measuring


class Heart:
    """Beats on a loop, and knows the longest pause between two beats."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._beat_at = (0.0, 0.0)
        self._longest_s = (0.0, 0.0)
        self._loop.call_soon_threadsafe(self._beat)

    def _beat(self) -> None:
        now = time.perf_counter(), time.thread_time()
        if self._beat_at[0]:
            self._longest_s = (
                max(self._longest_s[0], now[0] - self._beat_at[0] - HEARTBEAT_S),
                max(self._longest_s[1], now[1] - self._beat_at[1]),
            )
        self._beat_at = now
        self._loop.call_later(HEARTBEAT_S, self._beat)

    def longest_ms(self) -> tuple[float, float]:
        """Since this was last asked: by the clock, and the most that the loop's own thread worked between two beats."""

        async def taken() -> tuple[float, float]:
            await asyncio.sleep(3 * HEARTBEAT_S)
            longest, self._longest_s = self._longest_s, (0.0, 0.0)
            return longest[0] * 1000, longest[1] * 1000

        return asyncio.run_coroutine_threadsafe(taken(), self._loop).result()


def answer_each_line(heart: Heart) -> None:
    """Print the longest pauses for every line that comes."""
    for _ in sys.stdin:
        print(*heart.longest_ms(), flush=True)


def serve() -> None:
    """The broker's process: its address, and then the longest pauses."""
    from semel.cli import broker as command

    with Broker(settings={"node.id": 1, "auto.create.topics.enable": "true"}) as broker:
        command.tidy_memory()
        command.take_turns_often()
        print(broker.bootstrap_servers, flush=True)
        answer_each_line(Heart(broker.server.loop))


def beat() -> None:
    """A process that does nothing but beat: what the machine alone does to a heartbeat."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    answer_each_line(Heart(loop))


class Beside:
    """A process of this module that answers every line with its longest pauses."""

    def __init__(self, part: str) -> None:
        command = [sys.executable, "-m", "tests.broker.largest_requests", part]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def longest_ms(self) -> tuple[float, ...]:
        print(file=self._process.stdin, flush=True)
        return tuple(float(word) for word in self.read().split())

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)


@dataclass(frozen=True)
class Measured:
    """What one request did, in ms."""

    name: str
    took_ms: float
    #: The longest pause of the heartbeat on the broker's loop.
    pause_ms: float
    #: The most that the loop's own thread worked between two beats.
    worked_ms: float
    #: The longest pause of an idle process meanwhile: this much is the machine's.
    idle_pause_ms: float

    def __str__(self) -> str:
        return (
            f"{self.name:48} took {self.took_ms:7.0f} ms, longest pause {self.pause_ms:6.1f} ms, "
            f"loop worked {self.worked_ms:6.1f} ms, idle process {self.idle_pause_ms:6.1f} ms"
        )


def measure(size: Size, wanted: Callable[[ApiKey], bool] = lambda key: True) -> Iterator[Measured]:
    """Send each request, one after the other."""
    from semel.broker.handlers import SERVED

    with Beside("serve") as server, Beside("beat") as idle, Raw(server.read()) as raw:
        largest = Largest(raw, size)
        largest.prepare()
        for key in sorted(SERVED, key=lambda key: (key not in FIRST, FIRST.index(key) if key in FIRST else 0, key)):
            if not wanted(key):
                continue
            for number, (message, version) in enumerate(getattr(largest, method_of(key))()):
                sent, _ = raw._frame(message, version)
                server.longest_ms()
                idle.longest_ms()
                began = time.perf_counter()
                raw.socket.sendall(sent)
                raw.receive_frame()
                took_ms = (time.perf_counter() - began) * 1000
                pause_ms, worked_ms = server.longest_ms()
                name = f"{key.name.lower()} {number + 1} ({len(sent) / 1000:.0f} kB)"
                yield Measured(name, took_ms, pause_ms, worked_ms, idle.longest_ms()[0])


def main() -> None:
    """Print what was measured, and whether the bar was kept."""
    if sys.argv[1:] in (["serve"], ["beat"]):
        serve() if sys.argv[1] == "serve" else beat()
        return
    only = {name.upper() for name in sys.argv[1:]}
    longest_ms = 0.0
    for measured in measure(FULL, lambda key: not only or key.name in only):
        longest_ms = max(longest_ms, measured.pause_ms)
        print(measured, flush=True)
    print(f"the longest pause was {longest_ms:.0f} ms: {'kept' if longest_ms < MOST_MS else 'NOT below 100 ms'}")


if __name__ == "__main__":
    main()

"""The matrix's requests about records, groups, transactions and tokens. What a case is: see `cases`."""

from __future__ import annotations

from functools import partial
from typing import Any

from semel.machines.security.access import Operation, ResourceType
from semel.wire.apis import ApiKey
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
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
from semel.wire.messages.offsets import OffsetDeleteRequest, OffsetFetchRequest
from semel.wire.messages.produce import ProduceRequest
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
from tests.broker.access.cases import Case, any_of, needs, on_cluster, on_group, on_id, on_topic
from tests.broker.access.sides import (
    GROUP,
    HIDDEN,
    HIDDEN_GROUP,
    HIDDEN_ID,
    ID,
    MISSING,
    TIMEOUT_MS,
    TX,
    Side,
    T,
    commit_request,
)
from tests.broker.raw import batch
from tests.support.waiting import until

ASKED = (T, HIDDEN, MISSING)

# Records


def produce(side: Side, version: int, at: str, **options: Any) -> ProduceRequest:
    row = ProduceRequest.PartitionProduceData
    data = batch(b"value", **options)
    return ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=name, topic_id=side.ids[name], partition_data=[row(index=0, records=data)]
            )
            for name in ASKED
        ],
    )


def produce_in_transaction(side: Side, version: int, at: str) -> ProduceRequest:
    producer_id, epoch = side.producers[f"id-{at}"]
    data = batch(b"value", producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
    row = ProduceRequest.PartitionProduceData(index=0, records=data)
    topic = ProduceRequest.TopicProduceData(name=TX, topic_id=side.ids[TX], partition_data=[row])
    return ProduceRequest(transactional_id=f"id-{at}", acks=-1, timeout_ms=10_000, topic_data=[topic])


def fetch(replica_id: int, side: Side, version: int, at: str) -> FetchRequest:
    row = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    return FetchRequest(
        replica_id=replica_id,
        replica_state=FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=-1),
        max_bytes=10_000,
        topics=[FetchRequest.FetchTopic(topic=name, topic_id=side.ids[name], partitions=[row]) for name in ASKED],
    )


def list_offsets(side: Side, version: int, at: str) -> ListOffsetsRequest:
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[row]) for name in ASKED]
    )


def ends_of_epochs(side: Side, version: int, at: str) -> OffsetForLeaderEpochRequest:
    request = OffsetForLeaderEpochRequest
    row = request.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return request(
        replica_id=-1, topics=[request.OffsetForLeaderTopic(topic=name, partitions=[row]) for name in ASKED]
    )


def describe_producers(side: Side, version: int, at: str) -> DescribeProducersRequest:
    row = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(topics=[row(name=name, partition_indexes=[0]) for name in ASKED])


# Groups


def join_group(side: Side, version: int, at: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=f"group-{at}",
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=1_800_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")],
    )


def sync_group(side: Side, version: int, at: str) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=GROUP, generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
    )


def leave_group(side: Side, version: int, at: str) -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=GROUP, member_id="m", members=[LeaveGroupRequest.MemberIdentity(member_id="m")]
    )


def offset_commit(side: Side, version: int, at: str) -> Any:
    return commit_request(side, f"group-{at}", *ASKED)


def offset_fetch(of_all: bool, side: Side, version: int, at: str) -> OffsetFetchRequest:
    old, new = OffsetFetchRequest.OffsetFetchRequestTopic, OffsetFetchRequest.OffsetFetchRequestTopics
    rows = [new(name=name, topic_id=side.ids[name], partition_indexes=[0]) for name in ASKED]
    groups = [
        OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None if of_all else rows)
        for group in (GROUP, HIDDEN_GROUP)
    ]
    topics = None if of_all else [old(name=name, partition_indexes=[0]) for name in ASKED]
    return OffsetFetchRequest(group_id=GROUP, topics=topics, groups=groups)


def make_group(side: Side, version: int, at: str) -> None:
    side.commit(f"group-{at}", T, HIDDEN)


def offset_delete(side: Side, version: int, at: str) -> OffsetDeleteRequest:
    row = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    return OffsetDeleteRequest(
        group_id=f"group-{at}", topics=[topic(name=name, partitions=[row]) for name in ASKED]
    )


def consumer_heartbeat(group: str, names: tuple[str, ...], side: Side, version: int, at: str) -> Any:
    return ConsumerGroupHeartbeatRequest(
        group_id=group.replace("@", at),
        member_id="member" if version else "",
        rebalance_timeout_ms=1_800_000,
        subscribed_topic_names=list(names),
        topic_partitions=[],
    )


def make_consumer_group(side: Side, version: int, at: str) -> None:
    asked = consumer_heartbeat("consumers", (T,), side, 1, at)
    answer = side.admin.ask(asked, 1)
    assert answer.error_code == 0, answer
    describe = ConsumerGroupDescribeRequest(group_ids=["consumers"])

    def has_topic() -> bool:
        return any(member.assignment.topic_partitions for member in side.admin.ask(describe).groups[0].members)

    until(has_topic, what="a member with a topic")


# Transactions


def begin(side: Side, version: int, at: str) -> None:
    side.begin(f"id-{at}")


def begin_with_topic(side: Side, version: int, at: str) -> None:
    begin(side, version, at)
    answer = side.admin.ask(add_partitions(side, 3, at, (TX,)), 3)
    assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0, answer


def begin_with_group(side: Side, version: int, at: str) -> None:
    begin(side, version, at)
    assert side.admin.ask(add_offsets(side, 3, at), 3).error_code == 0


def add_partitions(side: Side, version: int, at: str, names: tuple[str, ...] = (TX,)) -> AddPartitionsToTxnRequest:
    producer_id, epoch = side.producers[f"id-{at}"]
    request = AddPartitionsToTxnRequest
    topics = [request.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names]
    transaction = request.AddPartitionsToTxnTransaction(
        transactional_id=f"id-{at}", producer_id=producer_id, producer_epoch=epoch, verify_only=True, topics=topics
    )
    return request(
        transactions=[transaction],
        v3_and_below_transactional_id=f"id-{at}",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=topics,
    )


def add_offsets(side: Side, version: int, at: str) -> AddOffsetsToTxnRequest:
    producer_id, epoch = side.producers[f"id-{at}"]
    return AddOffsetsToTxnRequest(
        transactional_id=f"id-{at}", producer_id=producer_id, producer_epoch=epoch, group_id=GROUP
    )


def txn_offset_commit(names: tuple[str, ...], side: Side, version: int, at: str) -> TxnOffsetCommitRequest:
    producer_id, epoch = side.producers[f"id-{at}"]
    request = TxnOffsetCommitRequest
    row = request.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    return request(
        transactional_id=f"id-{at}",
        group_id=GROUP,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[request.TxnOffsetCommitRequestTopic(name=name, partitions=[row]) for name in names],
    )


def end_txn(side: Side, version: int, at: str) -> EndTxnRequest:
    producer_id, epoch = side.producers[f"id-{at}"]
    return EndTxnRequest(
        transactional_id=f"id-{at}", producer_id=producer_id, producer_epoch=epoch, committed=True
    )


def write_markers(side: Side, version: int, at: str) -> WriteTxnMarkersRequest:
    request = WriteTxnMarkersRequest
    topic = request.WritableTxnMarkerTopic(name=MISSING, partition_indexes=[0])
    return request(
        markers=[request.WritableTxnMarker(producer_id=77, producer_epoch=0, topics=[topic], coordinator_epoch=0)]
    )


def init_producer_id(transactional_id: str | None, side: Side, version: int, at: str) -> InitProducerIdRequest:
    named = None if transactional_id is None else transactional_id.replace("@", at)
    return InitProducerIdRequest(transactional_id=named, transaction_timeout_ms=TIMEOUT_MS)


def make_token(side: Side, version: int, at: str) -> None:
    """One of another user for each client, which it may renew if it is the first."""
    request = CreateDelegationTokenRequest
    tag = at.rsplit("-", 1)[1]
    renewer = request.CreatableRenewers(principal_type="User", principal_name=f"DescribeDelegationToken-{tag}")
    asked = request(
        owner_principal_type="User", owner_principal_name="owner", renewers=[renewer] if version == 1 else []
    )
    answer = side.admin.ask(asked)
    assert answer.error_code == 0, answer
    described = DescribeDelegationTokenRequest(owners=None)
    # Apache Kafka answers before its broker knows.
    until(
        lambda: answer.token_id in {token.token_id for token in side.admin.ask(described).tokens},
        what=f"a token at {side.name}",
    )


READ, WRITE = on_topic(Operation.READ), on_topic(Operation.WRITE)
SEE_TOPIC = on_topic(Operation.DESCRIBE)
USE_ID, USE_TX = on_id(Operation.WRITE, "id-@"), on_topic(Operation.WRITE, TX)
SEE_GROUP, READ_GROUP, READ_NEW_GROUP = (
    on_group(Operation.DESCRIBE), on_group(Operation.READ), on_group(Operation.READ, "group-@"),
)
BROKER = on_cluster(Operation.CLUSTER_ACTION)

#: These tell of groups and transactions that there are, so they come before those that make more of them.
FIRST = [
    Case(
        ApiKey.LIST_GROUPS,
        lambda side, version, at: ListGroupsRequest(),
        any_of(on_cluster(Operation.DESCRIBE), SEE_GROUP, READ_GROUP, on_group(Operation.DELETE)),
    ),
    Case(
        ApiKey.LIST_TRANSACTIONS,
        lambda side, version, at: ListTransactionsRequest(),
        any_of(on_id(Operation.DESCRIBE), on_id(Operation.WRITE), on_cluster(Operation.DESCRIBE)),
    ),
]
CASES = [
    Case(ApiKey.PRODUCE, produce, needs(WRITE)),
    Case(
        ApiKey.PRODUCE,
        partial(produce, producer_id=4711, producer_epoch=0, base_sequence=0),
        any_of(on_cluster(Operation.IDEMPOTENT_WRITE)),
        "idempotent",
    ),
    Case(
        ApiKey.PRODUCE, produce_in_transaction, needs(USE_ID, USE_TX), "in a transaction", prepare=begin_with_topic
    ),
    Case(ApiKey.FETCH, partial(fetch, -1), any_of(READ, BROKER)),
    Case(
        ApiKey.FETCH,
        partial(fetch, 1),
        any_of(BROKER, READ),
        "as a replica",
        not_alike_when_allowed="Semel has no replicas: there is nothing to fetch as one",
    ),
    Case(ApiKey.LIST_OFFSETS, list_offsets, any_of(SEE_TOPIC, READ, WRITE)),
    Case(ApiKey.OFFSET_FOR_LEADER_EPOCH, ends_of_epochs, any_of(SEE_TOPIC, BROKER)),
    Case(ApiKey.DESCRIBE_PRODUCERS, describe_producers, any_of(READ)),
    Case(ApiKey.JOIN_GROUP, join_group, needs(READ_NEW_GROUP)),
    Case(ApiKey.SYNC_GROUP, sync_group, needs(READ_GROUP)),
    Case(
        ApiKey.HEARTBEAT,
        lambda side, version, at: HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m"),
        needs(READ_GROUP),
    ),
    Case(ApiKey.LEAVE_GROUP, leave_group, needs(READ_GROUP)),
    Case(
        ApiKey.DESCRIBE_GROUPS,
        lambda side, version, at: DescribeGroupsRequest(
            groups=[GROUP, HIDDEN_GROUP], include_authorized_operations=True
        ),
        any_of(SEE_GROUP, READ_GROUP, on_group(Operation.DELETE), on_cluster(Operation.DESCRIBE)),
    ),
    Case(
        ApiKey.DELETE_GROUPS,
        lambda side, version, at: DeleteGroupsRequest(groups_names=[f"group-{at}", HIDDEN_GROUP]),
        needs(on_group(Operation.DELETE, "group-@")),
        prepare=make_group,
    ),
    Case(ApiKey.OFFSET_COMMIT, offset_commit, needs(READ_NEW_GROUP, READ)),
    Case(ApiKey.OFFSET_FETCH, partial(offset_fetch, False), needs(SEE_GROUP, SEE_TOPIC)),
    Case(ApiKey.OFFSET_FETCH, partial(offset_fetch, True), needs(SEE_GROUP, SEE_TOPIC), "of all topics", since=2),
    Case(
        ApiKey.OFFSET_DELETE,
        offset_delete,
        needs(on_group(Operation.DELETE, "group-@"), READ),
        prepare=make_group,
    ),
    Case(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        partial(consumer_heartbeat, "group-@", (T,)),
        needs(READ_NEW_GROUP, SEE_TOPIC),
    ),
    Case(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        partial(consumer_heartbeat, "group-@", (T, HIDDEN)),
        needs(READ_NEW_GROUP, SEE_TOPIC),
        "with a hidden topic",
    ),
    Case(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        lambda side, version, at: ConsumerGroupDescribeRequest(
            group_ids=["consumers", HIDDEN_GROUP], include_authorized_operations=True
        ),
        needs(on_group(Operation.DESCRIBE, "consumers"), SEE_TOPIC),
        prepare=make_consumer_group,
    ),
    Case(ApiKey.INIT_PRODUCER_ID, partial(init_producer_id, "id-@"), any_of(USE_ID), until=5),
    Case(
        ApiKey.INIT_PRODUCER_ID,
        partial(init_producer_id, None),
        any_of(on_cluster(Operation.IDEMPOTENT_WRITE), WRITE, READ),
        "without an id",
        until=5,
    ),
    Case(ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions, needs(USE_ID, USE_TX), until=3, prepare=begin),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        partial(add_partitions, names=(TX, HIDDEN)),
        needs(USE_ID, USE_TX),
        "with a hidden one",
        until=3,
        prepare=begin,
    ),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions, any_of(BROKER, USE_ID), "of a broker", since=4, prepare=begin
    ),
    Case(ApiKey.ADD_OFFSETS_TO_TXN, add_offsets, needs(USE_ID, READ_GROUP), prepare=begin),
    Case(
        ApiKey.TXN_OFFSET_COMMIT,
        partial(txn_offset_commit, (T, HIDDEN)),
        needs(USE_ID, READ_GROUP, READ),
        prepare=begin_with_group,
    ),
    Case(ApiKey.END_TXN, end_txn, needs(USE_ID), prepare=begin_with_topic),
    Case(ApiKey.WRITE_TXN_MARKERS, write_markers, any_of(BROKER, on_cluster(Operation.ALTER))),
    Case(
        ApiKey.DESCRIBE_TRANSACTIONS,
        lambda side, version, at: DescribeTransactionsRequest(transactional_ids=[ID, HIDDEN_ID, "not-there"]),
        any_of(on_id(Operation.DESCRIBE), on_id(Operation.WRITE)),
    ),
    Case(
        ApiKey.CREATE_DELEGATION_TOKEN,
        lambda side, version, at: CreateDelegationTokenRequest(owner_principal_type=None, owner_principal_name=None),
    ),
    Case(
        ApiKey.CREATE_DELEGATION_TOKEN,
        lambda side, version, at: CreateDelegationTokenRequest(
            owner_principal_type="User", owner_principal_name="owner"
        ),
        any_of((Operation.CREATE_TOKENS, ResourceType.USER, "User:owner")),
        "of another user",
        since=3,
    ),
    Case(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        lambda side, version, at: DescribeDelegationTokenRequest(owners=None),
        any_of(
            (Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:owner"),
            (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "*"),
        ),
        prepare=make_token,
    ),
    Case(ApiKey.RENEW_DELEGATION_TOKEN, lambda side, version, at: RenewDelegationTokenRequest(hmac=b"not-there")),
    Case(ApiKey.EXPIRE_DELEGATION_TOKEN, lambda side, version, at: ExpireDelegationTokenRequest(hmac=b"not-there")),
]

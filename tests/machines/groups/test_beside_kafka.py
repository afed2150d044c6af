"""The same requests to Apache Kafka and to Semel: the group coordinators answer alike, code for code."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.client.cluster.cluster import Cluster, Controller, Coordinator
from semel.errors import ErrorCode
from semel.wire import decode_versioned, encode_versioned
from semel.wire.messages.admin import CreateTopicsRequest
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from semel.wire.messages.coordinator_records import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from semel.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tests.support.apache_kafka import ApacheKafka

pytestmark = pytest.mark.java

#: A request that has no answer by then is taken to be parked. On a busy machine an answer may take longer, so a
#: difference counts only if it is there with the second, too.
PARKED_AFTER_S = (0.4, 3.0)
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    # Without these Kafka assigns a little later, in the background, and no two runs are alike.
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.assignor.offload.enable": "false",
}
STARTING = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)

Step = tuple[str, dict[str, Any]]


def subscription(topics: tuple[str, ...], owned: dict[str, list[int]]) -> bytes:
    held = [ConsumerProtocolSubscription.TopicPartition(topic=t, partitions=p) for t, p in owned.items()]
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics), owned_partitions=held), 1)


def assignment(partitions: list[int]) -> bytes:
    rows = [ConsumerProtocolAssignment.TopicPartition(topic="beside", partitions=partitions)]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=rows, user_data=None), 1)


def read_assignment(data: bytes) -> dict[str, list[int]]:
    if not data:
        return {}
    return {row.topic: row.partitions for row in decode_versioned(ConsumerProtocolAssignment, data).assigned_partitions}


def counted(given: dict[str, list[int]]) -> list[tuple[str, int]]:
    """Which partitions they are depends on member ids, which no two sides have in common."""
    return sorted((name, len(partitions)) for name, partitions in given.items())


class Side:
    """One of the two coordinators, asked about one group. Member ids are numbered as they appear."""

    def __init__(
        self, cluster: Cluster, group_id: str, topic_ids: dict[str, uuid.UUID], parked_after_s: float
    ) -> None:
        self.cluster = cluster
        self.parked_after_s = parked_after_s
        self.group_id = group_id
        self.topic_ids = topic_ids
        self.ids: list[str] = [""]
        #: The member id each client uses, its generation, and the requests it waits with.
        self.held: dict[int, str] = {}
        self.generation: dict[int, int] = {}
        self.parked: dict[asyncio.Task[Any], tuple[int, str]] = {}
        self.producer: Any = None
        self.given: dict[int, dict[str, list[int]]] = {}

    def number(self, member_id: str) -> int:
        if member_id not in self.ids:
            self.ids.append(member_id)
        return self.ids.index(member_id)

    async def send(self, client: int, request: Any, version: int, name: str) -> list[Any]:
        """Every answer there is after this request: its own, unless it is parked, and those it set free."""
        target = Coordinator("group", self.group_id)
        lane = f"{self.group_id}-{client}"
        task = asyncio.create_task(self.cluster.request(target, request, version=version, lane=lane))
        self.parked[task] = (client, name)
        answers = []
        if not any(other is not task and self.parked[other][0] != client for other in self.parked):
            await asyncio.wait([task], timeout=self.parked_after_s)
        else:
            await asyncio.wait(self.parked, timeout=self.parked_after_s)
        for done in [task for task in self.parked if task.done()]:
            who, what = self.parked.pop(done)
            answers.append((who, what, *self.read(who, done.result())))
        return sorted(answers)

    def read(self, client: int, answer: Any) -> tuple[Any, ...]:
        kind = type(answer).__name__
        if kind == "JoinGroupResponse":
            if answer.member_id:
                self.held[client] = answer.member_id
            if answer.error_code == 0:
                self.generation[client] = answer.generation_id
            return (
                ErrorCode(answer.error_code).name,
                answer.generation_id,
                self.number(answer.member_id),
                self.number(answer.leader),
                answer.protocol_type or "",
                answer.protocol_name or "",
                sorted(self.number(member.member_id) for member in answer.members),
                answer.skip_assignment,
            )
        if kind == "SyncGroupResponse":
            self.given[client] = read_assignment(bytes(answer.assignment))
            return ErrorCode(answer.error_code).name, counted(self.given[client])
        if kind == "LeaveGroupResponse":
            return (
                ErrorCode(answer.error_code).name,
                [ErrorCode(member.error_code).name for member in answer.members],
            )
        return (ErrorCode(answer.error_code).name,)

    # What can be asked

    async def join(
        self,
        client: int,
        version: int = 9,
        instance: str | None = None,
        member_id: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        topics: tuple[str, ...] = ("beside",),
        session_ms: int = 30_000,
        protocol_type: str = "consumer",
        holds: bool = False,
    ) -> list[Any]:
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=60_000,
            member_id=self.held.get(client, "") if member_id is None else member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(
                    name=name, metadata=subscription(topics, self.given.get(client, {}) if holds else {})
                )
                for name in protocols
            ],
        )
        return await self.send(client, request, version, "join")

    async def sync(
        self, client: int, behind: int = 0, instance: str | None = None, protocol_name: str | None = "range"
    ) -> list[Any]:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation.get(client, -1) - behind,
            member_id=self.held.get(client, "nobody"),
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=assignment([p for p in range(2) if p % len(self.held) == place])
                )
                for place, (_, member_id) in enumerate(sorted(self.held.items()))
            ],
        )
        return await self.send(client, request, 5, "sync")

    async def heartbeat(self, client: int, behind: int = 0, instance: str | None = None) -> list[Any]:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation.get(client, -1) - behind,
            member_id=self.held.get(client, "nobody"),
            group_instance_id=instance,
        )
        return await self.send(client, request, 4, "heartbeat")

    async def leave(self, client: int, instance: str | None = None, by_instance: bool = False) -> list[Any]:
        request = LeaveGroupRequest(
            group_id=self.group_id,
            members=[
                LeaveGroupRequest.MemberIdentity(
                    member_id="" if by_instance else self.held.get(client, "nobody"), group_instance_id=instance
                )
            ],
        )
        return await self.send(100 + client, request, 5, "leave")

    async def commit(
        self,
        client: int | None = None,
        offset: int = 5,
        behind: int = 0,
        instance: str | None = None,
        topic: str = "beside",
        partition: int = 0,
        version: int = 9,
        metadata: str = "",
    ) -> Any:
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=-1 if client is None else self.generation.get(client, 99) - behind,
            member_id="" if client is None else self.held.get(client, "nobody"),
            group_instance_id=instance,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=self.topic_ids.get(topic, uuid.UUID(int=99)),
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
            ],
        )
        answer = await self.ask(request, version)
        return ErrorCode(answer.topics[0].partitions[0].error_code).name

    async def ask_transactions(self, request: Any, version: int) -> Any:
        target = Coordinator("transaction", self.group_id)
        return await self.cluster.request_retrying(request, to=target, version=version)

    async def txn_commit(self, client: int | None = None, behind: int = 0, instance: str | None = None) -> Any:
        """In a transaction of the old protocol, that goes on until `end`."""
        if self.producer is None:
            init = InitProducerIdRequest(transactional_id=self.group_id, transaction_timeout_ms=60_000)
            self.producer = await self.ask_transactions(init, 2)
        add = AddOffsetsToTxnRequest(
            transactional_id=self.group_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            group_id=self.group_id,
        )
        assert (await self.ask_transactions(add, 2)).error_code == 0
        request = TxnOffsetCommitRequest(
            transactional_id=self.group_id,
            group_id=self.group_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            generation_id=-1 if client is None else self.generation.get(client, 99) - behind,
            member_id="" if client is None else self.held.get(client, "nobody"),
            group_instance_id=instance,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name="beside",
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=77, committed_metadata=""
                        )
                    ],
                )
            ],
        )
        answer = await self.ask(request, 3)
        return ErrorCode(answer.topics[0].partitions[0].error_code).name

    async def end(self, commit: bool) -> Any:
        if self.producer is None:
            return None
        request = EndTxnRequest(
            transactional_id=self.group_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            committed=commit,
        )
        answer = await self.ask_transactions(request, 2)
        # Kafka answers before its markers are written: wait until the offsets are settled.
        for _ in range(100):
            if all(row[-1] == "NONE" for row in (await self.fetch(everything=False))[1]):
                break
            await asyncio.sleep(0.05)
        return ErrorCode(answer.error_code).name

    async def fetch(self, everything: bool = True, version: int = 9) -> Any:
        asked = None
        if not everything:
            asked = [
                OffsetFetchRequest.OffsetFetchRequestTopics(
                    name=name, topic_id=self.topic_ids.get(name, uuid.UUID(int=99)), partition_indexes=[0, 1]
                )
                for name in ("beside", "nowhere")
            ]
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group_id, topics=asked)
        answer = (await self.ask(OffsetFetchRequest(groups=[group], require_stable=True), version)).groups[0]
        found = sorted(
            (
                topic.name or {v: k for k, v in self.topic_ids.items()}.get(topic.topic_id, "?"),
                row.partition_index,
                row.committed_offset,
                row.committed_leader_epoch,
                row.metadata,
                ErrorCode(row.error_code).name,
            )
            for topic in answer.topics
            for row in topic.partitions
        )
        return ErrorCode(answer.error_code).name, found

    async def delete_offset(self, topic: str = "beside") -> Any:
        request = OffsetDeleteRequest(
            group_id=self.group_id,
            topics=[
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)]
                )
            ],
        )
        answer = await self.ask(request, 0)
        rows = [ErrorCode(row.error_code).name for part in answer.topics for row in part.partitions]
        return ErrorCode(answer.error_code).name, rows

    async def delete(self) -> Any:
        answer = await self.ask(DeleteGroupsRequest(groups_names=[self.group_id]), 2)
        return ErrorCode(answer.results[0].error_code).name

    async def consumer(
        self,
        client: int,
        epoch: int | None = None,
        topics: list[str] | None = None,
        regex: str | None = None,
        owned: dict[str, list[int]] | None = None,
        holds: bool = False,
        instance: str | None = None,
        assignor: str | None = None,
        behind: int = 0,
    ) -> Any:
        """With `holds` it says that it has what it was last given, no more and no less."""
        if epoch is None:
            epoch = self.generation.get(client, 0) - behind
        joining = epoch == 0
        if joining:
            owned = {} if owned is None else owned
            topics = ["beside"] if topics is None and regex is None else topics
        elif holds:
            owned = self.given.get(client, {})
        member_id = self.held.setdefault(client, str(uuid.uuid4()))
        answer = await self.ask(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=member_id,
                member_epoch=epoch,
                instance_id=instance,
                rebalance_timeout_ms=60_000 if joining else -1,
                subscribed_topic_names=topics,
                subscribed_topic_regex=regex,
                server_assignor=assignor,
                topic_partitions=None
                if owned is None
                else [
                    ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self.topic_ids[name], partitions=partitions)
                    for name, partitions in owned.items()
                ],
            ),
            1,
        )
        if answer.error_code == 0:
            self.generation[client] = answer.member_epoch
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        if answer.assignment is None:
            return ErrorCode(answer.error_code).name, answer.member_epoch, None
        given = {names[part.topic_id]: part.partitions for part in answer.assignment.topic_partitions}
        self.given[client] = given
        return ErrorCode(answer.error_code).name, answer.member_epoch, counted(given)

    async def ask(self, request: Any, version: int) -> Any:
        return await self.cluster.request(Coordinator("group", self.group_id), request, version=version)

    async def state(self) -> Any:
        """How the group looks from outside."""
        classic = (await self.ask(DescribeGroupsRequest(groups=[self.group_id]), 6)).groups[0]
        modern = (await self.ask(ConsumerGroupDescribeRequest(group_ids=[self.group_id]), 1)).groups[0]
        listed = (await self.ask(ListGroupsRequest(), 5)).groups
        return (
            ErrorCode(classic.error_code).name,
            classic.group_state,
            classic.protocol_type,
            classic.protocol_data,
            sorted(
                (
                    self.number(m.member_id),
                    m.group_instance_id or "",
                    counted(read_assignment(bytes(m.member_assignment))),
                )
                for m in classic.members
            ),
            ErrorCode(modern.error_code).name,
            (modern.group_state, modern.group_epoch, modern.assignment_epoch),
            sorted((member.member_epoch, member.member_type) for member in modern.members),
            [(one.group_state, one.group_type, one.protocol_type) for one in listed if one.group_id == self.group_id],
        )


async def settled(side: Side) -> Any:
    """Kafka describes what is replicated, which is a moment behind what it decided."""
    state = await side.state()
    for _ in range(20):
        await asyncio.sleep(0.03)
        before, state = state, await side.state()
        if state == before:
            break
    return state


async def told(bootstrap: str, steps: list[Step], group_id: str, parked_after_s: float) -> list[Any]:
    async with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        metadata = await cluster.request_retrying(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        for kind in ("group", "transaction"):
            await cluster.request_retrying(MetadataRequest(topics=[]), to=Coordinator(kind, group_id))
        side = Side(cluster, group_id, {topic.name: topic.topic_id for topic in metadata.topics}, parked_after_s)
        # The coordinator may still be getting ready.
        for _ in range(100):
            row = (await side.ask(DescribeGroupsRequest(groups=[group_id]), 6)).groups[0]
            if row.error_code not in STARTING:
                break
            await asyncio.sleep(0.1)
        answers = []
        for method, arguments in steps:
            answer = await getattr(side, method)(**arguments)
            answers.append((method, tuple(arguments.items()), answer, await settled(side)))
        for task in side.parked:
            task.cancel()
        await asyncio.gather(*side.parked, return_exceptions=True)
        return answers


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    with ApacheKafka(settings=SETTINGS) as kafka, Broker() as semel:
        pair = (kafka.bootstrap_servers, semel.bootstrap_servers)

        async def create(bootstrap: str) -> None:
            async with Cluster({"bootstrap.servers": bootstrap}) as cluster:
                rows = [
                    CreateTopicsRequest.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
                    for name in ("beside", "besides")
                ]
                await cluster.request_retrying(CreateTopicsRequest(topics=rows, timeout_ms=10_000), to=Controller())

        for bootstrap in pair:
            asyncio.run(create(bootstrap))
        yield pair


def assert_alike(servers: tuple[str, str], steps: list[Step]) -> None:
    async def both(parked_after_s: float) -> list[list[Any]]:
        group_id = f"group-{uuid.uuid4()}"
        asked = (told(bootstrap, steps, group_id, parked_after_s) for bootstrap in servers)
        return list(await asyncio.gather(*asked))

    for parked_after_s in PARKED_AFTER_S:
        kafka, semel = asyncio.run(both(parked_after_s))
        until = next((at for at, answer in enumerate(kafka, 1) if forgets(answer)), len(kafka))
        if kafka[:until] == semel[:until]:
            return
    for theirs, ours in zip(kafka[:until], semel[:until], strict=True):
        assert ours == theirs


def forgets(answer: Any) -> bool:
    """Kafka forgets an empty consumer group, in memory only, when a classic member it does not know tries to join.

    Its log and its memory differ from there on, so that is where a story ends.
    """
    method, _, found, state = answer
    refused = method == "join" and any(row[2] == "UNKNOWN_MEMBER_ID" for row in found)
    return refused and ("Empty", "consumer", "consumer") in state[-1]


def at(method: str, client: int, **options: Any) -> Step:
    return method, {"client": client, **options}


LIFE: list[Step] = [
    at("heartbeat", 0),
    at("leave", 0),
    at("sync", 0),
    at("join", 0, member_id="made-up"),
    at("join", 0, session_ms=1),
    at("join", 0, protocols=()),
    at("join", 0, protocol_type=""),
    at("join", 0),
    at("join", 0),
    at("heartbeat", 0),
    at("commit", 0),
    at("join", 0),
    at("sync", 0, protocol_name="sticky"),
    at("sync", 0),
    at("sync", 0),
    at("heartbeat", 0),
    at("heartbeat", 0, behind=1),
    at("commit", 0),
    at("commit", 0, behind=1),
    at("commit", 0, instance="i"),
    ("commit", {}),
    ("fetch", {}),
    at("join", 1),
    at("join", 1, protocols=("sticky",)),
    at("join", 1),
    at("heartbeat", 0),
    at("commit", 0),
    at("sync", 0),
    at("join", 0),
    at("commit", 1),
    at("sync", 1),
    at("sync", 0),
    at("join", 1),
    at("join", 1, topics=("besides",)),
    at("join", 0),
    at("sync", 0),
    at("sync", 1),
    at("leave", 0),
    at("heartbeat", 1),
    at("join", 1),
    at("sync", 1),
    at("leave", 1),
    at("heartbeat", 1),
    at("commit", 1),
    ("commit", {"offset": 9}),
    ("fetch", {}),
    ("delete", {}),
    ("delete", {}),
    ("fetch", {}),
]
STATIC: list[Step] = [
    at("join", 0, instance="a"),
    at("sync", 0, instance="a"),
    at("join", 1, instance="b"),
    at("join", 0, instance="a"),
    at("sync", 1, instance="b"),
    at("sync", 0, instance="a"),
    at("heartbeat", 1, instance="a"),
    at("join", 2, instance="b"),
    at("heartbeat", 1, instance="b"),
    at("sync", 1, instance="b"),
    at("commit", 1, instance="b"),
    at("txn_commit", 1, instance="b"),
    at("leave", 1, instance="b"),
    at("join", 1, instance="b"),
    at("sync", 2, instance="b"),
    at("join", 3, instance="a"),
    at("sync", 3, instance="a"),
    at("join", 4, instance="a", version=8),
    at("leave", 5, instance="b", by_instance=True),
    at("leave", 5, instance="b", by_instance=True),
    at("leave", 5, instance="nobody", by_instance=True),
    at("join", 4, instance="a"),
    at("sync", 4, instance="a"),
    at("leave", 4, instance="a"),
]
OFFSETS: list[Step] = [
    ("fetch", {}),
    ("fetch", {"everything": False}),
    ("delete_offset", {}),
    at("commit", 0, version=8),
    at("commit", 0, version=9),
    at("txn_commit", 0),
    ("commit", {}),
    ("commit", {"topic": "nowhere"}),
    ("commit", {"partition": 7}),
    ("commit", {"metadata": "x" * 5000}),
    ("commit", {"version": 10, "offset": 6}),
    ("commit", {"version": 10, "topic": "nowhere"}),
    ("fetch", {"everything": False}),
    ("fetch", {"everything": False, "version": 10}),
    ("fetch", {"version": 10}),
    ("delete_offset", {"topic": "besides"}),
    at("join", 0),
    at("join", 0),
    at("sync", 0),
    ("commit", {}),
    at("commit", 0, topic="besides"),
    ("delete_offset", {}),
    ("delete_offset", {"topic": "besides"}),
    ("delete_offset", {"topic": "nowhere"}),
    at("txn_commit", 0, behind=1),
    at("txn_commit", 1),
    ("fetch", {}),
    at("txn_commit", 0),
    ("fetch", {}),
    at("commit", 0, offset=3),
    ("end", {"commit": True}),
    ("fetch", {}),
    ("txn_commit", {}),
    ("end", {"commit": True}),
    ("fetch", {}),
    ("txn_commit", {}),
    ("end", {"commit": False}),
    ("delete", {}),
    at("leave", 0),
    ("delete_offset", {}),
    ("fetch", {}),
]
OTHER_PROTOCOLS: list[Step] = [
    at("join", 0, protocol_type="connect"),
    at("join", 0, protocol_type="connect"),
    at("sync", 0),
    at("join", 1),
    at("commit", 0),
    ("delete_offset", {}),
    at("leave", 0),
    ("delete_offset", {}),
    at("join", 1),
    at("join", 1),
]
CONSUMERS: list[Step] = [
    at("consumer", 0, epoch=1),
    at("consumer", 0, epoch=-1),
    at("consumer", 0, assignor="best"),
    at("consumer", 0),
    at("consumer", 0),
    at("consumer", 0, epoch=9),
    at("commit", 0),
    at("commit", 0, behind=-1),
    ("commit", {}),
    at("txn_commit", 0, behind=-1),
    at("consumer", 1),
    at("consumer", 0),
    at("consumer", 1),
    at("consumer", 0, owned={"beside": [0, 1]}),
    at("consumer", 0, epoch=0),
    at("consumer", 0, owned={}),
    at("consumer", 1),
    at("consumer", 1, topics=["beside", "besides"]),
    at("consumer", 1, topics=["besides"]),
    at("consumer", 0),
    at("consumer", 1, owned={}),
    at("consumer", 1),
    at("consumer", 0),
    ("delete_offset", {}),
    ("delete", {}),
    at("consumer", 1, epoch=-1),
    at("consumer", 1),
    at("consumer", 0),
    at("consumer", 0, epoch=-1),
    ("fetch", {}),
    ("commit", {}),
    ("delete", {}),
]
STATIC_CONSUMERS: list[Step] = [
    at("consumer", 0, instance="a"),
    at("consumer", 1, instance="a"),
    at("consumer", 1, instance="a", epoch=2),
    at("consumer", 1, instance="b", epoch=2),
    at("consumer", 1, instance="b", epoch=-2),
    at("consumer", 0, epoch=-2),
    at("consumer", 0, instance="a", epoch=-2),
    at("consumer", 0, instance="a", epoch=2),
    at("consumer", 1, instance="a"),
    at("consumer", 1, instance="a"),
    at("consumer", 0, instance="a", epoch=2),
    at("consumer", 1, instance="a", epoch=-1),
    at("consumer", 1, instance="a", epoch=0),
]
CHANGES: list[Step] = [
    ("commit", {}),
    at("consumer", 0),
    at("consumer", 0, epoch=-1),
    at("join", 1),
    at("join", 1),
    at("sync", 1),
    at("leave", 1),
    at("consumer", 2, epoch=0),
    ("fetch", {}),
]

UPGRADE: list[Step] = [
    at("join", 0),
    at("join", 0),
    at("sync", 0),
    at("commit", 0),
    at("consumer", 1),
    at("heartbeat", 0),
    at("sync", 0),
    at("commit", 0),
    at("commit", 0, behind=1),
    at("join", 0, holds=True),
    at("sync", 0),
    at("heartbeat", 0),
    at("join", 0, holds=True),
    at("sync", 0),
    at("sync", 0, protocol_name="sticky"),
    at("heartbeat", 0),
    at("heartbeat", 0, behind=1),
    at("heartbeat", 1),
    at("consumer", 1),
    at("consumer", 1, holds=True),
    at("commit", 0),
    at("commit", 1),
    at("txn_commit", 0, behind=1),
    at("join", 2),
    at("join", 2, protocols=("sticky",)),
    at("join", 2),
    at("sync", 2),
    at("heartbeat", 0),
    at("consumer", 1, holds=True),
    at("consumer", 1, holds=True),
    at("leave", 2),
    at("heartbeat", 0),
    at("consumer", 0, epoch=0),
    at("heartbeat", 0),
    at("consumer", 1, holds=True),
    at("consumer", 1, epoch=-1),
    at("consumer", 0, holds=True),
]
DOWNGRADE: list[Step] = [
    at("consumer", 0),
    at("join", 1),
    at("join", 1),
    at("sync", 1),
    at("heartbeat", 1),
    at("consumer", 0),
    at("consumer", 0, holds=True),
    at("heartbeat", 1),
    at("join", 1),
    at("sync", 1),
    at("heartbeat", 1),
    at("consumer", 0, epoch=-1),
    at("heartbeat", 1),
    at("consumer", 0, epoch=1),
    at("join", 1),
    at("sync", 1),
    at("commit", 1),
    at("consumer", 2),
    at("leave", 1),
    at("consumer", 2, epoch=-1),
]
STATIC_UPGRADE: list[Step] = [
    at("join", 0, instance="a"),
    at("sync", 0, instance="a"),
    at("join", 1, instance="b"),
    at("join", 0, instance="a"),
    at("sync", 1, instance="b"),
    at("sync", 0, instance="a"),
    at("consumer", 2, instance="a"),
    at("heartbeat", 0, instance="a"),
    at("heartbeat", 1, instance="b"),
    at("join", 1, instance="b", holds=True),
    at("sync", 1, instance="b"),
    at("heartbeat", 1, instance="b"),
    at("consumer", 2, instance="a", holds=True),
    at("join", 3, instance="b"),
    at("heartbeat", 1, instance="b"),
    at("sync", 3, instance="b"),
    at("leave", 9, instance="a", by_instance=True),
    at("heartbeat", 3, instance="b"),
    at("leave", 3, instance="b"),
]


@pytest.mark.parametrize(
    "steps",
    [LIFE, STATIC, OFFSETS, OTHER_PROTOCOLS, CONSUMERS, STATIC_CONSUMERS, CHANGES, UPGRADE, DOWNGRADE, STATIC_UPGRADE],
    ids=[
        "life",
        "static",
        "offsets",
        "other protocols",
        "consumers",
        "static consumers",
        "changes",
        "upgrade",
        "downgrade",
        "static upgrade",
    ],
)
def test_a_story_is_answered_alike(servers: tuple[str, str], steps: list[Step]) -> None:
    assert_alike(servers, steps)


@pytest.mark.parametrize("seed", range(4))
def test_random_stories_are_answered_alike(servers: tuple[str, str], seed: int) -> None:
    choose = random.Random(seed)
    steps: list[Step] = []
    for _ in range(25):
        client = choose.randint(0, 1)
        behind = choose.choice((0, 0, 0, 1))
        steps.append(
            choose.choice(
                [
                    at("join", client),
                    at("join", client),
                    at("join", client, topics=choose.choice((("beside",), ("besides",)))),
                    at("sync", client, behind=behind),
                    at("sync", client),
                    at("heartbeat", client, behind=behind),
                    at("commit", client, behind=behind),
                    at("txn_commit", client, behind=behind),
                    ("end", {"commit": choose.random() < 0.5}),
                    at("leave", client),
                    ("delete_offset", {}),
                    ("fetch", {}),
                ]
            )
        )
    assert_alike(servers, steps)


@pytest.mark.parametrize("seed", range(4))
def test_random_stories_of_consumers_are_answered_alike(servers: tuple[str, str], seed: int) -> None:
    choose = random.Random(seed)
    steps: list[Step] = []
    for _ in range(30):
        client = choose.randint(0, 1)
        steps.append(
            choose.choice(
                [
                    at("consumer", client),
                    at("consumer", client),
                    at("consumer", client, holds=True),
                    at("consumer", client, holds=True),
                    at("consumer", client, holds=True),
                    at("consumer", client, epoch=0),
                    at("consumer", client, holds=True, behind=1),
                    at("consumer", client, behind=choose.choice((-1, 1))),
                    at("consumer", client, topics=choose.choice((["beside"], ["beside", "besides"], []))),
                    at("consumer", client, epoch=-1),
                    at("commit", client),
                    # Which partitions a member has had for how long differs between the sides, so never behind.
                    at("commit", client, behind=-1),
                    at("txn_commit", client, behind=choose.choice((0, -1))),
                    ("end", {"commit": choose.random() < 0.5}),
                    ("delete_offset", {}),
                    ("fetch", {}),
                ]
            )
        )
    assert_alike(servers, steps)


@pytest.mark.parametrize("seed", range(4))
def test_random_stories_of_both_protocols_are_answered_alike(servers: tuple[str, str], seed: int) -> None:
    choose = random.Random(seed)
    steps: list[Step] = []
    for _ in range(30):
        classic, modern = 0, 1
        steps.append(
            choose.choice(
                [
                    at("join", classic),
                    at("join", classic, holds=True),
                    at("join", classic, holds=True),
                    at("sync", classic),
                    at("sync", classic),
                    at("heartbeat", classic, behind=choose.choice((0, 0, 1))),
                    at("leave", classic),
                    at("commit", classic, behind=choose.choice((0, -1))),
                    at("consumer", modern),
                    at("consumer", modern, holds=True),
                    at("consumer", modern, holds=True),
                    at("consumer", modern, epoch=0),
                    at("consumer", modern, epoch=-1),
                    at("commit", modern, behind=choose.choice((0, -1))),
                    at("txn_commit", choose.randint(0, 1), behind=choose.choice((0, -1))),
                    ("end", {"commit": choose.random() < 0.5}),
                ]
            )
        )
    assert_alike(servers, steps)

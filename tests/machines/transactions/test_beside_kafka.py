"""The same requests to Apache Kafka and to Semel: the coordinators answer alike, code for code and epoch for epoch."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Controller, Coordinator
from semel.errors import ErrorCode, Retriable
from semel.machines.values import ProducerIdentity
from semel.wire.messages.admin import CreateTopicsRequest
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.machines.transactions.transaction_driver import TopicPartition, topics
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import until

pytestmark = pytest.mark.java

T0, T1 = TopicPartition("beside", 0), TopicPartition("beside", 1)
DECIDED = ("PrepareCommit", "PrepareAbort")


class Coordinating:
    """One of the two coordinators, asked about one transactional id. Producer ids are numbered as they appear."""

    def __init__(self, cluster: BlockingCluster, transactional_id: str) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.held: list[ProducerIdentity] = []
        self.seen: list[int] = [-1]

    def ask(self, request: Any, version: int) -> Any:
        """Ask once nothing is under way any more, so that both sides answer from a state at rest."""
        target = Coordinator("transaction", self.transactional_id)

        def answered() -> Any:
            try:
                answer = self.cluster.request(target, request, version=version)
            except Retriable:
                return None
            return None if _code(answer) in UNSETTLED else answer

        answer = until(answered, within_s=20, what=f"{type(request).__name__} is answered")
        until(lambda: self.describe()[0] not in DECIDED, within_s=20, what="the transaction is settled")
        return answer

    def describe(self) -> tuple[str, int, int]:
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        answer = self.cluster.request_retrying(request, to=Coordinator("transaction", self.transactional_id))
        state = answer.transaction_states[0]
        return state.transaction_state, self.number(state.producer_id), state.producer_epoch

    def number(self, producer_id: int) -> int:
        if producer_id not in self.seen:
            self.seen.append(producer_id)
        return self.seen.index(producer_id)

    def identity(self, age: int, ahead: int = 0) -> ProducerIdentity:
        if age >= len(self.held):
            return ProducerIdentity(10**12, 0)
        held = self.held[-1 - age]
        return ProducerIdentity(held.producer_id, held.producer_epoch + ahead)

    # What can be asked; each tells the code, and the identity that was answered.

    def init(self, version: int = 5, age: int | None = None, timeout_ms: int = 60_000) -> tuple[Any, ...]:
        identity = ProducerIdentity(-1, -1) if age is None else self.identity(age)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )
        answer = self.ask(request, version)
        if answer.error_code == 0:
            self.held.append(ProducerIdentity(answer.producer_id, answer.producer_epoch))
        return ErrorCode(answer.error_code).name, self.number(answer.producer_id), answer.producer_epoch

    def add(self, version: int, age: int = 0, partition: TopicPartition = T0, ahead: int = 0) -> tuple[Any, ...]:
        identity = self.identity(age, ahead)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=topics((partition,)),
        )
        return (_code(self.ask(request, version)).name,)

    def broker_asks(self, version: int, age: int = 0, verify_only: bool = True) -> tuple[Any, ...]:
        identity = self.identity(age)
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            verify_only=verify_only,
            topics=topics((T0,)),
        )
        return (_code(self.ask(AddPartitionsToTxnRequest(transactions=[transaction]), version)).name,)

    def add_offsets(self, version: int, age: int = 0) -> tuple[Any, ...]:
        identity = self.identity(age)
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id="group",
        )
        return (_code(self.ask(request, version)).name,)

    def end(self, commit: bool, version: int = 5, age: int = 0, ahead: int = 0) -> tuple[Any, ...]:
        identity = self.identity(age, ahead)
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=commit,
        )
        answer = self.ask(request, version)
        if answer.error_code == 0 and version >= 5:
            self.held.append(ProducerIdentity(answer.producer_id, answer.producer_epoch))
        return ErrorCode(answer.error_code).name, self.number(answer.producer_id), answer.producer_epoch


UNSETTLED = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


def _code(answer: Any) -> ErrorCode:
    if getattr(answer, "error_code", 0):
        return ErrorCode(answer.error_code)
    rows = list(getattr(answer, "results_by_topic_v3_and_below", ()))
    for result in getattr(answer, "results_by_transaction", ()):
        rows.extend(result.topic_results)
    codes = {partition.partition_error_code for topic in rows for partition in topic.results_by_partition}
    return ErrorCode(codes.pop()) if codes else ErrorCode.NONE


Clusters = tuple[BlockingCluster, BlockingCluster]


@pytest.fixture(scope="module")
def clusters(apache_kafka: ApacheKafka) -> Iterator[Clusters]:
    with (
        Broker() as broker,
        BlockingCluster({"bootstrap.servers": apache_kafka.bootstrap_servers}) as kafka,
        BlockingCluster({"bootstrap.servers": broker.bootstrap_servers}) as semel,
    ):
        topic = CreateTopicsRequest.CreatableTopic(name="beside", num_partitions=2, replication_factor=1)
        for cluster in (kafka, semel):
            cluster.request_retrying(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), to=Controller())
        yield kafka, semel


Step = tuple[str, dict[str, Any]]


def told(cluster: BlockingCluster, steps: list[Step], name: str) -> list[tuple[Any, ...]]:
    side = Coordinating(cluster, name)
    answers = []
    for method, arguments in steps:
        answer = getattr(side, method)(**arguments)
        answers.append((method, tuple(arguments.items()), answer, side.describe()))
    return answers


def assert_alike(clusters: Clusters, steps: list[Step]) -> None:
    name = f"beside-{uuid.uuid4()}"
    kafka, semel = (told(cluster, steps, name) for cluster in clusters)
    assert semel == kafka


V1_ROUND: list[Step] = [
    ("init", {}),
    ("end", {"commit": True, "version": 4}),
    ("end", {"commit": False, "version": 4}),
    ("add", {"version": 3}),
    ("add", {"version": 3, "partition": T1}),
    ("add_offsets", {"version": 3}),
    ("broker_asks", {"version": 5}),
    ("end", {"commit": True, "version": 4}),
    ("end", {"commit": True, "version": 4}),
    ("end", {"commit": False, "version": 4}),
    ("broker_asks", {"version": 5}),
    ("add", {"version": 0}),
    ("end", {"commit": False, "version": 0}),
    ("end", {"commit": False, "version": 0}),
    ("end", {"commit": True, "version": 0}),
]
V2_ROUND: list[Step] = [
    ("init", {}),
    ("end", {"commit": True}),
    ("end", {"commit": False}),
    ("end", {"commit": False}),
    ("broker_asks", {"version": 5, "verify_only": False}),
    ("end", {"commit": True}),
    ("end", {"commit": True, "age": 1}),
    ("end", {"commit": False, "age": 2}),
    ("end", {"commit": True}),
    ("broker_asks", {"version": 5, "verify_only": False}),
    ("end", {"commit": True, "age": 2}),
    ("end", {"commit": True, "ahead": 1}),
    ("end", {"commit": False}),
    ("end", {"commit": False, "age": 1}),
    ("end", {"commit": True, "age": 1}),
    ("end", {"commit": False}),
]
ZOMBIES: list[Step] = [
    ("init", {}),
    ("init", {}),
    *[("add", {"version": version, "age": 1}) for version in (0, 1, 2, 3)],
    *[("add_offsets", {"version": version, "age": 1}) for version in (0, 1, 2, 3, 4)],
    *[("end", {"commit": True, "version": version, "age": 1}) for version in (0, 1, 2, 3, 4, 5)],
    *[("broker_asks", {"version": 5, "age": 1, "verify_only": only}) for only in (True, False)],
    ("add", {"version": 3}),
    *[("end", {"commit": True, "version": version, "age": 1}) for version in (0, 4, 5)],
    *[("end", {"commit": True, "version": version, "ahead": 1}) for version in (0, 4, 5)],
    *[("init", {"version": version, "age": 9}) for version in (3, 4, 5)],
    ("end", {"commit": True, "age": 9}),
    ("init", {}),
    ("end", {"commit": True, "age": 1}),
    ("end", {"commit": False, "age": 1}),
]
RENEWALS: list[Step] = [
    ("init", {}),
    ("init", {"age": 0}),
    ("init", {"age": 1}),
    ("init", {"age": 0}),
    ("init", {}),
    ("init", {"age": 1, "version": 3}),
    ("init", {"age": 1, "version": 4}),
    ("broker_asks", {"version": 5, "verify_only": False}),
    ("init", {"age": 0}),
    ("init", {"age": 0}),
    ("init", {"timeout_ms": 0}),
    ("init", {"timeout_ms": 900_001}),
]


@pytest.mark.parametrize("steps", [V1_ROUND, V2_ROUND, ZOMBIES, RENEWALS], ids=["v1", "v2", "zombies", "renewals"])
def test_a_story_is_answered_alike(clusters: Clusters, steps: list[Step]) -> None:
    assert_alike(clusters, steps)


@pytest.mark.parametrize("seed", range(25))
def test_random_stories_are_answered_alike(clusters: Clusters, seed: int) -> None:
    choose = random.Random(seed)
    steps: list[Step] = [("init", {})]
    for _ in range(14):
        age = choose.choice((0, 0, 0, 1, 2))
        steps.append(
            choose.choice(
                [
                    ("init", {"version": choose.choice((2, 5))}),
                    ("add", {"version": choose.randint(0, 3), "age": age}),
                    ("add_offsets", {"version": choose.randint(0, 4), "age": age}),
                    ("broker_asks", {"version": 5, "age": age, "verify_only": False}),
                    ("broker_asks", {"version": 5, "age": age}),
                    ("end", {"commit": True, "version": choose.choice((1, 4)), "age": age}),
                    ("end", {"commit": False, "version": choose.choice((1, 4)), "age": age}),
                    ("end", {"commit": True, "age": age}),
                    ("end", {"commit": False, "age": age}),
                    ("end", {"commit": choose.random() < 0.5, "age": age, "ahead": choose.choice((-1, 1))}),
                ]
            )
        )
    assert_alike(clusters, steps)

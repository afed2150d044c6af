"""AddPartitionsToTxn of the brokers (v4 and later), sent by a client: no partition makes an id unusable (C3 C4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from semel.errors import ErrorCode
from semel.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from semel.wire.messages.transactions import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from tests.broker.raw import Raw
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

TOPIC, STATES = "orders", "__transaction_state"
UNKNOWN, DENIED = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED

_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic


@pytest.fixture(scope="module")
def cluster() -> Iterator[semel.Cluster]:
    with semel.Cluster(brokers=3, settings={"transaction.state.log.num.partitions": 1}) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        for made in admin.create_topics([NewTopic(TOPIC, 3, 3)]).values():
            made.result(30)
        yield running


@pytest.fixture
def coordinator(cluster: semel.Cluster) -> Iterator[Raw]:
    """The broker that coordinates every transactional id."""

    def found() -> str | None:
        with Raw(cluster.address(1)) as raw:
            answer: FindCoordinatorResponse = raw.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["any"]), 4)
        row = answer.coordinators[0]
        return None if row.error_code else f"{row.host}:{row.port}"

    with Raw(until(found, within_s=60, what="a coordinator")) as raw:
        yield raw


def begin(raw: Raw, name: str, *partitions: tuple[str, int]) -> _Transaction:
    """A new epoch of this id, and what is to be added to its transaction."""
    asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    last = ErrorCode.NONE

    def given() -> object:
        nonlocal last
        answer = raw.ask(asked)
        last = ErrorCode(answer.error_code)
        return answer if last is ErrorCode.NONE else None

    answer = until(given, within_s=60, what=lambda: f"an epoch of {name}, and not {last.name}")
    topics = [_Topic(name=topic, partitions=[partition]) for topic, partition in partitions]
    return _Transaction(
        transactional_id=name, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, topics=topics
    )


def add(raw: Raw, *transactions: _Transaction) -> list[dict[tuple[str, int], ErrorCode]]:
    results = raw.ask(AddPartitionsToTxnRequest(transactions=list(transactions)), 5).results_by_transaction
    assert [result.transactional_id for result in results] == [one.transactional_id for one in transactions]
    return [
        {(of.name, one.partition_index): one.partition_error_code for of in result.topic_results
         for one in of.results_by_partition}
        for result in results
    ]


def end(raw: Raw, transaction: _Transaction) -> ErrorCode:
    ending = EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=True,
    )
    return ErrorCode(raw.ask(ending, 4).error_code)


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [(TOPIC, -5, UNKNOWN), ("nowhere", -1, UNKNOWN), (STATES, 0, DENIED), (STATES, -1, DENIED)],
)
def test_what_no_partition_can_be_is_not_added(coordinator: Raw, topic: str, partition: int, code: ErrorCode) -> None:
    name = f"bad-{topic}-{partition}"
    bad = begin(coordinator, name, (TOPIC, 0), (topic, partition))
    good = begin(coordinator, f"beside-{name}", (TOPIC, 1))
    assert add(coordinator, bad, good, bad) == [
        {(TOPIC, 0): ErrorCode.OPERATION_NOT_ATTEMPTED, (topic, partition): code},
        {(TOPIC, 1): ErrorCode.NONE},
        {(TOPIC, 0): ErrorCode.OPERATION_NOT_ATTEMPTED, (topic, partition): code},
    ]
    assert end(coordinator, bad) is ErrorCode.INVALID_TXN_STATE, "the transaction has not begun"
    assert end(coordinator, good) is ErrorCode.NONE
    begin(coordinator, name)


@pytest.mark.parametrize(("topic", "partition"), [(TOPIC, 7), ("nowhere", 0)])
def test_a_partition_that_the_cluster_does_not_have_needs_no_marker(
    coordinator: Raw, topic: str, partition: int
) -> None:
    """It may be new, so it is added. That it is not there is found when its marker is due: C4."""
    transaction = begin(coordinator, f"missing-{topic}", (TOPIC, 0), (topic, partition))
    assert add(coordinator, transaction) == [{(TOPIC, 0): ErrorCode.NONE, (topic, partition): ErrorCode.NONE}]
    assert end(coordinator, transaction) is ErrorCode.NONE
    begin(coordinator, f"missing-{topic}")


def test_a_topic_that_was_created_again_with_fewer_partitions_holds_up_no_transaction(
    cluster: semel.Cluster, coordinator: Raw
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic("again", 3, 3)])["again"].result(30)
    transaction = begin(coordinator, "again", ("again", 2))
    assert add(coordinator, transaction) == [{("again", 2): ErrorCode.NONE}]
    admin.delete_topics(["again"])["again"].result(30)
    admin.create_topics([NewTopic("again", 1, 3)])["again"].result(30)
    assert end(coordinator, transaction) is ErrorCode.NONE
    begin(coordinator, "again")

"""The driver's half of the recovery table, against a real broker and without Spark: the rows that need no task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from semel.errors import KafkaError
from semel.machines.pipeline.batch_marker import BatchMarker
from semel.machines.pipeline.claims import ClaimBook, ClaimRefused
from semel.machines.pipeline.driver_transaction import CommitUnknown
from semel.spark.kafka_options import ProducerOptions
from semel.spark.writer import WritePlan, write
from semel.testing.fault_proxy import Cut, FaultProxy, every
from semel.wire.apis import ApiKey
from tests.spark.driver import SOURCE, Driver, rows_of
from tests.support.processes import BrokerProcess
from tests.support.reading import read_all
from tests.support.waiting import until


@pytest.fixture
def topics(semel_broker: semel.Broker) -> str:
    admin = AdminClient({"bootstrap.servers": semel_broker.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in ("payments", "ledger")]).values():
        created.result(20)
    return semel_broker.bootstrap_servers


@pytest.fixture
def driver(topics: str) -> Iterator[Driver]:
    driver = Driver(topics)
    yield driver
    driver.close()


def committed_values(bootstrap_servers: str) -> list[bytes]:
    """What librdkafka, a client nobody here wrote, sees of the ledger under read_committed."""
    return read_all(bootstrap_servers, "ledger")


def test_a_batch_becomes_visible_with_its_progress_and_not_before(driver: Driver, topics: str) -> None:
    driver.begin()
    driver.task([b"1", b"2"])
    assert committed_values(topics) == []
    driver.commit(0)
    assert committed_values(topics) == [b"1", b"2"]
    progress = driver.loop.run(driver.client.progress())
    assert progress.marker == BatchMarker("query", 0, "aa")
    assert progress.offsets == {SOURCE: 10}


def test_the_identity_that_end_txn_returned_serves_the_next_batch(driver: Driver, topics: str) -> None:
    first = driver.begin()
    driver.task([b"1"])
    driver.commit(0)
    second = driver.begin()
    assert (second.producer_id, second.producer_epoch) > (first.producer_id, first.producer_epoch)
    driver.task([b"2"])
    driver.commit(1)
    assert committed_values(topics) == [b"1", b"2"]


def test_a_broker_that_is_down_when_a_batch_begins_is_waited_for(broker_process: BrokerProcess) -> None:
    driver = Driver(broker_process.bootstrap_servers)
    broker_process.kill9()
    try:
        broker_process.launch()  # it takes a while to answer: the first tries find nobody there
        assert driver.begin().producer_epoch == 0
    finally:
        driver.close()


def test_a_driver_that_dies_before_end_txn_leaves_nothing_visible_and_its_successor_can_write(
    driver: Driver, topics: str
) -> None:
    driver.begin()
    driver.task([b"lost"])
    driver.loop.run(driver.client.commit_offsets({SOURCE: 10}, BatchMarker("query", 0, "aa")))
    successor = Driver(topics)
    try:
        successor.begin()
        assert successor.loop.run(successor.client.progress()).marker is None
        successor.task([b"kept"])
        successor.commit(0)
        assert committed_values(topics) == [b"kept"]
    finally:
        successor.close()


def test_a_driver_that_dies_after_end_txn_is_known_by_its_marker(driver: Driver, topics: str) -> None:
    driver.begin()
    driver.task([b"1"])
    driver.commit(0)
    successor = Driver(topics)
    try:
        successor.begin()
        assert successor.loop.run(successor.client.progress()).marker == BatchMarker("query", 0, "aa")
    finally:
        successor.close()


def test_of_two_drivers_with_one_id_the_older_is_fenced_at_its_next_call(driver: Driver, topics: str) -> None:
    driver.begin()
    driver.task([b"zombie"])
    younger = Driver(topics)
    try:
        younger.begin()
        with pytest.raises(KafkaError):
            driver.loop.run(driver.client.commit_offsets({SOURCE: 10}, BatchMarker("query", 0, "aa")))
        with pytest.raises(CommitUnknown):
            driver.loop.run(driver.client.end(commit=True))
        younger.task([b"heir"])
        younger.commit(0)
        assert committed_values(topics) == [b"heir"]
    finally:
        younger.close()


def test_a_zombie_task_after_the_abort_cannot_write(driver: Driver, topics: str) -> None:
    driver.begin()
    old_plan = driver.plan()
    driver.task([b"first try"])
    driver.loop.run(driver.client.end(commit=False))
    driver.begin()
    with pytest.raises(ClaimRefused):
        driver.task([b"straggler"], old_plan)
    unguarded = WritePlan(old_plan.client_settings, old_plan.transactional_id, old_plan.identity, NoGuard(),  # type: ignore[arg-type]
                          True, "ledger", ProducerOptions(deadline_ms=5_000))  # fmt: skip
    with pytest.raises(KafkaError):  # even without the guard, the broker fences the old epoch
        list(write(iter([rows_of([b"straggler"])]), unguarded))
    driver.task([b"second try"])
    driver.commit(0)
    assert committed_values(topics) == [b"second try"]


class NoGuard:
    """The claim guard taken out: every attempt may write, and begins with sequence 0."""

    task = 0

    def writer(self, epoch: tuple[int, int, int], task: int, patience_ms: float) -> NoGuard:
        return self

    async def take_turn(self, topic: str, partition: int, records: int) -> int:
        return 0

    async def end_turn(self, topic: str, partition: int) -> None:
        """Nobody waits."""

    async def close(self) -> None:
        """There is no connection."""


class GuardThatDoesNotKnowTasks(ClaimBook):
    """Half of the guard taken out: sequences are given out once each, and any attempt of a task gets them."""

    def refusal(self, epoch: tuple[int, int, int], task: int, attempt: str) -> str:
        return ""


def test_a_second_task_of_the_same_epoch_is_refused(driver: Driver) -> None:
    driver.begin()
    driver.task([b"1"])
    with pytest.raises(ClaimRefused, match="it ran twice"):
        driver.task([b"other rows, same sequences"])


def test_without_the_guard_a_task_that_runs_twice_would_write_twice(driver: Driver, topics: str) -> None:
    """Why a second attempt is refused, though it would get sequence numbers of its own: the ablation shows it."""
    driver.claims._book = GuardThatDoesNotKnowTasks()
    driver.begin()
    driver.task([b"a"])
    driver.task([b"a"])
    driver.commit(0)
    assert committed_values(topics) == [b"a", b"a"]


def test_without_the_claim_guard_the_broker_would_drop_a_second_tasks_rows_in_silence(
    driver: Driver, topics: str
) -> None:
    """Why the guard is required: the ablation shows the loss it prevents."""
    driver.begin()
    plan = driver.plan()
    unguarded = WritePlan(plan.client_settings, plan.transactional_id, plan.identity, NoGuard(),  # type: ignore[arg-type]
                          plan.implicit_add, "ledger")  # fmt: skip
    driver.task([b"a"], unguarded)
    driver.task([b"b"], unguarded)
    driver.commit(0)
    assert committed_values(topics) == [b"a"]


def test_a_lost_answer_to_end_txn_is_asked_for_again(topics: str) -> None:
    with FaultProxy(topics, every(2, ApiKey.END_TXN, Cut())) as proxy:
        driver = Driver(proxy.bootstrap_servers)
        try:
            for batch in range(4):
                driver.begin()
                driver.task([b"%d" % batch])
                driver.commit(batch)
        finally:
            driver.close()
    assert committed_values(topics) == [b"0", b"1", b"2", b"3"]


@pytest.mark.semel(**{"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100})
def test_a_batch_that_outlives_its_timeout_is_reported_with_the_setting_and_can_be_run_again(topics: str) -> None:
    driver = Driver(topics, timeout_ms=300)
    try:
        driver.begin()
        driver.task([b"slow"])
        until(lambda: not driver.ongoing(), what="the coordinator to abort")
        with pytest.raises((CommitUnknown, KafkaError)):
            driver.commit(0)
        driver.transaction.forget_identity()
        driver.transaction.timeout_ms = 60_000
        driver.begin()
        assert driver.loop.run(driver.client.progress()).marker is None
        driver.task([b"again"])
        driver.commit(0)
        assert committed_values(topics) == [b"again"]
    finally:
        driver.close()

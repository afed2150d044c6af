"""What hurt others: each scenario that the coordinator can show by itself, under its number in the list."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from semel.errors import ErrorCode
from semel.machines.contract import StateRecord
from semel.machines.transactions import coordinator as transaction_coordinator
from semel.machines.transactions.coordinator import TransactionCoordinator, TransactionSettings
from semel.machines.transactions.metadata import TransactionMetadata
from semel.machines.transactions.records import metadata_of, record_of, transactional_id_of
from semel.machines.transactions.states import TransactionState
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.transactions import InitProducerIdRequest
from tests.machines.transactions.transaction_driver import OTHER, T0, T1, TransactionDriver, metadata_in

E = ErrorCode


@pytest.fixture
def driver() -> TransactionDriver:
    return TransactionDriver()


def test_scenario_1_a_late_produce_after_an_abort_by_timeout_is_refused(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    driver.tick(60_001)
    late = (producer.producer_id, producer.producer_epoch, [T0])
    assert driver.produce(producer, T1) is E.PRODUCER_FENCED
    assert driver.coordinator.verify("payments", *late) == {T0: E.PRODUCER_FENCED}
    driver.write_markers()
    assert driver.produce(producer, T1) is E.PRODUCER_FENCED
    assert driver.coordinator.verify("payments", *late) == {T0: E.PRODUCER_FENCED}


def test_scenario_2_a_delayed_end_of_a_transaction_cannot_end_the_next_one(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    following = driver.commit_v2(producer)
    driver.produce(following, T0)
    assert driver.commit(producer) is E.PRODUCER_FENCED
    assert driver.abort(producer) is E.PRODUCER_FENCED
    assert driver.state() == "Ongoing"


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("by", ["timeout", "init"])
def test_scenario_6_an_abort_for_an_absent_owner_bumps_the_epoch_and_fences_it(by: str, level: int) -> None:
    driver = TransactionDriver(TransactionSettings(transaction_version=level))
    zombie = driver.producer()
    driver.add(zombie, T0)
    if by == "timeout":
        driver.tick(60_001)
    else:
        assert driver.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert driver.waiting[0].producer_epoch == zombie.producer_epoch + 1
    for version in (0, 4):
        assert driver.commit(zombie, version=version) in (E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH)
    assert driver.commit(zombie) is not E.NONE
    driver.write_markers()
    assert driver.add(zombie, T0) is E.PRODUCER_FENCED
    assert driver.commit(zombie) is not E.NONE
    assert {sent.commit for sent, _ in driver.written} == {False}


@pytest.mark.parametrize("by", ["timeout", "init"])
def test_scenario_7_fencing_at_the_last_epoch_bumps_once_and_never_overflows(
    driver: TransactionDriver, by: str
) -> None:
    driver.place(metadata_in(TransactionState.ONGOING, epoch=32766))
    if by == "timeout":
        driver.tick(60_001)
    else:
        assert driver.init().error_code == E.CONCURRENT_TRANSACTIONS
    sent = driver.waiting[0]
    assert (sent.producer_id, sent.producer_epoch, sent.commit) == (77, 32767, False)
    driver.write_markers()
    # The highest epoch is never handed out, not even to a repeated abort.
    late = driver.end(ProducerIdentity(77, 32766), False)
    assert (late.error_code, late.producer_epoch) in [(E.PRODUCER_FENCED, -1), (E.NONE, 0)]
    reply = driver.init()
    assert (reply.error_code, reply.producer_id) == (E.NONE, 1000)
    assert reply.producer_epoch in (0, 1)


def test_scenario_7_a_state_already_at_the_highest_epoch_is_recovered(driver: TransactionDriver) -> None:
    driver.place(metadata_in(TransactionState.ONGOING, epoch=32767))
    assert driver.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert driver.waiting[0].producer_epoch == 32767
    driver.write_markers()
    assert driver.init().error_code == E.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_scenario_8_epoch_exhaustion_rotates_the_producer_id_without_fencing_itself(
    driver: TransactionDriver, commit: bool
) -> None:
    last = ProducerIdentity(77, 32766)
    driver.place(metadata_in(TransactionState.ONGOING, epoch=32766))
    reply = driver.end(last, commit)
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (E.NONE, 1000, 0)
    sent = driver.waiting[0]
    assert (sent.producer_id, sent.producer_epoch) == (77, 32767)
    following = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    assert driver.end(last, commit).error_code == E.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    repeated = driver.end(last, commit)
    assert (repeated.error_code, repeated.producer_id, repeated.producer_epoch) == (E.NONE, 1000, 0)
    assert driver.end(last, not commit).error_code == E.INVALID_TXN_STATE
    assert driver.produce(following, T0) is E.NONE
    assert driver.commit(last) is E.INVALID_PRODUCER_ID_MAPPING
    assert driver.commit(following) is E.NONE


def test_scenario_8_the_rotated_identity_is_told_to_wait_while_the_markers_are_on_their_way(
    driver: TransactionDriver,
) -> None:
    driver.place(metadata_in(TransactionState.ONGOING, epoch=32766))
    reply = driver.end(ProducerIdentity(77, 32766), True)
    rotated = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    assert rotated == ProducerIdentity(1000, 0)
    assert driver.produce(rotated) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.add(rotated) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.abort(rotated) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert ErrorCode(driver.init(identity=rotated).error_code) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    assert driver.produce(rotated) is ErrorCode.NONE


def test_scenario_8_the_rotation_survives_a_crash_between_decision_and_markers(driver: TransactionDriver) -> None:
    driver.place(metadata_in(TransactionState.ONGOING, epoch=32766))
    driver.end(ProducerIdentity(77, 32766), True)
    driver.start()
    driver.write_markers()
    assert driver.metadata().identity == ProducerIdentity(1000, 0)


def test_scenario_9_a_marker_reported_twice_completes_once(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    driver.commit(producer)
    sent = driver.waiting[0]
    driver.write_markers()
    written = len(driver.log)
    assert driver.coordinator.markers_written(sent, driver.now_ms).records == ()
    assert len(driver.log) == written
    assert driver.state() == "CompleteCommit"


@pytest.mark.parametrize("version", [4, 5])
def test_scenario_10_completing_an_old_transaction_never_completes_a_newer_one(
    driver: TransactionDriver, version: int
) -> None:
    producer = driver.producer()
    driver.produce(producer, T0, T1)
    reply = driver.end(producer, True, version)
    old = driver.waiting[0]
    driver.write_markers()
    if version == 5:
        producer = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    driver.produce(producer, T0, T1)
    driver.end(producer, True, version)
    newer = driver.waiting[0]
    assert (newer == old) is (version == 4), "V1 keeps the epoch: the two are told apart by identity alone"
    assert driver.coordinator.markers_written(old, driver.now_ms).records == ()
    assert driver.state() == "PrepareCommit"
    assert {(topic.topic, *topic.partitions) for topic in driver.describe().topics} == {("ledger", 0, 1)}
    driver.perform(driver.coordinator.markers_written(newer, driver.now_ms))
    assert driver.state() == "CompleteCommit"


def test_scenario_11_markers_complete_in_any_order_exactly_once() -> None:
    for order in itertools.permutations((T0, T1, OTHER)):
        driver = TransactionDriver()
        producer = driver.producer()
        driver.produce(producer, T0, T1, OTHER)
        driver.commit(producer)
        sent = driver.waiting[0]
        decisions = [driver.coordinator.markers_written(sent, driver.now_ms, [each]) for each in (*order, *order)]
        assert sum(bool(decision.records) for decision in decisions) == 1
        assert decisions[2].records, "the third marker of three completes"
        driver.perform(decisions[2])
        assert driver.state() == "CompleteCommit"


def test_scenario_12_a_failed_write_clears_what_was_pending(driver: TransactionDriver) -> None:
    producer = driver.producer()
    before = driver.metadata()
    driver.append_fails = True
    assert driver.produce(producer, T0) is E.COORDINATOR_NOT_AVAILABLE
    assert driver.add(producer, T0) is E.COORDINATOR_NOT_AVAILABLE
    assert driver.add_offsets(producer) is E.COORDINATOR_NOT_AVAILABLE
    assert driver.init().error_code == E.COORDINATOR_NOT_AVAILABLE
    assert driver.metadata() == before
    driver.append_fails = False
    assert driver.produce(producer, T0) is E.NONE
    driver.append_fails = True
    assert driver.commit(producer) is E.COORDINATOR_NOT_AVAILABLE
    assert driver.init().error_code == E.COORDINATOR_NOT_AVAILABLE
    assert driver.waiting == [], "no marker follows a decision that was not written"
    driver.append_fails = False
    assert driver.commit(producer) is E.NONE


def test_scenario_12_an_abort_by_timeout_whose_write_failed_is_tried_again(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    driver.append_fails = True
    assert len(driver.tick(60_001)) == 1
    assert driver.state() == "Ongoing"
    assert driver.tick() == [], "not at once: the disk gets time to recover"
    assert driver.coordinator.next_wake_ms() == driver.now_ms + 500
    assert len(driver.tick(500)) == 1
    driver.append_fails = False
    driver.tick(500)
    assert driver.state() == "PrepareAbort"
    assert driver.waiting[0].producer_epoch == producer.producer_epoch + 1


def test_scenario_12_a_completion_whose_write_failed_is_tried_again(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    driver.commit(producer)
    driver.append_fails = True
    driver.write_markers()
    assert driver.state() == "PrepareCommit"
    driver.append_fails = False
    assert driver.coordinator.next_wake_ms() == driver.now_ms + 500
    driver.tick(500)
    assert driver.state() == "CompleteCommit"


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_scenario_12_the_sender_is_told_what_to_do_about_a_failed_write(
    driver: TransactionDriver, storage: ErrorCode, told: ErrorCode
) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    decision = driver.end_decision(producer, True)
    reply = driver.coordinator.append_failed(decision, storage)
    assert reply is not None
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (told, -1, -1)


def test_scenario_13_an_id_whose_first_write_failed_leaves_nothing_behind(driver: TransactionDriver) -> None:
    driver.append_fails = True
    assert driver.init().error_code == E.COORDINATOR_NOT_AVAILABLE
    driver.append_fails = False
    assert driver.describe().error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    driver.tick(driver.settings.transactional_id_expiration_ms + 1)
    assert driver.log == []
    assert driver.producer().producer_epoch == 0


def test_scenario_28_loading_ends_though_compaction_left_gaps(driver: TransactionDriver) -> None:
    first, second = driver.producer("first"), driver.producer("second")
    driver.produce(first, T0, transactional_id="first")
    driver.end(first, True, transactional_id="first")
    driver.produce(second, T1, transactional_id="second")
    expected = driver.known()
    latest: dict[bytes, StateRecord] = {}
    for record in driver.log:
        latest.pop(record.key, None)
        latest[record.key] = record
    driver.log[:] = latest.values()
    driver.start()
    assert driver.known() == expected
    assert [sent.transactional_id for sent in driver.waiting] == ["first"]
    assert driver.produce(second, T0, transactional_id="second") is E.NONE


def test_scenario_30_a_topic_deleted_during_commit_does_not_keep_the_transaction_open(
    driver: TransactionDriver,
) -> None:
    producer = driver.producer()
    gone = TopicPartition("deleted", 0)
    driver.produce(producer, T0, gone)
    driver.commit(producer)
    sent = driver.waiting[0]
    driver.perform(driver.coordinator.markers_written(sent, driver.now_ms, [T0]))
    assert driver.state() == "PrepareCommit"
    driver.perform(driver.coordinator.markers_written(sent, driver.now_ms, [gone]))
    assert driver.state() == "CompleteCommit"


def test_scenario_31_mass_expiry_writes_no_batch_larger_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_coordinator, "MOST_EXPIRED_AT_ONCE", 30)
    settings = TransactionSettings(transaction_state_log_num_partitions=2)
    driver = TransactionDriver(settings)
    for number in range(500):
        driver.producer(f"application-{number}")
    driver.now_ms += settings.transactional_id_expiration_ms
    decisions = driver.coordinator.tick(driver.now_ms)
    assert len(decisions) > 10
    for decision in decisions:
        assert len({record.partition for record in decision.records}) == 1
        assert len(decision.records) <= 30
    assert sum(len(decision.records) for decision in decisions) == 500
    assert driver.init("application-7").error_code == E.CONCURRENT_TRANSACTIONS
    for decision in decisions[:-1]:
        driver.perform(decision)
    driver.coordinator.append_failed(decisions[-1], E.COORDINATOR_NOT_AVAILABLE)
    assert len(driver.known()) == len(decisions[-1].records)
    assert driver.producer("application-7").producer_epoch in (0, 1)


def test_scenario_35_an_epoch_bumped_by_the_client_itself_is_refused(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    ahead = ProducerIdentity(producer.producer_id, producer.producer_epoch + 1)
    for version in (2, 3, 4, 5):
        assert driver.commit(ahead, version=version) is E.PRODUCER_FENCED
    assert driver.commit(ahead, version=1) is E.INVALID_PRODUCER_EPOCH
    assert driver.produce(ahead, T1) is E.PRODUCER_FENCED
    assert driver.state() == "Ongoing"


def test_scenario_40_the_transaction_after_an_abort_has_another_epoch_so_sequences_may_start_again(
    driver: TransactionDriver,
) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    reply = driver.end(producer, False)
    driver.write_markers()
    following = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    assert following.producer_epoch > producer.producer_epoch
    assert driver.produce(following, T0) is E.NONE
    assert driver.commit(following) is E.NONE
    epochs = [(sent.producer_epoch, sent.commit) for sent, _ in driver.written] + [
        (sent.producer_epoch, sent.commit) for sent in driver.waiting
    ]
    assert epochs == [(producer.producer_epoch + 1, False), (producer.producer_epoch + 2, True)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("crash", [False, True])
def test_scenario_41_a_commit_whose_answer_was_lost_succeeds_when_repeated(
    driver: TransactionDriver, version: int, crash: bool
) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    answer = driver.end(producer, True, version)
    if crash:
        driver.start()
    assert driver.end(producer, True, version).error_code == E.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    if crash:
        driver.start()
    assert driver.end(producer, True, version) == answer
    assert driver.end(producer, False, version).error_code == E.INVALID_TXN_STATE


def test_scenario_43_a_begun_but_empty_transaction_survives_a_restart_and_expires(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.start()
    assert driver.metadata().identity == producer
    assert driver.produce(producer, T0) is E.NONE
    idle = driver.producer("idle")
    driver.start()
    assert driver.metadata("idle").identity == idle
    driver.tick(driver.settings.transactional_id_expiration_ms)
    driver.write_markers()
    assert driver.describe("idle").error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    driver.start()
    assert driver.describe("idle").error_code == E.TRANSACTIONAL_ID_NOT_FOUND


def test_scenario_45_offsets_of_a_producer_that_is_gone_are_released_by_timeout(driver: TransactionDriver) -> None:
    producer = driver.producer()
    assert driver.add_offsets(producer) is E.NONE
    driver.start()
    driver.tick(60_001)
    sent = driver.waiting[0]
    assert (sent.commit, sent.partitions) == (False, (TopicPartition("__consumer_offsets", 7),))


@pytest.mark.parametrize("version", [0, 4, 5])
def test_scenario_46_ending_while_the_previous_end_completes_waits_and_is_never_an_empty_success(
    driver: TransactionDriver, version: int
) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    reply = driver.end(producer, True, version)
    following = ProducerIdentity(reply.producer_id, reply.producer_epoch) if version == 5 else producer
    assert driver.commit(following, version) is E.CONCURRENT_TRANSACTIONS
    assert driver.produce(following, T0) is E.CONCURRENT_TRANSACTIONS


def test_scenario_47_an_empty_transaction_ends_cleanly(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.add(producer, T0)
    assert driver.commit(producer, version=4) is E.NONE
    driver.write_markers()
    # V1: nothing was added since the last commit, so a commit repeats it.
    assert driver.commit(producer, version=4) is E.NONE
    # V2: an empty abort renews the identity; an empty commit is refused, as Kafka does, because a repeated commit
    # carries the epoch from before and could not be told from a lost one.
    assert driver.commit(producer) is E.INVALID_TXN_STATE
    reply = driver.end(producer, False)
    assert (reply.error_code, reply.producer_epoch) == (E.NONE, producer.producer_epoch + 1)


def test_a_prepared_transaction_found_in_the_log_is_finished_and_an_open_one_goes_on(driver: TransactionDriver) -> None:
    open_one, prepared_one = driver.producer("open"), driver.producer("prepared")
    driver.produce(open_one, T0, transactional_id="open")
    driver.produce(prepared_one, T0, T1, transactional_id="prepared")
    driver.end(prepared_one, True, transactional_id="prepared")
    sent_before = driver.waiting[0]
    driver.start()
    assert driver.waiting == [replace(sent_before, coordinator_epoch=2)]
    assert driver.coordinator.markers_written(sent_before, driver.now_ms).records == ()
    driver.write_markers()
    assert driver.state("prepared") == "CompleteCommit"
    assert driver.produce(open_one, T1, transactional_id="open") is E.NONE
    assert driver.end(open_one, True, transactional_id="open").error_code == E.NONE


def test_a_crash_between_the_two_records_of_an_empty_abort_is_finished_on_loading(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.end(producer, False)
    del driver.log[-1]
    driver.start()
    assert driver.state() == "CompleteAbort"
    assert driver.metadata().producer_epoch == producer.producer_epoch + 1


def test_a_hundred_thousand_idle_ids_are_loaded_quickly() -> None:
    coordinator = TransactionCoordinator(TransactionSettings())
    for partition in range(50):
        coordinator.load(partition, 1)
    for number in range(100_000):
        name = f"application-{number}"
        metadata = TransactionMetadata(
            name, number, 3, 60_000, TransactionState.COMPLETE_COMMIT, 1_000 + number, 900 + number
        )
        coordinator.replay(record_of(metadata, coordinator.partition_for(name)))
    assert all(coordinator.loaded(partition, 0) == [] for partition in range(50))
    request = InitProducerIdRequest(transactional_id="application-99999", transaction_timeout_ms=1000)
    decision = coordinator.init_producer_id(request, 5, 10**6, lambda: 1)
    assert decision.reply is not None and decision.reply.producer_epoch == 4
    record = decision.records[0]
    assert record.value is not None
    assert transactional_id_of(record.key) == "application-99999"
    assert metadata_of("application-99999", record.value).producer_id == 99_999

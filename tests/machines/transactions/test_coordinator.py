"""What each request of a transactional producer is answered, in both protocols."""

from __future__ import annotations

import pytest

from semel.errors import ErrorCode
from semel.machines.transactions.coordinator import TransactionCoordinator, TransactionSettings
from semel.machines.transactions.states import TransactionState
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.machines.transactions.transaction_driver import OTHER, T0, T1, TransactionDriver, metadata_in, topics

E = ErrorCode


@pytest.fixture
def driver() -> TransactionDriver:
    return TransactionDriver()


# InitProducerId


def test_a_producer_without_a_transactional_id_always_gets_a_fresh_identity(driver: TransactionDriver) -> None:
    first, second = driver.init(None), driver.init(None)
    assert first.producer_id != second.producer_id
    assert (first.producer_epoch, second.producer_epoch) == (0, 0)
    assert driver.log == []


def test_the_same_transactional_id_keeps_its_producer_id_and_gets_the_next_epoch(driver: TransactionDriver) -> None:
    first, second = driver.producer(), driver.producer()
    assert second == ProducerIdentity(first.producer_id, first.producer_epoch + 1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_outside_what_the_broker_allows_is_refused(driver: TransactionDriver, timeout_ms: int) -> None:
    reply = driver.init(timeout_ms=timeout_ms)
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (E.INVALID_TRANSACTION_TIMEOUT, -1, -1)
    assert driver.init(timeout_ms=900_000).error_code == E.NONE


def test_an_empty_transactional_id_is_an_invalid_request_everywhere(driver: TransactionDriver) -> None:
    nobody = ProducerIdentity(1, 1)
    assert driver.init("").error_code == E.INVALID_REQUEST
    assert driver.add(nobody, T0, transactional_id="") is E.INVALID_REQUEST
    assert driver.produce(nobody, T0, transactional_id="") is E.INVALID_REQUEST
    assert driver.end(nobody, True, transactional_id="").error_code == E.INVALID_REQUEST
    assert driver.coordinator.verify("", 1, 1, [T0]) == {T0: E.INVALID_REQUEST}
    assert driver.coordinator.verify(None, 1, 1, [T0]) == {T0: E.INVALID_REQUEST}
    assert driver.describe("").error_code == E.INVALID_REQUEST


def test_a_producer_id_without_its_epoch_is_an_invalid_request(driver: TransactionDriver) -> None:
    assert driver.init(identity=ProducerIdentity(5, -1)).error_code == E.INVALID_REQUEST
    assert driver.init(identity=ProducerIdentity(-1, 5)).error_code == E.INVALID_REQUEST


def test_a_producer_renews_its_epoch_and_may_repeat_the_request_whose_answer_it_lost(driver: TransactionDriver) -> None:
    first = driver.producer()
    renewed = driver.init(identity=first)
    repeated = driver.init(identity=first)
    assert (renewed.error_code, renewed.producer_epoch) == (E.NONE, first.producer_epoch + 1)
    assert (repeated.error_code, repeated.producer_epoch) == (E.NONE, first.producer_epoch + 1)


def test_a_zombie_cannot_renew_its_epoch_once_another_producer_has_taken_over(driver: TransactionDriver) -> None:
    zombie = driver.producer()
    driver.producer()
    assert driver.init(identity=zombie).error_code == E.PRODUCER_FENCED
    assert driver.init(identity=zombie, version=3).error_code == E.INVALID_PRODUCER_EPOCH


def test_a_zombie_that_renews_itself_does_not_abort_what_its_successor_has_open(driver: TransactionDriver) -> None:
    zombie = driver.producer()
    successor = driver.producer()
    driver.produce(successor)
    assert driver.init(identity=zombie).error_code == E.PRODUCER_FENCED
    assert driver.state() == "Ongoing"
    assert driver.commit(successor) is E.NONE


def test_a_foreign_producer_id_is_fenced(driver: TransactionDriver) -> None:
    driver.producer()
    assert driver.init(identity=ProducerIdentity(424242, 0)).error_code == E.PRODUCER_FENCED


def test_a_producer_that_outlived_its_forgotten_id_gets_a_new_identity(driver: TransactionDriver) -> None:
    reply = driver.init(identity=ProducerIdentity(424242, 7))
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (E.NONE, 1000, 0)


def test_a_retry_after_the_producer_id_was_rotated_gets_the_rotated_identity(driver: TransactionDriver) -> None:
    last = ProducerIdentity(77, 32766)
    driver.place(metadata_in(TransactionState.COMPLETE_COMMIT, epoch=32766))
    rotated = driver.init(identity=last)
    assert (rotated.producer_id, rotated.producer_epoch) == (1000, 0)
    repeated = driver.init(identity=last)
    assert (repeated.error_code, repeated.producer_id, repeated.producer_epoch) == (E.NONE, 1000, 0)


def test_init_aborts_what_is_open_and_gives_the_identity_when_that_is_done(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0, T1)
    assert driver.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert driver.state() == "PrepareAbort"
    assert driver.init().error_code == E.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    reply = driver.init()
    assert (reply.error_code, reply.producer_epoch) == (E.NONE, producer.producer_epoch + 2)
    assert [(sent.commit, partition) for sent, partition in driver.written] == [(False, T0), (False, T1)]


# Adding and verifying


@pytest.mark.parametrize(("version", "code"), [(0, E.INVALID_PRODUCER_EPOCH), (2, E.PRODUCER_FENCED)])
def test_an_old_epoch_is_told_so_in_words_its_version_knows(
    driver: TransactionDriver, version: int, code: ErrorCode
) -> None:
    zombie = driver.producer()
    driver.producer()
    assert driver.add(zombie, T0, version=version) is code
    assert driver.add_offsets(zombie, version=version) is code
    assert driver.commit(zombie, version=version) is code


def test_a_producer_id_that_does_not_own_the_transactional_id_is_refused(driver: TransactionDriver) -> None:
    producer = driver.producer()
    stranger = ProducerIdentity(producer.producer_id + 1, producer.producer_epoch)
    assert driver.add(stranger) is E.INVALID_PRODUCER_ID_MAPPING
    assert driver.add_offsets(stranger) is E.INVALID_PRODUCER_ID_MAPPING
    assert driver.produce(stranger) is E.INVALID_PRODUCER_ID_MAPPING
    assert driver.commit(stranger) is E.INVALID_PRODUCER_ID_MAPPING
    assert driver.commit(stranger, version=3) is E.INVALID_PRODUCER_ID_MAPPING
    assert driver.produce(producer, transactional_id="unheard-of") is E.INVALID_PRODUCER_ID_MAPPING


def test_partitions_already_added_cost_no_write(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0, T1)
    written = len(driver.log)
    assert driver.produce(producer, T1) is E.NONE
    assert driver.add(producer, T0) is E.NONE
    assert len(driver.log) == written
    assert driver.produce(producer, OTHER) is E.NONE
    assert len(driver.log) == written + 1


def test_the_groups_partition_joins_the_transaction(driver: TransactionDriver) -> None:
    producer = driver.producer()
    assert driver.add_offsets(producer) is E.NONE
    assert driver.metadata().partitions == {TopicPartition("__consumer_offsets", 7)}


def test_verification_says_which_partitions_are_in_the_transaction(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.add(producer, T0)
    verify = driver.coordinator.verify
    identity = (producer.producer_id, producer.producer_epoch)
    assert verify("payments", *identity, [T0, T1]) == {T0: E.NONE, T1: E.TRANSACTION_ABORTABLE}
    assert verify("payments", identity[0], identity[1] - 1, [T0]) == {T0: E.PRODUCER_FENCED}
    assert verify("payments", 1, 0, [T0]) == {T0: E.INVALID_PRODUCER_ID_MAPPING}
    assert verify("unheard-of", *identity, [T0]) == {T0: E.INVALID_PRODUCER_ID_MAPPING}
    driver.commit(producer, version=3)
    assert verify("payments", *identity, [T0]) == {T0: E.CONCURRENT_TRANSACTIONS}
    driver.write_markers()
    assert verify("payments", *identity, [T0]) == {T0: E.TRANSACTION_ABORTABLE}


def test_brokers_add_and_verify_many_transactions_at_once(driver: TransactionDriver) -> None:
    first, second = driver.producer("first"), driver.producer("second")
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    request = AddPartitionsToTxnRequest(
        transactions=[
            transaction(
                transactional_id="first",
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                topics=topics((T0, OTHER)),
            ),
            transaction(
                transactional_id="second",
                producer_id=second.producer_id,
                producer_epoch=second.producer_epoch,
                verify_only=True,
                topics=topics((T0,)),
            ),
        ]
    )
    reply = driver.perform(driver.coordinator.add_partitions_to_txn(request, 5, driver.now_ms))
    results = {
        (result.transactional_id, topic.name, partition.partition_index): partition.partition_error_code
        for result in reply.results_by_transaction  # type: ignore[attr-defined]
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
    assert results == {
        ("first", "audit", 0): E.NONE,
        ("first", "ledger", 0): E.NONE,
        ("second", "ledger", 0): E.TRANSACTION_ABORTABLE,
    }
    assert driver.state("first") == "Ongoing"
    assert driver.state("second") == "Empty"


# EndTxn


def test_protocol_v1_keeps_the_epoch(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.add(producer, T0)
    reply = driver.end(producer, True, version=4)
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (E.NONE, -1, -1)
    assert driver.waiting[0].producer_epoch == producer.producer_epoch
    assert driver.waiting[0].transaction_version == 0
    driver.write_markers()
    assert driver.add(producer, T0) is E.NONE


def test_protocol_v2_bumps_the_epoch_and_the_markers_carry_the_bumped_one(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    reply = driver.end(producer, True)
    assert (reply.producer_id, reply.producer_epoch) == (producer.producer_id, producer.producer_epoch + 1)
    sent = driver.waiting[0]
    assert (sent.producer_epoch, sent.transaction_version) == (producer.producer_epoch + 1, 2)
    assert (sent.commit, sent.partitions, sent.coordinator_epoch) == (True, (T0,), 1)


def test_the_opposite_decision_repeated_is_refused(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    driver.commit(producer)
    assert driver.abort(producer) is E.INVALID_TXN_STATE
    driver.write_markers()
    assert driver.abort(producer) is E.INVALID_TXN_STATE
    assert driver.commit(producer) is E.NONE


def test_an_empty_abort_bumps_the_epoch_at_once(driver: TransactionDriver) -> None:
    producer = driver.producer()
    reply = driver.end(producer, False)
    assert (reply.error_code, reply.producer_epoch) == (E.NONE, producer.producer_epoch + 1)
    assert driver.state() == "CompleteAbort"
    assert driver.waiting == []
    again = driver.end(ProducerIdentity(reply.producer_id, reply.producer_epoch), False)
    assert (again.error_code, again.producer_epoch) == (E.NONE, reply.producer_epoch + 1)


def test_an_unheard_of_id_cannot_be_ended(driver: TransactionDriver) -> None:
    assert driver.commit(ProducerIdentity(1, 1)) is E.INVALID_PRODUCER_ID_MAPPING


# Being the coordinator


def test_a_partition_that_is_not_ours_and_one_that_loads_are_told_apart() -> None:
    coordinator = TransactionCoordinator(TransactionSettings())
    request = EndTxnRequest(transactional_id="payments", producer_id=1, producer_epoch=1, committed=True)

    def told() -> ErrorCode:
        reply = coordinator.end_txn(request, 5, 0, lambda: 1).reply
        assert reply is not None
        return ErrorCode(reply.error_code)

    assert told() is E.NOT_COORDINATOR
    coordinator.load(coordinator.partition_for("payments"), 3)
    assert told() is E.COORDINATOR_LOAD_IN_PROGRESS
    listed = coordinator.list_transactions(ListTransactionsRequest(), 0).reply
    assert listed is not None and listed.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
    coordinator.loaded(coordinator.partition_for("payments"), 0)
    assert told() is E.INVALID_PRODUCER_ID_MAPPING
    coordinator.unload(coordinator.partition_for("payments"))
    assert told() is E.NOT_COORDINATOR


def test_while_a_step_is_being_written_everyone_else_waits(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    pending = driver.end_decision(producer, True)
    assert driver.produce(producer, T1) is E.CONCURRENT_TRANSACTIONS
    assert driver.commit(producer) is E.CONCURRENT_TRANSACTIONS
    assert driver.commit(producer, version=4) is E.CONCURRENT_TRANSACTIONS
    assert driver.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert driver.tick(60_001) == [], "nor is it timed out meanwhile"
    driver.perform(pending)
    driver.write_markers()
    assert driver.state() == "CompleteCommit"


def test_two_first_producers_of_one_id_do_not_both_get_it(driver: TransactionDriver) -> None:
    request = InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=1000)
    pending = driver.coordinator.init_producer_id(request, 5, driver.now_ms, driver.new_producer_id)
    assert driver.init().error_code == E.CONCURRENT_TRANSACTIONS
    driver.perform(pending)
    assert driver.init().producer_epoch == 1


# Timeouts and expiry


def test_the_coordinator_asks_to_be_woken_when_the_next_transaction_times_out(driver: TransactionDriver) -> None:
    slow, quick = driver.producer("slow", timeout_ms=60_000), driver.producer("quick", timeout_ms=5_000)
    began_ms = driver.now_ms
    driver.produce(slow, T0, transactional_id="slow")
    driver.produce(quick, T0, transactional_id="quick")
    assert driver.coordinator.next_wake_ms() == began_ms + 5_001
    assert driver.tick(5_000) == []
    assert len(driver.tick(1)) == 1
    assert (driver.state("quick"), driver.state("slow")) == ("PrepareAbort", "Ongoing")
    assert driver.coordinator.next_wake_ms() == began_ms + 60_001


def test_adding_more_does_not_extend_the_timeout(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    driver.now_ms += 50_000
    driver.produce(producer, T1)
    driver.tick(10_001)
    assert driver.state() == "PrepareAbort"


def test_an_id_expires_only_when_it_is_idle_for_long_enough(driver: TransactionDriver) -> None:
    idle, busy = driver.producer("idle"), driver.producer("busy", timeout_ms=900_000)
    assert idle != busy
    week_ms = driver.settings.transactional_id_expiration_ms
    driver.now_ms += week_ms - 100
    driver.produce(busy, T0, transactional_id="busy")
    driver.now_ms += 100
    driver.tick()
    assert set(driver.known()) == {"busy"}
    assert driver.log[-1].value is None


# Administration


def listed(driver: TransactionDriver, **filters: object) -> ListTransactionsResponse:
    reply = driver.coordinator.list_transactions(ListTransactionsRequest(**filters), driver.now_ms).reply
    assert reply is not None
    return reply


def names(reply: ListTransactionsResponse) -> set[str]:
    return {state.transactional_id for state in reply.transaction_states}


def test_transactions_are_listed_by_every_filter(driver: TransactionDriver) -> None:
    for name in ("orders-1", "orders-2", "payments"):
        producer = driver.producer(name)
        if name != "payments":
            driver.produce(producer, T0, transactional_id=name)
        driver.now_ms += 1_000
    everything = {"orders-1", "orders-2", "payments"}
    assert names(listed(driver)) == everything
    assert names(listed(driver, state_filters=["Ongoing"])) == {"orders-1", "orders-2"}
    assert names(listed(driver, state_filters=["Empty"])) == {"payments"}
    unknown = listed(driver, state_filters=["Ongoing", "Sleeping"])
    assert (names(unknown), unknown.unknown_state_filters) == ({"orders-1", "orders-2"}, ["Sleeping"])
    assert names(listed(driver, state_filters=["Sleeping"])) == set()
    assert names(listed(driver, producer_id_filters=[driver.metadata("payments").producer_id])) == {"payments"}
    assert names(listed(driver, duration_filter=2_500, state_filters=["Ongoing"])) == {"orders-1"}
    assert names(listed(driver, transactional_id_pattern="orders-.*")) == {"orders-1", "orders-2"}
    assert names(listed(driver, transactional_id_pattern="")) == everything
    assert listed(driver, transactional_id_pattern="(").error_code == E.INVALID_REGULAR_EXPRESSION


def test_a_description_shows_the_partitions_still_without_a_marker(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0, T1, OTHER)
    driver.commit(producer)
    sent = driver.waiting[0]
    driver.perform(driver.coordinator.markers_written(sent, driver.now_ms, [T0, OTHER]))
    state = driver.describe()
    assert (state.transaction_state, state.producer_epoch) == ("PrepareCommit", producer.producer_epoch + 1)
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [("ledger", [1])]
    assert driver.describe("unheard-of").error_code == E.TRANSACTIONAL_ID_NOT_FOUND


# Two-phase commit


@pytest.fixture
def two_phase() -> TransactionDriver:
    return TransactionDriver(TransactionSettings(transaction_two_phase_commit_enable=True))


def test_two_phase_commit_must_be_enabled(driver: TransactionDriver) -> None:
    assert driver.init(two_phase=True, version=6).error_code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert driver.init(keep=True, version=6).error_code == E.UNSUPPORTED_VERSION


def test_a_two_phase_transaction_never_times_out(two_phase: TransactionDriver) -> None:
    reply = two_phase.init(two_phase=True, version=6, timeout_ms=1)
    producer = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    two_phase.produce(producer, T0)
    assert two_phase.tick(10**10) == []
    assert two_phase.commit(producer) is E.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_a_successor_may_end_the_prepared_transaction_and_its_writer_may_not(
    two_phase: TransactionDriver, commit: bool
) -> None:
    first = two_phase.init(two_phase=True, version=6)
    writer = ProducerIdentity(first.producer_id, first.producer_epoch)
    two_phase.produce(writer, T0, T1)
    reply = two_phase.init(two_phase=True, keep=True, version=6)
    assert (reply.ongoing_txn_producer_id, reply.ongoing_txn_producer_epoch) == (writer.producer_id, 0)
    successor = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    assert successor == ProducerIdentity(writer.producer_id, 1)
    two_phase.start()

    assert two_phase.produce(writer, OTHER) is E.PRODUCER_FENCED
    assert two_phase.commit(writer) is E.PRODUCER_FENCED
    assert two_phase.commit(writer, version=4) is E.PRODUCER_FENCED

    ended = two_phase.end(successor, commit)
    assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (E.NONE, writer.producer_id, 2)
    sent = two_phase.waiting[0]
    assert (sent.producer_id, sent.producer_epoch, sent.commit) == (writer.producer_id, 2, commit)
    two_phase.write_markers()
    assert two_phase.end(successor, commit).producer_epoch == 2
    assert two_phase.produce(ProducerIdentity(ended.producer_id, 2), T0) is E.NONE


def test_a_kept_transaction_survives_the_last_epoch_of_its_producer_id(two_phase: TransactionDriver) -> None:
    two_phase.place(metadata_in(TransactionState.ONGOING, epoch=32766))
    reply = two_phase.init(two_phase=True, keep=True, version=6)
    assert (reply.producer_id, reply.producer_epoch) == (1000, 0)
    assert (reply.ongoing_txn_producer_id, reply.ongoing_txn_producer_epoch) == (77, 32766)
    successor = ProducerIdentity(1000, 0)
    ended = two_phase.end(successor, True)
    assert (ended.producer_id, ended.producer_epoch) == (1000, 1)
    assert two_phase.commit(successor) is E.CONCURRENT_TRANSACTIONS
    assert (two_phase.waiting[0].producer_id, two_phase.waiting[0].producer_epoch) == (77, 32767)
    two_phase.write_markers()
    assert two_phase.metadata().identity == ProducerIdentity(1000, 1)
    assert two_phase.commit(successor) is E.NONE


def test_a_successor_with_a_timeout_has_that_long_to_end_what_it_kept(two_phase: TransactionDriver) -> None:
    first = two_phase.init(two_phase=True, version=6)
    two_phase.produce(ProducerIdentity(first.producer_id, first.producer_epoch), T0)
    two_phase.tick(10**8)
    reply = two_phase.init(keep=True, version=6, timeout_ms=60_000)
    assert reply.error_code == E.NONE
    assert two_phase.tick(60_000) == [], "it was open for much longer before"
    assert two_phase.state() == "Ongoing"
    assert len(two_phase.tick(1)) == 1
    assert two_phase.state() == "PrepareAbort"


def test_keeping_when_nothing_is_open_is_an_ordinary_init(two_phase: TransactionDriver) -> None:
    two_phase.init(two_phase=True, version=6)
    reply = two_phase.init(two_phase=True, keep=True, version=6)
    assert (reply.error_code, reply.producer_epoch, reply.ongoing_txn_producer_id) == (E.NONE, 1, -1)


def test_an_ordinary_init_aborts_a_kept_transaction(two_phase: TransactionDriver) -> None:
    first = two_phase.init(two_phase=True, version=6)
    two_phase.produce(ProducerIdentity(first.producer_id, 0), T0)
    two_phase.init(two_phase=True, keep=True, version=6)
    assert two_phase.init(two_phase=True, version=6).error_code == E.CONCURRENT_TRANSACTIONS
    assert (two_phase.waiting[0].producer_epoch, two_phase.waiting[0].commit) == (2, False)
    two_phase.write_markers()
    assert two_phase.init(two_phase=True, version=6).producer_epoch == 3

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
from tests.machines.transactions.transaction_host import OTHER, T0, T1, Host, metadata_in, topics

E = ErrorCode


@pytest.fixture
def host() -> Host:
    return Host()


# InitProducerId


def test_a_producer_without_a_transactional_id_always_gets_a_fresh_identity(host: Host) -> None:
    first, second = host.init(None), host.init(None)
    assert first.producer_id != second.producer_id
    assert (first.producer_epoch, second.producer_epoch) == (0, 0)
    assert host.log == []


def test_the_same_transactional_id_keeps_its_producer_id_and_gets_the_next_epoch(host: Host) -> None:
    first, second = host.producer(), host.producer()
    assert second == ProducerIdentity(first.producer_id, first.producer_epoch + 1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_outside_what_the_broker_allows_is_refused(host: Host, timeout_ms: int) -> None:
    reply = host.init(timeout_ms=timeout_ms)
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (E.INVALID_TRANSACTION_TIMEOUT, -1, -1)
    assert host.init(timeout_ms=900_000).error_code == E.NONE


def test_an_empty_transactional_id_is_an_invalid_request_everywhere(host: Host) -> None:
    nobody = ProducerIdentity(1, 1)
    assert host.init("").error_code == E.INVALID_REQUEST
    assert host.add(nobody, T0, transactional_id="") is E.INVALID_REQUEST
    assert host.produce(nobody, T0, transactional_id="") is E.INVALID_REQUEST
    assert host.end(nobody, True, transactional_id="").error_code == E.INVALID_REQUEST
    assert host.coordinator.verify("", 1, 1, [T0]) == {T0: E.INVALID_REQUEST}
    assert host.coordinator.verify(None, 1, 1, [T0]) == {T0: E.INVALID_REQUEST}
    assert host.describe("").error_code == E.INVALID_REQUEST


def test_a_producer_id_without_its_epoch_is_an_invalid_request(host: Host) -> None:
    assert host.init(identity=ProducerIdentity(5, -1)).error_code == E.INVALID_REQUEST
    assert host.init(identity=ProducerIdentity(-1, 5)).error_code == E.INVALID_REQUEST


def test_a_producer_renews_its_epoch_and_may_repeat_the_request_whose_answer_it_lost(host: Host) -> None:
    first = host.producer()
    renewed = host.init(identity=first)
    repeated = host.init(identity=first)
    assert (renewed.error_code, renewed.producer_epoch) == (E.NONE, first.producer_epoch + 1)
    assert (repeated.error_code, repeated.producer_epoch) == (E.NONE, first.producer_epoch + 1)


def test_a_zombie_cannot_renew_its_epoch_once_another_producer_has_taken_over(host: Host) -> None:
    zombie = host.producer()
    host.producer()
    assert host.init(identity=zombie).error_code == E.PRODUCER_FENCED
    assert host.init(identity=zombie, version=3).error_code == E.INVALID_PRODUCER_EPOCH


def test_a_zombie_that_renews_itself_does_not_abort_what_its_successor_has_open(host: Host) -> None:
    zombie = host.producer()
    successor = host.producer()
    host.produce(successor)
    assert host.init(identity=zombie).error_code == E.PRODUCER_FENCED
    assert host.state() == "Ongoing"
    assert host.commit(successor) is E.NONE


def test_a_foreign_producer_id_is_fenced(host: Host) -> None:
    host.producer()
    assert host.init(identity=ProducerIdentity(424242, 0)).error_code == E.PRODUCER_FENCED


def test_a_producer_that_outlived_its_forgotten_id_gets_a_new_identity(host: Host) -> None:
    reply = host.init(identity=ProducerIdentity(424242, 7))
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (E.NONE, 1000, 0)


def test_a_retry_after_the_producer_id_was_rotated_gets_the_rotated_identity(host: Host) -> None:
    last = ProducerIdentity(77, 32766)
    host.place(metadata_in(TransactionState.COMPLETE_COMMIT, epoch=32766))
    rotated = host.init(identity=last)
    assert (rotated.producer_id, rotated.producer_epoch) == (1000, 0)
    repeated = host.init(identity=last)
    assert (repeated.error_code, repeated.producer_id, repeated.producer_epoch) == (E.NONE, 1000, 0)


def test_init_aborts_what_is_open_and_gives_the_identity_when_that_is_done(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0, T1)
    assert host.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert host.state() == "PrepareAbort"
    assert host.init().error_code == E.CONCURRENT_TRANSACTIONS
    host.write_markers()
    reply = host.init()
    assert (reply.error_code, reply.producer_epoch) == (E.NONE, producer.producer_epoch + 2)
    assert [(sent.commit, partition) for sent, partition in host.written] == [(False, T0), (False, T1)]


# Adding and verifying


@pytest.mark.parametrize(("version", "code"), [(0, E.INVALID_PRODUCER_EPOCH), (2, E.PRODUCER_FENCED)])
def test_an_old_epoch_is_told_so_in_words_its_version_knows(host: Host, version: int, code: ErrorCode) -> None:
    zombie = host.producer()
    host.producer()
    assert host.add(zombie, T0, version=version) is code
    assert host.add_offsets(zombie, version=version) is code
    assert host.commit(zombie, version=version) is code


def test_a_producer_id_that_does_not_own_the_transactional_id_is_refused(host: Host) -> None:
    producer = host.producer()
    stranger = ProducerIdentity(producer.producer_id + 1, producer.producer_epoch)
    assert host.add(stranger) is E.INVALID_PRODUCER_ID_MAPPING
    assert host.add_offsets(stranger) is E.INVALID_PRODUCER_ID_MAPPING
    assert host.produce(stranger) is E.INVALID_PRODUCER_ID_MAPPING
    assert host.commit(stranger) is E.INVALID_PRODUCER_ID_MAPPING
    assert host.commit(stranger, version=3) is E.INVALID_PRODUCER_ID_MAPPING
    assert host.produce(producer, transactional_id="unheard-of") is E.INVALID_PRODUCER_ID_MAPPING


def test_partitions_already_added_cost_no_write(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0, T1)
    written = len(host.log)
    assert host.produce(producer, T1) is E.NONE
    assert host.add(producer, T0) is E.NONE
    assert len(host.log) == written
    assert host.produce(producer, OTHER) is E.NONE
    assert len(host.log) == written + 1


def test_the_groups_partition_joins_the_transaction(host: Host) -> None:
    producer = host.producer()
    assert host.add_offsets(producer) is E.NONE
    assert host.metadata().partitions == {TopicPartition("__consumer_offsets", 7)}


def test_verification_says_which_partitions_are_in_the_transaction(host: Host) -> None:
    producer = host.producer()
    host.add(producer, T0)
    verify = host.coordinator.verify
    identity = (producer.producer_id, producer.producer_epoch)
    assert verify("payments", *identity, [T0, T1]) == {T0: E.NONE, T1: E.TRANSACTION_ABORTABLE}
    assert verify("payments", identity[0], identity[1] - 1, [T0]) == {T0: E.PRODUCER_FENCED}
    assert verify("payments", 1, 0, [T0]) == {T0: E.INVALID_PRODUCER_ID_MAPPING}
    assert verify("unheard-of", *identity, [T0]) == {T0: E.INVALID_PRODUCER_ID_MAPPING}
    host.commit(producer, version=3)
    assert verify("payments", *identity, [T0]) == {T0: E.CONCURRENT_TRANSACTIONS}
    host.write_markers()
    assert verify("payments", *identity, [T0]) == {T0: E.TRANSACTION_ABORTABLE}


def test_brokers_add_and_verify_many_transactions_at_once(host: Host) -> None:
    first, second = host.producer("first"), host.producer("second")
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
    reply = host.perform(host.coordinator.add_partitions_to_txn(request, 5, host.now_ms))
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
    assert host.state("first") == "Ongoing"
    assert host.state("second") == "Empty"


# EndTxn


def test_protocol_v1_keeps_the_epoch(host: Host) -> None:
    producer = host.producer()
    host.add(producer, T0)
    reply = host.end(producer, True, version=4)
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (E.NONE, -1, -1)
    assert host.waiting[0].producer_epoch == producer.producer_epoch
    assert host.waiting[0].transaction_version == 0
    host.write_markers()
    assert host.add(producer, T0) is E.NONE


def test_protocol_v2_bumps_the_epoch_and_the_markers_carry_the_bumped_one(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    reply = host.end(producer, True)
    assert (reply.producer_id, reply.producer_epoch) == (producer.producer_id, producer.producer_epoch + 1)
    sent = host.waiting[0]
    assert (sent.producer_epoch, sent.transaction_version) == (producer.producer_epoch + 1, 2)
    assert (sent.commit, sent.partitions, sent.coordinator_epoch) == (True, (T0,), 1)


def test_the_opposite_decision_repeated_is_refused(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    host.commit(producer)
    assert host.abort(producer) is E.INVALID_TXN_STATE
    host.write_markers()
    assert host.abort(producer) is E.INVALID_TXN_STATE
    assert host.commit(producer) is E.NONE


def test_an_empty_abort_bumps_the_epoch_at_once(host: Host) -> None:
    producer = host.producer()
    reply = host.end(producer, False)
    assert (reply.error_code, reply.producer_epoch) == (E.NONE, producer.producer_epoch + 1)
    assert host.state() == "CompleteAbort"
    assert host.waiting == []
    again = host.end(ProducerIdentity(reply.producer_id, reply.producer_epoch), False)
    assert (again.error_code, again.producer_epoch) == (E.NONE, reply.producer_epoch + 1)


def test_an_unheard_of_id_cannot_be_ended(host: Host) -> None:
    assert host.commit(ProducerIdentity(1, 1)) is E.INVALID_PRODUCER_ID_MAPPING


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


def test_while_a_step_is_being_written_everyone_else_waits(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    pending = host.end_decision(producer, True)
    assert host.produce(producer, T1) is E.CONCURRENT_TRANSACTIONS
    assert host.commit(producer) is E.CONCURRENT_TRANSACTIONS
    assert host.commit(producer, version=4) is E.CONCURRENT_TRANSACTIONS
    assert host.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert host.tick(60_001) == [], "nor is it timed out meanwhile"
    host.perform(pending)
    host.write_markers()
    assert host.state() == "CompleteCommit"


def test_two_first_producers_of_one_id_do_not_both_get_it(host: Host) -> None:
    request = InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=1000)
    pending = host.coordinator.init_producer_id(request, 5, host.now_ms, host.new_producer_id)
    assert host.init().error_code == E.CONCURRENT_TRANSACTIONS
    host.perform(pending)
    assert host.init().producer_epoch == 1


# Timeouts and expiry


def test_the_coordinator_asks_to_be_woken_when_the_next_transaction_times_out(host: Host) -> None:
    slow, quick = host.producer("slow", timeout_ms=60_000), host.producer("quick", timeout_ms=5_000)
    began_ms = host.now_ms
    host.produce(slow, T0, transactional_id="slow")
    host.produce(quick, T0, transactional_id="quick")
    assert host.coordinator.next_wake_ms() == began_ms + 5_001
    assert host.tick(5_000) == []
    assert len(host.tick(1)) == 1
    assert (host.state("quick"), host.state("slow")) == ("PrepareAbort", "Ongoing")
    assert host.coordinator.next_wake_ms() == began_ms + 60_001


def test_adding_more_does_not_extend_the_timeout(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    host.now_ms += 50_000
    host.produce(producer, T1)
    host.tick(10_001)
    assert host.state() == "PrepareAbort"


def test_an_id_expires_only_when_it_is_idle_for_long_enough(host: Host) -> None:
    idle, busy = host.producer("idle"), host.producer("busy", timeout_ms=900_000)
    assert idle != busy
    week_ms = host.settings.transactional_id_expiration_ms
    host.now_ms += week_ms - 100
    host.produce(busy, T0, transactional_id="busy")
    host.now_ms += 100
    host.tick()
    assert set(host.known()) == {"busy"}
    assert host.log[-1].value is None


# Administration


def listed(host: Host, **filters: object) -> ListTransactionsResponse:
    reply = host.coordinator.list_transactions(ListTransactionsRequest(**filters), host.now_ms).reply
    assert reply is not None
    return reply


def names(reply: ListTransactionsResponse) -> set[str]:
    return {state.transactional_id for state in reply.transaction_states}


def test_transactions_are_listed_by_every_filter(host: Host) -> None:
    for name in ("orders-1", "orders-2", "payments"):
        producer = host.producer(name)
        if name != "payments":
            host.produce(producer, T0, transactional_id=name)
        host.now_ms += 1_000
    everything = {"orders-1", "orders-2", "payments"}
    assert names(listed(host)) == everything
    assert names(listed(host, state_filters=["Ongoing"])) == {"orders-1", "orders-2"}
    assert names(listed(host, state_filters=["Empty"])) == {"payments"}
    unknown = listed(host, state_filters=["Ongoing", "Sleeping"])
    assert (names(unknown), unknown.unknown_state_filters) == ({"orders-1", "orders-2"}, ["Sleeping"])
    assert names(listed(host, state_filters=["Sleeping"])) == set()
    assert names(listed(host, producer_id_filters=[host.metadata("payments").producer_id])) == {"payments"}
    assert names(listed(host, duration_filter=2_500, state_filters=["Ongoing"])) == {"orders-1"}
    assert names(listed(host, transactional_id_pattern="orders-.*")) == {"orders-1", "orders-2"}
    assert names(listed(host, transactional_id_pattern="")) == everything
    assert listed(host, transactional_id_pattern="(").error_code == E.INVALID_REGULAR_EXPRESSION


def test_a_description_shows_the_partitions_still_without_a_marker(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0, T1, OTHER)
    host.commit(producer)
    sent = host.waiting[0]
    host.perform(host.coordinator.markers_written(sent, host.now_ms, [T0, OTHER]))
    state = host.describe()
    assert (state.transaction_state, state.producer_epoch) == ("PrepareCommit", producer.producer_epoch + 1)
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [("ledger", [1])]
    assert host.describe("unheard-of").error_code == E.TRANSACTIONAL_ID_NOT_FOUND


# Two-phase commit


@pytest.fixture
def two_phase() -> Host:
    return Host(TransactionSettings(transaction_two_phase_commit_enable=True))


def test_two_phase_commit_must_be_enabled(host: Host) -> None:
    assert host.init(two_phase=True, version=6).error_code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert host.init(keep=True, version=6).error_code == E.UNSUPPORTED_VERSION


def test_a_two_phase_transaction_never_times_out(two_phase: Host) -> None:
    reply = two_phase.init(two_phase=True, version=6, timeout_ms=1)
    producer = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    two_phase.produce(producer, T0)
    assert two_phase.tick(10**10) == []
    assert two_phase.commit(producer) is E.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_a_successor_may_end_the_prepared_transaction_and_its_writer_may_not(two_phase: Host, commit: bool) -> None:
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


def test_a_kept_transaction_survives_the_last_epoch_of_its_producer_id(two_phase: Host) -> None:
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


def test_a_successor_with_a_timeout_has_that_long_to_end_what_it_kept(two_phase: Host) -> None:
    first = two_phase.init(two_phase=True, version=6)
    two_phase.produce(ProducerIdentity(first.producer_id, first.producer_epoch), T0)
    two_phase.tick(10**8)
    reply = two_phase.init(keep=True, version=6, timeout_ms=60_000)
    assert reply.error_code == E.NONE
    assert two_phase.tick(60_000) == [], "it was open for much longer before"
    assert two_phase.state() == "Ongoing"
    assert len(two_phase.tick(1)) == 1
    assert two_phase.state() == "PrepareAbort"


def test_keeping_when_nothing_is_open_is_an_ordinary_init(two_phase: Host) -> None:
    two_phase.init(two_phase=True, version=6)
    reply = two_phase.init(two_phase=True, keep=True, version=6)
    assert (reply.error_code, reply.producer_epoch, reply.ongoing_txn_producer_id) == (E.NONE, 1, -1)


def test_an_ordinary_init_aborts_a_kept_transaction(two_phase: Host) -> None:
    first = two_phase.init(two_phase=True, version=6)
    two_phase.produce(ProducerIdentity(first.producer_id, 0), T0)
    two_phase.init(two_phase=True, keep=True, version=6)
    assert two_phase.init(two_phase=True, version=6).error_code == E.CONCURRENT_TRANSACTIONS
    assert (two_phase.waiting[0].producer_epoch, two_phase.waiting[0].commit) == (2, False)
    two_phase.write_markers()
    assert two_phase.init(two_phase=True, version=6).producer_epoch == 3

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
from tests.machines.transactions.transaction_host import OTHER, T0, T1, Host, metadata_in

E = ErrorCode


@pytest.fixture
def host() -> Host:
    return Host()


def test_scenario_1_a_late_produce_after_an_abort_by_timeout_is_refused(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    host.tick(60_001)
    late = (producer.producer_id, producer.producer_epoch, [T0])
    assert host.produce(producer, T1) is E.PRODUCER_FENCED
    assert host.coordinator.verify("payments", *late) == {T0: E.PRODUCER_FENCED}
    host.write_markers()
    assert host.produce(producer, T1) is E.PRODUCER_FENCED
    assert host.coordinator.verify("payments", *late) == {T0: E.PRODUCER_FENCED}


def test_scenario_2_a_delayed_end_of_a_transaction_cannot_end_the_next_one(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    following = host.commit_v2(producer)
    host.produce(following, T0)
    assert host.commit(producer) is E.PRODUCER_FENCED
    assert host.abort(producer) is E.PRODUCER_FENCED
    assert host.state() == "Ongoing"


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("by", ["timeout", "init"])
def test_scenario_6_an_abort_for_an_absent_owner_bumps_the_epoch_and_fences_it(by: str, level: int) -> None:
    host = Host(TransactionSettings(transaction_version=level))
    zombie = host.producer()
    host.add(zombie, T0)
    if by == "timeout":
        host.tick(60_001)
    else:
        assert host.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert host.waiting[0].producer_epoch == zombie.producer_epoch + 1
    for version in (0, 4):
        assert host.commit(zombie, version=version) in (E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH)
    assert host.commit(zombie) is not E.NONE
    host.write_markers()
    assert host.add(zombie, T0) is E.PRODUCER_FENCED
    assert host.commit(zombie) is not E.NONE
    assert {sent.commit for sent, _ in host.written} == {False}


@pytest.mark.parametrize("by", ["timeout", "init"])
def test_scenario_7_fencing_at_the_last_epoch_bumps_once_and_never_overflows(host: Host, by: str) -> None:
    host.place(metadata_in(TransactionState.ONGOING, epoch=32766))
    if by == "timeout":
        host.tick(60_001)
    else:
        assert host.init().error_code == E.CONCURRENT_TRANSACTIONS
    sent = host.waiting[0]
    assert (sent.producer_id, sent.producer_epoch, sent.commit) == (77, 32767, False)
    host.write_markers()
    # The highest epoch is never handed out, not even to a repeated abort.
    late = host.end(ProducerIdentity(77, 32766), False)
    assert (late.error_code, late.producer_epoch) in [(E.PRODUCER_FENCED, -1), (E.NONE, 0)]
    reply = host.init()
    assert (reply.error_code, reply.producer_id) == (E.NONE, 1000)
    assert reply.producer_epoch in (0, 1)


def test_scenario_7_a_state_already_at_the_highest_epoch_is_recovered(host: Host) -> None:
    host.place(metadata_in(TransactionState.ONGOING, epoch=32767))
    assert host.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert host.waiting[0].producer_epoch == 32767
    host.write_markers()
    assert host.init().error_code == E.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_scenario_8_epoch_exhaustion_rotates_the_producer_id_without_fencing_itself(host: Host, commit: bool) -> None:
    last = ProducerIdentity(77, 32766)
    host.place(metadata_in(TransactionState.ONGOING, epoch=32766))
    reply = host.end(last, commit)
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (E.NONE, 1000, 0)
    sent = host.waiting[0]
    assert (sent.producer_id, sent.producer_epoch) == (77, 32767)
    following = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    assert host.end(last, commit).error_code == E.CONCURRENT_TRANSACTIONS
    host.write_markers()
    repeated = host.end(last, commit)
    assert (repeated.error_code, repeated.producer_id, repeated.producer_epoch) == (E.NONE, 1000, 0)
    assert host.end(last, not commit).error_code == E.INVALID_TXN_STATE
    assert host.produce(following, T0) is E.NONE
    assert host.commit(last) is E.INVALID_PRODUCER_ID_MAPPING
    assert host.commit(following) is E.NONE


def test_scenario_8_the_rotated_identity_is_told_to_wait_while_the_markers_are_on_their_way(host: Host) -> None:
    host.place(metadata_in(TransactionState.ONGOING, epoch=32766))
    reply = host.end(ProducerIdentity(77, 32766), True)
    rotated = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    assert rotated == ProducerIdentity(1000, 0)
    assert host.produce(rotated) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert host.add(rotated) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert host.abort(rotated) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert ErrorCode(host.init(identity=rotated).error_code) is ErrorCode.CONCURRENT_TRANSACTIONS
    host.write_markers()
    assert host.produce(rotated) is ErrorCode.NONE


def test_scenario_8_the_rotation_survives_a_crash_between_decision_and_markers(host: Host) -> None:
    host.place(metadata_in(TransactionState.ONGOING, epoch=32766))
    host.end(ProducerIdentity(77, 32766), True)
    host.start()
    host.write_markers()
    assert host.metadata().identity == ProducerIdentity(1000, 0)


def test_scenario_9_a_marker_reported_twice_completes_once(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    host.commit(producer)
    sent = host.waiting[0]
    host.write_markers()
    written = len(host.log)
    assert host.coordinator.markers_written(sent, host.now_ms).records == ()
    assert len(host.log) == written
    assert host.state() == "CompleteCommit"


@pytest.mark.parametrize("version", [4, 5])
def test_scenario_10_completing_an_old_transaction_never_completes_a_newer_one(host: Host, version: int) -> None:
    producer = host.producer()
    host.produce(producer, T0, T1)
    reply = host.end(producer, True, version)
    old = host.waiting[0]
    host.write_markers()
    if version == 5:
        producer = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    host.produce(producer, T0, T1)
    host.end(producer, True, version)
    newer = host.waiting[0]
    assert (newer == old) is (version == 4), "V1 keeps the epoch: the two are told apart by identity alone"
    assert host.coordinator.markers_written(old, host.now_ms).records == ()
    assert host.state() == "PrepareCommit"
    assert {(topic.topic, *topic.partitions) for topic in host.describe().topics} == {("ledger", 0, 1)}
    host.perform(host.coordinator.markers_written(newer, host.now_ms))
    assert host.state() == "CompleteCommit"


def test_scenario_11_markers_complete_in_any_order_exactly_once() -> None:
    for order in itertools.permutations((T0, T1, OTHER)):
        host = Host()
        producer = host.producer()
        host.produce(producer, T0, T1, OTHER)
        host.commit(producer)
        sent = host.waiting[0]
        decisions = [host.coordinator.markers_written(sent, host.now_ms, [each]) for each in (*order, *order)]
        assert sum(bool(decision.records) for decision in decisions) == 1
        assert decisions[2].records, "the third marker of three completes"
        host.perform(decisions[2])
        assert host.state() == "CompleteCommit"


def test_scenario_12_a_failed_write_clears_what_was_pending(host: Host) -> None:
    producer = host.producer()
    before = host.metadata()
    host.append_fails = True
    assert host.produce(producer, T0) is E.COORDINATOR_NOT_AVAILABLE
    assert host.add(producer, T0) is E.COORDINATOR_NOT_AVAILABLE
    assert host.add_offsets(producer) is E.COORDINATOR_NOT_AVAILABLE
    assert host.init().error_code == E.COORDINATOR_NOT_AVAILABLE
    assert host.metadata() == before
    host.append_fails = False
    assert host.produce(producer, T0) is E.NONE
    host.append_fails = True
    assert host.commit(producer) is E.COORDINATOR_NOT_AVAILABLE
    assert host.init().error_code == E.COORDINATOR_NOT_AVAILABLE
    assert host.waiting == [], "no marker follows a decision that was not written"
    host.append_fails = False
    assert host.commit(producer) is E.NONE


def test_scenario_12_an_abort_by_timeout_whose_write_failed_is_tried_again(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    host.append_fails = True
    assert len(host.tick(60_001)) == 1
    assert host.state() == "Ongoing"
    assert host.tick() == [], "not at once: the disk gets time to recover"
    assert host.coordinator.next_wake_ms() == host.now_ms + 500
    assert len(host.tick(500)) == 1
    host.append_fails = False
    host.tick(500)
    assert host.state() == "PrepareAbort"
    assert host.waiting[0].producer_epoch == producer.producer_epoch + 1


def test_scenario_12_a_completion_whose_write_failed_is_tried_again(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    host.commit(producer)
    host.append_fails = True
    host.write_markers()
    assert host.state() == "PrepareCommit"
    host.append_fails = False
    assert host.coordinator.next_wake_ms() == host.now_ms + 500
    host.tick(500)
    assert host.state() == "CompleteCommit"


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
    host: Host, storage: ErrorCode, told: ErrorCode
) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    decision = host.end_decision(producer, True)
    reply = host.coordinator.append_failed(decision, storage)
    assert reply is not None
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (told, -1, -1)


def test_scenario_13_an_id_whose_first_write_failed_leaves_nothing_behind(host: Host) -> None:
    host.append_fails = True
    assert host.init().error_code == E.COORDINATOR_NOT_AVAILABLE
    host.append_fails = False
    assert host.describe().error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    host.tick(host.settings.transactional_id_expiration_ms + 1)
    assert host.log == []
    assert host.producer().producer_epoch == 0


def test_scenario_28_loading_ends_though_compaction_left_gaps(host: Host) -> None:
    first, second = host.producer("first"), host.producer("second")
    host.produce(first, T0, transactional_id="first")
    host.end(first, True, transactional_id="first")
    host.produce(second, T1, transactional_id="second")
    expected = host.known()
    latest: dict[bytes, StateRecord] = {}
    for record in host.log:
        latest.pop(record.key, None)
        latest[record.key] = record
    host.log[:] = latest.values()
    host.start()
    assert host.known() == expected
    assert [sent.transactional_id for sent in host.waiting] == ["first"]
    assert host.produce(second, T0, transactional_id="second") is E.NONE


def test_scenario_30_a_topic_deleted_during_commit_does_not_keep_the_transaction_open(host: Host) -> None:
    producer = host.producer()
    gone = TopicPartition("deleted", 0)
    host.produce(producer, T0, gone)
    host.commit(producer)
    sent = host.waiting[0]
    host.perform(host.coordinator.markers_written(sent, host.now_ms, [T0]))
    assert host.state() == "PrepareCommit"
    host.perform(host.coordinator.markers_written(sent, host.now_ms, [gone]))
    assert host.state() == "CompleteCommit"


def test_scenario_31_mass_expiry_writes_no_batch_larger_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_coordinator, "MOST_EXPIRED_AT_ONCE", 30)
    settings = TransactionSettings(transaction_state_log_num_partitions=2)
    host = Host(settings)
    for number in range(500):
        host.producer(f"application-{number}")
    host.now_ms += settings.transactional_id_expiration_ms
    decisions = host.coordinator.tick(host.now_ms)
    assert len(decisions) > 10
    for decision in decisions:
        assert len({record.partition for record in decision.records}) == 1
        assert len(decision.records) <= 30
    assert sum(len(decision.records) for decision in decisions) == 500
    assert host.init("application-7").error_code == E.CONCURRENT_TRANSACTIONS
    for decision in decisions[:-1]:
        host.perform(decision)
    host.coordinator.append_failed(decisions[-1])
    assert len(host.known()) == len(decisions[-1].records)
    assert host.producer("application-7").producer_epoch in (0, 1)


def test_scenario_35_an_epoch_bumped_by_the_client_itself_is_refused(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    ahead = ProducerIdentity(producer.producer_id, producer.producer_epoch + 1)
    for version in (2, 3, 4, 5):
        assert host.commit(ahead, version=version) is E.PRODUCER_FENCED
    assert host.commit(ahead, version=1) is E.INVALID_PRODUCER_EPOCH
    assert host.produce(ahead, T1) is E.PRODUCER_FENCED
    assert host.state() == "Ongoing"


def test_scenario_40_the_transaction_after_an_abort_has_another_epoch_so_sequences_may_start_again(host: Host) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    reply = host.end(producer, False)
    host.write_markers()
    following = ProducerIdentity(reply.producer_id, reply.producer_epoch)
    assert following.producer_epoch > producer.producer_epoch
    assert host.produce(following, T0) is E.NONE
    assert host.commit(following) is E.NONE
    epochs = [(sent.producer_epoch, sent.commit) for sent, _ in host.written] + [
        (sent.producer_epoch, sent.commit) for sent in host.waiting
    ]
    assert epochs == [(producer.producer_epoch + 1, False), (producer.producer_epoch + 2, True)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("crash", [False, True])
def test_scenario_41_a_commit_whose_answer_was_lost_succeeds_when_repeated(
    host: Host, version: int, crash: bool
) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    answer = host.end(producer, True, version)
    if crash:
        host.start()
    assert host.end(producer, True, version).error_code == E.CONCURRENT_TRANSACTIONS
    host.write_markers()
    if crash:
        host.start()
    assert host.end(producer, True, version) == answer
    assert host.end(producer, False, version).error_code == E.INVALID_TXN_STATE


def test_scenario_43_a_begun_but_empty_transaction_survives_a_restart_and_expires(host: Host) -> None:
    producer = host.producer()
    host.start()
    assert host.metadata().identity == producer
    assert host.produce(producer, T0) is E.NONE
    idle = host.producer("idle")
    host.start()
    assert host.metadata("idle").identity == idle
    host.tick(host.settings.transactional_id_expiration_ms)
    host.write_markers()
    assert host.describe("idle").error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    host.start()
    assert host.describe("idle").error_code == E.TRANSACTIONAL_ID_NOT_FOUND


def test_scenario_45_offsets_of_a_producer_that_is_gone_are_released_by_timeout(host: Host) -> None:
    producer = host.producer()
    assert host.add_offsets(producer) is E.NONE
    host.start()
    host.tick(60_001)
    sent = host.waiting[0]
    assert (sent.commit, sent.partitions) == (False, (TopicPartition("__consumer_offsets", 7),))


@pytest.mark.parametrize("version", [0, 4, 5])
def test_scenario_46_ending_while_the_previous_end_completes_waits_and_is_never_an_empty_success(
    host: Host, version: int
) -> None:
    producer = host.producer()
    host.produce(producer, T0)
    reply = host.end(producer, True, version)
    following = ProducerIdentity(reply.producer_id, reply.producer_epoch) if version == 5 else producer
    assert host.commit(following, version) is E.CONCURRENT_TRANSACTIONS
    assert host.produce(following, T0) is E.CONCURRENT_TRANSACTIONS


def test_scenario_47_an_empty_transaction_ends_cleanly(host: Host) -> None:
    producer = host.producer()
    host.add(producer, T0)
    assert host.commit(producer, version=4) is E.NONE
    host.write_markers()
    # V1: nothing was added since the last commit, so a commit repeats it.
    assert host.commit(producer, version=4) is E.NONE
    # V2: an empty abort renews the identity; an empty commit is refused, as Kafka does, because a repeated commit
    # carries the epoch from before and could not be told from a lost one.
    assert host.commit(producer) is E.INVALID_TXN_STATE
    reply = host.end(producer, False)
    assert (reply.error_code, reply.producer_epoch) == (E.NONE, producer.producer_epoch + 1)


def test_a_prepared_transaction_found_in_the_log_is_finished_and_an_open_one_goes_on(host: Host) -> None:
    open_one, prepared_one = host.producer("open"), host.producer("prepared")
    host.produce(open_one, T0, transactional_id="open")
    host.produce(prepared_one, T0, T1, transactional_id="prepared")
    host.end(prepared_one, True, transactional_id="prepared")
    sent_before = host.waiting[0]
    host.start()
    assert host.waiting == [replace(sent_before, coordinator_epoch=2)]
    assert host.coordinator.markers_written(sent_before, host.now_ms).records == ()
    host.write_markers()
    assert host.state("prepared") == "CompleteCommit"
    assert host.produce(open_one, T1, transactional_id="open") is E.NONE
    assert host.end(open_one, True, transactional_id="open").error_code == E.NONE


def test_a_crash_between_the_two_records_of_an_empty_abort_is_finished_on_loading(host: Host) -> None:
    producer = host.producer()
    host.end(producer, False)
    del host.log[-1]
    host.start()
    assert host.state() == "CompleteAbort"
    assert host.metadata().producer_epoch == producer.producer_epoch + 1


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

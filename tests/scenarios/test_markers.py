"""How an outcome reaches the partitions, and what must not slip in on the way: scenarios 3, 5, 9, 10, 11, 14, 30."""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.coordinators import marker_sender
from semel.broker.coordinators.transactions import TransactionShell
from semel.broker.handlers import transactions as transaction_handlers
from semel.errors import ErrorCode
from semel.machines.values import TopicPartition
from semel.wire.messages.admin import DeleteTopicsRequest
from tests.scenarios.stage import Scene, Stage, Steps
from tests.scenarios.test_fencing import hold_markers

E = ErrorCode


def between_verification_and_append(monkeypatch: pytest.MonkeyPatch, happens: Any) -> None:
    """The coordinator has agreed, and before the batch is written something else happens, once."""
    original = TransactionShell.admit
    left = [happens]

    def admit(self: TransactionShell, *args: Any, **options: Any) -> ErrorCode:
        code = original(self, *args, **options)
        if left:
            left.pop()()
        return code

    monkeypatch.setattr(TransactionShell, "admit", admit)


@pytest.mark.parametrize("protocol", [1, 2])
def test_scenario_3_an_abort_marker_between_verification_and_append_keeps_the_batch_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    if protocol == 1:
        assert producer.add("ledger") is E.NONE

    def abort_here() -> None:
        # The epoch is the data's own: nothing but the guard can tell that the transaction is over.
        scene.log("ledger").append_marker(*producer.identity, False, 0, 1, scene.broker.server.now_ms())

    between_verification_and_append(monkeypatch, abort_here)
    assert producer.produce("ledger", b"late", sequence=0)[0] is E.INVALID_TXN_STATE
    assert scene.uncommitted("ledger") == []
    assert scene.ends("ledger") == (1, 1)
    assert scene.log("ledger").producers.open_transactions == {}


def test_scenario_5_a_later_sequence_does_not_overtake_one_whose_verification_failed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=1)
    assert producer.add("ledger") is E.NONE
    original = TransactionShell.admit
    answers = [E.NETWORK_EXCEPTION]

    def admit(self: TransactionShell, *args: Any, **options: Any) -> ErrorCode:
        return answers.pop() if answers else original(self, *args, **options)

    monkeypatch.setattr(TransactionShell, "admit", admit)
    assert producer.produce("ledger", b"zero", sequence=0)[0] is E.NOT_ENOUGH_REPLICAS
    # Taken, it would make sequence 0 out of order for ever.
    assert producer.produce("ledger", b"one", sequence=1)[0] is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.produce("ledger", b"zero", sequence=0) == (E.NONE, 0)
    assert producer.produce("ledger", b"one", sequence=1) == (E.NONE, 1)
    assert producer.end(True) is E.NONE
    assert scene.committed("ledger") == [b"zero", b"one"]


def written(producer: Steps, topic: str = "ledger") -> tuple[int, int]:
    """An open transaction with one record; the identity its marker will carry."""
    assert producer.write(topic, b"record") is E.NONE
    return producer.producer_id, producer.epoch + 1


def test_scenario_9_a_marker_whose_answer_was_lost_is_repeated_without_effect(stage: Stage) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer()
    marker = written(producer)
    assert scene.mark(marker, "ledger", commit=True) == [E.NONE]
    assert scene.mark(marker, "ledger", commit=True) == [E.NONE]
    assert scene.mark(marker, "ledger", commit=True) == [E.NONE]
    assert scene.markers("ledger") == [(*marker, True)]
    assert scene.ends("ledger") == (2, 2)
    scene = stage.crash(scene)
    assert scene.mark(marker, "ledger", commit=True) == [E.NONE]
    assert scene.markers("ledger") == [(*marker, True)]


def test_scenario_10_a_late_marker_of_an_older_transaction_does_not_end_a_newer_one(stage: Stage) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer()
    old = written(producer)
    assert producer.end(False) is E.NONE
    written(producer)
    for commit in (True, False):
        assert scene.mark(old, "ledger", commit=commit) == [E.INVALID_PRODUCER_EPOCH]
    assert scene.state() == "Ongoing"
    assert scene.ends("ledger") == (2, 3)
    assert producer.end(True) is E.NONE
    assert scene.committed("ledger") == [b"record"]


@pytest.mark.parametrize("protocol", [1, 2])
def test_scenario_11_markers_that_land_one_by_one_complete_the_transaction_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    scene = stage.start()
    scene.raw.create("ledger", 3)
    producer = scene.producer(protocol=protocol)
    for partition in range(3):
        assert producer.write("ledger", b"%d" % partition, partition=partition) is E.NONE
    completions = count_completions(scene, monkeypatch)
    release = hold_markers(monkeypatch, TopicPartition("ledger", 0), TopicPartition("ledger", 2))
    assert producer.end(True) is E.NONE
    assert scene.state() == "PrepareCommit"
    assert scene.committed("ledger", 1) == [b"1"]
    assert scene.committed("ledger", 0) == scene.committed("ledger", 2) == []
    release()
    scene.until_state("CompleteCommit")
    assert [scene.committed("ledger", partition) for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]
    assert [len(scene.markers("ledger", partition)) for partition in range(3)] == [1, 1, 1]
    assert completions == ["payments"]


def count_completions(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which transactions the coordinator decided to be complete, in order."""
    machine = scene.broker.server.transactions.coordinator
    original = machine.markers_written
    completed: list[str] = []

    def markers_written(sent: Any, *args: Any) -> Any:
        decision = original(sent, *args)
        if decision.records:
            completed.append(sent.transactional_id)
        return decision

    monkeypatch.setattr(machine, "markers_written", markers_written)
    return completed


@pytest.mark.parametrize("after", ["nothing", "restart", "crash"])
def test_scenario_14_a_producer_known_by_a_marker_only_still_fences_an_older_coordinator(
    stage: Stage, after: str
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = (4711, 3)
    assert scene.mark(producer, "ledger", commit=True, coordinator_epoch=7) == [E.NONE]
    now_ms = scene.broker.server.now_ms()
    # Idle for less than it takes to be forgotten, though there is no data batch to take a time from.
    assert scene.on_loop(lambda: scene.log("ledger").producers.expire(now_ms + 80_000_000, 86_400_000)) == []
    if after != "nothing":
        scene = getattr(stage, after)(scene)
    later = (4711, 4)
    assert scene.mark(later, "ledger", commit=True, coordinator_epoch=6) == [E.TRANSACTION_COORDINATOR_FENCED]
    assert scene.mark(later, "ledger", commit=False, coordinator_epoch=7) == [E.NONE]
    assert scene.markers("ledger") == [(4711, 3, True), (4711, 4, False)]


def delete(scene: Scene, topic: str) -> None:
    answer = scene.raw.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)]))
    assert answer.responses[0].error_code == E.NONE


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("when", ["before the commit", "while markers are written"])
def test_scenario_30_a_topic_deleted_during_commit_does_not_hold_the_transaction(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, when: str, durability: str
) -> None:
    scene = stage.start(semel_durability=durability)
    for topic in ("ledger", "doomed"):
        scene.raw.create(topic)
    producer = scene.producer()
    for topic in ("ledger", "doomed"):
        assert producer.write(topic, b"record") is E.NONE
    if when == "before the commit":
        delete(scene, "doomed")
        assert producer.end(True) is E.NONE
    else:
        release = hold_markers(monkeypatch, TopicPartition("doomed", 0))
        assert producer.end(True) is E.NONE
        assert scene.state() == "PrepareCommit"
        delete(scene, "doomed")
        release()
    scene.until_state("CompleteCommit", within_s=3)
    assert scene.committed("ledger") == [b"record"]
    assert producer.write("ledger", b"next") is E.NONE
    assert producer.end(True) is E.NONE


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_marker_that_somebody_else_forged_holds_neither_the_other_partitions_nor_the_id(
    stage: Stage, durability: str
) -> None:
    scene = stage.start(semel_durability=durability)
    producer = scene.producer()
    for topic in ("first", "forged", "last"):
        scene.raw.create(topic)
        assert producer.write(topic, b"record") is E.NONE
    assert scene.mark((producer.producer_id, producer.epoch + 100), "forged", commit=False) == [E.NONE]
    assert producer.end(True) is E.NONE
    scene.until_state("CompleteCommit")
    assert [scene.committed(topic) for topic in ("first", "forged", "last")] == [[b"record"], [], [b"record"]]


def test_a_marker_that_a_partition_refuses_is_tried_again_while_the_transaction_is_open_there(stage: Stage) -> None:
    scene = stage.start()
    producer = scene.producer()
    for topic in ("first", "last"):
        scene.raw.create(topic)
    assert scene.mark(producer.identity, "first", commit=False, coordinator_epoch=70) == [E.NONE]
    for topic in ("first", "last"):
        assert producer.write(topic, b"record") is E.NONE
    decided = (producer.producer_id, producer.epoch + 1)
    assert producer.end(True) is E.NONE
    assert scene.state() == "PrepareCommit"
    assert (scene.committed("first"), scene.committed("last")) == ([], [b"record"])
    # What the coordinator decided is written in the name of the coordinator that the partition obeys.
    assert scene.mark(decided, "first", commit=True, coordinator_epoch=70) == [E.NONE]
    scene.until_state("CompleteCommit")
    assert scene.committed("first") == [b"record"]


def test_the_handler_and_the_coordinator_write_markers_through_the_same_door() -> None:
    """So that what is shown here of markers holds for the coordinator's own and for those that are asked for."""
    assert vars(transaction_handlers)["write_marker"] is marker_sender.write_marker


both_protocols = pytest.mark.parametrize("protocol", [1, 2])


@both_protocols
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_client_cannot_commit_what_its_owner_has_open(stage: Stage, protocol: int, ahead: int) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    assert producer.write("ledger", b"open") is E.NONE
    identity = (producer.producer_id, producer.epoch + ahead)
    for version in (0, 2):
        assert scene.mark_as_client(identity, "ledger", commit=True, transaction_version=version) is E.INVALID_TXN_STATE
    assert scene.ends("ledger") == (0, 1)
    assert producer.end(False) is E.NONE
    assert scene.committed("ledger") == []


def test_a_client_cannot_commit_what_no_coordinator_knows(stage: Stage) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    assert scene.mark_as_client((4711, 0), "ledger", commit=True) is E.INVALID_TXN_STATE
    assert scene.markers("ledger") == []
    assert scene.mark_as_client((4711, 0), "ledger", commit=False) is E.NONE


def test_a_client_cannot_abort_what_is_decided_to_be_committed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer()
    assert producer.write("ledger", b"committed") is E.NONE
    release = hold_markers(monkeypatch, TopicPartition("ledger", 0))
    assert producer.end(True) is E.NONE
    assert scene.mark_as_client(producer.identity, "ledger", commit=False) is E.INVALID_TXN_STATE
    release()
    scene.until_state("CompleteCommit")
    assert scene.committed("ledger") == [b"committed"]


@both_protocols
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_an_open_transaction_that_an_administrator_aborts_in_one_partition_is_aborted_in_all(
    stage: Stage, protocol: int, durability: str
) -> None:
    """Its owner could commit the others otherwise, and be told that everything is committed."""
    scene = stage.start(semel_durability=durability)
    producer = scene.producer(protocol=protocol)
    for topic in ("first", "second"):
        scene.raw.create(topic)
        assert producer.write(topic, b"aborted") is E.NONE
    assert scene.mark_as_client(producer.identity, "first", commit=False) is E.NONE
    assert [scene.ends(topic) for topic in ("first", "second")] == [(2, 2), (2, 2)]
    assert producer.end(True) in (E.PRODUCER_FENCED, E.INVALID_TXN_STATE)
    assert [scene.committed(topic) for topic in ("first", "second")] == [[], []]
    older = (producer.producer_id, producer.epoch)
    assert producer.init() is E.NONE
    assert producer.write("first", b"next") is E.NONE
    assert scene.mark_as_client(older, "first", commit=False) is E.INVALID_PRODUCER_EPOCH
    assert producer.end(True) is E.NONE
    scene.until_state("CompleteCommit")
    assert scene.committed("first") == [b"next"]


def test_a_client_writes_no_marker_into_the_transaction_log(stage: Stage) -> None:
    scene = stage.start()
    producer = scene.producer()
    assert scene.mark_as_client((4711, 0), "__transaction_state", commit=False) is E.INVALID_TOPIC_EXCEPTION
    scene = stage.restart(scene)
    producer.scene = scene
    assert producer.init() is E.NONE

"""Who may speak for a transactional id, and for which of its transactions: scenarios 1, 2, 6, 7, 8, 35, 40, 41, 46."""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.coordinators import transactions as transaction_host
from semel.errors import ErrorCode
from semel.log.partition_log import PartitionLog
from semel.machines.transactions.metadata import TransactionMetadata
from semel.machines.transactions.records import record_of
from semel.machines.transactions.states import TransactionState
from semel.machines.values import TopicPartition
from tests.scenarios.stage import Scene, Stage, Steps

E = ErrorCode
both_protocols = pytest.mark.parametrize("protocol", [1, 2])


@both_protocols
def test_scenario_1_a_late_produce_after_an_abort_by_timeout_is_refused_and_the_lso_moves_on(
    stage: Stage, protocol: int
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    late = scene.producer(protocol=protocol, timeout_ms=150)
    assert late.write("ledger", b"aborted") is E.NONE
    assert scene.ends("ledger") == (0, 1)
    scene.until_state("CompleteAbort")
    # No new transaction may begin by it, neither here nor at the coordinator: nobody would ever end that one.
    assert late.produce("ledger", b"late", sequence=1)[0] is E.INVALID_PRODUCER_EPOCH
    assert scene.state() == "CompleteAbort"
    assert scene.ends("ledger") == (2, 2)
    assert scene.committed("ledger") == []
    assert len(scene.stored("ledger")) == 2


@both_protocols
def test_scenario_2_a_delayed_end_of_a_transaction_cannot_end_the_next_one(stage: Stage, protocol: int) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    assert producer.write("ledger", b"first") is E.NONE
    before = producer.identity
    assert producer.end(True) is E.NONE
    if protocol == 1:
        # The epoch stays under V1, so only a successor's epoch tells the two apart.
        assert producer.init() is E.NONE
    assert producer.write("ledger", b"second") is E.NONE
    for commit in (True, False):
        assert producer.end(commit, identity=before) is E.PRODUCER_FENCED
    assert scene.state() == "Ongoing"
    assert scene.committed("ledger") == [b"first"]
    assert producer.end(False) is E.NONE
    assert scene.committed("ledger") == [b"first"]


@both_protocols
@pytest.mark.parametrize("by", ["timeout", "init"])
def test_scenario_6_an_abort_for_an_absent_owner_bumps_the_epoch_and_the_zombie_is_fenced(
    stage: Stage, protocol: int, by: str
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    zombie = scene.producer(protocol=protocol, timeout_ms=150 if by == "timeout" else 60_000)
    assert zombie.write("ledger", b"zombie") is E.NONE
    if by == "timeout":
        scene.until_state("CompleteAbort")
    else:
        successor = scene.producer(protocol=protocol)
        assert successor.epoch > zombie.epoch
        assert successor.write("ledger", b"successor") is E.NONE
    (marker,) = scene.markers("ledger")
    assert marker == (zombie.producer_id, zombie.epoch + 1, False)
    assert zombie.produce("ledger", b"late", sequence=1)[0] is E.INVALID_PRODUCER_EPOCH
    if protocol == 1:
        assert zombie.add("ledger") is E.PRODUCER_FENCED
    # To V2 the zombie's commit is the opposite of what was decided for it, and refused as such.
    assert zombie.end(True) in (E.PRODUCER_FENCED, E.INVALID_TXN_STATE)
    if by == "init":
        assert successor.end(True) is E.NONE
        assert scene.committed("ledger") == [b"successor"]
    assert b"zombie" not in scene.committed("ledger")


def at_the_last_epoch(scene: Scene, producer_id: int = 4711) -> Steps:
    """A transactional id whose owner has used up all but the last epoch of its producer id."""
    machine = scene.broker.server.transactions.coordinator
    metadata = TransactionMetadata(
        "payments", producer_id, 32766, 60_000, TransactionState.COMPLETE_COMMIT, last_update_ms=0
    )
    scene.place(record_of(metadata, machine.partition_for("payments")))
    steps = Steps(scene, "payments")
    steps.producer_id, steps.epoch = producer_id, 32766
    return steps


def test_scenario_7_aborting_for_an_absent_owner_at_the_last_epoch_bumps_once(stage: Stage) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    owner = at_the_last_epoch(scene)
    assert owner.write("ledger", b"aborted") is E.NONE
    successor = scene.producer()
    assert scene.markers("ledger") == [(4711, 32767, False)]
    assert successor.producer_id != 4711
    assert 0 <= successor.epoch < 32767
    assert successor.write("ledger", b"committed") is E.NONE
    assert successor.end(True) is E.NONE
    assert scene.committed("ledger") == [b"committed"]
    assert owner.end(True) is not E.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_scenario_8_epoch_exhaustion_rotates_the_producer_id_and_the_producer_goes_on(
    stage: Stage, commit: bool
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = at_the_last_epoch(scene)
    assert producer.write("ledger", b"last") is E.NONE
    assert producer.end(commit) is E.NONE
    assert producer.producer_id != 4711
    assert producer.epoch == 0
    assert producer.write("ledger", b"first") is E.NONE
    assert producer.end(True) is E.NONE
    assert scene.committed("ledger") == ([b"last", b"first"] if commit else [b"first"])
    assert scene.ends("ledger") == (4, 4)


@both_protocols
def test_scenario_35_an_epoch_bumped_by_the_client_itself_is_refused(stage: Stage, protocol: int) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    assert producer.write("ledger", b"mine") is E.NONE
    ahead = (producer.producer_id, producer.epoch + 1)
    assert producer.end(True, identity=ahead) is E.PRODUCER_FENCED
    assert scene.state() == "Ongoing"
    assert producer.end(True) is E.NONE
    assert scene.committed("ledger") == [b"mine"]


@both_protocols
def test_scenario_40_after_an_abort_a_reused_sequence_is_not_taken_for_the_old_one(
    stage: Stage, protocol: int
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    assert producer.write("ledger", b"aborted") is E.NONE
    assert producer.end(False) is E.NONE
    if protocol == 1:
        # A V1 client that begins its sequences again asks for a new epoch first.
        assert producer.init() is E.NONE
    assert producer.sequences == {}
    assert producer.write("ledger", b"committed") is E.NONE
    assert producer.end(True) is E.NONE
    assert scene.committed("ledger") == [b"committed"]
    assert scene.uncommitted("ledger") == [b"aborted", b"committed"]


@pytest.mark.parametrize("after", ["nothing", "restart", "crash", "snapshot"])
def test_scenario_40_under_v1_a_sequence_used_again_without_a_new_epoch_is_refused_and_never_a_success(
    stage: Stage, after: str
) -> None:
    scene = stage.start()
    scene.raw.create("ledger", segment_bytes="1048576")
    producer = scene.producer(protocol=1)
    assert producer.write("ledger", b"aborted 0", b"aborted 1") is E.NONE
    assert producer.end(False) is E.NONE
    if after == "snapshot":
        # What comes after it is read from the log, what came before only from the snapshot.
        log = scene.log("ledger")
        scene.on_loop(lambda: log.roll(scene.broker.server.now_ms()))
        scene = stage.crash(scene)
    elif after != "nothing":
        scene = getattr(stage, after)(scene)
    producer.scene = scene
    assert producer.add("ledger") is E.NONE
    code, offset = producer.produce("ledger", b"new 0", b"new 1", sequence=0)
    assert (code, offset) == (E.UNKNOWN_PRODUCER_ID, -1)
    assert producer.end(False) is E.NONE
    # Where the next transaction is open in the partition already, the old batch is still none of it.
    assert producer.add("ledger") is E.NONE
    assert producer.produce("ledger", b"new 2", sequence=2) == (E.NONE, 4)
    assert producer.produce("ledger", b"new 0", b"new 1", sequence=0)[0] is E.UNKNOWN_PRODUCER_ID
    assert producer.produce("ledger", b"new 2", sequence=2) == (E.NONE, 4)
    assert producer.end(False) is E.NONE
    # What a client does then: a new epoch, and its records again.
    assert producer.init() is E.NONE
    assert producer.write("ledger", b"new 0", b"new 1", b"new 2") is E.NONE
    assert producer.end(True) is E.NONE
    assert scene.committed("ledger") == [b"new 0", b"new 1", b"new 2"]


@both_protocols
@pytest.mark.parametrize("after", ["nothing", "restart", "crash"])
def test_scenario_41_a_commit_whose_answer_was_lost_succeeds_when_repeated(
    stage: Stage, protocol: int, after: str
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    assert producer.write("ledger", b"once") is E.NONE
    lost = producer.identity
    assert producer.end(True) is E.NONE
    answer = producer.last_end
    if after != "nothing":
        scene = getattr(stage, after)(scene)
        producer.scene = scene
    assert producer.end(True, identity=lost) is E.NONE
    assert producer.last_end == answer
    assert producer.end(False, identity=lost) is E.INVALID_TXN_STATE
    assert scene.committed("ledger") == [b"once"]
    assert len(scene.markers("ledger")) == 1


@both_protocols
def test_scenario_46_ending_while_the_previous_end_completes_is_told_to_wait(
    stage: Stage, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    assert producer.write("ledger", b"first") is E.NONE
    release = hold_markers(monkeypatch, TopicPartition("ledger", 0))
    assert producer.end(True) is E.NONE
    assert scene.state() == "PrepareCommit"
    # Never an empty success: the second transaction has not even begun.
    assert producer.end(True) is E.CONCURRENT_TRANSACTIONS
    assert producer.end(False) is not E.NONE
    assert producer.write("ledger", b"second") in (E.CONCURRENT_TRANSACTIONS, E.NOT_ENOUGH_REPLICAS)
    release()
    scene.until_state("CompleteCommit")
    assert producer.write("ledger", b"second") is E.NONE
    assert producer.end(False) is E.NONE
    assert scene.committed("ledger") == [b"first"]


def hold_markers(monkeypatch: pytest.MonkeyPatch, *held: TopicPartition) -> Any:
    """Markers for these partitions find no disk until the answer is called. Retries come quickly."""
    monkeypatch.setattr(transaction_host, "MOST_HELD_S", 0.05)
    from semel.broker.coordinators import marker_sender
    from semel.errors import Refused

    original = PartitionLog.append_marker
    holding = set(held)

    def append_marker(self: PartitionLog, *args: Any) -> Any:
        if TopicPartition(self.topic, self.partition) in holding:
            raise Refused(E.NOT_LEADER_OR_FOLLOWER, "the scenario holds this marker back")
        return original(self, *args)

    monkeypatch.setattr(PartitionLog, "append_marker", append_marker)
    monkeypatch.setattr(marker_sender, "RETRY_MS", 20)
    return holding.clear

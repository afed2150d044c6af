"""What the coordinator writes down, what becomes of it when it cannot, and what it finds again: 12, 13, 28, 31, 43."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from semel.broker.coordinators import transactions as transaction_host
from semel.broker.topics.internal import TRANSACTION_STATE
from semel.errors import ErrorCode, Refused
from semel.log.partition_log import PartitionLog
from semel.machines.transactions.metadata import TransactionMetadata
from semel.machines.transactions.records import record_of
from semel.machines.transactions.states import TransactionState
from semel.wire.messages.transactions import (
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from tests.broker.raw import Raw
from tests.scenarios.stage import Disk, Scene, Stage, Steps, in_background
from tests.support.waiting import until

E = ErrorCode


def refuse_appends(monkeypatch: pytest.MonkeyPatch, topic: str) -> list[bool]:
    """The internal topic takes nothing while the answer's only element is true."""
    original = PartitionLog.append_internal
    refusing = [True]

    def append_internal(self: PartitionLog, *args: Any, **options: Any) -> Any:
        if refusing[0] and self.topic == topic:
            raise Refused(E.NOT_ENOUGH_REPLICAS, "the scenario lets nothing be written")
        return original(self, *args, **options)

    monkeypatch.setattr(PartitionLog, "append_internal", append_internal)
    return refusing


@pytest.mark.parametrize("protocol", [1, 2])
def test_scenario_12_a_write_the_transaction_log_refused_is_forgotten_and_can_be_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    refusing = refuse_appends(monkeypatch, TRANSACTION_STATE)
    for _ in range(2):
        assert producer.write("ledger", b"record") in (E.COORDINATOR_NOT_AVAILABLE, E.NOT_ENOUGH_REPLICAS)
    refusing[0] = False
    assert producer.write("ledger", b"record") is E.NONE
    refusing[0] = True
    for _ in range(2):
        assert producer.end(True) is E.COORDINATOR_NOT_AVAILABLE
    assert scene.state() == "Ongoing"
    assert scene.markers("ledger") == []
    refusing[0] = False
    assert producer.end(True) is E.NONE
    assert scene.committed("ledger") == [b"record"]


def test_scenario_12_an_abort_by_timeout_that_could_not_be_written_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(timeout_ms=100)
    assert producer.write("ledger", b"record") is E.NONE
    refusing = refuse_appends(monkeypatch, TRANSACTION_STATE)
    ticks: list[int] = []
    coordinator = scene.broker.server.transactions.coordinator
    original = coordinator.append_failed

    def append_failed(decision: Any, code: ErrorCode) -> Any:
        ticks.append(scene.broker.server.now_ms())
        refusing[0] = len(ticks) < 2
        return original(decision, code)

    monkeypatch.setattr(coordinator, "append_failed", append_failed)
    scene.until_state("CompleteAbort")
    assert len(ticks) == 2
    assert ticks[1] - ticks[0] >= 400, "the disk gets time to recover"
    assert scene.ends("ledger") == (2, 2)


def test_scenario_13_an_id_whose_first_write_failed_leaves_nothing_that_could_not_expire(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = stage.start()
    refusing = refuse_appends(monkeypatch, TRANSACTION_STATE)
    request = InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=60_000)
    assert scene.raw.ask(request).error_code == E.COORDINATOR_NOT_AVAILABLE
    assert scene.state() == "TRANSACTIONAL_ID_NOT_FOUND"
    machine = scene.broker.server.transactions.coordinator
    shards = scene.on_loop(lambda: [(dict(shard.entries), dict(shard.pending)) for shard in machine._shards.values()])
    assert shards and all(shard == ({}, {}) for shard in shards)
    refusing[0] = False
    assert scene.producer().epoch == 0


def test_scenario_28_loading_ends_though_there_is_a_gap_before_the_end_of_the_log(stage: Stage) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer()
    machine = scene.broker.server.transactions.coordinator
    partition = machine.partition_for("payments")
    log = scene.log(TRANSACTION_STATE, partition)
    scene.on_loop(lambda: log.roll(scene.broker.server.now_ms()))
    for _ in range(3):
        assert producer.init() is E.NONE
    last = scene.on_loop(lambda: (log.roll(scene.broker.server.now_ms()), log.end_offset)[1])
    scene.close()
    # What a cleaner leaves that removed every batch of the second segment: nothing until the end of the log.
    directory = scene.broker.data_dir / f"{TRANSACTION_STATE}-{partition}"
    stems = sorted({path.stem for path in directory.glob("*.log")})
    assert len(stems) == 3
    for path in directory.glob(f"{stems[1]}.*"):
        path.unlink()
    for path in directory.glob("*.snapshot"):
        path.unlink()
    (scene.broker.data_dir / ".semel_manifest").unlink()  # which a cleaner would have left without the segment
    scene = stage.start(scene.broker.data_dir)
    assert scene.state() == "Empty"
    assert scene.log(TRANSACTION_STATE, partition).end_offset == last
    assert scene.producer().epoch == 1, "the epoch of the record that is left, and one more"


def idle_since(scene: Scene, count: int, last_update_ms: int) -> None:
    """Many transactional ids that nobody used since."""
    scene.on_loop(scene.broker.server.stores.producer_ids.take)  # ids that are stored were given out
    machine = scene.broker.server.transactions.coordinator
    for number in range(count):
        name = f"application-{number}"
        metadata = TransactionMetadata(
            name, 10_000 + number, 0, 60_000, TransactionState.COMPLETE_COMMIT, last_update_ms
        )
        scene.place(record_of(metadata, machine.partition_for(name)))


def known_ids(scene: Scene) -> int:
    return len(scene.raw.ask(ListTransactionsRequest()).transaction_states)


def test_scenario_31_mass_expiry_fits_into_the_batches_the_topic_takes(stage: Stage) -> None:
    scene = stage.start(message_max_bytes=20_000, transaction_state_log_segment_bytes=20_000)
    idle_since(scene, 2_000, last_update_ms=0)
    assert known_ids(scene) == 2_000
    shell = scene.broker.server.transactions

    def expire() -> None:
        shell.coordinator._next_expiration_ms = 0
        for decision in shell.coordinator.tick(scene.broker.server.now_ms()):
            shell.host.settle(decision)

    scene.on_loop(expire)
    assert known_ids(scene) == 0
    scene = stage.crash(scene)
    assert known_ids(scene) == 0


@pytest.mark.parametrize("after", ["restart", "crash"])
def test_scenario_43_a_begun_but_empty_transaction_survives_a_restart_and_expires(stage: Stage, after: str) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    idle = scene.producer("idle")
    begun = scene.producer("begun", protocol=1, timeout_ms=600)
    assert begun.add("ledger") is E.NONE
    scene = getattr(stage, after)(scene)
    assert scene.state("idle") == "Empty"
    assert scene.state("begun") in ("Ongoing", "PrepareAbort", "CompleteAbort")
    scene.until_state("CompleteAbort", "begun", within_s=4)
    begun.scene = idle.scene = scene
    assert begun.end(True) is E.PRODUCER_FENCED
    assert idle.write("ledger", b"record") is E.NONE
    assert idle.end(True) is E.NONE
    assert scene.committed("ledger") == [b"record"]


def test_scenario_43_an_open_transaction_goes_on_after_a_crash(stage: Stage) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer()
    assert producer.write("ledger", b"before") is E.NONE
    scene = stage.crash(scene)
    producer.scene = scene
    assert producer.write("ledger", b"after") is E.NONE
    assert scene.ends("ledger") == (0, 2)
    assert producer.end(True) is E.NONE
    assert scene.committed("ledger") == [b"before", b"after"]


HELD_BACK: dict[str, tuple[int, Callable[[Steps], ErrorCode]]] = {
    "AddPartitionsToTxn": (1, lambda producer: producer.add("ledger")),
    "AddOffsetsToTxn": (1, lambda producer: producer.send_offset("group", "ledger", 1)),
    "EndTxn(commit) again": (1, lambda producer: producer.end(True)),
    "InitProducerId": (1, lambda producer: E(producer.ask_init().error_code)),
    "Produce": (2, lambda producer: producer.write("ledger", b"second")),
    "TxnOffsetCommit": (2, lambda producer: producer.send_offset("group", "ledger", 1)),
    "EndTxn(abort)": (2, lambda producer: producer.end(False)),
}


@pytest.mark.parametrize("request_name", HELD_BACK)
def test_a_request_that_meets_the_markers_of_the_transaction_before_waits_for_them(
    stage: Stage, request_name: str
) -> None:
    """librdkafka does not survive an abort that overtakes an AddPartitionsToTxn which it was told to repeat."""
    protocol, asked = HELD_BACK[request_name]
    disk = Disk()
    scene = stage.start(disk=disk, semel_durability="fsync")
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    assert producer.write("ledger", b"first") is E.NONE
    disk.waits = lambda call, path: call == "sync" and "ledger-0" in path
    assert producer.end(True) is E.NONE
    assert disk.waiting.wait(10)
    shell = scene.broker.server.transactions
    with Raw(scene.broker) as other:
        scene.raw, watching = other, scene.raw
        with in_background(lambda: asked(producer)) as answer:
            until(lambda: shell._held, what="the request to be held back")
            described = watching.ask(DescribeTransactionsRequest(transactional_ids=["payments"]))
            assert described.transaction_states[0].transaction_state == "PrepareCommit"
            disk.heal()
            assert answer() is E.NONE
        scene.raw = watching
    assert not shell._held
    assert scene.committed("ledger")[0] == b"first"


def test_a_request_is_not_held_back_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_host, "MOST_HELD_S", 0.05)
    disk = Disk()
    scene = stage.start(disk=disk, semel_durability="fsync")
    scene.raw.create("ledger")
    producer = scene.producer(protocol=1)
    assert producer.write("ledger", b"first") is E.NONE
    disk.waits = lambda call, path: call == "sync" and "ledger-0" in path
    assert producer.end(True) is E.NONE
    assert producer.add("ledger") is E.CONCURRENT_TRANSACTIONS
    assert not scene.broker.server.transactions._held


def test_data_of_a_transaction_is_never_on_disk_before_the_coordinators_record_of_it(stage: Stage) -> None:
    """While the markers of the last transaction become durable the next one waits, also where it is told to."""
    disk = Disk()
    scene = stage.start(disk=disk, semel_durability="fsync")
    scene.raw.create("ledger")
    producer = scene.producer()
    assert producer.write("ledger", b"first") is E.NONE
    disk.waits = lambda call, path: call == "sync" and "ledger-0" in path
    assert producer.end(True) is E.NONE
    assert disk.waiting.wait(10)
    with Raw(scene.broker) as writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_host, "MOST_HELD_S", 0)
        data = producer.batch(b"second", sequence=0)
        answered = threading.Event()

        def produce() -> Any:
            told = writer.produce("ledger", data, transactional_id="payments")
            answered.set()
            return told

        with in_background(produce) as answer:
            assert scene.state() == "PrepareCommit"
            answered.wait(20)  # without the check it would be taken, and wait for the disk
            disk.heal()
            # By the time of the append the coordinator would agree, and its record would not be on disk.
            assert answer().error_code == E.CONCURRENT_TRANSACTIONS
    scene.until_state("CompleteCommit")
    assert scene.uncommitted("ledger") == [b"first"]
    assert producer.write("ledger", b"second") is E.NONE

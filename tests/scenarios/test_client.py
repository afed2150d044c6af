"""Real clients against a real broker that answers as the scenario wants: 35, 36, 37, 47."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import semel
from semel.client.cluster.cluster import Cluster
from semel.errors import ErrorCode, InvariantViolation, Refused
from semel.log.partition_log import PartitionLog
from semel.machines.producing.accumulator import Accumulator
from semel.machines.producing.sender import BatchAnswer, Sender
from semel.machines.transactions.producer import ProducerState, TransactionManager
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.records.batch import Batch
from tests.log.disk import NOW, open_log, read_all
from tests.scenarios.stage import Scene, Stage
from tests.support.waiting import until

E = ErrorCode


def producer(scene: Scene, **settings: object) -> semel.Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return semel.Producer({"bootstrap.servers": scene.broker.bootstrap_servers, **named})


def test_scenario_35_a_transactional_client_never_takes_an_epoch_by_itself() -> None:
    manager = TransactionManager("payments", state=ProducerState.READY, identity=ProducerIdentity(7, 3))
    with pytest.raises(InvariantViolation, match="only the coordinator"):
        manager.bump_epoch()
    assert manager.identity == ProducerIdentity(7, 3)


@pytest.mark.parametrize("refusal", [E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR])
def test_scenarios_36_and_37_when_one_of_five_fails_all_are_repeated_in_order_with_the_same_bytes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, refusal: ErrorCode
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    original = PartitionLog.append
    attempts: dict[int, list[bytes]] = {}
    answers: list[tuple[int, ErrorCode]] = []

    with producer(scene, batch_size=1, linger_ms=0, retry_backoff_ms=5) as sending:
        sending.send("ledger", b"0").result(10)
        in_flight = sending._producer._sender._in_flight

        def append(self: PartitionLog, data: Any, now_ms: int, **options: Any) -> Any:
            found = Batch.parse(data)
            seen = attempts.setdefault(found.base_sequence, [])
            seen.append(bytes(data))
            try:
                if found.base_sequence == 1 and len(seen) == 1:
                    # The broker is slow to refuse the first: the other four are on their way by then.
                    until(lambda: sum(in_flight.values()) == 5, within_s=10, what="five requests in flight")
                    raise Refused(refusal, "the scenario refuses the first of five, once")
                appended = original(self, data, now_ms, **options)
            except Refused as refused:
                answers.append((found.base_sequence, refused.code))
                raise
            answers.append((found.base_sequence, E.NONE))
            return appended

        monkeypatch.setattr(PartitionLog, "append", append)
        identity = sending.identity
        deliveries = [sending.send("ledger", b"%d" % number) for number in range(1, 11)]
        assert [delivery.result(20).offset for delivery in deliveries] == list(range(1, 11))
        assert sending.identity == identity, "nothing was lost, so no epoch is spent"
    assert (1, refusal) in answers
    assert [sequence for sequence, code in answers if code is E.OUT_OF_ORDER_SEQUENCE_NUMBER] == [2, 3, 4, 5]
    assert [sequence for sequence, code in answers if code is E.NONE] == list(range(1, 11))
    assert all(len(set(sent)) == 1 for sent in attempts.values()), "every attempt sends the same bytes"
    assert scene.uncommitted("ledger") == [b"%d" % number for number in range(11)]


@pytest.mark.parametrize("version", [1, 2])
def test_scenario_47_an_empty_transaction_commits_cleanly(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(Cluster, "transaction_version", property(lambda self: version))
    scene = stage.start()
    scene.raw.create("ledger")
    with producer(scene, transactional_id="payments") as sending:
        sending.init_transactions()
        for number in range(3):
            with sending.transaction():
                pass
            with sending.transaction():
                sending.send("ledger", b"%d" % number)
        sending.begin_transaction()
        sending.abort_transaction()
    assert scene.committed("ledger") == [b"0", b"1", b"2"]
    assert scene.ends("ledger") == (6, 6)


def test_scenario_47_an_empty_transaction_of_librdkafka_commits_cleanly(stage: Stage) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    scene = stage.start()
    scene.raw.create("ledger")
    sending = confluent_kafka.Producer(
        {"bootstrap.servers": scene.broker.bootstrap_servers, "transactional.id": "payments"}
    )
    sending.init_transactions(20)
    for _ in range(2):
        sending.begin_transaction()
        sending.commit_transaction(20)
        sending.begin_transaction()
        sending.abort_transaction(20)
    sending.begin_transaction()
    sending.produce("ledger", b"record")
    sending.commit_transaction(20)
    assert scene.committed("ledger") == [b"record"]


def test_a_batch_whose_answers_are_lost_again_and_again_is_written_once(tmp_path: Path) -> None:
    """The broker knows a retry by its last five batches, so no sixth is sent while the first is in doubt."""
    log = open_log(tmp_path)
    manager = TransactionManager(None, state=ProducerState.READY, identity=ProducerIdentity(7, 0))
    sender = Sender(Accumulator(batch_size_bytes=1, linger_ms=0), manager)
    partition = TopicPartition("t", 0)
    for number in range(20):
        sender.accumulator.append(partition, None, b"%d" % number, (), NOW, NOW)
    lost = 0
    for now_ms in range(NOW, NOW + 60_000, 500):
        requests = [request for _ in range(3) for request in sender.poll(now_ms, lambda _: 1)[0]]
        for request in requests:
            (sent,) = request.batches
            try:
                appended = log.append(sent.data or b"", now_ms)
                answer = BatchAnswer(E.NONE, appended.base_offset)
            except Refused:
                # Also for what it wrote and no longer remembers: Apache Kafka does not tell the two apart.
                answer = BatchAnswer(E.OUT_OF_ORDER_SEQUENCE_NUMBER)
            if sent.base_sequence == 1 and lost < 12:
                lost += 1
                sender.on_no_answer(request, E.REQUEST_TIMED_OUT, now_ms)
            else:
                sender.on_answers(request, [answer], now_ms)
        sender.stale_leaders.clear()
    assert not sender.busy and sender.accumulator.is_empty
    assert [record.value for record in read_all(log)] == [b"%d" % number for number in range(20)]
    assert manager.identity == ProducerIdentity(7, 0)

"""`semel.durability=fsync`: nothing is answered or shown before it is on disk, and nothing is left undone meanwhile."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.log.files import Files
from semel.wire.messages.admin import DeleteTopicsRequest
from semel.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from semel.wire.messages.transactions import AddPartitionsToTxnRequest, DescribeTransactionsRequest, EndTxnRequest
from tests.broker.raw import Raw, batch, produce_request
from tests.broker.test_transactions import Transactional, committed, committed_offset
from tests.support.reading import read_all
from tests.support.waiting import until

FSYNC = {"semel.durability": "fsync"}


class SlowDisk(Files):
    """fsync waits until it is let go, that of a partition with a gate until its gate opens, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.let_go.set()
        self.gates: dict[str, threading.Event] = {}
        self.log_syncs = 0

    def sync(self, descriptor: int) -> None:
        if threading.current_thread().name.startswith("semel-fsync"):
            self.log_syncs += 1
            assert self.let_go.wait(30)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            assert all(gate.wait(30) for name, gate in self.gates.items() if f"/{name}-" in path)
        super().sync(descriptor)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    from semel.broker import server

    disk = SlowDisk()
    monkeypatch.setattr(server, "Files", lambda _threads: disk)
    return disk


def test_with_fsync_nothing_is_answered_or_read_before_it_is_on_disk(tmp_path: Path, slow_disk: SlowDisk) -> None:
    with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw, Raw(broker) as retry, Raw(broker) as reader:
        raw.create("t")
        sent = batch(b"once", producer_id=3, producer_epoch=0, base_sequence=0)
        slow_disk.let_go.clear()
        waiting = raw.send(produce_request("t", sent), 12)
        until(lambda: slow_disk.log_syncs == 1, what="the fsync to begin")
        assert reader.values("t") == []
        also_waiting = retry.send(produce_request("t", sent), 12)
        until(lambda: broker.server.metrics.messages_in == 2, what="the retry to be recognised")
        slow_disk.let_go.set()
        for connection, one in ((raw, waiting), (retry, also_waiting)):
            answer = connection.receive(one).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
        assert reader.values("t") == [b"once"]


def test_one_fsync_serves_all_that_wait(tmp_path: Path, slow_disk: SlowDisk) -> None:
    with Broker(tmp_path, settings=FSYNC) as broker:
        writers = [Raw(broker) for _ in range(8)]
        writers[0].create("t")
        slow_disk.let_go.clear()
        first = writers[0].send(produce_request("t", batch(b"first")), 12)
        until(lambda: slow_disk.log_syncs == 1, what="the fsync to begin")
        others = [writer.send(produce_request("t", batch(b"other")), 12) for writer in writers[1:]]
        until(lambda: broker.server.metrics.messages_in == 8, what="the others to be written")
        slow_disk.let_go.set()
        for writer, sent in zip(writers, [first, *others], strict=True):
            assert writer.receive(sent).responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert broker.server.durability.flusher.rounds == 2
        for writer in writers:
            writer.socket.close()


def test_an_fsync_that_fails_is_answered_and_stops_the_partition(tmp_path: Path, slow_disk: SlowDisk) -> None:
    with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.produce("t", batch(b"fine"))

        def failing(descriptor: int) -> None:
            raise OSError(5, "the disk is on fire")

        slow_disk.sync = failing  # type: ignore[method-assign]
        assert raw.produce("t", batch(b"lost")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert raw.produce("t", batch(b"refused")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert raw.values("t") == [b"fine"]
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def open_files() -> list[str]:
    """What this process has open. Somebody may close a file while we look."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


def test_a_stop_is_not_clean_if_what_a_crash_left_was_never_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next start would believe what the system only shows from memory, and a power cut could take it."""
    with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.produce("t", batch(b"kept"))
    (tmp_path / ".kafka_cleanshutdown").unlink()
    in_order = Files.sync

    def fails_for_the_log(files: Files, descriptor: int) -> None:
        if "/t-0/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(5, "the disk is on fire")
        in_order(files, descriptor)

    with monkeypatch.context() as changed:
        changed.setattr(Files, "sync", fails_for_the_log)
        with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw:
            assert raw.produce("t", batch(b"refused")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert not [path for path in open_files() if f"{tmp_path}/t-0/" in path]
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw:
        assert raw.values("t") == [b"kept"]


def end_request(producer: Transactional) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=producer.id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )


def hears_nothing(raw: Raw) -> bool:
    return not select.select([raw.socket], [], [], 0.2)[0]


def state_of(raw: Raw, transactional_id: str) -> str:
    answer = raw.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]))
    return str(answer.transaction_states[0].transaction_state)


def test_a_commit_is_carried_out_although_its_sender_went_away_before_it_was_on_disk(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw:
        raw.create("t")
        with Raw(broker) as hasty:
            producer = Transactional(hasty, "payments")
            assert producer.write("t", b"paid") is ErrorCode.NONE
            slow_disk.let_go.clear()
            before = slow_disk.log_syncs
            hasty.send(end_request(producer), 5)
            until(lambda: slow_disk.log_syncs > before, what="the fsync to begin")
        until(lambda: len(broker.server.connections) == 1, what="the sender to be gone")
        slow_disk.let_go.set()
        until(lambda: committed(raw, "t") == [b"paid"], what="the marker")
        until(lambda: state_of(raw, "payments") == "CompleteCommit", what="the transaction to be complete")


def test_a_topic_that_is_deleted_while_its_marker_waits_for_the_disk_does_not_hold_up_the_transaction(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw, Raw(broker) as other:
        raw.create("short-lived")
        raw.create("busy")
        producer = Transactional(raw, "payments")
        assert producer.write("short-lived", b"paid") is ErrorCode.NONE
        slow_disk.gates = {"__transaction_state": threading.Event(), "busy": threading.Event()}
        before, written = slow_disk.log_syncs, broker.server.metrics.messages_in
        ending = raw.send(end_request(producer), 5)
        until(lambda: slow_disk.log_syncs > before, what="the outcome's fsync to begin")
        other.send(produce_request("busy", batch()), 12)
        until(lambda: broker.server.metrics.messages_in > written, what="the next in line")
        log = broker.server.topics.partition("short-lived", 0).log
        slow_disk.gates["__transaction_state"].set()
        assert raw.receive(ending).error_code == ErrorCode.NONE
        until(lambda: log.end_offset == 2, what="the marker to be written")
        target = DeleteTopicsRequest.DeleteTopicState(name="short-lived")
        assert raw.ask(DeleteTopicsRequest(topics=[target])).responses[0].error_code == ErrorCode.NONE
        slow_disk.gates["busy"].set()
        until(lambda: state_of(raw, "payments") == "CompleteCommit", what="the transaction to be complete")


def test_a_stranger_to_the_coordinator_is_told_so_in_the_answer(tmp_path: Path) -> None:
    with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw:
        raw.create("t")
        data = batch(b"whose?", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        answer = raw.produce("t", data, transactional_id="nobody")
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_retry_is_not_answered_before_the_original_is_on_disk(tmp_path: Path, slow_disk: SlowDisk) -> None:
    """Else a producer would write what nobody ends, should the power fail before the coordinator's record is safe."""
    with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw, Raw(broker) as again:
        raw.create("t")
        producer = Transactional(raw, "payments")
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        slow_disk.let_go.clear()
        before = slow_disk.log_syncs
        waiting = raw.send(request, 3)
        until(lambda: slow_disk.log_syncs > before, what="the fsync to begin")
        also_waiting = again.send(request, 3)
        assert hears_nothing(again)
        slow_disk.let_go.set()
        for connection, sent in ((raw, waiting), (again, also_waiting)):
            (result,) = connection.receive(sent).results_by_topic_v3_and_below
            assert result.results_by_partition[0].partition_error_code == ErrorCode.NONE


def test_a_committed_offset_is_not_shown_before_it_is_on_disk(tmp_path: Path, slow_disk: SlowDisk) -> None:
    with Broker(tmp_path, settings=FSYNC) as broker, Raw(broker) as raw, Raw(broker) as reader:
        raw.create("t")
        partition = OffsetCommitRequest.OffsetCommitRequestPartition
        rows = [
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="t", partitions=[partition(partition_index=0, committed_offset=7, committed_metadata="")]
            )
        ]
        assert committed_offset(reader, "g", "t") == (-1, ErrorCode.NONE)
        slow_disk.let_go.clear()
        before = slow_disk.log_syncs
        waiting = raw.send(OffsetCommitRequest(group_id="g", topics=rows), 8)
        until(lambda: slow_disk.log_syncs > before, what="the fsync to begin")
        asked = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        also_waiting = reader.send(OffsetFetchRequest(group_id="g", topics=[asked]), 7)
        assert hears_nothing(reader)
        slow_disk.let_go.set()
        assert raw.receive(waiting).topics[0].partitions[0].error_code == ErrorCode.NONE
        assert reader.receive(also_waiting).topics[0].partitions[0].committed_offset == 7
        rounds = broker.server.durability.flusher.rounds
        assert committed_offset(reader, "g", "t") == (7, ErrorCode.NONE)
        assert broker.server.durability.flusher.rounds == rounds, "what is on disk is shown at once"


class LazyDisk(Files):
    """A disk that takes its time for an fsync, as a real one under load does."""

    def sync(self, descriptor: int) -> None:
        threading.Event().wait(0.05)
        super().sync(descriptor)


def test_librdkafka_may_abort_at_once_after_a_commit(tmp_path: Path) -> None:
    """Its AddPartitionsToTxn and its abort meet the markers of the commit, which are still on their way to the disk."""
    broker = Broker(tmp_path, settings={"semel.durability": "fsync"})
    broker.server.files = LazyDisk()
    with broker, Raw(broker) as raw:
        raw.create("t", partitions=3)
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "quick", "linger.ms": 0, "log_level": 0}
        )
        producer.init_transactions(20)
        for number in range(15):
            producer.begin_transaction()
            producer.produce("t", b"committed", partition=number % 3)
            producer.commit_transaction(20)
            producer.begin_transaction()
            producer.produce("t", b"aborted", partition=(number + 1) % 3)
            producer.poll(0.005 * (number % 4))
            producer.abort_transaction(20)
        values = [value for index in range(3) for value in read_all(broker.bootstrap_servers, "t", index)]
        assert values == [b"committed"] * 15

"""Transactions through the whole broker: both protocols, the partition's question to the coordinator, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.coordinators.host import CoordinatorHost
from semel.broker.coordinators.marker_sender import MarkerSender
from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.records.batch import split
from semel.records.markers import read_marker
from semel.wire.messages.admin import DeleteTopicsRequest
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from semel.wire.messages.offsets import OffsetFetchRequest
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.broker.raw import Raw, batch, fetch_request, values_of
from tests.support.waiting import until

V1_PRODUCE, V2_PRODUCE = 11, 12


class Transactional:
    """A transactional producer that does one step at a time."""

    def __init__(self, raw: Raw, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.raw = raw
        self.id = transactional_id
        self._sequences: dict[tuple[str, int], int] = {}
        answer = raw.ask(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms))
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def add(self, topic: str, partition: int = 0) -> ErrorCode:
        """V1: the partition is added before it is written to."""
        row = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[partition])
        answer = self.raw.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=[row],
            ),
            3,
        )
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def write(self, topic: str, *values: bytes, version: int = V2_PRODUCE, partition: int = 0) -> ErrorCode:
        sequence = self._sequences.get((topic, partition), 0)
        data = batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        answer = self.raw.produce(topic, data, transactional_id=self.id, version=version, partition=partition)
        if answer.error_code == ErrorCode.NONE:
            self._sequences[topic, partition] = sequence + len(values)
        return ErrorCode(answer.error_code)

    def end(self, commit: bool, version: int = 5) -> ErrorCode:
        answer = self.raw.ask(
            EndTxnRequest(
                transactional_id=self.id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                committed=commit,
            ),
            version,
        )
        if version >= 5 and answer.error_code == ErrorCode.NONE:
            self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        return ErrorCode(answer.error_code)

    def commit_offset(self, group: str, topic: str, offset: int, version: int = 5) -> ErrorCode:
        row = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        answer = self.raw.ask(
            TxnOffsetCommitRequest(
                transactional_id=self.id,
                group_id=group,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[row])],
            ),
            version,
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)


def committed(raw: Raw, topic: str, partition: int = 0) -> list[bytes | None]:
    """What a reader of committed records gets, filtered as a client filters."""
    data = raw.fetch(topic, isolation_level=1, max_wait_ms=0, partition=partition)
    aborted = [(row.first_offset, row.producer_id) for row in data.aborted_transactions or ()]
    aborting: set[int] = set()
    seen: list[bytes | None] = []
    for stored in split(data.records or b""):
        aborting |= {producer for first, producer in aborted if first <= stored.base_offset}
        aborted = [(first, producer) for first, producer in aborted if first > stored.base_offset]
        if stored.is_control:
            if not read_marker(stored).commit:
                aborting.discard(stored.producer_id)
        elif not (stored.is_transactional and stored.producer_id in aborting):
            data_part = type(data)(records=stored.data)
            seen += values_of(data_part)
    return seen


def last_stable_offset(raw: Raw, topic: str) -> int:
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    asked = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])],
    )
    return int(raw.ask(asked).topics[0].partitions[0].offset)


def committed_offset(raw: Raw, group: str, topic: str, *, require_stable: bool = False) -> tuple[int, ErrorCode]:
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=group,
        topics=[OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])],
    )
    row = raw.ask(OffsetFetchRequest(groups=[asked], require_stable=require_stable), 9).groups[0].topics[0]
    return row.partitions[0].committed_offset, ErrorCode(row.partitions[0].error_code)


@pytest.fixture
def other(broker: Broker) -> Iterator[Raw]:
    with Raw(broker) as connection:
        yield connection


def test_v2_committed_records_are_seen_and_aborted_ones_are_not(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    first_epoch = producer.producer_epoch
    assert producer.write(topic, b"kept") is ErrorCode.NONE
    assert producer.end(commit=True) is ErrorCode.NONE
    assert producer.producer_epoch == first_epoch + 1
    assert producer.write(topic, b"dropped") is ErrorCode.NONE
    assert producer.end(commit=False) is ErrorCode.NONE
    assert committed(raw, topic) == [b"kept"]
    assert raw.values(topic) == [b"kept", b"dropped"]


def test_v1_partitions_are_added_first_and_the_epoch_stays(raw: Raw, topic: str) -> None:
    raw.create(topic, partitions=2)
    producer = Transactional(raw, topic)
    for partition in (0, 1):
        assert producer.add(topic, partition) is ErrorCode.NONE
        assert producer.write(topic, b"both", version=V1_PRODUCE, partition=partition) is ErrorCode.NONE
    assert committed(raw, topic) == []
    assert producer.end(commit=True, version=3) is ErrorCode.NONE
    assert [committed(raw, topic, partition) for partition in (0, 1)] == [[b"both"], [b"both"]]


def test_v1_a_write_to_a_partition_that_was_not_added_is_refused(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    assert producer.write(topic, b"sneaky", version=V1_PRODUCE) is ErrorCode.TRANSACTION_ABORTABLE
    assert raw.values(topic) == []


@pytest.mark.parametrize(("newest", "code"), [(10, "INVALID_TXN_STATE"), (11, "TRANSACTION_ABORTABLE")])
def test_a_writer_that_knows_the_word_is_told_to_abort(raw: Raw, topic: str, newest: int, code: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    assert producer.write(topic, b"lost", version=newest).name == code
    assert producer.commit_offset("g-" + topic, topic, 1, version=newest - 7).name == code


@pytest.mark.parametrize("version", [3, 4, 5])
def test_offsets_without_a_group_are_refused_before_the_transaction_is_looked_at(
    raw: Raw, topic: str, version: int
) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    assert producer.commit_offset("", topic, 1, version=version) is ErrorCode.INVALID_GROUP_ID
    assert producer.end(commit=True) is ErrorCode.INVALID_TXN_STATE, "the transaction has not begun"


def test_a_write_while_the_last_outcome_is_being_written_is_told_to_come_again(
    raw: Raw, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    assert producer.write(topic, b"decided") is ErrorCode.NONE
    monkeypatch.setattr(MarkerSender, "perform", lambda *_: None)
    assert producer.end(commit=True) is ErrorCode.NONE
    assert producer.write(topic, b"next") is ErrorCode.CONCURRENT_TRANSACTIONS
    # A producer of the older protocol would take that for a failure of its batch.
    assert producer.write(topic, b"next", version=V1_PRODUCE) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_v1_a_late_write_after_the_commit_opens_no_hanging_transaction(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    producer.add(topic)
    producer.write(topic, b"in time", version=V1_PRODUCE)
    assert producer.end(commit=True, version=3) is ErrorCode.NONE
    assert producer.write(topic, b"late", version=V1_PRODUCE) is not ErrorCode.NONE
    assert last_stable_offset(raw, topic) == 2
    assert committed(raw, topic) == [b"in time"]


def test_v1_a_late_copy_of_an_earlier_write_does_not_keep_the_next_transaction_out(raw: Raw, topic: str) -> None:
    """After a cut the network still delivers what a client has sent on a connection that it gave up."""
    raw.create(topic)
    producer = Transactional(raw, topic)
    producer.add(topic)
    producer.write(topic, b"first", version=V1_PRODUCE)
    producer.end(commit=True, version=3)
    data = batch(b"first", producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True)
    late = raw.produce(topic, data, transactional_id=topic, version=V1_PRODUCE)
    assert late.error_code == ErrorCode.TRANSACTION_ABORTABLE, "the partition is not in a transaction now"
    producer.add(topic)
    assert producer.write(topic, b"second", version=V1_PRODUCE) is ErrorCode.NONE
    producer.end(commit=True, version=3)
    assert committed(raw, topic) == [b"first", b"second"]


def test_v2_a_late_write_with_the_old_epoch_is_fenced(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    old_epoch = producer.producer_epoch
    producer.write(topic, b"in time")
    producer.end(commit=True)
    late = batch(
        b"late",
        producer_id=producer.producer_id,
        producer_epoch=old_epoch,
        base_sequence=1,
        transactional=True,
    )
    answer = raw.produce(topic, late, transactional_id=producer.id)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert last_stable_offset(raw, topic) == 2


def test_a_zombie_cannot_commit_what_its_successor_aborted(raw: Raw, other: Raw, topic: str) -> None:
    raw.create(topic)
    zombie = Transactional(raw, topic)
    zombie.write(topic, b"paid twice")
    successor = start_again(other, topic)
    assert zombie.end(commit=True) is not ErrorCode.NONE
    assert zombie.write(topic, b"and again") is not ErrorCode.NONE
    successor.write(topic, b"paid once")
    assert successor.end(commit=True) is ErrorCode.NONE
    assert committed(raw, topic) == [b"paid once"]


@pytest.mark.parametrize("version", [V1_PRODUCE, V2_PRODUCE])
def test_what_a_fenced_producer_writes_does_not_disturb_its_successor(
    broker: Broker, raw: Raw, other: Raw, topic: str, version: int
) -> None:
    """The fenced one may be a process that was replaced; or the same one, by a request of its last transaction that the
    network held up."""
    raw.create(topic)
    zombie = Transactional(raw, topic)
    successor = start_again(other, topic)
    assert successor.write(topic, b"first") is ErrorCode.NONE
    assert zombie.write(topic, b"too late", version=version) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert successor.write(topic, b"second") is ErrorCode.NONE
    assert successor.end(commit=True) is ErrorCode.NONE
    assert committed(raw, topic) == [b"first", b"second"]


def test_an_identity_that_somebody_makes_up_does_not_disturb_its_owner_and_costs_nothing(
    broker: Broker, raw: Raw, other: Raw, topic: str
) -> None:
    raw.create(topic)
    owner = Transactional(raw, topic)
    assert owner.write(topic, b"first") is ErrorCode.NONE
    for producer_id, epoch in ((owner.producer_id, 32_767), (owner.producer_id + 1000, 0)):
        made_up = batch(b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
        assert other.produce(topic, made_up, transactional_id="another").error_code != ErrorCode.NONE
    assert not broker.server.topics.partition(topic, 0).log.producers.verifications
    assert owner.write(topic, b"second") is ErrorCode.NONE


def start_again(raw: Raw, transactional_id: str) -> Transactional:
    """Initialize until what the last owner left is settled, as clients do."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    until(
        lambda: raw.ask(request).error_code != ErrorCode.CONCURRENT_TRANSACTIONS,
        what="the last owner's transaction to be settled",
    )
    return Transactional(raw, transactional_id)


def test_a_transactional_batch_needs_a_transactional_id(raw: Raw, topic: str) -> None:
    raw.create(topic)
    data = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    assert raw.produce(topic, data).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_foreign_producer_id_cannot_write_under_a_transactional_id(raw: Raw, topic: str) -> None:
    raw.create(topic)
    Transactional(raw, topic)
    data = batch(b"x", producer_id=424242, producer_epoch=0, base_sequence=0, transactional=True)
    answer = raw.produce(topic, data, transactional_id=topic)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert raw.values(topic) == []


def test_the_last_stable_offset_waits_for_the_oldest_open_transaction(raw: Raw, topic: str) -> None:
    raw.create(topic)
    slow, quick = Transactional(raw, topic + "-slow"), Transactional(raw, topic + "-quick")
    slow.write(topic, b"slow")
    quick.write(topic, b"quick")
    quick.end(commit=True)
    assert last_stable_offset(raw, topic) == 0
    assert committed(raw, topic) == []
    slow.end(commit=False)
    assert committed(raw, topic) == [b"quick"]


def test_a_waiting_reader_of_committed_records_is_woken_by_the_marker(raw: Raw, other: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    producer.write(topic, b"dropped")
    waiting = other.send(fetch_request({(topic, 0): 0}, max_wait_ms=8000, isolation_level=1), 12)
    producer.end(commit=False)
    data = other.receive(waiting).responses[0].partitions[0]
    assert [row.producer_id for row in data.aborted_transactions] == [producer.producer_id]
    assert [stored.is_control for stored in split(data.records)] == [False, True]


def test_a_request_right_behind_the_commit_finds_the_transaction_complete(raw: Raw, topic: str) -> None:
    """The commit is answered before its markers are written, and still nobody can come between the two."""
    raw.create(topic)
    producer = Transactional(raw, "pipelined")
    assert producer.write(topic, b"one") == ErrorCode.NONE
    end = EndTxnRequest(
        transactional_id=producer.id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    stable = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])],
    )
    ended, described, listed = raw.send_together(
        (end, 5), (DescribeTransactionsRequest(transactional_ids=[producer.id]), 0), (stable, 9)
    )
    assert raw.receive(ended).error_code == ErrorCode.NONE
    assert raw.receive(described).transaction_states[0].transaction_state == "CompleteCommit"
    assert raw.receive(listed).topics[0].partitions[0].offset == 2


def test_offsets_in_a_transaction_count_when_it_commits_and_not_before(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    assert producer.commit_offset("g-" + topic, topic, 42) is ErrorCode.NONE
    assert committed_offset(raw, "g-" + topic, topic)[0] == -1
    assert committed_offset(raw, "g-" + topic, topic, require_stable=True)[1] is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert producer.end(commit=True) is ErrorCode.NONE
    assert committed_offset(raw, "g-" + topic, topic, require_stable=True) == (42, ErrorCode.NONE)


def test_offsets_of_an_aborted_transaction_never_count(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    producer.commit_offset("g-" + topic, topic, 42)
    producer.end(commit=False)
    assert committed_offset(raw, "g-" + topic, topic, require_stable=True) == (-1, ErrorCode.NONE)


def test_v1_offsets_are_refused_unless_the_group_was_added(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    assert producer.commit_offset("g-" + topic, topic, 1, version=3) is ErrorCode.INVALID_TXN_STATE
    added = raw.ask(
        AddOffsetsToTxnRequest(
            transactional_id=producer.id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id="g-" + topic,
        ),
        3,
    )
    assert added.error_code == ErrorCode.NONE
    assert producer.commit_offset("g-" + topic, topic, 1, version=3) is ErrorCode.NONE
    assert producer.end(commit=True, version=3) is ErrorCode.NONE
    assert committed_offset(raw, "g-" + topic, topic) == (1, ErrorCode.NONE)


def test_adding_a_partition_that_is_not_there_keeps_the_others_out(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    row = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    answer = raw.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[row(name=topic, partitions=[0]), row(name="nowhere", partitions=[0])],
        ),
        3,
    )
    codes = [one.results_by_partition[0].partition_error_code for one in answer.results_by_topic_v3_and_below]
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("internal", ["__transaction_state", "__consumer_offsets"])
def test_a_client_cannot_add_the_brokers_own_topics(raw: Raw, topic: str, internal: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    assert producer.add(internal) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert producer.end(commit=True, version=3) is ErrorCode.INVALID_TXN_STATE, "the transaction has not begun"


@pytest.mark.parametrize(
    ("name", "partition", "code"),
    [
        (None, -5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__transaction_state", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_the_brokers_version_of_the_request_adds_no_partition_that_is_not_there(
    raw: Raw, topic: str, name: str | None, partition: int, code: ErrorCode
) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    row = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=producer.id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[row(name=topic, partitions=[0]), row(name=name or topic, partitions=[partition])],
    )
    results = raw.ask(AddPartitionsToTxnRequest(transactions=[transaction]), 5).results_by_transaction
    told = {
        (of.name, one.partition_index): one.partition_error_code
        for of in results[0].topic_results
        for one in of.results_by_partition
    }
    assert told == {(topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED, (name or topic, partition): code}
    # The id is as it was, and can be used.
    assert producer.write(topic, b"kept") is ErrorCode.NONE
    assert producer.end(commit=True) is ErrorCode.NONE
    assert committed(raw, topic) == [b"kept"]


@pytest.mark.parametrize("transactional_id", [None, "payments"])
@pytest.mark.parametrize("half", [{"producer_id": 7}, {"producer_epoch": 7}])
def test_half_an_identity_is_no_request_for_a_new_one(
    raw: Raw, transactional_id: str | None, half: dict[str, Any]
) -> None:
    asked = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=0, **half)
    answer = raw.ask(asked, 5)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.INVALID_REQUEST, -1, -1)


def test_a_transaction_completes_though_its_topic_was_deleted(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.create(topic + "-doomed")
    producer = Transactional(raw, topic)
    producer.write(topic, b"kept")
    producer.write(topic + "-doomed", b"gone")
    raw.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=topic + "-doomed")]), 6)
    assert producer.end(commit=True) is ErrorCode.NONE
    assert producer.write(topic, b"next") is ErrorCode.NONE
    assert producer.end(commit=True) is ErrorCode.NONE
    assert committed(raw, topic) == [b"kept", b"next"]


def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic, timeout_ms=200)
    producer.write(topic, b"too slow")
    until(lambda: last_stable_offset(raw, topic) == 2, what="the broker to abort", within_s=10)
    assert committed(raw, topic) == []
    assert producer.write(topic, b"late") is not ErrorCode.NONE
    assert producer.end(commit=True) is not ErrorCode.NONE


def test_transactions_can_be_listed_and_described(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    producer.write(topic, b"open")
    listed = raw.ask(ListTransactionsRequest(state_filters=["Ongoing"])).transaction_states
    assert topic in [row.transactional_id for row in listed]
    described = raw.ask(DescribeTransactionsRequest(transactional_ids=[topic])).transaction_states[0]
    assert described.transaction_state == "Ongoing"
    assert [(row.topic, row.partitions) for row in described.topics] == [(topic, [0])]
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
    seen = raw.ask(DescribeProducersRequest(topics=[asked])).topics[0].partitions[0].active_producers
    assert [(row.producer_id, row.current_txn_start_offset) for row in seen] == [(producer.producer_id, 0)]
    producer.end(commit=True)


def test_an_administrator_can_end_a_hanging_transaction(raw: Raw, topic: str) -> None:
    raw.create(topic)
    producer = Transactional(raw, topic)
    producer.write(topic, b"hanging")
    answer = raw.ask(WriteTxnMarkersRequest(markers=[abort_marker(producer, topic)]), 1)
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
    assert last_stable_offset(raw, topic) == 2


def abort_marker(producer: Transactional, topic: str) -> WriteTxnMarkersRequest.WritableTxnMarker:
    """What an administrator sends to end a hanging transaction in one partition."""
    return WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        coordinator_epoch=0,
    )


# Restarts


def running(data: Path, **settings: Any) -> Broker:
    return Broker(data, settings={name.replace("_", "."): value for name, value in settings.items()})


def test_an_open_transaction_survives_a_restart_and_can_commit(tmp_path: Path, topic: str) -> None:
    with running(tmp_path) as broker, Raw(broker) as raw:
        raw.create(topic)
        producer = Transactional(raw, topic)
        producer.write(topic, b"before")
    with running(tmp_path) as broker, Raw(broker) as raw:
        producer.raw = raw
        assert last_stable_offset(raw, topic) == 0
        assert producer.write(topic, b"after") is ErrorCode.NONE
        assert producer.end(commit=True) is ErrorCode.NONE
        assert committed(raw, topic) == [b"before", b"after"]


def test_an_administrator_cannot_tear_a_transaction_that_is_not_loaded_yet(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{topic}-other"
    with running(tmp_path) as broker, Raw(broker) as raw:
        raw.create(topic)
        raw.create(other)
        producer = Transactional(raw, topic)
        producer.write(topic, b"here")
        producer.write(other, b"there")

    async def later(host: CoordinatorHost) -> None:
        """A start that has not come to this coordinator yet."""

    monkeypatch.setattr(CoordinatorHost, "load_stored", later)
    with running(tmp_path) as broker, Raw(broker) as raw:
        answer = raw.ask(WriteTxnMarkersRequest(markers=[abort_marker(producer, topic)]), 1)
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
        assert last_stable_offset(raw, topic) == 2
        assert last_stable_offset(raw, other) == 2, "its producer could commit this half"


def test_committed_offsets_and_fencing_survive_a_restart(tmp_path: Path, topic: str) -> None:
    with running(tmp_path) as broker, Raw(broker) as raw:
        raw.create(topic)
        old = Transactional(raw, topic)
        new = Transactional(raw, topic)
        new.commit_offset("g", topic, 7)
        new.end(commit=True)
        new.commit_offset("g", topic, 8)
    with running(tmp_path) as broker, Raw(broker) as raw:
        old.raw = new.raw = raw
        assert committed_offset(raw, "g", topic) == (7, ErrorCode.NONE)
        assert old.write(topic, b"zombie") is not ErrorCode.NONE
        assert new.end(commit=True) is ErrorCode.NONE
        assert committed_offset(raw, "g", topic) == (8, ErrorCode.NONE)


def test_an_open_transaction_times_out_after_a_restart_too(tmp_path: Path, topic: str) -> None:
    with running(tmp_path) as broker, Raw(broker) as raw:
        raw.create(topic)
        Transactional(raw, topic, timeout_ms=300).write(topic, b"left behind")
    with running(tmp_path) as broker, Raw(broker) as raw:
        until(lambda: last_stable_offset(raw, topic) == 2, what="the abort after the restart", within_s=10)


@pytest.mark.semel(**{"transaction.partition.verification.enable": False})
def test_without_verification_v1_writes_are_taken_on_trust(semel_broker: Broker, topic: str) -> None:
    with Raw(semel_broker) as raw:
        raw.create(topic)
        producer = Transactional(raw, topic)
        assert producer.write(topic, b"trusted", version=V1_PRODUCE) is ErrorCode.NONE


@pytest.mark.parametrize("enabled", [False, True])
def test_two_phase_commit_is_served_only_when_it_is_switched_on(tmp_path: Path, topic: str, enabled: bool) -> None:
    with running(tmp_path, transaction_two_phase_commit_enable=enabled) as broker, Raw(broker) as raw:
        request = InitProducerIdRequest(transactional_id=topic, transaction_timeout_ms=0, enable2_pc=True)
        if not enabled:
            raw.send(request, 6)
            assert raw.is_closed()
            return
        assert raw.ask(request, 6).error_code == ErrorCode.NONE


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_broker_that_has_no_transactions_and_groups_yet_says_so(tmp_path: Path, durability: str) -> None:
    with running(tmp_path, semel_durability=durability) as broker, Raw(broker) as raw:
        identity = raw.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 5)
        assert (identity.error_code, identity.producer_epoch) == (ErrorCode.NONE, 0)
        assert raw.ask(ListTransactionsRequest()).transaction_states == []
        assert raw.ask(DescribeTransactionsRequest(transactional_ids=[])).transaction_states == []
        assert raw.ask(ListGroupsRequest()).groups == []
        assert raw.ask(DescribeGroupsRequest(groups=[])).groups == []
        assert not broker.server.topics.topics, "nothing was made for that"


@pytest.mark.parametrize("version", [V1_PRODUCE, V2_PRODUCE])
def test_a_writer_that_was_replaced_adds_nothing_to_the_transaction_that_was_kept(
    tmp_path: Path, topic: str, version: int
) -> None:
    with running(tmp_path, transaction_two_phase_commit_enable=True) as broker, Raw(broker) as raw:
        raw.create(topic)
        replaced = Transactional(raw, topic)
        assert replaced.write(topic, b"prepared") is ErrorCode.NONE
        assert replaced.commit_offset("g", topic, 1) is ErrorCode.NONE
        request = InitProducerIdRequest(transactional_id=topic, transaction_timeout_ms=1000, keep_prepared_txn=True)
        successor = raw.ask(request, 6)
        assert successor.error_code == ErrorCode.NONE
        assert replaced.write(topic, b"too late", version=version) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert replaced.commit_offset("g", topic, 2, version=version - 7) is ErrorCode.INVALID_PRODUCER_EPOCH
        replaced.producer_id, replaced.producer_epoch = successor.producer_id, successor.producer_epoch
        assert replaced.end(commit=True) is ErrorCode.NONE
        assert committed(raw, topic) == [b"prepared"]
        assert committed_offset(raw, "g", topic) == (1, ErrorCode.NONE)


def test_with_fsync_the_coordinators_record_is_on_disk_before_the_data_is_written(tmp_path: Path, topic: str) -> None:
    with running(tmp_path, semel_durability="fsync") as broker, Raw(broker) as raw:
        raw.create(topic)
        producer = Transactional(raw, topic)
        server = broker.server
        state = server.topics.partition("__transaction_state", server.transactions.coordinator.partition_for(topic)).log
        data = server.topics.partition(topic, 0).log
        append, unflushed = data.append, []

        def watched(*arguments: Any, **options: Any) -> Any:
            unflushed.append(state.end_offset - state.flusher.recovery_point)
            return append(*arguments, **options)

        data.append = watched  # type: ignore[method-assign]
        assert producer.write(topic, b"kept") is ErrorCode.NONE
        assert producer.commit_offset("g", topic, 1) is ErrorCode.NONE
        assert producer.end(commit=True) is ErrorCode.NONE
        until(lambda: committed(raw, topic) == [b"kept"], what="the marker")
        assert committed_offset(raw, "g", topic)[0] == 1
        assert unflushed == [0]

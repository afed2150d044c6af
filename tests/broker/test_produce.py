"""Produce as clients meet it on the wire."""

from __future__ import annotations

import uuid

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.machines.transactions.metadata import TransactionMetadata
from semel.machines.transactions.records import key_of, value_of
from semel.machines.transactions.states import TransactionState
from semel.records.batch import build
from semel.wire import encode_versioned
from semel.wire.messages.coordinator_records import OffsetCommitKey, OffsetCommitValue
from semel.wire.messages.offsets import OffsetFetchRequest
from semel.wire.messages.produce import ProduceRequest
from semel.wire.messages.transactions import ListTransactionsRequest
from tests.broker.raw import Raw, batch, now_ms, produce_request, stored_batches, values_of


def test_a_batch_gets_the_next_offsets_and_is_read_back(raw: Raw, topic: str) -> None:
    raw.create(topic)
    assert raw.produce(topic, batch(b"a", b"b")).base_offset == 0
    assert raw.produce(topic, batch(b"c")).base_offset == 2
    assert raw.values(topic) == [b"a", b"b", b"c"]


def test_a_retried_batch_is_answered_with_its_first_offset_and_stored_once(raw: Raw, topic: str) -> None:
    raw.create(topic)
    sent = batch(b"once", producer_id=7001, producer_epoch=0, base_sequence=0)
    assert raw.produce(topic, sent).base_offset == 0
    raw.produce(topic, batch(b"other"))
    again = raw.produce(topic, sent)
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
    assert raw.values(topic) == [b"once", b"other"]


def test_a_gap_in_the_sequence_is_refused(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch(b"0", producer_id=7002, producer_epoch=0, base_sequence=0))
    gap = raw.produce(topic, batch(b"2", producer_id=7002, producer_epoch=0, base_sequence=2))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert raw.values(topic) == [b"0"]


def test_an_older_epoch_is_fenced(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch(b"new", producer_id=7003, producer_epoch=5, base_sequence=0))
    old = raw.produce(topic, batch(b"old", producer_id=7003, producer_epoch=4, base_sequence=0))
    assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("acks", [2, -2, 17])
def test_only_the_three_kinds_of_acks_are_known(raw: Raw, topic: str, acks: int) -> None:
    raw.create(topic)
    assert raw.produce(topic, batch(), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert raw.values(topic) == []


def test_acks_0_is_not_answered_and_the_next_request_is(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.send(produce_request(topic, batch(b"quiet"), acks=0), 12)
    assert raw.values(topic) == [b"quiet"]


def test_an_error_with_acks_0_closes_the_connection(broker: Broker) -> None:
    with Raw(broker) as connection:
        connection.send(produce_request("no-such-topic", batch(), acks=0), 12)
        assert connection.is_closed()


def test_a_batch_over_the_limit_is_refused_and_the_limit_can_be_changed(raw: Raw, topic: str) -> None:
    raw.create(topic, max_message_bytes="200")
    assert raw.produce(topic, batch(b"x" * 300)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert raw.produce(topic, batch(b"x")).error_code == ErrorCode.NONE


def test_unknown_topics_and_partitions_are_told_apart_from_unknown_ids(raw: Raw, topic: str) -> None:
    raw.create(topic)
    assert raw.produce("nowhere", batch()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.produce(topic, batch(), partition=5).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = produce_request("", batch())
    request.topic_data[0].topic_id = uuid.uuid4()
    assert raw.ask(request, 13).responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_may_be_named_by_its_id(raw: Raw, topic: str) -> None:
    topic_id = raw.create(topic)
    request = produce_request("", batch(b"by id"))
    request.topic_data[0].topic_id = topic_id
    answer = raw.ask(request, 13).responses[0]
    assert answer.topic_id == topic_id
    assert answer.partition_responses[0].error_code == ErrorCode.NONE
    assert raw.values(topic) == [b"by id"]


def test_log_append_time_is_the_brokers_clock(raw: Raw, topic: str) -> None:
    raw.create(topic, message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = raw.produce(topic, batch(b"late", timestamp_ms=1))
    assert answer.log_append_time_ms >= before
    stored = stored_batches(raw.fetch(topic))[0]
    assert stored.max_timestamp == answer.log_append_time_ms
    assert stored.timestamp_type == 1


def test_timestamps_too_far_from_the_brokers_clock_are_refused(raw: Raw, topic: str) -> None:
    raw.create(topic, message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000")
    assert raw.produce(topic, batch(timestamp_ms=now_ms() - 120_000)).error_code == ErrorCode.INVALID_TIMESTAMP
    assert raw.produce(topic, batch(timestamp_ms=now_ms() + 120_000)).error_code == ErrorCode.INVALID_TIMESTAMP
    assert raw.produce(topic, batch(timestamp_ms=now_ms())).error_code == ErrorCode.NONE


def test_a_compacted_topic_wants_keys(raw: Raw, topic: str) -> None:
    raw.create(topic, cleanup_policy="compact")
    assert raw.produce(topic, batch(b"no key")).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [0, 1])
def test_a_refused_batch_names_the_records_it_was_refused_for(raw: Raw, topic: str, codec: int) -> None:
    raw.create(topic, cleanup_policy="compact")
    mixed = build([(b"k", b"0"), (None, b"1"), (b"k", b"2"), (None, b"3")], codec=codec, timestamp_ms=now_ms())
    answer = raw.produce(topic, mixed)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [row.batch_index for row in answer.record_errors] == [1, 3]
    assert all(row.batch_index_error_message for row in answer.record_errors)


def test_timestamps_far_off_are_named_record_by_record(raw: Raw, topic: str) -> None:
    raw.create(topic, message_timestamp_after_max_ms="60000")
    answer = raw.produce(topic, batch(b"0", b"1", timestamp_ms=now_ms() + 120_000))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [row.batch_index for row in answer.record_errors] == [0, 1]
    assert raw.produce(topic, batch(b"keyed", key=b"k")).error_code == ErrorCode.NONE


def test_more_replicas_in_sync_than_brokers_refuses_acks_all_only(raw: Raw, topic: str) -> None:
    raw.create(topic, min_insync_replicas="2")
    assert raw.produce(topic, batch()).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert raw.produce(topic, batch(), acks=1).error_code == ErrorCode.NONE


@pytest.mark.parametrize("name", ["__transaction_state", "__consumer_offsets"])
def test_clients_cannot_write_into_the_brokers_own_topics(broker: Broker, raw: Raw, name: str) -> None:
    raw.topic_id(name)
    assert raw.produce(name, batch(key=b"k")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    with Raw(broker, client_id="__admin_client") as tool:
        assert tool.produce(name, batch(key=b"k")).error_code == ErrorCode.INVALID_RECORD


OFFSET_KEY = encode_versioned(OffsetCommitKey(group="repaired", topic="t"))
OFFSET = encode_versioned(OffsetCommitValue(offset=7))


def transaction_value(state: TransactionState) -> bytes:
    return value_of(TransactionMetadata("repaired", 4711, 3, 1000, state, last_update_ms=1))


@pytest.mark.parametrize(
    ("topic", "key", "value", "readable"),
    [
        ("__consumer_offsets", OFFSET_KEY, OFFSET, True),
        ("__consumer_offsets", OFFSET_KEY, b"", False),
        ("__consumer_offsets", OFFSET_KEY[:-1], OFFSET, False),
        ("__consumer_offsets", b"x", OFFSET, False),
        ("__consumer_offsets", b"\x00\x63key", OFFSET, False),
        ("__transaction_state", key_of("repaired"), transaction_value(TransactionState.COMPLETE_ABORT), True),
        ("__transaction_state", key_of("repaired"), transaction_value(TransactionState.PREPARE_COMMIT), False),
        ("__transaction_state", key_of("repaired"), transaction_value(TransactionState.ONGOING), False),
        ("__transaction_state", key_of("repaired"), b"\0\1short", False),
        ("__transaction_state", b"\0\7key", transaction_value(TransactionState.EMPTY), False),
        ("__transaction_state", b"", transaction_value(TransactionState.EMPTY), False),
    ],
)
def test_a_tool_writes_into_an_internal_topic_only_what_its_coordinator_can_read(
    semel_broker: Broker, topic: str, key: bytes, value: bytes, readable: bool
) -> None:
    with Raw(semel_broker, client_id="__admin_client") as tool:
        tool.create("t")
        for name in ("__consumer_offsets", "__transaction_state"):
            semel_broker.call(_internal(semel_broker, name))
        server = semel_broker.server
        machine = server.groups.coordinator if topic == "__consumer_offsets" else server.transactions.coordinator
        index = machine.partition_for("repaired")
        elsewhere = tool.produce(topic, batch(value, key=key), partition=(index + 1) % 50)
        answer = tool.produce(topic, batch(value, key=key), partition=index)
        assert elsewhere.error_code == ErrorCode.INVALID_RECORD
        assert answer.error_code == (ErrorCode.NONE if readable else ErrorCode.INVALID_RECORD)
        assert bool(answer.error_message) is not readable
        if not readable:
            return
        # The coordinator knows now what it would know after a restart.
        if topic == "__consumer_offsets":
            groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id="repaired", topics=None)]
            fetched = tool.ask(OffsetFetchRequest(groups=groups), 9).groups[0]
            assert fetched.topics[0].partitions[0].committed_offset == 7
        else:
            listed = tool.ask(ListTransactionsRequest()).transaction_states
            assert [(one.transactional_id, one.transaction_state) for one in listed] == [("repaired", "CompleteAbort")]


async def _internal(broker: Broker, name: str) -> None:
    broker.server.internal_topics.get(name)


def test_a_transactional_batch_from_a_tool_does_not_reach_an_internal_topic(broker: Broker) -> None:
    with Raw(broker, client_id="__admin_client") as tool:
        tool.topic_id("__consumer_offsets")
        data = batch(
            OFFSET, key=OFFSET_KEY, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
        )
        index = broker.server.groups.coordinator.partition_for("repaired")
        answer = tool.produce("__consumer_offsets", data, partition=index, transactional_id="x")
        assert answer.error_code == ErrorCode.INVALID_RECORD


def test_damaged_two_and_no_batches_are_refused_whole(raw: Raw, topic: str) -> None:
    raw.create(topic)
    good = batch(b"good")
    flipped = bytearray(good)
    flipped[-1] ^= 1
    assert raw.produce(topic, bytes(flipped)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert raw.produce(topic, good + good).error_code == ErrorCode.INVALID_RECORD
    assert raw.produce(topic, b"").error_code == ErrorCode.INVALID_RECORD
    assert raw.produce(topic, good[:40]).error_code != ErrorCode.NONE
    assert raw.ask(produce_request(topic, None), 12).responses[0].partition_responses[0].error_code != ErrorCode.NONE
    assert raw.values(topic) == []


def test_a_control_batch_from_a_client_is_refused(raw: Raw, topic: str) -> None:
    raw.create(topic)
    forged = batch(b"\0\0\0\0\0\0", key=b"\0\0\0\1", control=True, transactional=True, producer_id=1, producer_epoch=0)
    assert raw.produce(topic, forged, transactional_id="forger").error_code != ErrorCode.NONE
    assert stored_batches(raw.fetch(topic, max_wait_ms=0)) == []


def test_a_refused_partition_does_not_keep_the_others_from_being_written(raw: Raw, topic: str) -> None:
    raw.create(topic, partitions=2)
    part = ProduceRequest.PartitionProduceData
    request = produce_request(topic, batch(b"fine"))
    request.topic_data[0].partition_data += [part(index=9, records=batch()), part(index=1, records=batch(b"too"))]
    codes = [row.error_code for row in raw.ask(request, 12).responses[0].partition_responses]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert values_of(raw.fetch(topic)) == [b"fine"]
    assert values_of(raw.fetch(topic, partition=1)) == [b"too"]


def test_five_requests_in_flight_are_answered_in_order(raw: Raw, topic: str) -> None:
    raw.create(topic)
    sent = [
        raw.send(produce_request(topic, batch(b"%d" % n, producer_id=7004, producer_epoch=0, base_sequence=n)), 12)
        for n in range(5)
    ]
    offsets = [raw.receive(one).responses[0].partition_responses[0].base_offset for one in sent]
    assert offsets == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_by_name_is_served(raw: Raw, topic: str, version: int) -> None:
    raw.create(topic)
    answer = raw.produce(topic, batch(b"v"), version=version)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)

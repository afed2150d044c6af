"""Records of `__transaction_state`, held against bytes that Apache Kafka 4.3.1 wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.machines.internal_topics import java_hash, partition_for
from semel.machines.transactions.metadata import TransactionMetadata
from semel.machines.transactions.records import (
    VALUE_VERSION,
    by_topic,
    key_of,
    metadata_of,
    record_of,
    tombstone_of,
    transactional_id_of,
    value_of,
)
from semel.machines.transactions.states import TransactionState
from semel.machines.values import TopicPartition
from semel.wire import encode_versioned
from semel.wire.messages.coordinator_records import TransactionLogValue

EMPTY = TransactionMetadata("payments", 1000, 0, 60_000, TransactionState.EMPTY, 1_700_000_000_123)
EMPTY_BYTES = bytes.fromhex("000100000000000003e800000000ea6000000000018bcfe5687bffffffffffffffff00")
ROTATING = TransactionMetadata(
    "payments",
    1000,
    32767,
    60_000,
    TransactionState.PREPARE_COMMIT,
    1_700_000_000_123,
    1_700_000_000_000,
    frozenset((TopicPartition("ledger", 0),)),
    2,
    1000,
    1001,
)
ROTATING_BYTES = bytes.fromhex(
    "000100000000000003e87fff0000ea600202076c65646765720200000000000000018bcfe5687b0000018bcfe56800"
    "03000800000000000003e8010800000000000003e902020002"
)


@pytest.mark.parametrize(
    ("transactional_id", "hash_code", "partition"),
    [
        ("payments", 1382682413, 13),
        ("", 0, 0),
        ("zahlungen-äöü", -2117177367, 17),
        ("polygenelubricants", -2147483648, 0),
        ("emoji-😀", 1164511306, 6),
        ("spark-query-1", 405517692, 42),
    ],
)
def test_an_id_goes_to_the_partition_that_kafka_would_choose(
    transactional_id: str, hash_code: int, partition: int
) -> None:
    assert java_hash(transactional_id) == hash_code
    assert partition_for(transactional_id, 50) == partition


@pytest.mark.parametrize(
    ("metadata", "data"), [(EMPTY, EMPTY_BYTES), (ROTATING, ROTATING_BYTES)], ids=["empty", "rotating"]
)
def test_a_record_is_the_bytes_that_kafka_writes(metadata: TransactionMetadata, data: bytes) -> None:
    assert record_of(metadata, 13).value == data
    assert metadata_of("payments", data) == metadata


def test_a_record_from_before_tagged_fields_is_read() -> None:
    old = bytes.fromhex("000000000000000003e800000000ea6000ffffffff0000018bcfe5687bffffffffffffffff")
    assert metadata_of("payments", old) == EMPTY


def test_a_key_is_the_bytes_that_kafka_writes() -> None:
    assert key_of("payments").hex() == "000000087061796d656e7473"
    assert key_of("zahlungen-äöü").hex() == "000000107a61686c756e67656e2dc3a4c3b6c3bc"
    assert transactional_id_of(key_of("zahlungen-äöü")) == "zahlungen-äöü"
    assert tombstone_of("payments", 13).value is None


def test_a_key_of_a_kind_that_is_not_known_is_left_alone() -> None:
    assert transactional_id_of(bytes.fromhex("0007") + key_of("payments")[2:]) is None


identifiers = st.integers(min_value=-1, max_value=2**63 - 1)
epochs = st.integers(min_value=-1, max_value=32767)
times = st.integers(min_value=-1, max_value=2**62)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
partitions = st.frozensets(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=5)


stored = st.builds(
    TransactionMetadata,
    transactional_id=names,
    producer_id=identifiers,
    producer_epoch=epochs,
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
    last_update_ms=times,
    start_ms=times,
    partitions=partitions,
    client_transaction_version=st.integers(0, 2),
    previous_producer_id=identifiers,
    next_producer_id=identifiers,
    next_producer_epoch=epochs,
)


@given(stored)
def test_whatever_is_written_is_read_back(metadata: TransactionMetadata) -> None:
    record = record_of(metadata, 0)
    assert record.value is not None
    assert metadata_of(metadata.transactional_id, record.value) == metadata
    assert transactional_id_of(record.key) == metadata.transactional_id


@given(stored)
def test_the_bytes_laid_out_by_hand_are_those_of_the_message(metadata: TransactionMetadata) -> None:
    message = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        next_producer_epoch=metadata.next_producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.state),
        transaction_partitions=[
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=numbers)
            for topic, numbers in by_topic(metadata.partitions).items()
        ],
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_transaction_version,
    )
    assert value_of(metadata) == encode_versioned(message, VALUE_VERSION)


def test_a_transaction_over_many_partitions_is_written_whole() -> None:
    wide = replace(ROTATING, partitions=frozenset(TopicPartition(f"topic-{n % 3}", n) for n in range(1000)))
    assert metadata_of("payments", value_of(wide)).partitions == wide.partitions

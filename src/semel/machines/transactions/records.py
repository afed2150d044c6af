"""How transactional ids are stored in `__transaction_state`: Kafka's own records, in the partition Kafka would choose.

A record written here is read by Apache Kafka's own tools, and a record written by Apache Kafka is read here.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, pack
from sys import intern

from semel.machines.contract import StateRecord
from semel.machines.transactions.metadata import (
    NO_PARTITIONS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
)
from semel.machines.transactions.states import TransactionState
from semel.machines.values import TopicPartition, by_topic
from semel.wire import decode_versioned, encode_versioned
from semel.wire.messages.coordinator_records import TransactionLogKey, TransactionLogValue
from semel.wire.primitives import unsigned_varint

KEY_VERSION = 0
#: The first version with tagged fields, which hold what protocol V2 needs.
VALUE_VERSION = 1
_KEY_PREFIX = KEY_VERSION.to_bytes(2, "big")

_STATES = tuple(TransactionState)
#: version, producer id, epoch, timeout, state
_VALUE_HEAD = Struct(">hqhib")
#: last update, start, number of tagged fields
_VALUE_TIMES = Struct(">qqb")
#: tag, size, value
_LONG_TAG = Struct(">bbq")
_SHORT_TAG = Struct(">bbh")
#: For how many ids key and partition are cached.
_REMEMBERED_IDS = 4096
_REMEMBERED_SETS = 1024
_SMALL_SET = 16


@lru_cache(_REMEMBERED_IDS)
def key_of(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


@lru_cache(_REMEMBERED_IDS)
def transactional_id_of(key: bytes) -> str | None:
    """The transactional id in a record's key; None for a record type of a newer version."""
    if key[:2] != _KEY_PREFIX:
        return None
    return decode_versioned(TransactionLogKey, key).transactional_id


def record_of(metadata: TransactionMetadata, partition: int) -> StateRecord:
    """The record that stores this metadata."""
    return StateRecord(partition, key_of(metadata.transactional_id), value_of(metadata))


def value_of(metadata: TransactionMetadata) -> bytes:
    """A `TransactionLogValue` of version 1, encoded by hand because every step of every transaction writes one.

    A test compares it with the message's own encoder.
    """
    producer_id, epoch, state = metadata.producer_id, metadata.producer_epoch, metadata.state
    partitions = metadata.partitions
    if state is TransactionState.EMPTY:
        topics = b"\0"
    else:
        topics = _remembered(partitions) if len(partitions) <= _SMALL_SET else _encoded_partitions(partitions)
    tags, count = b"", 0
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        tags, count = _LONG_TAG.pack(0, 8, metadata.previous_producer_id), 1
    if metadata.next_producer_id != NO_PRODUCER_ID:
        tags, count = tags + _LONG_TAG.pack(1, 8, metadata.next_producer_id), count + 1
    if metadata.client_transaction_version:
        tags, count = tags + _SHORT_TAG.pack(2, 2, metadata.client_transaction_version), count + 1
    if metadata.next_producer_epoch != NO_PRODUCER_EPOCH:
        tags, count = tags + _SHORT_TAG.pack(3, 2, metadata.next_producer_epoch), count + 1
    fixed = _VALUE_HEAD.pack(VALUE_VERSION, producer_id, epoch, metadata.timeout_ms, state)
    times = _VALUE_TIMES.pack(metadata.last_update_ms, metadata.start_ms, count)
    return fixed + topics + times + tags


def _encoded_partitions(partitions: frozenset[TopicPartition]) -> bytes:
    """The compact array of topics, each with its partitions."""
    topics = by_topic(partitions)
    out = bytearray(unsigned_varint(len(topics) + 1))
    for topic, numbers in topics.items():
        name = topic.encode()
        out += unsigned_varint(len(name) + 1) + name
        out += unsigned_varint(len(numbers) + 1) + pack(f">{len(numbers)}i", *numbers) + b"\0"
    return bytes(out)


#: Most transactions write to the same partitions as the one before.
_remembered = lru_cache(_REMEMBERED_SETS)(_encoded_partitions)


def tombstone_of(transactional_id: str, partition: int) -> StateRecord:
    return StateRecord(partition, key_of(transactional_id), None)


def metadata_of(
    transactional_id: str, data: bytes, last_producer_epoch: int = NO_PRODUCER_EPOCH
) -> TransactionMetadata:
    """The metadata in a stored record, with the one field that is not stored."""
    value = decode_versioned(TransactionLogValue, data)
    partitions = NO_PARTITIONS
    if value.transaction_partitions:
        partitions = frozenset(
            TopicPartition(intern(topic.topic), partition)
            for topic in value.transaction_partitions
            for partition in topic.partition_ids
        )
    return TransactionMetadata(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        _STATES[value.transaction_status],
        value.transaction_last_update_timestamp_ms,
        value.transaction_start_timestamp_ms,
        partitions,
        value.client_transaction_version,
        value.previous_producer_id,
        value.next_producer_id,
        value.next_producer_epoch,
        last_producer_epoch,
    )

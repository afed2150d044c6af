"""How transactional ids are stored in `__transaction_state`: Kafka's own records, in the partition Kafka would choose.

A record written here is read by Apache Kafka's own tools, and a record written by Apache Kafka is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from sys import intern

from semel.machines.contract import StateRecord, TopicPartition
from semel.machines.transaction_metadata import NO_PARTITIONS, NO_PRODUCER_EPOCH, TransactionMetadata
from semel.machines.transaction_states import State
from semel.wire import decode_versioned, encode_versioned
from semel.wire.messages.coordinator_records import TransactionLogKey, TransactionLogValue

KEY_VERSION = 0
#: The first version with tagged fields, which hold what protocol V2 needs.
VALUE_VERSION = 1
_KEY_PREFIX = KEY_VERSION.to_bytes(2, "big")

_STATES = tuple(State)
#: Of so many ids in use, what follows from the id alone is worked out once and not with every step of a transaction.
_REMEMBERED_IDS = 4096


def java_hash(text: str) -> int:
    """`String.hashCode` of Java, over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for position in range(0, len(units), 2):
            value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@lru_cache(_REMEMBERED_IDS)
def partition_for(key: str, partition_count: int) -> int:
    """The partition of `__transaction_state` (or, for a group id, of `__consumer_offsets`) that Kafka chooses."""
    value = java_hash(key)
    # Java has no absolute value of its smallest integer; Kafka takes 0 for it.
    return (0 if value == -0x80000000 else abs(value)) % partition_count


@lru_cache(_REMEMBERED_IDS)
def key_of(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


@lru_cache(_REMEMBERED_IDS)
def transactional_id_of(key: bytes) -> str | None:
    """The transactional id of a record's key; None for a kind of record that a newer version may have written."""
    if key[:2] != _KEY_PREFIX:
        return None
    return decode_versioned(TransactionLogKey, key).transactional_id


def record_of(metadata: TransactionMetadata, partition: int) -> StateRecord:
    """The record that remembers this."""
    topics: list[TransactionLogValue.PartitionsSchema] | None = None
    if metadata.state is not State.EMPTY:
        topics = [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=partition_ids)
            for topic, partition_ids in by_topic(metadata.partitions).items()
        ]
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        next_producer_epoch=metadata.next_producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.state),
        transaction_partitions=topics,
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_transaction_version,
    )
    return StateRecord(partition, key_of(metadata.transactional_id), encode_versioned(value, VALUE_VERSION))


def tombstone_of(transactional_id: str, partition: int) -> StateRecord:
    return StateRecord(partition, key_of(transactional_id), None)


def metadata_of(
    transactional_id: str, data: bytes, last_producer_epoch: int = NO_PRODUCER_EPOCH
) -> TransactionMetadata:
    """What a stored record says, and the one thing beside it that only memory knows."""
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


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, both in order, so that equal sets make equal bytes."""
    topics: dict[str, list[int]] = {}
    for name, partition in sorted(partitions):
        topics.setdefault(name, []).append(partition)
    return topics

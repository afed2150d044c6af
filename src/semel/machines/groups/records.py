"""Encodes and decodes the records of `__consumer_offsets`, in Kafka's own formats.

A key starts with its record type, a value with its version. They are written as Kafka 4.3 writes them, so that Kafka's
tools read a Semel log. Values of all older versions are read.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from semel.machines.contract import StateRecord
from semel.machines.groups.committed_offsets import NO_EXPIRY, CommittedOffset
from semel.wire import Malformed, decode_versioned, encode_versioned
from semel.wire.messages.coordinator_records import (
    CONSUMER_OFFSETS_RECORDS,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

_RECORD_TYPE = Struct(">h")

#: The version of each value; those not named here are written in version 0.
_WRITTEN_IN: dict[type[Any], int] = {OffsetCommitValue: 4, GroupMetadataValue: 3}


def record(partition: int, key: Any, value: Any | None, *, version: int | None = None) -> StateRecord:
    """A record of `__consumer_offsets`. Without a value it is a tombstone."""
    written_key = encode_versioned(key)
    if value is None:
        return StateRecord(partition, written_key, None)
    written_in = _WRITTEN_IN.get(type(value), 0) if version is None else version
    return StateRecord(partition, written_key, encode_versioned(value, written_in))


def record_type(key: bytes) -> int:
    """The number with which a key begins."""
    if len(key) < _RECORD_TYPE.size:
        raise Malformed(f"a key of {len(key)} bytes has no room for its record type")
    kind: int = _RECORD_TYPE.unpack_from(key)[0]
    return kind


def read(key: bytes, value: bytes | None) -> tuple[Any, Any | None] | None:
    """Key and value of a stored record; None for an unknown record type."""
    classes = CONSUMER_OFFSETS_RECORDS.get(record_type(key))
    if classes is None:
        return None
    key_class, value_class = classes
    return decode_versioned(key_class, key), None if value is None else decode_versioned(value_class, value)


def offset_record(partition: int, group_id: str, topic: str, index: int, offset: CommittedOffset) -> StateRecord:
    """A committed offset. Only version 1 has an expiry time of its own, which old clients ask for."""
    return record(
        partition,
        OffsetCommitKey(group=group_id, topic=topic, partition=index),
        OffsetCommitValue(
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            commit_timestamp=offset.commit_timestamp_ms,
            expire_timestamp=offset.expire_timestamp_ms,
            topic_id=offset.topic_id,
        ),
        version=1 if offset.expire_timestamp_ms != NO_EXPIRY else None,
    )


def offset_tombstone(partition: int, group_id: str, topic: str, index: int) -> StateRecord:
    return record(partition, OffsetCommitKey(group=group_id, topic=topic, partition=index), None)


def group_tombstone(partition: int, group_id: str) -> StateRecord:
    return record(partition, GroupMetadataKey(group=group_id), None)

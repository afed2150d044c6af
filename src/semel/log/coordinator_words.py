"""Describes the records of the internal topics in words, for `semel log dump`."""

from __future__ import annotations

from typing import Any

from semel.errors import Refused
from semel.machines.groups import records as group_records
from semel.machines.transactions.states import TransactionState
from semel.wire import decode_versioned
from semel.wire.messages import coordinator_records as stored
from semel.wire.schema import fields_of


def in_words(topic: str, key: bytes | None, value: bytes | None) -> str:
    """What a record of this topic says; "record" for a user's topic."""
    try:
        if topic == "__transaction_state":
            return _transaction(key or b"", value)
        if topic == "__consumer_offsets":
            return _group(key or b"", value)
    except Refused as refused:
        return f"not readable as a coordinator's record: {refused.why}"
    return "record"


def _transaction(key: bytes, value: bytes | None) -> str:
    transactional_id = decode_versioned(stored.TransactionLogKey, key).transactional_id
    if value is None:
        return f"transactional id {transactional_id!r} is forgotten"
    held = decode_versioned(stored.TransactionLogValue, value)
    partitions = [
        f"{schema.topic}-{partition}"
        for schema in held.transaction_partitions or ()
        for partition in schema.partition_ids
    ]
    known = {int(state): state.title for state in TransactionState}
    state = known.get(held.transaction_status, f"state {held.transaction_status}")
    words = (
        f"transactional id {transactional_id!r} is {state}, producer {held.producer_id} epoch {held.producer_epoch}, "
        f"timeout {held.transaction_timeout_ms} ms"
    )
    return words + (f", in {', '.join(partitions)}" if partitions else "")


def _group(key: bytes, value: bytes | None) -> str:
    record = group_records.read(key, value)
    if record is None:
        return f"a record of type {group_records.record_type(key)}, which is not known here"
    named, held = record
    if isinstance(named, stored.OffsetCommitKey):
        where = f"group {named.group!r} on {named.topic}-{named.partition}"
        if held is None:
            return f"{where} has no offset any more"
        return f"{where} is at offset {held.offset}" + (f" ({held.metadata})" if held.metadata else "")
    if isinstance(named, stored.GroupMetadataKey):
        if held is None:
            return f"group {named.group!r} is forgotten"
        return f"group {named.group!r} is at generation {held.generation} with {len(held.members)} members"
    return f"{_fields(named)}: {'forgotten' if held is None else _fields(held)}"


def _fields(message: Any) -> str:
    kind = type(message)
    name = kind.__name__.removesuffix("Key").removesuffix("Value")
    return name + "(" + ", ".join(f"{field.name}={getattr(message, field.name)!r}" for field in fields_of(kind)) + ")"

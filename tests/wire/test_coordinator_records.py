"""What coordinators write, held to bytes that Apache Kafka 4.3.1 wrote for the same records."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ErrorCode, Refused
from semel.wire import decode_versioned, encode_versioned
from semel.wire.messages.coordinator_records import (
    CONSUMER_OFFSETS_RECORDS,
    TRANSACTION_STATE_RECORDS,
    ConsumerGroupMemberMetadataValue,
    EndTxnMarker,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)

LEDGER = TransactionLogValue.PartitionsSchema(topic="ledger", partition_ids=[0, 2])
MEMBER = GroupMetadataValue.MemberMetadata(
    member_id="m-1",
    client_id="c",
    client_host="/127.0.0.1",
    rebalance_timeout=300_000,
    session_timeout=45_000,
    subscription=b"\x00\x01",
    assignment=b"\x00\x02",
)

GOLDEN: list[tuple[Any, int, str]] = [
    (TransactionLogKey(transactional_id="payments"), 0, "0000 0008 7061796d656e7473"),
    (
        TransactionLogValue(
            producer_id=4000,
            producer_epoch=7,
            transaction_timeout_ms=60_000,
            transaction_status=1,
            transaction_partitions=[LEDGER],
            transaction_last_update_timestamp_ms=1_700_000_000_123,
            transaction_start_timestamp_ms=1_700_000_000_000,
        ),
        0,
        "0000 0000000000000fa0 0007 0000ea60 01 00000001 0006 6c6564676572 00000002 00000000 00000002"
        " 0000018bcfe5687b 0000018bcfe56800",
    ),
    (
        TransactionLogValue(
            producer_id=4000,
            previous_producer_id=3999,
            next_producer_id=4001,
            producer_epoch=7,
            next_producer_epoch=0,
            transaction_timeout_ms=60_000,
            transaction_status=3,
            transaction_partitions=None,
            transaction_last_update_timestamp_ms=1_700_000_000_123,
            transaction_start_timestamp_ms=1_700_000_000_000,
            client_transaction_version=2,
        ),
        1,
        "0001 0000000000000fa0 0007 0000ea60 03 00 0000018bcfe5687b 0000018bcfe56800"
        " 04 00 08 0000000000000f9f 01 08 0000000000000fa1 02 02 0002 03 02 0000",
    ),
    (
        OffsetCommitKey(group="copiers", topic="ledger", partition=2),
        1,
        "0001 0007 636f7069657273 0006 6c6564676572 00000002",
    ),
    (
        OffsetCommitValue(offset=42, leader_epoch=5, metadata="m", commit_timestamp=1_700_000_000_123),
        3,
        "0003 000000000000002a 00000005 0001 6d 0000018bcfe5687b",
    ),
    (GroupMetadataKey(group="copiers"), 2, "0002 0007 636f7069657273"),
    (
        GroupMetadataValue(
            protocol_type="consumer",
            generation=3,
            protocol="range",
            leader="m-1",
            current_state_timestamp=1_700_000_000_123,
            members=[MEMBER],
        ),
        3,
        "0003 0008 636f6e73756d6572 00000003 0005 72616e6765 0003 6d2d31 0000018bcfe5687b 00000001"
        " 0003 6d2d31 ffff 0001 63 000a 2f3132372e302e302e31 000493e0 0000afc8 00000002 0001 00000002 0002",
    ),
    (EndTxnMarker(coordinator_epoch=9), 0, "0000 00000009"),
    (
        ConsumerGroupMemberMetadataValue(classic_member_metadata=None),
        0,
        "0000 01 01 01 01 01 01 ffffffff 01 01 00 01 00",
    ),
]


@pytest.mark.parametrize(("record", "version", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_a_record_has_the_bytes_kafka_gives_it(record: Any, version: int, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert encode_versioned(record, version) == data
    assert decode_versioned(type(record), data) == record


def test_a_key_begins_with_the_type_of_its_record() -> None:
    for record_type, (key, _) in (CONSUMER_OFFSETS_RECORDS | TRANSACTION_STATE_RECORDS).items():
        assert encode_versioned(key())[:2] == record_type.to_bytes(2, "big")


def test_the_keys_of_old_offset_commits_are_read() -> None:
    old = b"\x00\x00" + encode_versioned(OffsetCommitKey(group="g", topic="t", partition=1))[2:]
    assert decode_versioned(OffsetCommitKey, old) == OffsetCommitKey(group="g", topic="t", partition=1)


def test_a_record_from_a_newer_kafka_is_refused_by_its_version() -> None:
    with pytest.raises(Refused) as refusal:
        decode_versioned(TransactionLogValue, b"\x00\x09" + bytes(40))
    assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION

"""The protocol that classic consumers speak among themselves, inside the bytes of JoinGroup and SyncGroup.

Each value begins with its version. Versions only ever append fields, so a version from the future is read as the newest
known one. What cannot be read is refused (`Malformed`): a client may put anything there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from semel.wire import decode, encode_versioned
from semel.wire.messages.coordinator_records import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from semel.wire.primitives import Buffer, Malformed

NEWEST_VERSION = 3
_M = TypeVar("_M", ConsumerProtocolSubscription, ConsumerProtocolAssignment)


def read_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """What a member has subscribed to, and what it holds."""
    return _read(ConsumerProtocolSubscription, data)


def read_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """What the leader of the group gave to a member."""
    return _read(ConsumerProtocolAssignment, data)


def encode_assignment(partitions: Mapping[str, Iterable[int]], version: int = NEWEST_VERSION) -> bytes:
    """An assignment of these partitions by topic."""
    rows = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=list(numbers))
        for topic, numbers in partitions.items()
    ]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=rows), version)


def version_of(data: Buffer) -> int:
    """The version to read `data` in, or to answer its sender in."""
    if len(data) < 2:
        raise Malformed(f"{len(data)} bytes have no room for the version of the embedded consumer protocol")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise Malformed(f"the embedded consumer protocol has no version {version}")
    return min(version, NEWEST_VERSION)


def _read(message_class: type[_M], data: Buffer) -> _M:
    return decode(message_class, version_of(data), data, 2)

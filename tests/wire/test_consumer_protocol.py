"""The protocol that classic consumers speak inside the bytes of JoinGroup and SyncGroup."""

from __future__ import annotations

import pytest

from semel.wire import Malformed, encode_versioned
from semel.wire.consumer_protocol import (
    NEWEST_VERSION,
    encode_assignment,
    read_assignment,
    read_subscription,
    version_of,
)
from semel.wire.messages.coordinator_records import ConsumerProtocolSubscription


@pytest.mark.parametrize("version", range(NEWEST_VERSION + 1))
def test_what_is_assigned_is_read_back_in_every_version(version: int) -> None:
    told = read_assignment(encode_assignment({"a": [0, 2], "b": [1]}, version))
    assert [(row.topic, row.partitions) for row in told.assigned_partitions] == [("a", [0, 2]), ("b", [1])]


def test_a_version_from_the_future_is_read_as_the_newest_known() -> None:
    subscription = ConsumerProtocolSubscription(topics=["a"], generation_id=7, rack_id="r")
    data = encode_versioned(subscription, NEWEST_VERSION)
    assert read_subscription(b"\x00\x63" + data[2:] + b"fields nobody here knows") == subscription
    assert version_of(b"\x00\x63") == NEWEST_VERSION


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\3\0\0", b"\0\0\x7f\xff\xff\xff"])
def test_bytes_that_are_none_of_it_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_subscription(data)
    with pytest.raises(Malformed):
        read_assignment(data)

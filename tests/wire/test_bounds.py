"""What a decoder reads before it refuses: elements, tagged fields and strings are bounded, whatever is claimed."""

from __future__ import annotations

import pytest

from semel.wire import Malformed, TooManyElements, decode, encode
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from semel.wire.primitives import MOST_STRING_BYTES, MOST_TAGGED_FIELDS, skip_tagged_fields, unsigned_varint


def list_offsets(topics: int, partitions: int) -> bytes:
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    asked = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[row] * partitions)
    return encode(ListOffsetsRequest(topics=[asked] * topics), 9)


def test_the_elements_of_all_arrays_together_are_counted() -> None:
    data = list_offsets(10, 5)
    assert len(decode(ListOffsetsRequest, 9, data, 0, 60).topics) == 10
    with pytest.raises(TooManyElements):
        decode(ListOffsetsRequest, 9, data, 0, 59)


def test_a_count_is_refused_before_its_elements_are_read() -> None:
    # The elements are not there at all: whoever read the first would find the message too short.
    data = encode(MetadataRequest(topics=None), 9)
    claimed = unsigned_varint(1001) + data[1:] + bytes(4000)
    with pytest.raises(TooManyElements):
        decode(MetadataRequest, 9, claimed, 0, 999)


def test_a_string_is_as_long_as_kafka_reads_it_in_every_version() -> None:
    longest = "k" * MOST_STRING_BYTES
    for version in (3, 4):
        data = encode(FindCoordinatorRequest(key=longest, coordinator_keys=[longest]), version)
        assert longest in (
            decode(FindCoordinatorRequest, version, data).key,
            *decode(FindCoordinatorRequest, version, data).coordinator_keys,
        )
    for version in (3, 4):
        data = encode(FindCoordinatorRequest(key=longest + "k", coordinator_keys=[longest + "k"]), version)
        with pytest.raises(Malformed, match="32767"):
            decode(FindCoordinatorRequest, version, data)


def test_tagged_fields_are_counted_as_elements_and_bounded_by_themselves() -> None:
    body = encode(MetadataRequest(topics=[]), 9)
    fields = b"".join(unsigned_varint(1000 + tag) + b"\0" for tag in range(100))
    tagged = body[:-1] + b"\x64" + fields
    assert decode(MetadataRequest, 9, tagged, 0, 100).topics == []
    with pytest.raises(TooManyElements):
        decode(MetadataRequest, 9, tagged, 0, 99)
    many = unsigned_varint(MOST_TAGGED_FIELDS + 1)
    with pytest.raises(Malformed, match="tagged fields"):
        skip_tagged_fields(many + bytes(4000), 1, many[0], 4000)

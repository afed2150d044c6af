"""Whatever arrives, a decoder returns a message or refuses, and never makes room for bytes that were not sent."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.errors import ErrorCode, Refused
from semel.wire import Malformed, decode, decode_versioned, encode
from semel.wire.frames import decode_request, parse_request, parse_response
from semel.wire.messages.fetch import FetchRequest
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.produce import ProduceRequest
from semel.wire.primitives import read_unsigned_varint, unsigned_varint
from tests.wire.generated import API_MESSAGES, RECORD_MESSAGES, messages, name_of, versions

EVERYTHING = versions(API_MESSAGES + RECORD_MESSAGES)
RELAXED = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), database=None)

#: What liars write over lengths and counts: the largest, the most negative, varints that do not end.
LIES = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\x80" * 6,
    b"\x7f\xff",
]


def allocated_bytes_while_decoding(cls: type[Any], version: int, data: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            decode(cls, version, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("cls", "version"), EVERYTHING, ids=name_of)
@RELAXED
@given(data=st.data())
def test_a_damaged_message_is_read_or_refused_but_never_breaks_the_decoder(
    cls: type[Any], version: int, data: st.DataObject
) -> None:
    damaged = bytearray(encode(data.draw(messages(cls, version)), version))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged)))
        lie = data.draw(st.sampled_from(LIES) | st.binary(max_size=4))
        damaged[at : at + data.draw(st.integers(0, len(lie)))] = lie
    del damaged[data.draw(st.integers(0, len(damaged))) + data.draw(st.sampled_from([0, 1 << 20])) :]
    with suppress(Malformed):
        decode(cls, version, bytes(damaged))


@pytest.mark.parametrize(("cls", "version"), EVERYTHING, ids=name_of)
def test_a_message_cut_anywhere_is_refused(cls: type[Any], version: int) -> None:
    whole = encode(cls(), version)
    for size in range(len(whole)):
        with pytest.raises(Malformed):
            decode(cls, version, whole[:size])


@settings(max_examples=300, deadline=None)
@given(frame=st.binary(max_size=200))
def test_any_bytes_at_all_are_a_request_or_are_refused(frame: bytes) -> None:
    with suppress(Refused):
        header, body = parse_request(frame)
        decode_request(header, frame, body)


@settings(max_examples=200, deadline=None)
@given(
    key_and_version=st.sampled_from([(0, 13), (1, 18), (3, 13), (18, 4), (26, 5), (68, 1)]),
    frame=st.binary(max_size=200),
)
def test_any_bytes_at_all_are_a_response_or_are_refused(key_and_version: tuple[int, int], frame: bytes) -> None:
    with suppress(Malformed):
        parse_response(*key_and_version, frame)


@pytest.mark.parametrize(
    ("cls", "version", "data"),
    [
        (MetadataRequest, 8, b"\x7f\xff\xff\xff"),
        (MetadataRequest, 12, b"\xff\xff\xff\xff\x07"),
        (ProduceRequest, 8, b"\xff\xff" + b"\x00\x01" + b"\x00\x00\x75\x30" + b"\x7f\xff\xff\xff"),
        (ProduceRequest, 13, b"\x00" + b"\x00\x01" + b"\x00\x00\x75\x30" + b"\xfe\xff\xff\xff\x07"),
        (FetchRequest, 4, b"\x00" * 17 + b"\x7f\xff\xff\xff"),
    ],
)
def test_a_count_the_frame_cannot_hold_costs_no_memory(cls: type[Any], version: int, data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(cls, version, data)  # the decoder is compiled now, and does not count
    assert allocated_bytes_while_decoding(cls, version, data) < 1 << 14


def test_tagged_fields_from_the_future_are_passed_over() -> None:
    plain = encode(MetadataRequest(topics=None), 12)
    assert plain.endswith(b"\x00")
    future = plain[:-1] + b"\x02" + unsigned_varint(700) + b"\x03abc" + unsigned_varint(701) + b"\x00"
    assert decode(MetadataRequest, 12, future) == MetadataRequest(topics=None)


def test_a_tagged_field_that_is_longer_than_its_size_is_refused() -> None:
    request = encode(FetchRequest(cluster_id="here"), 12)
    assert b"\x01\x00\x05\x05here" in request
    with pytest.raises(Malformed, match="cluster_id"):
        decode(FetchRequest, 12, request.replace(b"\x01\x00\x05\x05here", b"\x01\x00\x04\x05here"))


def test_bytes_after_a_message_are_ignored() -> None:
    assert decode(MetadataRequest, 4, encode(MetadataRequest(), 4) + b"more") == MetadataRequest()


@pytest.mark.parametrize("overlong", [b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x1f", b"\xff" * 5])
def test_a_varint_of_more_than_32_bits_is_refused(overlong: bytes) -> None:
    with pytest.raises(Malformed):
        read_unsigned_varint(overlong, 0)


@given(st.integers(0, (1 << 32) - 1))
def test_a_varint_is_read_as_it_was_written(value: int) -> None:
    encoded = unsigned_varint(value)
    assert read_unsigned_varint(encoded, 0) == (value, len(encoded))


def test_a_string_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(Malformed, match="UTF-8"):
        decode(MetadataRequest, 0, b"\x00\x00\x00\x01\x00\x02\xc3\x28")


def test_a_version_nobody_declared_is_refused_as_unsupported() -> None:
    for attempt in (lambda: encode(MetadataRequest(), 99), lambda: decode(MetadataRequest, -1, b"")):
        with pytest.raises(Refused) as refusal:
            attempt()
        assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(Malformed):
        decode_versioned(MetadataRequest, b"\x00")

"""Requests and responses as they travel."""

from __future__ import annotations

import pytest

from semel.wire import Malformed
from semel.wire.apis import APIS, INIT_PRODUCER_ID_TWO_PHASE_VERSION, ApiKey
from semel.wire.frames import (
    RequestHeader,
    decode_request,
    parse_request,
    parse_response,
    read_correlation_id,
    request_frame,
    response_frame,
)
from semel.wire.messages.features import ApiVersionsRequest, ApiVersionsResponse
from semel.wire.messages.fetch import FetchResponse
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.transactions import EndTxnRequest, EndTxnResponse
from semel.wire.schema import FOREVER, about


def sent(parts: list[bytes | bytearray | memoryview]) -> bytes:
    """What arrives behind the four bytes of length, which must be right."""
    frame = b"".join(parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


@pytest.mark.parametrize("client_id", [None, "", "copier-1", "ä" * 200])
@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_a_request_arrives_as_it_was_sent(version: int, client_id: str | None) -> None:
    request = EndTxnRequest(transactional_id="payments", producer_id=7, producer_epoch=1, committed=True)
    frame = sent(request_frame(ApiKey.END_TXN, version, 99, client_id, request))
    header, body = parse_request(memoryview(frame))
    assert header == RequestHeader(ApiKey.END_TXN, version, 99, client_id)
    assert decode_request(header, frame, body) == request


@pytest.mark.parametrize("version", [2, 5])
def test_a_response_arrives_as_it_was_sent(version: int) -> None:
    response = EndTxnResponse(error_code=51)
    frame = sent(response_frame(ApiKey.END_TXN, version, 99, response))
    assert read_correlation_id(frame) == 99
    assert parse_response(ApiKey.END_TXN, version, frame) == (99, response)


def test_the_header_of_an_old_request_is_these_bytes() -> None:
    frame = sent(request_frame(ApiKey.METADATA, 1, 5, "me", MetadataRequest(topics=None)))
    assert frame == b"\x00\x03\x00\x01\x00\x00\x00\x05\x00\x02me\xff\xff\xff\xff"


def test_the_client_id_of_a_flexible_header_is_not_compact() -> None:
    frame = sent(request_frame(ApiKey.METADATA, 12, 5, "me", MetadataRequest(topics=None)))
    assert frame.startswith(b"\x00\x03\x00\x0c\x00\x00\x00\x05\x00\x02me\x00\x00")


@pytest.mark.parametrize("version", [0, 3, 4])
def test_an_answer_to_api_versions_never_has_tagged_fields_in_its_header(version: int) -> None:
    response = ApiVersionsResponse(error_code=35)
    frame = sent(response_frame(ApiKey.API_VERSIONS, version, 1, response))
    assert frame[:6] == b"\x00\x00\x00\x01\x00\x23"
    assert parse_response(ApiKey.API_VERSIONS, version, frame) == (1, response)


def test_a_version_of_api_versions_from_the_future_still_has_a_header_we_can_read() -> None:
    frame = sent(request_frame(ApiKey.API_VERSIONS, 4, 1, "me", ApiVersionsRequest(client_software_name="x")))
    header, _ = parse_request(frame[:2] + b"\x00\x63" + frame[4:])
    assert (header.api_version, header.client_id) == (99, "me")


def test_an_unknown_api_is_refused() -> None:
    with pytest.raises(Malformed, match="4711"):
        parse_request((4711).to_bytes(2, "big") + bytes(8))


def test_tagged_fields_in_a_header_are_passed_over() -> None:
    frame = sent(request_frame(ApiKey.METADATA, 12, 5, None, MetadataRequest(topics=None)))
    assert frame[10] == 0
    header, body = parse_request(frame[:10] + b"\x01\x07\x02hi" + frame[11:])
    assert body == 15
    assert header.correlation_id == 5


@pytest.mark.parametrize("version", [11, 17])
def test_large_records_go_out_without_a_copy(version: int) -> None:
    batch, chain = memoryview(bytes(1 << 20)), [memoryview(b"a" * 5000), memoryview(b"b" * 10)]
    partitions = [
        FetchResponse.PartitionData(partition_index=0, records=batch),
        FetchResponse.PartitionData(partition_index=1, records=b"small"),
        FetchResponse.PartitionData(partition_index=2, records=chain),  # type: ignore[arg-type]
    ]
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)])
    parts = response_frame(ApiKey.FETCH, version, 1, response)
    assert [part for part in parts if isinstance(part, memoryview)] == [batch, *chain]
    assert any(part is batch for part in parts)
    _, read = parse_response(ApiKey.FETCH, version, sent(parts))
    records = [partition.records for partition in read.responses[0].partitions]
    assert records == [batch, b"small", b"a" * 5000 + b"b" * 10]
    assert all(isinstance(record, memoryview) for record in records)


def test_the_table_of_apis_says_what_the_messages_say() -> None:
    assert sorted(APIS) == sorted(ApiKey)
    for api in APIS.values():
        for told in (about(api.request), about(api.response)):
            newest = INIT_PRODUCER_ID_TWO_PHASE_VERSION if api.key is ApiKey.INIT_PRODUCER_ID else api.max_version
            flexible = FOREVER if api.flexible_since is None else api.flexible_since
            assert (told.key, told.min_version, told.max_version, told.flexible) == (
                api.key,
                api.min_version,
                newest,
                flexible,
            ), api
    assert APIS[ApiKey.PRODUCE].advertised_min_version == 0

"""Messages as values, and the functions compiled for them."""

from __future__ import annotations

import copy
import linecache
import pickle
import traceback
from uuid import UUID

import pytest

from semel.wire import decode, encode
from semel.wire.messages.fetch import FetchRequest, FetchResponse
from semel.wire.messages.metadata import DescribeTopicPartitionsRequest
from semel.wire.messages.produce import ProduceRequest
from semel.wire.messages.transactions import EndTxnResponse, InitProducerIdRequest
from semel.wire.schema import fields_of


def test_every_field_has_the_default_of_its_schema() -> None:
    answer = EndTxnResponse()
    assert (answer.throttle_time_ms, answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, -1, -1)


def test_defaults_are_not_shared_between_messages() -> None:
    first, second = FetchResponse.PartitionData(), FetchResponse.PartitionData()
    first.current_leader.leader_id = 3
    assert second.current_leader.leader_id == -1
    FetchRequest().topics.append(FetchRequest.FetchTopic())
    assert FetchRequest().topics == []


def test_fields_are_keywords_and_a_wrong_one_is_an_error() -> None:
    with pytest.raises(TypeError):
        EndTxnResponse(0)  # type: ignore[misc]
    with pytest.raises(TypeError, match="transactional"):
        EndTxnResponse(transactional="x")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        EndTxnResponse().transactional = "x"  # type: ignore[attr-defined]


def test_messages_are_equal_when_their_fields_are() -> None:
    assert EndTxnResponse(error_code=1) == EndTxnResponse(error_code=1) != EndTxnResponse()
    assert EndTxnResponse() != InitProducerIdRequest()


def test_a_message_can_be_copied_and_pickled() -> None:
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="t")])
    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(request)) == request


def test_a_repr_shows_what_differs_from_the_defaults() -> None:
    request = ProduceRequest(acks=-1, topic_data=[ProduceRequest.TopicProduceData(name="t")])
    assert repr(request) == "ProduceRequest(acks=-1, topic_data=[ProduceRequest.TopicProduceData(name='t')])"
    assert "<1000 bytes>" in repr(ProduceRequest.PartitionProduceData(records=bytes(1000)))
    shown = repr(ProduceRequest.PartitionProduceData(index=1, records=memoryview(b"few")))
    assert "records=b'few'" in shown, "the content, not the address of a view"


def test_a_field_a_version_does_not_have_is_left_out_and_read_as_its_default() -> None:
    answer = EndTxnResponse(producer_id=9, producer_epoch=1)
    assert decode(EndTxnResponse, 4, encode(answer, 4)) == EndTxnResponse()
    assert decode(EndTxnResponse, 5, encode(answer, 5)) == answer


def test_a_tagged_field_at_its_default_takes_no_bytes() -> None:
    partition = FetchResponse.PartitionData(current_leader=FetchResponse.LeaderIdAndEpoch(leader_id=2))
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[partition])])
    plain = encode(
        FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[FetchResponse.PartitionData()])]), 12
    )
    assert len(encode(response, 12)) == len(plain) + 1 + 1 + 9
    assert decode(FetchResponse, 12, encode(response, 12)) == response


def test_a_nullable_struct_is_one_byte_when_it_is_null() -> None:
    cursor = DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=3)
    for value in (None, cursor):
        request = DescribeTopicPartitionsRequest(cursor=value)
        assert decode(DescribeTopicPartitionsRequest, 0, encode(request, 0)) == request
    assert encode(DescribeTopicPartitionsRequest(cursor=None), 0) == b"\x01" + b"\x00\x00\x07\xd0" + b"\xff" + b"\x00"


def test_records_are_a_view_into_the_frame() -> None:
    partition = ProduceRequest.PartitionProduceData(records=b"batch")
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(partition_data=[partition])])
    frame = bytearray(encode(request, 9))
    records = decode(ProduceRequest, 9, frame).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"batch")] = ord("B")
    assert records == b"Batch"


def test_a_uuid_travels_as_its_sixteen_bytes() -> None:
    topic_id = UUID("12345678-1234-5678-1234-567812345678")
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(topic_id=topic_id)])
    assert topic_id.bytes in encode(request, 13)
    assert decode(ProduceRequest, 13, encode(request, 13)) == request


def test_compiled_source_can_be_read_in_a_traceback() -> None:
    with pytest.raises(AttributeError) as raised:
        encode(InitProducerIdRequest(transactional_id=3), 0)  # type: ignore[arg-type]
    assert "data1 = data1.encode()" in "".join(traceback.format_exception(raised.value))
    assert "def encode(message, out, parts):\n" in linecache.getlines("<encode InitProducerIdRequest version 0>")


def test_fields_can_be_looked_at() -> None:
    assert [field.name for field in fields_of(EndTxnResponse) if field.present_in(4)] == [
        "throttle_time_ms",
        "error_code",
    ]

"""kafka-python and aiokafka, each with a record format of its own making, agree with ours in both directions."""

from __future__ import annotations

from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from semel.records.batch import Batch, Record, build, check, read_records
from semel.records.partitioner import murmur2

from .strategies import codecs, headers, numbered, timestamps

# Neither of the two accepts every null, so records here are those that all can write.
plain_records = st.builds(
    Record,
    st.just(0),
    timestamps.filter(lambda t: t >= 0),
    st.none() | st.binary(max_size=30),
    st.binary(max_size=30),
    headers,
)
record_lists = st.lists(plain_records, min_size=1, max_size=8)
IDENTITY = {"producer_id": 8, "producer_epoch": 2, "base_sequence": 40}


def written_by(module: Any, records: list[Record], codec: int) -> bytes:
    builder = module.DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=1, batch_size=1 << 20, **IDENTITY
    )
    for index, record in enumerate(records):
        assert builder.append(
            offset=index, timestamp=record.timestamp, key=record.key, value=record.value, headers=list(record.headers)
        )
    return bytes(builder.build())


def read_by(module: Any, data: bytes) -> list[Record]:
    batch = module.DefaultRecordBatch(bytearray(data))
    assert batch.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]


def ours(records: list[Record], codec: int) -> bytes:
    return build(records, timestamp_ms=0, codec=codec, transactional=True, **IDENTITY)


@given(record_lists, codecs)
def test_aiokafka_reads_what_we_write(records: list[Record], codec: int) -> None:
    assert read_by(aiokafka_records, ours(records, codec)) == numbered(records)


@given(record_lists, codecs)
def test_we_read_what_aiokafka_writes(records: list[Record], codec: int) -> None:
    batch = Batch.parse(written_by(aiokafka_records, records, codec))
    check(batch, framing=True)
    assert list(read_records(batch)) == numbered(records)


@given(record_lists, codecs)
def test_kafka_python_reads_what_we_write(records: list[Record], codec: int) -> None:
    assert read_by(kafka_records, ours(records, codec)) == numbered(records)


@given(record_lists, codecs)
def test_we_read_what_kafka_python_writes(records: list[Record], codec: int) -> None:
    batch = Batch.parse(written_by(kafka_records, records, codec))
    check(batch, framing=True)
    assert list(read_records(batch)) == numbered(records)


@given(record_lists)
def test_uncompressed_batches_are_the_same_bytes_whoever_writes_them(records: list[Record]) -> None:
    # Leader epoch (-1 or 0, the broker's to set) is the one thing on which they differ.
    expected = ours(records, 0)
    for module in (aiokafka_records, kafka_records):
        data = written_by(module, records, 0)
        assert data[:12] + data[16:] == expected[:12] + expected[16:]


@given(st.binary(max_size=50))
def test_keys_hash_as_in_kafka_python(key: bytes) -> None:
    assert murmur2(key) == kafka_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "hashed"),
    # The vectors of Apache Kafka's own test of this hash.
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_hash_as_in_apache_kafka(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF

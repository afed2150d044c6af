"""Kafka's DumpLogSegments reads a Semel data directory, decodes its internal topics, and finds nothing wrong."""

from __future__ import annotations

import re
import shutil

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.dump_log import complaints, dump, files_of
from tests.support.processes import BrokerProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("kafka_jars")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory):
    """A stopped broker's data: every codec, rolled segments, committed and aborted transactions, group offsets."""
    directory = tmp_path_factory.mktemp("dumped") / "data"
    settings = {"log.segment.bytes": 65536, "log.index.interval.bytes": 1024}
    with BrokerProcess(directory, settings=settings) as broker:
        at = {"bootstrap.servers": broker.bootstrap_servers}
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = Producer({**at, "compression.type": codec, "batch.num.messages": 50})
            for number in range(500):
                producer.produce("plain", f"{codec}-{number}".encode() * 5, key=str(number).encode())
            assert producer.flush(20) == 0
        transactional = Producer({**at, "transactional.id": "dumped"})
        transactional.init_transactions(20)
        consumer = Consumer({**at, "group.id": "dumpers", "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.subscribe(["plain"])
        message = until(lambda: consumer.poll(0.2), within_s=30, what="a record")
        for number in range(6):
            transactional.begin_transaction()
            transactional.produce("paid", str(number).encode())
            assert transactional.flush(20) == 0  # an abort would drop what was not sent yet
            if number % 2:
                transactional.abort_transaction(20)
            else:
                place = [TopicPartition("plain", message.partition(), number + 1)]
                transactional.send_offsets_to_transaction(place, consumer.consumer_group_metadata(), 20)
                transactional.commit_transaction(20)
        consumer.close()
        assert broker.stop() == 0
    return directory


def test_kafka_finds_nothing_wrong(data) -> None:
    kinds = {path.suffix for path in files_of(data)}
    assert kinds == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    assert len(files_of(data, ".log")) > 3
    assert complaints(data) == []


def test_damage_would_be_found(data, tmp_path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    log = max(copy.glob("plain-*/*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    assert complaints(copy) != []


def test_kafka_reads_the_records_and_the_markers(data) -> None:
    logs = sorted(data.glob("paid-*/*.log"))
    said = dump(logs, "--print-data-log")
    assert re.findall(r"payload: (\d+)", said) == [str(number) for number in range(6)]
    assert re.findall(r"endTxnMarker: (\w+)", said) == ["COMMIT", "ABORT"] * 3


def test_kafka_decodes_the_transaction_log(data) -> None:
    logs = [path for path in sorted(data.glob("__transaction_state-*/*.log")) if path.stat().st_size]
    said = dump(logs, "--transaction-log-decoder")
    assert '"transactionalId":"dumped"' in said
    assert '"transactionStatus":' in said


def test_kafka_decodes_the_committed_offsets(data) -> None:
    logs = [path for path in sorted(data.glob("__consumer_offsets-*/*.log")) if path.stat().st_size]
    said = dump(logs, "--offsets-decoder")
    assert '"group":"dumpers"' in said
    assert '"offset":5' in said

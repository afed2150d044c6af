"""Directories change hands: what Apache Kafka wrote opens here, and what was written here opens in Apache Kafka."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from semel.log.checkpoints import CLEAN_SHUTDOWN, decode_partition_metadata, marked_by_semel
from semel.log.inspection import inspect
from semel.log.opening import open_partition_log
from tests.log.disk import NOW, InlineFiles, batch, crash, read_all, settings
from tests.support.apache_kafka import ApacheKafka
from tests.support.requirements import require_kafka
from tests.support.waiting import until

pytestmark = pytest.mark.java


@pytest.mark.timeout(120)
def test_what_kafka_wrote_is_read_here(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    servers = {"bootstrap.servers": apache_kafka.bootstrap_servers}
    topic = NewTopic("written-by-kafka", 1, 1, config={"segment.bytes": "1048576", "index.interval.bytes": "200"})
    admin = AdminClient(servers)
    for created in admin.create_topics([topic]).values():
        created.result(30)
    producer = Producer({**servers, "transactional.id": "tester", "compression.type": "lz4", "linger.ms": 0})
    producer.init_transactions(30)
    for round_number in range(4):
        producer.begin_transaction()
        for number in range(50):
            producer.produce("written-by-kafka", f"{round_number}.{number}".encode(), key=b"k")
        if round_number % 2:
            # What was not sent before an abort never reaches the log.
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    # The answer to an abort comes before its markers; a successor is let in only after them.
    Producer({**servers, "transactional.id": "tester"}).init_transactions(30)
    source = apache_kafka.data / "written-by-kafka-0"
    shutil.copytree(source, tmp_path / "written-by-kafka-0")
    topic_id = decode_partition_metadata((source / "partition.metadata").read_bytes())
    log = open_partition_log(
        tmp_path / "written-by-kafka-0",
        "written-by-kafka",
        0,
        settings(segment_bytes=1048576, index_interval_bytes=200),
        NOW,
        topic_id=topic_id,
        clean=False,
        files=InlineFiles(),
    )
    committed = [b"%d.%d" % (round_number, number) for round_number in (0, 2) for number in range(50)]
    assert [record.value for record in read_all(log, 1)] == committed
    assert len(read_all(log, 0)) == 200
    assert log.last_stable_offset == log.end_offset
    assert len(log.producers) >= 1
    for segment in log.segments:
        assert inspect(segment.log_path, records=True).problems == []
    assert log.append(batch(), log.times.max_timestamp_offset().timestamp_ms).base_offset == log.end_offset - 1  # type: ignore[union-attr]
    crash(log)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "clean", [pytest.param(True, id="stopped in order"), pytest.param(False, id="killed", marks=pytest.mark.soak)]
)
def test_what_we_wrote_is_read_by_kafka(tmp_path: Path, clean: bool) -> None:
    """A real broker takes the directory over: no complaint, every record, aborted ones left out, and it goes on."""
    require_kafka()
    name = "written-here"
    with ApacheKafka(settings={"log.cleaner.enable": "false"}) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for created in admin.create_topics([NewTopic(name, 1, 1)]).values():
            created.result(30)
        directory = kafka.data / f"{name}-0"
        until((directory / "partition.metadata").exists, within_s=30, what="the partition and its id")
        topic_id = decode_partition_metadata((directory / "partition.metadata").read_bytes())
        del admin
        assert kafka.stop() in (0, 143)
        shutil.rmtree(directory)
        now_ms = int(time.time() * 1000)
        log = open_partition_log(
            directory,
            name,
            0,
            settings(segment_bytes=20_000, index_interval_bytes=300),
            now_ms,
            topic_id=topic_id,
            clean=True,
            files=InlineFiles(),
        )
        expected = []
        for number in range(100):
            values = [b"%d.%d" % (number, i) for i in range(3)]
            log.append(batch(5, number * 3, *values, codec=number % 5, timestamp_ms=now_ms), now_ms)
            expected += values
            guard = log.start_verification(7, 0, number)
            in_transaction = batch(7, number, b"t%d" % number, transactional=True, timestamp_ms=now_ms)
            log.append(in_transaction, now_ms, guard=guard)
            log.append_marker(7, 0, number % 2 == 0, 0, 1, now_ms)
            expected += [] if number % 2 else [b"t%d" % number]
        if clean:
            log.close(now_ms)
        else:
            (kafka.data / ".kafka_cleanshutdown").unlink()
            log.flusher.flush()
            crash(log)
        kafka.start()
        servers = {"bootstrap.servers": kafka.bootstrap_servers}
        consumer = Consumer({**servers, "group.id": "g", "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(name, 0, 0)])
        found: list[bytes | None] = []

        def all_found() -> bool:
            found.extend(message.value() for message in consumer.consume(500, 1.0) if message.error() is None)
            return len(found) >= len(expected)

        until(all_found, within_s=60, what="every committed record")
        assert found == expected
        print(f"{len(found)} committed records written here and read by Apache Kafka, stopped cleanly: {clean}")
        consumer.close()
        producer = Producer({**servers, "enable.idempotence": True})
        producer.produce(name, b"written by Kafka")
        assert producer.flush(30) == 0
        kafka.stop()
        said = (kafka.directory / "server.log").read_text()
        assert "orrupt" not in said and f"{name}-0 is offline" not in said
        assert (kafka.data / CLEAN_SHUTDOWN).exists() and not marked_by_semel(InlineFiles(), kafka.data)

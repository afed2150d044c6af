"""A partition that Apache Kafka wrote opens here, with every record, every abort and every producer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from semel.log.checkpoints import decode_partition_metadata
from semel.log.inspection import inspect
from semel.log.partition_log import PartitionLog
from tests.log.disk import NOW, InlineFiles, batch, crash, read_all, settings
from tests.support.apache_kafka import ApacheKafka

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
    source = apache_kafka.data / "written-by-kafka-0"
    shutil.copytree(source, tmp_path / "written-by-kafka-0")
    topic_id = decode_partition_metadata((source / "partition.metadata").read_bytes())
    log = PartitionLog.open(
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
    assert log.append(batch(), log.max_timestamp_offset().timestamp_ms).base_offset == log.end_offset - 1  # type: ignore[union-attr]
    crash(log)

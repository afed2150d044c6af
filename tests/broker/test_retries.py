"""Answers that get lost: clients retry with five requests in flight, and every record is stored once and in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from semel.broker.embedded import Broker
from semel.records.batch import read_records, split
from semel.testing.fault_proxy import Cut, FaultProxy, every
from semel.wire.apis import ApiKey
from tests.broker.raw import Raw
from tests.support import java_tools

RECORDS = 100_000


def stored_values(broker: Broker, topic: str) -> Iterator[bytes]:
    with Raw(broker) as raw:
        offset = 0
        while (data := raw.fetch(topic, offset, max_wait_ms=0)).records:
            for stored in split(data.records):
                assert stored.base_offset == offset
                offset = stored.next_offset
                for record in read_records(stored):
                    assert record.value is not None
                    yield bytes(record.value)


@pytest.mark.timeout(180)
def test_librdkafka_behind_a_proxy_that_loses_answers_writes_every_record_once(broker: Broker, topic: str) -> None:
    with FaultProxy(broker.bootstrap_servers, every(5, ApiKey.PRODUCE, Cut())) as proxy:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 5,
                "batch.num.messages": 2000,
                "linger.ms": 2,
                "queue.buffering.max.messages": RECORDS + 1,
                "reconnect.backoff.ms": 1,
                "reconnect.backoff.max.ms": 10,
                "retry.backoff.ms": 1,
                "log_level": 0,
            }
        )
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number, partition=0)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(120) == 0
        assert proxy.faults["Cut"] >= 5
    assert list(stored_values(broker, topic)) == [b"%d" % number for number in range(RECORDS)]


@pytest.mark.timeout(180)
def test_the_java_client_behind_a_proxy_that_loses_answers_writes_every_record_once(
    broker: Broker, topic: str, kafka_jars: None, tmp_path: Path
) -> None:
    # The tool itself switches retries off.
    config = tmp_path / "producer.properties"
    config.write_text("retries=2147483647\nretry.backoff.ms=5\nreconnect.backoff.ms=5\n")
    with Raw(broker) as raw:
        raw.create(topic)
    with FaultProxy(broker.bootstrap_servers, every(5, ApiKey.PRODUCE, Cut())) as proxy:
        java_tools.run(
            "verifiable-producer",
            "--bootstrap-server",
            proxy.bootstrap_servers,
            "--topic",
            topic,
            "--max-messages",
            RECORDS,
            "--command-config",
            config,
            timeout_s=150,
        )
        assert proxy.faults["Cut"] >= 5
    assert list(stored_values(broker, topic)) == [b"%d" % number for number in range(RECORDS)]

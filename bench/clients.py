"""The clients that drive both servers: Kafka's own performance tool, and librdkafka through confluent-kafka."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.harness import Server
from tests.support import java_tools

_RATE = re.compile(r"([\d.]+) records/sec")


def create_topic(server: Server, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)


def producer_performance(
    server: Server,
    topic: str,
    records: int,
    size_bytes: int,
    *more: object,
    properties: tuple[str, ...] = (),
    at: str | None = None,
) -> float:
    """Records per second by Kafka's ProducerPerformance with acks=all, as its last line says; `at` another listener."""
    done = java_tools.run(
        "producer-performance",
        *("--bootstrap-server", at or server.bootstrap_servers, "--topic", topic),
        *("--num-records", records, "--record-size", size_bytes, "--throughput", -1),
        *("--command-property", "acks=all", *properties),
        *more,
        jvm=java_tools.FULL,
        timeout_s=300,
    )
    rates = _RATE.findall(done.stdout.strip().splitlines()[-1])
    assert rates, str(done)
    return float(rates[0])


def consume_all(server: Server, topic: str, records: int, more: Mapping[str, object] | None = None) -> float:
    """Records per second by one librdkafka consumer, with `more` settings, from the first record to the last."""
    settings = {
        "bootstrap.servers": server.bootstrap_servers,
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        # With a full queue librdkafka stops fetching for a whole second, and the faster the broker, the more of the
        # time would be that second.
        "fetch.queue.backoff.ms": 1,
        **(more or {}),
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen = 0
        deadline = time.monotonic() + 120
        began = time.perf_counter()
        while seen < records:
            seen += len(consumer.consume(10_000, timeout=1.0))
            assert time.monotonic() < deadline, f"{seen} of {records} records after 120 s"
        return records / (time.perf_counter() - began)
    finally:
        consumer.close()


def first_acknowledged(server: Server, topic: str, within_s: float = 60.0) -> None:
    """Returns when one record is acknowledged, by a client that has been trying since it was called."""
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 10,
            "retry.backoff.ms": 5,
            "topic.metadata.refresh.fast.interval.ms": 10,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.produce(topic, b"first", on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(within_s) == 0, "the first record was not acknowledged in time"
    assert not failed, failed


def transactional_producer(server: Server, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    return producer

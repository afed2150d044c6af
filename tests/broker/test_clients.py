"""Clients that do not know this is not Kafka: confluent-kafka (librdkafka), kafka-python, aiokafka."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from semel.broker.embedded import Broker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def confluent_read(
    broker: Broker, topic: str, count: int, *, isolation: str = "read_committed", partition: int = 0
) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 20
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                if message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF and len(values) >= count:
                    return values
                continue
            values.append(message.value())
    finally:
        consumer.close()
    return values


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_kafka_writes_idempotently_with_every_codec(broker: Broker, topic: str, codec: str) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
        }
    )
    sent = [b"%d-%s" % (number, b"x" * 100) for number in range(500)]
    for value in sent:
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    assert confluent_read(broker, topic, len(sent)) == sent


def test_confluent_kafka_commits_aborts_and_is_fenced(broker: Broker, topic: str) -> None:
    def producer() -> Any:
        made = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
        made.init_transactions(20)
        return made

    first = producer()
    first.begin_transaction()
    first.produce(topic, b"kept")
    first.commit_transaction(20)
    first.begin_transaction()
    first.produce(topic, b"dropped")
    assert first.flush(20) == 0
    first.abort_transaction(20)
    first.begin_transaction()
    first.produce(topic, b"zombie")
    assert first.flush(20) == 0
    second = producer()
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        first.commit_transaction(20)
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"after")
    second.commit_transaction(20)
    assert confluent_read(broker, topic, 2) == [b"kept", b"after"]
    everything = confluent_read(broker, topic, 4, isolation="read_uncommitted")
    assert everything == [b"kept", b"dropped", b"zombie", b"after"]


def test_confluent_kafka_consumes_transforms_and_produces_exactly_once(broker: Broker, topic: str) -> None:
    source, target = topic + "-in", topic + "-out"
    writer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(20):
        writer.produce(source, b"%d" % number)
    assert writer.flush(20) == 0
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(20)
    group = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = confluent_kafka.Consumer(group)
    consumer.subscribe([source])
    done = 0
    while done < 20:
        messages = [one for one in consumer.consume(5, 10.0) if one.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value() * 2)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 20)
        producer.commit_transaction(20)
        done += len(messages)
    consumer.close()
    assert confluent_read(broker, target, 20) == [b"%d" % number * 2 for number in range(20)]
    again = confluent_kafka.Consumer(group)
    committed = again.committed([confluent_kafka.TopicPartition(source, 0)], 10)
    again.close()
    assert committed[0].offset == 20


def test_confluent_kafka_members_share_a_topic_through_a_group(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 4)])[topic].result(20)
    group = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 300,
    }
    members = [confluent_kafka.Consumer(group) for _ in range(2)]
    for member in members:
        member.subscribe([topic])
    deadline = time.monotonic() + 30
    while sorted(len(member.assignment()) for member in members) != [2, 2] and time.monotonic() < deadline:
        for member in members:
            member.poll(0.1)
    assert sorted(len(member.assignment()) for member in members) == [2, 2]
    for member in members:
        member.close()


def test_confluent_kafka_administers(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, config={"retention.ms": "1234"})])[topic].result(20)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.create_topics([NewTopic(topic, 2)])[topic].result(20)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(20)["retention.ms"].value == "1234"
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(20)
    assert len(admin.list_topics(topic, 20).topics[topic].partitions) == 5
    cluster = admin.describe_cluster().result(20)
    assert cluster.controller.id == 1
    admin.delete_topics([topic])[topic].result(20)
    assert topic not in admin.list_topics(timeout=20).topics


def test_kafka_python_writes_reads_and_transacts(broker: Broker, topic: str) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(10):
        producer.send(topic, b"%d" % number)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send(topic, b"dropped")
    producer.abort_transaction()
    producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=20_000,
        group_id=topic,
    )
    consumer.subscribe([topic])
    values = []
    for record in consumer:
        values.append(record.value)
        if len(values) == 10:
            break
    consumer.commit()
    assert consumer.committed(kafka.TopicPartition(topic, 0)) == 10
    consumer.close()
    assert values == [b"%d" % number for number in range(10)]


def test_aiokafka_writes_reads_and_transacts(broker: Broker, topic: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def conversation() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
        await producer.start()
        async with producer.transaction():
            for number in range(10):
                await producer.send_and_wait(topic, b"%d" % number)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"dropped")
        await producer.abort_transaction()
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            group_id=topic,
        )
        await consumer.start()
        values = []
        async with asyncio.timeout(20):
            async for record in consumer:
                values.append(record.value)
                if len(values) == 10:
                    break
        await consumer.commit()
        await consumer.stop()
        return values

    assert asyncio.run(conversation()) == [b"%d" % number for number in range(10)]


def test_semels_own_client_commits_with_protocol_v2(broker: Broker, topic: str) -> None:
    import semel

    with semel.Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"ours")
        producer.commit_transaction()
    assert confluent_read(broker, topic, 1) == [b"ours"]

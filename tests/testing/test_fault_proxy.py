"""The proxy loses what it is told to lose, and clients that nobody here wrote stay behind it and get over it."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from semel.testing.fault_proxy import Cut, Delay, FaultProxy, Mute, Swallow, Way, every, nth_only
from semel.wire.apis import ApiKey
from tests.support import java_tools
from tests.support.reading import read_all

RECORDS = 100_000


def create(bootstrap_servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)


def produce(bootstrap_servers: str, topic: str, count: int, **settings: object) -> None:
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, **settings})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, str(number).encode(), on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(50) == 0
    assert failed == []


def test_clients_stay_behind_the_proxy(semel_broker) -> None:
    with FaultProxy(semel_broker.bootstrap_servers) as proxy:
        create(proxy.bootstrap_servers, "t")
        produce(proxy.bootstrap_servers, "t", 100)
        assert proxy.passed[Way.REQUEST, ApiKey.PRODUCE] > 0
        assert read_all(proxy.bootstrap_servers, "t") == [str(number).encode() for number in range(100)]
        assert proxy.passed[Way.RESPONSE, ApiKey.FETCH] > 0
        assert proxy.faults == {}


@pytest.mark.parametrize("fault", [Cut(), Mute(), Swallow(), Delay(300)], ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
def test_a_lost_or_late_message_costs_a_retry_and_nothing_else(semel_broker, fault, way) -> None:
    create(semel_broker.bootstrap_servers, "t")
    with FaultProxy(semel_broker.bootstrap_servers, nth_only(1, ApiKey.PRODUCE, fault, way=way)) as proxy:
        produce(proxy.bootstrap_servers, "t", 10, **{"socket.timeout.ms": 1000, "retry.backoff.ms": 10})
        assert proxy.faults == {type(fault).__name__: 1}
    assert read_all(semel_broker.bootstrap_servers, "t") == [str(number).encode() for number in range(10)]


def test_librdkafka_retries_with_five_in_flight_leave_no_duplicate_no_loss_and_the_order(semel_broker) -> None:
    create(semel_broker.bootstrap_servers, "t")
    with FaultProxy(semel_broker.bootstrap_servers, every(11, ApiKey.PRODUCE, Cut())) as proxy:
        settings = {"retry.backoff.ms": 5, "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 10}
        produce(proxy.bootstrap_servers, "t", RECORDS, **settings, **{"batch.num.messages": 500, "linger.ms": 1})
        assert proxy.faults["Cut"] >= 10
    assert read_all(semel_broker.bootstrap_servers, "t") == [str(number).encode() for number in range(RECORDS)]


@pytest.mark.java
@pytest.mark.usefixtures("kafka_jars")
def test_java_retries_with_five_in_flight_leave_no_duplicate_no_loss_and_the_order(semel_broker, tmp_path) -> None:
    create(semel_broker.bootstrap_servers, "t")
    config = tmp_path / "producer.properties"
    config.write_text("retries=2147483647\nenable.idempotence=true\nbatch.size=4096\nretry.backoff.ms=5\nreconnect.backoff.ms=1\nreconnect.backoff.max.ms=10\n")
    with FaultProxy(semel_broker.bootstrap_servers, every(11, ApiKey.PRODUCE, Cut())) as proxy:
        where = ("--bootstrap-server", proxy.bootstrap_servers, "--topic", "t", "--command-config", config)
        done = java_tools.run("verifiable-producer", *where, "--max-messages", RECORDS, "--throughput", -1)
        assert f'"acked":{RECORDS}' in done.stdout
        assert proxy.faults["Cut"] >= 10
    assert read_all(semel_broker.bootstrap_servers, "t") == [str(number).encode() for number in range(RECORDS)]

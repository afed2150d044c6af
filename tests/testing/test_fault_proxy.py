"""The proxy loses what it is told to lose, and clients that nobody here wrote stay behind it and get over it."""

from __future__ import annotations

import sys
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from semel.testing.fault_proxy import Cut, Delay, FaultProxy, Hold, Mute, Swallow, Way, nth_only
from semel.wire.apis import ApiKey
from tests.support.processes import Process
from tests.support.reading import read_all
from tests.support.waiting import until


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


def test_a_held_message_arrives_when_it_is_released_though_its_sender_is_gone(semel_broker) -> None:
    create(semel_broker.bootstrap_servers, "late")
    released = threading.Event()
    rule = nth_only(1, ApiKey.PRODUCE, Hold(released), way=Way.REQUEST)
    script = "import sys, confluent_kafka as c; p = c.Producer({'bootstrap.servers': sys.argv[1]}); "
    script += "p.produce('late', b'a word from the grave'); p.flush(60)"
    with FaultProxy(semel_broker.bootstrap_servers, rule) as proxy:
        with Process([sys.executable, "-c", script, proxy.bootstrap_servers], name="sender") as sender:
            until(lambda: proxy.faults["Hold"], what="the message to be held")
            sender.kill9()
        assert read_all(semel_broker.bootstrap_servers, "late") == []
        released.set()
        until(lambda: proxy.passed[Way.RESPONSE, ApiKey.PRODUCE] == 1, what="the answer")
    assert read_all(semel_broker.bootstrap_servers, "late") == [b"a word from the grave"]


@pytest.mark.parametrize("broker", ["nohost", ":9092", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:0", "a:1,b:2,"])
def test_what_is_no_address_is_refused_in_words(broker: str) -> None:
    with pytest.raises(ValueError, match="the address of one broker is host:port"):
        FaultProxy(broker)


def test_a_port_in_place_of_an_address_is_refused_in_words() -> None:
    with pytest.raises(TypeError, match="host:port, not int"):
        FaultProxy(9092)  # type: ignore[arg-type]

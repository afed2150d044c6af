"""A client that waits says so in the log: one warning when it begins, one when it is over, and no more."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from semel import Admin, Broker, Consumer, Producer
from tests.support.processes import BrokerProcess
from tests.support.waiting import until

Caplog = pytest.LogCaptureFixture


def told(caplog: Caplog, who: str, what: str) -> list[str]:
    """What the log says about this, of clients of this kind."""
    found = [row for row in caplog.records if row.name.startswith("semel.client")]
    assert all(row.levelname == "WARNING" for row in found)
    return [text for row in found if what in (text := row.getMessage()) and text.startswith(who)]


def config(bootstrap: str, **more: object) -> dict[str, object]:
    named = {key.replace("_", "."): value for key, value in more.items()}
    return {"bootstrap.servers": bootstrap, "retry.backoff.max.ms": 100, "reconnect.backoff.max.ms": 100, **named}


def in_the_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def fails_of_no_connection(broker: BrokerProcess, caplog: Caplog, who: str, meanwhile: Callable[[], object]) -> None:
    """Kill the broker, see one warning however long it lasts; start it, see one more."""
    where = f"no connection to the broker at {broker.bootstrap_servers}"
    broker.kill9()
    until(lambda: meanwhile() or told(caplog, who, where), what="a warning")
    for _ in range(20):
        meanwhile()
    assert len(told(caplog, who, where)) == 1
    broker.start()
    until(lambda: meanwhile() or len(told(caplog, who, where)) == 2, what="the end")
    assert "over after" in told(caplog, who, where)[1]


@pytest.mark.parametrize("protocol", ["classic", "consumer", None])
def test_a_consumer_says_that_the_broker_is_down(
    broker_process: BrokerProcess, name: str, caplog: Caplog, protocol: str | None
) -> None:
    settings = config(broker_process.bootstrap_servers, client_id=name)
    if protocol is not None:
        settings |= {"group.id": name, "group.protocol": protocol, "enable.auto.commit": False}
    with Producer(config(broker_process.bootstrap_servers)) as producer:
        producer.send(name, b"0").result(30)
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(name, 0)]) if protocol is None else consumer.subscribe(name)
        until(lambda: consumer.poll(200), what="the record")
        fails_of_no_connection(broker_process, caplog, f"consumer '{name}'", lambda: consumer.poll(50) and None)


def test_a_consumer_says_that_the_broker_was_never_there(name: str, caplog: Caplog) -> None:
    with Consumer(config("127.0.0.1:1", client_id=name)) as consumer:
        consumer.assign([(name, 0)])
        until(lambda: consumer.poll(50) or told(caplog, f"consumer '{name}'", "127.0.0.1:1"), what="a warning")
        for _ in range(20):
            consumer.poll(20)
    assert len(told(caplog, f"consumer '{name}'", "127.0.0.1:1")) == 1, "closing ends nothing"


def test_a_producer_says_that_the_broker_is_down(broker_process: BrokerProcess, name: str, caplog: Caplog) -> None:
    with Producer(config(broker_process.bootstrap_servers, client_id=name)) as producer:
        producer.send(name, b"0").result(30)
        sent: list[Any] = []
        fails_of_no_connection(
            broker_process, caplog, f"producer '{name}'", lambda: sent.append(producer.send(name, b"1"))
        )
        assert sent[-1].result(30).offset == len(sent)


def test_an_admin_says_that_the_broker_is_down(broker_process: BrokerProcess, name: str, caplog: Caplog) -> None:
    with Admin(config(broker_process.bootstrap_servers, client_id=name)) as admin:
        admin.list_topics()
        callers: list[threading.Thread] = []

        def meanwhile() -> None:
            if not callers or not callers[-1].is_alive():
                callers.append(in_the_background(admin.list_topics))

        fails_of_no_connection(broker_process, caplog, f"admin '{name}'", meanwhile)
        callers[-1].join(60)


NO_TOPICS_BY_ASKING = pytest.mark.semel(
    **{"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}
)


@NO_TOPICS_BY_ASKING
@pytest.mark.parametrize("protocol", ["classic", "consumer", None])
def test_a_consumer_says_that_a_topic_is_missing_and_reads_it_when_it_comes(
    semel_broker: Broker, name: str, caplog: Caplog, protocol: str | None
) -> None:
    bootstrap = semel_broker.bootstrap_servers
    settings = config(bootstrap, client_id=name)
    if protocol is not None:
        settings |= {"group.id": name, "group.protocol": protocol}
    missing, who = f"topic '{name}' is not there", f"consumer '{name}'"
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(name, 0)]) if protocol is None else consumer.subscribe(name)
        until(lambda: consumer.poll(50) or told(caplog, who, missing), what="a warning")
        for _ in range(20):
            consumer.poll(50)
        assert len(told(caplog, who, missing)) == 1
        with Admin(config(bootstrap)) as admin, Producer(config(bootstrap)) as producer:
            admin.create_topic(name)
            producer.send(name, b"0").result(30)
        # The metadata is five minutes old only when this is over.
        until(lambda: consumer.poll(200), what="the record")
        assert len(told(caplog, who, missing)) == 2
        assert "over after" in told(caplog, who, missing)[1]


@NO_TOPICS_BY_ASKING
def test_a_producer_says_that_a_topic_is_missing(semel_broker: Broker, name: str, caplog: Caplog) -> None:
    bootstrap = semel_broker.bootstrap_servers
    missing, who = f"topic '{name}' is not there", f"producer '{name}'"
    with Producer(config(bootstrap, client_id=name)) as producer, Admin(config(bootstrap)) as admin:
        sending = in_the_background(lambda: producer.send(name, b"0"))
        until(lambda: told(caplog, who, missing), what="a warning")
        admin.create_topic(name)
        until(lambda: len(told(caplog, who, missing)) == 2, what="the end")
        sending.join(30)
        assert not sending.is_alive()


def test_a_topic_that_is_made_by_asking_for_it_is_no_trouble(session_broker: Broker, name: str, caplog: Caplog) -> None:
    bootstrap = session_broker.bootstrap_servers
    with Producer(config(bootstrap)) as producer:
        producer.send(name, b"0").result(30)
    with Consumer(config(bootstrap, group_id=name, auto_offset_reset="earliest")) as consumer:
        consumer.subscribe(name)
        until(lambda: consumer.poll(200), what="the record")
    with Admin(config(bootstrap)) as admin:
        with pytest.raises(Exception, match="no topic"):
            admin.describe_topics([f"{name}-none"])
        admin.create_topic(f"{name}-none")
        admin.describe_topics([f"{name}-none"])
    assert [row.getMessage() for row in caplog.records if row.name.startswith("semel.client")] == []


def test_a_pattern_that_nothing_matches_is_told(session_broker: Broker, name: str, caplog: Caplog) -> None:
    bootstrap = session_broker.bootstrap_servers
    settings = config(bootstrap, group_id=name, client_id=name, metadata_max_age_ms=100, auto_offset_reset="earliest")
    with Consumer(settings) as consumer:
        consumer.subscribe(re.compile(f"{name}-.*"))
        who, what = f"consumer '{name}'", f"no topic matches '{name}-.*'"
        assert len(told(caplog, who, what)) == 1
        with Producer(config(bootstrap)) as producer:
            producer.send(f"{name}-1", b"0").result(30)
        until(lambda: consumer.poll(50), what="the record")
        assert len(told(caplog, who, what)) == 2

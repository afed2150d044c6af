"""Records that fail and whose deliveries nobody looks at: the log says how many, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from semel import Admin, Broker, Producer
from semel.client.producer.delivery import Delivery
from semel.client.producer.producer import AsyncProducer
from semel.errors import AbortTransaction, InvalidRecord, KafkaError
from tests.support.waiting import until


@pytest.fixture
def topic(session_broker: Broker, name: str) -> str:
    """A topic that refuses records without a key."""
    with Admin({"bootstrap.servers": session_broker.bootstrap_servers}) as admin:
        admin.create_topic(name, configs={"cleanup.policy": "compact"})
    return name


@pytest.fixture
def settings(session_broker: Broker) -> dict[str, object]:
    return {"bootstrap.servers": session_broker.bootstrap_servers}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [row.getMessage() for row in caplog.records if row.name == "semel.client.producer.unheard"]


def test_records_that_fail_unheard_are_counted_in_the_log(
    topic: str, settings: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(settings) as producer:
        producer.send(topic, "no key")
        producer.flush()
        until(lambda: told(caplog), what="a line in the log")
        for _ in range(7):
            producer.send(topic, "no key")
            producer.send(topic, "a key", key="k")
            producer.flush()
    first, rest = told(caplog)
    assert f"1 records for topic '{topic}' were not written" in first
    assert "INVALID_RECORD" in first and "has no key" in first
    assert f"7 records for topic '{topic}' were not written" in rest, "no line for each, and all in the end"


@pytest.mark.parametrize("late", [False, True], ids=["before closing", "after closing"])
def test_a_delivery_that_is_dropped_late_is_told_as_well(
    topic: str, settings: dict[str, object], caplog: pytest.LogCaptureFixture, late: bool
) -> None:
    with Producer(settings) as producer:
        kept = [producer.send(topic, "no key")]
        producer.flush()
        assert told(caplog) == [], "somebody may still ask"
        if not late:
            kept.clear()
    kept.clear()
    until(lambda: len(told(caplog)) == 1, what="a line in the log")


def test_what_somebody_has_heard_of_is_not_told(
    topic: str, settings: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[KafkaError | None] = []

    def result(delivery: Delivery) -> None:
        with pytest.raises(InvalidRecord):
            delivery.result(30)

    asked: list[Callable[[Delivery], object]] = [
        result,
        lambda delivery: heard.append(delivery.exception(30)),
        lambda delivery: delivery.add_done_callback(lambda done: heard.append(done.exception())),
    ]
    with Producer(settings) as producer:
        for ask in asked:
            ask(producer.send(topic, "no key"))
            producer.flush()
    assert [type(error) for error in heard] == [InvalidRecord, InvalidRecord]

    async def send() -> None:
        async with AsyncProducer(settings) as producer:
            with pytest.raises(InvalidRecord):
                await (await producer.send(topic, "no key"))

    asyncio.run(send())
    with Producer({**settings, "transactional.id": topic}) as producer:
        producer.init_transactions()
        with suppress(AbortTransaction, InvalidRecord), producer.transaction():
            producer.send(topic, "no key")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, "given up", key="k")
            raise ZeroDivisionError
    assert told(caplog) == [], "the commit has told it, or the caller has asked for the abort"


def test_a_callback_that_asks_nothing_has_not_heard(
    topic: str, settings: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(settings) as producer:
        producer.send(topic, "no key").add_done_callback(lambda done: None)
    until(lambda: len(told(caplog)) == 1, what="a line in the log")

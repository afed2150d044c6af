"""The audit log: one line for each denied request and each failed authentication, bounded, without secrets."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import semel
from semel.broker.dispatch import Call
from semel.broker.embedded import Broker
from semel.broker.observability.audit import LINES_PER_SOURCE, NAME_CHARACTERS, NAMED_RESOURCES
from semel.broker.observability.metrics import render
from semel.config.broker import STANDARD_AUTHORIZER
from semel.machines.security.access import Operation, ResourceType
from semel.wire.apis import ApiKey
from semel.wire.messages.transactions import EndTxnRequest
from tests.broker.raw import Raw
from tests.support.waiting import until

AUTHENTICATION = {"host": "10.0.0.1", "listener": "PLAINTEXT", "mechanism": "PLAIN", "why": "a wrong password"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with semel.Broker(settings={"authorizer.class.name": STANDARD_AUTHORIZER}) as running:
        yield running


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    caplog.set_level(logging.INFO, "semel.audit")
    return lambda: [json.loads(record.getMessage()) for record in caplog.records if record.name == "semel.audit"]


def end(name: str = "payments") -> EndTxnRequest:
    return EndTxnRequest(transactional_id=name, producer_id=1, producer_epoch=0, committed=True)


def in_broker(broker: Broker, do: Callable[[], None]) -> None:
    """Run something on the broker's own thread, as a handler runs."""
    done = threading.Event()
    broker.server.loop.call_soon_threadsafe(lambda: (do(), done.set()))
    assert done.wait(10)


def counted(broker: Broker) -> dict[str, float]:
    rows = (line.rsplit(" ", 1) for line in render(broker.server).splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def test_a_denied_request_is_told_with_who_where_what_and_why(broker, lines) -> None:
    with Raw(broker, "app-1") as raw:
        raw.ask(end())
        until(lambda: len(lines()) == 1, what="the line")
    line = lines()[0]
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "event": "denied",
        "principal": "User:ANONYMOUS",
        "host": "127.0.0.1",
        "listener": "PLAINTEXT",
        "client_id": "app-1",
        "api": "EndTxn",
        "operation": "Write",
        "resource": "TransactionalId:payments",
        "why": "no rule names this resource, and allow.everyone.if.no.acl.found is false",
        "denied": 1,
        "also": [],
    }
    assert counted(broker)['semel_denied_requests_total{request="EndTxn"}'] == 1


def test_what_is_allowed_leaves_no_line(lines) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with semel.Broker(settings=settings) as broker, Raw(broker) as raw:
        raw.ask(end())
        assert "semel_denied_requests_total{" not in render(broker.server)
    assert lines() == []


def ask_for(broker: Broker, names: list[str], **keywords: bool) -> None:
    """What a guard does with a request that names these topics."""

    def guard() -> None:
        access, connection = broker.server.access, broker.server.connections.new(broker.server.listening.listeners[0])
        assert access is not None
        call = Call(ApiKey.PRODUCE, 11, 1, "app", connection)
        for name in names:
            assert not access.allows(call, Operation.WRITE, ResourceType.TOPIC, name, **keywords)

    in_broker(broker, guard)


def test_a_request_that_is_denied_many_things_is_one_line(broker, lines) -> None:
    ask_for(broker, [f"t{number}" for number in range(1000)])
    until(lambda: lines(), what="the line")
    (line,) = lines()
    assert line["denied"] == 1000
    assert line["resource"] == "Topic:t0"
    assert line["also"] == [f"Write Topic:t{number}" for number in range(1, NAMED_RESOURCES)]
    assert counted(broker)['semel_denied_requests_total{request="Produce"}'] == 1


def test_what_a_listing_hides_is_not_told(broker, lines) -> None:
    ask_for(broker, ["hidden"], logged=False)
    ask_for(broker, ["asked-for"])
    until(lambda: lines(), what="the line")
    assert [line["resource"] for line in lines()] == ["Topic:asked-for"]


def test_a_flood_of_denials_is_counted_and_not_written(broker, lines) -> None:
    with Raw(broker) as raw:
        for number in range(LINES_PER_SOURCE * 3):
            raw.ask(end(f"t{number}"))
        until(lambda: any(line["event"] == "left out" for line in lines()), what="the count of what was left out")
    denied = [line for line in lines() if line["event"] == "denied"]
    left_out = sum(line["lines"]["denied"] for line in lines() if line["event"] == "left out")
    assert len(denied) + left_out == LINES_PER_SOURCE * 3
    assert left_out == counted(broker)["semel_audit_lines_left_out_total"] > 0
    assert counted(broker)['semel_denied_requests_total{request="EndTxn"}'] == LINES_PER_SOURCE * 3


def test_one_that_floods_does_not_hide_another(broker, lines) -> None:
    def flood() -> None:
        audit = broker.server.audit
        for number in range(10_000):
            audit.authentication_failed(**AUTHENTICATION, principal=f"User:guess{number}")
        audit.authentication_failed(**{**AUTHENTICATION, "host": "10.0.0.2"}, principal="User:alice")

    in_broker(broker, flood)
    failed = [line for line in lines() if line["event"] == "authentication failed"]
    assert len(failed) == LINES_PER_SOURCE + 1
    assert failed[-1]["host"] == "10.0.0.2"
    name = 'kafka_server_socket_server_metrics_failed_authentication_total{listener="PLAINTEXT"}'
    assert counted(broker)[name] == 10_001


def test_a_stop_still_tells_what_was_left_out(lines) -> None:
    with semel.Broker() as broker:
        audit = broker.server.audit
        for _ in range(100):
            in_broker(broker, lambda: audit.authentication_failed(**AUTHENTICATION, principal="User:a"))
    assert lines()[-1]["lines"] == {"authentication failed": 100 - LINES_PER_SOURCE}


def test_a_name_cannot_fake_a_line_and_is_cut(broker, lines, caplog) -> None:
    forged = 'x\n{"event": "denied", "principal": "User:admin"}\u2028'
    in_broker(broker, lambda: broker.server.audit.authentication_failed(**AUTHENTICATION, principal=forged))
    in_broker(broker, lambda: broker.server.audit.authentication_failed(**AUTHENTICATION, principal="a" * 500_000))
    first, second = (record.getMessage() for record in caplog.records if record.name == "semel.audit")
    assert len(first.splitlines()) == 1
    assert json.loads(first)["principal"] == forged
    assert len(json.loads(second)["principal"]) == NAME_CHARACTERS + 3

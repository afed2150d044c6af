"""Whatever is handed to a consumer, an admin or a session works or is refused by name, and nothing is left broken.

One table for all: every public method of every class is called with every wrong thing at every place, and after each
call a right one is made.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel import AclBinding, Admin, Broker, Consumer, NewTopic, Producer, TopicPartition, TransactSession
from semel.config import ConfigError
from semel.errors import InvalidConfig, KafkaError, Misuse, Retriable
from semel.machines.transactions.producer import OffsetAndMetadata
from tests.support.waiting import until

TOPIC = "arguments"


class Hostile:
    """Something that cannot even be looked at."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


#: Nothing here is right everywhere, and little of it is right anywhere.
JUNK: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    -5,
    2**31,
    2**70,
    -(2**70),
    1.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    "arguments",
    "no/such topic",
    "x" * 300,
    "x" * 40_000,
    "\ud800",
    "\0",
    b"arguments",
    bytearray(b"a"),
    [],
    {},
    (),
    set(),
    [None],
    ["arguments"],
    [b"arguments"],
    [""],
    ["x" * 40_000],
    [("arguments", 0)],
    [("arguments", "0")],
    [("arguments", -1)],
    [("arguments", 2**40)],
    [("arguments", 7)],
    [("arguments",)],
    [(0, "arguments")],
    [["arguments", 0]],
    ("arguments", 0),
    ("arguments", None),
    TopicPartition("arguments", 0),
    TopicPartition("arguments", "0"),  # type: ignore[arg-type]
    TopicPartition(None, 0),  # type: ignore[arg-type]
    {("arguments", 0): 0},
    {("arguments", 0): "0"},
    {("arguments", 0): None},
    {("arguments", 0): 2**70},
    {("arguments", 0): -7},
    {("arguments", 0): OffsetAndMetadata("0", None, 5)},  # type: ignore[arg-type]
    {("arguments", 0): OffsetAndMetadata(1, -1, "x" * 40_000)},
    {"arguments": 0},
    {"arguments": 2**70},
    {"retention.ms": object()},
    {1: 2},
    [NewTopic("arguments", 2**40)],
    [NewTopic(5, "many", None, [])],  # type: ignore[arg-type]
    [AclBinding("arguments", "read", "topic", "arguments")],
    [AclBinding("User:arguments", "fly", "cloud", "arguments")],
    [AclBinding("User:arguments", "read", "cluster", "arguments")],
    [AclBinding(5, None, [], b"")],  # type: ignore[arg-type]
    [AclBinding("User:" + "x" * 40_000, "read", "topic", "\ud800")],
    object(),
    object,
    Hostile(),
    lambda: None,
    re.compile("arg.*"),
    re.compile(b"arg.*"),
    (number for number in range(3)),
    "topic",
    "broker",
    "topics",
]

#: What may be raised, as the classes say: TypeError for the wrong type, and the tree.
EXPECTED = (TypeError, KafkaError, ConfigError)

SHORT = {
    "default.api.timeout.ms": 250,
    "request.timeout.ms": 250,
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 20,
}


def public(kind: type) -> list[str]:
    """Every method that a user may call, the constructor left out."""
    found = [name for name, value in inspect.getmembers(kind, callable) if not name.startswith("_")]
    return [name for name in found if name != "close"]


def parameters(kind: type, method: str) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(kind, method)).parameters.values())[1:]


#: Right arguments, where a method cannot be called without: the wrong one is put in the place of one of them.
RIGHT: dict[str, Any] = {
    "topics": ["arguments"],
    "partitions": [("arguments", 0)],
    "partition": ("arguments", 0),
    "offset": 0,
    "timestamps": {("arguments", 0): 0},
    "topic": "arguments",
    "name": "arguments",
    "names": ["arguments"],
    "counts": {"arguments": 2},
    "kind": "topic",
    "changes": {"retention.ms": 5000},
    "before": {("arguments", 0): 0},
    "wanted": {("arguments", 0): -1},
    "group_ids": ["arguments"],
    "group_id": "arguments",
    "offsets": {("arguments", 0): 0},
    "transactional_ids": ["arguments"],
    "producer_id": 1,
    "producer_epoch": 1,
    "coordinator_epoch": 0,
    "user": "arguments",
    "acls": [AclBinding("User:arguments", "read", "topic", "arguments")],
    "password": "arguments",
    "timeout_ms": 0,
}


def refusal(work: Callable[[], object]) -> Exception | None:
    """What it raises, if it is what the classes promise; anything else goes through."""
    try:
        work()
    except EXPECTED as error:
        return error
    return None


def call(target: object, method: str, arguments: dict[str, Any]) -> None:
    """Call it. What it raises must be what the classes promise, in words of ours."""

    def work() -> None:
        answer = getattr(target, method)(**arguments)
        if method == "transaction":
            with answer:
                pass

    shown = {name: "..." if isinstance(value, Hostile) else value for name, value in arguments.items()}
    try:
        error = refusal(work)
    except Exception as unexpected:
        raise AssertionError(f"{method}({shown}) raised {unexpected!r}") from unexpected
    if type(error) is TypeError:
        words = str(error)
        assert re.search(r" (is|are|has) ", words), f"{method}({shown}) raised {words}"
        assert "positional argument" not in words, f"{method}({shown}) raised {words}"
    assert error is None or str(error)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": "false"}) as running:
        with Admin({"bootstrap.servers": running.bootstrap_servers}) as admin:
            admin.create_topic(TOPIC, 2)
        yield running


def make_consumer(broker: Broker) -> Consumer:
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "arguments-c", "enable.auto.commit": False}
    consumer = Consumer({**config, **SHORT, "auto.offset.reset": "earliest"})
    consumer.assign([(TOPIC, 0)])
    return consumer


def make_admin(broker: Broker) -> Admin:
    return Admin({"bootstrap.servers": broker.bootstrap_servers, **SHORT})


def make_session(broker: Broker) -> TransactSession:
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "arguments-s", "transactional.id": "arguments"}
    return TransactSession({**config, **SHORT, "max.block.ms": 250})


def check_consumer(consumer: Consumer) -> None:
    consumer.unsubscribe()
    consumer.assign([(TOPIC, 0)])
    assert consumer.end_offsets([(TOPIC, 0)]) == {TopicPartition(TOPIC, 0): 0}
    consumer.seek((TOPIC, 0), 0)
    assert consumer.poll(timeout_ms=0) == []


def check_admin(admin: Admin) -> None:
    if TOPIC not in admin.list_topics():
        admin.create_topic(TOPIC, 2)


def check_session(session: TransactSession) -> None:
    session.subscribe(TOPIC)
    with session.transaction(timeout_ms=0) as records:
        assert records == []


def patiently(check: Callable[[Any], None], target: Any) -> None:
    """A busy machine may need more than the short time that is allowed here."""

    def works() -> bool:
        try:
            check(target)
        except Retriable:
            return False
        return True

    until(works, what="a right call to work")


FACES: dict[str, tuple[type, Callable[[Broker], Any], Callable[[Any], None]]] = {
    "Consumer": (Consumer, make_consumer, check_consumer),
    "Admin": (Admin, make_admin, check_admin),
    "TransactSession": (TransactSession, make_session, check_session),
}

CASES = [(face, method) for face, (kind, _, _) in FACES.items() for method in public(kind)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("face", "method"), CASES, ids=[f"{face}.{method}" for face, method in CASES])
def test_anything_at_any_place_works_or_is_refused_and_the_next_call_works(
    broker: Broker, face: str, method: str
) -> None:
    kind, make, check = FACES[face]
    wanted = parameters(kind, method)
    needed = {p.name: RIGHT[p.name] for p in wanted if p.default is p.empty}
    with make(broker) as target:
        for parameter in wanted:
            for junk in JUNK:
                if parameter.name == "timeout_ms" and isinstance(junk, (int, float)) and junk > 1:
                    continue  # it would wait for so long
                call(target, method, {**needed, parameter.name: junk})
                if face != "Admin":
                    patiently(check, target)
        patiently(check, target)


@pytest.mark.timeout(120)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_calls_in_any_order_leave_a_consumer_that_works(broker: Broker, data: st.DataObject) -> None:
    with make_consumer(broker) as consumer:
        for _ in range(data.draw(st.integers(1, 6))):
            method = data.draw(st.sampled_from(public(Consumer)))
            names = [p.name for p in parameters(Consumer, method)]
            places = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
            arguments = {p.name: RIGHT[p.name] for p in parameters(Consumer, method) if p.default is p.empty}
            arguments |= {name: data.draw(st.sampled_from(JUNK)) for name in places}
            arguments["timeout_ms"] = 0 if "timeout_ms" in names else None
            call(consumer, method, {name: value for name, value in arguments.items() if name in names})
        patiently(check_consumer, consumer)


@pytest.mark.parametrize("face", sorted(FACES))
def test_whatever_the_settings_are_they_are_refused_by_name_and_no_thread_is_left(face: str) -> None:
    kind = FACES[face][0]
    before = threading.active_count()
    needed = {"group.id": "g", "transactional.id": "t"} if face == "TransactSession" else {}
    for junk in JUNK:
        with pytest.raises(EXPECTED):
            kind(junk)
    for junk in [junk for junk in JUNK if not isinstance(junk, Hostile)]:
        for name in ("bootstrap.servers", "client.id", "group.id", "request.timeout.ms", "isolation.level"):
            if face == "Admin" and name in ("group.id", "isolation.level"):
                continue
            refusal(lambda name=name, junk=junk: kind({**needed, name: junk}).close())
    assert threading.active_count() <= before


def test_closing_takes_anything_once(broker: Broker) -> None:
    for junk in JUNK:
        consumer = make_consumer(broker)
        refused = refusal(lambda consumer=consumer, junk=junk: consumer.close(junk))
        assert refused is None or "timeout_ms" in str(refused)
        consumer.close()
        with pytest.raises(Misuse, match="closed"):
            consumer.poll()


def test_a_topic_alone_is_no_partition_and_the_message_says_what_is(broker: Broker) -> None:
    with make_consumer(broker) as consumer:
        with pytest.raises(TypeError, match=r"pair of topic and number, such as \('payments', 0\), not 'arguments'"):
            consumer.assign([TOPIC])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="list"):
            consumer.assign(TOPIC)  # type: ignore[arg-type]


def test_a_kind_of_thing_that_has_no_settings_is_named_with_those_that_have(broker: Broker) -> None:
    with make_admin(broker) as admin:
        for method in (admin.describe_configs, lambda *args: admin.alter_configs(*args, {})):
            with pytest.raises(Misuse, match='kind is "topics": it must be one of "topic", "broker"'):
                method("topics", TOPIC)
            with pytest.raises(Misuse, match='use the id of a broker, such as "0"'):
                method("broker", "one")
            with pytest.raises(Misuse, match="no broker 77"):
                method("broker", 77)
        (node,) = admin.describe_cluster().nodes
        assert admin.describe_configs("broker", node.node_id) == admin.describe_configs("broker", str(node.node_id))  # type: ignore[arg-type]
        with pytest.raises((InvalidConfig, Misuse)):
            admin.create_topic("another", configs={"retention.ms": None})


def test_columns_without_pyarrow_name_the_extra_and_cost_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer, make_consumer(broker) as consumer:
        for columns in (lambda: producer.send_arrow(TOPIC, None), consumer.poll_arrow):  # type: ignore[arg-type]
            with pytest.raises(ModuleNotFoundError, match=r"pip install 'semel\[arrow\]'"):
                columns()
        assert producer.send(TOPIC, b"next").result(10)
        consumer.poll(0)


def test_the_patience_of_a_session_is_a_number() -> None:
    config = {"group.id": "g", "transactional.id": "t"}
    for junk in JUNK:
        if not isinstance(junk, (int, float)) or isinstance(junk, bool) or not junk >= 0:
            with pytest.raises(EXPECTED, match="retry_timeout_ms"):
                TransactSession(config, retry_timeout_ms=junk)

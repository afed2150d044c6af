"""Whatever a producer is given: it works or raises what is documented, and the next correct call works.

Documented are TypeError, for an argument of the wrong type, and what `semel.errors` has; never one that ends the
producer.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel import Admin, Broker, Consumer, Producer
from semel.client.consumer.fetcher import ConsumerRecord
from semel.client.producer.producer import AsyncProducer
from semel.config import PRODUCER, ConfigError
from semel.errors import (
    Fatal,
    InvalidRecord,
    InvalidTopic,
    KafkaError,
    Misuse,
    RecordTooLarge,
    RequestTimedOut,
    Retriable,
)
from semel.machines.transactions.producer import GroupMetadata, OffsetAndMetadata
from semel.machines.values import ProducerIdentity, TopicPartition
from tests.support.waiting import until


def config(broker: Broker, **more: object) -> dict[str, object]:
    return {"bootstrap.servers": broker.bootstrap_servers, **{name.replace("_", "."): v for name, v in more.items()}}


def values(broker: Broker, topic: str, partitions: int = 1) -> list[bytes | None]:
    """Everything committed in a topic."""
    found: list[bytes | None] = []
    with Consumer({**config(broker), "auto.offset.reset": "earliest"}) as consumer:
        places = [(topic, number) for number in range(partitions)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < end for place, end in ends.items()):
            found += [record.value for record in consumer.poll(1_000)]
    return found


# --- what was seen to go wrong --------------------------------------------------------------------------------------

WRONG_RECORDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"timestamp_ms": time.time() * 1000}, TypeError, r"int\(time.time\(\) \* 1000\)"),
    ({"timestamp_ms": 2**70}, InvalidRecord, "timestamp_ms=a number of|timestamp_ms=1180591620717411303424"),
    ({"timestamp_ms": -1}, InvalidRecord, "from 0 to"),
    ({"timestamp_ms": True}, TypeError, "not bool"),
    ({"headers": [(b"a", b"1")]}, TypeError, "name is str, not bytes"),
    ({"headers": ["ab"]}, TypeError, "pair of name and value, not 'ab'"),
    ({"headers": "ab"}, TypeError, "not str"),
    ({"headers": [("a", 1)]}, TypeError, "header 'a' is bytes or str, not int"),
    ({"headers": [("a", b"1", b"2")]}, TypeError, "pair of name and value"),
    ({"headers": {None: b"1"}}, TypeError, "name is str, not NoneType"),
    ({"headers": 5}, TypeError, "not int"),
    ({"headers": {"\ud800": b"1"}}, InvalidRecord, "UTF-8"),
    ({"value": 5}, TypeError, "value is bytes or str, not int"),
    ({"value": "\ud800"}, InvalidRecord, "UTF-8"),
    ({"key": ["k"]}, TypeError, "key is bytes or str, not list"),
    ({"partition": 0.5}, TypeError, "partition is a whole number, not float"),
    ({"partition": "0"}, TypeError, "partition is a whole number, not str"),
    ({"partition": 7}, Misuse, "not 7"),
    ({"partition": -1}, Misuse, "not -1"),
    ({"value": b"x" * 2_000_000}, RecordTooLarge, "max.request.size"),
    ({"topic": None}, TypeError, "topic is str, not NoneType"),
    ({"topic": ["t"]}, TypeError, "topic is str, not list"),
    ({"topic": ""}, InvalidTopic, "no topic can be called ''"),
    ({"topic": "a b"}, InvalidTopic, "no topic can be called 'a b'"),
    ({"topic": "\ud800"}, InvalidTopic, "no topic can be called"),
]


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
@pytest.mark.parametrize("alone", [False, True], ids=["beside others", "first of all"])
def test_a_record_that_cannot_be_costs_nothing_but_itself(
    session_broker: Broker, name: str, transactional: bool, alone: bool
) -> None:
    """In the midst of a batch, and as the first of a batch, of a partition, of a transaction."""
    with Admin(config(session_broker)) as admin:
        admin.create_topic(name, partitions=2)
    more: dict[str, object] = {"transactional_id": name} if transactional else {}
    good: list[str] = []
    with Producer(config(session_broker, linger_ms=20, **more)) as producer:
        if transactional:
            producer.init_transactions()
        for number, (wrong, kind, said) in enumerate(WRONG_RECORDS):
            if transactional:
                producer.begin_transaction()
            deliveries = []
            if not alone:
                for partition in (0, 1):
                    deliveries.append(producer.send(name, f"before {number}", partition=partition))
                    good.append(f"before {number}")
            with pytest.raises(kind, match=said) as raised:
                producer.send(**{"topic": name, "value": b"wrong", "partition": 0, **wrong})
            assert not isinstance(raised.value, Fatal)
            if transactional and alone:
                producer.commit_transaction()  # nothing was sent, so there is nothing that could fail
                producer.begin_transaction()
            deliveries.append(producer.send(name, f"after {number}", partition=0))
            good.append(f"after {number}")
            if transactional:
                producer.commit_transaction()
            for delivery in deliveries:
                delivery.result(30)
        if transactional:
            assert producer.identity is not None
            assert producer.identity.producer_epoch < len(WRONG_RECORDS) * 2 + 1, "no epoch was spent on a wrong record"
    assert sorted(str(value, "utf-8") for value in values(session_broker, name, 2) if value) == sorted(good)


def test_headers_that_can_be_read_only_once_survive_a_full_buffer(session_broker: Broker, name: str) -> None:
    full = {"buffer.memory": 40_000, "batch.size": 16_000, "linger.ms": 30}
    with Producer({**config(session_broker), **full}) as producer:
        for number in range(20):
            producer.send(name, b"v" * 9_000, headers=((f"h{n}", b"%d" % number) for n in range(1)))
    with Consumer({**config(session_broker), "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(name, 0)])
        found: list[Any] = []
        until(lambda: found.extend(consumer.poll(1_000)) or len(found) == 20, what="all records")
    assert [record.headers for record in found] == [(("h0", b"%d" % number),) for number in range(20)]


def test_what_is_left_of_a_wait_is_not_taken_for_the_whole_of_it(name: str) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "max.block.ms": 400}
    with Producer(settings) as producer:
        with pytest.raises(Retriable, match=r"no connection within max\.block\.ms=400; the last try: .*127\.0\.0\.1:1"):
            producer.send(name, "nobody listens")
        with pytest.raises(Retriable, match=r"within max\.block\.ms=400"):
            producer.send_arrow(name, pa.table({"value": ["x"]}))


# --- Arrow ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_a_row_may_be_as_large_as_a_record(session_broker: Broker, name: str, codec: str) -> None:
    row = bytes(range(256)) * 3_600  # 921,600 bytes
    with Producer(config(session_broker, compression_type=codec)) as producer:
        producer.send(name, row).result(30)
        sent = producer.send_arrow(name, pa.table({"value": [b"small", row, b"small too"]}))
        assert sent.record_count == 3
        sent.result(30)
    assert values(session_broker, name) == [row, b"small", row, b"small too"]


WRONG_ROWS: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, "pyarrow Table or RecordBatch, not NoneType"),
    ({"value": ["x"]}, TypeError, "not dict"),
    (pa.table({"key": ["x"]}), InvalidRecord, "no column 'value'"),
    (pa.table({"value": [1]}), TypeError, "column 'value' is int64"),
    (pa.table({"value": ["x"], "key": [1.5]}), TypeError, "column 'key' is double"),
    (pa.table({"value": ["x"], "headers": ["h"]}), TypeError, "column 'headers' is string"),
    (pa.table({"value": ["x"], "headers": [[{"name": "h", "value": b"1"}]]}), TypeError, "with key and value"),
    (pa.table({"value": ["x"], "headers": [[{"key": None, "value": b"1"}]]}), InvalidRecord, "no name"),
    (pa.table([["x"], ["y"]], names=["value", "value"]), InvalidRecord, "2 columns 'value'"),
    (pa.table({"value": [b"x", b"y" * 2_000_000]}), RecordTooLarge, "max.request.size"),
]


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_a_table_that_cannot_be_is_refused_whole(session_broker: Broker, name: str, transactional: bool) -> None:
    more: dict[str, object] = {"transactional_id": name} if transactional else {}
    with Producer(config(session_broker, **more)) as producer:
        if transactional:
            producer.init_transactions()
        for number, (rows, kind, said) in enumerate(WRONG_ROWS):
            if transactional:
                producer.begin_transaction()
            with pytest.raises(kind, match=said):
                producer.send_arrow(name, rows)
            producer.send_arrow(name, pa.table({"value": [f"{number}"]}))
            if transactional:
                producer.commit_transaction()
    assert values(session_broker, name) == [b"%d" % number for number in range(len(WRONG_ROWS))]


# --- offsets and transactions ---------------------------------------------------------------------------------------

WRONG_OFFSETS: list[tuple[Any, Any, type[Exception], str]] = [
    ([("t", 0)], "g", TypeError, "offsets are a dict"),
    ({"t": 1}, "g", TypeError, "a partition is a pair"),
    ({("t", 0, 0): 1}, "g", TypeError, "a partition is a pair"),
    ({("t", -1): 1}, "g", Misuse, "partition=-1"),
    ({("t", 2**40): 1}, "g", Misuse, "partition="),
    ({("t", 0): -1}, "g", Misuse, "offset=-1"),
    ({("t", 0): 2**64}, "g", Misuse, "offset="),
    ({("t", 0): 1.5}, "g", TypeError, "offset is a whole number, not float"),
    ({("t", 0): OffsetAndMetadata(1, 2**40)}, "g", Misuse, "leader_epoch="),
    ({("t", 0): OffsetAndMetadata(1, -1, 5)}, "g", TypeError, "metadata is str"),  # type: ignore[arg-type]
    ({("t", 0): OffsetAndMetadata(1, -1, "m" * 40_000)}, "g", Misuse, "metadata has 40000 bytes"),
    ({("a b", 0): 1}, "g", InvalidTopic, "a b"),
    ({("t", 0): 1}, "", Misuse, "group_id is empty"),
    ({("t", 0): 1}, None, TypeError, "group_metadata is"),
    ({("t", 0): 1}, GroupMetadata("g", 2**40), Misuse, "generation_id="),
    ({("t", 0): 1}, GroupMetadata("g", 1, None), TypeError, "member_id is str"),  # type: ignore[arg-type]
    ({("t", 0): 1}, GroupMetadata("\ud800"), Misuse, "UTF-8"),
]


def test_offsets_that_cannot_be_cost_nothing(session_broker: Broker, name: str) -> None:
    with Producer(config(session_broker, transactional_id=name)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "beside").result(30)
        for offsets, group, kind, said in WRONG_OFFSETS:
            with pytest.raises(kind, match=said):
                producer.send_offsets_to_transaction(offsets, group)
        producer.send_offsets_to_transaction({(name, 0): 1}, f"{name}-group")
        producer.commit_transaction()
    assert values(session_broker, name) == [b"beside"]


def test_offsets_that_the_broker_refuses_cost_their_transaction_and_not_the_producer(
    session_broker: Broker, name: str
) -> None:
    with Producer(config(session_broker, transactional_id=name)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "never seen").result(30)
        with pytest.raises(KafkaError, match="too long") as raised:
            producer.send_offsets_to_transaction({(name, 0): OffsetAndMetadata(1, -1, "m" * 10_000)}, f"{name}-group")
        assert not isinstance(raised.value, Fatal)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(name, "seen")
            producer.send_offsets_to_transaction({(name, 0): 1}, f"{name}-group")
    assert values(session_broker, name) == [b"seen"]


@pytest.mark.semel(**{"transaction.two.phase.commit.enable": True})
def test_a_decision_that_is_none_does_not_abort_what_was_prepared(semel_broker: Broker, name: str) -> None:
    more = {"transactional.id": name, "transaction.two.phase.commit.enable": True}
    with Producer({**config(semel_broker), **more}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "prepared")
        decided = producer.prepare_transaction()
        for wrong in (None, "yes", 5, (1,), ("1", "2"), (1.0, 2), True):
            with pytest.raises(TypeError):
                producer.complete_transaction(wrong)  # type: ignore[arg-type]
        producer.complete_transaction(tuple(decided))  # type: ignore[arg-type]
    assert values(semel_broker, name) == [b"prepared"]


@pytest.mark.parametrize("wrong", ["1", float("nan"), -1, True, [], 1j], ids=str)
def test_a_wait_that_cannot_be_leaves_the_producer_open(session_broker: Broker, name: str, wrong: Any) -> None:
    with Producer(config(session_broker, linger_ms=30)) as producer:
        delivery = producer.send(name, "waiting")
        for call in (producer.flush, producer.close, delivery.result, delivery.exception):
            with pytest.raises((TypeError, Misuse)) as raised:
                call(wrong)
            assert not isinstance(raised.value, Retriable)
        assert producer.send(name, "after").result(30).offset == 1
        producer.flush(float("inf"))
        producer.flush(10**400)
        assert delivery.result(float("inf")).offset == 0


# --- anything at all ------------------------------------------------------------------------------------------------


def one_shot(items: list[Any]) -> Iterator[Any]:
    yield from items


ODD = st.sampled_from(
    [
        None, True, 0, -1, 1, 2**31, 2**63, 2**70, -(2**70), 0.0, 1.5, float("nan"), float("inf"), 1j, Decimal(1),
        "", "x", "\ud800", "\x00", b"", b"x", bytearray(b"x"), memoryview(b"x"), memoryview(b"abcd")[::2], [], ["ab"],
        [("a", b"1")], [(b"a", b"1")], [("a", None)], [("a",)], {}, {"a": b"1"}, {"a": 1}, {1: 2}, (), ("t", 0),
        object(), object, len, datetime(2024, 1, 1, tzinfo=UTC), range(3), {1, 2}, ProducerIdentity(1, 1),
        TopicPartition("t", 0), GroupMetadata("g"), OffsetAndMetadata(1), pa.table({"value": ["x"]}),
        pa.table({"k": [1]}), Ellipsis,
    ]
)  # fmt: skip
ANYTHING = st.one_of(
    ODD,
    st.text(max_size=5),
    st.binary(max_size=5),
    st.integers(),
    st.floats(),
    st.lists(st.one_of(ODD, st.tuples(ODD, ODD)), max_size=3),
    st.dictionaries(st.sampled_from(["", "a", "\ud800", b"a", 1, None, ("t", 0)]), ODD, max_size=2),
    st.builds(one_shot, st.lists(st.tuples(st.sampled_from(["a", b"a", 1]), ODD), max_size=2)),
)
#: What is right more often than not, so that a wrong argument also stands beside right ones.
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["good", "good", "good", "other"]),
    "value": st.one_of(st.none(), st.text(max_size=8), st.binary(max_size=8)),
    "key": st.one_of(st.none(), st.text(max_size=2)),
    "partition": st.sampled_from([None, None, 0, 1, 2, 99]),
    "headers": st.one_of(st.none(), st.just([("a", b"1")])),
    "timestamp_ms": st.sampled_from([None, 0, 1_700_000_000_000]),
    "rows": st.sampled_from([pa.table({"value": ["r"], "key": ["k"]}), pa.table({"value": pa.array([], pa.string())})]),
    "timeout_ms": st.sampled_from([None, 0, 1_000]),
    "timeout": st.sampled_from([None, 0, 10]),
    "offsets": st.sampled_from([{}, {("good", 0): 1}]),
    "group_metadata": st.sampled_from(["group", GroupMetadata("group")]),
    "keep_prepared": st.just(False),
    "decided": st.just(ProducerIdentity(1, 1)),
    "callback": st.just(lambda delivery: None),
}
CALLS = [
    name
    for name, _ in inspect.getmembers(Producer, inspect.isfunction)
    if not name.startswith("_") and name not in ("close", "transaction")
]
DELIVERY_CALLS = ["result", "exception", "add_done_callback"]


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """Public methods with arguments of which some are wrong."""
    chosen = draw(st.lists(st.sampled_from([*CALLS, "send", "send", "close", *DELIVERY_CALLS]), min_size=1, max_size=6))
    made = []
    for name in chosen:
        if name in DELIVERY_CALLS:
            wanted = ["callback" if name == "add_done_callback" else "timeout"]
        else:
            wanted = list(inspect.signature(getattr(Producer, name)).parameters)[1:]
        arguments: dict[str, Any] = {one: draw(st.one_of(RIGHT[one], ANYTHING)) for one in wanted}
        if name == "close":  # a right one would end the producer: that has tests of its own
            arguments = {"timeout_ms": draw(st.sampled_from(["1", -1, float("nan"), [], object(), True]))}
        made.append((name, arguments))
    return made


class Tried:
    """A producer, blocking or for asyncio, to which anything is done."""

    def __init__(self, broker: Broker, topic: str, asynchronous: bool, transactional: bool) -> None:
        self.topic, self.transactional = topic, transactional
        self.loop = asyncio.new_event_loop() if asynchronous else None
        more: dict[str, object] = {"transactional.id": topic} if transactional else {}
        given = {**config(broker), "linger.ms": 10, "max.block.ms": 3_000, **more}
        self.producer: Any = Producer(given) if self.loop is None else self.loop.run_until_complete(self._made(given))
        self.delivery: Any = None
        if transactional:
            self.patiently("init_transactions")

    async def _made(self, given: dict[str, object]) -> AsyncProducer:
        return AsyncProducer(given)

    def call(self, name: str, **arguments: Any) -> Any:
        if "topic" in arguments and arguments["topic"] in ("good", "other"):
            arguments["topic"] = f"{self.topic}-{arguments['topic']}"
        if name in DELIVERY_CALLS:
            if self.delivery is None:
                return None
            if self.loop is not None and name != "add_done_callback" and not self.delivery.done():
                self.wait(self.delivery)  # a thread may wait in result(), the loop itself may not
            return getattr(self.delivery, name)(*arguments.values())
        answer = getattr(self.producer, name)(**arguments)
        if self.loop is not None and inspect.isawaitable(answer):
            answer = self.wait(answer)
        if name == "send":
            self.delivery = answer
        return answer

    def wait(self, something: Any) -> Any:
        assert self.loop is not None

        async def waited() -> Any:
            return await something

        return self.loop.run_until_complete(asyncio.wait_for(waited(), 40))

    def patiently(self, name: str, **arguments: Any) -> Any:
        """A call that may be cut short by max.block.ms on a busy machine."""
        return until(lambda: self._finished(name, arguments), what=name, within_s=50)[0]

    def _finished(self, name: str, arguments: dict[str, Any]) -> tuple[Any] | None:
        try:
            return (self.call(name, **arguments),)
        except RequestTimedOut:
            return None

    def is_well(self, number: int) -> None:
        """The next correct calls work, whatever came before."""
        if self.transactional:
            with suppress(Misuse):  # there may be none to abort
                self.patiently("abort_transaction")
            self.call("begin_transaction")
        delivery = self.patiently("send", topic="good", value=b"well %d" % number, partition=0)
        if self.transactional:
            self.patiently("commit_transaction")
        if self.loop is None:
            delivery.result(40)
        else:
            self.wait(delivery)

    def close(self) -> None:
        if self.loop is None:
            self.producer.close()
        else:
            self.loop.run_until_complete(self.producer.close())
            self.loop.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_whatever_is_given_works_or_raises_what_is_documented_and_the_next_call_works(
    session_broker: Broker, name: str, asynchronous: bool, transactional: bool
) -> None:
    with Admin(config(session_broker)) as admin:
        admin.create_topic(f"{name}-good", partitions=3)
        admin.create_topic(f"{name}-other", partitions=1)
    tried = Tried(session_broker, name, asynchronous, transactional)
    counted = iter(range(10**6))

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(calls())
    def run(made: list[tuple[str, dict[str, Any]]]) -> None:
        number = next(counted)
        waiting: Any = None
        if not transactional:
            waiting = tried.patiently("send", topic="good", value=b"beside %d" % number, partition=0)
        for method, arguments in made:
            raised: Exception | None = None
            try:
                tried.call(method, **arguments)
            except (TypeError, KafkaError) as error:
                raised = error
            assert not isinstance(raised, Fatal), raised
        if waiting is not None:
            waiting.result(40) if tried.loop is None else tried.wait(waiting)
        tried.is_well(number)

    run()
    tried.close()
    found = values(session_broker, f"{name}-good", 3)
    for number in range(next(counted)):
        assert found.count(b"well %d" % number) == 1
        assert transactional or found.count(b"beside %d" % number) == 1


HASHABLE = st.sampled_from([None, True, 5, 1.5, b"acks", "", "\ud800", (), ("a",), object(), "nope", "acks "])


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        ODD, st.dictionaries(st.one_of(st.sampled_from([row.name for row in PRODUCER]), HASHABLE), ANYTHING, max_size=3)
    )
)
def test_settings_that_cannot_be_are_refused_before_anything_is_made(given_settings: Any) -> None:
    """What they may be is another question: here nobody listens."""
    if isinstance(given_settings, dict):
        given_settings = {"bootstrap.servers": "127.0.0.1:1", **given_settings}
    try:
        producer = Producer(given_settings)
    except (TypeError, ConfigError):
        return
    with pytest.raises((KafkaError, TypeError)):
        producer.send("good", 5)  # type: ignore[arg-type]
    producer.close(timeout_ms=0)


def test_a_kept_delivery_does_not_keep_the_bytes_of_its_batch(session_broker: Broker, name: str) -> None:
    value = b"v" * 100_000
    with Producer(config(session_broker)) as producer:
        kept: list[Any] = [producer.send(name, value) for _ in range(50)]
        kept.append(producer.send_arrow(name, pa.table({"value": [value] * 5})))
        for delivery in kept:
            delivery.result(30)
        assert reachable_bytes(kept) < 10_000
        producer.flush()
        assert reachable_bytes([producer._producer._routes]) < 10_000, "nor does the producer"


def reachable_bytes(roots: list[Any]) -> int:
    """All bytes that can be reached from here through the client's own objects."""
    seen: set[int] = set()
    left, total = list(roots), 0
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, (bytes, bytearray)):
            total += len(one)
        elif isinstance(one, (list, tuple, dict)) or type(one).__module__.startswith("semel"):
            left += gc.get_referents(one)
    return total


def test_a_record_that_its_topic_refuses_does_not_take_its_neighbours_along(session_broker: Broker, name: str) -> None:
    """Its time is beyond message.timestamp.after.max.ms, which only the broker knows."""
    with Producer(config(session_broker, linger_ms=50)) as producer:
        producer.send(name, "first").result(30)
        deliveries = [producer.send(name, f"{n}", timestamp_ms=2**62 if n in (3, 7) else None) for n in range(10)]
        producer.flush()
        for number in (3, 7):
            with pytest.raises(InvalidRecord, match="INVALID_TIMESTAMP"):
                deliveries[number].result(30)
        assert [delivery.result(30).offset for n, delivery in enumerate(deliveries) if n not in (3, 7)] == list(
            range(1, 9)
        )
        assert producer.send(name, "after").result(30).offset == 9
    expected = [b"first", *(b"%d" % n for n in range(10) if n not in (3, 7)), b"after"]
    assert values(session_broker, name) == expected


def test_rows_that_a_topic_refuses_are_told_wherever_they_stand(session_broker: Broker, name: str) -> None:
    with Admin(config(session_broker)) as admin:
        admin.create_topic(name, configs={"cleanup.policy": "compact"})
    with Producer(config(session_broker)) as producer:
        sent = producer.send_arrow(name, pa.table({"value": ["a", "b", "c"], "key": ["k", None, "m"]}))
        with pytest.raises(InvalidRecord):
            sent.result(30)
    assert values(session_broker, name) == [b"a", b"c"]


def test_views_are_dealt_by_key_whatever_else_is_in_the_table(session_broker: Broker, name: str) -> None:
    """Arrow cannot pick rows of views, which Polars gives, nor of some other types."""
    with Admin(config(session_broker)) as admin:
        admin.create_topic(name, partitions=4)
    numbers = [f"{number}" for number in range(40)]
    headers = pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())]))
    columns = {
        "key": pa.array(numbers, pa.string_view()),
        "value": pa.array([number.encode() for number in numbers], pa.binary_view()),
        "headers": pa.array([[{"key": "n", "value": number.encode()}] for number in numbers], headers),
        "note": pa.RunEndEncodedArray.from_arrays([40], pa.array(["not sent"])),
    }
    with Producer(config(session_broker)) as producer:
        for rows in (pa.table(columns), pa.record_batch(columns)):
            producer.send_arrow(name, rows).result(30)
        places = {number: producer.send(name, number, number).result(30).partition for number in numbers}
    with Consumer(config(session_broker, auto_offset_reset="earliest")) as consumer:
        consumer.assign([(name, number) for number in range(4)])
        found: list[ConsumerRecord] = []
        while len(found) < 120:
            found += consumer.poll()
    assert {record.partition for record in found} == {0, 1, 2, 3}
    for record in found:
        assert record.value is not None
        assert record.key == record.value
        assert places[record.value.decode()] == record.partition
        assert record.headers in ((), (("n", record.value),))

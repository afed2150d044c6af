"""A task's writer against a real broker, without Spark: requests on their way together, and turns of several tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from semel.errors import KafkaError
from semel.machines.pipeline.claims import RowRefused, WriteReport, check_reports
from semel.spark import writer
from semel.spark.claims import TaskClaims
from semel.spark.kafka_options import ClientSettings, ProducerOptions
from semel.spark.routing import Router
from semel.spark.writer import WritePlan, write
from semel.testing.fault_proxy import Cut, Delay, Fault, FaultProxy, Passing, Way
from semel.wire.apis import ApiKey
from tests.spark.driver import Driver, rows_of
from tests.support.reading import read_all

pa = pytest.importorskip("pyarrow")

VALUES = [b"%06d" % number + b"x" * 194 for number in range(2_000)]


@pytest.fixture
def topics(semel_broker: semel.Broker) -> str:
    admin = AdminClient({"bootstrap.servers": semel_broker.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in ("payments", "ledger")]).values():
        created.result(20)
    return semel_broker.bootstrap_servers


def committed_values(bootstrap_servers: str) -> list[bytes]:
    """The ledger in its order, as librdkafka sees it under read_committed."""
    return read_all(bootstrap_servers, "ledger")


def small_batches(plan: WritePlan) -> WritePlan:
    """Ten rows of `VALUES` fill a batch."""
    return replace(plan, producer=ProducerOptions(batch_bytes=2_200, deadline_ms=20_000))


def in_parts(values: list[bytes], rows: int = 10) -> Iterator[Any]:
    return (rows_of(values[start : start + rows]) for start in range(0, len(values), rows))


class OnTheWay:
    """Counts the produce requests that are on their way at once. The answers are late, so that requests queue up."""

    def __init__(self, lose: Any = None) -> None:
        self.now = self.most = self.sent_before_the_first_answer = 0
        self._lose = lose

    def __call__(self, passing: Passing) -> Fault | None:
        if passing.api_key != ApiKey.PRODUCE:
            return None
        if passing.way is Way.REQUEST:
            self.now += 1
            self.most = max(self.most, self.now)
        else:
            if passing.count == 1:
                self.sent_before_the_first_answer = self.now
            self.now -= 1
        if self._lose is not None and (fault := self._lose(passing)) is not None:
            self.now = 0  # the connection is cut: nothing is on its way
            return fault
        return Delay(20) if passing.way is Way.RESPONSE and passing.count < 6 else None


def test_several_requests_of_a_partition_are_on_their_way_at_once_but_never_the_first_with_others(topics: str) -> None:
    way = OnTheWay()
    with FaultProxy(topics, way) as proxy:
        driver = Driver(proxy.bootstrap_servers)
        try:
            driver.begin()
            report = next(write(in_parts(VALUES), small_batches(driver.plan())))
            assert report.to_pylist()[0]["records"] == len(VALUES)
            driver.commit(0)
        finally:
            driver.close()
    assert way.sent_before_the_first_answer == 1
    assert 2 <= way.most <= 5
    assert committed_values(topics) == VALUES


@pytest.mark.parametrize("lost", [Way.REQUEST, Way.RESPONSE])
def test_what_is_lost_among_several_is_sent_again_in_order_and_nothing_comes_twice(topics: str, lost: Way) -> None:
    def lose(passing: Passing) -> Fault | None:
        return Cut() if passing.way is lost and passing.count in (3, 8, 9, 30) else None

    way = OnTheWay(lose)
    with FaultProxy(topics, way) as proxy:
        driver = Driver(proxy.bootstrap_servers)
        try:
            driver.begin()
            report = next(write(in_parts(VALUES), small_batches(driver.plan()))).to_pylist()[0]
            driver.commit(0)
        finally:
            driver.close()
        assert proxy.faults["Cut"] == 4
    assert (report["records"], report["first_offset"], report["last_offset"]) == (2000, 0, 1999)
    assert committed_values(topics) == VALUES


def test_sent_again_out_of_order_the_batch_would_fail(topics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the rest is sent again one after the other: the ablation repeats only what failed, last one first."""

    async def carelessly(self: Any, requests: list[Any]) -> None:
        async with asyncio.timeout(20):
            while not requests and len(self._encoded) < 3:  # noqa: ASYNC110 - another thread fills it
                await asyncio.sleep(0.001)  # the first batch goes alone: the next turn has several in any case
        # The first one is lost.
        answers = [None for _ in requests[:1]]
        answers += await asyncio.gather(*(self._try(request) for request, _, _ in requests[1:]))
        for (request, records, size_bytes), answer in reversed(list(zip(requests, answers, strict=True))):
            self._note(answer or await self._produce(request), records, size_bytes)

    monkeypatch.setattr(writer._PartitionWriter, "_send_at_once", carelessly)
    driver = Driver(topics)
    try:
        driver.begin()
        plan = replace(driver.plan(), producer=ProducerOptions(batch_bytes=2_200, deadline_ms=3_000))
        with pytest.raises(KafkaError):
            list(write(in_parts(VALUES), plan))
    finally:
        driver.close()


def test_tasks_that_write_to_one_partition_at_the_same_time_lose_and_repeat_nothing(
    topics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, reports = threading.local(), []
    monkeypatch.setattr(writer, "task_number", lambda: number.task)
    driver = Driver(topics)
    try:
        driver.begin()
        plan = small_batches(driver.plan())

        def task(mine: int) -> None:
            number.task = mine
            reports.extend(next(write(in_parts(VALUES[mine::3]), plan)).to_pylist())

        threads = [threading.Thread(target=task, args=(mine,)) for mine in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        check_reports(driver.claims.given, [WriteReport(**report) for report in reports])
        driver.commit(0)
    finally:
        driver.close()
    found = committed_values(topics)
    assert sorted(found) == VALUES
    for mine in range(3):  # what one task writes keeps its order
        own = VALUES[mine::3]
        assert [value for value in found if value in set(own)] == own


def test_a_task_without_rows_claims_nothing(topics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> int:
        raise AssertionError("there is nothing to write")

    monkeypatch.setattr(TaskClaims, "take_turn", never)
    driver = Driver(topics)
    try:
        driver.begin()
        assert next(write(iter([]), driver.plan())).num_rows == 0
        assert driver.claims.given == {}
    finally:
        driver.close()


LARGE = b"x" * 2_000_000


@pytest.mark.parametrize(
    ("columns", "topic", "says"),
    [
        ({"value": [b"a", LARGE, b"b"]}, "ledger", "is too large: .* and 1048588 are allowed{}; make it smaller"),
        ({"value": [b"a", b"b", b"aaaa"], "key": [b"a", LARGE, b"b"]}, "ledger", "is too large: .*{}; make it smaller"),
        ({"value": [b"a", b"b", b"c"], "partition": [0, 7, 0]}, "ledger", "topic 'ledger' has partitions 0 to 0{}: "),
        ({"value": [b"a", b"b", b"c"], "topic": ["ledger", None, "ledger"]}, None, "a row has no topic{}: give"),
        ({"value": [b"a", b"b", b"c"], "topic": ["ledger", "a b", "ledger"]}, None, "says 'a b'{}: "),
        (
            {"value": [b"a", b"b", b"c"], "headers": [None, [{"key": "n", "value": b""}, {"key": None}], []]},
            "ledger",
            "a header has no name{}; each of the column 'headers'",
        ),
        ({"value": [b"a", b"b", b"c"], "headers": [[], [None], None]}, "ledger", "a header has no name{}; each of"),
    ],
)
def test_a_row_that_cannot_be_written_is_named_by_its_offset(
    topics: str, columns: dict[str, list[Any]], topic: str | None, says: str
) -> None:
    driver = Driver(topics)
    try:
        driver.begin()
        plan = replace(driver.plan(), topic=topic)
        with pytest.raises(RowRefused, match=says.format(r" \(the row came from offset 41\)")):
            list(write(iter([batch(**columns, offset=[40, 41, 42])]), plan))
    finally:
        driver.close()


# --- where rows go


def router(turn: int = 0, partitions: int = 4) -> Router:
    def refuse(why: str) -> Any:
        raise AssertionError(why)

    return Router("ledger", partitions, ClientSettings({"bootstrap.servers": "nowhere:1"}), refuse, turn)


def batch(**columns: Any) -> Any:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kinds = {
        "key": pa.binary(), "value": pa.binary(), "partition": pa.int32(), "headers": pa.list_(header),
        "topic": pa.string(), "offset": pa.int64(),
    }  # fmt: skip
    return pa.RecordBatch.from_pydict({name: pa.array(given, kinds[name]) for name, given in columns.items()})


def places(found: Iterator[tuple[str, int, Any]]) -> dict[int, list[bytes]]:
    return {partition: rows.column("value").to_pylist() for _, partition, rows in found}


def test_rows_without_a_key_fill_one_partition_after_the_other_from_where_their_task_begins() -> None:
    routes = router(turn=6)
    rows = batch(value=[b"1", b"2"])
    assert places(routes.route(rows)) == {2: [b"1", b"2"]}
    assert places(routes.route(rows)) == {2: [b"1", b"2"]}
    routes.is_full("ledger", 2)
    assert places(routes.route(rows)) == {3: [b"1", b"2"]}
    routes.is_full("ledger", 2)  # a late word changes nothing
    routes.is_full("ledger", 3)
    assert places(routes.route(rows)) == {0: [b"1", b"2"]}


def test_rows_go_by_their_partition_then_by_their_key_and_keep_their_order() -> None:
    from semel.records.partitioner import partition_for_key

    keys = [b"a", b"b", None, b"a", b"b", b"c", None]
    values = [b"%d" % number for number in range(7)]
    expected: dict[int, list[bytes]] = {}
    for key, value in zip(keys, values, strict=True):
        expected.setdefault(1 if key is None else partition_for_key(key, 4), []).append(value)
    assert places(router(turn=1).route(batch(key=keys, value=values))) == expected
    given = places(router(turn=1).route(batch(key=keys, value=values, partition=[3, 3, 3, 3, 3, 3, None])))
    assert given == {3: values[:6], 1: values[6:]}
    assert places(router(turn=1).route(batch(value=values, partition=[None, 0, 0, 0, 0, 0, 0]))) == {
        1: values[:1], 0: values[1:],
    }  # fmt: skip

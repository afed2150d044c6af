"""What is committed is what the reader was handed and came back for: by poll, by iteration, by columns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from semel import Admin, Broker, Consumer, Producer
from semel.client.blocking.loop_thread import LoopThread
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.consumer.fetcher import ConsumerRecord
from semel.machines.values import TopicPartition
from tests.support.waiting import until

COUNT = 20


@pytest.fixture
def topic(bootstrap: str, name: str) -> str:
    fill(bootstrap, name)
    return name


def fill(bootstrap: str, name: str, partitions: int = 1, count: int = COUNT) -> None:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(name, partitions)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(count):
            producer.send(name, b"%d" % number, partition=number % partitions)


def settings(bootstrap: str, name: str, **more: object) -> dict[str, object]:
    named = {key.replace("_", "."): value for key, value in more.items()}
    return {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest", **named}


def reader(bootstrap: str, name: str, **more: object) -> Consumer:
    consumer = Consumer(settings(bootstrap, name, **more))
    consumer.subscribe(name)
    return consumer


def committed(bootstrap: str, name: str) -> dict[int, int]:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        return {p.partition: found.offset for p, found in admin.list_group_offsets(name).items()}


def some(records: Iterable[ConsumerRecord], count: int) -> list[int]:
    """The first records, and the loop is left."""
    found: list[int] = []
    for record in records:
        found.append(record.offset)
        if len(found) == count:
            break
    return found


def a_batch(consumer: Consumer, most: int) -> list[ConsumerRecord]:
    return until(lambda: consumer.poll(200, max_records=most), what="records")


def test_a_commit_says_what_the_iteration_handed_out_and_no_more(bootstrap: str, topic: str) -> None:
    with reader(bootstrap, topic, enable_auto_commit=False) as consumer:
        assert some(consumer, 3) == [0, 1, 2]
        assert {p.partition: o.offset for p, o in consumer.consumed().items()} == {0: 3}
        assert consumer.position((topic, 0)) == 3
        assert consumer.lag((topic, 0)) == COUNT - 3
        consumer.commit()
        assert committed(bootstrap, topic) == {0: 3}
        assert some(consumer, 2) == [3, 4], "and a new loop goes on there"
        consumer.commit_soon()
        until(lambda: committed(bootstrap, topic) == {0: 5}, what="the second commit")


def test_a_loop_that_was_left_and_a_close_commit_what_was_handed_out(bootstrap: str, topic: str) -> None:
    with reader(bootstrap, topic) as consumer:
        some(consumer, 3)
    assert committed(bootstrap, topic) == {0: 3}
    with reader(bootstrap, topic) as consumer:
        assert some(consumer, 1) == [3]


def test_an_exception_inside_the_loop_leaves_the_record_at_hand_uncommitted(bootstrap: str, topic: str) -> None:
    with pytest.raises(ZeroDivisionError), reader(bootstrap, topic) as consumer:
        for record in consumer:
            if record.offset == 2:
                raise ZeroDivisionError
    assert committed(bootstrap, topic) == {0: 2}
    with reader(bootstrap, topic) as consumer:
        assert some(consumer, 1) == [2], "it comes again"


def test_an_exception_after_a_poll_leaves_all_that_it_returned_uncommitted(bootstrap: str, topic: str) -> None:
    with pytest.raises(ZeroDivisionError), reader(bootstrap, topic) as consumer:
        assert len(a_batch(consumer, 4)) == 4
        assert len(a_batch(consumer, 4)) == 4
        raise ZeroDivisionError
    assert committed(bootstrap, topic) == {0: 4}


def test_columns_are_as_records_are(bootstrap: str, topic: str) -> None:
    with reader(bootstrap, topic, enable_auto_commit=False) as consumer:
        some(consumer, 3)
        table = until(lambda: (found := consumer.poll_arrow(200)).num_rows and found, what="columns")
        assert table["offset"].to_pylist() == list(range(3, COUNT)), "what was not handed out comes in the table"
        consumer.seek((topic, 0), 5)
        assert some(consumer, 2) == [5, 6]
    with pytest.raises(ZeroDivisionError), reader(bootstrap, topic) as consumer:
        some(consumer, 2)
        until(lambda: consumer.poll_arrow(200).num_rows, what="columns")
        raise ZeroDivisionError
    assert committed(bootstrap, topic) == {0: 2}


def test_a_close_in_a_finally_counts_as_the_exception_that_is_on_its_way(bootstrap: str, topic: str) -> None:
    consumer = reader(bootstrap, topic)
    with pytest.raises(ZeroDivisionError):
        try:
            a_batch(consumer, 5)
            a_batch(consumer, 5)
            raise ZeroDivisionError
        finally:
            consumer.close()
    assert committed(bootstrap, topic) == {0: 5}


def test_what_was_committed_by_hand_is_not_taken_back_by_an_exception(bootstrap: str, topic: str) -> None:
    with pytest.raises(ZeroDivisionError), reader(bootstrap, topic) as consumer:
        a_batch(consumer, 6)
        consumer.commit()
        raise ZeroDivisionError
    assert committed(bootstrap, topic) == {0: 6}
    with pytest.raises(ZeroDivisionError), reader(bootstrap, topic) as consumer:
        a_batch(consumer, 6)
        consumer.commit({(topic, 0): 9})
        raise ZeroDivisionError
    assert committed(bootstrap, topic) == {0: 9}


def test_automatic_commits_go_on_while_records_are_taken_one_by_one(session_broker: Broker, name: str) -> None:
    bootstrap = session_broker.bootstrap_servers
    fill(bootstrap, name)
    with reader(bootstrap, name, auto_commit_interval_ms=1) as consumer:
        for record in consumer:
            found = committed(bootstrap, name).get(0, 0)
            assert found <= record.offset, "never the record that is being worked on"
            if found:
                break
            assert record.offset < COUNT - 1, "no commit before the last record"


def test_poll_and_iteration_may_be_mixed_and_hand_out_each_record_once(bootstrap: str, topic: str) -> None:
    found: list[int] = []
    with reader(bootstrap, topic) as consumer:
        for record in consumer:
            found.append(record.offset)
            found += [one.offset for one in consumer.poll(0, max_records=2)]
            if len(found) >= COUNT:
                break
    assert found == list(range(COUNT))


@pytest.mark.parametrize(
    ("change", "following"),
    [
        (lambda consumer, topic: consumer.seek((topic, 0), 10), 10),
        (lambda consumer, topic: consumer.seek_to_beginning(), 0),
        (lambda consumer, topic: consumer.rewind(), 0),
        (lambda consumer, topic: consumer.commit(), 3),
        (lambda consumer, topic: (consumer.pause([(topic, 0)]), consumer.resume([(topic, 0)])), 3),
    ],
    ids=["seek", "seek_to_beginning", "rewind", "commit", "pause and resume"],
)
def test_a_loop_goes_on_where_it_is_sent(
    session_broker: Broker, name: str, change: Callable[[Consumer, str], object], following: int
) -> None:
    bootstrap = session_broker.bootstrap_servers
    fill(bootstrap, name)
    with reader(bootstrap, name, enable_auto_commit=False) as consumer:
        records = iter(consumer)
        assert [next(records).offset for _ in range(3)] == [0, 1, 2]
        change(consumer, name)
        assert next(records).offset == following


def test_a_paused_partition_waits_though_its_records_were_looked_ahead_at(session_broker: Broker, name: str) -> None:
    bootstrap = session_broker.bootstrap_servers
    fill(bootstrap, name, partitions=2)
    with reader(bootstrap, name) as consumer:
        records = iter(consumer)
        first = next(records).partition
        consumer.pause([(name, first)])
        assert [next(records).partition for _ in range(COUNT // 2)] == [1 - first] * (COUNT // 2)
        consumer.resume([(name, first)])
        assert [next(records).partition for _ in range(COUNT // 2 - 1)] == [first] * (COUNT // 2 - 1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.semel(
    **{
        "group.initial.rebalance.delay.ms": 0,
        "group.consumer.min.heartbeat.interval.ms": 50,
        "group.consumer.heartbeat.interval.ms": 50,
    }
)
def test_a_member_that_takes_records_one_by_one_hands_partitions_over_in_between(
    semel_broker: Broker, name: str, protocol: str
) -> None:
    """Else the others would wait until it has gone through all that it looked ahead at."""
    bootstrap = semel_broker.bootstrap_servers
    fill(bootstrap, name, partitions=2, count=2_000)
    config = {"group_protocol": protocol, "heartbeat_interval_ms": 50}
    with reader(bootstrap, name, **config) as first:
        records = iter(first)
        next(records)
        assert len(first.assignment()) == 2
        with reader(bootstrap, name, **config) as second:
            looked_at = 1

            def shared() -> bool:
                second.poll(50)
                return len(second.assignment()) == 1

            while not shared():
                looked_at += 1
                assert looked_at < 500, "not before all of them were gone through"
                next(records)
            assert len(first.assignment()) == 1


def test_what_a_poll_took_while_its_caller_was_interrupted_is_read_again(
    session_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = session_broker.bootstrap_servers
    fill(bootstrap, name)
    run = LoopThread.run

    def interrupted(self: LoopThread, work: object, **options: object) -> object:
        answer = run(self, work, **options)  # type: ignore[arg-type]
        if isinstance(answer, list) and answer:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return answer

    with reader(bootstrap, name, enable_auto_commit=False) as consumer:
        monkeypatch.setattr(LoopThread, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            until(lambda: consumer.poll(200) and False, what="the interrupt")
        assert some(consumer, 1) == [0]


def test_asyncio_code_iterates_too(bootstrap: str, topic: str) -> None:
    async def read(fail_at: int) -> list[int]:
        found: list[int] = []
        async with AsyncConsumer(settings(bootstrap, topic)) as consumer:
            await consumer.subscribe(topic)
            async for record in consumer:
                found.append(record.offset)
                if record.offset == fail_at:
                    raise ZeroDivisionError
                if len(found) == 3:
                    break
        return found

    assert asyncio.run(read(-1)) == [0, 1, 2]
    assert committed(bootstrap, topic) == {0: 3}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(read(4))
    assert committed(bootstrap, topic) == {0: 4}


def test_the_end_of_a_transaction_counts_as_read_with_its_last_record(session_broker: Broker, name: str) -> None:
    bootstrap = session_broker.bootstrap_servers
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in range(3):
                producer.send(name, b"%d" % number, partition=0)
    with Consumer(settings(bootstrap, name)) as consumer:
        consumer.assign([(name, 0)])
        assert some(consumer, 3) == [0, 1, 2]
        assert consumer.consumed()[TopicPartition(name, 0)].offset == 4, "the marker is read too"

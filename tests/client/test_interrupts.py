"""Ctrl-C anywhere in a call costs that call at most: nothing is lost, doubled or spoilt, and the client works on."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from semel import Broker, Consumer, Producer
from semel.client.blocking.loop_thread import LoopThread
from semel.client.producer.delivery import Delivery
from semel.errors import Misuse
from semel.records import _pure, building
from tests.support.waiting import until


@contextmanager
def interrupt_at(place: int) -> Iterator[list[int]]:
    """A KeyboardInterrupt at this place, counted from 0, of what this thread runs of Semel. Yields how many there were.

    Python looks for signals where a function begins and after calls of functions in C: the profiler sees the same.
    """
    count = [0]

    def profile(frame: FrameType, event: str, _: object) -> None:
        # What is in C elsewhere is in Python here: then the return of that is such a place.
        after = event == "c_return" or (event == "return" and frame.f_code.co_name == "write_record")
        if (after or event == "call") and "/semel/" in frame.f_code.co_filename:
            count[0] += 1
            if count[0] == place + 1:
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        yield count
    finally:
        sys.setprofile(None)


def interrupted(place: int, work: Callable[[], object]) -> bool:
    """Do it, with an interrupt at that place. Returns False if it was over before."""
    with interrupt_at(place) as count:
        try:
            work()
        except KeyboardInterrupt:
            return True
    assert count[0] <= place, "nobody swallows an interrupt"
    return False


def everything(bootstrap: str, topic: str, at_least: int) -> list[int]:
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
    with Consumer(config) as consumer:
        consumer.assign([(topic, 0)])
        (end,) = consumer.end_offsets([(topic, 0)]).values()
        found: list[int] = []

        def read() -> bool:
            found.extend(int(record.value or b"") for record in consumer.poll(timeout_ms=200))
            return consumer.position((topic, 0)) >= end

        until(read, what="the records")
    assert len(found) >= at_least
    return found


#: Of a coroutine that was made just before the interrupt.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


@pytest.mark.parametrize("transactional", [False, True])
def test_a_send_that_is_interrupted_anywhere_spoils_none_of_its_neighbours(
    session_broker: Broker, name: str, transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "write_record", _pure.write_record)  # the profiler does not see the compiled one
    bootstrap = session_broker.bootstrap_servers
    config: dict[str, object] = {"bootstrap.servers": bootstrap, "linger.ms": 1_000}
    if transactional:
        config["transactional.id"] = name
    numbers = itertools.count()
    sent: list[int] = []
    perhaps: list[int] = []
    with Producer(config) as producer:

        def send(record_of: list[int]) -> Delivery:
            record_of.append(next(numbers))
            return producer.send(name, b"%d" % record_of[-1], partition=0, headers=[("a", b"b")])

        if transactional:
            producer.init_transactions()
        for earlier in (0, 1):  # the first record of a batch, and a later one
            for place in range(1_000):
                if transactional:
                    producer.begin_transaction()
                deliveries = [send(sent) for _ in range(earlier)]
                was_interrupted = interrupted(place, lambda: send(perhaps))
                if place % 2:
                    deliveries.append(send(sent))
                producer.flush(10_000)
                for delivery in deliveries:
                    delivery.result(0)
                if transactional:
                    producer.commit_transaction()
                if not was_interrupted:
                    break
            else:
                raise AssertionError("a send ends")
    found = everything(bootstrap, name, len(sent))
    assert len(found) == len(set(found))
    assert set(sent) <= set(found) <= {*sent, *perhaps}
    assert found == sorted(found)


def test_an_end_of_a_transaction_that_is_interrupted_anywhere_can_be_asked_for_again(
    session_broker: Broker, name: str
) -> None:
    bootstrap = session_broker.bootstrap_servers
    committed: list[int] = []
    aborted: list[int] = []
    number = 0
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0}) as producer:
        interrupted(20, producer.init_transactions)
        producer.init_transactions()
        for end, values in ((producer.commit_transaction, committed), (producer.abort_transaction, aborted)):
            for place in range(1_000):
                producer.begin_transaction()
                number += 1
                values.append(number)
                producer.send(name, b"%d" % number, partition=0)
                if not interrupted(place, end):
                    break
                end()
                with pytest.raises(Misuse, match="call begin_transaction"):
                    end()  # it was told once
            else:
                raise AssertionError("a transaction ends")
    assert everything(bootstrap, name, len(committed)) == committed


def test_an_end_that_was_not_heard_of_is_told_to_who_asks_for_the_other_one(
    session_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LoopThread.run

    def lost(self: LoopThread, work: Any, **options: Any) -> object:
        run(self, work, **options)
        monkeypatch.undo()
        raise KeyboardInterrupt

    config = {"bootstrap.servers": session_broker.bootstrap_servers, "transactional.id": name}
    with Producer(config) as producer:
        producer.init_transactions()
        ends = [(producer.commit_transaction, producer.abort_transaction, "has committed")]
        ends.append((producer.abort_transaction, producer.commit_transaction, "has aborted"))
        for first, other, what in ends:
            producer.begin_transaction()
            producer.send(name, b"1")
            monkeypatch.setattr(LoopThread, "run", lost)
            with pytest.raises(KeyboardInterrupt):
                first()
            with pytest.raises(Misuse, match=what):
                other()
            first()


def test_a_poll_that_is_interrupted_anywhere_loses_and_repeats_nothing(session_broker: Broker, name: str) -> None:
    bootstrap = session_broker.bootstrap_servers
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(1_000):
            producer.send(name, b"%d" % number, partition=0)
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "max.poll.records": 2}
    found: list[int] = []
    with Consumer(config) as consumer:
        consumer.assign([(name, 0)])
        found.extend(record.offset for record in consumer.poll(10_000))
        for place in range(1_000):
            taken = []
            was_interrupted = interrupted(place, lambda: taken.extend(consumer.poll(10_000)))  # noqa: B023
            taken.extend(consumer.poll(10_000))
            found.extend(record.offset for record in taken)
            if not was_interrupted:
                break
        else:
            raise AssertionError("a poll ends")
        assert found == list(range(len(found)))
        records = iter(consumer)
        for place in range(1_000):
            if not interrupted(place, lambda: consumer.assignment()):
                break
        found.extend(next(records).offset for _ in range(5))
        assert found == list(range(len(found)))


def test_a_poll_with_a_wrong_argument_does_not_bring_the_last_records_again(session_broker: Broker, name: str) -> None:
    bootstrap = session_broker.bootstrap_servers
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(10):
            producer.send(name, b"%d" % number, partition=0)
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "max.poll.records": 2}
    with Consumer(config) as consumer:
        consumer.assign([(name, 0)])
        found = []
        for wrong in ("1", None, object()):
            found.extend(record.offset for record in consumer.poll(10_000))
            for poll in (consumer.poll, consumer.poll_arrow):
                with pytest.raises(TypeError, match="timeout_ms is a number"):
                    poll(wrong)  # type: ignore[operator]
        assert found == list(range(6))

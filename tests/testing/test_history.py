"""The judge is fed each anomaly it must see, and the lawful histories it must let pass."""

from __future__ import annotations

import pytest

from semel.testing.history import (
    AnomalyKind,
    Assigned,
    Ended,
    Ending,
    Operation,
    Outcome,
    Poll,
    Reached,
    Seen,
    Send,
    judge,
)


def send(value: str, offset: int | None = None, *, by: str = "p", to: int = 0, **more: object) -> Send:
    return Send(by, "t", to, value, offset, **more)  # type: ignore[arg-type]


def poll(*seen: tuple[int, str], by: str = "c", of: int = 0, **more: object) -> Poll:
    return Poll(by, tuple(Seen("t", of, offset, value) for offset, value in seen), **more)  # type: ignore[arg-type]


def at(*positions: int, by: str = "c") -> Reached:
    return Reached(by, tuple((("t", number), position) for number, position in enumerate(positions)))


def kinds(*history: Operation, at_rest: bool = False) -> set[AnomalyKind]:
    return {anomaly.kind for anomaly in judge(history, at_rest=at_rest)}


def committed(name: str) -> list[Operation]:
    return [Ending("p", name), Ended("p", name, Outcome.OK)]


LAWFUL: dict[str, list[Operation]] = {
    "nothing at all": [],
    "sent and read": [send("a", 0), send("b", 1), poll((0, "a")), poll((1, "b"))],
    "two readers of the same records": [send("a", 0), poll((0, "a")), poll((0, "a"), by="d")],
    "a marker leaves a gap": [
        send("a", 0, transaction="x"),
        *committed("x"),
        send("b", 2, transaction="y"),
        *committed("y"),
        poll((0, "a"), (2, "b")),
    ],
    "an aborted record is passed over": [
        send("a", 0, transaction="x"),
        Ended("p", "x", Outcome.FAILED),
        send("b", 2),
        poll((2, "b")),
    ],
    "an unknown send that was written": [send("a", outcome=Outcome.UNKNOWN), poll((0, "a"))],
    "an unknown send that was not": [send("a", outcome=Outcome.UNKNOWN), send("b", 0), poll((0, "b"))],
    "an unknown commit, whole": [
        send("a", 0, transaction="x"),
        send("b", 0, to=1, transaction="x"),
        Ending("p", "x"),
        poll((0, "a")),
        poll((0, "b"), of=1),
    ],
    "an unknown commit, not at all": [send("a", 0, transaction="x"), Ending("p", "x"), send("b", 2), poll((2, "b"))],
    "going back after a rebalance": [
        send("a", 0),
        send("b", 1),
        poll((0, "a"), (1, "b")),
        Assigned("c", frozenset({("t", 0)})),
        poll((0, "a"), (1, "b")),
    ],
    "skipping after a rebalance, read by another": [
        send("a", 0),
        send("b", 1),
        send("c", 2),
        poll((0, "a")),
        Assigned("c", frozenset({("t", 0)})),
        poll((2, "c")),
        poll((1, "b"), by="d"),
    ],
    "a reader that is not there yet sees one half before the other": [
        send("a", 0, transaction="x"),
        send("b", 0, to=1, transaction="x"),
        Ending("p", "x"),
        at(0, 0),
        poll((0, "a")),
        at(2, 0),
        poll((0, "a"), by="d"),
        poll((0, "b"), of=1, by="d"),
        poll((0, "b"), of=1),
        at(2, 2),
    ],
    "a reader that begins in the middle of a transaction": [
        send("a", 0, transaction="x"),
        send("b", 1, to=1, transaction="x"),
        *committed("x"),
        at(0, 2),
        poll((0, "a")),
        at(2, 3),
        poll((1, "b"), of=1, by="d"),
    ],
    "an aborted record at the end is passed over": [
        at(0),
        send("a", 0, transaction="x"),
        Ended("p", "x", Outcome.FAILED),
        at(2),
    ],
    "uncommitted reads by a reader who asked for them": [
        send("a", 0, transaction="x"),
        poll((0, "a"), committed_only=False),
        Ended("p", "x", Outcome.FAILED),
    ],
    "interleaved sends of two producers": [send("a", 1), send("b", 0, by="q"), poll((0, "b"), (1, "a"))],
    "a chain of transactions": [
        send("a", 0, transaction="x"),
        *committed("x"),
        poll((0, "a"), transaction="y"),
        send("b", 0, to=1, transaction="y"),
        *committed("y"),
        poll((0, "b"), of=1, transaction="z"),
    ],
}

ANOMALIES: dict[str, tuple[AnomalyKind, list[Operation]]] = {
    "one offset, two values, in two polls": (
        AnomalyKind.INCONSISTENT_OFFSETS,
        [send("a", 0), send("b"), poll((0, "a")), poll((0, "b"), by="d")],
    ),
    "one value, two offsets": (AnomalyKind.DUPLICATE, [send("a", 0), poll((0, "a"), (1, "a"))]),
    "one value, two partitions": (AnomalyKind.DUPLICATE, [send("a", 0), poll((0, "a")), poll((0, "a"), of=1)]),
    "acknowledged, passed, never read": (AnomalyKind.LOST_WRITE, [send("a", 0), send("b", 1), poll((1, "b"))]),
    "committed, passed, never read": (
        AnomalyKind.LOST_WRITE,
        [send("a", 0, transaction="x"), *committed("x"), send("b", 2), poll((2, "b"))],
    ),
    "an aborted record is read": (
        AnomalyKind.ABORTED_READ,
        [send("a", 0, transaction="x"), Ended("p", "x", Outcome.FAILED), poll((0, "a"))],
    ),
    "an aborted record was read before its abort": (
        AnomalyKind.ABORTED_READ,
        [send("a", 0, transaction="x"), poll((0, "a")), Ended("p", "x", Outcome.FAILED)],
    ),
    "a refused record is read": (AnomalyKind.ABORTED_READ, [send("a", outcome=Outcome.FAILED), poll((0, "a"))]),
    "a record is read before its commit": (
        AnomalyKind.UNCOMMITTED_READ,
        [send("a", 0, transaction="x"), poll((0, "a")), *committed("x")],
    ),
    "a producer reads its own uncommitted write": (
        AnomalyKind.UNCOMMITTED_READ,
        [send("a", 0, transaction="x"), poll((0, "a"), by="p"), *committed("x")],
    ),
    "half of a transaction with an unknown end": (
        AnomalyKind.TORN_TRANSACTION,
        [
            send("a", 0, transaction="x"),
            send("b", 0, to=1, transaction="x"),
            Ending("p", "x"),
            send("c", 1, to=1),
            poll((0, "a")),
            poll((1, "c"), of=1),
        ],
    ),
    "half of a transaction, seen whole by another reader": (
        AnomalyKind.TORN_TRANSACTION,
        [
            send("a", 0, transaction="x"),
            send("b", 0, to=1, transaction="x"),
            Ending("p", "x"),
            at(0, 0),
            poll((0, "a")),
            at(2, 2),
            poll((0, "a"), by="d"),
            poll((0, "b"), of=1, by="d"),
        ],
    ),
    "half of a committed transaction, at the end of its partition": (
        AnomalyKind.POLL_SKIP,
        [
            at(0, 0),
            send("a", 0, transaction="x"),
            send("b", 0, to=1, transaction="x"),
            *committed("x"),
            at(0, 2),
            poll((0, "b"), of=1, by="d"),
        ],
    ),
    "standing before what was read": (AnomalyKind.POLL_BACK, [send("a", 5), poll((5, "a")), at(3)]),
    "skipping within a poll": (
        AnomalyKind.POLL_SKIP,
        [send("a", 0), send("b", 1), send("c", 2), poll((0, "a"), (2, "c")), poll((1, "b"), by="d")],
    ),
    "skipping between polls": (
        AnomalyKind.POLL_SKIP,
        [send("a", 0), send("b", 1), send("c", 2), poll((0, "a")), poll((2, "c")), poll((1, "b"), by="d")],
    ),
    "going back within a poll": (AnomalyKind.POLL_BACK, [send("a", 0), send("b", 1), poll((1, "b"), (0, "a"))]),
    "going back between polls": (AnomalyKind.POLL_BACK, [send("a", 0), send("b", 1), poll((1, "b")), poll((0, "a"))]),
    "reading the same record again": (AnomalyKind.POLL_BACK, [send("a", 0), poll((0, "a")), poll((0, "a"))]),
    "sent later, stored earlier": (AnomalyKind.SEND_BACK, [send("a", 1), send("b", 0), poll((0, "b"), (1, "a"))]),
    "two transactions that read each other": (
        AnomalyKind.WRITE_READ_CYCLE,
        [
            send("a", 0, transaction="x"),
            send("b", 0, to=1, transaction="y"),
            Ending("p", "x"),
            Ending("p", "y"),
            poll((0, "b"), of=1, by="c", transaction="x"),
            poll((0, "a"), by="d", transaction="y"),
            Ended("p", "x", Outcome.OK),
            Ended("p", "y", Outcome.OK),
        ],
    ),
    "a record nobody sent": (AnomalyKind.UNWRITTEN_READ, [poll((0, "ghost"))]),
}


@pytest.mark.parametrize("name", LAWFUL)
def test_a_lawful_history_is_let_pass(name: str) -> None:
    assert judge(LAWFUL[name]) == []


@pytest.mark.parametrize("name", ANOMALIES)
def test_each_anomaly_is_named(name: str) -> None:
    kind, history = ANOMALIES[name]
    assert kinds(*history) == {kind}


def test_an_offset_acknowledged_for_one_value_and_read_as_another_is_two_anomalies() -> None:
    assert kinds(send("a", 0), send("b"), poll((0, "b"))) == {AnomalyKind.INCONSISTENT_OFFSETS, AnomalyKind.LOST_WRITE}


def test_what_is_above_every_read_is_judged_at_rest_only() -> None:
    history = [send("a", 0), send("b", 1), poll((0, "a"))]
    assert kinds(*history) == set()
    assert kinds(*history, at_rest=True) == {AnomalyKind.UNSEEN}


def test_the_first_record_of_a_partition_can_be_skipped_too() -> None:
    assert kinds(at(0), send("a", 0), at(1), poll((0, "a"), by="d")) == {AnomalyKind.POLL_SKIP}


def test_what_is_below_where_a_reader_stands_and_was_never_read_is_lost() -> None:
    assert kinds(at(0), send("a", 0), at(1)) == {AnomalyKind.POLL_SKIP, AnomalyKind.LOST_WRITE}
    assert kinds(at(1), send("a", 0), at(1)) == set(), "it began behind it"


def test_a_torn_tail_is_judged_at_rest() -> None:
    history = [send("a", 0, transaction="x"), send("b", 0, to=1, transaction="x"), Ending("p", "x"), poll((0, "a"))]
    assert kinds(*history) == set()
    assert kinds(*history, at_rest=True) == {AnomalyKind.TORN_TRANSACTION}


def test_a_longer_cycle_is_found_and_a_long_chain_is_not_one() -> None:
    count = 5_000
    chain: list[Operation] = []
    for number in range(count):
        chain.append(send(f"v{number}", number, transaction=number))
        chain.append(Ending("p", number))
        if number:
            chain.append(poll((number - 1, f"v{number - 1}"), transaction=number))
    assert kinds(*chain) == set()
    back = Poll("z", (Seen("t", 0, count - 1, f"v{count - 1}"),), transaction=0)
    assert kinds(*chain, back) == {AnomalyKind.WRITE_READ_CYCLE}


def test_a_hundred_thousand_records_are_judged_quickly() -> None:
    history: list[Operation] = [send(str(number), number) for number in range(100_000)]
    history += [poll(*((number, str(number)) for number in range(at, at + 500))) for at in range(0, 100_000, 500)]
    assert judge(history, at_rest=True) == []

"""The claim guard over its socket: one attempt per task, and turns at a partition, judged on the driver."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from semel.machines.pipeline.claims import ClaimRefused, RowRefused
from semel.spark.claims import ClaimServer, TaskClaims, refuse_row
from tests.support.waiting import until

EPOCH = (4000, 7, 0)


@pytest.fixture
def server() -> Iterator[ClaimServer]:
    with ClaimServer("127.0.0.1") as server:
        server.begin_epoch(EPOCH)
        yield server


def writer(server: ClaimServer, task: int = 0, patience_ms: float = 20_000) -> TaskClaims:
    return server.desk.writer(EPOCH, task, patience_ms)


async def once(claims: TaskClaims, partition: int = 0, records: int = 10) -> int:
    """Take one turn, and end it."""
    try:
        sequence = await claims.take_turn("ledger", partition, records)
        await claims.end_turn("ledger", partition)
        return sequence
    finally:
        await claims.close()


@pytest.fixture
def slow(server: ClaimServer) -> Iterator[TaskClaims]:
    """Task 0: it has the turn at partition 0, and does not end it."""
    loop = asyncio.new_event_loop()
    claims = writer(server, 0)
    loop.run_until_complete(claims.take_turn("ledger", 0, 10))
    claims.stop = lambda: loop.run_until_complete(_gone(claims))  # type: ignore[attr-defined]
    yield claims
    claims.stop()  # type: ignore[attr-defined]
    loop.close()


async def _gone(claims: TaskClaims) -> None:
    await claims.close()
    await asyncio.sleep(0.01)  # the transports close


def test_the_first_attempt_of_a_task_may_write_and_the_second_is_refused(server: ClaimServer) -> None:
    assert asyncio.run(once(writer(server))) == 0
    with pytest.raises(ClaimRefused, match="it ran twice"):
        asyncio.run(once(writer(server), 1))


def test_of_many_attempts_at_once_exactly_one_wins(server: ClaimServer) -> None:
    async def attempts() -> list[Any]:
        return await asyncio.gather(*(once(writer(server), number) for number in range(32)), return_exceptions=True)

    answers = asyncio.run(attempts())
    assert [answer for answer in answers if isinstance(answer, int)] == [0]
    assert sum(isinstance(answer, ClaimRefused) for answer in answers) == 31


def test_tasks_that_write_to_one_partition_get_it_one_after_the_other(server: ClaimServer) -> None:
    at_work = 0

    async def write(task: int) -> list[int]:
        nonlocal at_work
        claims, sequences = writer(server, task), []
        for _ in range(5):
            sequences.append(await claims.take_turn("ledger", 0, 10))
            at_work += 1
            await asyncio.sleep(0)
            assert at_work == 1
            at_work -= 1
            await claims.end_turn("ledger", 0)
        await claims.close()
        return sequences

    async def tasks() -> list[list[int]]:
        return await asyncio.gather(*(write(task) for task in range(6)))

    found = asyncio.run(tasks())
    assert sorted(each for sequences in found for each in sequences) == list(range(0, 300, 10))
    assert all(sequences == sorted(sequences) for sequences in found)
    assert server.sequences == {("ledger", 0): 300}
    assert server.given == {(task, "ledger", 0): 50 for task in range(6)}


@pytest.mark.parametrize("how", ["the epoch ends", "the task that has the turn dies"])
def test_who_waits_for_a_turn_that_never_comes_is_refused(server: ClaimServer, slow: Any, how: str) -> None:
    refused: list[str] = []

    def wait() -> None:
        with pytest.raises(ClaimRefused) as failed:
            asyncio.run(once(writer(server, 1)))
        refused.append(str(failed.value))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: server._book._attempts.keys() == {0, 1}, what="the second task to ask")
    if how == "the epoch ends":
        server.end_epoch()
    else:
        slow.stop()
    waiting.join(20)
    assert ("is over" if how == "the epoch ends" else "a task died in its turn at ledger-0") in refused[0]


def test_a_task_that_ended_its_turns_may_go_and_others_write_on(server: ClaimServer) -> None:
    for task in range(5):
        assert asyncio.run(once(writer(server, task))) == 10 * task


def test_a_task_does_not_wait_for_ever(server: ClaimServer, slow: TaskClaims) -> None:
    with pytest.raises(ClaimRefused, match="task 1 had no turn at ledger-0"):
        asyncio.run(once(writer(server, 1, patience_ms=50)))


def test_a_zombie_of_an_older_epoch_is_refused(server: ClaimServer) -> None:
    server.begin_epoch((4000, 8, 0))
    with pytest.raises(ClaimRefused, match="is over"):
        asyncio.run(once(writer(server)))


def test_nothing_is_granted_once_the_epoch_is_closed(server: ClaimServer) -> None:
    server.end_epoch()
    with pytest.raises(ClaimRefused, match="is over"):
        asyncio.run(once(writer(server)))


def test_a_stranger_without_the_secret_is_refused(server: ClaimServer) -> None:
    with pytest.raises(ClaimRefused, match="does not come from a task"):
        asyncio.run(once(replace(server.desk, secret="guess").writer(EPOCH, 0, 1000)))
    assert not server.given


def test_a_partition_that_cannot_join_the_transaction_is_not_granted() -> None:
    def fail(topic: str, partition: int) -> None:
        raise RuntimeError("fenced")

    with ClaimServer("127.0.0.1", fail) as server:
        server.begin_epoch(EPOCH)
        with pytest.raises(ClaimRefused, match="could not join the transaction: fenced"):
            asyncio.run(once(writer(server)))


def test_a_partition_joins_the_transaction_once_and_before_its_first_turn() -> None:
    joined: list[tuple[str, int]] = []

    async def two_turns(claims: TaskClaims) -> None:
        for _ in range(2):
            await claims.take_turn("ledger", 0, 1)
            assert joined == [("ledger", 0)]
            await claims.end_turn("ledger", 0)
        await claims.close()

    with ClaimServer("127.0.0.1", lambda topic, partition: joined.append((topic, partition))) as server:
        server.begin_epoch(EPOCH)
        asyncio.run(two_turns(writer(server)))
        asyncio.run(two_turns(writer(server, 1)))


def test_a_row_that_cannot_be_written_is_told_to_the_driver_in_its_own_words(server: ClaimServer) -> None:
    with pytest.raises(RowRefused, match="too large"):
        refuse_row(server.desk, EPOCH, "a row is too large")
    assert server.mistake == "a row is too large"
    server.desk.complain(EPOCH, "and so is this one")
    assert server.mistake == "a row is too large"
    server.begin_epoch((4000, 8, 0))
    server.desk.complain(EPOCH, "a word from the epoch before")
    assert server.mistake == ""


def test_strangers_and_nonsense_cannot_complain(server: ClaimServer) -> None:
    replace(server.desk, secret="guess").complain(EPOCH, "stop this pipeline")
    for nonsense in ("[]", "7", '{"secret": 1}', '{"secret": "x", "epoch": 7, "mistake": ""}', '{"end": 7}'):
        with socket.create_connection((server.desk.host, server.desk.port), timeout=20) as connection:
            connection.sendall(nonsense.encode() + b"\n")
            assert b"not a claim" in connection.recv(1000)
    assert server.mistake == ""


def test_a_row_is_refused_though_the_driver_does_not_answer(server: ClaimServer) -> None:
    server.close()
    with pytest.raises(RowRefused, match="too large"):
        refuse_row(server.desk, EPOCH, "a row is too large")


def test_executors_with_uncompiled_loops_are_told_of_once(
    server: ClaimServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("semel.records._select.COMPILED", True)
    asyncio.run(once(writer(server, 0), 0))
    assert caplog.messages == []
    monkeypatch.setattr("semel.records._select.COMPILED", False)
    for number in (1, 2, 3):
        asyncio.run(once(writer(server, number), number))
    (said,) = caplog.messages
    assert "the executor at 127.0.0.1 runs the record loops in plain Python" in said and "--archives" in said


def test_a_stranger_cannot_make_the_driver_warn(server: ClaimServer, caplog: pytest.LogCaptureFixture) -> None:
    question = {
        "secret": "guess", "epoch": list(EPOCH), "task": 0, "attempt": "a", "turn": ["ledger", 0], "compiled": False,
    }  # fmt: skip
    with socket.create_connection((server.desk.host, server.desk.port), timeout=10) as connection:
        connection.sendall(json.dumps(question).encode() + b"\n")
        assert b"does not come from a task" in connection.recv(4096)
    assert caplog.messages == []

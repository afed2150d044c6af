"""The claim guard: one writer per output partition and epoch, judged on the driver."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from semel.machines.pipeline.claims import ClaimRefused, RowRefused
from semel.spark.claims import ClaimServer, refuse_row

EPOCH = (4000, 7, 0)


@pytest.fixture
def server() -> Iterator[ClaimServer]:
    with ClaimServer("127.0.0.1") as server:
        server.begin_epoch(EPOCH)
        yield server


def test_the_first_claim_is_granted_and_the_second_refused(server: ClaimServer) -> None:
    server.desk.claim(EPOCH, "ledger", 0)
    with pytest.raises(ClaimRefused, match="already claimed"):
        server.desk.claim(EPOCH, "ledger", 0)


def test_of_many_tasks_at_once_exactly_one_wins(server: ClaimServer) -> None:
    def wins(_: int) -> bool:
        try:
            server.desk.claim(EPOCH, "ledger", 1)
        except ClaimRefused:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(wins, range(64))) == 1


def test_a_zombie_of_an_older_epoch_is_refused(server: ClaimServer) -> None:
    server.begin_epoch((4000, 8, 0))
    with pytest.raises(ClaimRefused, match="is over"):
        server.desk.claim(EPOCH, "ledger", 0)


def test_nothing_is_granted_once_the_epoch_is_closed(server: ClaimServer) -> None:
    server.end_epoch()
    with pytest.raises(ClaimRefused, match="is over"):
        server.desk.claim(EPOCH, "ledger", 0)


def test_a_stranger_without_the_secret_is_refused(server: ClaimServer) -> None:
    with pytest.raises(ClaimRefused, match="does not come from a task"):
        replace(server.desk, secret="guess").claim(EPOCH, "ledger", 0)
    assert not server.claimed


def test_a_partition_that_cannot_join_the_transaction_is_not_granted() -> None:
    def fail(topic: str, partition: int) -> None:
        raise RuntimeError("fenced")

    with ClaimServer("127.0.0.1", fail) as server:
        server.begin_epoch(EPOCH)
        with pytest.raises(ClaimRefused, match="could not join the transaction: fenced"):
            server.desk.claim(EPOCH, "ledger", 0)


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
    for nonsense in ("[]", "7", '{"secret": 1}', '{"secret": "x", "epoch": 7, "mistake": ""}'):
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
    server.desk.claim(EPOCH, "ledger", 0)
    assert caplog.messages == []
    monkeypatch.setattr("semel.records._select.COMPILED", False)
    for partition in (1, 2, 3):
        server.desk.claim(EPOCH, "ledger", partition)
    (said,) = caplog.messages
    assert "the executor at 127.0.0.1 runs the record loops in plain Python" in said and "--archives" in said


def test_a_stranger_cannot_make_the_driver_warn(server: ClaimServer, caplog: pytest.LogCaptureFixture) -> None:
    question = {"secret": "guess", "epoch": list(EPOCH), "topic": "ledger", "partition": 0, "compiled": False}
    with socket.create_connection((server.desk.host, server.desk.port), timeout=10) as connection:
        connection.sendall(json.dumps(question).encode() + b"\n")
        assert b"does not come from a task" in connection.recv(4096)
    assert caplog.messages == []

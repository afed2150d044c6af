"""A large fetch: others are served while it is read, and what it gives belongs together whatever happens meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.broker.handlers.fetch import BYTES_AT_ONCE
from semel.broker.net.turns import TURN_S
from semel.errors import ErrorCode
from semel.log.files import Files
from semel.log.partition_log import PartitionLog
from semel.wire.messages.fetch import FetchResponse
from tests.broker.raw import Raw, batch, fetch_request, stored_batches
from tests.support.waiting import until

#: So much is read in one turn.
TURN_BYTES = 4_000_000
LARGE = batch(*[b"v" * 1000] * 1000)
ALL_BYTES = 100_000_000


@pytest.fixture
def raw() -> Iterator[Raw]:
    with Broker() as broker, Raw(broker) as connection:
        connection.broker = broker  # type: ignore[attr-defined]
        connection.socket.settimeout(60)
        yield connection


@pytest.fixture
def server(raw: Raw) -> Any:
    return raw.broker.server  # type: ignore[attr-defined]


def fill(raw: Raw, topic: str, partitions: int, batches: int) -> None:
    raw.create(topic, partitions)
    for partition in range(partitions):
        for _ in range(batches):
            assert raw.produce(topic, LARGE, partition=partition).error_code == 0


def fetch_all(raw: Raw, topic: str, partitions: int, **options: Any) -> list[FetchResponse.PartitionData]:
    wanted = {(topic, partition): 0 for partition in range(partitions)}
    options = {"max_bytes": ALL_BYTES, "partition_max_bytes": ALL_BYTES, "max_wait_ms": 0, **options}
    response: FetchResponse = raw.ask(fetch_request(wanted, **options), 12)
    return response.responses[0].partitions


class ReadByTheLoop:
    """Counts what the broker's own thread reads from files, in each turn, on a clock that this moves."""

    def __init__(self, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.per_turn = [0]
        self.elsewhere = 0
        self._bytes = 0
        read_at = Files.read_at
        server.turns.clock = lambda: self._bytes * TURN_S / TURN_BYTES

        def counted(files: Files, descriptor: int, size: int, position: int) -> bytes:
            data = read_at(files, descriptor, size, position)
            if threading.current_thread().name == "semel-broker":
                self.per_turn[-1] += len(data)
                self._bytes += len(data)
            else:
                self.elsewhere += len(data)
            return data

        def turned() -> None:
            self.per_turn.append(0)
            server.loop.call_soon(turned)

        monkeypatch.setattr(Files, "read_at", counted)
        server.loop.call_soon_threadsafe(turned)


def test_much_of_one_partition_is_read_beside_the_loop(
    raw: Raw, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(raw, "t", 1, 12)
    whole = stored_batches(raw.fetch("t", max_bytes=ALL_BYTES, partition_max_bytes=ALL_BYTES))
    read = ReadByTheLoop(server, monkeypatch)
    for limit in (ALL_BYTES, 7_500_000):
        (part,) = fetch_all(raw, "t", 1, partition_max_bytes=limit)
        found = stored_batches(part)
        assert [one.base_offset for one in found] == [one.base_offset for one in whole][: limit // len(LARGE)]
    assert max(read.per_turn) <= BYTES_AT_ONCE
    assert read.elsewhere == 19 * len(LARGE)


def test_many_partitions_are_read_in_several_turns(raw: Raw, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(raw, "t", 24, 1)
    read = ReadByTheLoop(server, monkeypatch)
    for wait_ms in (0, 20):
        # The second waits for more than there is, and looks again.
        parts = fetch_all(raw, "t", 24, max_wait_ms=wait_ms, min_bytes=60_000_000 if wait_ms else 1)
        assert [len(part.records) for part in parts] == [len(LARGE)] * 24
    assert sum(read.per_turn) >= 3 * 24 * len(LARGE)
    assert max(read.per_turn) <= TURN_BYTES + 2 * BYTES_AT_ONCE


def test_ordinary_fetches_are_answered_at_once(raw: Raw, server: Any) -> None:
    fill(raw, "t", 2, 1)

    async def must_not() -> None:
        raise AssertionError("nothing large is read")

    server.beside = lambda work: must_not()
    for partitions in (1, 2):
        parts = fetch_all(raw, "t", partitions, partition_max_bytes=1 << 20)
        assert [len(part.records) for part in parts] == [len(LARGE)] * partitions


# What happens meanwhile


def meanwhile(server: Any, happens: Callable[[PartitionLog], object]) -> None:
    """Do this once, on the broker's thread, between finding the records and reading them."""
    beside = server.beside

    async def after(work: Callable[[], Any]) -> Any:
        server.beside = beside
        happens(server.topics.partition("t", 0).log)
        return await beside(work)

    server.beside = after


def test_what_comes_to_the_log_meanwhile_is_not_in_the_watermarks(raw: Raw, server: Any) -> None:
    fill(raw, "t", 1, 4)

    def append(log: PartitionLog) -> None:
        log.append(LARGE, int(time.time() * 1000))
        assert log.high_watermark == 5000

    meanwhile(server, append)
    (part,) = fetch_all(raw, "t", 1, isolation_level=1)
    assert (part.high_watermark, part.last_stable_offset, len(part.records)) == (4000, 4000, 4 * len(LARGE))
    assert part.aborted_transactions == []
    (part,) = fetch_all(raw, "t", 1)
    assert (part.high_watermark, len(part.records)) == (5000, 5 * len(LARGE))


def test_records_whose_files_are_removed_meanwhile_are_served_as_they_were(raw: Raw, server: Any) -> None:
    fill(raw, "t", 1, 4)

    def remove(log: PartitionLog) -> None:
        for segment in log.segments:
            segment.close()
            os.unlink(segment.log_path)

    meanwhile(server, remove)
    (part,) = fetch_all(raw, "t", 1)
    assert (part.error_code, part.high_watermark, len(part.records)) == (0, 4000, 4 * len(LARGE))


def test_after_a_truncation_meanwhile_what_is_left_is_served(raw: Raw, server: Any) -> None:
    fill(raw, "t", 1, 4)
    meanwhile(server, lambda log: log.truncate_to(1000, 0))
    (part,) = fetch_all(raw, "t", 1)
    assert (part.error_code, part.high_watermark, len(part.records)) == (0, 1000, len(LARGE))


def test_a_file_that_cannot_be_read_meanwhile_is_an_error_of_its_partition_alone(
    raw: Raw, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(raw, "t", 2, 4)
    good = fetch_all(raw, "t", 2)

    def broken(files: Files, descriptor: int, size: int, position: int) -> bytes:
        monkeypatch.undo()
        raise OSError("the disk is gone")

    meanwhile(server, lambda log: monkeypatch.setattr(Files, "read_at", broken))
    again = fetch_all(raw, "t", 2)
    assert [bytes(part.records) for part in again] == [bytes(part.records) for part in good], "it was readable again"

    def lost(log: PartitionLog) -> None:
        os.truncate(log.segments.active.log_path, 0)

    meanwhile(server, lost)
    first, second = fetch_all(raw, "t", 2)
    assert first.error_code == ErrorCode.CORRUPT_MESSAGE and not first.records
    assert (second.error_code, second.high_watermark) == (0, 4000)


def test_a_client_that_goes_meanwhile_leaves_neither_descriptors_nor_memory(raw: Raw, server: Any) -> None:
    fill(raw, "t", 1, 4)
    fetch_all(raw, "t", 1)
    open_before = len(os.listdir("/proc/self/fd"))
    begun, may_go = threading.Event(), threading.Event()
    beside = server.beside

    def wait_first(work: Callable[[], Any]) -> Any:
        begun.set()
        may_go.wait(30)
        return work()

    server.beside = lambda work: beside(partial(wait_first, work))
    clients = [Raw(raw.broker) for _ in range(3)]  # type: ignore[attr-defined]
    asked = fetch_request({("t", 0): 0}, max_bytes=ALL_BYTES, partition_max_bytes=ALL_BYTES)
    for client in clients:
        client.send(asked, 12)
    until(lambda: server.unread.used_bytes == 3 * 4 * len(LARGE), what="all three to be counted")
    assert begun.wait(30)
    for client in clients:
        client.socket.close()
    until(lambda: server.unread.used_bytes == 0, what="their memory to come back")
    may_go.set()
    server.beside = beside
    until(lambda: len(os.listdir("/proc/self/fd")) <= open_before, what="the descriptors to be closed")
    assert len(fetch_all(raw, "t", 1)[0].records) == 4 * len(LARGE)


def test_sessions_get_what_was_read_in_pieces(raw: Raw) -> None:
    fill(raw, "t", 5, 4)
    wanted = {("t", partition): 0 for partition in range(5)}
    options = {"max_bytes": ALL_BYTES, "partition_max_bytes": 3_000_000, "max_wait_ms": 0}
    first = raw.ask(fetch_request(wanted, session_id=0, session_epoch=0, **options), 12)
    assert first.session_id
    again = raw.ask(fetch_request({}, session_id=first.session_id, session_epoch=1, **options), 12)
    for response in (first, again):
        sizes = {part.partition_index: len(part.records) for part in response.responses[0].partitions}
        assert sizes == {partition: 2 * len(LARGE) for partition in range(5)}

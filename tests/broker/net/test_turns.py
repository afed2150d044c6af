"""One thread for everybody: how much is done in one turn of the loop, counted on a clock that the test moves."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import Any, cast

import pytest

from semel.broker.embedded import new_event_loop
from semel.broker.net import memory
from semel.broker.net.connection import ServerConnection
from semel.broker.net.framing import READ_BYTES, SMALL_BYTES
from semel.broker.net.turns import SHARE_S, TURN_S, Turns
from tests.broker.net.test_connections import FakeTransport

#: So many requests fill a turn.
FILL = 4


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """Connections whose requests each take the same share of a turn."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.turns = Turns(self.clock)
        #: So long does each take.
        self.frame_s = 1.001 * TURN_S / FILL
        self.served: list[bytes] = []
        self.failures: list[BaseException] = []

    def serve(self, connection: ServerConnection, frame: memoryview) -> Any:
        self.clock.now += self.frame_s
        self.served.append(bytes(frame))
        return None if frame[0] == ord("n") else [b"." + bytes(frame)]

    def connection(self) -> tuple[ServerConnection, FakeTransport]:
        connection = ServerConnection(self.serve, self.failures.append, 100 * READ_BYTES, turns=self.turns)
        transport = FakeTransport()
        connection.connection_made(cast(asyncio.Transport, transport))
        return connection, transport


def feed(connection: ServerConnection, *frames: bytes) -> None:
    data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def names(letter: str, count: int) -> list[bytes]:
    return [f"{letter}{number:04}".encode() for number in range(count)]


async def turn() -> None:
    await asyncio.sleep(0)


def test_what_arrives_together_is_served_in_several_turns_and_answered_in_order() -> None:
    async def run() -> None:
        worker = Worker()
        connection, transport = worker.connection()
        frames = names("a", 10 * FILL)
        feed(connection, *frames)
        assert len(worker.served) <= FILL
        per_turn = []
        while len(worker.served) < len(frames):
            before = len(worker.served)
            await turn()
            per_turn.append(len(worker.served) - before)
        assert max(per_turn) <= FILL
        assert worker.served == frames
        assert b"".join(transport.written) == b"".join(b"." + frame for frame in frames)

    asyncio.run(run())


def test_a_turn_is_shared_by_all_connections_and_nobody_is_left_out() -> None:
    async def run() -> None:
        worker = Worker()
        greedy, _ = worker.connection()
        feed(greedy, *names("a", 10 * FILL))
        modest, transport = worker.connection()
        feed(modest, b"modest")
        assert b"modest" not in worker.served, "the turn was used up"
        await turn()
        await turn()
        assert b"modest" in worker.served
        assert transport.written == [b".modest"]
        assert len(worker.served) <= 4 * FILL

    asyncio.run(run())


def test_what_waits_for_its_turn_is_served_though_its_sender_hung_up() -> None:
    async def run() -> None:
        worker = Worker()
        connection, transport = worker.connection()
        frames = names("n", 3 * FILL)
        feed(connection, *frames)
        assert connection.eof_received(), "the connection is kept until everything is served"
        assert not transport.aborted
        for _ in range(10):
            await turn()
        assert worker.served == frames
        assert transport.aborted, "and closed then"

    asyncio.run(run())


def test_tasks_that_rest_go_on_one_in_each_turn() -> None:
    async def run() -> None:
        clock = Clock()
        turns = Turns(clock)
        worked: list[int] = []

        async def long_work() -> None:
            since = clock()
            for _ in range(5):
                clock.now += 1.001 * TURN_S
                worked.append(1)
                since = await turns.rest(since)

        tasks = [asyncio.create_task(long_work()) for _ in range(6)]
        await turn()
        assert len(worked) == 6, "each begins at once"
        per_turn = []
        while not all(task.done() for task in tasks):
            before = len(worked)
            await turn()
            per_turn.append(len(worked) - before)
        assert max(per_turn) == 1
        assert len(worked) == 30

    asyncio.run(run())


def test_a_failure_of_one_who_waited_keeps_nobody_else_waiting() -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        turns = Turns(Clock())
        called: list[str] = []

        def fails() -> bool:
            raise ValueError("on purpose")

        turns.later(fails)
        turns.later(lambda: bool(called.append("second")))
        for _ in range(3):
            await turn()
        assert called == ["second"]

    asyncio.run(run())


def test_who_asks_rarely_is_served_before_hundreds_who_ask_without_end() -> None:
    async def run() -> None:
        worker = Worker()
        for number in range(300):
            flooding, _ = worker.connection()
            feed(flooding, *names(f"{number}-", 20 * FILL))
        # At first they all come with something new.
        while len({frame.split(b"-")[0] for frame in worker.served}) < 300:
            await turn()
        modest, transport = worker.connection()
        for asked in range(20):
            feed(modest, b"modest")
            turns = 0
            while len(transport.written) <= asked:
                await turn()
                turns += 1
            assert turns <= 2
        assert len(worker.served) < 300 * 20 * FILL, "the others are not done"

    asyncio.run(run())


def test_those_who_wait_are_served_in_shares() -> None:
    async def run() -> None:
        worker = Worker()
        worker.frame_s = SHARE_S / 2
        for number in range(5):
            connection, _ = worker.connection()
            feed(connection, *names(f"{number}-", 100))
        await turn()
        worker.served.clear()
        await turn()
        served = {frame[:1] for frame in worker.served}
        assert len(worker.served) <= TURN_S / worker.frame_s + 1
        assert len(served) >= 4, "each for a while, and nobody for the whole turn"

    asyncio.run(run())


def test_who_was_served_much_goes_on_though_others_come_without_end() -> None:
    async def run() -> None:
        worker = Worker()
        greedy, transport = worker.connection()
        frames = names("a", 10 * FILL)
        feed(greedy, *frames)
        turns = 0
        while b"a0039" not in worker.served:
            for number in range(FILL):
                newcomer, _ = worker.connection()
                feed(newcomer, f"new{number}".encode())
            await turn()
            turns += 1
            assert turns < 100 * FILL
        assert b"".join(transport.written) == b"".join(b"." + frame for frame in frames)

    asyncio.run(run())


# Large requests that arrive


class Sender:
    """Sends one frame as fast as it is read, as a loop that reads as long as there is anything does."""

    def __init__(self, worker: Worker, size: int) -> None:
        self.connection, self.transport = worker.connection()
        self._clock = worker.clock
        self.left = size + 4
        self._head = struct.pack(">i", size)

    def send(self) -> int:
        """What was read before reading was paused. As much as `READ_BYTES` takes a part of a turn."""
        sent = 0
        while self.left and self.transport.reading:
            room = self.connection.get_buffer(-1)
            count = min(len(room), self.left)
            room[: len(self._head)] = self._head
            self._head = b""
            self._clock.now += 1.001 * TURN_S / FILL * count / READ_BYTES
            self.left -= count
            self.connection.buffer_updated(count)
            sent += count
        return sent


def test_a_large_request_is_read_in_several_turns_with_nothing_lost() -> None:
    async def run() -> None:
        worker = Worker()
        size = 10 * FILL * READ_BYTES
        sender = Sender(worker, size)
        per_turn = []
        while sender.left:
            per_turn.append(sender.send())
            await turn()
        assert max(per_turn) <= (FILL + 1) * READ_BYTES
        assert len(per_turn) <= 12, "and each turn is used"
        while not worker.served:
            await turn()
        assert [len(frame) for frame in worker.served] == [size]

    asyncio.run(run())


def test_all_who_send_large_requests_share_the_turns() -> None:
    async def run() -> None:
        worker = Worker()
        size = 2 * READ_BYTES
        senders = [Sender(worker, size) for _ in range(40)]
        turns = 0
        while len(worker.served) < 40:
            read = sum(sender.send() for sender in senders)
            # Who comes too late for a turn has to take something, and that is little.
            assert turns == 0 or read <= (FILL + 1) * READ_BYTES + 40 * SMALL_BYTES
            await turn()
            turns += 1
            assert turns < 1000
        assert [len(frame) for frame in worker.served] == [size] * 40

    asyncio.run(run())


def test_a_connection_that_is_lost_before_it_may_read_on_stays_lost() -> None:
    async def run() -> None:
        worker = Worker()
        sender = Sender(worker, 10 * FILL * READ_BYTES)
        sender.send()
        assert not sender.transport.reading
        sender.connection.connection_lost(None)
        for _ in range(3):
            await turn()
        assert not sender.transport.reading

    asyncio.run(run())


class CountingConnection(ServerConnection):
    """On a clock that what is read moves."""

    clock: Clock
    sizes: list[int]

    def buffer_updated(self, nbytes: int) -> None:
        self.clock.now += 1.001 * TURN_S / FILL * nbytes / READ_BYTES
        self.sizes[-1] += nbytes
        super().buffer_updated(nbytes)


@pytest.mark.parametrize("new_loop", [new_event_loop, asyncio.SelectorEventLoop])
def test_no_loop_reads_more_of_a_large_request_in_one_turn(new_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    new_buffer, made = memory.new_buffer, []

    def counted(size_bytes: int) -> memoryview:
        made.append(size_bytes)
        return new_buffer(size_bytes)

    monkeypatch.setattr(memory, "new_buffer", counted)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        worker = Worker()
        done = loop.create_future()
        size = 40 * READ_BYTES

        def serve(connection: ServerConnection, frame: memoryview) -> Any:
            done.set_result(len(frame))
            return [b"done"]

        def connection() -> ServerConnection:
            counting = CountingConnection(serve, worker.failures.append, size, turns=worker.turns)
            counting.clock, counting.sizes = worker.clock, per_turn
            return counting

        per_turn = [0]

        def turned() -> None:
            per_turn.append(0)
            if not done.done():
                loop.call_soon(turned)

        server = await loop.create_server(connection, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            sender = threading.Thread(target=client.sendall, args=(struct.pack(">i", size) + bytes(size),))
            sender.start()
            turned()
            async with asyncio.timeout(60):
                assert await done == size
            sender.join()
        server.close()
        assert sum(per_turn) == size + 4
        assert max(per_turn) <= (FILL + 1) * READ_BYTES
        assert max(made) == memory.RECEIVE_BUFFER_BYTES, "what has arrived is not copied when the buffer grows"

    loop = new_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()

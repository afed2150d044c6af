"""Frames, limits and hostile peers: what one connection may cost, and that the others do not notice."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from semel.broker.connections import LEAST_FOR_FILES
from semel.broker.embedded import Broker
from semel.broker.net.connection import MOST_OPEN, LaterAnswer, Served, ServerConnection
from semel.broker.net.memory import RECEIVE_BUFFER_BYTES, MemoryPool, UnreadAnswers
from semel.errors import ErrorCode
from semel.wire.apis import APIS, ApiKey
from semel.wire.frames import request_frame
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.metadata import MetadataRequest
from tests.broker.raw import Raw, batch, fetch_request, produce_request
from tests.support.processes import BrokerProcess
from tests.support.waiting import until


class FakeTransport:
    """Remembers what was written and whether reading goes on."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.first_write = asyncio.Event()
        self.second_write = asyncio.Event()
        self.resumed = asyncio.Event()
        self.reading = True
        self.aborted = False
        self.unread_bytes = 0

    def set_write_buffer_limits(self, high: int) -> None:
        self.most_unread_bytes = high

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("peer", 1)

    def writelines(self, buffers: list[bytes]) -> None:
        self.written.append(b"".join(buffers))
        self.first_write.set()
        if len(self.written) == 2:
            self.second_write.set()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.resumed.set()

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True


class Peer:
    """Feeds a connection as a loop would: only into the buffer it offers, only while it reads."""

    def __init__(
        self,
        serve: Any,
        *,
        max_frame_bytes: int = 10_000_000,
        pool: MemoryPool | None = None,
        unread: UnreadAnswers | None = None,
    ) -> None:
        self.failures: list[BaseException] = []
        self.connection = ServerConnection(serve, self.failures.append, max_frame_bytes, pool, unread)
        self.transport = FakeTransport()
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    def feed(self, data: bytes) -> int:
        """How many bytes were taken before reading was paused or the connection closed."""
        taken = 0
        while taken < len(data) and self.transport.reading and not self.transport.aborted:
            room = self.connection.get_buffer(-1)
            assert len(room) > 0
            part = data[taken : taken + len(room)]
            room[: len(part)] = part
            self.connection.buffer_updated(len(part))
            taken += len(part)
        return taken


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def echo(_: ServerConnection, frame: memoryview) -> Served:
    return [bytes(frame)]


@pytest.mark.parametrize("step", [1, 3, 1000, 10**6])
def test_frames_are_found_however_the_bytes_arrive(step: int) -> None:
    bodies = [b"abcd", b"x" * 70_000, b"efgh" * 10, b"y" * 300_000, b"last"]
    peer = Peer(echo)
    stream = b"".join(map(framed, bodies))
    for at in range(0, len(stream), step):
        assert peer.feed(stream[at : at + step]) == len(stream[at : at + step])
    assert b"".join(peer.transport.written) == b"".join(bodies)


def test_what_arrives_together_is_answered_with_one_write() -> None:
    peer = Peer(echo)
    peer.feed(framed(b"one!") + framed(b"two!") + framed(b"three!"))
    assert peer.transport.written == [b"one!two!three!"]


def test_answers_with_records_are_not_held_back() -> None:
    peer = Peer(lambda _connection, frame: [bytes(frame), b"records"])
    peer.feed(framed(b"one!") * 3)
    assert peer.transport.written == [b"one!records"] * 3


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 3, 10_000_001, 2**31 - 1])
def test_a_length_that_cannot_be_closes_the_connection(length: int) -> None:
    peer = Peer(echo)
    peer.feed(struct.pack(">i", length))
    assert peer.transport.aborted


def test_a_lying_length_costs_no_memory() -> None:
    peer = Peer(echo)
    peer.feed(struct.pack(">i", 9_000_000) + b"x" * 1000)
    assert len(peer.connection._buffer) == 1004


def test_a_buffer_that_grew_for_one_frame_is_given_back() -> None:
    pool = MemoryPool(100_000_000)
    peer = Peer(echo, pool=pool)
    peer.feed(framed(b"x" * 9_000_000))
    assert peer.transport.written == [b"x" * 9_000_000]
    assert (pool.used_bytes, len(peer.connection._buffer)) == (0, 0)


def test_when_the_pool_is_empty_reading_waits_until_something_comes_back() -> None:
    pool = MemoryPool(1_000_000)
    first, second = Peer(echo, pool=pool), Peer(echo, pool=pool)
    assert first.feed(framed(b"x" * 2_000_000)[:1_500_000]) == 1_500_000
    frame = framed(b"y" * 500_000)
    taken = second.feed(frame)
    assert taken < len(frame)
    assert not second.transport.reading
    first.connection.connection_lost(None)
    assert second.transport.reading
    assert second.feed(frame[taken:]) == len(frame) - taken
    assert second.transport.written == [b"y" * 500_000]


def test_a_frame_larger_than_the_pool_does_not_wait_for_itself() -> None:
    peer = Peer(echo, pool=MemoryPool(1))
    frame = framed(b"x" * 3_000_000)
    assert peer.feed(frame) == len(frame)
    assert peer.transport.written == [b"x" * 3_000_000]


def test_frames_that_each_hold_a_part_of_the_pool_do_not_wait_for_each_other() -> None:
    pool = MemoryPool(1_000_000)
    peers = [Peer(echo, pool=pool) for _ in range(6)]
    frame = framed(b"x" * 2_000_000)
    sent = [0] * len(peers)
    while any(count < len(frame) for count in sent):
        before = list(sent)
        for number, peer in enumerate(peers):
            sent[number] += peer.feed(frame[sent[number] : sent[number] + 100_000])
        assert sent != before, "nobody gets on"
        # One at a time may go beyond the limit.
        assert pool.used_bytes < 1_000_000 + 2_000_000
    assert all(peer.transport.written == [b"x" * 2_000_000] for peer in peers)
    assert pool.used_bytes < 1_000_000


def test_buffers_kept_for_later_leave_others_their_share() -> None:
    pool = MemoryPool(10_000_000)
    peers = [Peer(echo, pool=pool) for _ in range(40)]
    for peer in peers:
        peer.feed(framed(b"x" * 1_000_000))
        assert peer.transport.written == [b"x" * 1_000_000]
    assert pool.refusals == 0
    assert pool.used_bytes <= 6_000_000


@pytest.mark.parametrize("waits", [False, True])
def test_a_peer_that_has_to_wait_keeps_nothing_that_others_need(waits: bool) -> None:
    async def scene() -> None:
        async def muted_later(connection: ServerConnection) -> list[bytes | bytearray | memoryview]:
            connection.mute(0.05)
            return [b"wait"]

        def serve(connection: ServerConnection, frame: memoryview) -> Served:
            if len(frame) < 1000:
                return [bytes(frame)]
            if waits:
                return muted_later(connection)
            connection.mute(0.05)
            return [b"wait"]

        pool = MemoryPool(1_000_000)
        peer = Peer(serve, pool=pool)
        peer.feed(framed(b"x" * 2_000_000))
        async with asyncio.timeout(5):
            await peer.transport.first_write.wait()
            assert pool.used_bytes == 0
            if peer.transport.reading:
                peer.feed(framed(b"next"))
                assert peer.transport.written == [b"wait"]
            else:
                await peer.transport.resumed.wait()
                peer.feed(framed(b"next"))
            await peer.transport.second_write.wait()
        assert peer.transport.written == [b"wait", b"next"]

    asyncio.run(scene())


def test_requests_of_one_connection_are_served_one_at_a_time_and_answered_in_order() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        gates = {b"slow": loop.create_future()}
        order: list[bytes] = []

        def serve(_: ServerConnection, frame: memoryview) -> Served:
            body = bytes(frame)
            order.append(body)
            if body not in gates:
                return [body]

            async def later() -> list[bytes | bytearray | memoryview]:
                await gates[body]
                return [bytes(frame)]

            return later()

        peer = Peer(serve)
        peer.feed(framed(b"slow") + framed(b"quick"))
        await asyncio.sleep(0)
        assert order == [b"slow"]
        assert peer.transport.written == []
        gates[b"slow"].set_result(None)
        async with asyncio.timeout(5):
            await peer.transport.second_write.wait()
        assert peer.transport.written == [b"slow", b"quick"]

    asyncio.run(scene())


def test_p1_requests_are_served_while_earlier_answers_wait_and_are_answered_in_order() -> None:
    async def story() -> None:
        later: list[LaterAnswer] = []

        def serve(connection: ServerConnection, frame: memoryview) -> Served:
            if frame[0] == ord("w"):
                later.append(LaterAnswer(connection))
                return later[-1]
            return [framed(bytes(frame))]

        peer = Peer(serve)
        for body in (b"w001", b"w002", b"x003"):
            peer.feed(framed(body))
        assert len(later) == 2, "the second was served while the first waits"
        later[1].give([framed(b"w002")])
        assert peer.transport.written == [], "an earlier answer is missing"
        later[0].give([framed(b"w001")])
        assert b"".join(peer.transport.written) == framed(b"w001") + framed(b"w002") + framed(b"x003")

    asyncio.run(story())


def test_p1_at_most_eight_answers_of_a_connection_wait() -> None:
    async def story() -> None:
        later: list[LaterAnswer] = []

        def serve(connection: ServerConnection, frame: memoryview) -> Served:
            later.append(LaterAnswer(connection))
            return later[-1]

        peer = Peer(serve)
        for number in range(MOST_OPEN + 3):
            peer.feed(framed(b"%04d" % number))
        assert len(later) == MOST_OPEN
        for number in range(MOST_OPEN):
            later[number].give([framed(b"%04d" % number)])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(later) == min(MOST_OPEN + 3, MOST_OPEN + 1 + number), "each that is answered makes room for one"
        lost: list[int] = []
        later[-1].when_lost = lambda: lost.append(1)
        peer.connection.connection_lost(None)
        assert lost == [1]
        later[-1].give([framed(b"late")])

    asyncio.run(story())


def test_reading_stops_when_the_buffer_is_full_behind_a_slow_request() -> None:
    async def scene() -> None:
        done = asyncio.get_running_loop().create_future()

        async def later() -> None:
            await done

        peer = Peer(lambda _connection, _frame: later())
            # What was served takes no room any more.
        assert peer.feed(framed(b"slow") + b"x" * (2 * RECEIVE_BUFFER_BYTES)) == 8 + RECEIVE_BUFFER_BYTES
        assert not peer.transport.reading
        peer.connection.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(scene())


def test_a_peer_that_does_not_read_is_not_served_further() -> None:
    served: list[bytes] = []

    def serve(_: ServerConnection, frame: memoryview) -> Served:
        served.append(bytes(frame))
        return [bytes(frame)]

    peer = Peer(serve)
    peer.connection.pause_writing()
    peer.feed(framed(b"wait"))
    assert served == []
    peer.connection.resume_writing()
    assert served == [b"wait"]


def test_a_failure_nobody_foresaw_is_reported_and_closes_only_its_connection() -> None:
    def serve(_: ServerConnection, frame: memoryview) -> Served:
        raise RuntimeError("bug")

    peer = Peer(serve)
    peer.feed(framed(b"boom"))
    assert [str(failure) for failure in peer.failures] == ["bug"]
    assert peer.transport.aborted


# The real broker


def test_what_is_not_served_closes_the_connection(broker: Broker) -> None:
    for head in (struct.pack(">hhih", 9999, 0, 1, -1), struct.pack(">hhih", 0, 99, 1, -1), b"\0\0\0"):
        with Raw(broker) as raw:
            raw.socket.sendall(framed(head + b"\0" * 8))
            assert raw.is_closed()


def test_what_was_served_is_answered_though_the_next_request_makes_no_sense(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        served = b"".join(request_frame(0, 12, 7, "raw", produce_request("t", batch())))
        nonsense = struct.pack(">ihhih", 10, 999, 0, 8, -1)
        raw.socket.sendall(served + nonsense)
        assert raw.receive((ApiKey.PRODUCE, 12, 7)).responses[0].partition_responses[0].base_offset == 0
        assert raw.is_closed()


def test_a_request_larger_than_allowed_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path, settings={"socket.request.max.bytes": 2000}) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.send(produce_request("t", batch(b"x" * 3000)), 12)
        assert raw.is_closed()


def test_connections_are_limited_in_all_and_per_address(tmp_path: Path) -> None:
    for name in ("max.connections", "max.connections.per.ip"):
        with Broker(tmp_path / name, settings={name: 2}) as broker:
            kept = [Raw(broker) for _ in range(2)]
            for raw in kept:
                raw.ask(ApiVersionsRequest(), 0)
            with Raw(broker) as third:
                assert third.is_closed()
            for raw in kept:
                raw.socket.close()
            until(lambda broker=broker: len(broker.server.connections) == 0, what="the connections to go")
            with Raw(broker) as again:
                again.ask(ApiVersionsRequest(), 0)


def test_connections_leave_file_descriptors_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as probe:
        limit = probe.fileno() + LEAST_FOR_FILES + 40  # the broker, in this process, gets the next ones
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    come: list[Raw] = []
    with Broker(tmp_path) as broker, Raw(broker) as before:
        with pytest.raises(ConnectionError):
            for _ in range(limit):
                come.append(Raw(broker))
                come[-1].ask(ApiVersionsRequest(), 0)
        before.create("t")
        assert before.produce("t", batch()).error_code == ErrorCode.NONE
        monkeypatch.undo()  # the limit is raised
        with Raw(broker) as after:
            after.ask(ApiVersionsRequest(), 0)
        for raw in come:
            raw.socket.close()
    assert "ulimit -n" in caplog.text


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, settings={"connections.max.idle.ms": 150}) as broker,
        Raw(broker) as busy,
        Raw(broker) as idle,
    ):
        busy.create("t")
        waiting = busy.send(fetch_request({("t", 0): 0}, max_wait_ms=700), 12)
        assert idle.is_closed()
        busy.receive(waiting)


def test_a_broken_invariant_stops_the_broker_and_leaves_no_clean_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.errors import InvariantViolation
    from semel.log.partition_log import PartitionLog

    broker = Broker(tmp_path).start()
    try:
        with Raw(broker) as raw, Raw(broker) as other:
            raw.create("t")

            def broken(*_: object, **__: object) -> None:
                raise InvariantViolation("two and two are five")

            # In the class: a log belongs to the broker's thread, and asking for it here could open it a second time.
            monkeypatch.setattr(PartitionLog, "append", broken)
            raw.send(produce_request("t", batch()), 12)
            assert raw.is_closed()
            assert other.is_closed()
        until(lambda: broker.server.stopped.is_set(), what="the broker to stop")
    finally:
        broker.stop()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_an_invariant_broken_by_a_timer_stops_the_broker_as_well(tmp_path: Path) -> None:
    from semel.errors import InvariantViolation

    def broken() -> None:
        raise InvariantViolation("two and two are five")

    broker = Broker(tmp_path).start()
    try:
        with Raw(broker) as raw:
            raw.create("t")
            broker.server.loop.call_soon_threadsafe(broken)
            assert raw.is_closed()
        until(lambda: broker.server.stopped.is_set(), what="the broker to stop")
    finally:
        broker.stop()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_what_was_due_is_not_done_after_a_broken_invariant(tmp_path: Path) -> None:
    from semel.errors import InvariantViolation

    done: list[str] = []

    def broken() -> None:
        server = broker.server
        server.after_reply.add(lambda: done.append("due"))
        server.transactions.coordinator.tick = lambda now_ms: [done.append("tick")]  # type: ignore[assignment,list-item]
        server.loop.call_soon(server.transactions.host._tick)
        raise InvariantViolation("two and two are five")

    broker = Broker(tmp_path).start()
    try:
        broker.server.loop.call_soon_threadsafe(broken)
        until(lambda: broker.server.stopped.is_set(), what="the broker to stop")
    finally:
        broker.stop()
    assert done == []


@pytest.mark.parametrize(("version", "closed"), [(3, False), (4, True)])
def test_an_unforeseen_failure_is_answered_where_there_is_room_for_it(
    tmp_path: Path, version: int, closed: bool
) -> None:
    from semel.wire.messages.metadata import FindCoordinatorRequest

    with Broker(tmp_path) as broker, Raw(broker) as raw:

        def broken(*_: object) -> None:
            raise RuntimeError("bug")

        broker.server.groups.host.ready_for = broken  # type: ignore[method-assign]
        sent = raw.send(FindCoordinatorRequest(key="g", coordinator_keys=["g"]), version)
        if closed:
            assert raw.is_closed()
        else:
            assert raw.receive(sent).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def hostile_frames(count: int, seed: int) -> Iterator[bytes]:
    """Lying lengths, counts and tags, truncated bodies and plain noise, over every API and version there is."""
    dice = random.Random(seed)
    samples = [
        b"".join(request_frame(0, 12, 1, "hostile", produce_request("t", batch(b"x" * 50)))),
        b"".join(request_frame(1, 12, 1, "hostile", fetch_request({("t", 0): 0}, max_wait_ms=0))),
        b"".join(request_frame(3, 12, 1, "hostile", MetadataRequest(topics=[], allow_auto_topic_creation=False))),
    ]
    apis = list(APIS.values())
    for _ in range(count):
        kind = dice.randrange(5)
        if kind == 0:
            yield struct.pack(">i", dice.choice([-5, 0, 2**31 - 1, 2**30, 104_857_600, dice.getrandbits(31)]))
        elif kind == 1:
            api = dice.choice(apis)
            version = dice.randint(api.min_version, api.max_version)
            yield framed(struct.pack(">hhih", api.key, version, 1, -1) + dice.randbytes(dice.randrange(60)))
        elif kind == 2:
            api = dice.choice(apis)
            version = dice.randint(api.min_version, api.max_version)
            lies = b"\0" + dice.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff" * 9]) * 8
            yield framed(struct.pack(">hhih", api.key, version, 1, -1) + lies)
        elif kind == 3:
            sample = bytearray(dice.choice(samples))
            for _ in range(dice.randint(1, 4)):
                sample[dice.randrange(4, len(sample))] = dice.randrange(256)
            yield bytes(sample)
        else:
            sample = dice.choice(samples)
            yield framed(sample[4 : dice.randrange(5, len(sample))])


def test_ten_thousand_hostile_frames_leave_the_broker_serving_within_64_mib(broker_process: BrokerProcess) -> None:
    address = broker_process.bootstrap_servers
    with Raw(address) as healthy:
        healthy.create("t")
        before = resident_bytes(broker_process)
        raw = Raw(address)
        for number, frame in enumerate(hostile_frames(10_000, seed=20)):
            with suppress(OSError):
                raw.socket.sendall(frame)
            if number % 10 == 9:
                raw.socket.close()
                raw = Raw(address)
            if number % 1000 == 0:
                assert healthy.produce("t", batch(b"healthy")).error_code == 0
        raw.socket.close()
        assert healthy.produce("t", batch(b"still here")).error_code == 0
        assert resident_bytes(broker_process) - before < 64 * 1024 * 1024


def resident_bytes(process: BrokerProcess) -> int:
    status = Path(f"/proc/{process.running.process_id}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024

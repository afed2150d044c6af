"""What connections hold together: requests that never become whole, answers that nobody reads, and mere idleness."""

from __future__ import annotations

import asyncio
import resource
import select
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.dispatch import Call, Pace
from semel.broker.embedded import Broker
from semel.broker.fetch_sessions import EVICTION_MS, FetchSessions
from semel.broker.net.connection import UNREAD_BYTES, Served, ServerConnection
from semel.broker.net.framing import SMALL_BYTES, SMALL_FRAME_BYTES
from semel.broker.net.memory import (
    RECEIVE_BUFFER_BYTES,
    STEP_BYTES,
    WOKEN_TOGETHER,
    MemoryPool,
    UnreadAnswers,
    grown,
    new_buffer,
)
from semel.broker.observability.metrics import Metrics
from semel.broker.quotas import MANY_CLIENTS, Quotas
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.broker.stored.quotas import CLIENT_ID, CONTROLLER_MUTATION_RATE, PRODUCER_BYTE_RATE, QuotaStore
from semel.config import BROKER
from semel.errors import ErrorCode, Refused
from semel.log.files import Files
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.fetch import FetchRequest
from semel.wire.messages.metadata import MetadataRequest
from tests.broker.net.test_connections import Peer, echo, framed, resident_bytes
from tests.broker.raw import Raw, batch, fetch_request
from tests.support.processes import BrokerProcess
from tests.support.waiting import until

MB = 1_000_000


def lengthy(claimed_bytes: int, sent_bytes: int) -> bytes:
    """The beginning of a frame."""
    return struct.pack(">i", claimed_bytes) + bytes(sent_bytes)


# Requests that are arriving


def test_three_that_stop_in_the_middle_leave_room_for_everybody_else() -> None:
    pool = MemoryPool(256 * MB)
    stuck = [Peer(echo, max_frame_bytes=104 * MB, pool=pool) for _ in range(3)]
    for peer in stuck:
        peer.feed(lengthy(104 * MB, 100 * MB))
    assert pool.used_bytes < 256 * MB
    healthy = [Peer(echo, pool=pool) for _ in range(5)]
    for peer in healthy:
        peer.feed(framed(b"x" * 5 * MB))
        assert peer.transport.written == [b"x" * 5 * MB]


def test_however_many_stop_in_the_middle_something_is_left_and_small_requests_need_none_of_it() -> None:
    pool = MemoryPool(32 * MB)
    stuck = [Peer(echo, max_frame_bytes=40 * MB, pool=pool) for _ in range(60)]
    for peer in stuck:
        peer.feed(lengthy(40 * MB, 20 * MB))
    held = sorted(peer.connection.held_bytes for peer in stuck)
    # One at a time may go beyond its share.
    assert held[-2] <= 16 * MB + RECEIVE_BUFFER_BYTES
    assert sum(held) == pool.used_bytes <= 32 * MB + 40 * MB
    for _ in range(300):
        stuck.append(Peer(echo, max_frame_bytes=40 * MB, pool=pool))
        stuck[-1].feed(lengthy(40 * MB, MB))
    last = stuck[-1]
    assert (last.connection.held_bytes, last.transport.reading) == (0, False)
    healthy = Peer(echo, pool=pool)
    for _ in range(3):
        healthy.feed(framed(b"x" * SMALL_FRAME_BYTES)[:5_000])
        healthy.feed(framed(b"x" * SMALL_FRAME_BYTES)[5_000:])
    assert healthy.transport.written == [b"x" * SMALL_FRAME_BYTES] * 3


def test_what_arrives_behind_an_empty_pool_is_held_back_and_read_when_something_came_back() -> None:
    pool = MemoryPool(MB)
    first = Peer(echo, pool=pool)
    first.feed(lengthy(5 * MB, 3 * MB))
    waiting = [Peer(echo, pool=pool) for _ in range(50)]
    frame = framed(b"y" * 50_000)
    taken = [peer.feed(frame) for peer in waiting]
    assert taken == [SMALL_BYTES] * 50
    assert pool.waiting == 50
    waiting.pop().connection.connection_lost(None)
    assert pool.waiting == 49
    first.connection.connection_lost(None)
    pool.look(0.0)
    for peer in waiting:
        peer.feed(frame[SMALL_BYTES:])
    # What one gives back lets the next go on.
    for _ in range(50):
        pool.look(0.0)
        for peer in waiting:
            if not peer.transport.written and peer.transport.reading:
                held = peer.connection._end - peer.connection._start
                peer.feed(frame[held:])
    assert all(peer.transport.written == [b"y" * 50_000] for peer in waiting)
    assert (pool.used_bytes, pool.waiting) == (0, 0)


def test_few_are_woken_by_what_comes_back_and_all_by_the_next_look() -> None:
    pool = MemoryPool(10 * MB)
    first = Peer(echo, max_frame_bytes=40 * MB, pool=pool)
    first.feed(lengthy(40 * MB, 15 * MB))
    waiting = [Peer(echo, pool=pool) for _ in range(50)]
    for peer in waiting:
        peer.feed(lengthy(MB, 50_000))
    assert pool.waiting == 50
    first.connection.connection_lost(None)
    assert pool.waiting == 50 - WOKEN_TOGETHER
    pool.look(0.0)
    assert pool.waiting == 0 and all(peer.transport.reading for peer in waiting)


@pytest.mark.parametrize("sent", [0, 3, 4, 1_000, 200_000])
def test_a_request_that_stalls_is_given_up_and_what_it_held_comes_back(sent: int) -> None:
    pool = MemoryPool(256 * MB, timeout_s=30)
    peer = Peer(echo, pool=pool)
    peer.feed(lengthy(MB, sent)[:sent] if sent < 4 else lengthy(MB, sent - 4))
    pool.look(0.0)
    pool.look(29.0)
    assert not peer.transport.aborted
    pool.look(30.0)
    assert peer.transport.aborted == (sent > 0)
    peer.connection.connection_lost(None)
    assert (pool.used_bytes, len(pool.watched)) == (0, 0)


def test_a_slow_sender_that_goes_on_is_waited_for_and_one_that_only_trickles_is_not() -> None:
    pool = MemoryPool(256 * MB, timeout_s=30)
    slow, trickling = Peer(echo, pool=pool), Peer(echo, pool=pool)
    frame = framed(b"x" * (20 * STEP_BYTES - 4))
    for second in range(0, 20 * 29, 29):
        at = second // 29 * STEP_BYTES
        slow.feed(frame[at : at + STEP_BYTES])
        trickling.feed(frame[second : second + 29])
        pool.look(float(second))
    assert slow.transport.written == [b"x" * (20 * STEP_BYTES - 4)]
    assert trickling.transport.aborted


def test_a_byte_at_a_time_is_one_request_and_has_one_deadline() -> None:
    pool = MemoryPool(256 * MB, timeout_s=30)
    peer = Peer(echo, pool=pool)
    frame = framed(b"x" * 100)
    for second in range(32):
        peer.feed(frame[second : second + 1])
        pool.look(float(second))
    assert peer.transport.aborted
    honest = Peer(echo, pool=pool)
    for second in range(100):
        # Never silent, never between two requests when somebody looks, and never late.
        honest.feed(frame[52:] + frame[:52] if second else frame[:52])
        pool.look(float(second))
    assert len(honest.transport.written) == 99
    assert not honest.transport.aborted


def test_where_others_wait_for_memory_who_holds_it_and_stands_still_is_given_up_sooner() -> None:
    pool = MemoryPool(10 * MB, timeout_s=30)
    still, moving, waiting = (Peer(echo, max_frame_bytes=104 * MB, pool=pool) for _ in range(3))
    moving.feed(lengthy(100_000, 30_000))
    assert moving.connection.held_bytes == RECEIVE_BUFFER_BYTES
    still.feed(lengthy(104 * MB, 11 * MB))
    assert pool.used_bytes > 10 * MB
    pool.look(0.0)
    for second in range(1, 10):
        pool.look(float(second))
    assert not still.transport.aborted, "nobody waited"
    waiting.feed(lengthy(MB, 500_000))
    assert not waiting.transport.reading
    # A sixteenth of what it holds for each sixth of the timeout.
    moving.feed(bytes(2 * RECEIVE_BUFFER_BYTES // 16))
    pool.look(10.0)
    assert (still.transport.aborted, moving.transport.aborted, waiting.transport.aborted) == (True, False, False)
    still.connection.connection_lost(None)
    assert waiting.transport.reading


def test_time_in_which_we_do_not_read_is_not_the_senders() -> None:
    async def scene() -> None:
        done = asyncio.get_running_loop().create_future()

        async def later() -> None:
            await done

        def serve(_: ServerConnection, frame: memoryview) -> Served:
            return later() if bytes(frame) == b"wait" else [bytes(frame)]

        pool = MemoryPool(256 * MB, timeout_s=30)
        peer = Peer(serve, pool=pool)
        peer.feed(framed(b"wait") + framed(b"next")[:6])
        for second in range(0, 300, 10):
            pool.look(float(second))
        done.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        pool.look(301.0)
        peer.feed(framed(b"next")[6:])
        assert peer.transport.written == [b"next"]

    asyncio.run(scene())


def test_a_connection_that_is_silent_holds_no_buffer() -> None:
    pool = MemoryPool(256 * MB)
    small, large, chatty = (Peer(echo, pool=pool) for _ in range(3))
    small.feed(framed(b"x" * 1_000))
    assert pool.used_bytes == 0
    large.feed(framed(b"x" * 3 * MB))
    chatty.feed(framed(b"x" * 3 * MB))
    assert pool.used_bytes == large.connection.held_bytes + chatty.connection.held_bytes
    pool.look(0.0)
    chatty.feed(framed(b"more"))
    pool.look(1.0)
    assert large.connection.held_bytes == 0
    assert pool.used_bytes == chatty.connection.held_bytes > 3 * MB, "who goes on sending keeps its buffer"
    pool.look(2.0)
    assert (pool.used_bytes, len(pool.watched)) == (0, 0)


def test_who_waits_for_an_answer_holds_its_request_and_no_more() -> None:
    async def scene() -> None:
        done = asyncio.get_running_loop().create_future()
        seen: list[memoryview] = []

        async def later(frame: memoryview) -> list[bytes | bytearray | memoryview]:
            await done
            return [bytes(frame)]

        def serve(_: ServerConnection, frame: memoryview) -> Served:
            seen.append(frame)
            return later(frame)

        pool = MemoryPool(256 * MB)
        peers = [Peer(serve, pool=pool) for _ in range(3)]
        bodies = [b"a" * 100, b"b" * (SMALL_FRAME_BYTES + 1), b"c" * 300_000]
        for peer, body in zip(peers, bodies, strict=True):
            peer.feed(framed(body))
        # Others read into the same buffer meanwhile.
        Peer(echo, pool=pool).feed(framed(b"z" * 100_000))
        await asyncio.sleep(0)
        assert [len(frame.obj) for frame in seen[:2]] == [100, RECEIVE_BUFFER_BYTES]  # type: ignore[arg-type]
        assert pool.used_bytes == 100 + RECEIVE_BUFFER_BYTES + peers[2].connection.held_bytes
        pool.look(0.0)
        pool.look(1.0)
        done.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert [peer.transport.written for peer in peers] == [[body] for body in bodies]

    asyncio.run(scene())


# Answers that nobody reads


def test_many_small_answers_go_out_before_they_are_many_bytes() -> None:
    peer = Peer(lambda _connection, _frame: [b"x" * 10_000])
    peer.feed(framed(b"ask!") * 20)
    assert max(map(len, peer.transport.written)) <= 70_000


def test_answers_that_are_not_read_are_counted_until_they_are_or_their_reader_is_gone() -> None:
    unread = UnreadAnswers(100 * MB)
    peers = [Peer(echo, unread=unread) for _ in range(3)]
    assert {peer.transport.most_unread_bytes for peer in peers} == {UNREAD_BYTES}, "what is less is not counted"
    assert unread.answer_bytes == 25 * MB
    for peer in peers:
        peer.transport.unread_bytes = 20 * MB
        peer.connection.pause_writing()
    assert (unread.used_bytes, unread.answer_bytes, unread.is_full) == (60 * MB, 10 * MB, False)
    peers[0].connection.resume_writing()
    peers[1].connection.connection_lost(None)
    assert unread.used_bytes == 20 * MB


def test_readers_who_stand_still_are_given_up_where_there_is_no_room_and_only_there() -> None:
    unread = UnreadAnswers(100 * MB, timeout_s=30)
    still, moving, small = (Peer(echo, unread=unread) for _ in range(3))
    for peer, size in ((still, 60 * MB), (moving, 30 * MB), (small, MB)):
        peer.transport.unread_bytes = size
        peer.connection.pause_writing()
    for second in range(100):
        unread.look(float(second))
    assert not still.transport.aborted, "there is room"
    last = Peer(echo, unread=unread)
    last.transport.unread_bytes = 10 * MB
    last.connection.pause_writing()
    assert unread.is_full
    moving.transport.unread_bytes -= 3 * MB
    unread.look(100.0)
    aborted = [peer.transport.aborted for peer in (still, moving, small, last)]
    assert aborted == [True, False, False, False], "the largest first, and no more than is needed"
    assert unread.used_bytes == 41 * MB and not unread.is_full


def test_those_who_wait_for_readers_go_on_one_by_one_in_their_order() -> None:
    async def scene() -> None:
        unread = UnreadAnswers(10 * MB)
        deaf = Peer(echo, unread=unread)
        deaf.transport.unread_bytes = 10 * MB
        deaf.connection.pause_writing()
        order: list[int] = []
        takers = [Peer(echo, unread=unread) for _ in range(4)]

        async def ask(number: int) -> None:
            await unread.room()
            order.append(number)
            takers[number].transport.unread_bytes = 5 * MB
            takers[number].connection.pause_writing()

        tasks = [asyncio.create_task(ask(number)) for number in range(4)]
        await asyncio.sleep(0)
        assert unread.waiting == 4
        deaf.connection.resume_writing()
        # It was woken, and its connection is gone before it runs.
        tasks[0].cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (order, unread.is_full, unread.used_bytes) == ([1, 2], True, 10 * MB)
        takers[1].connection.resume_writing()
        async with asyncio.timeout(5):
            await tasks[3]
        assert order == [1, 2, 3]
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scene())


def test_what_is_reserved_for_an_answer_comes_back_however_it_ends() -> None:
    async def scene(end: str) -> None:
        unread = UnreadAnswers(100 * MB)
        done = asyncio.get_running_loop().create_future()

        async def later(connection: ServerConnection) -> list[bytes | bytearray | memoryview]:
            connection.reserve(3 * MB)
            connection.reserve(5 * MB)
            await done
            return [b"answer"]

        peer = Peer(lambda connection, _frame: later(connection), unread=unread)
        peer.feed(framed(b"ask!"))
        await asyncio.sleep(0)
        assert unread.used_bytes == 5 * MB
        if end == "lost":
            peer.connection.connection_lost(None)
        elif end == "failed":
            done.set_exception(RuntimeError("bug"))
        else:
            done.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert unread.used_bytes == 0

    for end in ("answered", "lost", "failed"):
        asyncio.run(scene(end))

    def refused(connection: ServerConnection, _: memoryview) -> Served:
        connection.reserve(5 * MB)
        connection.refuse("the broker stops")
        return [b"answer"]

    unread = UnreadAnswers(100 * MB)
    peer = Peer(refused, unread=unread)
    peer.feed(framed(b"ask!"))
    peer.connection.connection_lost(None)
    assert unread.used_bytes == 0


def test_an_answer_counts_as_a_whole_as_long_as_any_of_it_is_unread() -> None:
    unread = UnreadAnswers(100 * MB)
    peer = Peer(lambda _connection, _frame: [b"head", bytes(5 * MB)], unread=unread)

    def took_three(buffers: list[bytes]) -> None:
        peer.transport.unread_bytes = 2 * MB
        peer.connection.pause_writing()

    peer.transport.writelines = took_three  # type: ignore[method-assign]
    peer.feed(framed(b"ask!"))
    assert unread.used_bytes == 5 * MB + 4


def test_all_who_wait_for_readers_go_on_though_none_of_them_leaves_anything_unread() -> None:
    async def scene() -> None:
        unread = UnreadAnswers(10 * MB)
        deaf = Peer(echo, unread=unread)
        deaf.transport.unread_bytes = 10 * MB
        deaf.connection.pause_writing()
        tasks = [asyncio.create_task(unread.room()) for _ in range(4)]
        await asyncio.sleep(0)
        deaf.connection.resume_writing()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks)

    asyncio.run(scene())


# What is remembered of clients


def session_request(first: int, count: int, session_id: int = 0, epoch: int = 0) -> FetchRequest:
    places = {("t", index): 0 for index in range(first, first + count)}
    return fetch_request(places, session_id=session_id, session_epoch=epoch)


def test_fetch_sessions_keep_no_name_that_a_topic_cannot_have() -> None:
    ids = iter(range(1, 100))
    sessions = FetchSessions(20, lambda: 0, lambda _least, _most: next(ids))
    partitions, none, _ = sessions.begin(fetch_request({("t", 0): 0, ("x" * 250, 0): 0}, session_epoch=0), 12)
    assert none is None and len(partitions) == 2, "served, without a session"
    _, session, _ = sessions.begin(fetch_request({("t", 0): 0, ("x" * 249, 0): 0}, session_epoch=0), 12)
    assert session is not None
    with pytest.raises(Refused) as refused:
        sessions.begin(fetch_request({("x" * 250, 0): 0}, session_id=session.session_id, session_epoch=1), 12)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_fetch_sessions_are_bounded_in_the_partitions_they_name() -> None:
    now_ms = 0
    ids = iter(range(1, 100))
    sessions = FetchSessions(20, lambda: now_ms, lambda _least, _most: next(ids))
    _, first, _ = sessions.begin(session_request(0, 6_000), 12)
    assert first is not None
    partitions, second, _ = sessions.begin(session_request(0, 6_000), 12)
    assert second is None and len(partitions) == 6_000, "served, without a session"
    _, small, _ = sessions.begin(session_request(0, 3_000), 12)
    assert small is not None and sessions.partition_count == 9_000
    # One that is used cannot grow past the bound either.
    with pytest.raises(Refused) as refused:
        sessions.begin(session_request(3_000, 1_001, small.session_id, 1), 12)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (1, 6_000)
    sessions.begin(session_request(6_000, 4_000, first.session_id, 1), 12)
    assert sessions.partition_count == 10_000
    now_ms = EVICTION_MS
    _, third, _ = sessions.begin(session_request(0, 1), 12)
    assert third is not None and (len(sessions), sessions.partition_count) == (1, 1), "who was silent makes way"
    sessions.forget(third)
    assert sessions.begin(session_request(0, 10_001), 12)[1] is None
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_the_session_that_makes_way_is_the_one_used_longest_ago() -> None:
    now_ms = 0
    ids = iter(range(1, 100))
    sessions = FetchSessions(2, lambda: now_ms, lambda _least, _most: next(ids))
    older, newer = (sessions.begin(session_request(0, 1), 12)[1] for _ in range(2))
    assert older is not None and newer is not None
    now_ms = 1
    sessions.begin(fetch_request({}, session_id=older.session_id, session_epoch=1), 12)
    now_ms = EVICTION_MS
    assert sessions.begin(session_request(0, 1), 12)[1] is not None
    sessions.begin(fetch_request({}, session_id=older.session_id, session_epoch=2), 12)
    with pytest.raises(Refused):
        sessions.begin(fetch_request({}, session_id=newer.session_id, session_epoch=1), 12)


def test_what_quotas_count_is_forgotten_of_clients_that_are_gone(tmp_path: Path) -> None:
    now_ms = 0
    connection = Peer(echo).connection
    store = QuotaStore(LocalMetadataStore(tmp_path, Files()))
    asyncio.run(store.replace({((CLIENT_ID, None),): {PRODUCER_BYTE_RATE: 1000.0, CONTROLLER_MUTATION_RATE: 1000.0}}))
    quotas = Quotas(store, BROKER.parse({}), Metrics(), lambda: now_ms)
    for number in range(10 * MANY_CLIENTS):
        now_ms += 100
        call = Call(0, 0, 0, f"client-{number}", connection)
        quotas.produce_wait_ms(call, 10)
        quotas.mutation(call, 0).take(1)
        assert 0 < len(quotas._rates) <= MANY_CLIENTS and 0 < len(quotas._buckets) <= MANY_CLIENTS


# The real broker


def test_half_sent_requests_do_not_keep_others_from_sending_large_ones(tmp_path: Path) -> None:
    settings = {"queued.max.request.bytes": 8 * MB, "socket.request.max.bytes": 4 * MB, "message.max.bytes": 4 * MB}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as healthy:
        healthy.create("t")
        stuck = [Raw(broker) for _ in range(3)]
        for raw in stuck:
            raw.socket.settimeout(1)
            raw.socket.sendall(lengthy(3_900_000, 1_500_000))
        until(lambda: broker.server.pool.used_bytes >= 3 * MB, what="the halves to arrive")
        for _ in range(3):
            assert healthy.produce("t", batch(b"x" * 900_000)).error_code == 0
        for raw in stuck:
            raw.socket.close()
        until(lambda: broker.server.pool.used_bytes < 2 * MB, what="what they held to come back")


def test_a_request_that_stalls_costs_its_connection(tmp_path: Path) -> None:
    settings = {"semel.request.arrival.timeout.ms": 200}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as stuck, Raw(broker) as idle:
        idle.ask(ApiVersionsRequest(), 0)
        stuck.socket.sendall(lengthy(MB, 10))
        assert stuck.is_closed()
        assert broker.server.metrics.stalled == 1
        idle.ask(ApiVersionsRequest(), 0)


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[tuple[Broker, list[Raw]]]:
    """A broker with 20 MB of records, room for 8 MB of answers, and 30 who ask for all of it and do not read."""
    settings = {
        "semel.queued.max.response.bytes": 8 * MB,
        "semel.request.arrival.timeout.ms": 600_000,
        "socket.send.buffer.bytes": 100_000,
    }
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as setter:
        setter.create("t")
        for _ in range(20):
            assert setter.produce("t", batch(bytes(MB))).error_code == 0
        deaf = [Raw(broker) for _ in range(30)]
        for raw in deaf:
            for _ in range(5):
                raw.send(fetch_request({("t", 0): 0}, partition_max_bytes=50 * MB), 12)
        try:
            until(lambda: broker.server.unread.is_full, what="answers to be left unread")
            until(
                lambda: broker.server.unread.waiting + broker.server.connections.not_read == len(deaf),
                what="the others to wait",
            )
            yield broker, deaf
        finally:
            for raw in deaf:
                raw.socket.close()


def test_answers_that_are_not_read_are_bounded_and_a_healthy_producer_is_served(
    readers: tuple[Broker, list[Raw]],
) -> None:
    broker, deaf = readers
    unread = broker.server.unread
    with Raw(broker) as healthy:
        row = MetadataRequest.MetadataRequestTopic(name="t")
        assert healthy.ask(MetadataRequest(topics=[row])).topics[0].error_code == 0
        for _ in range(20):
            assert healthy.produce("t", batch(b"healthy")).error_code == 0
    # One answer of at least one batch may go beyond the limit.
    assert unread.used_bytes <= 8 * MB + 1_100_000
    assert unread.waiting + broker.server.connections.not_read == len(deaf)
    for raw in deaf[: len(deaf) // 2]:
        raw.socket.close()
    with Raw(broker) as consumer:
        asked = consumer.send(fetch_request({("t", 0): 0}), 12)
        for raw in deaf:
            raw.socket.close()
        assert consumer.receive(asked).responses[0].partitions[0].records
    until(lambda: unread.used_bytes == 0, what="everything to come back")


def test_a_fetch_of_very_many_partitions_waits_as_well(readers: tuple[Broker, list[Raw]]) -> None:
    broker, deaf = readers
    waiting = broker.server.unread.waiting
    with Raw(broker) as consumer:
        asked = consumer.send(fetch_request({("t", index): 0 for index in range(3_000)}), 12)
        until(lambda: broker.server.unread.waiting == waiting + 1, what="the fetch to wait")
        for raw in deaf:
            raw.socket.close()
        assert len(consumer.receive(asked).responses[0].partitions) == 3_000


def test_an_answer_that_is_written_in_a_later_turn_counts_meanwhile(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.produce("t", batch(bytes(MB)))
        counted: list[int] = []
        beside = broker.server.beside

        async def watched(work: Any) -> Any:
            counted.append(broker.server.unread.used_bytes)
            return await beside(work)

        broker.server.beside = watched  # type: ignore[method-assign, assignment]
        answer = raw.ask(fetch_request({("t", index): 0 for index in range(3_000)}), 12)
        assert len(answer.responses[0].partitions[0].records) > MB
        # Decoding comes first, encoding last.
        assert counted[0] < MB < counted[-1]
        assert broker.server.unread.used_bytes < MB


def test_what_a_fetch_has_read_counts_while_others_are_served_and_not_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw, Raw(broker) as other:
        unread = broker.server.unread
        raw.create("t", 450)
        raw.produce("t", batch(bytes(MB)))
        counted: list[int] = []

        class Watched(Pace):
            async def rest(self) -> None:
                counted.append(unread.used_bytes)
                await super().rest()

        monkeypatch.setattr("semel.broker.handlers.fetch.Pace", Watched)
        places = {("t", index): 0 for index in range(450)}
        asked = raw.send(fetch_request(places, min_bytes=1_500_000, max_wait_ms=60_000, isolation_level=1), 12)
        until(lambda: len(counted) >= 3 and unread.used_bytes == 0, what="the fetch to wait")
        other.produce("t", batch(bytes(1_000)), partition=1)
        until(lambda: len(counted) >= 6 and unread.used_bytes == 0, what="the fetch to wait again")
        assert min(counted) > MB
        other.produce("t", batch(bytes(900_000)), partition=2)
        assert sum(len(one.records) for one in raw.receive(asked).responses[0].partitions) > 1_900_000
        assert unread.used_bytes == 0


def test_where_fetches_wait_who_does_not_read_is_given_up(readers: tuple[Broker, list[Raw]]) -> None:
    broker, _ = readers
    server = broker.server

    async def look_twice() -> None:
        now_s = server.loop.time()
        server.unread.look(now_s)
        server.unread.look(now_s + 100_001)

    with Raw(broker) as consumer:
        consumer.create("small")
        consumer.produce("small", batch(b"small"))
        asked = consumer.send(fetch_request({("small", 0): 0}), 12)
        until(lambda: server.unread.waiting == 31 - server.connections.not_read, what="the fetch to wait as well")

        def is_answered() -> bool:
            # Again and again: those who take the place of the ones given up do not read either.
            broker.call(look_twice())
            return bool(select.select([consumer.socket], [], [], 0.1)[0])

        until(is_answered, what="the fetch to be answered")
        assert consumer.receive(asked).responses[0].partitions[0].records
    assert server.metrics.stalled > 0


def test_a_fetch_that_wants_more_than_there_is_room_for_gets_what_there_is(tmp_path: Path) -> None:
    with Broker(tmp_path, settings={"semel.queued.max.response.bytes": 4 * MB}) as broker, Raw(broker) as raw:
        raw.create("t")
        for _ in range(5):
            raw.produce("t", batch(bytes(400_000)))
        data = raw.fetch("t", min_bytes=1_500_000, max_wait_ms=2**31 - 1, partition_max_bytes=50 * MB)
        assert 400_000 < len(data.records or b"") <= MB


def test_an_idle_connection_that_leaves_answers_unread_is_closed(tmp_path: Path) -> None:
    settings = {"connections.max.idle.ms": 200, "socket.send.buffer.bytes": 10_000}
    with Broker(tmp_path, settings=settings) as broker:
        with Raw(broker) as setter:
            setter.create("t")
            for _ in range(20):
                setter.produce("t", batch(bytes(MB)))
        with Raw(broker) as deaf:
            deaf.send(fetch_request({("t", 0): 0}, partition_max_bytes=50 * MB), 12)
            until(lambda: broker.server.metrics.connections_expired > 0, what="the connection to be given up")
            until(lambda: len(broker.server.connections) == 0, what="it to be gone")


def test_a_thousand_idle_connections_take_30_kb_each_and_give_it_back(broker_process: BrokerProcess) -> None:
    count = connections_possible(1_000)
    with Raw(broker_process.bootstrap_servers) as warm:
        warm.create("t")
        greet(warm)
        before = resident_bytes(broker_process)
        held = []
        try:
            for number in range(count):
                raw = Raw(broker_process.bootstrap_servers, client_id=f"client-{number}")
                held.append(raw)
                greet(raw)
            greet(warm)
            assert resident_bytes(broker_process) - before <= 30_000 * count
        finally:
            for raw in held:
                raw.socket.close()
        until(lambda: resident_bytes(broker_process) - before <= 5_000 * count, what="the memory to come back")


def test_what_halves_of_requests_held_goes_back_to_the_system(broker_process: BrokerProcess) -> None:
    count = connections_possible(600)
    with Raw(broker_process.bootstrap_servers) as warm:
        warm.create("t")
        greet(warm)
        before = resident_bytes(broker_process)
        held = [Raw(broker_process.bootstrap_servers) for _ in range(count)]
        try:
            for raw in held:
                raw.socket.sendall(lengthy(MB, 100_000))
            until(lambda: resident_bytes(broker_process) - before > 50_000 * count, what="the halves to arrive")
            greet(warm)
        finally:
            for raw in held:
                raw.socket.close()
        until(lambda: resident_bytes(broker_process) - before <= 20_000 * count, what="the memory to come back")


def greet(raw: Raw) -> None:
    """What every producer does."""
    raw.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)
    raw.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")]))
    assert raw.produce("t", batch(b"hello")).error_code == 0


def connections_possible(wanted: int) -> int:
    """Open as many descriptors as this machine allows, up to `wanted` and some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + 500
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return min(wanted, needed - 500)


def test_a_buffer_grows_without_a_copy() -> None:
    buffer = new_buffer(RECEIVE_BUFFER_BYTES)
    buffer[:3] = b"abc"
    pages = buffer.obj
    larger = grown(buffer, 3, 64 * MB)
    assert larger.obj is pages, "the same pages"
    assert len(larger) == 64 * MB and larger[:3] == b"abc"
    larger[-1] = 1


def test_a_buffer_that_somebody_looks_into_is_copied() -> None:
    buffer = new_buffer(RECEIVE_BUFFER_BYTES)
    buffer[:3] = b"abc"
    looked_into = buffer[:3]
    larger = grown(buffer, 3, MB)
    assert len(larger) == MB and larger[:3] == b"abc"
    larger[:3] = b"xyz"
    assert looked_into == b"abc"

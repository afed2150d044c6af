"""The faults of the simulated ZooKeeper, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from semel.cluster import session as zk
from semel.cluster.session import EventType, SessionState, WatchEvent
from semel.machines.znodes.operations import Check, Create, SetData
from semel.simulation.zookeeper import Delays, SimulatedSession
from tests.simulation.zookeeper.virtual_time import run
from tests.simulation.zookeeper.worlds import SimulatedWorld

TIMEOUT_MS = 6_000


def states_of(session: SimulatedSession) -> list[SessionState]:
    states: list[SessionState] = []
    session.add_listener(states.append)
    return states


async def until(check: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if check():
            return
        await asyncio.sleep(0.01)  # virtual time
    raise AssertionError("it did not happen within 100 s")


async def until_state(session: SimulatedSession, state: SessionState) -> None:
    await until(lambda: session.state is state)


def test_a_lost_answer_leaves_the_change_and_the_session() -> None:
    async def story() -> None:
        world = SimulatedWorld(timeout_ms=TIMEOUT_MS)
        session, other = await world.open(), await world.open()
        session_id = session.session_id
        session.lose_next_answer()
        with pytest.raises(zk.ConnectionLoss):
            await session.create("/a", b"1", ephemeral=True)
        assert session.state is SessionState.SUSPENDED
        with pytest.raises(zk.ConnectionLoss, match="nothing was sent"):
            await session.get("/a")
        await until_state(session, SessionState.CONNECTED)
        assert session.session_id == session_id
        assert (await session.get("/a"))[0] == (await other.get("/a"))[0] == b"1"

    run(story())


def test_without_a_quorum_nothing_is_answered_and_no_session_ends() -> None:
    async def story() -> None:
        world = SimulatedWorld(timeout_ms=TIMEOUT_MS, servers=3)
        session = await world.open()
        states = states_of(session)
        await session.create("/mine", ephemeral=True)
        world.zookeeper.stop(0)
        world.zookeeper.stop(1)
        await until_state(session, SessionState.SUSPENDED)
        await asyncio.sleep(600)
        assert session.state is SessionState.SUSPENDED
        world.zookeeper.start(0)
        await until_state(session, SessionState.CONNECTED)
        assert await session.exists("/mine") is not None
        assert SessionState.LOST not in states

    run(story())


def test_one_server_of_three_that_dies_is_replaced_by_another() -> None:
    async def story() -> None:
        world = SimulatedWorld(timeout_ms=TIMEOUT_MS, servers=3, delays=Delays(latency_ms=(1, 5)))
        session = await world.open()
        states = states_of(session)
        await session.create("/mine", ephemeral=True)
        for number in range(3):
            world.zookeeper.stop(number, silently=number == 2)
            await asyncio.sleep(10)
            await until_state(session, SessionState.CONNECTED)
            assert await session.exists("/mine") is not None
            world.zookeeper.start(number)
        assert SessionState.SUSPENDED in states and SessionState.LOST not in states

    run(story())


@pytest.mark.parametrize("direction", [{}, {"answers": False}])
def test_a_session_that_is_not_heard_is_ended_and_learns_it_when_it_comes_back(direction: dict[str, bool]) -> None:
    async def story() -> None:
        world = SimulatedWorld(timeout_ms=TIMEOUT_MS)
        session, other = await world.open(), await world.open()
        states, events = states_of(session), list[WatchEvent]()
        lost_id = session.session_id
        await session.create("/mine", ephemeral=True)
        await other.exists("/mine", events.append)
        session.cut(**direction)
        cut_at = asyncio.get_running_loop().time()
        await until_state(session, SessionState.SUSPENDED)
        assert asyncio.get_running_loop().time() - cut_at <= 2 / 3 * TIMEOUT_MS / 1000 + 0.1
        await until(lambda: bool(events))
        # Rounded up to a tick, and no earlier than promised.
        assert 4.0 <= asyncio.get_running_loop().time() - cut_at <= TIMEOUT_MS / 1000 + 1.1
        assert events == [WatchEvent(EventType.DELETED, "/mine")]
        session.heal()
        await until_state(session, SessionState.CONNECTED)
        assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
        assert session.session_id != lost_id

    run(story())


def test_a_session_whose_answers_vanish_is_suspended_and_lives_on() -> None:
    async def story() -> None:
        world = SimulatedWorld(timeout_ms=TIMEOUT_MS, servers=3)
        session = await world.open()
        states = states_of(session)
        await session.create("/mine", ephemeral=True)
        session.cut(requests=False)
        with pytest.raises(zk.ConnectionLoss):
            await session.set("/mine", b"arrived")
        await asyncio.sleep(60)  # it tries to come back, which is heard
        session.heal()
        await until_state(session, SessionState.CONNECTED)
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert (await session.get("/mine"))[0] == b"arrived"

    run(story())


def test_a_process_that_is_gone_leaves_its_session_to_time_out() -> None:
    async def story() -> None:
        world = SimulatedWorld(timeout_ms=TIMEOUT_MS)
        session, other = await world.open(), await world.open()
        await session.create("/mine", ephemeral=True)
        session.abandon()
        await asyncio.sleep(TIMEOUT_MS / 1000 - 1)
        assert await other.exists("/mine") is not None
        await asyncio.sleep(3)
        assert await other.exists("/mine") is None

    run(story())


def test_a_client_of_a_lagging_server_reads_the_past_until_it_syncs() -> None:
    async def story() -> None:
        world = SimulatedWorld(timeout_ms=TIMEOUT_MS, servers=2)
        by_server: dict[int, SimulatedSession] = {}
        while len(by_server) < 2:
            session = await world.open()
            by_server[session._link.number] = session  # type: ignore[union-attr]
        behind, ahead = by_server[0], by_server[1]
        await ahead.create("/a", b"old")
        await behind.sync("/a")
        events: list[WatchEvent] = []
        assert (await behind.get("/a", events.append))[0] == b"old"
        world.zookeeper.lag(0, (500, 500))
        await ahead.set("/a", b"new")
        assert (await behind.get("/a"))[0] == b"old"
        assert events == []  # its watches lag with it
        await behind.sync("/a")
        assert events == [WatchEvent(EventType.CHANGED, "/a")]
        assert (await behind.get("/a"))[0] == b"new"

    run(story())


def test_a_client_does_not_go_back_in_time_when_it_changes_its_server() -> None:
    async def story() -> None:
        world = SimulatedWorld(timeout_ms=TIMEOUT_MS, servers=3)
        session = await world.open()
        await session.create("/a", b"0")
        number = session._link.number  # type: ignore[union-attr]
        for other in {0, 1, 2} - {number}:
            world.zookeeper.lag(other, (300, 300))
        for value in range(1, 20):
            await session.set("/a", b"%d" % value)
            session.drop_connection()
            await until_state(session, SessionState.SUSPENDED)
            await until_state(session, SessionState.CONNECTED)
            assert (await session.get("/a"))[0] == b"%d" % value

    run(story())


def test_a_request_that_was_given_up_does_not_arrive_after_a_sync() -> None:
    """Rule Z3 needs it: after the sync, what is read decides."""

    async def story() -> None:
        world = SimulatedWorld(timeout_ms=TIMEOUT_MS, servers=3, delays=Delays(latency_ms=(0, 400)))
        session = await world.open()
        await session.create("/a", b"0")
        kept = 0
        for value in range(1, 40):
            asking = asyncio.create_task(session.set("/a", b"%d" % value))
            await asyncio.sleep(0.2)
            session.drop_connection()
            try:
                await asking
                await until_state(session, SessionState.SUSPENDED)
            except zk.ConnectionLoss:
                kept += 1
            await until_state(session, SessionState.CONNECTED)
            await session.sync("/a")
            read = await session.get("/a")
            await asyncio.sleep(5)
            assert await session.get("/a") == read
            await session.set("/a", b"0")
        assert kept

    run(story())


def test_the_same_seed_shows_the_same() -> None:
    async def story() -> list[Any]:
        world = SimulatedWorld(7, timeout_ms=TIMEOUT_MS, servers=3, delays=Delays((1, 30), (1, 200)))
        sessions = [await world.open() for _ in range(3)]
        seen: list[Any] = []
        await sessions[0].create("/a")

        async def work(number: int) -> None:
            session = sessions[number]
            for turn in range(30):
                try:
                    _, stat = await session.get("/a", lambda event: seen.append((number, event)))
                    await session.multi([Check("/a", stat.version), SetData("/a", b"%d" % turn)])
                    seen.append((number, turn, asyncio.get_running_loop().time()))
                except zk.ZooKeeperError as error:
                    seen.append((number, turn, type(error)))
                    await asyncio.sleep(0.5)
                if turn % 10 == number:
                    session.drop_connection()

        await asyncio.gather(*map(work, range(3)))
        return seen

    first = run(story())
    assert first == run(story())
    assert any(entry[-1] is zk.MultiRefused for entry in first)


def test_a_path_that_zookeeper_would_not_take_is_refused_before_anything_is_sent() -> None:
    async def story() -> None:
        session = await SimulatedWorld().open()
        for path in ("", "a", "/a/", "//a", "/a/../b", "/a\0"):
            with pytest.raises(ValueError, match="is no path"):
                await session.create(path)
            with pytest.raises(ValueError, match="is no path"):
                await session.multi([Create(path)])
        with pytest.raises(ValueError, match="needs an operation"):
            await session.multi([])

    run(story())

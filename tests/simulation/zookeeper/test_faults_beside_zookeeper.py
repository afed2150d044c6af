"""Faults, told to three real ZooKeeper servers and to three simulated ones: what the sessions show is the same.

The simulated ones are on virtual time. A lost answer is made on the real ones by freezing all servers: the request is
carried out when they go on, and the client has given its connection up by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from semel.cluster import session as zk
from semel.cluster.session import SessionState, WatchEvent, ZooKeeperSession
from tests.simulation.zookeeper.virtual_time import run
from tests.simulation.zookeeper.worlds import RealWorld, SimulatedWorld
from tests.support.requirements import require_zookeeper
from tests.support.zookeeper import ZooKeeper, running_zookeeper

pytestmark = pytest.mark.java

#: Long enough that a busy machine does not end a session by itself.
TIMEOUT_MS = 8_000


@pytest.fixture(scope="module")
def three_servers() -> Iterator[ZooKeeper]:
    require_zookeeper()
    with running_zookeeper(3) as running:
        yield running


class Faults(Protocol):
    async def open(self) -> ZooKeeperSession: ...

    async def stop(self, number: int) -> None: ...

    async def start(self, number: int) -> None: ...

    async def lose_answer(self, session: ZooKeeperSession, asking: Callable[[], Any]) -> None: ...


class RealFaults(RealWorld):
    async def stop(self, number: int) -> None:
        self.zookeeper.nodes[number].kill9()

    async def start(self, number: int) -> None:
        self.zookeeper.nodes[number].launch()
        await asyncio.to_thread(self._serving)

    def _serving(self) -> None:
        if sum(node.running.running() for node in self.zookeeper.nodes) >= 2:
            self.zookeeper.wait()

    async def lose_answer(self, session: ZooKeeperSession, asking: Callable[[], Any]) -> None:
        suspended = suspension_of(session)
        for node in self.zookeeper.nodes:
            node.freeze()
        asked = asyncio.ensure_future(asking())
        await asyncio.wait_for(suspended.wait(), 60)
        for node in self.zookeeper.nodes:
            node.thaw()
        with pytest.raises(zk.ConnectionLoss):
            await asked


class SimulatedFaults(SimulatedWorld):
    async def stop(self, number: int) -> None:
        self.zookeeper.stop(number)

    async def start(self, number: int) -> None:
        self.zookeeper.start(number)

    async def lose_answer(self, session: ZooKeeperSession, asking: Callable[[], Any]) -> None:
        assert hasattr(session, "lose_next_answer")
        session.lose_next_answer()
        with pytest.raises(zk.ConnectionLoss):
            await asking()


def suspension_of(session: ZooKeeperSession) -> asyncio.Event:
    happened = asyncio.Event()
    session.add_listener(lambda state: happened.set() if state is SessionState.SUSPENDED else None)
    return happened


async def until(check: Callable[[], bool], what: str) -> None:
    for _ in range(6_000):
        if check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"waited two minutes for {what}")


async def connected(session: ZooKeeperSession) -> None:
    await until(lambda: session.state is SessionState.CONNECTED, "the connection")


async def again(call: Callable[[], Any]) -> Any:
    """A read, repeated while the connection comes and goes."""
    for _ in range(6_000):
        try:
            return await call()
        except zk.ConnectionLoss:
            await asyncio.sleep(0.02)
    raise AssertionError("waited two minutes for an answer")


@asynccontextmanager
async def opened(world: Faults) -> AsyncIterator[ZooKeeperSession]:
    session = await world.open()
    try:
        yield session
    finally:
        await session.close()


def tell(story: Callable[[Faults], Any], three_servers: ZooKeeper) -> None:
    async def simulated() -> Any:
        return await story(SimulatedFaults(timeout_ms=TIMEOUT_MS, servers=3))

    async def real() -> Any:
        return await story(RealFaults(three_servers, timeout_ms=TIMEOUT_MS))

    assert run(simulated()) == asyncio.run(real())


@pytest.mark.timeout(600)
def test_a_quorum_that_goes_and_comes_back(three_servers: ZooKeeper) -> None:
    """The sessions are suspended, for longer than their timeout, and none of them ends."""

    async def story(world: Faults) -> Any:
        async with opened(world) as session:
            states: list[SessionState] = []
            events: list[WatchEvent] = []
            session.add_listener(states.append)
            session_id = session.session_id
            await session.create("/quorum", ephemeral=True)
            await session.get("/quorum", events.append)
            await world.stop(0)
            await world.stop(1)
            await until(lambda: session.state is SessionState.SUSPENDED, "the suspension")
            with pytest.raises(zk.ConnectionLoss):
                await session.get("/quorum")
            await asyncio.sleep(1.2 * TIMEOUT_MS / 1000)  # no wait for a condition: nothing may happen
            assert session.state is SessionState.SUSPENDED
            await world.start(0)
            await world.start(1)
            await connected(session)
            still_there = await again(lambda: session.exists("/quorum"))
            return (
                session.session_id == session_id,
                still_there is not None and still_there.ephemeral_owner == session_id,
                SessionState.LOST in states,
                events,
            )

    tell(story, three_servers)


@pytest.mark.timeout(600)
def test_a_lost_answer_leaves_the_change(three_servers: ZooKeeper) -> None:
    async def story(world: Faults) -> Any:
        async with opened(world) as session:
            await session.create("/lost", b"before")
            for _ in range(5):
                await world.lose_answer(session, lambda: session.set("/lost", b"after"))
                await connected(session)
                await again(lambda: session.sync("/lost"))
                data, stat = await again(lambda: session.get("/lost"))
                if data == b"after":
                    break
                # Real servers that wake up may hear of the new connection first, and then refuse the old request.
            await again(lambda: session.delete("/lost"))
            return data, stat.version

    tell(story, three_servers)


@pytest.mark.timeout(600)
def test_one_server_that_dies_is_replaced_and_nothing_is_lost(three_servers: ZooKeeper) -> None:
    async def story(world: Faults) -> Any:
        async with opened(world) as session:
            session_id = session.session_id
            await session.create("/one", b"1", ephemeral=True)
            shown = []
            for number in range(3):
                await world.stop(number)
                data, _ = await again(lambda: session.get("/one"))
                shown.append(data)
                await world.start(number)
            return shown, session.session_id == session_id

    tell(story, three_servers)


def test_a_watch_is_told_when_its_connection_is_gone(three_servers: ZooKeeper) -> None:
    async def story(world: Any) -> Any:
        async with opened(world) as session:
            events: list[WatchEvent] = []
            await session.exists("/nowhere", events.append)
            await world.drop_connection(session)
            await until(lambda: bool(events), "the event")
            return events

    tell(story, three_servers)



"""The session with a real ZooKeeper: what kazoo does not do by itself. The rest is in tests/simulation/zookeeper."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from semel.cluster import session as zk
from semel.cluster.session import EventType, SessionState, WatchEvent
from semel.cluster.zookeeper import KazooSession
from semel.machines.znodes.operations import Create, SetData
from tests.support.processes import free_port
from tests.support.requirements import require_zookeeper
from tests.support.zookeeper import ZooKeeper, running_zookeeper


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    require_zookeeper()
    with running_zookeeper() as running:
        yield running


@pytest.mark.java
def test_a_chroot_is_created_and_seen_by_nobody_inside(zookeeper: ZooKeeper) -> None:
    async def story() -> None:
        inside = await KazooSession(f"{zookeeper.connect}/deep/down", session_timeout_ms=10_000).open(timeout_ms=60_000)
        outside = await KazooSession(zookeeper.connect, session_timeout_ms=10_000).open(timeout_ms=60_000)
        events: list[WatchEvent] = []
        assert await inside.exists("/a", events.append) is None
        assert (await inside.multi([Create("/a"), SetData("/a", b"1")]))[0] == "/a"
        assert (await outside.get("/deep/down/a"))[0] == b"1"
        assert await inside.create("/n", sequential=True) == "/n0000000001"
        assert events == [WatchEvent(EventType.CREATED, "/a")]
        await inside.close()
        await outside.close()

    asyncio.run(story())


@pytest.mark.java
def test_a_closed_session_takes_its_ephemeral_nodes_with_it_and_answers_no_more(zookeeper: ZooKeeper) -> None:
    async def story() -> None:
        session = await KazooSession(zookeeper.connect, session_timeout_ms=10_000).open(timeout_ms=60_000)
        other = await KazooSession(zookeeper.connect, session_timeout_ms=10_000).open(timeout_ms=60_000)
        await session.create("/mine", ephemeral=True)
        await session.close()
        assert session.state is SessionState.CLOSED
        with pytest.raises(zk.ConnectionLoss):
            await session.get("/mine")
        assert await other.exists("/mine") is None
        await other.close()

    asyncio.run(story())


def test_where_no_zookeeper_is_the_session_says_so_in_time() -> None:
    async def story() -> None:
        with pytest.raises(zk.ConnectionLoss, match="no ZooKeeper answered within 300 ms"):
            await KazooSession(f"127.0.0.1:{free_port()}").open(timeout_ms=300)

    asyncio.run(story())


def test_a_server_that_ends_every_connection_is_not_called_silent(caplog: pytest.LogCaptureFixture) -> None:
    """So does a ZooKeeper without a quorum, one that lost data, and a port for TLS where none is spoken."""
    caplog.set_level(logging.WARNING, logger="semel.cluster.zookeeper")

    async def story() -> None:
        async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(end, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(zk.ConnectionLoss, match="it takes connections and ends each at once"):
            await KazooSession(f"127.0.0.1:{port}").open(timeout_ms=4000)
        server.close()

    asyncio.run(story())
    said = [one.getMessage().partition(":")[0] for one in caplog.records if one.name == "semel.cluster.zookeeper"]
    assert said == ["no session with ZooKeeper"]

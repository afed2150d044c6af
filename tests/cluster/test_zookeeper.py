"""The session with a real ZooKeeper: what kazoo does not do by itself. The rest is in tests/simulation/zookeeper."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator

import pytest

from semel.cluster import session as zk
from semel.cluster.session import EventType, SessionState, WatchEvent
from semel.cluster.who_listens import who_listens
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


KAFKA = bytes.fromhex("0000000a 00000007 0000 00000000")


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({b"srvr": b"This ZooKeeper instance is not currently serving requests\n"}, "too few of its nodes run"),
        ({b"srvr": b"Zookeeper version: 3.9.5\nMode: read-only\n"}, "read-only"),
        ({b"srvr": b"Zookeeper version: 3.9.5\nMode: standalone\n"}, "takes no session"),
        ({b"srvr": b"srvr is not executed because it is not in the whitelist.\n"}, "takes no session"),
        ({b"\0": KAFKA}, "a Kafka broker listens there, and no ZooKeeper"),
        ({b"GET": b"HTTP/1.1 400 Bad Request\r\n"}, "a web server listens there, and no ZooKeeper"),
        ({b"": b"SSH-2.0-OpenSSH\r\n"}, "something that says b'SSH-2.0-OpenSSH"),
        ({b"srvr": b"\x15\x03\x03\x00\x02\x02\x16"}, "zookeeper.ssl.client.enable"),
        ({}, "^$"),
    ],
)
def test_who_listens_in_the_place_of_a_zookeeper_is_told(answers: dict[bytes, bytes], why: str) -> None:
    async def story() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.read(100)
            writer.write(b"".join(said for begin, said in answers.items() if asked.startswith(begin)))
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert re.search(why, await asyncio.to_thread(who_listens, "127.0.0.1", port))
        server.close()

    asyncio.run(story())


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    """kazoo would wait for its answer as long as a session lasts."""

    async def story() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(30):
            with pytest.raises(zk.ConnectionLoss, match="takes connections and says nothing"):
                await KazooSession(f"127.0.0.1:{port}", session_timeout_ms=120_000).open(timeout_ms=200)

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

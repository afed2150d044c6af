"""The simulated ZooKeeper on a socket: kazoo, a client of the real one, sees there what the simulation shows."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator

import pytest

from semel.cluster import session as zk
from semel.cluster.session import EventType, WatchEvent
from semel.cluster.zookeeper import KazooSession
from semel.machines.znodes.operations import OPEN, Check, Create, SetData
from semel.simulation.zookeeper import jute
from semel.simulation.zookeeper.on_a_socket import ZooKeeperOnASocket
from tests.simulation.zookeeper.programs import Run, program
from tests.simulation.zookeeper.worlds import RealWorld, SimulatedWorld


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperOnASocket]:
    with ZooKeeperOnASocket() as running:
        yield running


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_random_program_shows_the_same_over_the_socket(zookeeper: ZooKeeperOnASocket, seed: int) -> None:
    root = f"/seed-{seed}"
    told = program(seed, 150, root)

    async def both() -> None:
        over_socket = await Run(RealWorld(zookeeper), root).of(told)  # type: ignore[arg-type]
        inside = await Run(SimulatedWorld(), root).of(told)
        for number, (ours, theirs) in enumerate(zip(over_socket, inside, strict=True)):
            assert ours == theirs, f"seed {seed}, step {number}: {told[number]}"

    asyncio.run(both())


def test_a_session_that_is_not_heard_of_ends_with_its_nodes(zookeeper: ZooKeeperOnASocket) -> None:
    async def story() -> None:
        other = await KazooSession(zookeeper.connect, session_timeout_ms=10_000).open(timeout_ms=30_000)
        with socket.create_connection(("127.0.0.1", zookeeper.port), 30) as silent:
            begin = struct.pack(">iqiq", 0, 0, 1_000, 0) + jute.of_buffer(bytes(16))
            silent.sendall(jute.of_buffer(begin))
            assert len(silent.recv(4096)) == 41
            create = struct.pack(">ii", 1, jute.CREATE) + jute.of_text("/mine") + jute.of_buffer(b"")
            silent.sendall(jute.of_buffer(create + jute.of_acl(OPEN) + jute.of_int(1)))
            assert len(silent.recv(4096)) == 29
            gone: asyncio.Future[WatchEvent] = asyncio.get_running_loop().create_future()
            if await other.exists("/mine", gone.set_result) is not None:
                assert (await asyncio.wait_for(gone, 30)).type is EventType.DELETED
            silent.settimeout(30)
            while await asyncio.to_thread(silent.recv, 4096):
                pass  # and its connection is closed
        await other.close()

    asyncio.run(story())


def test_a_refused_multi_names_the_operation_to_blame(zookeeper: ZooKeeperOnASocket) -> None:
    async def story() -> None:
        session = await KazooSession(zookeeper.connect, session_timeout_ms=10_000).open(timeout_ms=30_000)
        with pytest.raises(zk.MultiRefused) as refused:
            await session.multi([Create("/new"), Check("/", 77), SetData("/new", b"1")])
        assert (refused.value.index, type(refused.value.error)) == (1, zk.BadVersion)
        assert await session.exists("/new") is None
        await session.close()

    asyncio.run(story())


@pytest.mark.parametrize("sent", [b"\x7f\xff\xff\xff", b"\x00\x00\x00\x02ab", b"srvr\n"])
def test_what_is_no_request_ends_the_connection_and_nothing_else(zookeeper: ZooKeeperOnASocket, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", zookeeper.port), 10) as connection:
        connection.sendall(sent)
        try:
            assert connection.recv(100) == b""
        except ConnectionResetError:
            pass
    with socket.create_connection(("127.0.0.1", zookeeper.port), 10):
        pass

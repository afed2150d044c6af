"""The two places where a program runs: a real ZooKeeper, and the simulated one on the test's own event loop."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from kazoo.protocol.connection import _CONNECTION_DROP

from semel.cluster.session import ZooKeeperSession
from semel.cluster.zookeeper import KazooSession
from semel.simulation.zookeeper import SimulatedSession, SimulatedZooKeeper
from tests.support.zookeeper import ZooKeeper

#: Long enough that a busy machine does not end a session.
TIMEOUT_MS = 10_000


class RealWorld:
    def __init__(self, zookeeper: ZooKeeper, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self.zookeeper = zookeeper
        self.timeout_ms = timeout_ms

    async def open(self, digest: str | None = None) -> KazooSession:
        session = KazooSession(self.zookeeper.connect, session_timeout_ms=self.timeout_ms, digest=digest)
        return await session.open(timeout_ms=60_000)

    async def drop_connection(self, session: ZooKeeperSession) -> None:
        client: Any = session._client  # type: ignore[attr-defined]
        client._call(_CONNECTION_DROP, client.handler.async_result())


class SimulatedWorld:
    def __init__(self, seed: int = 0, *, timeout_ms: int = TIMEOUT_MS, **arguments: Any) -> None:
        loop = asyncio.get_running_loop()
        self.zookeeper = SimulatedZooKeeper(loop, random.Random(seed), tick_ms=500, **arguments)
        self.timeout_ms = timeout_ms

    async def open(self, digest: str | None = None) -> SimulatedSession:
        session = SimulatedSession(self.zookeeper, session_timeout_ms=self.timeout_ms, digest=digest)
        return await session.open(timeout_ms=60_000)

    async def drop_connection(self, session: ZooKeeperSession) -> None:
        assert isinstance(session, SimulatedSession)
        session.drop_connection()

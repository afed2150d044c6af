"""Nodes below a folder, kept as they are in ZooKeeper, also over lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from semel.cluster.nodes_reader import BOTH, FOLDER, LEAF, NodesReader
from semel.cluster.session import ZooKeeperSession
from tests.simulation.zookeeper.worlds import SimulatedWorld

SHAPES = {"/users": (FOLDER, BOTH, FOLDER, LEAF), "/rules": (FOLDER, FOLDER, LEAF)}


class Watched:
    """What was told, as it is now."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.nodes: dict[str, bytes] = {}
        self.settled = 0
        self.reader = NodesReader(session, SHAPES, self._told, self._settle)

    def _told(self, path: str, data: bytes | None) -> None:
        if data is None:
            del self.nodes[path]  # only what was there can go
        else:
            self.nodes[path] = data

    def _settle(self) -> None:
        self.settled += 1


def tell(story: Callable[[SimulatedWorld, ZooKeeperSession, Watched], Awaitable[None]]) -> None:
    async def run() -> None:
        world = SimulatedWorld()
        other, own = await world.open(), await world.open()
        for folder in ("/users", "/rules", "/rules/Topic"):
            await other.create(folder)
        watched = Watched(own)
        await watched.reader.load()
        task = asyncio.ensure_future(watched.reader.run())
        try:
            await story(world, other, watched)
        finally:
            task.cancel()

    asyncio.run(run())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - ZooKeeper tells at its own time
            await asyncio.sleep(0.01)


def test_nodes_are_told_when_they_are_made_changed_and_removed() -> None:
    async def story(world: SimulatedWorld, other: ZooKeeperSession, watched: Watched) -> None:
        await other.create("/rules/Topic/a", b"1")
        await until(lambda: watched.nodes == {"/rules/Topic/a": b"1"})
        await other.set("/rules/Topic/a", b"2")
        await until(lambda: watched.nodes == {"/rules/Topic/a": b"2"})
        await other.delete("/rules/Topic/a")
        await until(lambda: watched.nodes == {})
        await other.create("/rules/Topic/a", b"3")
        await until(lambda: watched.nodes == {"/rules/Topic/a": b"3"})

    tell(story)


def test_levels_are_followed_down_and_a_folder_has_no_data() -> None:
    async def story(world: SimulatedWorld, other: ZooKeeperSession, watched: Watched) -> None:
        await other.create("/users/alice", b"a")
        await other.create("/users/alice/clients", b"ignored")
        await other.create("/users/alice/clients/app", b"c")
        await other.create("/users/alice/clients/app/deeper", b"ignored")
        expected = {"/users/alice": b"a", "/users/alice/clients/app": b"c"}
        await until(lambda: watched.nodes == expected)
        for path in ("/users/alice/clients/app/deeper", "/users/alice/clients/app", "/users/alice/clients"):
            await other.delete(path)
        await until(lambda: watched.nodes == {"/users/alice": b"a"})

    tell(story)


def test_what_changed_while_the_connection_was_lost_is_known_afterwards() -> None:
    async def story(world: SimulatedWorld, other: ZooKeeperSession, watched: Watched) -> None:
        await other.create("/rules/Topic/gone", b"1")
        await other.create("/rules/Topic/kept", b"1")
        await until(lambda: len(watched.nodes) == 2)
        await world.drop_connection(watched.reader._session)
        await other.delete("/rules/Topic/gone")
        await other.set("/rules/Topic/kept", b"2")
        await other.create("/rules/Topic/new", b"1")
        await until(lambda: watched.nodes == {"/rules/Topic/kept": b"2", "/rules/Topic/new": b"1"})

    tell(story)


def test_a_node_that_was_missed_and_is_back_is_read_again() -> None:
    """Its own read finds nothing, and leaves no watch; when its folder is read it is there again."""

    async def story(world: SimulatedWorld, other: ZooKeeperSession, watched: Watched) -> None:
        reader = watched.reader
        await other.create("/rules/Topic/a", b"1")
        await until(lambda: watched.nodes == {"/rules/Topic/a": b"1"})
        async with reader._one_at_a_time:  # nobody else reads meanwhile
            await other.delete("/rules/Topic/a")
            await reader._session.sync("/")
            await reader._read("/rules/Topic/a")
            await other.create("/rules/Topic/a", b"2")
            await reader._session.sync("/")
            reader._dirty.clear()
            await reader._read("/rules/Topic")
        await reader.know()
        assert watched.nodes == {"/rules/Topic/a": b"2"}

    tell(story)


def test_know_returns_when_what_others_were_answered_is_told() -> None:
    async def story(world: SimulatedWorld, other: ZooKeeperSession, watched: Watched) -> None:
        for number in range(300):
            await other.create(f"/rules/Topic/t{number}", b"%d" % number)
            if number % 50 == 0:
                await watched.reader.know()
                assert watched.nodes[f"/rules/Topic/t{number}"] == b"%d" % number
        await watched.reader.know()
        assert len(watched.nodes) == 300

    tell(story)

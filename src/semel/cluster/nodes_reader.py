"""All nodes below some folders of ZooKeeper, kept as they are there by watches.

Guarantees:

- Every node is told once it is read, again after every change, and as gone when it is gone.
- After the connection was lost everything is read again: watches do not outlive a connection.
- `know` returns when everything that anybody was answered before is told.

One session answers in the order in which it was asked, so an answer that is taken as soon as it is there is never older
than the one before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from semel.cluster.session import (
    ConnectionLoss,
    EventType,
    NoNode,
    SessionExpired,
    SessionState,
    WatchEvent,
    ZooKeeperError,
    ZooKeeperSession,
)
from semel.machines.znodes.values import UnreadableZnode

logger = logging.getLogger(__name__)

#: How many nodes are read at once.
READ_AT_ONCE = 200
#: How long what ZooKeeper refuses to show waits for the next attempt.
READ_AGAIN_S = 2.0


class Level(NamedTuple):
    """What the nodes of one level have that is of interest."""

    data: bool
    children: bool


FOLDER, LEAF, BOTH = Level(False, True), Level(True, False), Level(True, True)
#: The levels below a folder, the folder itself first.
Shape = tuple[Level, ...]


class NodesReader:
    """`told` gets the path of a node and its data, or None if it is gone; `settled` is called after some were told."""

    def __init__(
        self,
        session: ZooKeeperSession,
        shapes: Mapping[str, Shape],
        told: Callable[[str, bytes | None], None],
        settled: Callable[[], None],
    ) -> None:
        self._session = session
        self._shapes = shapes
        self._told = told
        self._settled = settled
        #: Every known path, with its level.
        self._known: dict[str, Level] = {}
        self._children: dict[str, set[str]] = {}
        self._dirty: dict[str, None] = {}
        #: Nodes that `told` could not read, and why. They are read again when they change.
        self._unreadable: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        session.add_listener(self._on_session)

    def unreadable(self) -> list[str]:
        """The nodes that cannot be read, and why."""
        return list(self._unreadable.values())

    async def load(self) -> None:
        """Read everything. Raises what ZooKeeper answers instead."""
        self._mark_all()
        await self.know()

    async def know(self) -> None:
        """Read what has changed up to now, wherever it was changed. Raises what ZooKeeper answers instead."""
        await self._session.sync("/")
        await self._read_dirty(keep_going=False)

    async def run(self) -> None:
        """Read what changes, for as long as the broker lives."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._session.state is SessionState.CONNECTED and self._dirty:
                await self._read_dirty(keep_going=True)

    def _mark(self, path: str) -> None:
        self._dirty[path] = None
        self._wake.set()

    def _mark_all(self) -> None:
        for path in (*self._shapes, *self._known):
            self._mark(path)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._mark_all()

    async def _read_dirty(self, *, keep_going: bool) -> None:
        async with self._one_at_a_time:
            while self._dirty:
                paths = list(self._dirty)[:READ_AT_ONCE]
                for path in paths:
                    del self._dirty[path]
                outcomes = await asyncio.gather(*map(self._read, paths), return_exceptions=True)
                failed: BaseException | None = None
                for path, outcome in zip(paths, outcomes, strict=True):
                    if isinstance(outcome, (ConnectionLoss, SessionExpired)):
                        self._dirty[path] = None  # read again when the session is back
                    elif isinstance(outcome, ZooKeeperError) and keep_going:
                        asyncio.get_running_loop().call_later(READ_AGAIN_S, self._mark, path)
                    if isinstance(outcome, UnreadableZnode):
                        self._unreadable[path] = str(outcome)
                    else:
                        self._unreadable.pop(path, None)
                    if isinstance(outcome, BaseException):
                        failed = outcome
                self._settled()
                if failed is None:
                    continue
                if not keep_going or not isinstance(failed, Exception):
                    raise failed
                if not isinstance(failed, (ConnectionLoss, SessionExpired)):
                    logger.error("%s", failed or type(failed).__name__)
                elif self._session.state is not SessionState.CONNECTED:
                    return

    def _level(self, path: str) -> Level | None:
        known = self._known.get(path)
        if known is not None:
            return known
        for folder, shape in self._shapes.items():
            if path == folder:
                return shape[0]
            if path.startswith(f"{folder}/"):
                depth = path.count("/") - folder.count("/")
                return shape[depth] if depth < len(shape) else None
        return None

    async def _read(self, path: str) -> None:
        level = self._level(path)
        if level is None:
            return

        def fired(event: WatchEvent) -> None:
            if event.type is not EventType.NONE:
                self._mark(path)

        try:
            if level.data:
                data, _ = await self._session.get(path, fired)
                self._known[path] = level
                self._told(path, data)
            if level.children:
                names = set((await self._session.get_children(path, fired))[0])
                self._known[path] = level
                self._take_children(path, names)
        except NoNode:
            self._forget(path)  # the folder around it tells when it is there again

    def _take_children(self, path: str, names: set[str]) -> None:
        before = self._children.get(path, set())
        self._children[path] = names
        for name in names - before:
            self._mark(f"{path}/{name}")
        for name in before - names:
            self._forget(f"{path}/{name}")

    def _forget(self, path: str) -> None:
        for name in tuple(self._children.pop(path, ())):
            self._forget(f"{path}/{name}")
        folder, _, name = path.rpartition("/")
        self._children.get(folder, set()).discard(name)  # if it comes back, it is new
        self._unreadable.pop(path, None)
        level = self._known.pop(path, None)
        if level is not None and level.data:
            self._told(path, None)

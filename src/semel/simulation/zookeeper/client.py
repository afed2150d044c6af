"""A session with a simulated ZooKeeper: what a broker holds in a simulation, or in `semel.Cluster` without Java.

It behaves as kazoo's client does: pings at a third of the session timeout; SUSPENDED when the connection is dropped or
nothing is heard for two thirds of the timeout; then it tries the servers in turn until one takes the session back
(CONNECTED) or says that it is over (LOST, and a new session begins). It never goes back to a server that knows less
than it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from semel.cluster import session as zk
from semel.cluster.session import EventType, Result, SessionState, Stat, StateListener, Watcher, WatchEvent
from semel.machines.znodes.operations import (
    ANY_VERSION,
    OPEN,
    REQUEST_HEADER_BYTES,
    Acl,
    Create,
    Delete,
    Operation,
    SetData,
    multi_size_bytes,
)
from semel.simulation.zookeeper.shell import Answer, Link, SimulatedZooKeeper
from semel.simulation.zookeeper.tree import Identity, SetAcl, digest_identity

_RETRY_MS = 100


class SimulatedSession:
    """A `ZooKeeperSession` with a simulated ZooKeeper. `loop` is the client's, where it has one of its own."""

    def __init__(
        self,
        zookeeper: SimulatedZooKeeper,
        *,
        session_timeout_ms: int = 18_000,
        digest: str | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = loop or zookeeper.loop
        self.context = contextvars.copy_context()
        self._zookeeper = zookeeper
        self._asked_timeout_ms = session_timeout_ms
        self._timeout_ms = session_timeout_ms
        self._identities: tuple[Identity, ...] = (digest_identity(digest),) if digest else ()
        self._state = SessionState.SUSPENDED
        self._session_id = 0
        #: 0 and nothing while no session is there to be taken back.
        self._known = (0, b"")
        self._seen_zxid = 0
        self._link: Link | None = None
        self._turn = zookeeper.random.randrange(len(zookeeper.servers))
        #: Requests without an answer yet, each with the watch that begins with its answer.
        self._open: dict[Answer, Callable[[], None] | None] = {}
        self._data_watchers: dict[str, list[Watcher]] = {}
        self._child_watchers: dict[str, list[Watcher]] = {}
        self._listeners: list[StateListener] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = self._heard_at = 0.0
        #: Faults: what this client sends, or what is sent to it, vanishes.
        self.requests_cut = self.answers_cut = False
        self.answers_to_lose = 0
        #: How much later than usual what it sends arrives.
        self.requests_late_s = 0.0

    # --- faults

    def cut(self, *, requests: bool = True, answers: bool = True) -> None:
        """From now on nothing arrives, in one direction or in both; nobody is told."""
        self.requests_cut, self.answers_cut = requests, answers

    def heal(self) -> None:
        """Messages arrive again. A connection on which one has vanished is over: TCP loses nothing in between."""
        self.requests_cut = self.answers_cut = False
        if self._link is not None and self._link.has_lost:
            self._link.drop()

    def lose_next_answer(self) -> None:
        """The next request is carried out, and the connection drops in place of its answer."""
        self.answers_to_lose += 1

    def drop_connection(self) -> None:
        """The server closes the connection; the session lives on."""
        if self._link is not None:
            self._link.drop()

    def abandon(self) -> None:
        """The client's process is gone: its connection ends, and its session when its time is over."""
        self._state = SessionState.CLOSED
        self._leave_link()
        self._fail_open(zk.ConnectionLoss())

    # --- the session

    async def open(self, *, timeout_ms: int | None = None) -> SimulatedSession:
        connected: asyncio.Future[None] = self.loop.create_future()

        def on_state(state: SessionState) -> None:
            if state is SessionState.CONNECTED and not connected.done():
                connected.set_result(None)

        self._listeners.append(on_state)
        self._connect()
        try:
            await asyncio.wait_for(connected, None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            await self.close()
            raise zk.ConnectionLoss(f"no ZooKeeper answered within {timeout_ms} ms") from None
        finally:
            self._listeners.remove(on_state)
        return self

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        return self._session_id

    def add_listener(self, listener: StateListener) -> None:
        self._listeners.append(listener)

    def _become(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            for listener in list(self._listeners):
                listener(state)

    async def close(self) -> None:
        if self._state is SessionState.CLOSED:
            return
        connected = self._state is SessionState.CONNECTED
        self._state = SessionState.CLOSED
        if connected and self._link is not None:
            answer: Answer = self.loop.create_future()
            self._open[answer] = None
            link = self._link
            link.to_server(lambda: link.close_session(answer))
            with contextlib.suppress(zk.ZooKeeperError, TimeoutError):
                await asyncio.wait_for(answer, self._timeout_ms / 1000)
        self._leave_link()
        self._fail_open(zk.ConnectionLoss())
        for listener in list(self._listeners):
            listener(SessionState.CLOSED)

    # --- connecting

    def _connect(self) -> None:
        if self._state is SessionState.CLOSED:
            return
        servers = len(self._zookeeper.servers)
        self._turn = (self._turn + 1) % servers
        link = self._link = Link(self._zookeeper, self, self._turn)
        link.identities = self._identities
        session_id, password = self._known
        timeout_ms, seen_zxid = self._asked_timeout_ms, self._seen_zxid
        link.to_server(lambda: link.connect(session_id, password, timeout_ms, seen_zxid))
        self._set_timer(self._asked_timeout_ms / servers, lambda: self._try_next(link))

    def _try_next(self, link: Link) -> None:
        if link is self._link:
            self._leave_link()
            self._set_timer(_RETRY_MS * (1 + self._zookeeper.random.random()), self._connect)

    def _set_timer(self, delay_ms: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(delay_ms / 1000, call, context=self.context)

    def _leave_link(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._link is not None:
            link, self._link = self._link, None
            link.closed_by_client()

    def on_connected(self, link: Link, session_id: int, password: bytes, timeout_ms: int) -> None:
        if link is not self._link:
            return
        self._known = (session_id, password)
        self._session_id = session_id
        self._timeout_ms = timeout_ms
        self._sent_at = self._heard_at = self.loop.time()
        self._watch_over(link)
        self._become(SessionState.CONNECTED)

    def on_refused(self, link: Link) -> None:
        """The session is over."""
        if link is not self._link:
            return
        self._link = None
        self._known = (0, b"")
        self._seen_zxid = 0
        self._become(SessionState.LOST)
        self._fail_open(zk.SessionExpired())
        self._set_timer(0, self._connect)

    def on_dropped(self, link: Link) -> None:
        if link is self._link:
            self._lose_connection(link)

    def _lose_connection(self, link: Link) -> None:
        if self._state is SessionState.CONNECTED:
            self._fail_open(zk.ConnectionLoss())
            self._become(SessionState.SUSPENDED)
            self._lose_watches()
        self._try_next(link)

    def _fail_open(self, error: zk.ZooKeeperError) -> None:
        open_requests, self._open = self._open, {}
        for answer in open_requests:
            if not answer.done():
                answer.set_exception(type(error)(*error.args))

    def _watch_over(self, link: Link) -> None:
        """Pings when nothing was sent for a while; gives the connection up when nothing was heard for longer."""
        if link is not self._link:
            return
        now = self.loop.time()
        third_s = self._timeout_ms / 3000
        if now >= self._heard_at + 2 * third_s - 1e-9:
            self._lose_connection(link)
            return
        if now >= self._sent_at + third_s - 1e-9:
            self._sent_at = now
            link.to_server(link.ping)
        next_at = min(self._sent_at + third_s, self._heard_at + 2 * third_s)
        self._set_timer((next_at - now) * 1000, lambda: self._watch_over(link))

    # --- what arrives

    def on_heard(self, link: Link) -> None:
        if link is self._link:
            self._heard_at = self.loop.time()

    def on_answer(self, link: Link, answer: Answer, outcome: Any, zxid: int) -> None:
        if link is not self._link:
            return
        self._heard_at = self.loop.time()
        self._seen_zxid = max(self._seen_zxid, zxid)
        begin_watch = self._open.pop(answer, None)
        if isinstance(outcome, zk.ZooKeeperError):
            if not answer.done():
                answer.set_exception(outcome)
            return
        if begin_watch is not None:
            begin_watch()
        if not answer.done():
            answer.set_result(outcome)

    def on_event(self, link: Link, event: WatchEvent, zxid: int) -> None:
        if link is not self._link:
            return
        self._heard_at = self.loop.time()
        watchers: list[Watcher] = []
        if event.type is not EventType.CHILDREN:
            watchers += self._data_watchers.pop(event.path, [])
        if event.type in (EventType.CHILDREN, EventType.DELETED):
            watchers += self._child_watchers.pop(event.path, [])
        if self._state is not SessionState.CLOSED:
            for watcher in watchers:
                watcher(event)

    def _lose_watches(self) -> None:
        lost = [*self._child_watchers.items(), *self._data_watchers.items()]
        self._child_watchers, self._data_watchers = {}, {}
        for path, watchers in lost:
            for watcher in watchers:
                watcher(WatchEvent(EventType.NONE, path))

    # --- requests

    async def _ask(
        self, send: Callable[[Link, Answer], None], begin_watch: Callable[[], None] | None = None
    ) -> Any:
        if self._state is SessionState.LOST:
            raise zk.SessionExpired("ZooKeeper has ended the session")
        if self._state is not SessionState.CONNECTED or self._link is None:
            raise zk.ConnectionLoss("not connected to ZooKeeper; nothing was sent")
        answer: Answer = self.loop.create_future()
        self._open[answer] = begin_watch
        link = self._link
        self._sent_at = self.loop.time()
        link.to_server(lambda: send(link, answer))
        return await answer

    async def _write(self, operation: Operation | SetAcl) -> Any:
        zk.check_path(operation.path)
        size_bytes = REQUEST_HEADER_BYTES + operation.size_bytes()
        try:
            results = await self._ask(lambda link, answer: link.write([operation], size_bytes, answer))
        except zk.MultiRefused as refused:
            raise refused.error from None
        return results[0]

    async def _read(
        self, path: str, watch: Watcher | None, send: Callable[[Link, Answer], None], *, children: bool = False
    ) -> Any:
        zk.check_path(path)
        if watch is None:
            return await self._ask(send)
        watcher = watch

        def begin() -> None:
            watchers = self._child_watchers if children else self._data_watchers
            watchers.setdefault(path, []).append(watcher)

        return await self._ask(send, begin)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        acl: Sequence[Acl] = OPEN,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> str:
        return str(await self._write(Create(path, data, tuple(acl), ephemeral, sequential)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write(Delete(path, version))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        stat: Stat = await self._write(SetData(path, data, version))
        return stat

    async def set_acl(self, path: str, acl: Sequence[Acl], version: int = ANY_VERSION) -> Stat:
        stat: Stat = await self._write(SetAcl(path, tuple(acl), version))
        return stat

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        stat: Stat | None = await self._read(
            path, watch, lambda link, answer: link.exists(path, watch is not None, answer)
        )
        return stat

    async def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        found: tuple[bytes, Stat] = await self._read(
            path, watch, lambda link, answer: link.get(path, watch is not None, answer)
        )
        return found

    async def get_children(self, path: str, watch: Watcher | None = None) -> tuple[list[str], Stat]:
        found: tuple[list[str], Stat] = await self._read(
            path, watch, lambda link, answer: link.get_children(path, watch is not None, answer), children=True
        )
        return found

    async def get_acl(self, path: str) -> tuple[tuple[Acl, ...], Stat]:
        zk.check_path(path)
        found: tuple[tuple[Acl, ...], Stat] = await self._ask(lambda link, answer: link.get_acl(path, answer))
        return found

    async def sync(self, path: str) -> None:
        zk.check_path(path)
        await self._ask(lambda link, answer: link.sync(answer))

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        if not operations:
            raise ValueError("a multi needs an operation")
        for operation in operations:
            zk.check_path(operation.path)
        size_bytes = multi_size_bytes(operations)
        results: list[Result] = await self._ask(lambda link, answer: link.write(operations, size_bytes, answer))
        return results

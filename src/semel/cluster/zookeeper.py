"""A session with a real ZooKeeper, by kazoo. No other file imports kazoo.

kazoo has a thread of its own for the connection. Everything that it has to tell (answers, watch events, changes of
state) goes to the event loop through one door, `_LoopHandler.put`, in the order in which it came. kazoo's own handler
has two threads, one for answers and one for watch events, which would mix that order up.

kazoo keeps a request that is made while it is not connected, and sends it when it is connected again. Here such a
request ends at once with `ConnectionLoss`. One that slips through, because kazoo knew before the loop did, is sent
before any later request of the session, so what a later sync and read show is still final.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Create as KazooCreate
from kazoo.protocol.states import EventType as KazooEventType
from kazoo.protocol.states import KazooState
from kazoo.protocol.states import WatchedEvent as KazooEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL as KazooAcl
from kazoo.security import Id as KazooId

from semel.cluster import session as zk
from semel.cluster.session import EventType, Result, SessionState, Stat, StateListener, Watcher, WatchEvent
from semel.cluster.who_listens import who_listens
from semel.machines.znodes.operations import ANY_VERSION, OPEN, Acl, Check, Create, Delete, Operation, SetData, owned

logger = logging.getLogger(__name__)

_ERRORS: dict[type[Exception], type[zk.ZooKeeperError]] = {
    exceptions.ConnectionLoss: zk.ConnectionLoss,
    exceptions.ConnectionClosedError: zk.ConnectionLoss,
    exceptions.SessionExpiredError: zk.SessionExpired,
    exceptions.SessionMovedError: zk.ConnectionLoss,
    exceptions.NoNodeError: zk.NoNode,
    exceptions.NodeExistsError: zk.NodeExists,
    exceptions.BadVersionError: zk.BadVersion,
    exceptions.NotEmptyError: zk.NotEmpty,
    exceptions.NoChildrenForEphemeralsError: zk.NoChildrenForEphemerals,
    exceptions.NoAuthError: zk.NoAuth,
    exceptions.InvalidACLError: zk.InvalidAcl,
    exceptions.AuthFailedError: zk.AuthFailed,
    exceptions.SessionClosedRequireSaslError: zk.AuthFailed,
    exceptions.BadArgumentsError: zk.BadArguments,
}
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
_EVENTS = {
    KazooEventType.CREATED: EventType.CREATED,
    KazooEventType.DELETED: EventType.DELETED,
    KazooEventType.CHANGED: EventType.CHANGED,
    KazooEventType.CHILD: EventType.CHILDREN,
    KazooEventType.NONE: EventType.NONE,
}
#: After so many connections that were taken and ended without a session it is said that somebody refuses us.
_REFUSED_AFTER = 5
_REFUSES = (
    "it takes connections and ends each at once. Either too few of its nodes run, or this is no port of ZooKeeper, or "
    "one for TLS (zookeeper.ssl.client.enable), or it has too many connections (maxClientCnxns), or it has lost data "
    "that this broker knows of, as if restored from an old copy. Its own log says which"
)

#: What the operations before and after the failed one get.
_NOT_TO_BLAME = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


def _error_of(error: Exception) -> Exception:
    kind = _ERRORS.get(type(error))
    if kind is not None:
        return kind(str(error))
    return zk.ZooKeeperError(repr(error)) if isinstance(error, exceptions.KazooException) else error


class _LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without its two threads: what they would call is called on the event loop.

    TLS is ours as well: kazoo's own takes PEM files only, and does not look for what OpenSSL has already read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self._loop = loop
        self._tls = tls
        #: Why the last attempt to connect failed.
        self.failure: Exception | None = None
        #: How many connections in a row were taken and have not become a session.
        self.taken = 0
        #: Whoever waits for an answer on it is woken by `give_up`.
        self._last: socket.socket | None = None
        self._is_given_up = False
        self.callback_queue = self.completion_queue = self

    def give_up(self) -> None:
        """Nobody waits for a session any more. kazoo would wait for an answer as long as a session lasts."""
        self._is_given_up = True
        if self._last is not None:
            with contextlib.suppress(OSError):
                self._last.shutdown(socket.SHUT_RDWR)

    def create_connection(self, *, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> Any:
        try:
            if self._is_given_up:
                raise ConnectionAbortedError("given up")
            connection = socket.create_connection(address, timeout)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_hostname=hostname)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            self.failure = error
            raise
        self.failure = None
        self._last = connection
        self.taken += 1
        if self.taken == _REFUSED_AFTER:
            self.put(lambda: logger.warning("no session with ZooKeeper: %s", _REFUSES))
        return connection

    @property
    def has_tls(self) -> bool:
        return self._tls is not None

    @property
    def why_not(self) -> str:
        """Why there is no session, in words; empty if that is not known."""
        if self.failure is not None:
            return _in_words(self.failure)
        return _REFUSES if self.taken > 1 else ""

    def select(self, readable: Any, writable: Any, failed: Any, timeout: float | None = None) -> Any:
        has_read = [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]
        return (has_read, [], []) if has_read else super().select(readable, writable, failed, timeout)

    @property
    def running(self) -> bool:
        return True

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def put(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody is there to be told
            self._loop.call_soon_threadsafe(call)


class KazooSession:
    """A `ZooKeeperSession` with a real ZooKeeper."""

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int = 18_000,
        digest: str | None = None,
        tls: ssl.SSLContext | None = None,
        owns_nodes: bool = False,
    ) -> None:
        """`connect` is `zookeeper.connect`: hosts with ports, and a chroot after the last one.

        `digest` is "user:password". With `owns_nodes` only who has our identity may change the nodes that we create,
        and others may read those without secrets, as with Kafka's `zookeeper.set.acl`.
        """
        self._loop = asyncio.get_running_loop()
        self._owns_nodes = owns_nodes
        handler = _LoopHandler(self._loop, tls)
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, sleep_func=handler.sleep_func)
        self._client = KazooClient(
            hosts=connect,
            timeout=session_timeout_ms / 1000,
            handler=handler,
            connection_retry=retry,
            auth_data=[("digest", digest)] if digest else None,
        )
        self._handler = handler
        self._state = SessionState.SUSPENDED
        self._session_id = 0
        self._listeners: list[StateListener] = []
        self._connected_once: asyncio.Future[None] = self._loop.create_future()
        self._client.add_listener(self._on_state_in_thread)

    async def open(self, *, timeout_ms: int | None = None) -> KazooSession:
        """Connected, or `ConnectionLoss` when `timeout_ms` are over. Creates the chroot if it is not there."""
        await asyncio.to_thread(self._client.start_async)
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        try:
            await asyncio.wait_for(asyncio.shield(self._connected_once), timeout_s)
        except TimeoutError:
            reason = await self._why_not()
            self._handler.give_up()
            await self.close()
            why = f" ({reason})" if reason else ""
            raise zk.ConnectionLoss(f"no ZooKeeper answered within {timeout_ms} ms{why}") from None
        await self._create_chroot()
        return self

    async def _why_not(self) -> str:
        """Why there is no session, in words."""
        handler = self._handler
        if handler.taken == 0 or handler.has_tls:
            return handler.why_not
        hosts = list(dict.fromkeys(self._client.hosts))
        told = await asyncio.gather(*(asyncio.to_thread(who_listens, *each) for each in hosts))
        found = [f"{host}:{port}: {why}" for (host, port), why in zip(hosts, told, strict=True) if why]
        return "; ".join(found) if found else handler.why_not

    async def _create_chroot(self) -> None:
        """Each node of it; kazoo's own way fails where more than the last one is missing."""
        parts = self._client.chroot.strip("/").split("/") if self._client.chroot else []
        for length in range(1, len(parts) + 1):
            result = self._handler.async_result()
            path = "/" + "/".join(parts[:length])
            self._client._call(KazooCreate(path, b"", self._kazoo_acl(path, OPEN), 0), result)
            with contextlib.suppress(zk.NodeExists):
                await self._answer(result)

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        return self._session_id

    def add_listener(self, listener: StateListener) -> None:
        self._listeners.append(listener)

    def _on_state_in_thread(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._handler.taken = 0
        session_id = self._client._session_id or 0
        self._handler.put(lambda: self._on_state(_STATES[state], session_id))

    def _on_state(self, state: SessionState, session_id: int) -> None:
        if self._state is SessionState.CLOSED:
            return
        self._state = state
        if state is SessionState.CONNECTED:
            self._session_id = session_id
            if not self._connected_once.done():
                self._connected_once.set_result(None)
        for listener in self._listeners:
            listener(state)

    async def _answer(self, result: Any) -> Any:
        """What kazoo's result will be, awaited on the loop."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def done(ready: Any) -> None:
            if answer.done():
                return
            if ready.exception is None:
                answer.set_result(ready.value)
            else:
                answer.set_exception(_error_of(ready.exception))

        result.rawlink(done)
        return await answer

    def _need_connection(self, *paths: str) -> None:
        for path in paths:
            zk.check_path(path)
        if self._state is SessionState.LOST:
            raise zk.SessionExpired("ZooKeeper has ended the session")
        if self._state is not SessionState.CONNECTED:
            raise zk.ConnectionLoss("not connected to ZooKeeper; nothing was sent")

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        acl: Sequence[Acl] = OPEN,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> str:
        self._need_connection(path)
        kazoo_acl = self._kazoo_acl(path, acl)
        result = self._client.create_async(path, data, kazoo_acl, ephemeral=ephemeral, sequence=sequential)
        return str(await self._answer(result))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._need_connection(path)
        await self._answer(self._client.delete_async(path, version))

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        self._need_connection(path)
        stat = await self._answer(self._client.exists_async(path, self._kazoo_watch(path, watch)))
        return None if stat is None else Stat(*stat)

    async def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        self._need_connection(path)
        data, stat = await self._answer(self._client.get_async(path, self._kazoo_watch(path, watch)))
        return data, Stat(*stat)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        self._need_connection(path)
        return Stat(*await self._answer(self._client.set_async(path, data, version)))

    async def get_children(self, path: str, watch: Watcher | None = None) -> tuple[list[str], Stat]:
        self._need_connection(path)
        watcher = self._kazoo_watch(path, watch)
        children, stat = await self._answer(self._client.get_children_async(path, watcher, include_data=True))
        return sorted(children), Stat(*stat)

    async def get_acl(self, path: str) -> tuple[tuple[Acl, ...], Stat]:
        self._need_connection(path)
        entries, stat = await self._answer(self._client.get_acls_async(path))
        return tuple(Acl(entry.perms, entry.id.scheme, entry.id.id) for entry in entries), Stat(*stat)

    async def set_acl(self, path: str, acl: Sequence[Acl], version: int = ANY_VERSION) -> Stat:
        self._need_connection(path)
        return Stat(*await self._answer(self._client.set_acls_async(path, _kazoo_acl(acl), version)))

    async def sync(self, path: str) -> None:
        self._need_connection(path)
        await self._answer(self._client.sync_async(path))

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        if not operations:
            raise ValueError("a multi needs an operation")
        self._need_connection(*(operation.path for operation in operations))
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Check(path, version):
                    transaction.check(path, version)
                case Create(path, data, acl, ephemeral, sequential):
                    transaction.create(path, data, self._kazoo_acl(path, acl), ephemeral, sequential)
                case Delete(path, version):
                    transaction.delete(path, version)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
        answers = await self._answer(transaction.commit_async())
        results: list[Result] = []
        for index, answer in enumerate(answers):
            if isinstance(answer, Exception):
                if not isinstance(answer, _NOT_TO_BLAME):
                    error = _error_of(answer)
                    assert isinstance(error, zk.ZooKeeperError)
                    raise zk.MultiRefused(index, error)
            else:
                results.append(answer if isinstance(answer, str) else None if answer is True else Stat(*answer))
        return results

    async def close(self) -> None:
        if self._state is SessionState.CLOSED:
            return
        self._state = SessionState.CLOSED
        await asyncio.to_thread(self._stop)
        for listener in self._listeners:
            listener(SessionState.CLOSED)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    def _kazoo_acl(self, path: str, acl: Sequence[Acl]) -> list[Any]:
        """Of a node to be created."""
        return _kazoo_acl(owned(path) if self._owns_nodes and acl is OPEN else acl)

    def _kazoo_watch(self, path: str, watch: Watcher | None) -> Callable[[KazooEvent], None] | None:
        if watch is None:
            return None

        def fired(event: KazooEvent) -> None:
            if self._state is not SessionState.CLOSED:
                watch(WatchEvent(_EVENTS[event.type], path))

        return fired


def _in_words(failure: Exception) -> str:
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {failure.verify_message}; see zookeeper.ssl.truststore.location"
    if isinstance(failure, ssl.SSLError):
        return f"TLS failed: {failure.reason}; see zookeeper.ssl.client.enable and zookeeper.ssl.keystore.location"
    return str(failure)


def _kazoo_acl(acl: Sequence[Acl]) -> list[Any]:
    return [KazooAcl(entry.permissions, KazooId(entry.scheme, entry.id)) for entry in acl]

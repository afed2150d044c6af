"""The simulated ZooKeeper for real clients: a server in this process, on a port of 127.0.0.1, in ZooKeeper's protocol.

For tests and for trying a cluster out without Java: `semel.Cluster` and `semel cluster up`. It keeps nothing on disk:
what is in it ends with the process. What it answers is decided by the same tree as in simulations, which is compared
with ZooKeeper itself.

Not there: TLS, SASL, containers, TTL nodes, persistent watches, four-letter words.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from semel.cluster import session as zk
from semel.cluster.session import Result, Stat, WatchEvent
from semel.machines.znodes import operations as op
from semel.machines.znodes.operations import JUTE_MAX_BYTES, Check, Create, Delete, Operation, SetData
from semel.simulation.zookeeper import jute
from semel.simulation.zookeeper.ensemble import Ensemble, Session
from semel.simulation.zookeeper.tree import Identity, SetAcl, allows, digest_identity, need, without_hash

TICK_MS = 500
START_TIMEOUT_S = 30.0
_SERVER = 0


class ZooKeeperOnASocket:
    """Started with `with`, on a thread of its own. `connect` is what `zookeeper.connect` says."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="simulated-zookeeper", daemon=True)
        self._ready = threading.Event()
        self._error: OSError | None = None
        self.ensemble = Ensemble(1, tick_ms=TICK_MS)

    def __enter__(self) -> ZooKeeperOnASocket:
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise TimeoutError("the simulated ZooKeeper did not start in time")
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_TIMEOUT_S)

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            server = loop.run_until_complete(loop.create_server(lambda: _Client(self), "127.0.0.1", self.port))
        except OSError as error:
            self._error = error
            self._ready.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._look_at_sessions()
        self._ready.set()
        loop.run_forever()
        server.close()
        for client in list(self.ensemble.servers[_SERVER].connections):
            client.drop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def _look_at_sessions(self) -> None:
        self.ensemble.expire(self.now_ms())
        self.ensemble.catch_up(_SERVER)
        self._loop.call_later(TICK_MS / 1000, self._look_at_sessions)


class _Client(asyncio.Protocol):
    """One connection. Requests are carried out as they come, so answers and events have ZooKeeper's order."""

    def __init__(self, zookeeper: ZooKeeperOnASocket) -> None:
        self._zookeeper = zookeeper
        self._ensemble = zookeeper.ensemble
        self._server = zookeeper.ensemble.servers[_SERVER]
        self._received = bytearray()
        self._session: Session | None = None
        self.identities: tuple[Identity, ...] = ()
        self._transport: asyncio.Transport

    # --- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4 and not self._transport.is_closing():
            size = int.from_bytes(self._received[:4], "big", signed=True)
            if not 0 <= size <= JUTE_MAX_BYTES:
                self._transport.abort()
                return
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            try:
                self._frame(jute.Reader(frame))
            except (struct.error, ValueError):
                self._transport.abort()
                return

    def notify(self, event: WatchEvent, zxid: int) -> None:
        self._transport.write(jute.event(event.type, event.path))

    def drop(self) -> None:
        self._server.forget(self)
        self._transport.close()

    # --- requests

    def _frame(self, reader: jute.Reader) -> None:
        if self._session is None:
            self._connect(reader)
            return
        if self._session.connection is not self or self._session.id not in self._ensemble.sessions:
            self.drop()
            return
        self._ensemble.heard(self._session, self._zookeeper.now_ms())
        xid, kind = reader.int32(), reader.int32()
        if kind == jute.PING:
            self._answer(jute.PING_XID)
        elif kind == jute.AUTH:
            self._show_identity(reader)
        elif kind == jute.CLOSE:
            self._ensemble.end_session(self._session, self._zookeeper.now_ms())
            self._ensemble.catch_up(_SERVER)
            self._answer(xid)
            self.drop()
        elif kind == jute.SYNC:
            self._answer(xid, body=jute.of_text(reader.text()))
        elif kind in _READS:
            self._read(xid, _READS[kind], reader)
        elif kind == jute.MULTI:
            self._multi(xid, reader)
        elif kind in (jute.CREATE, jute.CREATE_2, jute.DELETE, jute.SET_DATA, jute.SET_ACL):
            self._write(xid, kind, reader)
        else:
            self._answer(xid, jute.UNIMPLEMENTED)

    def _answer(self, xid: int, code: int = 0, body: bytes = b"") -> None:
        self._transport.write(jute.reply(xid, self._server.tree.zxid, code, body))

    def _connect(self, reader: jute.Reader) -> None:
        reader.int32()  # the protocol's version: there is one
        seen_zxid, timeout_ms, session_id, password = reader.int64(), reader.int32(), reader.int64(), reader.buffer()
        if seen_zxid > self._server.tree.zxid:
            self._transport.close()  # it speaks of another ZooKeeper: this one has begun anew
            return
        now_ms = self._zookeeper.now_ms()
        session = self._ensemble.connect(session_id, password, timeout_ms, self, _SERVER, now_ms)
        self._ensemble.catch_up(_SERVER)
        if session is None:
            self._transport.write(jute.connected(0, bytes(16), 0))
            self._transport.close()
            return
        self._session = session
        self._transport.write(jute.connected(session.id, session.password, session.timeout_ms))

    def _show_identity(self, reader: jute.Reader) -> None:
        reader.int32()
        scheme, credentials = reader.text(), reader.text()
        if scheme != "digest":
            self._answer(jute.AUTH_XID, jute.CODES[zk.AuthFailed])
            self.drop()
            return
        self.identities = (*self.identities, digest_identity(credentials))
        self._answer(jute.AUTH_XID)

    def _read(self, xid: int, read: Callable[[_Client, jute.Reader], bytes], reader: jute.Reader) -> None:
        try:
            self._answer(xid, body=read(self, reader))
        except zk.ZooKeeperError as error:
            self._answer(xid, jute.CODES[type(error)])

    def _node(self, path: str, permissions: int = op.READ) -> Any:
        node = self._server.tree.node(path)
        need(node.acl, permissions, self.identities)
        return node

    def _exists(self, reader: jute.Reader) -> bytes:
        path, watch = reader.text(), reader.flag()
        if path in self._server.tree.nodes:
            self._node(path)
        if watch:
            self._server.watch(self, path, children=False)  # also for a node that is not there yet
        return jute.of_stat(self._node(path).stat())

    def _get_data(self, reader: jute.Reader) -> bytes:
        path, watch = reader.text(), reader.flag()
        node = self._node(path)
        if watch:
            self._server.watch(self, path, children=False)
        return jute.of_buffer(node.data) + jute.of_stat(node.stat())

    def _get_children(self, reader: jute.Reader) -> bytes:
        path, watch = reader.text(), reader.flag()
        node = self._node(path)
        if watch:
            self._server.watch(self, path, children=True)
        return jute.of_texts(sorted(node.children))

    def _get_children_2(self, reader: jute.Reader) -> bytes:
        path, watch = reader.text(), reader.flag()
        node = self._node(path)
        if watch:
            self._server.watch(self, path, children=True)
        return jute.of_texts(sorted(node.children)) + jute.of_stat(node.stat())

    def _get_acl(self, reader: jute.Reader) -> bytes:
        node = self._node(reader.text(), op.READ | op.ADMIN)
        acl = node.acl
        if not allows(acl, op.ADMIN, self.identities):  # then the hashes of passwords are not shown
            acl = tuple(map(without_hash, acl))
        return jute.of_acl(acl) + jute.of_stat(node.stat())

    # --- writing

    def _decided(self, operations: list[Operation | SetAcl]) -> tuple[list[Result], zk.MultiRefused | None]:
        assert self._session is not None
        now_ms = self._zookeeper.now_ms()
        zxid, refused = self._ensemble.write(self._session, operations, self.identities, now_ms)
        results: list[Result] = []
        self._ensemble.when_applied(_SERVER, zxid, results.extend)
        self._ensemble.catch_up(_SERVER)
        return results, refused

    def _operation(self, kind: int, reader: jute.Reader) -> Operation | SetAcl:
        if kind in (jute.CREATE, jute.CREATE_2):
            path, data, acl, flags = reader.text(), reader.buffer(), reader.acl(), reader.int32()
            if not 0 <= flags <= 3:
                raise ValueError("a node of a kind that is not served")
            return Create(path, data, acl, bool(flags & 1), bool(flags & 2))
        if kind == jute.DELETE:
            return Delete(reader.text(), reader.int32())
        if kind == jute.SET_DATA:
            return SetData(reader.text(), reader.buffer(), reader.int32())
        if kind == jute.SET_ACL:
            return SetAcl(reader.text(), reader.acl(), reader.int32())
        if kind == jute.CHECK:
            return Check(reader.text(), reader.int32())
        raise ValueError(f"{kind} is no operation that changes anything")

    def _write(self, xid: int, kind: int, reader: jute.Reader) -> None:
        results, refused = self._decided([self._operation(kind, reader)])
        if refused is not None:
            self._answer(xid, jute.CODES[type(refused.error)])
            return
        body = _body(results[0])
        if kind == jute.CREATE_2:
            assert isinstance(results[0], str)
            body += jute.of_stat(self._server.tree.node(results[0]).stat())
        self._answer(xid, body=body)

    def _multi(self, xid: int, reader: jute.Reader) -> None:
        kinds: list[int] = []
        operations: list[Operation | SetAcl] = []
        while True:
            kind, is_last, _ = reader.int32(), reader.flag(), reader.int32()
            if is_last:
                break
            kinds.append(kind)
            operations.append(self._operation(kind, reader))
        results, refused = self._decided(operations)
        parts = []
        for index, kind in enumerate(kinds):
            if refused is None:
                parts += [jute.multi_header(kind, 0), _body(results[index])]
                continue
            code = jute.ROLLED_BACK if index < refused.index else jute.RUNTIME_INCONSISTENCY
            if index == refused.index:
                code = jute.CODES[type(refused.error)]
            parts += [jute.multi_header(-1, code), jute.of_int(code)]
        self._answer(xid, body=b"".join(parts) + jute.multi_header(-1, -1, is_last=True))


def _body(result: Result) -> bytes:
    if isinstance(result, str):
        return jute.of_text(result)
    return jute.of_stat(result) if isinstance(result, Stat) else b""


_READS: dict[int, Callable[[_Client, jute.Reader], bytes]] = {
    jute.EXISTS: _Client._exists,
    jute.GET_DATA: _Client._get_data,
    jute.GET_CHILDREN: _Client._get_children,
    jute.GET_CHILDREN_2: _Client._get_children_2,
    jute.GET_ACL: _Client._get_acl,
}

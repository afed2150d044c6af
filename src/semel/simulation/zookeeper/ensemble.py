"""The servers of a simulated ZooKeeper: one order of transactions, a tree on each server, sessions and watches.

Deterministic: time is an argument, and nothing here is random. A write is decided on the leader's tree and has its
place in the order at once; each server applies it when it is told to (`catch_up`), so a server may lag behind, and its
clients then read what was so a while ago. Watches belong to a server and a connection, as in ZooKeeper. A watch fires
when its own server applies the change.

Sessions end when nothing was heard of them for their timeout, rounded up to ticks. While there is no quorum nothing is
answered and no session ends; when there is a quorum again every session has its whole timeout before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from semel.cluster import session as zk
from semel.cluster.session import EventType, Result, WatchEvent
from semel.machines.znodes.operations import READ, Acl, Operation
from semel.simulation.zookeeper.tree import Change, Deleted, Identity, SetAcl, Transaction, Tree, allows


class Connection(Protocol):
    """A client's connection, as a server sees it: events go there, and it can be dropped."""

    @property
    def identities(self) -> tuple[Identity, ...]: ...

    def notify(self, event: WatchEvent, zxid: int) -> None: ...

    def drop(self) -> None: ...


@dataclass(slots=True)
class Session:
    id: int
    password: bytes
    timeout_ms: int
    #: When it ends, unless something is heard of it.
    ends_ms: int
    #: The connection that speaks for it. A request of an older one is dropped.
    connection: Connection | None = None


@dataclass(slots=True)
class _Waiting:
    """An answer that waits for its server to have applied a transaction."""

    zxid: int
    answer: Callable[[list[Result]], None]


@dataclass(slots=True)
class Server:
    """One server: its tree, the watches of its connections, and the answers that wait for it."""

    number: int
    tree: Tree
    up: bool = True
    #: Not up, and nobody is told: a connection to it is not refused, it hangs.
    frozen: bool = False
    data_watches: dict[str, dict[Connection, None]] = field(default_factory=dict)
    child_watches: dict[str, dict[Connection, None]] = field(default_factory=dict)
    connections: dict[Connection, None] = field(default_factory=dict)
    waiting: list[_Waiting] = field(default_factory=list)

    def apply(self, transaction: Transaction) -> None:
        results, events = self.tree.apply(transaction)
        for event, acl in events:
            self._fire(event, acl, transaction.zxid)
        ready = [entry for entry in self.waiting if entry.zxid <= transaction.zxid]
        self.waiting = [entry for entry in self.waiting if entry.zxid > transaction.zxid]
        for entry in ready:
            entry.answer(results)

    def _fire(self, event: WatchEvent, acl: tuple[Acl, ...], zxid: int) -> None:
        """Who may not read the node is not told, and its watch is gone all the same (ZooKeeper since 3.9.2)."""
        if event.type is EventType.CHILDREN:
            told = self.child_watches.pop(event.path, {})
        else:
            told = self.data_watches.pop(event.path, {})
            if event.type is EventType.DELETED:
                told = {**told, **self.child_watches.pop(event.path, {})}
        for connection in told:
            if allows(acl, READ, connection.identities):
                connection.notify(event, zxid)

    def watch(self, connection: Connection, path: str, *, children: bool) -> None:
        table = self.child_watches if children else self.data_watches
        table.setdefault(path, {})[connection] = None

    def forget(self, connection: Connection) -> None:
        """A connection is gone, and its watches with it."""
        self.connections.pop(connection, None)
        for table in (self.data_watches, self.child_watches):
            for path in [path for path, watchers in table.items() if watchers.pop(connection, 1) is None]:
                if not table[path]:
                    del table[path]


class Ensemble:
    def __init__(self, servers: int = 1, *, tick_ms: int = 2_000, first_session_id: int = 0x1000) -> None:
        self.tick_ms = tick_ms
        self.servers = [Server(number, Tree()) for number in range(servers)]
        #: The newest tree: what the leader decides on.
        self.newest = Tree()
        self.sessions: dict[int, Session] = {}
        #: Transactions that some running server has not applied yet.
        self._log: list[Transaction] = []
        self._next_session_id = first_session_id
        #: Called after each new transaction. It sees to it that `catch_up` is called for every server, later: whoever
        #: made the transaction first says that it waits for it.
        self.on_transaction: Callable[[], None] = lambda: None

    @property
    def has_quorum(self) -> bool:
        return 2 * sum(server.up for server in self.servers) > len(self.servers)

    # --- servers

    def stop(self, number: int, *, silently: bool = False) -> None:
        """A server dies; its clients see their connections end, or, silently, hear nothing any more."""
        server = self.servers[number]
        server.up = False
        server.frozen = silently
        for each in [server] if self.has_quorum else self.servers:
            each.waiting.clear()
            for connection in list(each.connections):
                each.forget(connection)
                if not each.frozen:
                    connection.drop()

    def start(self, number: int, now_ms: int) -> None:
        """A server comes back with all that was decided. The first quorum gives every session its whole timeout."""
        had_quorum = self.has_quorum
        server = self.servers[number]
        server.up = True
        server.frozen = False
        server.tree = self.newest.copy()
        if not had_quorum and self.has_quorum:
            for session in self.sessions.values():
                session.ends_ms = self._deadline(session.timeout_ms, now_ms)

    def catch_up(self, number: int, to_zxid: int | None = None) -> None:
        """A server applies what was decided, up to `to_zxid` or all of it."""
        server = self.servers[number]
        if not server.up:
            return
        for transaction in list(self._log):
            if server.tree.zxid < transaction.zxid and (to_zxid is None or transaction.zxid <= to_zxid):
                server.apply(transaction)
        behind = min((each.tree.zxid for each in self.servers if each.up), default=self.newest.zxid)
        while self._log and self._log[0].zxid <= behind:
            self._log.pop(0)

    # --- sessions

    def connect(
        self, session_id: int, password: bytes, timeout_ms: int, connection: Connection, number: int, now_ms: int
    ) -> Session | None:
        """A new session (`session_id` 0) or one that goes on; None if that one is over or the password is wrong."""
        if session_id == 0:
            timeout_ms = min(max(timeout_ms, 2 * self.tick_ms), 20 * self.tick_ms)
            session_id = self._next_session_id
            self._next_session_id += 1
            session = Session(session_id, session_id.to_bytes(16, "big"), timeout_ms, 0)
            self.sessions[session_id] = session
            self._commit((), now_ms)
        else:
            known = self.sessions.get(session_id)
            if known is None or known.password != password:
                return None
            session = known
        if session.connection is not None and session.connection is not connection:
            self._disconnect(session.connection)
        session.connection = connection
        self.servers[number].connections[connection] = None
        self.heard(session, now_ms)
        return session

    def _disconnect(self, connection: Connection) -> None:
        for server in self.servers:
            server.forget(connection)
        connection.drop()

    def heard(self, session: Session, now_ms: int) -> None:
        session.ends_ms = self._deadline(session.timeout_ms, now_ms)

    def _deadline(self, timeout_ms: int, now_ms: int) -> int:
        return ((now_ms + timeout_ms) // self.tick_ms + 1) * self.tick_ms

    def next_end_ms(self) -> int | None:
        """When `expire` has something to do, if nothing is heard until then."""
        return min((session.ends_ms for session in self.sessions.values()), default=None)

    def expire(self, now_ms: int) -> list[int]:
        """Ends the sessions whose time is over, unless there is no quorum to decide it."""
        if not self.has_quorum:
            return []
        over = [session for session in self.sessions.values() if session.ends_ms <= now_ms]
        for session in over:
            self.end_session(session, now_ms)
            if session.connection is not None:
                self._disconnect(session.connection)
        return [session.id for session in over]

    def end_session(self, session: Session, now_ms: int) -> int:
        """Closed by its client, or over: its ephemeral nodes go in one transaction. Its zxid."""
        del self.sessions[session.id]
        paths = sorted(self.newest.ephemerals.get(session.id, ()))
        zxid = self._commit(tuple(Deleted(path) for path in paths), now_ms)
        self.newest.ephemerals.pop(session.id, None)
        return zxid

    # --- writing

    def write(
        self, session: Session, operations: Sequence[Operation | SetAcl], identities: Iterable[Identity], now_ms: int
    ) -> tuple[int, zk.MultiRefused | None]:
        """The zxid that the request got, and why it failed if it failed."""
        try:
            changes = self.newest.prepare(operations, session.id, identities)
        except zk.MultiRefused as refused:
            return self._commit((), now_ms), refused
        return self._commit(changes, now_ms), None

    def _commit(self, changes: tuple[Change, ...], now_ms: int) -> int:
        transaction = Transaction(self.newest.zxid + 1, now_ms, changes)
        self.newest.apply(transaction)
        self._log.append(transaction)
        self.on_transaction()
        return transaction.zxid

    def when_applied(self, number: int, zxid: int, answer: Callable[[list[Result]], None]) -> None:
        """Calls `answer` with the results once the server has applied this transaction, at once if it has."""
        server = self.servers[number]
        if server.tree.zxid >= zxid:
            answer([])
        else:
            server.waiting.append(_Waiting(zxid, answer))

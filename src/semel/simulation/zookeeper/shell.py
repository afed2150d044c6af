"""A simulated ZooKeeper on an event loop: delays, servers that lag, and the faults that a test or a workload asks for.

Time is the loop's time and randomness is an argument, so that on a virtual loop a run is repeated by its seed.

Faults: `stop` and `start` of a server (also `silently`, as a frozen process), a lagging server (`lag_ms`), and for one
client `SimulatedSession.cut` (requests, answers or both vanish), `lose_next_answer` (the change is made, the connection
drops) and `drop_connection`.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.cluster import session as zk
from semel.cluster.session import Result, WatchEvent
from semel.machines.znodes import operations as op
from semel.machines.znodes.operations import JUTE_MAX_BYTES, Operation
from semel.simulation.zookeeper.ensemble import Ensemble, Server, Session
from semel.simulation.zookeeper.tree import Identity, SetAcl, allows, need, without_hash

if TYPE_CHECKING:
    from semel.simulation.zookeeper.client import SimulatedSession


@dataclass(slots=True)
class Delays:
    """How long things take, each from a range. They may be changed at any time."""

    #: A message between a client and its server, one way.
    latency_ms: tuple[float, float] = (0, 0)
    #: From the decision to a server that knows it.
    lag_ms: tuple[float, float] = (0, 0)


class SimulatedZooKeeper:
    """The servers. `SimulatedSession(zookeeper)` is a client of them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        randomness: random.Random,
        *,
        servers: int = 1,
        tick_ms: int = 2_000,
        delays: Delays | None = None,
    ) -> None:
        self.loop = loop
        #: What the servers do happens in this context, and what a client does in its own, whoever sent the message.
        self.context = contextvars.copy_context()
        self.random = randomness
        self.delays = delays or Delays()
        #: The lag of single servers, where it is not that of `delays`.
        self.lag_of_server: dict[int, tuple[float, float]] = {}
        self.ensemble = Ensemble(servers, tick_ms=tick_ms)
        self.ensemble.on_transaction = self._spread
        self._expiry: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    @property
    def servers(self) -> Sequence[Server]:
        return self.ensemble.servers

    def stop(self, number: int, *, silently: bool = False) -> None:
        self.ensemble.stop(number, silently=silently)

    def start(self, number: int) -> None:
        self.ensemble.start(number, self.now_ms())
        self.expect_expiry()

    def lag(self, number: int, lag_ms: tuple[float, float]) -> None:
        """From now on this server learns of changes so much later."""
        self.lag_of_server[number] = lag_ms

    def close(self) -> None:
        """No more timers; for the end of a program that has it in memory."""
        if self._expiry is not None:
            self._expiry.cancel()

    def _spread(self) -> None:
        zxid = self.ensemble.newest.zxid
        for server in self.servers:
            lag_ms = self.random.uniform(*self.lag_of_server.get(server.number, self.delays.lag_ms))
            self.loop.call_later(lag_ms / 1000, self.ensemble.catch_up, server.number, zxid, context=self.context)

    def expect_expiry(self) -> None:
        """Looks at the sessions again when the first of them may be over."""
        ends_ms = self.ensemble.next_end_ms()
        if self._expiry is not None:
            if ends_ms is not None and self._expiry.when() * 1000 <= ends_ms and not self._expiry.cancelled():
                return  # it looks earlier anyway, and then sets the next time
            self._expiry.cancel()
            self._expiry = None
        if ends_ms is not None:
            self._expiry = self.loop.call_at(ends_ms / 1000, self._expire, context=self.context)

    def _expire(self) -> None:
        self._expiry = None
        if self.ensemble.has_quorum:  # `start` asks again
            self.ensemble.expire(self.now_ms())
            self.expect_expiry()


Answer = asyncio.Future[Any]


class Link:
    """One connection between a client and a server. Each direction keeps the order of its messages.

    Requests of one connection are carried out one after the other, as ZooKeeper does: a read that follows a write
    waits until its server has applied the write.
    """

    def __init__(self, zookeeper: SimulatedZooKeeper, client: SimulatedSession, number: int) -> None:
        self.zookeeper = zookeeper
        self.client = client
        self.number = number
        self.session: Session | None = None
        self.identities: tuple[Identity, ...] = ()
        #: The server has closed it, or has seen it closed.
        self.gone = False
        #: A message of it has vanished in a cut.
        self.has_lost = False
        self._up_at = 0.0
        self._down_at = 0.0
        self._waits: list[Callable[[], None]] = []
        self._busy = False

    @property
    def server(self) -> Server:
        return self.zookeeper.servers[self.number]

    def _latency_s(self) -> float:
        return self.zookeeper.random.uniform(*self.zookeeper.delays.latency_ms) / 1000

    def to_server(self, call: Callable[[], None]) -> None:
        self._up_at = max(self._up_at, self.zookeeper.loop.time() + self._latency_s() + self.client.requests_late_s)
        self.zookeeper.loop.call_at(self._up_at, self._arrive, call, context=self.zookeeper.context)

    def _arrive(self, call: Callable[[], None]) -> None:
        if self.client.requests_cut:
            self.has_lost = True
            return
        if self.gone:
            return
        if not self.server.up or not self.zookeeper.ensemble.has_quorum:
            if not self.server.frozen:
                self.drop()
            return
        if self._busy:
            self._waits.append(call)
        else:
            call()

    def to_client(self, call: Callable[[], None]) -> None:
        loop = self.client.loop
        self._down_at = max(self._down_at, loop.time() + self._latency_s())
        loop.call_at(self._down_at, self._deliver, call, context=self.client.context)

    def _deliver(self, call: Callable[[], None]) -> None:
        if self.client.answers_cut:
            self.has_lost = True
        else:
            call()

    # --- what the ensemble does to it

    def notify(self, event: WatchEvent, zxid: int) -> None:
        self.to_client(lambda: self.client.on_event(self, event, zxid))

    def drop(self) -> None:
        """The server closes it."""
        self.gone = True
        self.server.forget(self)
        self.to_client(lambda: self.client.on_dropped(self))

    def closed_by_client(self) -> None:
        """What the client sent before still arrives."""
        self.to_server(self._forget)

    def _forget(self) -> None:
        self.gone = True
        self.server.forget(self)

    # --- requests, on the server

    def _heard(self) -> Session | None:
        """The session that speaks here; None, and the connection is dropped, if it is over or speaks elsewhere."""
        session = self.session
        here = session is not None and session.connection is self and self in self.server.connections
        if session is None or not here or session.id not in self.zookeeper.ensemble.sessions:
            self.drop()
            return None
        self.zookeeper.ensemble.heard(session, self.zookeeper.now_ms())
        return session

    def connect(self, session_id: int, password: bytes, timeout_ms: int, seen_zxid: int) -> None:
        if self.server.tree.zxid < seen_zxid:
            self.drop()  # this server knows less than the client has seen
            return
        ensemble = self.zookeeper.ensemble
        session = ensemble.connect(session_id, password, timeout_ms, self, self.number, self.zookeeper.now_ms())
        self.zookeeper.expect_expiry()
        if session is None:
            self.gone = True
            self.to_client(lambda: self.client.on_refused(self))
            return
        self.session = session
        zxid = ensemble.newest.zxid if session_id == 0 else self.server.tree.zxid
        granted = (session.id, session.password, session.timeout_ms)

        def applied(_: list[Result]) -> None:
            self.to_client(lambda: self.client.on_connected(self, *granted))

        ensemble.when_applied(self.number, zxid, applied)

    def ping(self) -> None:
        if self._heard() is not None:
            self.to_client(lambda: self.client.on_heard(self))

    def write(self, operations: Sequence[Operation | SetAcl], size_bytes: int, answer: Answer) -> None:
        if size_bytes > JUTE_MAX_BYTES:
            self.drop()
            return
        session = self._heard()
        if session is None:
            return
        ensemble = self.zookeeper.ensemble
        zxid, refused = ensemble.write(session, operations, self.identities, self.zookeeper.now_ms())
        self._busy = True

        def applied(results: list[Result]) -> None:
            self._answer(answer, results if refused is None else refused, zxid)

        ensemble.when_applied(self.number, zxid, applied)

    def sync(self, answer: Answer) -> None:
        if self._heard() is not None:
            self._busy = True
            zxid = self.zookeeper.ensemble.newest.zxid
            self.zookeeper.ensemble.when_applied(self.number, zxid, lambda _: self._answer(answer, None, zxid))

    def close_session(self, answer: Answer) -> None:
        session = self._heard()
        if session is not None:
            zxid = self.zookeeper.ensemble.end_session(session, self.zookeeper.now_ms())
            self._busy = True
            self.zookeeper.ensemble.when_applied(self.number, zxid, lambda _: self._answer(answer, None, zxid))

    def exists(self, path: str, watch: bool, answer: Answer) -> None:
        def read() -> Any:
            node = self.server.tree.nodes.get(path)
            if node is not None:
                need(node.acl, op.READ, self.identities)
            if watch:
                self.server.watch(self, path, children=False)
            return None if node is None else node.stat()

        self._read(read, answer)

    def get(self, path: str, watch: bool, answer: Answer) -> None:
        def read() -> Any:
            node = self.server.tree.node(path)
            need(node.acl, op.READ, self.identities)
            if watch:
                self.server.watch(self, path, children=False)
            return node.data, node.stat()

        self._read(read, answer)

    def get_children(self, path: str, watch: bool, answer: Answer) -> None:
        def read() -> Any:
            node = self.server.tree.node(path)
            need(node.acl, op.READ, self.identities)
            if watch:
                self.server.watch(self, path, children=True)
            return sorted(node.children), node.stat()

        self._read(read, answer)

    def get_acl(self, path: str, answer: Answer) -> None:
        def read() -> Any:
            node = self.server.tree.node(path)
            need(node.acl, op.READ | op.ADMIN, self.identities)
            if not allows(node.acl, op.ADMIN, self.identities):  # then the hashes of passwords are not shown
                return tuple(map(without_hash, node.acl)), node.stat()
            return node.acl, node.stat()

        self._read(read, answer)

    def _read(self, read: Callable[[], Any], answer: Answer) -> None:
        if self._heard() is None:
            return
        try:
            outcome = read()
        except zk.ZooKeeperError as error:
            outcome = error
        self._answer(answer, outcome, self.server.tree.zxid)

    def _answer(self, answer: Answer, outcome: Any, zxid: int) -> None:
        self._busy = False
        if self.client.answers_to_lose:
            self.client.answers_to_lose -= 1
            self.drop()
            return
        self.to_client(lambda: self.client.on_answer(self, answer, outcome, zxid))
        while self._waits and not self._busy and not self.gone:
            self._waits.pop(0)()

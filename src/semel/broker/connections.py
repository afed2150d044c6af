"""Everybody who is connected, and the limits that connections count against.

Guarantees:

- No more connections than `max.connections`, and from one address no more than `max.connections.per.ip`.
- Connections that come faster than their quota allows are closed, after a pause that keeps the client from coming
  back at once.
- A connection that is idle for `connections.max.idle.ms` is closed.
- Connections do not take the last file descriptors: a log that cannot open its next segment takes no more writes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from semel.broker.net.connection import ServerConnection
from semel.broker.refusals import FEW_DESCRIPTORS, Refusals

if TYPE_CHECKING:
    from semel.broker.listeners import Listener
    from semel.broker.quotas import Quotas
    from semel.broker.security.gate import Gate
    from semel.broker.server import BrokerServer


TOO_MANY = "too many connections (max.connections, max.connections.per.ip)"
#: Of so many descriptors one is kept for files; so many at least, which is more than a listener accepts at once.
ONE_FOR_FILES_OF = 8
LEAST_FOR_FILES = 128


class Connections:
    """The open connections of a broker."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        #: In the order in which they came.
        self._open: dict[ServerConnection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._admits = True
        #: From this descriptor on there are too few left for files. The limit may be raised while the broker runs.
        self._first_for_files = first_descriptor_for_files()
        self.refusals = Refusals(broker)
        #: Set while nobody is connected.
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def not_read(self) -> int:
        """How many clients do not read their answers, and are not served until they do."""
        return sum(connection.is_not_read for connection in self._open)

    @property
    def muted(self) -> int:
        """How many clients are above their quota, and are not served for a while."""
        return sum(connection.is_muted for connection in self._open)

    def new(self, listener: Listener) -> ServerConnection:
        """The protocol of a new connection, for the listening sockets."""
        return _CountedConnection(self._broker, self, listener)

    def gate_of(self, connection: ServerConnection) -> Gate | None:
        """The gate that this connection had to pass; None on a listener without SASL."""
        return connection.gate if isinstance(connection, _CountedConnection) else None

    def is_for_brokers(self, listener_name: str) -> bool:
        """Whether this is the listener of brokers in a cluster, and clients have another one."""
        cluster = self._broker.cluster
        if cluster is None or len(self._broker.listening.listeners) < 2:
            return False
        return cluster.door.listener.name == listener_name

    def admit(self, connection: ServerConnection) -> str | None:
        """Count a new connection; or why it is refused."""
        address, settings = connection.peer[0], self._broker.settings
        if not self._admits or self._per_address[address] >= settings["max.connections.per.ip"]:
            return TOO_MANY
        # However many clients there are, other brokers come in.
        if not self.is_for_brokers(connection.listener_name):
            if len(self._open) >= settings["max.connections"]:
                return TOO_MANY
            if (own := _descriptor(connection.transport)) >= self._first_for_files:
                self._first_for_files = first_descriptor_for_files()
                if own >= self._first_for_files:
                    return FEW_DESCRIPTORS
        self._open[connection] = None
        self._all_gone.clear()
        self._per_address[address] += 1
        self._broker.metrics.connections_created += 1
        return None

    def forget(self, connection: ServerConnection) -> None:
        """A connection was closed."""
        if connection in self._open:
            del self._open[connection]
            if not self._open:
                self._all_gone.set()
            address = connection.peer[0]
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    def close_idle(self) -> None:
        """Close the connections that were silent since the last call."""
        for connection in tuple(self._open):
            if not connection.was_active():
                self._broker.metrics.connections_expired += 1
                if connection.is_not_read:
                    # A close would wait until the peer has read what was written.
                    connection.transport.abort()
                else:
                    connection.close()

    async def close_all(self, timeout_s: float) -> None:
        """Admit nobody, let what is being served be answered, and close; after the timeout, abort."""
        self._admits = False
        for connection in tuple(self._open):
            connection.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_gone.wait()
        except TimeoutError:
            for connection in tuple(self._open):
                connection.transport.abort()


def first_descriptor_for_files() -> int:
    limit = -1
    with suppress(ImportError):  # not on Windows, where there is no such limit
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # A limit that is so low is mostly for files.
    return sys.maxsize if limit < 0 else limit - min(max(limit // ONE_FOR_FILES_OF, LEAST_FOR_FILES), limit // 2)


def _descriptor(transport: asyncio.Transport) -> int:
    """The system gives the lowest number that is free, so this says how many are in use. -1 in a simulated world."""
    own = transport.get_extra_info("socket")
    return -1 if own is None else int(own.fileno())


class _CountedConnection(ServerConnection):
    """A connection that counts against the limits."""

    def __init__(self, broker: BrokerServer, connections: Connections, listener: Listener) -> None:
        super().__init__(
            broker.dispatcher.serve,
            broker.handle_failure,
            broker.settings["socket.request.max.bytes"],
            broker.pool,
            broker.unread,
            broker.turns,
        )
        self._broker = broker
        self._connections = connections
        self.listener = listener
        self.endpoint = listener.endpoint
        self.listener_name = listener.name
        door = broker.listening.doors.get(listener.name)
        self.gate: Gate | None = None if door is None else door.new_gate(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.gate is not None:
            self.gate.open()
        if (why := self._connections.admit(self)) is not None:
            self.refuse(why)
        elif self._quotas and (wait_ms := self._quotas.connection_wait_ms(self.peer[0])):
            self._broker.metrics.quota_throttles += 1
            # Closed at once, the client would come back at once.
            self._broker.loop.call_later(wait_ms / 1000, self.refuse, "connections come too fast")
            self.mute(wait_ms / 1000)

    @property
    def _quotas(self) -> Quotas | None:
        """What limits how fast connections come: nothing where only other brokers come in."""
        return None if self._connections.is_for_brokers(self.listener_name) else self._broker.quotas

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.gate is not None:
            self.gate.close()
        self._connections.forget(self)

    def stalls(self, why: str) -> None:
        self._broker.metrics.stalled += 1
        super().stalls(why)

    def refused(self, why: str) -> None:
        self._connections.refusals.refused(self, why)

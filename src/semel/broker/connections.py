"""Everybody who is connected, and the limits that connections count against.

Guarantees:

- No more connections than `max.connections`, and from one address no more than `max.connections.per.ip`.
- Connections that come faster than their quota allows are closed, after a pause that keeps the client from coming
  back at once.
- A connection that is idle for `connections.max.idle.ms` is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from semel.broker.net.connection import ServerConnection
from semel.broker.refusals import Refusals

if TYPE_CHECKING:
    from semel.broker.listeners import Listener
    from semel.broker.quotas import Quotas
    from semel.broker.security.gate import Gate
    from semel.broker.server import BrokerServer


class Connections:
    """The open connections of a broker."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        #: In the order in which they came.
        self._open: dict[ServerConnection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._admits = True
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

    def admit(self, connection: ServerConnection) -> bool:
        """Count a new connection; False if there are too many."""
        address, settings = connection.peer[0], self._broker.settings
        # However many clients there are, other brokers come in.
        is_full = len(self._open) >= settings["max.connections"]
        if (
            not self._admits
            or (is_full and not self.is_for_brokers(connection.listener_name))
            or self._per_address[address] >= settings["max.connections.per.ip"]
        ):
            return False
        self._open[connection] = None
        self._all_gone.clear()
        self._per_address[address] += 1
        self._broker.metrics.connections_created += 1
        return True

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
        if not self._connections.admit(self):
            self.refuse("too many connections (max.connections, max.connections.per.ip)")
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

"""The listening sockets: one for each listener of the settings, and the metrics port.

Guarantees:

- All addresses are taken before anything is written to disk, and nobody is let in before the logs are open.
- An address that cannot be had is refused with the reason and what to do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from semel.broker.listeners import Listener, advertised_listener, bind_error, client_listeners, size_buffers

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

BACKLOG = 512


class Listening:
    """The sockets a broker listens on."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._servers: list[asyncio.Server] = []
        #: The address that clients are told to connect to.
        self.endpoint: tuple[str, int] = ("", 0)
        self.metrics_port: int | None = None

    async def bind(self) -> None:
        """Take the addresses; nobody is let in before `start`."""
        settings = self._broker.settings
        listeners = client_listeners(settings)
        for listener in listeners:
            try:
                self._servers.append(await self._bind(listener))
            except OSError as error:
                raise bind_error(listener, error) from error
        bound_port = self._servers[0].sockets[0].getsockname()[1]
        self.endpoint = advertised_listener(settings, listeners[0], bound_port)
        if settings["semel.metrics.port"] >= 0:
            host, port = settings["semel.metrics.host"], settings["semel.metrics.port"]
            await self._bind_metrics(Listener("METRICS", host, port))

    async def _bind(self, listener: Listener) -> asyncio.Server:
        host: str | None = listener.host
        if not host:
            # None is every address of both families. With port 0 each family would get a port of its own.
            host = None if listener.port else "0.0.0.0"
        broker = self._broker
        server = await broker.loop.create_server(
            broker.connections.new, host, listener.port, backlog=BACKLOG, start_serving=False
        )
        size_buffers(
            server.sockets, broker.settings["socket.send.buffer.bytes"], broker.settings["socket.receive.buffer.bytes"]
        )
        return server

    async def _bind_metrics(self, listener: Listener) -> None:
        from semel.broker.observability.endpoint import serve_metrics

        try:
            server = await serve_metrics(self._broker, listener.host, listener.port)
        except OSError as error:
            raise bind_error(listener, error) from error
        self._servers.append(server)
        self.metrics_port = server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Let clients in."""
        for server in self._servers:
            await server.start_serving()

    def close(self) -> None:
        """Let nobody in any more."""
        for server in self._servers:
            server.close()

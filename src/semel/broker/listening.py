"""The listening sockets: one for each listener of the settings, and the metrics port.

Guarantees:

- All addresses are taken before anything is written to disk, and nobody is let in before the logs are open.
- An address that cannot be had is refused with the reason and what to do.
- A setting for one listener that would not reach it is refused: it might be the one that asks for certificates.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from semel.broker.listeners import (
    Listener,
    advertised_listener,
    bind_error,
    client_listeners,
    is_listening,
    size_buffers,
)
from semel.broker.net.tls import TlsBuffer, TlsConnection
from semel.broker.tls_listeners import TlsListeners, TlsSide, read_side
from semel.config import ConfigError, Values
from semel.config.table import OF_A_LISTENER

if TYPE_CHECKING:
    from semel.broker.net.connection import ServerConnection
    from semel.broker.security.doors import Door
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

BACKLOG = 512
#: Settings that name a class of who runs the broker, and the class that Kafka has for it.
_CLASSES_OF_KAFKA = {
    "principal.builder.class": "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
    "ssl.engine.factory.class": "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",
}
_INSTEAD = {
    "principal.builder.class": "ssl.principal.mapping.rules and sasl.oauthbearer.sub.claim.name say who a client is",
    "ssl.engine.factory.class": "ssl.keystore.* and ssl.truststore.* say what a listener shows and trusts",
}


class Listening:
    """The sockets a broker listens on."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._servers: dict[asyncio.Server, Listener] = {}
        #: The listeners for clients, each with the address that its clients are told. The first is the main one.
        self.listeners: list[Listener] = []
        #: The listeners that ask who a client is, by name.
        self.doors: dict[str, Door] = {}
        self.metrics_port: int | None = None
        self._tls = TlsListeners()
        self._tls_buffer = TlsBuffer()
        self._is_reading_files = False

    async def bind(self) -> None:
        """Take the addresses; nobody is let in before `start`."""
        settings = self._broker.settings
        listeners = client_listeners(settings)
        _check_names(settings, listeners)
        _check_classes(settings)
        self._tls = TlsListeners(listeners, self._broker.now_ms)
        self._tls.use(self._tls.read(settings))
        for listener in listeners:
            if listener.has_sasl:
                from semel.broker.security.doors import Door

                self.doors[listener.name] = Door(self._broker, listener)
        for listener in listeners:
            try:
                await self._bind(listener)
            except OSError as error:
                raise bind_error(listener, error) from error
        if settings["semel.metrics.port"] >= 0:
            host, port = settings["semel.metrics.host"], settings["semel.metrics.port"]
            await self._bind_metrics(Listener("METRICS", host, port))

    @property
    def endpoint(self) -> tuple[str, int]:
        """The address that clients of the main listener are told to connect to."""
        return self.listeners[0].endpoint

    async def _bind(self, listener: Listener) -> None:
        host: str | None = listener.host
        if not host:
            # None is every address of both families. With port 0 each family would get a port of its own.
            host = None if listener.port else "0.0.0.0"
        broker = self._broker
        number = len(self.listeners)
        server = await broker.loop.create_server(
            # The listener's port may be known only now, so it is looked up when a client comes.
            lambda: self._new_connection(self.listeners[number]),
            host,
            listener.port,
            backlog=BACKLOG,
            start_serving=False,
        )
        self._servers[server] = listener
        size_buffers(
            server.sockets, broker.settings["socket.send.buffer.bytes"], broker.settings["socket.receive.buffer.bytes"]
        )
        bound_port = server.sockets[0].getsockname()[1]
        self.listeners.append(
            replace(listener, endpoint=advertised_listener(broker.settings, listener, bound_port))
        )

    def _new_connection(self, listener: Listener) -> asyncio.BufferedProtocol:
        connection = self._broker.connections.new(listener)
        if not listener.has_tls:
            return connection
        broker, side = self._broker, self._tls[listener.name]
        timeout_s = broker.settings["semel.authentication.timeout.ms"] / 1000
        identify = partial(side.identify, connection)
        turned_away = partial(self._turned_away, listener, connection) if side.asks_clients else None
        return TlsConnection(
            connection, side.context, identify, turned_away, broker.turns, self._tls_buffer, timeout_s
        )

    def _turned_away(self, listener: Listener, connection: ServerConnection, why: str) -> None:
        """A listener that asks for certificates has turned a client away."""
        self._broker.audit.authentication_failed(
            host=connection.peer[0], listener=listener.name, mechanism="SSL", principal="", why=why
        )

    # Keys and certificates

    async def read_tls(self, settings: Values) -> Mapping[str, TlsSide]:
        """What the listeners will show with these settings; ConfigError if it cannot be used. For `use_tls`."""
        return await self._broker.beside(partial(self._tls.read, settings))

    def use_tls(self, sides: Mapping[str, TlsSide]) -> None:
        """Show this to new connections."""
        self._tls.use(sides)

    def look_after_files(self) -> None:
        """Read keys and certificates again if their files have changed. A timer calls this."""
        if self._tls:
            self._tls.warn_of_ends(datetime.fromtimestamp(self._broker.now_ms() / 1000, UTC))
        if self._tls and not self._is_reading_files and (changed := self._tls.changed()):
            self._is_reading_files = True
            self._broker.spawn(self._read_again(changed))

    async def _read_again(self, changed: list[Listener]) -> None:
        try:
            for listener in changed:
                settings = self._broker.settings
                try:
                    side = await self._broker.beside(partial(read_side, settings, listener))
                except ConfigError as error:
                    self._tls.failed(listener, error)
                    continue
                # If the settings have changed meanwhile, it was read for them.
                if settings is self._broker.settings:
                    self._tls.use({listener.name: side})
                    logger.info("listener %s: a new certificate, until %s", listener.name, side.expires.isoformat())
        finally:
            self._is_reading_files = False

    async def _bind_metrics(self, listener: Listener) -> None:
        from semel.broker.observability.endpoint import serve_metrics

        try:
            server = await serve_metrics(self._broker, listener.host, listener.port)
        except OSError as error:
            raise bind_error(listener, error) from error
        self._servers[server] = listener
        self.metrics_port = server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Let clients in."""
        for server, listener in self._servers.items():
            try:
                await server.start_serving()
                if not server.sockets or not is_listening(server.sockets):
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            except OSError as error:
                raise bind_error(listener, error) from error
        for door in self.doors.values():
            door.start()

    def close(self) -> None:
        """Let nobody in any more."""
        for server in self._servers:
            server.close()


def _check_names(settings: Values, listeners: list[Listener]) -> None:
    """Refuse what is said for a listener in other letters than Kafka's, which are lower case: it would not count."""
    names = {listener.name for listener in listeners}
    for setting in sorted(settings.explicit):
        parts = OF_A_LISTENER.fullmatch(setting)
        if parts is None:
            continue
        name = parts["listener"]
        if name != name.lower() and name.upper() in names:
            raise ConfigError(f"{setting}: write the listener's name in lower case, listener.name.{name.lower()}.")
        if name.upper() not in names:
            logger.warning("%s: there is no listener %s; it has no effect", setting, name.upper())


def _check_classes(settings: Values) -> None:
    """Refuse Java classes that decide who a client is: without them, it would be somebody else."""
    for setting, value in settings.passed_by.items():
        name = next((name for name in _CLASSES_OF_KAFKA if setting.endswith(name)), None)
        if name is not None and value.strip() not in ("", _CLASSES_OF_KAFKA[name]):
            raise ConfigError(f"{setting}: Java classes cannot be loaded; {_INSTEAD[name]}")

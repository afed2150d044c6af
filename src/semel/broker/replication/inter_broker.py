"""How the brokers of a cluster reach each other: which listener they use, and how they show who they are.

Guarantees:

- The listener is that of `inter.broker.listener.name`, or the one of `security.inter.broker.protocol`. A broker that
  has none does not start.
- A connection to another broker is encrypted and authenticated as that listener asks for. The other broker's
  certificate must be for the name that it is reached by, unless `ssl.endpoint.identification.algorithm` is empty.
- New certificates are used for new connections, as on listeners.
- A broker that does not let itself in would not be let in by the others: it does not start, and says what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.broker.listeners import Listener
from semel.broker.tls_listeners import Stamp, stamps
from semel.config import ConfigError, Values, listener_settings
from semel.errors import AuthenticationFailed, Disconnected, KafkaError, TlsFailed
from semel.net.authentication import Authentication
from semel.net.connection import Connection
from semel.security.credentials import Credentials, parse_jaas
from semel.security.tls import client_context, files_of
from semel.wire.apis import APIS
from semel.wire.frames import parse_response, request_frame

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

#: What brokers can log in to each other with, and Kafka's class for it.
LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
#: How long a broker tries to reach itself, and another, at its start.
CHECK_TIMEOUT_S = 10.0
#: When of a login's time brokers log in again.
RENEWED_AFTER = 0.7


def inter_broker_listener(settings: Values, listeners: list[Listener]) -> Listener:
    """The listener that brokers use among themselves; ConfigError if there is none."""
    name, protocol = settings["inter.broker.listener.name"], settings["security.inter.broker.protocol"]
    if name is not None:
        if "security.inter.broker.protocol" in settings.explicit:
            raise ConfigError(
                "inter.broker.listener.name and security.inter.broker.protocol: give one of them; the listener has a "
                "protocol by listener.security.protocol.map"
            )
        found = [one for one in listeners if one.name == name.upper()]
        if not found:
            there = ", ".join(one.name for one in listeners)
            raise ConfigError(f"inter.broker.listener.name={name}: there is no such listener; there are {there}")
        return found[0]
    # In Kafka the listener of a protocol is the one of that name.
    found = [one for one in listeners if one.name == protocol] or [one for one in listeners if one.protocol == protocol]
    if not found:
        raise ConfigError(
            f"security.inter.broker.protocol={protocol}: brokers speak {protocol} among themselves, and no listener "
            "does; name the listener that they use in inter.broker.listener.name"
        )
    return found[0]


class _PeerSettings:
    """The settings of a client, as a broker has them for its connections to other brokers."""

    def __init__(self, settings: Values, listener: Listener) -> None:
        self._own = listener_settings(settings, listener.name)
        self._protocol = listener.protocol

    def __getitem__(self, name: str) -> Any:
        if name == "security.protocol":
            return self._protocol
        return True if name == "enable.ssl.certificate.verification" else self._own[name]


class PeerDoor:
    """Opens connections to other brokers, as the listener between brokers asks for."""

    def __init__(self, broker: BrokerServer, listener: Listener) -> None:
        self._broker = broker
        self.listener = listener
        self._context: tuple[ssl.SSLContext, Values, Mapping[str, Stamp]] | None = None
        self._authentication: Authentication | None = None
        if listener.has_sasl:
            credentials = _credentials(broker.settings, listener, broker.listening.doors[listener.name].mechanisms)
            self._authentication = Authentication(credentials, broker.environment.chance)

    async def prepare(self) -> PeerDoor:
        """Read what TLS needs; ConfigError if it cannot be used."""
        if self.listener.has_tls:
            await self._tls()
        return self

    @property
    def is_secured(self) -> bool:
        return self.listener.has_tls or self.listener.has_sasl

    async def open(self, host: str, port: int) -> tuple[Connection, float | None]:
        """A connection, and after how many seconds to log in again; None: never.

        `Disconnected` if nobody is there, `TlsFailed` and `AuthenticationFailed` if trying again would not help.
        """
        tls = await self._tls() if self.listener.has_tls else None
        connection = await Connection.open(host, port, tls=tls)
        return connection, await self.renew(connection)

    async def renew(self, connection: Connection) -> float | None:
        """Log in, the first time or again. Nothing else may be sent on the connection meanwhile."""
        if self._authentication is None:
            return None

        async def exchange(message: Any) -> Any:
            api = APIS[type(message).__about__.key]
            number = connection.next_correlation_id()
            frame = await connection.send(
                request_frame(api.key, api.max_version, number, self._broker.cluster_client_id, message), number
            )
            return parse_response(api.key, api.max_version, frame)[1]

        try:
            lifetime_s = await self._authentication.run(exchange, connection.address)
        except BaseException:
            connection.close()
            raise
        # Sooner than a client: what waits at the other broker before it is served must not be too late.
        return None if lifetime_s is None else lifetime_s * RENEWED_AFTER

    async def _tls(self) -> ssl.SSLContext:
        settings = self._broker.settings
        own = _PeerSettings(settings, self.listener)
        seen = stamps(files_of(own))
        if self._context is None or self._context[1] is not settings or self._context[2] != seen:
            try:
                context = await self._broker.beside(partial(client_context, own))
            except ConfigError as error:
                if self._context is None:
                    raise ConfigError(f"listener {self.listener.name}, between brokers: {error}") from None
                logger.error("to other brokers the certificate stays as it was: %s", error)
                context = self._context[0]
            assert context is not None
            self._context = context, settings, seen
        return self._context[0]

    # At the start

    async def check(self, others: Mapping[int, tuple[str, int] | None]) -> None:
        """Whether we, and at least one of the other brokers that can be reached, would let us in; ConfigError if not.

        Kafka starts, and then fails to replicate for as long as it lives.
        """
        if not self.is_secured:
            return
        refused = await self._refusal(*self.listener.endpoint)
        if refused is not None:
            raise ConfigError(self._words("this broker would not let itself in", refused))
        reached = {
            number: await self._refusal(*address) for number, address in others.items() if address is not None
        }
        for number, why in reached.items():
            if why is not None:
                logger.error("%s", self._words(f"broker {number} does not let us in", why))
        if reached and all(why is not None for why in reached.values()):
            number, why = next(iter(reached.items()))
            assert why is not None
            raise ConfigError(self._words(f"broker {number} does not let us in", why))

    def _words(self, what: str, why: KafkaError) -> str:
        named = f"listener.name.{self.listener.name.lower()}."
        if isinstance(why, AuthenticationFailed):
            mechanism = str(self._broker.settings["sasl.mechanism.inter.broker.protocol"]).lower()
            hint = f"check {named}{mechanism}.sasl.jaas.config, which has the user and the password of the brokers"
        else:
            hint = f"check {named}ssl.keystore.location and {named}ssl.truststore.location"
        return f"listener {self.listener.name}, between brokers: {what}: {why.why}; {hint}"

    async def _refusal(self, host: str, port: int) -> KafkaError | None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                (await self.open(host, port))[0].close()
        except (AuthenticationFailed, TlsFailed) as error:
            return error
        except (Disconnected, TimeoutError) as error:
            # Perhaps the address leads here only from other machines, or the other broker has just gone.
            logger.info("%s:%d was not reached to check how brokers log in: %s", host, port, error)
        return None


def _credentials(settings: Values, listener: Listener, enabled: Mapping[str, object]) -> Credentials:
    """Who this broker is for the others."""
    mechanism = settings["sasl.mechanism.inter.broker.protocol"].upper()
    if mechanism not in LOGINS:
        why = "GSSAPI (Kerberos), Kafka's default, is not spoken here" if mechanism == "GSSAPI" else "it is not served"
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol={mechanism}: {why}; brokers log in to each other with one of "
            f"{', '.join(LOGINS)}"
        )
    if mechanism not in enabled:
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol={mechanism}: listener {listener.name} does not offer it; add it to "
            "sasl.enabled.mechanisms"
        )
    own = listener_settings(settings, listener.name)
    setting = f"listener.name.{listener.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
    text = own.own(f"{mechanism.lower()}.sasl.jaas.config") or own["sasl.jaas.config"]
    if not text:
        raise ConfigError(
            f"{setting}: brokers log in to each other by {mechanism}, and need a user and a password: "
            f'{LOGINS[mechanism]} required username="NAME" password="PASSWORD";'
        )
    line = parse_jaas(text, setting)
    if line.module != LOGINS[mechanism].rpartition(".")[2]:
        raise ConfigError(f"{setting}: {line.module} is not for {mechanism}")
    user, password = line.options.get("username", ""), line.options.get("password", "")
    if not user or not password:
        raise ConfigError(f"{setting}: username and password, with which brokers log in to each other, are missing")
    return Credentials(mechanism, user, password)

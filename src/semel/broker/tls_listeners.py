"""What each TLS listener shows its clients and whom it trusts, from the settings of the listener.

Guarantees:

- A broker whose key, certificate or trust store cannot be used does not start.
- When a file has changed, new connections get what is in it now, and connections that are open stay as they are. A file
  that cannot be used changes nothing: the log says once what is wrong with it. A file that is being written is left
  alone until it rests.
- The log tells a week before its own certificate ends, and when it has ended, also while the broker runs.
- A listener asks its clients for certificates as `ssl.client.auth` says. On a SASL_SSL listener, where clients say
  otherwise who they are, that holds only if it is set for this listener, as in Kafka.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from semel.broker.listeners import Listener
from semel.broker.net.connection import ServerConnection
from semel.config import ConfigError, ListenerSettings, Values, listener_settings
from semel.environment import MACHINE
from semel.machines.security.distinguished_names import subject_of, valid_until
from semel.machines.security.principals import USER, MappingRule, Principal, map_name, parse_mapping_rules
from semel.security.tls import files_of, server_context

logger = logging.getLogger(__name__)

#: How long before its end a certificate is warned of.
SOON = timedelta(days=7)

#: Which file is there, by device, number, size and time of its last change; None where there is none.
Stamp = tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class TlsSide:
    """The broker's side of new connections."""

    context: ssl.SSLContext
    rules: tuple[MappingRule, ...]
    #: Whether a client's certificate says who it is. On a SASL listener something else does.
    names_clients: bool
    #: The files it was read from, as they were then.
    stamps: Mapping[str, Stamp]
    expires: datetime

    @property
    def asks_clients(self) -> bool:
        """Whether clients may or must show a certificate."""
        return self.context.verify_mode is not ssl.CERT_NONE

    def identify(self, connection: ServerConnection, tls: ssl.SSLObject) -> None:
        """Take the client's name from its certificate. ValueError if no rule fits it."""
        certificate = tls.getpeercert(binary_form=True) if self.names_clients else None
        if certificate is not None:
            connection.authenticated(Principal(USER, map_name(self.rules, subject_of(certificate))))


class TlsListeners:
    """The TLS sides of a broker's listeners, by their names."""

    def __init__(self, listeners: Iterable[Listener] = (), now_ms: Callable[[], int] = MACHINE.now_ms) -> None:
        self._now_ms = now_ms
        self._listeners = [one for one in listeners if one.has_tls]
        self._sides: dict[str, TlsSide] = {}
        #: The files of each listener as they were at the last look, and when they were last read with no success.
        self._looked: dict[str, Mapping[str, Stamp]] = {}
        self._failed: dict[str, Mapping[str, Stamp]] = {}
        #: Of which listeners it was told that the certificate ends soon (False) or has ended (True).
        self._told: dict[str, bool] = {}

    def __getitem__(self, listener_name: str) -> TlsSide:
        return self._sides[listener_name]

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def read(self, settings: Values) -> dict[str, TlsSide]:
        """The sides of all listeners as the settings have them. ConfigError says what is wrong with which listener.

        Nothing is changed, so a thread may do it.
        """
        return {listener.name: read_side(settings, listener) for listener in self._listeners}

    def use(self, sides: Mapping[str, TlsSide]) -> None:
        """Let new connections have these."""
        for name, side in sides.items():
            self._sides[name] = side
            self._failed.pop(name, None)
            self._told.pop(name, None)
        self.warn_of_ends(datetime.fromtimestamp(self._now_ms() / 1000, UTC))

    def warn_of_ends(self, now: datetime) -> None:
        """Tell once that a certificate ends soon, and once that it has ended."""
        for name, side in self._sides.items():
            if side.expires - SOON > now:
                continue
            has_ended = side.expires <= now
            if self._told.get(name) is has_ended:
                continue
            self._told[name] = has_ended
            if has_ended:
                logger.warning(
                    "listener %s: its certificate has expired at %s; clients that check it will not connect",
                    name, side.expires.isoformat(),
                )
            else:
                logger.warning(
                    "listener %s: its certificate expires at %s; put a new one in its place, it is read without a "
                    "restart", name, side.expires.isoformat(),
                )

    def changed(self) -> list[Listener]:
        """The listeners whose files are others than those that were read, and have not changed since the last look."""
        found = []
        for listener in self._listeners:
            name = listener.name
            side = self._sides[name]
            now = stamps(side.stamps)
            if now not in (side.stamps, self._failed.get(name)) and now == self._looked.get(name):
                found.append(listener)
            self._looked[name] = now
        return found

    def failed(self, listener: Listener, error: ConfigError) -> None:
        """Changed files of this listener cannot be used."""
        self._failed[listener.name] = self._looked[listener.name]
        logger.error("the certificate stays as it was: %s", error)


def read_side(settings: Values, listener: Listener) -> TlsSide:
    """One listener's side, from its files."""
    own = listener_settings(settings, listener.name)
    try:
        # Looked at before they are read: what changes meanwhile is seen as a change.
        seen = stamps(files_of(own))
        rules = parse_mapping_rules(own["ssl.principal.mapping.rules"])
        context, certificate = server_context(own, asks_clients=_asks_clients(own, listener))
        expires = valid_until(certificate)
    except ValueError as error:
        raise ConfigError(f"listener {listener.name}: {error}") from None
    return TlsSide(context, rules, not listener.has_sasl, seen, expires)


def stamps(files: Iterable[str]) -> dict[str, Stamp]:
    """The files as they are now."""
    return {path: _stamp(path) for path in files}


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _asks_clients(own: ListenerSettings, listener: Listener) -> str:
    asks: str = own["ssl.client.auth"]
    return (own.own("ssl.client.auth") or "none") if listener.has_sasl else asks

"""The session with ZooKeeper, as the broker's settings have it: encrypted, and with an identity.

Guarantees: an address, a file or a password that cannot be used is refused before anything connects. With
`zookeeper.set.acl` there is an identity, so that nodes never end up with nobody who may change them. The log says when
ZooKeeper goes away and when it is back, once each.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from typing import TYPE_CHECKING, Any

from semel.cluster.session import (
    AuthFailed,
    ConnectionLoss,
    MultiRefused,
    NoAuth,
    SessionExpired,
    SessionState,
    ZooKeeperError,
)
from semel.config import ConfigError, Values
from semel.machines.znodes.values import UnreadableZnode
from semel.security.tls import client_context

if TYPE_CHECKING:
    from semel.cluster.zookeeper import KazooSession

logger = logging.getLogger(__name__)

_SERVER = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s\[\]:/,]+)(?::(?P<port>[0-9]{1,5}))?")
#: What the settings of ZooKeeper have no name for.
_NOT_THERE = frozenset(
    (
        "ssl.key.location",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.truststore.certificates",
    )
)


class _ZooKeeperTls:
    """The settings of a client, as they are given for ZooKeeper."""

    def __init__(self, settings: Values) -> None:
        self._settings = settings

    def __getitem__(self, name: str) -> Any:
        if name == "security.protocol":
            return "SSL"
        if name == "enable.ssl.certificate.verification":
            return True
        return None if name in _NOT_THERE else self._settings[f"zookeeper.{name}"]


def check_address(connect: str) -> None:
    """Refuse a `zookeeper.connect` that is no list of hosts, each with a port if it is not 2181, and a chroot.

    >>> check_address("zk-1:2181,zk-2,[::1]:2181/semel")
    """
    hosts, slash, chroot = connect.partition("/")
    names = chroot.removesuffix("/").split("/")
    if "," in chroot:
        raise ConfigError(
            f"zookeeper.connect={connect}: the chroot comes once, after the last host; expected for example "
            "zk-1:2181,zk-2:2181,zk-3:2181/semel"
        )
    for server in hosts.split(","):
        found = _SERVER.fullmatch(server.strip())
        if found is None or not 0 < int(found["port"] or 2181) < 2**16:
            raise ConfigError(
                f"zookeeper.connect={connect}: {server.strip() or 'nothing'!r} is not HOST:PORT; expected for example "
                "zk-1:2181,zk-2:2181,zk-3:2181/semel"
            )
    if slash and chroot and not all(names):
        raise ConfigError(f"zookeeper.connect={connect}: the chroot /{chroot} has an empty name in it")
    if {".", ".."} & {*names}:
        raise ConfigError(f"zookeeper.connect={connect}: ZooKeeper has no names . and .. in a chroot")


def _unknown_hosts(connect: str) -> list[str]:
    """The hosts whose names cannot be found: kazoo passes over them."""
    unknown = []
    for server in connect.partition("/")[0].split(","):
        host = server.strip().rpartition(":")[0] or server.strip()
        try:
            socket.getaddrinfo(host.strip("[]"), None)
        except OSError:
            unknown.append(host)
    return unknown


def why_no_start(error: BaseException, settings: Values) -> ConfigError | None:
    """What ZooKeeper said, or has, that a start cannot go on with, in words; None if it was something else."""
    where = f"zookeeper.connect={settings['zookeeper.connect']}"
    if isinstance(error, UnreadableZnode):
        return ConfigError(f"{where}: {error}. Is it a broker's ZooKeeper, and the right chroot?")
    if not isinstance(error, ZooKeeperError):
        return None
    denied = error.error if isinstance(error, MultiRefused) else error
    if isinstance(denied, AuthFailed):
        return ConfigError(
            f"{where}: ZooKeeper asks for an identity that this broker did not show, or does not accept it. See "
            "semel.zookeeper.digest, or zookeeper.ssl.keystore.location; SASL to ZooKeeper is not spoken"
        )
    if isinstance(denied, NoAuth):
        return ConfigError(
            f"{where}: ZooKeeper does not let this broker read or write what is there. Give it the identity of the "
            "other brokers (semel.zookeeper.digest, or zookeeper.ssl.keystore.location), or another chroot"
        )
    if not isinstance(denied, (ConnectionLoss, SessionExpired)):
        return ConfigError(
            f"{where}: ZooKeeper refuses what a broker begins with ({type(denied).__name__}). Is the chroot one for "
            "brokers?"
        )
    return ConfigError(
        f"{where}: ZooKeeper went away while the broker started ({error}). Start it again when ZooKeeper "
        "answers"
    )


class Absences:
    """Says in the log when ZooKeeper goes away, once, and when it is back."""

    def __init__(self) -> None:
        self._is_away = False

    def noted(self, state: SessionState) -> None:
        """The session is in this state now."""
        if state is SessionState.CONNECTED and self._is_away:
            logger.warning("ZooKeeper answers again")
        elif state is SessionState.SUSPENDED and not self._is_away:
            logger.warning(
                "ZooKeeper does not answer: records are written and read as before, elections and changes of topics, "
                "settings and users wait. It is tried again until that is over"
            )
        self._is_away = state is not SessionState.CONNECTED


async def open_session(settings: Values) -> KazooSession:
    """A session that is connected; ConfigError says what is in the way."""
    try:
        from semel.cluster.zookeeper import KazooSession
    except ImportError as error:
        raise ConfigError(
            f"zookeeper.connect needs kazoo, a client of ZooKeeper ({error}): pip install 'semel[cluster]'"
        ) from None
    address, timeout_ms = settings["zookeeper.connect"], settings["zookeeper.session.timeout.ms"]
    check_address(address)
    if logging.getLogger().getEffectiveLevel() >= logging.WARNING:
        # It tells every attempt to connect, many times a second. The broker says itself that ZooKeeper is away.
        logging.getLogger("kazoo").setLevel(logging.ERROR)
    digest, has_tls = settings["semel.zookeeper.digest"], settings["zookeeper.ssl.client.enable"]
    if digest is not None and not all(digest.partition(":")[::2]):
        raise ConfigError("semel.zookeeper.digest: expected USER:PASSWORD")
    if settings["zookeeper.set.acl"] and not digest and not (has_tls and settings["zookeeper.ssl.keystore.location"]):
        raise ConfigError(
            "zookeeper.set.acl: ZooKeeper has to know who the brokers are; set semel.zookeeper.digest, or "
            "zookeeper.ssl.client.enable with zookeeper.ssl.keystore.location"
        )
    try:
        tls = client_context(_ZooKeeperTls(settings)) if has_tls else None
    except ConfigError as error:
        raise ConfigError(f"to ZooKeeper (zookeeper.ssl.): {error}") from None
    session = KazooSession(
        address, session_timeout_ms=timeout_ms, digest=digest, tls=tls, owns_nodes=settings["zookeeper.set.acl"]
    )
    try:
        await session.open(timeout_ms=settings["zookeeper.connection.timeout.ms"] or timeout_ms)
        session.add_listener(Absences().noted)
        return session
    except ConnectionLoss as error:
        unknown = await asyncio.to_thread(_unknown_hosts, address)
        why = f"{error}; there is no host {', '.join(unknown)}" if unknown else str(error)
        raise ConfigError(
            f"zookeeper.connect={address}: {why}. Is ZooKeeper running there? A broker that is alone needs none: "
            "leave the setting out"
        ) from None
    except ZooKeeperError as error:  # what the chroot cannot be made for
        await session.close()
        raise why_no_start(error, settings) or error from None

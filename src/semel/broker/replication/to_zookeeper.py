"""The session with ZooKeeper, as the broker's settings have it: encrypted, and with an identity.

Guarantees: a file or a password that cannot be used is refused before anything connects. With `zookeeper.set.acl` there
is an identity, so that nodes never end up with nobody who may change them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.cluster.session import ZooKeeperError
from semel.config import ConfigError, Values
from semel.security.tls import client_context

if TYPE_CHECKING:
    from semel.cluster.zookeeper import KazooSession

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


async def open_session(settings: Values) -> KazooSession:
    """A session that is connected; ConfigError says what is in the way."""
    try:
        from semel.cluster.zookeeper import KazooSession
    except ImportError as error:
        raise ConfigError(
            f"zookeeper.connect needs kazoo, a client of ZooKeeper ({error}): pip install 'semel[cluster]'"
        ) from None
    address, timeout_ms = settings["zookeeper.connect"], settings["zookeeper.session.timeout.ms"]
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
        return await session.open(timeout_ms=settings["zookeeper.connection.timeout.ms"] or timeout_ms)
    except ZooKeeperError as error:
        raise ConfigError(
            f"zookeeper.connect={address}: {error}. Is ZooKeeper running there? A broker that is alone needs none: "
            "leave the setting out"
        ) from None

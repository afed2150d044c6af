"""Where a broker listens and which address it advertises, from Kafka's own settings.

Guarantees:

- A listener has a name, `NAME://host:port`, and `listener.security.protocol.map` gives its protocol. A protocol that
  is not served is refused: it would promise security that is not there.
- Each listener has its own address for clients. A client is told the addresses of the listener it came by.
- Listeners of the controller (`controller.listener.names`) are left out: a single node holds no elections.
- `NAME://:9092` listens on every address, as in Kafka.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations

from semel.config import ConfigError, Values
from semel.config.security import SECURITY_PROTOCOLS

PLAINTEXT = "PLAINTEXT"
_EVERYWHERE = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener: its name, its address and how its connections are protected."""

    name: str
    host: str
    port: int
    protocol: str = PLAINTEXT
    #: The address that its clients are told to connect to; known once it is bound.
    endpoint: tuple[str, int] = ("", 0)

    @property
    def has_tls(self) -> bool:
        """Whether its connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether its clients say who they are by SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def is_everywhere(self) -> bool:
        """Whether it listens on all addresses: then its own address is none that a client could connect to."""
        return self.host in _EVERYWHERE

    def __str__(self) -> str:
        return address_text(self.host, self.port)


def address_text(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_listener(text: str) -> Listener:
    """A listener as Kafka writes it, NAME://host:port; without a name it is PLAINTEXT."""
    name, sign, rest = text.rpartition("://")
    host, colon, port = rest.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    legal = colon and port.isascii() and port.isdigit() and int(port) <= 65535
    forms = (f"[{bare}]",) if ":" in bare else (bare, f"[{bare}]")
    if not legal or host not in forms or any(sign in bare for sign in "[]/"):
        raise ConfigError(f"listener {text!r}: expected HOST:PORT, an IPv6 host as [::1]:9092")
    return Listener(name.upper() if sign else PLAINTEXT, bare, int(port))


def client_listeners(settings: Values, setting: str = "listeners") -> list[Listener]:
    """The listeners for clients, without those of the controller. Refuses those that cannot be served."""
    controllers = {name.upper() for name in settings["controller.listener.names"]}
    protocols: dict[str, str] = {}
    for pair in settings["listener.security.protocol.map"]:
        name, colon, protocol = pair.partition(":")
        if not colon:
            raise ConfigError(f"listener.security.protocol.map: {pair!r} is not NAME:PROTOCOL")
        protocols[name.strip().upper()] = protocol.strip().upper()
    found = []
    for text in settings[setting] or ():
        listener = parse_listener(text)
        if listener.name in controllers:
            continue
        protocol = protocols.get(listener.name, listener.name)
        if protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(f"{setting}: {text} asks for {protocol}; served are {', '.join(SECURITY_PROTOCOLS)}")
        found.append(replace(listener, protocol=protocol))
    if setting == "listeners" and not found:
        raise ConfigError("listeners: none is for clients; add for example PLAINTEXT://:9092")
    _check_distinct(found, setting)
    if setting == "listeners":
        _check_addresses(found)
    return found


def _check_addresses(listeners: list[Listener]) -> None:
    """Refuse two listeners on one address: clients would come in by whichever is first, perhaps the unlocked one."""
    for one, other in combinations(listeners, 2):
        same_host = one.host == other.host or "" in (one.host, other.host) or (
            (":" in one.host) == (":" in other.host) and (one.is_everywhere or other.is_everywhere)
        )
        if one.port and one.port == other.port and same_host:
            raise ConfigError(f"listeners: {one.name} and {other.name} are both on port {one.port}; give each its own")


def _check_distinct(listeners: list[Listener], setting: str) -> None:
    """Refuse two listeners of one name: settings and advertised addresses are found by it.

    As in Kafka they may share it where one port is listened on by IPv4 and by IPv6.
    """
    by_name: dict[str, list[Listener]] = {}
    for one in listeners:
        by_name.setdefault(one.name, []).append(one)
    for name, same in by_name.items():
        both_families = len(same) == 2 and len({":" in one.host for one in same}) == 2
        if len(same) > 1 and not (both_families and same[0].port == same[1].port and setting == "listeners"):
            raise ConfigError(
                f"{setting}: there are {len(same)} listeners {name}; give each a name of its own, and its protocol in "
                "listener.security.protocol.map"
            )


def advertised_listener(settings: Values, listener: Listener, bound_port: int) -> tuple[str, int]:
    """The address that clients are told: the advertised listener of the same name, or the address listened on."""
    for told in client_listeners(settings, "advertised.listeners"):
        if told.name == listener.name:
            if told.is_everywhere:
                raise ConfigError(f"advertised.listeners: {told} is no address a client could connect to")
            return told.host, told.port or bound_port
    return ("localhost" if listener.is_everywhere else listener.host), bound_port


def advertised_note(settings: Values, endpoint: tuple[str, int]) -> str | None:
    """A hint for the operator of a broker that listens on all addresses: which address its clients are told."""
    main = client_listeners(settings)[0]
    if settings["advertised.listeners"] or not main.is_everywhere:
        return None
    return (
        f"clients are told to connect to {address_text(*endpoint)}, which only this machine can; for others "
        f"--set advertised.listeners={main.name}://NAME_OF_THIS_MACHINE:{endpoint[1]}"
    )


def is_listening(listening: Iterable[socket.socket]) -> bool:
    """Whether clients are let in by these sockets.

    An address can be bound by two who do not listen yet. The second to listen fails, and uvloop does not say so.
    """
    for one in listening:
        if not hasattr(one, "fileno"):
            continue  # a simulated one, which nobody else can have
        if one.fileno() < 0:
            return False
        with socket.socket(fileno=os.dup(one.fileno())) as same:
            if not same.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
    return True


def size_buffers(listening: Iterable[socket.socket], send_bytes: int, receive_bytes: int) -> None:
    """Set the kernel buffers of connections (-1: the system's default). They inherit them from the listener."""
    if send_bytes == receive_bytes == -1:
        return
    for listener in listening:
        # A second socket object over the same file: an event loop's own may not let its options be set.
        with socket.socket(fileno=os.dup(listener.fileno())) as same:
            for option, size in ((socket.SO_SNDBUF, send_bytes), (socket.SO_RCVBUF, receive_bytes)):
                if size != -1:
                    same.setsockopt(socket.SOL_SOCKET, option, size)


def bind_error(listener: Listener, error: OSError) -> ConfigError:
    """The error for an address that cannot be bound: why, and what to do."""
    if isinstance(error, socket.gaierror):
        return ConfigError(
            f"cannot listen on {listener}: there is no host {listener.host!r}; check the name in --listen"
        )
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"cannot listen on {listener}: the address is in use, perhaps by another broker; "
            "stop it, or choose another port with --listen (port 0 is any free one)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"cannot listen on {listener}: this machine does not have that address; check --listen")
    if error.errno == errno.EACCES:
        return ConfigError(f"cannot listen on {listener}: not permitted; ports below 1024 need rights, choose another")
    return ConfigError(f"cannot listen on {listener}: {error.strerror or error}")

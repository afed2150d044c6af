"""What an operator is told when a secured broker starts: who can come in where, and what leaves a door open."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING

from semel.broker.listeners import Listener, address_text
from semel.config import listener_settings
from semel.config.security import SECURITY_PROTOCOLS
from semel.machines.security.principals import ANONYMOUS, USER, parse_principal, parse_principals

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

#: Settings that only an authorizer reads.
_OF_RULES = ("super.users", "allow.everyone.if.no.acl.found")


def security_summary(broker: BrokerServer) -> str:
    """The listeners with their protocols, and whether access rules decide."""
    listeners = ", ".join(_described(broker, one) for one in broker.listening.listeners)
    if broker.access is None:
        return f"listeners: {listeners}; no access rules: everybody who gets in may do everything"
    super_users = ", ".join(sorted(parse_principals(broker.settings["super.users"]))) or "none"
    return f"listeners: {listeners}; access rules: {len(broker.access.rules)}; super users: {super_users}"


def security_warnings(broker: BrokerServer) -> Iterator[str]:
    """What an operator has probably not meant. One line each."""
    listeners = broker.listening.listeners
    open_ones = [one for one in listeners if not _knows_clients(broker, one)]
    elsewhere = broker.access is not None or len(open_ones) < len(listeners)
    for one in open_ones:
        if elsewhere and not _is_loopback(one.host):
            yield (
                f"{_where(one)} is open to other machines and asks nobody who they are, while other settings protect "
                "this broker; bind it to 127.0.0.1, or take it out of listeners"
            )
    for one in listeners:
        if one.protocol == "SASL_PLAINTEXT" and not _is_loopback(one.host):
            yield f"{_where(one)} does not encrypt: others on the network can read what is sent; use SASL_SSL"
        if one.name in SECURITY_PROTOCOLS and one.protocol != one.name:
            yield (
                f"listener.security.protocol.map makes listener {one.name} speak {one.protocol}: its name says "
                "something else"
            )
    if broker.access is not None:
        yield from _about_rules(broker, open_ones)
    elif set(_OF_RULES) & broker.settings.explicit:
        named = ", ".join(name for name in _OF_RULES if name in broker.settings.explicit)
        yield f"{named}: no effect, because authorizer.class.name is not set: everybody who gets in may do everything"
    doors = broker.listening.doors.values()
    if doors and all(name.startswith("SCRAM-") for door in doors for name in door.mechanisms) and not open_ones:
        if not any(True for _ in broker.stores.scram):
            where = f"stop the broker, and then semel user create NAME --data {broker.settings['log.dirs'][0]}"
            if broker.cluster is not None:
                where = f"semel user create NAME --zookeeper {broker.settings['zookeeper.connect']}"
            yield f"there is no user yet, so nobody can come in: {where}"


def _about_rules(broker: BrokerServer, open_ones: list[Listener]) -> Iterator[str]:
    assert broker.access is not None
    super_users = parse_principals(broker.settings["super.users"])
    for one in sorted(super_users):
        if parse_principal(one).kind != USER:
            yield f"super.users has {one}, which is nobody: every client is {USER}:NAME here"
    if open_ones and str(ANONYMOUS) in super_users:
        yield f"super.users has {ANONYMOUS}: whoever comes to {_where(open_ones[0])} may do everything"
    elif len(open_ones) == len(broker.listening.listeners):
        yield f"access rules are on, and no listener asks who a client is: everybody is {ANONYMOUS}"
    if not super_users and not len(broker.access.rules) and not broker.settings["allow.everyone.if.no.acl.found"]:
        yield "access rules are on, there is none, and super.users is empty: nobody may do anything; set super.users"


def _knows_clients(broker: BrokerServer, listener: Listener) -> bool:
    """Whether nobody gets in without saying who they are."""
    if listener.has_sasl:
        return True
    own = listener_settings(broker.settings, listener.name)
    return listener.has_tls and own["ssl.client.auth"] == "required"


def _described(broker: BrokerServer, listener: Listener) -> str:
    door = broker.listening.doors.get(listener.name)
    mechanisms = f" ({', '.join(door.mechanisms)})" if door is not None else ""
    return f"{listener.protocol}://{address_text(*listener.endpoint)}{mechanisms}"


def _where(listener: Listener) -> str:
    return f"listener {listener.name}://{address_text(listener.host, listener.endpoint[1])}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

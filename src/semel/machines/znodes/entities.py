"""Users, clients and addresses in ZooKeeper: their names, credentials and quotas, as Apache Kafka 3.9 writes them.

A user's SCRAM credentials and quotas are in one node, `/config/users/<name>`. Names are encoded, so that they may hold
any character; the default for all others is `<default>`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import quote, unquote

from semel.machines.security.scram import MECHANISM_NUMBERS, ScramKeys

#: In place of a name: whoever has no node.
DEFAULT = "<default>"
USERS, CLIENTS, IPS, GROUPS = "users", "clients", "ips", "groups"


class NoSuchName(ValueError):
    """A name that cannot be one of a node."""


def encode_name(name: str | None) -> str:
    """The name of a node; None is the default.

    >>> encode_name("CN=a b*/~"), encode_name(None)
    ('CN%3Da%20b%2A%2F%7E', '<default>')
    """
    if name is None:
        return DEFAULT
    encoded = quote(name, safe="").replace("~", "%7E")
    if encoded in ("", ".", ".."):
        raise NoSuchName(f"{name!r} cannot be a name in ZooKeeper")
    return encoded


def decode_name(encoded: str) -> str | None:
    """What `encode_name` was given."""
    return None if encoded == DEFAULT else unquote(encoded)


def entity_path(kind: str, name: str | None) -> str:
    """An entity as notifications name it, below /config: users/alice."""
    return f"{kind}/{encode_name(name)}"


def client_of_user(user: str | None, client_id: str | None) -> str:
    """A client id of one user, for quotas of both together."""
    return f"{USERS}/{encode_name(user)}/{CLIENTS}/{encode_name(client_id)}"


# SCRAM


def encode_scram(keys: ScramKeys) -> str:
    """One credential, the value of its mechanism's name."""
    salt, stored_key, server_key = (
        base64.b64encode(part).decode() for part in (keys.salt, keys.stored_key, keys.server_key)
    )
    return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={keys.iterations}"


def decode_scram(text: str) -> ScramKeys:
    """ValueError if it is none."""
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        salt, stored_key, server_key = (
            base64.b64decode(parts[name], validate=True) for name in ("salt", "stored_key", "server_key")
        )
        return ScramKeys(int(parts["iterations"]), salt, stored_key, server_key)
    except KeyError as error:
        raise ValueError(f"a SCRAM credential without {error}") from None


def credentials_in(config: Mapping[str, str]) -> dict[int, ScramKeys]:
    """The credentials of a user's node, by the number of their mechanism. ValueError if one cannot be read."""
    named = ((number, config.get(mechanism)) for mechanism, number in MECHANISM_NUMBERS.items())
    return {number: decode_scram(text) for number, text in named if text is not None}


# Quotas


def encode_quota(value: float, *, whole: bool) -> str:
    """As Kafka writes it: rates in bytes without a point, the others with one."""
    return str(round(value)) if whole else str(float(value))

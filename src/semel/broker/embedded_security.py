"""An embedded broker with TLS, users and access rules, for tests and for trying things out.

Guarantees:

- Certificates and passwords are made for this broker only. Its certificates are gone when it stops.
- Users and access rules are stored before the first client is let in.
- What cannot be is refused before anything is made.
"""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from semel.broker.listeners import parse_listener
from semel.broker.stored_users import scram_keys
from semel.config import ConfigError
from semel.machines.security.access import AccessRule
from semel.machines.security.acl_bindings import AclBinding, check_possible
from semel.machines.security.principals import USER
from semel.machines.security.scram import MECHANISM_NUMBERS, MIN_ITERATIONS

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

PROTOCOLS = ("SASL_SSL", "SASL_PLAINTEXT", "SSL")
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[\w][\w.@-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Security:
    """How an embedded broker is protected.

    >>> import semel
    >>> security = Security(users=["alice"])
    >>> with semel.Broker(security=security) as broker:
    ...     with semel.Admin(broker.client_settings("alice")) as admin:
    ...         admin.list_topics()
    []

    `users` are names with their passwords, or names alone: then passwords are made up. With the protocol SSL users have
    certificates instead. `acls` turns access rules on (an empty list is none yet, so nobody may do anything but
    `super_users`); without it everybody may do everything.

    An argument of the wrong type raises TypeError, one that cannot be ConfigError.
    """

    users: Mapping[str, str] | Iterable[str] = field(default=(), repr=False)
    protocol: str = "SASL_SSL"
    acls: Iterable[AclBinding] | None = None
    super_users: Iterable[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, str):
            raise TypeError(f"protocol is one of {', '.join(PROTOCOLS)}, not {type(self.protocol).__name__}")
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f"protocol={self.protocol!r}: must be one of {', '.join(PROTOCOLS)}")
        users = _users(self.users, has_passwords=self.protocol != "SSL")
        if self.has_sasl and not users:
            raise ConfigError(f"protocol={self.protocol} needs users: Security(users=['alice'])")
        super_users = tuple(_texts(self.super_users, "super_users"))
        for name in super_users:
            if name not in users:
                raise ConfigError(f"super_users: {name!r} is none of users ({', '.join(users) or 'there are none'})")
        object.__setattr__(self, "users", users)
        object.__setattr__(self, "super_users", super_users)
        if self.acls is not None:
            object.__setattr__(self, "acls", _bindings(self.acls))

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol != "SASL_PLAINTEXT"

    @property
    def has_sasl(self) -> bool:
        """Whether clients say who they are with a password."""
        return self.protocol != "SSL"

    @property
    def has_access_rules(self) -> bool:
        """Whether the broker asks access rules."""
        return self.acls is not None or bool(self.super_users)

    @property
    def passwords(self) -> dict[str, str]:
        """The users, each with a password; with an empty one where certificates are used."""
        assert isinstance(self.users, dict)
        return self.users


class PreparedSecurity:
    """The certificates and settings of one embedded broker."""

    def __init__(self, security: Security, listen: str) -> None:
        self.security = security
        self._authority = None
        #: The folder of the certificates; `remove` removes it.
        self._folder: Path | None = None
        self._host = parse_listener(listen).host
        if security.has_tls:
            from semel.security.development import DevelopmentAuthority

            self._authority = DevelopmentAuthority()
        self.settings: dict[str, object] = {"listeners": f"{security.protocol}://{listen}"}
        if security.has_access_rules:
            self.settings["authorizer.class.name"] = STANDARD_AUTHORIZER
            self.settings["super.users"] = ";".join(f"{USER}:{name}" for name in security.super_users)
        if security.has_sasl:
            self.settings["sasl.enabled.mechanisms"] = MECHANISMS

    @property
    def names(self) -> frozenset[str]:
        """The settings that follow from the security, so that nobody else may set them."""
        of_tls = {"ssl.keystore.location", "ssl.truststore.location", "ssl.client.auth", "ssl.principal.mapping.rules"}
        of_sasl = {"sasl.enabled.mechanisms", "semel.sasl.plain.users.file", "sasl.jaas.config"}
        return frozenset({"listeners", "authorizer.class.name", "super.users", *of_tls, *of_sasl})

    def write_files(self) -> None:
        """Write certificates and users to a new folder, and name them in the settings."""
        folder = self._folder = Path(tempfile.mkdtemp(prefix="semel-security-"))
        security = self.security
        if security.has_sasl:
            users = folder / "users"
            users.touch(0o600)
            users.write_text("".join(f"{name}:{word}\n" for name, word in security.passwords.items()))
            self.settings["semel.sasl.plain.users.file"] = str(users)
        if self._authority is None:
            return
        (folder / "authority.pem").write_text(self._authority.certificate_pem)
        hosts = dict.fromkeys((*_LOCAL_HOSTS, self._host) if self._host else _LOCAL_HOSTS)
        self._authority.issue("broker", hosts=hosts).write(folder, "broker")
        self.settings["ssl.keystore.location"] = str(folder / "broker.pem")
        if not security.has_sasl and security.passwords:
            for name in security.passwords:
                self._authority.issue(name).write(folder, f"user-{name}")
            self.settings["ssl.truststore.location"] = str(folder / "authority.pem")
            self.settings["ssl.client.auth"] = "required"
            self.settings["ssl.principal.mapping.rules"] = "RULE:^CN=([^,]*)$/$1/"

    def remove(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def store(self, broker: BrokerServer) -> None:
        """Store users and access rules. Nobody is let in before."""
        if self.security.has_sasl:
            await broker.stores.scram.replace(
                {
                    (name, number): scram_keys(mechanism, password, MIN_ITERATIONS)
                    for name, password in self.security.passwords.items()
                    for mechanism, number in MECHANISM_NUMBERS.items()
                }
            )
        if broker.access is not None and self.security.acls is not None:
            await broker.access.stored.add([one.rule() for one in self.security.acls])

    # What clients need

    def client_settings(self, user: str | None, mechanism: str) -> dict[str, str]:
        """The settings of the connection, by librdkafka's names, which Semel's own clients take too."""
        security = self.security
        found = {"security.protocol": security.protocol}
        if security.has_tls:
            folder = self._folder
            found["ssl.ca.location"] = f"{folder}/authority.pem"
        if not security.passwords:
            if user is not None:
                raise ConfigError(f"there is no user {user!r}: this broker has none")
            return found
        name = self._chosen(user)
        if security.has_sasl:
            if mechanism not in MECHANISMS:
                raise ConfigError(f"mechanism={mechanism!r}: must be one of {', '.join(MECHANISMS)}")
            found |= {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": security.passwords[name]}
        else:
            found["ssl.certificate.location"] = found["ssl.key.location"] = f"{folder}/user-{name}.pem"
        return found

    def _chosen(self, user: str | None) -> str:
        users = self.security.passwords
        if user is None and len(users) == 1:
            return next(iter(users))
        if user is None:
            raise ConfigError(f"which user? client_settings(NAME), one of {', '.join(users)}")
        if not isinstance(user, str):
            raise TypeError(f"user is str, not {type(user).__name__}")
        if user not in users:
            raise ConfigError(f"there is no user {user!r}: choose from {', '.join(users)}")
        return user


def _users(given: object, *, has_passwords: bool) -> dict[str, str]:
    if isinstance(given, Mapping):
        if given and not has_passwords:
            raise ConfigError("users of protocol SSL have certificates, no passwords: give their names alone")
        for name, password in given.items():
            if not isinstance(password, str):
                raise TypeError(f"the password of {name} is str, not {type(password).__name__}")
            if not password or not password.isprintable():
                raise ConfigError(f"the password of {name} is empty, or has something in it that cannot be printed")
        found = dict(given)
    else:
        names = _texts(given, "users")
        found = {name: secrets.token_urlsafe(18) if has_passwords else "" for name in names}
    for name in found:
        if not isinstance(name, str):
            raise TypeError(f"the name of a user is str, not {type(name).__name__}")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"users: {name!r} is no name here: use letters, digits, '.', '_', '-' and '@'")
    return found


def _texts(given: object, what: str) -> list[str]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{what} is a list of names, not {type(given).__name__}")
    found = list(given)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"each of {what} is str, not {type(one).__name__}")
    return found


def _bindings(given: object) -> tuple[AclBinding, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"acls is a list of AclBinding, not {type(given).__name__}")
    found = tuple(given)
    for one in found:
        if not isinstance(one, AclBinding):
            raise TypeError(f"each of acls is an AclBinding, not {type(one).__name__}")
        try:
            rule: AccessRule = one.rule()
            check_possible(rule)
        except ValueError as error:
            raise ConfigError(f"acls: {error}") from None
    return found

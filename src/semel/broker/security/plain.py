"""PLAIN: a user and a password, which the broker knows from a JAAS line or from a file.

Guarantees:

- Passwords are compared in constant time, and a user that does not exist takes as long as one that does.
- The file is read again when it has changed, beside the event loop. If it cannot be read then, the users stay as they
  were, and the log says so.
- No password is in a log, an error or a `repr`.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import stat
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.broker.security.scram import OTHER_AUTHORIZATION_ID
from semel.config import ConfigError
from semel.machines.security.authentication import Accepted, Judgement, Rejected
from semel.machines.security.principals import USER, Principal
from semel.security.credentials import parse_jaas

if TYPE_CHECKING:
    from semel.broker.security.doors import MechanismSettings
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

USERS_FILE = "semel.sasl.plain.users.file"
#: A file of users that is larger is not one.
MAX_FILE_BYTES = 4 * 1024 * 1024
#: Kafka's own sentence.
WRONG_PASSWORD = "Authentication failed: Invalid username or password"
#: Passwords are kept and compared as digests by this key: of one length, and of no use to who reads the memory later.
_KEY = secrets.token_bytes(32)
_NOBODY = secrets.token_bytes(32)


def _digest(password: str) -> bytes:
    return hmac.digest(_KEY, password.encode(), "sha256")


def users_of_jaas(text: str, setting: str) -> dict[str, bytes]:
    """The users of a JAAS line: each option `user_NAME` is a password."""
    line = parse_jaas(text, setting)
    if line.module != "PlainLoginModule":
        raise ConfigError(f"{setting}: {line.module} is not for PLAIN; expected PlainLoginModule")
    named = {name.removeprefix("user_"): word for name, word in line.options.items() if name.startswith("user_")}
    if not all(named) or not all(named.values()):
        raise ConfigError(f"{setting}: a user without a name or without a password")
    return {name: _digest(password) for name, password in named.items()}


def read_users(path: Path) -> dict[str, bytes]:
    """The users of a file: NAME:PASSWORD in each line; empty lines and those that begin with # are left out."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{USERS_FILE}: {path} is larger than {MAX_FILE_BYTES} bytes")
    return parse_users(data, path)


def parse_users(data: bytes, path: Path | str) -> dict[str, bytes]:
    """The users of such a file; ConfigError if it is none."""
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{USERS_FILE}: {path} is not UTF-8") from None
    users: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        name, _, password = line.partition(":")
        if not name or not password or "\0" in line:
            raise ConfigError(f"{USERS_FILE}: line {number} of {path} is not NAME:PASSWORD")
        if name in users:
            raise ConfigError(f"{USERS_FILE}: line {number} of {path} names {name!r} a second time")
        users[name] = _digest(password)
    return users


class UsersFile:
    """A file of users, as it was when it was last read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._look()
        try:
            self.users = read_users(path)
            mode = path.stat().st_mode
        except OSError as error:
            raise ConfigError(f"{USERS_FILE}: cannot read {path}: {error.strerror}") from None
        if mode & stat.S_IROTH:
            logger.warning("%s: every user of this machine can read the passwords in %s; chmod 600", USERS_FILE, path)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def has_changed(self) -> bool:
        """Whether there is another file now than the one that was read."""
        seen = self._look()
        if seen == self._seen or seen is None:
            return False
        self._seen = seen
        return True

    def read_again(self) -> None:
        """Read the file; if that fails, the users stay as they were."""
        try:
            self.users = read_users(self.path)
        except (ConfigError, OSError) as error:
            logger.error("%s: the users stay as they were: %s", USERS_FILE, error)


class PlainMechanism:
    """PLAIN on one listener."""

    def __init__(self, broker: BrokerServer, users: dict[str, bytes], file: UsersFile | None) -> None:
        self._broker = broker
        self._users = users
        self._file = file

    def start(self) -> None:
        """The broker listens. Nothing has to be fetched."""

    def begin(self) -> PlainMechanism:
        """A client begins. It sends one message, so there is nothing to remember."""
        return self

    def evaluate(self, token: bytes) -> Judgement | Coroutine[Any, Any, Judgement]:
        """Judge the only message."""
        if self._file is not None and self._file.has_changed():
            return self._read_and_judge(self._file, token)
        return self._judge(token)

    async def _read_and_judge(self, file: UsersFile, token: bytes) -> Judgement:
        await self._broker.beside(partial(file.read_again))
        return self._judge(token)

    def _judge(self, token: bytes) -> Judgement:
        # What is not UTF-8 is nobody's password. The sentences are Kafka's own.
        parts = token.decode(errors="replace").split("\0", 3)
        if len(parts) != 3:
            told = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            return Rejected("the message is not of PLAIN's form", told)
        authorization_id, user, password = parts
        if not user:
            return Rejected("no user", "Authentication failed: username not specified")
        if not password:
            return Rejected("no password", "Authentication failed: password not specified", user)
        expected = self._users.get(user)
        if self._file is not None:
            expected = self._file.users.get(user, expected)
        is_right = hmac.compare_digest(_digest(password), _NOBODY if expected is None else expected)
        if not is_right or expected is None:
            return Rejected("wrong user or password", WRONG_PASSWORD, user)
        if authorization_id not in ("", user):
            return Rejected("the authorization id is not the user's own name", OTHER_AUTHORIZATION_ID, user)
        return Accepted(Principal(USER, user))


def plain(broker: BrokerServer, settings: MechanismSettings) -> PlainMechanism:
    """PLAIN with the users of the settings."""
    jaas, path = settings["sasl.jaas.config"], settings[USERS_FILE]
    setting = settings.name_of("sasl.jaas.config")
    users = users_of_jaas(jaas, setting) if jaas else {}
    file = UsersFile(Path(path)) if path else None
    if not users and file is None:
        raise ConfigError(
            f"{setting}: PLAIN is enabled and has no users; give them as "
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD"; '
            f"or as a file with {USERS_FILE}"
        )
    return PlainMechanism(broker, users, file)

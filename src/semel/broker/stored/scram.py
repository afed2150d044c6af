"""The stored SCRAM credentials of users, which `broker.security.scram` checks.

Guarantees:

- Neither a password nor a salted password is stored, only the keys that a server needs to check it (RFC 5802). The
  password cannot be computed from them.
- A change is in the metadata store before it is answered, and is there after a restart.
- What a user that does not exist is shown (`shape`, `secret`) is as a real one's, also after a restart.
"""

from __future__ import annotations

import base64
import logging
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import SCRAM_CREDENTIALS, LocalMetadataStore
from semel.errors import Refused
from semel.machines.security.scram import MECHANISM_NUMBERS, ScramKeys

logger = logging.getLogger(__name__)

#: The mechanisms by their number on the wire.
MECHANISMS = {number: name for name, number in MECHANISM_NUMBERS.items()}
#: Bounds that Kafka has for both.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_SECRET_ENTRY = "scram-secret"
#: What a salt of Kafka's own tools looks like.
_USUAL_SALT_BYTES = 26

#: A user and a mechanism.
CredentialKey = tuple[str, int]


class ScramCredentials(ABC):
    """All credentials, wherever they are stored."""

    def __init__(self, credentials: dict[CredentialKey, ScramKeys]) -> None:
        self._shapes: dict[int, tuple[int, int]] = {}
        self._credentials = credentials

    def __iter__(self) -> Iterator[CredentialKey]:
        return iter(self._credentials)

    def __contains__(self, key: CredentialKey) -> bool:
        return key in self._credentials

    def of_user(self, user: str) -> dict[int, ScramKeys]:
        """A user's credentials by mechanism."""
        keys = ((user, mechanism) for mechanism in MECHANISMS)
        return {key[1]: self._credentials[key] for key in keys if key in self._credentials}

    def get(self, user: str, mechanism: int) -> ScramKeys | None:
        """A user's credential for one mechanism."""
        return self._credentials.get((user, mechanism))

    def shape(self, mechanism: int) -> tuple[int, int]:
        """How many iterations and how many bytes of salt most users of a mechanism have."""
        if mechanism not in self._shapes:
            counted = Counter(
                (found.iterations, len(found.salt)) for (_, own), found in self._credentials.items() if own == mechanism
            )
            usual = (MIN_ITERATIONS, _USUAL_SALT_BYTES)
            self._shapes[mechanism] = max(counted, key=lambda shape: (counted[shape], shape), default=usual)
        return self._shapes[mechanism]

    @property
    @abstractmethod
    def secret(self) -> bytes:
        """What the salts of users that do not exist are made from. The same wherever and whenever somebody asks."""

    @abstractmethod
    async def replace(self, changes: Mapping[CredentialKey, ScramKeys | None]) -> None:
        """Set credentials and, where there is None, remove them. One change at a time."""

    @abstractmethod
    async def know(self) -> None:
        """Before something is decided by what is stored: it may have been changed elsewhere."""

    def _take(self, credentials: dict[CredentialKey, ScramKeys]) -> None:
        self._credentials = credentials
        self._shapes.clear()


class ScramStore(ScramCredentials):
    """Credentials on disk."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self._store = store
        self._entry = StoredEntry(store, SCRAM_CREDENTIALS)
        super().__init__(self._entry.read_as(_credentials))

    @cached_property
    def secret(self) -> bytes:
        """Made once for a data directory."""
        entry = StoredEntry(self._store, _SECRET_ENTRY)
        stored = entry.read()
        if isinstance(stored, list) and len(stored) == 1 and isinstance(stored[0], str):
            with suppress(ValueError):
                return base64.b64decode(stored[0])
        made = secrets.token_bytes(32)
        try:
            entry.replace([_text(made)])
        except Refused as error:
            logger.warning("the salts of users that do not exist will change with a restart: %s", error)
        return made

    async def know(self) -> None:
        """Nobody else changes them."""

    async def replace(self, changes: Mapping[CredentialKey, ScramKeys | None]) -> None:
        """With one write."""
        changed = {**self._credentials, **changes}
        credentials = {key: found for key, found in changed.items() if found is not None}
        if credentials == self._credentials:
            return

        def rows() -> list[object]:
            return [
                {
                    "user": user,
                    "mechanism": mechanism,
                    "iterations": found.iterations,
                    "salt": _text(found.salt),
                    "stored_key": _text(found.stored_key),
                    "server_key": _text(found.server_key),
                }
                for (user, mechanism), found in credentials.items()
            ]

        await self._entry.replace_beside(rows)
        self._take(credentials)


def _credentials(rows: Any) -> dict[CredentialKey, ScramKeys]:
    return dict(map(_credential, rows or ()))


def _credential(row: Any) -> tuple[CredentialKey, ScramKeys]:
    user, mechanism, iterations = row["user"], row["mechanism"], row["iterations"]
    if not isinstance(user, str) or mechanism not in MECHANISMS or type(iterations) is not int:
        raise ValueError(f"{row} is no credential")
    salt, stored_key, server_key = (base64.b64decode(row[name]) for name in ("salt", "stored_key", "server_key"))
    return (user, mechanism), ScramKeys(iterations, salt, stored_key, server_key)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()

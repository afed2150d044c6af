"""The users in a data directory that no broker uses: for the first start of a broker that lets nobody in without a
password, and for an administrator whose password is lost.

Guarantees:

- The directory is locked meanwhile. That of a running broker is refused.
- A directory that has users only is as good as new for a broker: it gets its identity at the first start.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from pathlib import Path

from semel.broker.data_directory import METADATA, lock_directory
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.broker.stored.scram import MECHANISMS, ScramStore
from semel.log.files import Files
from semel.machines.security.scram import MECHANISM_NUMBERS, ScramKeys, keys_of, salted_password

_SALT_BYTES = 24


class StoredUsers:
    """The users of a data directory. Use it with `with`: then it is locked.

    `OSError` says that the directory cannot be used, `DataDirectoryInUse` that a broker runs on it, `Refused` that what
    is stored is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = Files()
        self._lock = -1
        self._metadata: LocalMetadataStore
        self._store: ScramStore

    def __enter__(self) -> StoredUsers:
        self._lock = lock_directory(self._files, self._path)
        try:
            self._metadata = LocalMetadataStore(self._path / METADATA, self._files)
            self._store = ScramStore(self._metadata)
        except BaseException:
            self._files.close(self._lock)
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._metadata.close()
        self._files.close(self._lock)

    def describe(self) -> dict[str, dict[str, int]]:
        """Every user's mechanisms, and how many iterations each has."""
        return {
            user: {MECHANISMS[number]: keys.iterations for number, keys in self._store.of_user(user).items()}
            for user, _ in self._store
        }

    def set_password(self, user: str, password: str, mechanisms: Iterable[str], iterations: int) -> None:
        """Let a user in with this password. What there was for these mechanisms is replaced."""
        keys = {(user, MECHANISM_NUMBERS[one]): scram_keys(one, password, iterations) for one in mechanisms}
        asyncio.run(self._store.replace(keys))

    def delete(self, user: str, mechanisms: Iterable[str]) -> None:
        """Remove a user's credentials."""
        asyncio.run(self._store.replace({(user, MECHANISM_NUMBERS[one]): None for one in mechanisms}))


def scram_keys(mechanism: str, password: str, iterations: int) -> ScramKeys:
    """What a broker stores of a password."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return keys_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)

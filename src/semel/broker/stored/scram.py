"""The stored SCRAM credentials of users. Nothing checks them yet: the broker has no SASL listener.

Guarantees:

- Neither a password nor a salted password is stored, only the keys that a server needs to check it (RFC 5802). The
  password cannot be computed from them.
- A change is in the metadata store before it is answered, and is there after a restart.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.machines.security.scram import ScramKeys

#: The mechanisms by their number on the wire.
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
#: Bounds that Kafka has for both.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_STORE_ENTRY = "scram-credentials"


#: A user and a mechanism.
CredentialKey = tuple[str, int]


class ScramStore:
    """All credentials."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self._entry = StoredEntry(store, _STORE_ENTRY)
        self._credentials = {
            (row["user"], row["mechanism"]): ScramKeys(
                row["iterations"], *(base64.b64decode(row[name]) for name in ("salt", "stored_key", "server_key"))
            )
            for row in self._entry.read() or ()
        }

    def __iter__(self) -> Iterator[CredentialKey]:
        return iter(self._credentials)

    def __contains__(self, key: CredentialKey) -> bool:
        return key in self._credentials

    def of_user(self, user: str) -> dict[int, ScramKeys]:
        """A user's credentials by mechanism."""
        keys = ((user, mechanism) for mechanism in MECHANISMS)
        return {key[1]: self._credentials[key] for key in keys if key in self._credentials}

    async def replace(self, changes: Mapping[CredentialKey, ScramKeys | None]) -> None:
        """Set credentials and, where there is None, remove them. One write, one at a time."""
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
        self._credentials = credentials


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()

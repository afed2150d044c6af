"""SCRAM credentials of users: kept for whoever will check them, as a Kafka broker without SASL keeps them.

Guarantees:

- A password is never kept, nor what it was salted into: only the keys that a server needs to check it (RFC 5802), from
  which the password cannot be computed.
- What was changed is in the metadata store before it is answered, and is there after a restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import LocalMetadataStore

#: The mechanisms by their number on the wire.
MECHANISMS = {1: "sha256", 2: "sha512"}
#: Bounds that Kafka has for both.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_STORE_ENTRY = "scram-credentials"


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server needs to check a password, and to prove that it may."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, mechanism: int, iterations: int, salt: bytes, salted_password: bytes) -> ScramCredential:
        """The keys that follow from a salted password."""
        digest = MECHANISMS[mechanism]
        client_key = hmac.digest(salted_password, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        return cls(iterations, salt, stored_key, hmac.digest(salted_password, b"Server Key", digest))


#: A user and a mechanism.
CredentialKey = tuple[str, int]


class ScramStore:
    """All credentials."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self._entry = StoredEntry(store, _STORE_ENTRY)
        self._credentials = {
            (row["user"], row["mechanism"]): ScramCredential(
                row["iterations"], *(base64.b64decode(row[name]) for name in ("salt", "stored_key", "server_key"))
            )
            for row in self._entry.read() or ()
        }

    def __iter__(self) -> Iterator[CredentialKey]:
        return iter(self._credentials)

    def __contains__(self, key: CredentialKey) -> bool:
        return key in self._credentials

    def of_user(self, user: str) -> dict[int, ScramCredential]:
        """A user's credentials by mechanism."""
        keys = ((user, mechanism) for mechanism in MECHANISMS)
        return {key[1]: self._credentials[key] for key in keys if key in self._credentials}

    async def replace(self, changes: Mapping[CredentialKey, ScramCredential | None]) -> None:
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

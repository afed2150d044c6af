"""The stored delegation tokens.

Guarantees:

- A token counts, or counts no more, only after the change is on disk, and is answered only then. It is the same after a
  restart.
- The file holds no secret: a token's HMAC follows from its id and `delegation.token.secret.key`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.errors import Refused
from semel.machines.security.delegation_tokens import DelegationToken, DelegationTokens
from semel.machines.security.principals import Principal

logger = logging.getLogger(__name__)

_STORE_ENTRY = "delegation-tokens"


class StoredTokens(ABC):
    """The tokens, wherever they are stored, and the machine that decides about them."""

    def __init__(self, tokens: DelegationTokens) -> None:
        self.tokens = tokens

    @abstractmethod
    async def put(self, token: DelegationToken) -> None:
        """Store a token, or its new end. One change at a time."""

    @abstractmethod
    async def remove(self, token_ids: Collection[str]) -> None:
        """Remove tokens. One change at a time."""

    @abstractmethod
    async def know(self) -> None:
        """Before something is decided by what is stored: it may have been changed elsewhere."""

    async def remove_ended(self, now_ms: int) -> None:
        """Remove the tokens that have ended. A failure is logged; they open nothing anyway."""
        if not (ended := self.tokens.ended(now_ms)):
            return
        try:
            await self.remove(ended)
        except Refused as error:
            logger.error("delegation tokens that have ended could not be removed: %s", error)


class DelegationTokenStore(StoredTokens):
    """Tokens on disk."""

    def __init__(self, store: LocalMetadataStore, tokens: DelegationTokens) -> None:
        """Put the stored tokens into `tokens`."""
        super().__init__(tokens)
        self._entry = StoredEntry(store, _STORE_ENTRY)
        for token in self._entry.read_as(lambda rows: [_token(row) for row in rows or ()]):
            tokens.put(token)

    async def know(self) -> None:
        """Nobody else changes them."""

    async def put(self, token: DelegationToken) -> None:
        """With one write."""
        kept = {each.token_id: each for each in self.tokens} | {token.token_id: token}
        await self._entry.replace_beside(
            lambda: [_row(each) for each in kept.values()], then=lambda: self.tokens.put(token)
        )

    async def remove(self, token_ids: Collection[str]) -> None:
        """With one write."""
        gone = set(token_ids)
        kept = [token for token in self.tokens if token.token_id not in gone]

        def forget() -> None:
            for token_id in gone:
                self.tokens.remove(token_id)

        await self._entry.replace_beside(lambda: [_row(token) for token in kept], then=forget)


def _row(token: DelegationToken) -> dict[str, object]:
    return {
        "id": token.token_id,
        "owner": list(token.owner),
        "requester": list(token.requester),
        "renewers": [list(renewer) for renewer in token.renewers],
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "max_ms": token.max_ms,
    }


def _token(row: dict[str, Any]) -> DelegationToken:
    renewers = row["renewers"]
    times = [row[name] for name in ("issued_ms", "expires_ms", "max_ms")]
    if not isinstance(row["id"], str) or not all(isinstance(time_ms, int) for time_ms in times):
        raise ValueError("an id or a time is missing")
    return DelegationToken(
        row["id"], _principal(row["owner"]), _principal(row["requester"]),
        tuple(_principal(renewer) for renewer in renewers), *times,
    )


def _principal(row: object) -> Principal:
    if not isinstance(row, list) or len(row) != 2 or not all(isinstance(part, str) for part in row):
        raise ValueError("a principal is not a kind and a name")
    return Principal(*row)

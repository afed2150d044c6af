"""Delegation tokens (KIP-48): who may do what to a token, and when it ends.

Guarantees:

- Nothing here keeps a secret of a token. Its HMAC follows from its id and the broker's key
  (`delegation.token.secret.key`), as in Kafka, so it need not be stored. A token is found by a digest of its HMAC.
- Only its owner and its renewers renew or end a token, and it never lives longer than its longest lifetime.
- A token that has ended opens nothing, whether or not it was removed yet.
- One client cannot fill the broker with tokens: each has at most so many, of at most so many bytes.

A method that takes a request returns the token as it should be stored, or refuses. What was stored comes back by
`put` and `remove`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from semel.errors import ErrorCode, Refused
from semel.machines.security.principals import USER, Principal

#: Kafka has no bounds for these.
MAX_TOKENS_OF_ONE = 1000
MAX_RENEWERS_BYTES = 16_384
_LAST_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """One token. Times are milliseconds since 1970."""

    token_id: str
    owner: Principal
    #: Who asked for it. Somebody may ask for a token of another owner.
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    #: Nobody can renew it beyond this.
    max_ms: int

    def concerns(self, who: Principal) -> bool:
        """Whether somebody owns it, asked for it or may renew it."""
        return who in (self.owner, self.requester) or who in self.renewers

    def has_ended(self, now_ms: int) -> bool:
        """Whether it opens nothing any more."""
        return min(self.expires_ms, self.max_ms) <= now_ms


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """How long tokens live: in all, and until they have to be renewed."""

    max_lifetime_ms: int
    expiry_time_ms: int


@dataclass(slots=True)
class DelegationTokens:
    """All tokens of a broker."""

    #: `delegation.token.secret.key`; None: there are no tokens.
    secret: bytes | None = field(repr=False)
    limits: TokenLimits
    _by_id: dict[str, DelegationToken] = field(default_factory=dict, repr=False)
    _ids: dict[bytes, str] = field(default_factory=dict, repr=False)
    _of_requester: Counter[Principal] = field(default_factory=Counter, repr=False)

    def __iter__(self) -> Iterator[DelegationToken]:
        return iter(list(self._by_id.values()))

    def get(self, token_id: str) -> DelegationToken | None:
        """The token of this id."""
        return self._by_id.get(token_id)

    def hmac_of(self, token_id: str) -> bytes:
        """The secret of a token, which only its owner gets to see."""
        if self.secret is None:
            raise Refused(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set")
        return hmac.digest(self.secret, token_id.encode(), "sha512")

    # What is stored

    def put(self, token: DelegationToken) -> None:
        """A token was stored."""
        before = self._by_id.get(token.token_id)
        self._by_id[token.token_id] = token
        if before is None:
            self._of_requester[token.requester] += 1
            if self.secret is not None:
                self._ids[_digest(self.hmac_of(token.token_id))] = token.token_id

    def remove(self, token_id: str) -> None:
        """A token was removed."""
        token = self._by_id.pop(token_id, None)
        if token is None:
            return
        self._of_requester[token.requester] -= 1
        if not self._of_requester[token.requester]:
            del self._of_requester[token.requester]
        if self.secret is not None:
            self._ids.pop(_digest(self.hmac_of(token_id)), None)

    # What is asked

    def create(
        self,
        token_id: str,
        owner: Principal,
        requester: Principal,
        renewers: Sequence[Principal],
        max_lifetime_ms: int,
        now_ms: int,
    ) -> DelegationToken:
        """A new token. A lifetime that is not positive asks for the longest one."""
        self._check_enabled()
        if any(renewer.kind != USER for renewer in renewers):
            raise Refused(ErrorCode.INVALID_PRINCIPAL_TYPE, f"a renewer has to be a {USER}")
        if not owner.kind:
            raise Refused(ErrorCode.INVALID_PRINCIPAL_TYPE, "an owner without a type")
        if sum(len(str(renewer).encode()) for renewer in renewers) > MAX_RENEWERS_BYTES:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"the renewers have more than {MAX_RENEWERS_BYTES} bytes")
        if self._of_requester[requester] >= MAX_TOKENS_OF_ONE:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"{requester} has {MAX_TOKENS_OF_ONE} tokens already")
        lifetime_ms = self.limits.max_lifetime_ms
        if max_lifetime_ms > 0:
            lifetime_ms = min(lifetime_ms, max_lifetime_ms)
        max_ms = min(now_ms + lifetime_ms, _LAST_MS)
        expires_ms = min(max_ms, now_ms + self.limits.expiry_time_ms)
        return DelegationToken(token_id, owner, requester, tuple(renewers), now_ms, expires_ms, max_ms)

    def renew(self, secret: bytes, who: Principal, period_ms: int, now_ms: int) -> DelegationToken:
        """The token with a later end. A period that is not positive asks for the usual one."""
        token = self._found(secret, who, now_ms)
        usual_ms = self.limits.expiry_time_ms
        lifetime_ms = min(usual_ms, period_ms) if period_ms > 0 else usual_ms
        return replace(token, expires_ms=min(token.max_ms, now_ms + lifetime_ms))

    def expire(self, secret: bytes, who: Principal, period_ms: int, now_ms: int) -> DelegationToken:
        """The token with another end. With a negative period it ends now, and is to be removed."""
        token = self._found(secret, who, now_ms)
        return replace(token, expires_ms=min(token.max_ms, now_ms + max(period_ms, 0)))

    def described(self, owners: Collection[Principal] | None) -> Iterator[DelegationToken]:
        """The tokens that concern one of these; None: all tokens."""
        self._check_enabled()
        return (token for token in self if owners is None or any(token.concerns(owner) for owner in owners))

    def ended(self, now_ms: int) -> list[str]:
        """The ids of the tokens that are to be removed."""
        return [token.token_id for token in self._by_id.values() if token.has_ended(now_ms)]

    def _found(self, secret: bytes, who: Principal, now_ms: int) -> DelegationToken:
        self._check_enabled()
        token = self._by_id.get(self._ids.get(_digest(secret), ""))
        if token is None:
            raise Refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "no token has this HMAC")
        if token.has_ended(now_ms):
            raise Refused(ErrorCode.DELEGATION_TOKEN_EXPIRED, f"token {token.token_id} has ended")
        if who != token.owner and who not in token.renewers:
            raise Refused(
                ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
                f"{who} neither owns token {token.token_id} nor is one of its renewers",
            )
        return token

    def _check_enabled(self) -> None:
        if self.secret is None:
            raise Refused(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set")


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()

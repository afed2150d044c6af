"""SCRAM-SHA-256 and SCRAM-SHA-512 with the credentials that the broker stores, and with delegation tokens.

Guarantees:

- A credential counts from the moment its change is answered.
- A user that does not exist, or has no credential for this mechanism, costs what one that exists costs, and is answered
  alike up to the proof: with as many iterations and as long a salt as most users have, the same after a restart.
- Nothing is hashed many times on the event loop: the client does that, and whoever sets a password. What is hashed for
  a delegation token is hashed beside the loop, once for a token.
- A delegation token that has ended opens nothing.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.broker.stored.scram import MECHANISMS, MIN_ITERATIONS
from semel.machines.security.authentication import Accepted, Challenge, Judgement, Rejected
from semel.machines.security.principals import USER, Principal
from semel.machines.security.scram import (
    ClientFirst,
    ScramError,
    ScramKeys,
    ScramServer,
    WrongAuthorizationId,
    keys_of,
    keys_of_nobody,
    read_client_first,
    salted_password,
)

if TYPE_CHECKING:
    from semel.broker.security.doors import MechanismSettings
    from semel.broker.server import BrokerServer

#: Kafka's own sentence.
OTHER_AUTHORIZATION_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
#: Iterations and bytes of salt for a delegation token.
_TOKEN_SHAPE = MIN_ITERATIONS, 16
#: Keys of so many delegation tokens are remembered for each mechanism; then they are computed anew.
MAX_TOKEN_KEYS = 10_000
_NUMBERS = {name: number for number, name in MECHANISMS.items()}


class ScramCredential(NamedTuple):
    """What is known about a user by one mechanism."""

    keys: ScramKeys
    principal: Principal
    #: When it expires, in milliseconds since 1970.
    expires_ms: int | None = None


def find_credential(broker: BrokerServer, mechanism: str, user: str) -> ScramCredential | None:
    """The credential of a user."""
    keys = broker.stores.scram.get(user, _NUMBERS[mechanism])
    return None if keys is None else ScramCredential(keys, Principal(USER, user))


class TokenCredentials:
    """The credentials of delegation tokens: the user is a token's id, the password its HMAC in base64, as in Kafka."""

    def __init__(self, broker: BrokerServer, mechanism: str) -> None:
        self._broker = broker
        self._mechanism = mechanism
        #: Of tokens that were used, by their id. Salts are of this process only.
        self._keys: dict[str, ScramKeys] = {}

    async def find(self, token_id: str) -> ScramCredential | None:
        """The credential of a token that has not ended."""
        tokens = self._broker.stores.delegation_tokens.tokens
        if tokens.secret is None or tokens.get(token_id) is None:
            return None
        keys = self._keys.get(token_id)
        if keys is None:
            keys = await self._broker.beside(partial(_token_keys, self._mechanism, tokens.hmac_of(token_id)))
        token = tokens.get(token_id)
        if token is None or token.has_ended(self._broker.now_ms()):
            self._keys.pop(token_id, None)
            return None
        if len(self._keys) >= MAX_TOKEN_KEYS:
            self._keys.clear()
        self._keys[token_id] = keys
        return ScramCredential(keys, token.owner, token.expires_ms)


def _token_keys(mechanism: str, secret: bytes) -> ScramKeys:
    iterations, salt_bytes = _TOKEN_SHAPE
    salt = secrets.token_bytes(salt_bytes)
    salted = salted_password(mechanism, base64.b64encode(secret).decode(), salt, iterations)
    return keys_of(mechanism, salted, salt, iterations)


class ScramMechanism:
    """One of the two, on one listener."""

    def __init__(self, broker: BrokerServer, name: str) -> None:
        self.broker = broker
        self.name = name
        self.tokens = TokenCredentials(broker, name)

    def start(self) -> None:
        """The broker listens. Nothing has to be fetched."""

    def begin(self) -> ScramExchange:
        """A client begins."""
        return ScramExchange(self)


class ScramExchange:
    """One client's exchange."""

    __slots__ = ("_credential", "_first", "_mechanism", "_server")

    def __init__(self, mechanism: ScramMechanism) -> None:
        self._mechanism = mechanism
        self._server = ScramServer(mechanism.name)
        self._first: ClientFirst | None = None
        self._credential: ScramCredential | None = None

    def evaluate(self, token: bytes) -> Judgement | Coroutine[Any, Any, Judgement]:
        """Judge the client's next message."""
        try:
            if self._first is not None:
                return self._finish(self._first, token)
            first = self._first = read_client_first(token)
        except WrongAuthorizationId as error:
            return Rejected(str(error), OTHER_AUTHORIZATION_ID)
        except ScramError as error:
            return Rejected(str(error))
        if first.is_token:
            return self._begin_with_token(first)
        mechanism = self._mechanism
        return self._begin(first, find_credential(mechanism.broker, mechanism.name, first.user))

    async def _begin_with_token(self, first: ClientFirst) -> Judgement:
        return self._begin(first, await self._mechanism.tokens.find(first.user))

    def _begin(self, first: ClientFirst, found: ScramCredential | None) -> Judgement:
        self._credential = found
        # Computed for everybody: who asks cannot tell by the time it takes whether a user exists.
        store, name = self._mechanism.broker.stores.scram, self._mechanism.name
        shape = _TOKEN_SHAPE if first.is_token else store.shape(_NUMBERS[name])
        nobody = keys_of_nobody(name, first.user, store.secret, *shape)
        keys = nobody if found is None else found.keys
        return Challenge(self._server.begin(first, keys, secrets.token_urlsafe(24)))

    def _finish(self, first: ClientFirst, message: bytes) -> Judgement:
        what = "token" if first.is_token else "user"
        try:
            last = self._server.finish(message)
        except ScramError as error:
            known = "" if self._credential is not None else f" (there is no such {what})"
            return Rejected(f"{error}{known}", claimed=first.user)
        if self._credential is None:
            # No password leads to nobody's keys. Should one ever, it is still nobody's.
            return Rejected(f"there is no such {what}", claimed=first.user)
        return Accepted(self._credential.principal, last, self._credential.expires_ms, first.is_token)


def scram(broker: BrokerServer, settings: MechanismSettings) -> ScramMechanism:
    """SCRAM by one of the two hashes. It needs no settings: the users are stored."""
    return ScramMechanism(broker, settings.mechanism)

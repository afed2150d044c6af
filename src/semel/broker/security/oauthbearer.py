"""OAUTHBEARER: a token (JWT) that an issuer signed, checked as Kafka's OAuthBearerValidatorCallbackHandler does.

Guarantees:

- A token is believed only if a key of the issuer made its signature, by an algorithm that the key is for. `none` and
  passwords (HS256) are no signatures.
- Tokens that nobody signed are taken only where `semel.sasl.oauthbearer.unsecured` says so. Kafka takes them unless it
  is told otherwise.
- No token is in a log, an error or a `repr`. The client is told nothing but that its token is not valid.
- A session ends when its token does.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from semel.broker.security.key_source import JWKS_URL, KeySource, key_source
from semel.config import ConfigError
from semel.machines.security.authentication import Accepted, Challenge, Judgement, Rejected
from semel.machines.security.bearer import (
    CLIENT_GAVE_UP,
    INVALID_TOKEN,
    BearerError,
    BearerMessage,
    ClaimRules,
    Jwt,
    read_message,
    read_token,
)
from semel.machines.security.principals import USER, Principal
from semel.security.signing_keys import ALGORITHMS

if TYPE_CHECKING:
    from semel.broker.security.doors import MechanismSettings
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

UNSECURED = "semel.sasl.oauthbearer.unsecured"
#: A token that names no key is tried with so many.
_TRIED_KEYS = 8


class BearerMechanism:
    """OAUTHBEARER on one listener."""

    def __init__(self, broker: BrokerServer, rules: ClaimRules, source: KeySource | None) -> None:
        self._broker = broker
        self._rules = rules
        self._source = source

    def start(self) -> None:
        """The broker listens."""
        if self._source is not None:
            self._source.start()

    def begin(self) -> BearerExchange:
        """A client begins."""
        return BearerExchange(self)

    async def judge(self, message: BearerMessage) -> Judgement:
        """Whether a token is believed, and whom it is about."""
        try:
            token = read_token(message.token)
            await self._check_signature(token)
            subject = self._rules.check(token.claims, self._broker.now_ms())
        except BearerError as error:
            return Challenge(INVALID_TOKEN, Rejected(str(error), INVALID_TOKEN.decode()))
        asked = message.authorization_id
        if asked not in ("", subject.name):
            # Kafka's own sentence.
            told = (
                f"Authentication failed: Client requested an authorization id ({asked}) that is different from the "
                f"token's principal name ({subject.name})"
            )
            return Rejected("the authorization id is not the subject of the token", told, subject.name)
        return Accepted(Principal(USER, subject.name), expires_ms=subject.expires_ms)

    async def _check_signature(self, token: Jwt) -> None:
        algorithm = token.algorithm
        if self._source is None:
            if algorithm != "none" or token.signature:
                raise BearerError(f"a token that is signed ({UNSECURED} takes only those that are not)")
            return
        if algorithm not in ALGORITHMS or ("kid" in token.header and token.key_id is None):
            raise BearerError("the token is not signed by an algorithm that is taken here")
        keys = await self._source.keys()
        if token.key_id is not None and not any(key.key_id == token.key_id for key in keys):
            keys = await self._source.keys_again()
        tried = [
            key for key in keys if algorithm in key.algorithms and token.key_id in (None, key.key_id)
        ]
        if not tried:
            raise BearerError("the token is signed by a key that is not known")
        if not any(key.verifies(algorithm, token.signed, token.signature) for key in tried[:_TRIED_KEYS]):
            raise BearerError("the token's signature is wrong")


class BearerExchange:
    """One client's exchange: its token, and if that is refused one more message."""

    __slots__ = ("_mechanism", "_refusal")

    def __init__(self, mechanism: BearerMechanism) -> None:
        self._mechanism = mechanism
        self._refusal: Rejected | None = None

    def evaluate(self, token: bytes) -> Judgement | Coroutine[Any, Any, Judgement]:
        """Judge the client's message."""
        if self._refusal is not None and token == CLIENT_GAVE_UP:
            return self._refusal
        try:
            message = read_message(token)
        except BearerError as error:
            return Rejected(str(error))
        return self._judge(message)

    async def _judge(self, message: BearerMessage) -> Judgement:
        judgement = await self._mechanism.judge(message)
        if isinstance(judgement, Challenge):
            self._refusal = judgement.refusal
        return judgement


def oauthbearer(broker: BrokerServer, settings: MechanismSettings) -> BearerMechanism:
    """OAUTHBEARER with the issuer of the settings."""
    url, unsecured = settings[JWKS_URL], settings[UNSECURED]
    if url and unsecured:
        raise ConfigError(f"{JWKS_URL} and {UNSECURED}: give one of them, tokens are either signed or they are not")
    if unsecured and settings["sasl.server.callback.handler.class"]:
        raise ConfigError(f"{UNSECURED} and sasl.server.callback.handler.class: the class is one that checks tokens")
    if not url and not unsecured:
        raise ConfigError(
            f"{JWKS_URL}: OAUTHBEARER is enabled, and nobody would check the tokens; give the address of the issuer's "
            f"keys, or set {UNSECURED}=true to believe everybody (only to try things out)"
        )
    rules = ClaimRules(
        settings["sasl.oauthbearer.expected.audience"],
        settings["sasl.oauthbearer.expected.issuer"],
        settings["sasl.oauthbearer.clock.skew.seconds"],
        settings["sasl.oauthbearer.scope.claim.name"],
        settings["sasl.oauthbearer.sub.claim.name"],
        is_unsecured=unsecured,
    )
    if unsecured:
        logger.warning("%s: anybody can be anybody by OAUTHBEARER: no token is checked", UNSECURED)
        return BearerMechanism(broker, rules, None)
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigError(
            "OAUTHBEARER checks signatures with the package cryptography: pip install 'semel[security]'"
        ) from None
    for name, what in (("audience", "that name no audience"), ("issuer", "of every issuer with these keys")):
        if not settings[f"sasl.oauthbearer.expected.{name}"]:
            logger.warning("sasl.oauthbearer.expected.%s is not set: tokens %s are taken", name, what)
    return BearerMechanism(broker, rules, key_source(broker, settings))

"""Saying who we are: SASL on a new connection, and again before the session ends (KIP-368).

Guarantees:

- Nothing but ApiVersions goes out before the broker has accepted the credentials.
- A refusal is `AuthenticationFailed`, at once: the same password would be refused again.
- A SCRAM server must prove that it has the credential too. A password goes over the wire with PLAIN only.
- Hashing a password and asking for a token happen beside the event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from semel.environment import MACHINE
from semel.errors import AuthenticationFailed, Disconnected, ErrorCode, UnsupportedVersion
from semel.machines.security.scram import ScramClient, ScramError
from semel.security.credentials import Credentials
from semel.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

#: A session is renewed when about this much of it is over; the exact moment is chosen by chance, so that a thousand
#: clients that started together do not come back together.
_RENEW_FROM, _RENEW_TO = 0.85, 0.95

#: Sends a request on the connection that is being authenticated, and returns the answer.
Exchange = Callable[[Any], Awaitable[Any]]


def check_sasl_is_not_asked_for(answer: Any, address: str, protocol: str) -> None:
    """Raise `AuthenticationFailed` if the answer to a handshake without a mechanism says that there must be one."""
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "none"
        wanted = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"
        raise AuthenticationFailed(
            ErrorCode.ILLEGAL_SASL_STATE,
            f"{address} asks who we are, and security.protocol={protocol} says nothing: set it to {wanted}, with "
            f"sasl.mechanism (offered: {offered}), sasl.username and sasl.password",
        )


class Authentication:
    """One client's way to authenticate."""

    def __init__(self, credentials: Credentials, chance: Random = MACHINE.chance) -> None:
        self._credentials = credentials
        self._chance = chance

    async def run(self, exchange: Exchange, address: str) -> float | None:
        """Authenticate; returns for how many seconds the connection may be used before it must be done again."""
        mechanism = self._credentials.mechanism
        answer = await exchange(SaslHandshakeRequest(mechanism=mechanism))
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer.mechanisms) or "none"
            raise AuthenticationFailed(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"{address} does not offer {mechanism}; it offers {offered}"
            )
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailed(
                ErrorCode.ILLEGAL_SASL_STATE,
                f"{address} asks nobody to authenticate: set security.protocol to PLAINTEXT or SSL",
            )
        _check(answer, address, "the handshake")
        # Before the exchange, whose failures are the broker's: this one is the provider's.
        token = await asyncio.to_thread(self._token) if mechanism == "OAUTHBEARER" else ""
        try:
            if mechanism == "PLAIN":
                last = await self._plain(exchange, address)
            elif mechanism == "OAUTHBEARER":
                last = await self._bearer(exchange, address, token)
            else:
                last = await self._scram(exchange, address)
        except Disconnected as error:
            # Brokers before SaslAuthenticate, and some after it, say no by closing the connection.
            raise Disconnected(
                ErrorCode.NETWORK_EXCEPTION, f"{address} closed the connection while we authenticated by {mechanism}"
            ) from error
        lifetime_ms = last.session_lifetime_ms
        return None if lifetime_ms <= 0 else lifetime_ms / 1000 * self._chance.uniform(_RENEW_FROM, _RENEW_TO)

    async def _plain(self, exchange: Exchange, address: str) -> Any:
        user, password = self._credentials.username, self._credentials.password
        return await _step(exchange, f"\0{user}\0{password}".encode(), address)

    async def _scram(self, exchange: Exchange, address: str) -> Any:
        found = self._credentials
        client = ScramClient(
            found.mechanism, found.username, found.password, secrets.token_urlsafe(24), is_token=found.is_token
        )
        try:
            challenge = await _step(exchange, client.first(), address)
            proof = await asyncio.to_thread(client.prove, bytes(challenge.auth_bytes))
            last = await _step(exchange, proof, address)
            client.check(bytes(last.auth_bytes))
        except ScramError as error:
            raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{address}: {error}") from None
        return last

    async def _bearer(self, exchange: Exchange, address: str, token: str) -> Any:
        parts = [f"auth=Bearer {token}", *(f"{name}={value}" for name, value in self._credentials.extensions)]
        answer = await _step(exchange, ("n,,\x01" + "\x01".join(parts) + "\x01\x01").encode(), address)
        if answer.auth_bytes:
            # The broker says why it refuses; then it wants one more message before it does.
            why = bytes(answer.auth_bytes).decode(errors="replace")[:200]
            try:
                await _step(exchange, b"\x01", address)
            except AuthenticationFailed:
                raise AuthenticationFailed(
                    ErrorCode.SASL_AUTHENTICATION_FAILED, f"{address} refuses the token: {why}"
                ) from None
            raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{address} asks for more than a token")
        return answer

    def _token(self) -> str:
        provider = self._credentials.token_provider
        assert provider is not None
        try:
            found = provider()
        except ConnectionError as error:
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, str(error)) from error
        except Exception as error:
            raise AuthenticationFailed(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                f"sasl.oauthbearer.token.provider failed: {type(error).__name__}: {error}",
            ) from error
        token = found[0] if isinstance(found, tuple) and found else found
        if not isinstance(token, str) or not token or not token.isascii() or any(sign <= " " for sign in token):
            raise AuthenticationFailed(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                "sasl.oauthbearer.token.provider returned no token: it must be text without spaces, or a tuple that "
                "begins with it",
            )
        return token


async def _step(exchange: Exchange, data: bytes, address: str) -> Any:
    answer = await exchange(SaslAuthenticateRequest(auth_bytes=data))
    _check(answer, address, "the credentials")
    return answer


def _check(answer: Any, address: str, what: str) -> None:
    if answer.error_code == ErrorCode.NONE:
        return
    code = ErrorCode.of(answer.error_code)
    why = getattr(answer, "error_message", None) or code.meaning
    if code is ErrorCode.UNSUPPORTED_VERSION:
        raise UnsupportedVersion(code, f"{address} does not know our version of {what}")
    raise AuthenticationFailed(code, f"{address} refused {what}: {why}")

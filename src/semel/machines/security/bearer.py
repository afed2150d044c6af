"""Bearer tokens (OAUTHBEARER): a client's message (RFC 7628), the parts of a JWT (RFC 7515), and what its claims say.

Guarantees:

- A token that is not exactly of the form the RFCs give is refused: three parts, base64 without padding, JSON objects
  without a key that is there twice. So is one with a critical header (`crit`).
- A token has to say until when it holds (`exp`) and whom it is about. What a broker expects of audience and issuer has
  to be there. A token with an audience is refused where none is expected, as in Kafka: it is for somebody else.
- An authorization id other than the subject's name is refused (CVE-2017-12610).
- A refusal says nothing about the token but that it is not valid.

Signatures are checked elsewhere (`semel.security.signing_keys`): nothing here may be believed before that.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

#: What a client is told about a token that is refused. It answers with a single \x01 and is then refused for good.
INVALID_TOKEN = b'{"status":"invalid_token"}'
CLIENT_GAVE_UP = b"\x01"
#: Tokens are a few KB; a client may not keep us busy with more.
MAX_TOKEN_BYTES = 64 * 1024
_MAX_SUBJECT = 1000
#: Seconds since 1970 that any clock can mean.
_LAST_S = 2**53

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_MESSAGE = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01", re.DOTALL
)
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)


class BearerError(Exception):
    """A message or a token that is refused. The text is for the log, and has no token in it."""


# The message


class BearerMessage(NamedTuple):
    """What a client sends."""

    token: str
    authorization_id: str
    extensions: dict[str, str]


def read_message(data: bytes) -> BearerMessage:
    """Take a client's message apart, or refuse it."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise BearerError("the message is not UTF-8") from None
    found = _MESSAGE.fullmatch(text)
    if found is None:
        raise BearerError("the message is malformed")
    pairs: dict[str, str] = {}
    for pair in filter(None, found["pairs"].split("\x01")):
        name, _, value = pair.partition("=")
        if name in pairs:
            raise BearerError("the message names something twice")
        pairs[name] = value
    auth = _AUTH.fullmatch(pairs.pop("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise BearerError("the message has no bearer token")
    authorization_id = (found["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return BearerMessage(auth["token"], authorization_id, pairs)


# The token


class Jwt(NamedTuple):
    """A token, taken apart. Nothing of it is known to be true."""

    header: dict[str, Any]
    claims: dict[str, Any]
    #: What was signed, and the signature.
    signed: bytes
    signature: bytes

    @property
    def algorithm(self) -> str:
        """The algorithm that the token names; empty where it names none."""
        found = self.header.get("alg")
        return found if isinstance(found, str) else ""

    @property
    def key_id(self) -> str | None:
        """The key that the token names."""
        found = self.header.get("kid")
        return found if isinstance(found, str) else None


def read_token(token: str) -> Jwt:
    """Take a token apart, or refuse it."""
    if len(token) > MAX_TOKEN_BYTES:
        raise BearerError(f"the token has more than {MAX_TOKEN_BYTES} bytes")
    parts = token.split(".")
    if len(parts) != 3:
        raise BearerError("the token does not have three parts")
    header, claims = _object(parts[0], "header"), _object(parts[1], "claims")
    if "crit" in header:
        raise BearerError("the token has a critical header, which nobody here knows")
    return Jwt(header, claims, f"{parts[0]}.{parts[1]}".encode(), _decoded(parts[2], "signature"))


def _decoded(text: str, what: str) -> bytes:
    # One text for one value: no padding, no other alphabet, no bits that are left over.
    try:
        if _PART.fullmatch(text):
            data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            if base64.urlsafe_b64encode(data).rstrip(b"=").decode() == text:
                return data
    except binascii.Error:
        pass
    raise BearerError(f"the token's {what} is not base64")


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(_decoded(text, what).decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise BearerError(f"the token's {what} cannot be read as JSON, each key once") from None
    if not isinstance(found, dict):
        raise BearerError(f"the token's {what} is not a JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


# The claims


class Subject(NamedTuple):
    """Whom a token is about, and until when, in milliseconds since 1970."""

    name: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """What a broker expects of a token."""

    audiences: Collection[str] = ()
    issuer: str | None = None
    clock_skew_s: int = 30
    scope_claim: str = "scope"
    subject_claim: str = "sub"
    #: Tokens that nobody signed need not say when they were made, nor for whom, as in Kafka.
    is_unsecured: bool = False

    def check(self, claims: dict[str, Any], now_ms: int) -> Subject:
        """Whom the token is about; refuses what has expired, is for others or says nothing."""
        now_s = now_ms / 1000
        expires_s = self._time(claims, "exp")
        issued_s, begins_s = self._time(claims, "iat"), self._time(claims, "nbf")
        if expires_s is None:
            raise BearerError("the token does not say when it expires")
        if issued_s is None and not self.is_unsecured:
            raise BearerError("the token does not say when it was issued")
        if now_s - self.clock_skew_s >= expires_s:
            raise BearerError("the token has expired")
        if begins_s is not None and now_s + self.clock_skew_s < begins_s:
            raise BearerError("the token does not hold yet")
        for start_s in (issued_s, begins_s):
            if start_s is not None and start_s > expires_s:
                raise BearerError("the token expires before it begins")
        self._check_audience(claims)
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise BearerError("the token is not of the expected issuer")
        self._check_scope(claims)
        return Subject(self._subject(claims), int(expires_s * 1000))

    @staticmethod
    def _time(claims: dict[str, Any], name: str) -> float | None:
        found = claims.get(name)
        if found is None:
            return None
        # The comparison alone also refuses infinity, NaN, and whole numbers that no float can hold.
        if type(found) not in (int, float) or not 0 <= found <= _LAST_S:
            raise BearerError(f"the token's {name} is not a time")
        return float(found)

    def _check_audience(self, claims: dict[str, Any]) -> None:
        found = claims.get("aud")
        named = [found] if isinstance(found, str) else found
        if named is not None and not (isinstance(named, list) and all(isinstance(one, str) for one in named)):
            raise BearerError("the token's audience is neither text nor a list of texts")
        if self.is_unsecured or (named is None and not self.audiences):
            return
        if not set(named or ()) & set(self.audiences):
            raise BearerError("the token is not for the expected audience")

    def _check_scope(self, claims: dict[str, Any]) -> None:
        # Nothing here asks for a scope. As in Kafka it may be missing, and is refused where it makes no sense.
        found = claims.get(self.scope_claim)
        scopes = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        if not all(isinstance(one, str) and one.strip() for one in scopes):
            raise BearerError(f"the token's {self.scope_claim} has an empty part, or one that is no text")
        if len({one.strip() for one in scopes}) != len(scopes):
            raise BearerError(f"the token's {self.scope_claim} names something twice")

    def _subject(self, claims: dict[str, Any]) -> str:
        found = claims.get(self.subject_claim)
        if not isinstance(found, str) or not found.strip():
            raise BearerError(f"the token has no {self.subject_claim}")
        # Kafka takes spaces off, so that two subjects of the issuer would be one user.
        if found != found.strip() or not found.isprintable() or len(found) > _MAX_SUBJECT:
            raise BearerError(f"the token's {self.subject_claim} is no name of a user")
        return found

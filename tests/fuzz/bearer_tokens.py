"""Bearer tokens: a client is believed only for a token that is signed, in time, and for this broker.

Signatures are made by a keyed hash here: to check a real one takes longer than all the rest. Sets of keys (JWKS) are
read as they come from an issuer.
"""

from __future__ import annotations

import base64
import hmac
import json
from types import SimpleNamespace
from typing import Any, NamedTuple

from semel.broker.security.oauthbearer import BearerMechanism
from semel.machines.security.authentication import Accepted, Challenge, Judgement, Rejected
from semel.machines.security.bearer import ClaimRules
from semel.security.signing_keys import ALGORITHMS, MAX_KEYS, KeysError, read_keys
from tests.fuzz.target import Draw, Target, expect

NOW_S = 1_700_000_000
SKEW_S = 30
HEADERS = (
    b'{"alg":"ES256","kid":"one"}',
    b'{"alg":"ES256"}',
    b'{"alg":"none"}',
    b'{"alg":"HS256","kid":"one"}',
    b'{"alg":"ES256","kid":5}',
    b'{"alg":"ES256","kid":"one","crit":["exp"]}',
)
CLAIMS = (
    b'{"sub":"alice","iat":1699999990,"exp":1700003600,"aud":"kafka","iss":"issuer"}',
    b'{"sub":"alice","iat":1699999990,"exp":1700003600.5,"nbf":1699999990,"aud":["x","kafka"],"scope":["a","b"]}',
    b'{"sub":"alice","iat":1699999990,"exp":1699999960}',
    b'{"sub":" alice","iat":1,"exp":1e300,"nbf":-1}',
    b'{"sub":"alice","exp":1' + b"0" * 400 + b"}",
)


class Key(NamedTuple):
    """A key whose signatures are a keyed hash."""

    key_id: str | None = "one"
    algorithms: frozenset[str] = frozenset({"ES256"})

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        expect(algorithm in self.algorithms, f"a key is used for {algorithm}")
        return hmac.compare_digest(signature, right_signature(signed))


class Source:
    """An issuer's keys that never change."""

    async def keys(self) -> tuple[Key, ...]:
        return (Key(), Key("two", frozenset({"RS256"})))

    keys_again = keys


def right_signature(signed: bytes) -> bytes:
    return hmac.digest(b"key of the issuer", signed, "sha256")


RULES = (
    ClaimRules(),
    ClaimRules(("kafka", "other"), "issuer", SKEW_S),
    ClaimRules(("kafka",), None, SKEW_S, "scp", "sub"),
    ClaimRules(is_unsecured=True),
)
_BROKER: Any = SimpleNamespace(now_ms=lambda: NOW_S * 1000)


def encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def judged(mechanism: BearerMechanism, message: bytes) -> Judgement:
    found: Any = mechanism.begin().evaluate(message)
    if hasattr(found, "send"):
        try:
            found.send(None)
        except StopIteration as done:
            found = done.value
        else:
            expect(False, "a judgement waits for nobody")
    expect(isinstance(found, (Accepted, Challenge, Rejected)), f"no judgement: {found!r:.80}")
    return found  # type: ignore[no-any-return]


def one(data: bytes) -> None:
    draw = Draw(data)
    kind = draw.byte() % 4
    if kind == 3:
        keys_of(draw.rest())
        return
    rules = draw.pick(RULES)
    mechanism = BearerMechanism(_BROKER, rules, None if rules.is_unsecured else Source())  # type: ignore[arg-type]
    if kind == 2:
        # Nobody can make up a token that is signed.
        found = judged(mechanism, draw.rest())
        expect(rules.is_unsecured or not isinstance(found, Accepted), "a token is believed that nobody signed")
        return
    is_signed = draw.byte() & 3 != 3
    header = draw.pick(HEADERS) if draw.byte() & 1 else draw.short()
    asked = draw.pick((b"", b"", b"a=alice", b"a=bob"))
    claims = draw.rest() if kind else draw.pick(CLAIMS)
    signed = encoded(header) + b"." + encoded(claims)
    signature = b"" if rules.is_unsecured else right_signature(signed) if is_signed else b"forged"
    found = judged(mechanism, b"n,%s,\x01auth=Bearer %s.%s\x01\x01" % (asked, signed, encoded(signature)))
    if isinstance(found, Accepted):
        check_accepted(found, rules, header, claims, is_signed=is_signed, asked=asked)


def check_accepted(
    found: Accepted, rules: ClaimRules, header: bytes, claims: bytes, *, is_signed: bool, asked: bytes
) -> None:
    """A second opinion, from the texts that were signed."""
    said, told = json.loads(claims), json.loads(header)
    expect(told["alg"] == ("none" if rules.is_unsecured else "ES256") and "crit" not in told, f"believed: {told}")
    expect(is_signed or rules.is_unsecured, "a forged token is believed")
    name = said[rules.subject_claim]
    expect(found.principal == ("User", name) and name == name.strip() and name, f"believed to be {found.principal}")
    expect(asked in (b"", b"a=" + name.encode()), f"{name} may be {asked!r}")
    expect(said["exp"] > NOW_S - SKEW_S, "a token that has expired is believed")
    expect(found.expires_ms == int(said["exp"] * 1000), "a session of another length than the token's")
    expect(said.get("nbf") is None or said["nbf"] <= NOW_S + SKEW_S, "a token is believed before its time")
    if not rules.is_unsecured:
        named = said.get("aud")
        audiences = {named} if isinstance(named, str) else set(named or ())
        expect(audiences & set(rules.audiences) or (not audiences and not rules.audiences), "a token for others")
        expect(rules.issuer in (None, said.get("iss")), "a token of another issuer")
        expect(said["iat"] <= said["exp"], "a token that ends before it began")


def keys_of(document: bytes) -> None:
    try:
        keys = read_keys(document)
    except KeysError:
        return
    expect(0 < len(keys) <= MAX_KEYS, f"{len(keys)} keys")
    for key in keys:
        expect(key.algorithms and key.algorithms <= set(ALGORITHMS), f"a key for {key.algorithms}")
        for algorithm in key.algorithms:
            expect(not key.verifies(algorithm, b"signed", b"\0" * 64), "zeros are a signature")


def seeds() -> list[bytes]:
    found = []
    for rules in range(len(RULES)):
        for claims in range(len(CLAIMS)):
            header = 2 if rules == 3 else claims % 2
            found.append(bytes([0, rules, 0, 1, header, claims % 4, claims]))
            found.append(bytes([1, rules, 0, 1, header, 0]) + CLAIMS[claims])
        found.append(bytes([1, rules, 3, 1, 0, 0]) + CLAIMS[0])
        found.append(bytes([1, rules, 0, 0, len(HEADERS[0])]) + HEADERS[0] + b"\0" + CLAIMS[0])
        token = b".".join((encoded(HEADERS[0]), encoded(CLAIMS[0]), encoded(b"forged")))
        found.append(bytes([2, rules]) + b"n,a=alice,\x01auth=Bearer " + token + b"\x01name=value\x01\x01")
    x, y = "axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY", "T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU"
    point = f'"kty":"EC","crv":"P-256","x":"{x}","y":"{y}"'
    modulus = base64.urlsafe_b64encode((2**2047 + 2**1000 + 1).to_bytes(256, "big")).rstrip(b"=").decode()
    for row in (
        point + ',"kid":"one","use":"sig","alg":"ES256"',
        f'"kty":"RSA","e":"AQAB","n":"{modulus}"',
        '"kty":"oct","k":"AA"',
    ):
        found.append(b"\x03" + f'{{"keys":[{{{row}}}]}}'.encode())
    return found


TARGET = Target(
    "a client is believed only for a token that is signed, in time and for this broker; any keys are read or refused",
    one,
    seeds,
    max_bytes=700,
)

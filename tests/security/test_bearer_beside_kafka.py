"""Bearer tokens: the same messages to Apache Kafka's validator and to ours are believed alike and answered alike.

Where we are stricter than Kafka, the table below says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import semel
from semel.errors import AuthenticationFailed
from semel.wire.messages.metadata import MetadataRequest
from tests.security.sasl_talk import CLOSED, Talk
from tests.security.token_brokers import AUDIENCE, ISSUER, KEYS, TokenBroker
from tests.support.token_issuer import SigningKey, claims, encoded, sign, token

pytestmark = pytest.mark.java

RSA, EC = KEYS["RS256"], KEYS["ES256"]
STRANGER = SigningKey("rs256")  # the name of a key that is known, and another key


def bearer(text: str, authorization_id: str = "", extensions: str = "") -> bytes:
    name = f"a={authorization_id}" if authorization_id else ""
    return f"n,{name},\x01auth=Bearer {text}\x01{extensions}\x01".encode()


def unsigned(content: dict[str, object] | None = None, algorithm: str = "none", signature: str = "") -> str:
    header = json.dumps({"alg": algorithm, "kid": "rs256"})
    return f"{encoded(header.encode())}.{encoded(json.dumps(content or claims()).encode())}.{signature}"


def tampered(text: str) -> str:
    header, _, signature = text.split(".")
    return f"{header}.{encoded(json.dumps(claims('mallory')).encode())}.{signature}"


def strict(**more: object) -> dict[str, object]:
    """Claims for the listener that expects an audience and an issuer, and has names of its own for two claims."""
    own = {"aud": AUDIENCE, "iss": ISSUER, "preferred_username": "alice", "scp": "all", "scope": None, "sub": None}
    return claims(**{**own, **more})  # type: ignore[arg-type]


def talk_through(talk: Talk, *messages: bytes) -> Any:
    """The handshake, then these messages: codes, texts and data, and whether the client is served in the end."""
    noted: list[Any] = [talk.handshake("OAUTHBEARER")[0]]
    for message in messages:
        answer = talk.authenticate(message)
        if answer == CLOSED:
            return [*noted, CLOSED]
        noted.append((answer.error_code, answer.error_message, bytes(answer.auth_bytes)))
    answer = talk.tell(MetadataRequest(topics=[]))
    return [*noted, answer if answer == CLOSED else answer.error_code]


# Made anew for each test: a run of all tests takes longer than a token lives.


def tokens() -> dict[str, str]:
    """Tokens for the listener without expectations."""
    now = int(time.time())
    good = token(RSA)
    return {
        **{f"signed by {name}": token(key) for name, key in KEYS.items()},
        "RS384 by a key for RS256": sign(RSA, '{"alg":"RS384","kid":"rs256"}', claims()),
        "no kid": token(RSA, kid=None),
        "no kid, second key": token(EC, kid=None),
        "unknown kid": token(RSA, kid="nobody"),
        "a key of another kind": token(RSA, kid="es256"),
        "another curve": token(KEYS["ES384"], kid="es256"),
        "a stranger's key under a known name": token(STRANGER),
        "tampered": tampered(good),
        "none": unsigned(),
        "None": unsigned(algorithm="None"),
        "none with a signature": unsigned(signature="AAAA"),
        "no signature": good.rsplit(".", 1)[0] + ".",
        "HS256": unsigned(algorithm="HS256", signature=encoded(bytes(32))),
        "no alg": sign(RSA, '{"kid":"rs256"}', claims()),
        "crit": token(RSA, crit=["exp"]),
        "another type": token(RSA, typ="at+jwt"),
        "a key of its own": token(STRANGER, jwk=STRANGER.jwk()),
        "two parts": good.rsplit(".", 1)[0],
        "four parts": good + ".AAAA",
        "one part": "opaque",
        "empty parts": "..",
        "a header that is no JSON": f"{encoded(b'no')}.{good.split('.', 1)[1]}",
        "claims that are no JSON": token(RSA, "no"),
        "claims that are a list": token(RSA, "[]"),
        "a claim twice": token(RSA, json.dumps(claims())[:-1] + ',"sub":"mallory"}'),
        "expired": token(RSA, claims(exp=now - 60)),
        "expired within the clock's skew": token(RSA, claims(iat=now - 100, exp=now - 5)),
        "issued a while ago": token(RSA, claims(iat=now - 100, exp=now + 600)),
        "no exp": token(RSA, claims(exp=None)),
        "exp is text": token(RSA, claims(exp="tomorrow")),
        "exp is negative": token(RSA, claims(exp=-1)),
        "no iat": token(RSA, claims(iat=None)),
        "iat after exp": token(RSA, claims(iat=now + 9000)),
        "iat in an hour": token(RSA, claims(iat=now + 3000)),
        "nbf in an hour": token(RSA, claims(nbf=now + 3000)),
        "nbf is over": token(RSA, claims(nbf=now - 10)),
        "an audience": token(RSA, claims(aud="others")),
        "an issuer": token(RSA, claims(iss="https://others.example")),
        "no sub": token(RSA, claims(sub=None)),
        "sub is empty": token(RSA, claims("")),
        "sub is a space": token(RSA, claims(" ")),
        "sub is a number": token(RSA, claims(sub=7)),
        "no scope": token(RSA, claims(scope=None)),
        "scope is text": token(RSA, claims(scope="a b")),
        "scope is empty": token(RSA, claims(scope="")),
        "scope is a list": token(RSA, claims(scope=["a", "b"])),
        "scope is an empty list": token(RSA, claims(scope=[])),
        "scope names something twice": token(RSA, claims(scope=["a", "a"])),
        "scope is a number": token(RSA, claims(scope=7)),
    }


def strict_tokens() -> dict[str, str]:
    """Tokens for the listener that expects an audience and an issuer."""
    now = int(time.time())
    return {
        "right": token(RSA, strict()),
        "several audiences": token(RSA, strict(aud=["x", AUDIENCE])),
        "another audience": token(RSA, strict(aud="x")),
        "no audience": token(RSA, strict(aud=None)),
        "audience is a number": token(RSA, strict(aud=7)),
        "another issuer": token(RSA, strict(iss="https://others.example")),
        "no issuer": token(RSA, strict(iss=None)),
        "issuer in other letters": token(RSA, strict(iss=ISSUER.upper())),
        "the usual names of claims": token(RSA, claims(aud=AUDIENCE, iss=ISSUER)),
        "expired five seconds ago": token(RSA, strict(exp=now - 5, iat=now - 50)),
    }


def tokens_that_only_kafka_takes() -> dict[str, str]:
    """What we refuse and Kafka takes."""
    return {
        "sub has spaces around it": token(RSA, claims(" alice ")),
        "sub has a line break in it": token(RSA, claims("a\nb")),
    }


def messages() -> dict[str, list[bytes]]:
    """Messages around a token that is right."""
    good = token(RSA)
    return {
        "right": [bearer(good)],
        "scheme in small letters": [bearer(good).replace(b"Bearer", b"bearer")],
        "no scheme": [bearer(good).replace(b"Bearer ", b"")],
        "no token": [b"n,,\x01auth=Bearer \x01\x01"],
        "no auth": [b"n,,\x01host=x\x01\x01"],
        "nothing": [b""],
        "\\x01 first": [b"\x01"],
        "own authorization id (CVE-2017-12610)": [bearer(good, "alice")],
        "other authorization id (CVE-2017-12610)": [bearer(good, "admin")],
        "other authorization id and a wrong token": [bearer(token(STRANGER), "admin"), b"\x01"],
        "extensions": [bearer(good, extensions="traceId=12 3\x01logicalCluster=lkc\x01")],
        "extension without a value": [bearer(good, extensions="traceId=\x01")],
        "extension with a digit": [bearer(good, extensions="trace1=x\x01")],
        "channel binding": [bearer(good).replace(b"n,", b"p=tls-unique,", 1)],
        "y": [bearer(good).replace(b"n,", b"y,", 1)],
        "one \\x01 too few": [bearer(good)[:-1]],
        "something after the end": [bearer(good) + b"x"],
        "not UTF-8": [bearer(good) + b"\xff"],
        "zero bytes": [bearer(good).replace(b",,", b",a=\x00,")],
        "wrong, and the client gives up": [bearer(token(STRANGER)), b"\x01"],
        "wrong, and the client says something else": [bearer(token(STRANGER)), b"more"],
        "wrong, and then right": [bearer(token(STRANGER)), bearer(good)],
        "wrong twice": [bearer(token(STRANGER)), bearer(token(STRANGER)), b"\x01"],
        "PLAIN's message": [b"\0alice\0al1ce"],
    }


def both(kafka: TokenBroker, semel: TokenBroker, listener: str, script: Callable[[Talk], Any]) -> tuple[Any, Any]:
    found = []
    for place in (semel, kafka):
        with Talk(place.address(listener)) as talk:
            found.append(script(talk))
    return found[0], found[1]


@pytest.mark.parametrize("name", tokens())
def test_a_token_is_believed_where_kafka_believes_it(
    token_kafka: TokenBroker, token_semel: TokenBroker, name: str
) -> None:
    sent = [bearer(tokens()[name])]
    ours, kafkas = both(token_kafka, token_semel, "CLIENTS", lambda talk: talk_through(talk, *sent))
    assert ours == kafkas, f"Kafka: {kafkas}"


@pytest.mark.parametrize("name", strict_tokens())
def test_audience_issuer_and_names_of_claims_are_checked_as_in_kafka(
    token_kafka: TokenBroker, token_semel: TokenBroker, name: str
) -> None:
    sent = [bearer(strict_tokens()[name])]
    ours, kafkas = both(token_kafka, token_semel, "STRICT", lambda talk: talk_through(talk, *sent))
    assert ours == kafkas, f"Kafka: {kafkas}"


@pytest.mark.parametrize("name", messages())
def test_a_client_is_told_what_kafka_tells_it(token_kafka: TokenBroker, token_semel: TokenBroker, name: str) -> None:
    sent = messages()[name]
    ours, kafkas = both(token_kafka, token_semel, "CLIENTS", lambda talk: talk_through(talk, *sent))
    assert ours == kafkas, f"Kafka: {kafkas}"


@pytest.mark.parametrize("name", tokens_that_only_kafka_takes())
def test_where_we_are_stricter_than_kafka(token_kafka: TokenBroker, token_semel: TokenBroker, name: str) -> None:
    sent = bearer(tokens_that_only_kafka_takes()[name])
    ours, kafkas = both(token_kafka, token_semel, "CLIENTS", lambda talk: talk_through(talk, sent))
    assert kafkas == [0, (0, "", b""), 0]
    assert ours[1] == (0, "", b'{"status":"invalid_token"}')


def test_another_scheme_is_answered_and_kafka_only_hangs_up(token_kafka: TokenBroker, token_semel: TokenBroker) -> None:
    sent = bearer(token(RSA)).replace(b"Bearer", b"Basic")
    ours, kafkas = both(token_kafka, token_semel, "CLIENTS", lambda talk: talk_through(talk, sent))
    assert (ours[1][0], kafkas) == (58, [0, CLOSED])


@pytest.mark.parametrize(("listener", "lifetime_s"), [("CLIENTS", 3600), ("CLIENTS", 2), ("SHORT", 3600), ("SHORT", 2)])
def test_a_session_lasts_as_long_as_its_token_and_the_listener_allow(
    token_kafka: TokenBroker, token_semel: TokenBroker, listener: str, lifetime_s: int
) -> None:
    def lifetime(talk: Talk) -> Any:
        expires = int(time.time()) + lifetime_s
        talk.handshake("OAUTHBEARER")
        answer = talk.authenticate(bearer(token(RSA, claims(exp=expires))))
        most_ms = 3000 if listener == "SHORT" else 10**9
        expected = min(expires * 1000 - time.time() * 1000, most_ms)
        return answer.error_code, abs(answer.session_lifetime_ms - expected) < 1000

    ours, kafkas = both(token_kafka, token_semel, listener, lifetime)
    assert ours == kafkas == (0, True)


@pytest.mark.parametrize("where", ["kafka", "semel"])
@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_our_client_comes_in_with_a_token_that_is_checked(
    token_kafka: TokenBroker, token_semel: TokenBroker, where: str, algorithm: str
) -> None:
    place = token_kafka if where == "kafka" else token_semel
    settings = {
        "bootstrap.servers": place.address(),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.provider": lambda: token(KEYS[algorithm]),
        "sasl.oauthbearer.extensions": "traceId=7",
    }
    with semel.Producer(settings) as producer:
        assert producer.send(f"signed-by-{algorithm.lower()}", value=b"1").result(30).offset == 0
    refused = {**settings, "sasl.oauthbearer.token.provider": lambda: token(STRANGER)}
    with pytest.raises(AuthenticationFailed, match="invalid_token"), semel.Admin(refused) as admin:
        admin.list_topics()

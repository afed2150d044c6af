"""Bearer tokens: a client's message, the form of a token, and what its claims have to say."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.machines.security.bearer import (
    MAX_TOKEN_BYTES,
    BearerError,
    ClaimRules,
    Subject,
    read_message,
    read_token,
)

NOW_MS = 1_000_000_000


def part(content: object) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(header: object = None, claims: object = None, signature: str = "AAAA") -> str:
    return f"{part(header or {'alg': 'RS256', 'kid': 'k'})}.{part(claims or {'sub': 'alice'})}.{signature}"


def claims(**more: Any) -> dict[str, Any]:
    found = {"sub": "alice", "iat": 1_000_000, "exp": 1_000_100, **more}
    return {name: value for name, value in found.items() if value is not None}


def refusal(rules: ClaimRules, content: dict[str, Any], now_ms: int = NOW_MS) -> str:
    with pytest.raises(BearerError) as refused:
        rules.check(content, now_ms)
    return str(refused.value)


def test_a_message_has_a_token_an_authorization_id_and_extensions() -> None:
    found = read_message(b"n,a=a=2Cb=3Dc,\x01auth=Bearer abc.def.ghi\x01traceId=1 2\x01\x01")
    assert found == ("abc.def.ghi", "a,b=c", {"traceId": "1 2"})
    assert read_message(b"n,,\x01auth=bearer  t==\x01\x01") == ("t==", "", {})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01", b"n,,\x01auth=Bearer x\x01a=1\x01a=2\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01", b"n,a=,\x01auth=Bearer x\x01\x01", b"n,a=x=zz,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer x\x01\x01\n", b"n,,\x01auth=Bearer x\xff\x01\x01", b"n,,\x01auth=Bearer x y\x01\x01",
    ],
)
def test_a_message_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(BearerError):
        read_message(data)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_of_messages(data: bytes) -> None:
    try:
        read_message(data)
    except BearerError:
        pass


@given(st.text(alphabet="AQIDefg_-.{}", max_size=80))
def test_no_text_breaks_the_reader_of_tokens(text: str) -> None:
    try:
        read_token(text)
    except BearerError:
        pass


def test_a_token_is_taken_apart() -> None:
    found = read_token(token())
    assert (found.algorithm, found.key_id, found.claims, found.signature) == ("RS256", "k", {"sub": "alice"}, b"\0\0\0")
    assert found.signed.decode() == token().rsplit(".", 1)[0]


@pytest.mark.parametrize(
    "text",
    [
        "", "..", "a.b", "opaque", token() + ".AAAA", token() + "=", token().replace(".", ". ", 1), " " + token(),
        token(signature="AAAB=").replace("AAAB=", "AA/+"), token(signature="AB"), token(signature="A"),
        token([1]), token(claims=b"[]"), token(claims=b'{"a":1,"a":2}'), token(claims=b'{"x":{"a":1,"a":2}}'),
        token(b'{"alg":"RS256","alg":"none"}'), token(claims=b'{"exp":NaN}'), token(claims=b'{"exp":Infinity}'),
        token(claims=b"\xff\xfe"), token(claims=b"[" * 30_000), token(claims=b'{"a":' * 5000),
        token(claims=b'{"exp":' + b"9" * 5000 + b"}"), token({"alg": "RS256", "crit": ["exp"]}),
        token({"alg": "RS256", "crit": []}), token(claims={"sub": "x" * MAX_TOKEN_BYTES}),
    ],
)
def test_a_token_of_another_form_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(BearerError) as refused:
        read_token(text)
    assert not text.strip(".") or text not in str(refused.value)


def test_claims_name_the_subject_and_the_end() -> None:
    assert ClaimRules().check(claims(), NOW_MS) == Subject("alice", 1_000_100_000)
    bob = ClaimRules(subject_claim="u").check(claims(u="bob", exp=1_000_100.5), NOW_MS)
    assert bob == Subject("bob", 1_000_100_500)


def test_a_token_ends_with_the_clock_skew_after_its_exp() -> None:
    rules = ClaimRules(clock_skew_s=10)
    rules.check(claims(), 1_000_109_999)
    assert "expired" in refusal(rules, claims(), 1_000_110_000)
    assert "expired" in refusal(ClaimRules(clock_skew_s=0), claims(), 1_000_100_000)


def test_a_token_does_not_hold_before_its_nbf() -> None:
    rules = ClaimRules(clock_skew_s=10)
    rules.check(claims(nbf=1_000_010), NOW_MS)
    assert "not hold yet" in refusal(rules, claims(nbf=1_000_011), NOW_MS)


@pytest.mark.parametrize("name", ["exp", "iat"])
def test_a_token_says_when_it_was_issued_and_when_it_expires(name: str) -> None:
    refusal(ClaimRules(), claims(**{name: None}))


@pytest.mark.parametrize("name", ["exp", "iat", "nbf"])
@pytest.mark.parametrize("value", ["1000100", True, -1, 2**60, 10**400, [], {}, 1e300, float("inf"), float("nan")])
def test_a_time_is_a_number_that_a_clock_can_show(name: str, value: object) -> None:
    assert "not a time" in refusal(ClaimRules(), claims(**{name: value}))


def test_audience_and_issuer_are_those_expected() -> None:
    rules = ClaimRules(audiences=("kafka", "k2"), issuer="https://i")
    good = claims(aud=["x", "k2"], iss="https://i")
    rules.check(good, NOW_MS)
    for wrong in ({"aud": "x"}, {"aud": None}, {"aud": []}, {"aud": 7}, {"aud": ["kafka", 7]}, {"aud": "kafka k2"}):
        assert "audience" in refusal(rules, {**good, **wrong})
    for other in (None, "https://j", ["https://i"]):
        assert "issuer" in refusal(rules, {**good, "iss": other})
    # For whom a token is, counts also where nobody said whom to expect.
    assert "audience" in refusal(ClaimRules(), claims(aud="somebody"))


@pytest.mark.parametrize("subject", ["", " ", " alice", "alice\n", "a\0b", "a\x1bb", 7, None, ["alice"], "x" * 1001])
def test_a_subject_is_the_name_of_a_user(subject: object) -> None:
    refusal(ClaimRules(), claims(sub=subject))


@pytest.mark.parametrize("scope", ["", [""], ["a", "a"], ["a", 7], [" "]])
def test_a_scope_that_makes_no_sense_is_refused(scope: object) -> None:
    assert "scope" in refusal(ClaimRules(), claims(scope=scope))

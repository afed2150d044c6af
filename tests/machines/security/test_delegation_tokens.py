"""Delegation tokens: who may do what to a token, and when it ends."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from semel.errors import ErrorCode, Refused
from semel.machines.security.delegation_tokens import (
    MAX_RENEWERS_BYTES,
    MAX_TOKENS_OF_ONE,
    DelegationToken,
    DelegationTokens,
    TokenLimits,
)
from semel.machines.security.principals import Principal

ALICE, BOB, CAROL = (Principal("User", name) for name in ("alice", "bob", "carol"))
SECRET = b"the broker's key"


@pytest.fixture
def tokens() -> DelegationTokens:
    return DelegationTokens(SECRET, TokenLimits(max_lifetime_ms=1000, expiry_time_ms=100))


def made(
    tokens: DelegationTokens, *renewers: Principal, owner: Principal = ALICE, max_lifetime_ms: int = -1
) -> DelegationToken:
    token = tokens.create(f"id-{len(list(tokens))}", owner, ALICE, renewers, max_lifetime_ms, 5000)
    tokens.put(token)
    return token


def code_of(call: object, *arguments: object) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        call(*arguments)  # type: ignore[operator]
    return refused.value.code


def test_the_hmac_is_kafkas_so_that_a_token_of_the_same_key_and_id_is_the_same(tokens: DelegationTokens) -> None:
    token = made(tokens)
    assert tokens.hmac_of(token.token_id) == hmac.new(SECRET, b"id-0", hashlib.sha512).digest()


@pytest.mark.parametrize(
    ("asked_ms", "expires_ms", "max_ms"), [(-1, 5100, 6000), (0, 5100, 6000), (50, 5050, 5050), (2**63 - 1, 5100, 6000)]
)
def test_a_token_lives_as_long_as_asked_and_never_longer_than_the_settings_allow(
    tokens: DelegationTokens, asked_ms: int, expires_ms: int, max_ms: int
) -> None:
    token = made(tokens, max_lifetime_ms=asked_ms)
    assert (token.issued_ms, token.expires_ms, token.max_ms) == (5000, expires_ms, max_ms)


@pytest.mark.parametrize(("period_ms", "expires_ms"), [(-1, 5150), (0, 5150), (30, 5080), (10**9, 5150)])
def test_renewing_moves_the_end_within_the_usual_period(
    tokens: DelegationTokens, period_ms: int, expires_ms: int
) -> None:
    secret = tokens.hmac_of(made(tokens).token_id)
    assert tokens.renew(secret, ALICE, period_ms, 5050).expires_ms == expires_ms


def test_nobody_renews_a_token_beyond_its_longest_lifetime(tokens: DelegationTokens) -> None:
    token = made(tokens)
    secret = tokens.hmac_of(token.token_id)
    for now_ms in range(5050, 6000, 50):
        token = tokens.renew(secret, ALICE, -1, now_ms)
        tokens.put(token)
        assert token.expires_ms <= token.max_ms == 6000
    assert code_of(tokens.renew, secret, ALICE, -1, 6000) is ErrorCode.DELEGATION_TOKEN_EXPIRED


@pytest.mark.parametrize(("period_ms", "expires_ms"), [(-1, 5050), (0, 5050), (30, 5080), (10**9, 6000)])
def test_expiring_moves_the_end_to_where_it_is_asked_for(
    tokens: DelegationTokens, period_ms: int, expires_ms: int
) -> None:
    secret = tokens.hmac_of(made(tokens).token_id)
    assert tokens.expire(secret, ALICE, period_ms, 5050).expires_ms == expires_ms


def test_only_the_owner_and_the_renewers_change_a_token_and_not_who_asked_for_it(tokens: DelegationTokens) -> None:
    secret = tokens.hmac_of(made(tokens, CAROL, owner=BOB).token_id)
    for who in (BOB, CAROL):
        tokens.renew(secret, who, -1, 5050)
        tokens.expire(secret, who, 10, 5050)
    for call in (tokens.renew, tokens.expire):
        assert code_of(call, secret, ALICE, -1, 5050) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert code_of(call, b"another", BOB, -1, 5050) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert code_of(call, b"", BOB, -1, 5050) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_a_token_has_ended_in_the_millisecond_of_its_end(tokens: DelegationTokens) -> None:
    token = made(tokens)
    assert not token.has_ended(5099)
    assert token.has_ended(5100)
    assert tokens.ended(5099) == []
    assert tokens.ended(5100) == [token.token_id]


def test_what_was_removed_is_found_no_more(tokens: DelegationTokens) -> None:
    secret = tokens.hmac_of(made(tokens).token_id)
    tokens.remove("id-0")
    tokens.remove("id-0")
    assert list(tokens) == []
    assert code_of(tokens.renew, secret, ALICE, -1, 5050) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_a_description_shows_what_concerns_the_owners_that_are_named(tokens: DelegationTokens) -> None:
    own, others, renewed = made(tokens), made(tokens, owner=BOB), made(tokens, CAROL)
    assert list(tokens.described(None)) == [own, others, renewed]
    assert list(tokens.described([])) == []
    assert list(tokens.described([BOB])) == [others]
    assert list(tokens.described([CAROL])) == [renewed]
    assert list(tokens.described([ALICE])) == [own, others, renewed]  # who asked for a token is concerned too


def test_without_a_key_there_are_no_tokens() -> None:
    tokens = DelegationTokens(None, TokenLimits(1000, 100))
    disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert code_of(tokens.create, "id", ALICE, ALICE, [], -1, 0) is disabled
    assert code_of(tokens.renew, b"x", ALICE, -1, 0) is disabled
    assert code_of(tokens.expire, b"x", ALICE, -1, 0) is disabled
    assert code_of(tokens.described, None) is disabled


def test_a_renewer_is_a_user_and_an_owner_has_a_type(tokens: DelegationTokens) -> None:
    wrong = ErrorCode.INVALID_PRINCIPAL_TYPE
    assert code_of(tokens.create, "id", ALICE, ALICE, [Principal("Group", "g")], -1, 0) is wrong
    assert code_of(tokens.create, "id", Principal("", "bob"), ALICE, [], -1, 0) is wrong


def test_one_client_cannot_fill_the_broker_with_tokens(tokens: DelegationTokens) -> None:
    for _ in range(MAX_TOKENS_OF_ONE):
        made(tokens)
    assert code_of(made, tokens) is ErrorCode.POLICY_VIOLATION
    tokens.create("other", BOB, BOB, [], -1, 5000)
    tokens.remove("id-0")
    made(tokens)
    names = [Principal("User", "")] * (MAX_RENEWERS_BYTES // len("User:") + 1)
    assert code_of(tokens.create, "id", BOB, BOB, names, -1, 0) is ErrorCode.POLICY_VIOLATION


def test_no_text_about_the_tokens_has_a_secret_in_it(tokens: DelegationTokens) -> None:
    token = made(tokens)
    shown = repr(tokens) + repr(token)
    assert SECRET.decode() not in shown
    assert tokens.hmac_of(token.token_id).hex() not in shown

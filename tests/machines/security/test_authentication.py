"""The machine of authentication: every cell of its table, and what a client is told."""

from __future__ import annotations

import pytest

from semel.errors import ErrorCode
from semel.machines.security.authentication import (
    AUTHENTICATION_TABLE,
    SILENCE,
    Accepted,
    Authentication,
    AuthenticationEvent,
    AuthenticationState,
    Challenge,
    Judgement,
    Rejected,
)
from semel.machines.security.principals import Principal

S, E = AuthenticationState, AuthenticationEvent
ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
NONE = ErrorCode.NONE


class Says:
    """A mechanism that says what it is told to say."""

    def __init__(self, *judgements: Judgement) -> None:
        self._judgements = list(judgements)

    def begin(self) -> Says:
        return self

    def evaluate(self, token: bytes) -> Judgement:
        return self._judgements.pop(0)


def machine(*judgements: Judgement, session_ms: int = 0) -> Authentication:
    return Authentication({"X": Says(*judgements), "Y": Says()}, {"X": session_ms})


def say(client: Authentication, data: bytes = b"", *, now_ms: int = 0, clock_ms: int = 0) -> object:
    judgement = client.message(data)
    assert isinstance(judgement, (Challenge, Accepted, Rejected)), judgement
    return client.judged(judgement, now_ms, clock_ms)


def authenticated(session_ms: int = 60_000, *then: Judgement) -> Authentication:
    client = machine(Accepted(ALICE), *then, session_ms=session_ms)
    assert client.handshake("X", 1, 0) is NONE
    say(client)
    assert client.is_authenticated
    return client


def test_a_client_asks_for_versions_chooses_a_mechanism_and_shows_who_it_is() -> None:
    client = machine(Challenge(b"salt"), Accepted(ALICE, b"done"))
    assert client.versions(can_be_answered=True) is NONE
    assert client.handshake("X", 1, 0) is NONE
    assert say(client, b"first") == (NONE, "", b"salt", 0)
    assert not client.is_authenticated and client.principal is None
    assert say(client, b"last") == (NONE, "", b"done", 0)
    assert (client.is_authenticated, client.principal, client.ends_ms, client.is_over) == (True, ALICE, None, False)


def test_versions_may_be_asked_again_only_if_they_could_not_be_told() -> None:
    client = machine()
    assert client.versions(can_be_answered=False) is NONE
    assert client.versions(can_be_answered=True) is NONE
    assert client.versions(can_be_answered=True) is None
    assert client.is_over


@pytest.mark.parametrize("state", [S.NEW, S.KNOWS_VERSIONS])
def test_nothing_is_served_or_answered_before_the_handshake(state: AuthenticationState) -> None:
    for act in (lambda client: client.message(b""), lambda client: client.other_request("Metadata")):
        client = machine()
        if state is S.KNOWS_VERSIONS:
            client.versions(can_be_answered=True)
        assert client.state is state
        assert act(client) is None
        assert client.is_over and not client.is_authenticated


def test_during_the_exchange_another_request_is_told_so_and_ends_the_connection() -> None:
    for act in (
        lambda client: client.other_request("Metadata"),
        lambda client: client.versions(can_be_answered=True),
        lambda client: client.handshake("X", 1, 0),
    ):
        client = machine()
        client.handshake("X", 1, 0)
        assert act(client) is ErrorCode.ILLEGAL_SASL_STATE
        assert client.is_over


def test_an_unknown_mechanism_ends_the_connection() -> None:
    client = machine()
    assert client.handshake("Z", 1, 0) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert client.is_over


def test_a_raw_exchange_takes_messages_without_a_header_only() -> None:
    client = machine(Accepted(ALICE))
    assert client.handshake("X", 0, 0) is NONE and client.is_raw
    say(client)
    assert client.is_authenticated and not client.is_raw


def test_a_rejected_client_is_told_the_same_whoever_it_claims_to_be() -> None:
    for claimed in ("alice", "nobody"):
        client = machine(Rejected("no such user", claimed=claimed))
        client.handshake("X", 1, 0)
        code, text, _, _ = say(client)  # type: ignore[misc]
        assert code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert text == "Authentication failed during authentication due to invalid credentials with SASL mechanism X"
        assert (client.is_over, client.why, client.claimed) == (True, "no such user", claimed)


@pytest.mark.parametrize(
    ("session_ms", "expires_ms", "lifetime_ms"),
    [(0, None, 0), (5000, None, 5000), (0, 1_007_000, 7000), (5000, 1_007_000, 5000), (9000, 1_007_000, 7000),
     (5000, 900_000, 0)],
)
def test_a_session_ends_with_its_limit_or_with_what_it_was_accepted_for(
    session_ms: int, expires_ms: int | None, lifetime_ms: int
) -> None:
    client = machine(Accepted(ALICE, expires_ms=expires_ms), session_ms=session_ms)
    client.handshake("X", 1, 0)
    assert say(client, now_ms=1_000_000, clock_ms=50) == (NONE, "", b"", lifetime_ms)
    if session_ms or expires_ms:
        assert client.ends_ms == 50 + lifetime_ms
        assert client.has_expired(50 + lifetime_ms)
        assert not client.has_expired(49 + lifetime_ms)
    else:
        assert client.ends_ms is None and not client.has_expired(10**15)


def test_a_client_authenticates_again_by_the_same_mechanism_and_as_the_same() -> None:
    client = authenticated(60_000, Accepted(ALICE))
    assert client.handshake("X", 1, 100) is NONE
    assert not client.is_authenticated
    say(client, clock_ms=200)
    assert client.is_authenticated and client.ends_ms == 60_200


def test_a_client_cannot_become_somebody_else() -> None:
    client = authenticated(60_000, Accepted(BOB))
    client.handshake("X", 1, 100)
    code, text, _, _ = say(client)  # type: ignore[misc]
    assert code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert text == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert client.is_over and client.principal == ALICE


def test_a_client_cannot_change_its_mechanism() -> None:
    client = authenticated()
    assert client.handshake("Y", 1, 100) is NONE
    assert client.state is S.MECHANISM_CHANGED
    assert client.message(b"") is None and client.is_over


def test_a_client_may_authenticate_again_once_in_a_second() -> None:
    client = authenticated(60_000, Accepted(ALICE), Accepted(ALICE))
    assert client.handshake("X", 1, 100) is NONE
    say(client, clock_ms=150)
    assert client.handshake("X", 1, 1099) is ErrorCode.ILLEGAL_SASL_STATE
    assert client.is_authenticated and not client.is_over
    assert client.handshake("X", 1, 1100) is NONE


def test_a_session_without_an_end_is_not_begun_again() -> None:
    client = authenticated(0)
    assert client.handshake("X", 1, 100) is ErrorCode.ILLEGAL_SASL_STATE
    assert client.message(b"") is ErrorCode.ILLEGAL_SASL_STATE
    assert client.is_authenticated and not client.is_over


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("event", list(E))
def test_no_event_but_accepted_leads_to_authenticated(state: AuthenticationState, event: AuthenticationEvent) -> None:
    if AUTHENTICATION_TABLE.step(state, event) is S.AUTHENTICATED and state is not S.AUTHENTICATED:
        assert event is E.ACCEPTED and state in (S.EXCHANGE, S.RAW_EXCHANGE)


@pytest.mark.parametrize("event", list(E))
def test_after_a_changed_mechanism_everything_ends_the_connection(event: AuthenticationEvent) -> None:
    assert AUTHENTICATION_TABLE.step(S.MECHANISM_CHANGED, event) is SILENCE

"""How a client shows a broker who it is (SASL): what may follow what, and what each answer means.

Guarantees:

- Before a client is accepted it is told the versions of the APIs and the mechanisms, and nothing else. Any other
  request ends the connection.
- A client that authenticates again (KIP-368) keeps its mechanism and its name, or loses the connection.
- What a client is told about a refusal does not say whether the user exists.

A mechanism decides about the client's messages; this machine decides about everything around them.
"""

from __future__ import annotations

import enum
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from semel.errors import ErrorCode
from semel.machines.security.principals import Principal
from semel.machines.table import StateTable

#: A client may authenticate again this often, if its session has an end.
MIN_REAUTHENTICATION_MS = 1000


# What a mechanism is


class Challenge(NamedTuple):
    """The client has to send another message; this is what it answers."""

    data: bytes
    #: Why the client is refused, where this tells it so: some mechanisms want one more message after that.
    refusal: Rejected | None = None


class Accepted(NamedTuple):
    """The client has shown who it is."""

    principal: Principal
    #: The last message to the client.
    data: bytes = b""
    #: When what it was accepted for expires, in milliseconds since 1970: a bearer token, a delegation token.
    expires_ms: int | None = None
    #: Whether it was a delegation token. Such a client may not create or change tokens.
    by_token: bool = False


class Rejected(NamedTuple):
    """The client is not who it says."""

    #: For the log. It may hold neither a password nor a token.
    why: str
    #: What the client is told instead of the usual sentence.
    told: str = ""
    #: Whom it claims to be; empty where that is not known.
    claimed: str = ""


Judgement = Challenge | Accepted | Rejected


class Exchange(Protocol):
    """One client's messages by one mechanism."""

    def evaluate(self, token: bytes) -> Judgement | Coroutine[Any, Any, Judgement]:
        """Judge the next message, at once or, where something has to be fetched first, later."""


class Mechanism(Protocol):
    """One mechanism on one listener."""

    def start(self) -> None:
        """The broker listens: what has to be fetched may be fetched."""

    def begin(self) -> Exchange:
        """A client begins."""


# The table


class AuthenticationState(enum.Enum):
    """What the broker waits for."""

    NEW = "new"
    KNOWS_VERSIONS = "knows versions"
    EXCHANGE = "exchange"
    RAW_EXCHANGE = "raw exchange"
    AUTHENTICATED = "authenticated"
    AUTHENTICATES_AGAIN = "authenticates again"
    MECHANISM_CHANGED = "mechanism changed"


class AuthenticationEvent(enum.Enum):
    """What a client sends, and what its mechanism says about it."""

    VERSIONS = "ApiVersions"
    UNKNOWN_VERSIONS = "ApiVersions that cannot be answered"
    HANDSHAKE = "SaslHandshake v1"
    RAW_HANDSHAKE = "SaslHandshake v0"
    UNKNOWN_MECHANISM = "SaslHandshake, mechanism not enabled"
    OTHER_MECHANISM = "SaslHandshake, another mechanism than before"
    HANDSHAKE_AGAIN = "SaslHandshake"
    HANDSHAKE_NOT_WANTED = "SaslHandshake within a second, or in a session without an end"
    MESSAGE = "SaslAuthenticate"
    RAW_MESSAGE = "message without a header"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    OTHER_REQUEST = "any other request"


S, E = AuthenticationState, AuthenticationEvent
Cell = AuthenticationState | ErrorCode

#: Ends the connection at once, and nothing is said.
SILENCE = ErrorCode.NETWORK_EXCEPTION

_HANDSHAKE: dict[AuthenticationEvent, Cell] = {
    E.HANDSHAKE: S.EXCHANGE,
    E.RAW_HANDSHAKE: S.RAW_EXCHANGE,
    E.UNKNOWN_MECHANISM: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
}
AUTHENTICATION_TABLE: StateTable[AuthenticationState, AuthenticationEvent, Cell] = StateTable(
    AuthenticationState,
    AuthenticationEvent,
    {
        S.NEW: {E.VERSIONS: S.KNOWS_VERSIONS, E.UNKNOWN_VERSIONS: S.NEW, **_HANDSHAKE},
        S.KNOWS_VERSIONS: _HANDSHAKE,
        S.EXCHANGE: {
            E.MESSAGE: S.EXCHANGE,
            E.ACCEPTED: S.AUTHENTICATED,
            E.REJECTED: ErrorCode.SASL_AUTHENTICATION_FAILED,
            E.VERSIONS: ErrorCode.ILLEGAL_SASL_STATE,
            E.HANDSHAKE_AGAIN: ErrorCode.ILLEGAL_SASL_STATE,
            E.OTHER_REQUEST: ErrorCode.ILLEGAL_SASL_STATE,
        },
        S.RAW_EXCHANGE: {
            E.RAW_MESSAGE: S.RAW_EXCHANGE,
            E.ACCEPTED: S.AUTHENTICATED,
            E.REJECTED: ErrorCode.SASL_AUTHENTICATION_FAILED,
        },
        S.AUTHENTICATED: {
            E.HANDSHAKE_AGAIN: S.AUTHENTICATES_AGAIN,
            E.HANDSHAKE_NOT_WANTED: ErrorCode.ILLEGAL_SASL_STATE,
            E.MESSAGE: ErrorCode.ILLEGAL_SASL_STATE,
            E.VERSIONS: S.AUTHENTICATED,
            E.OTHER_REQUEST: S.AUTHENTICATED,
        },
        S.AUTHENTICATES_AGAIN: {
            E.HANDSHAKE: S.EXCHANGE,
            E.RAW_HANDSHAKE: S.RAW_EXCHANGE,
            E.OTHER_MECHANISM: S.MECHANISM_CHANGED,
        },
        S.MECHANISM_CHANGED: {},
    },
    blank=SILENCE,
)


# The machine


class Reply(NamedTuple):
    """What a client is told."""

    code: ErrorCode
    text: str = ""
    data: bytes = b""
    session_lifetime_ms: int = 0


class Authentication:
    """One connection's authentication, from its first request to its last.

    A method that takes a request returns the code to answer with, or None: then nothing is answered. `is_over` says
    whether the connection ends with that. Times are milliseconds: `clock_ms` of a clock that nobody sets, `now_ms`
    since 1970.
    """

    __slots__ = (
        "_accepted_by", "_exchange", "_mechanisms", "_session_ms", "began_again_ms", "by_token", "claimed", "ends_ms",
        "is_over", "is_refused", "mechanism", "principal", "state", "why",
    )

    def __init__(self, mechanisms: Mapping[str, Mechanism], session_ms: Mapping[str, int]) -> None:
        self._mechanisms = mechanisms
        #: `connections.max.reauth.ms` of each mechanism; 0: no limit.
        self._session_ms = session_ms
        self._exchange: Exchange | None = None
        self.state = S.NEW
        self.is_over = False
        #: Whether the client was told that it is refused, and has not ended the exchange yet.
        self.is_refused = False
        #: The mechanism of the handshake, and the one by which the client was accepted.
        self.mechanism = ""
        self._accepted_by = ""
        self.principal: Principal | None = None
        self.by_token = False
        #: When the session ends, and when the client last began to authenticate again.
        self.ends_ms: int | None = None
        self.began_again_ms: int | None = None
        #: For the log: why it is over, and whom the client claims to be.
        self.why = ""
        self.claimed = ""

    @property
    def is_raw(self) -> bool:
        """Whether the client's messages have no header."""
        return self.state is S.RAW_EXCHANGE

    @property
    def is_authenticated(self) -> bool:
        """Whether the client's requests may be served."""
        return self.state is S.AUTHENTICATED

    def has_expired(self, clock_ms: int) -> bool:
        """Whether the client would have to authenticate again before it is served.

        The millisecond in which a session ends is past its end: a token that had expired already, within the clock's
        skew, gives a session of no length, in which nothing is served."""
        return self.ends_ms is not None and clock_ms >= self.ends_ms

    def versions(self, *, can_be_answered: bool) -> ErrorCode | None:
        """ApiVersions; it may be asked again as long as it was not answered."""
        return self._take(E.VERSIONS if can_be_answered or self.state is not S.NEW else E.UNKNOWN_VERSIONS)

    def other_request(self, name: str) -> ErrorCode | None:
        """A request that is neither ApiVersions nor of SASL."""
        self.why = f"{name} before the client authenticated"
        return self._take(E.OTHER_REQUEST)

    def handshake(self, mechanism: str, version: int, clock_ms: int) -> ErrorCode | None:
        """SaslHandshake: the client chooses a mechanism."""
        if self.state is S.AUTHENTICATED:
            began_ms = self.began_again_ms
            is_soon = began_ms is not None and clock_ms - began_ms < MIN_REAUTHENTICATION_MS
            if is_soon or self.ends_ms is None:
                return self._take(E.HANDSHAKE_NOT_WANTED)
            self.began_again_ms = clock_ms
            self._take(E.HANDSHAKE_AGAIN)
        elif self.state in (S.EXCHANGE, S.RAW_EXCHANGE, S.MECHANISM_CHANGED):
            self.why = "a second SaslHandshake"
            return self._take(E.HANDSHAKE_AGAIN)
        self.mechanism = mechanism
        found = self._mechanisms.get(mechanism)
        if found is None:
            self.why = "the mechanism is not enabled"
            return self._take(E.UNKNOWN_MECHANISM)
        if self._accepted_by not in ("", mechanism):
            self.why = f"authenticated by {self._accepted_by} before, and now by {mechanism}"
            return self._take(E.OTHER_MECHANISM)
        self._exchange = found.begin()
        return self._take(E.RAW_HANDSHAKE if version == 0 else E.HANDSHAKE)

    def message(self, data: bytes) -> Judgement | Coroutine[Any, Any, Judgement] | ErrorCode | None:
        """A message of the client, with or without a header. What its mechanism says goes to `judged`."""
        code = self._take(E.RAW_MESSAGE if self.is_raw else E.MESSAGE)
        if code is not ErrorCode.NONE or self._exchange is None:
            return code
        return self._exchange.evaluate(data)

    def judged(self, judgement: Judgement, now_ms: int, clock_ms: int) -> Reply:
        """What the client is told about its message."""
        if isinstance(judgement, Challenge):
            if judgement.refusal is not None:
                self.is_refused = True
                self.why, self.claimed = judgement.refusal.why, judgement.refusal.claimed
            return Reply(ErrorCode.NONE, data=judgement.data)
        if isinstance(judgement, Accepted) and self.principal not in (None, judgement.principal):
            before, after = self.principal, judgement.principal
            judgement = Rejected(
                "the principal changed",
                # Kafka's own sentence, with a dot where a principal has a colon.
                f"Cannot change principals during re-authentication from {'.'.join(before or ())}: {'.'.join(after)}",
                after.name,
            )
        if isinstance(judgement, Rejected):
            self.why, self.claimed = judgement.why, judgement.claimed
            self._take(E.REJECTED)
            again = "re-authentication" if self.principal is not None else "authentication"
            usual = f"Authentication failed during {again} due to invalid credentials with SASL mechanism "
            return Reply(ErrorCode.SASL_AUTHENTICATION_FAILED, judgement.told or usual + self.mechanism)
        self._take(E.ACCEPTED)
        self.is_refused, self.why, self.claimed = False, "", ""
        self._exchange = None
        self._accepted_by = self.mechanism
        self.principal, self.by_token = judgement.principal, judgement.by_token
        lifetimes = [limit] if (limit := self._session_ms.get(self.mechanism, 0)) > 0 else []
        if judgement.expires_ms is not None:
            lifetimes.append(max(judgement.expires_ms - now_ms, 0))
        lifetime_ms = min(lifetimes, default=0)
        self.ends_ms = clock_ms + lifetime_ms if lifetimes else None
        return Reply(ErrorCode.NONE, data=judgement.data, session_lifetime_ms=lifetime_ms)

    def _take(self, event: AuthenticationEvent) -> ErrorCode | None:
        """Move by the table. Returns NONE for a move, a code for a refusal, None where nothing is said."""
        cell = AUTHENTICATION_TABLE.step(self.state, event)
        if isinstance(cell, AuthenticationState):
            self.state = cell
            return ErrorCode.NONE
        # Who is authenticated stays so: a request out of place is only refused.
        if self.state is not S.AUTHENTICATED or cell is SILENCE:
            self.is_over = True
            self._exchange = None
            self.why = self.why or f"{event.value} out of place"
        return None if cell is SILENCE else cell

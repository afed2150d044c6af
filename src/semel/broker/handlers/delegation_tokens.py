"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken, with Kafka's checks.

Guarantee: a token is given only to a client that showed who it is by something else than a token. The HMAC of a token
is in the answers to its owner and to who may describe it, and in no log and no error.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from semel.errors import ErrorCode, Refused
from semel.machines.security.principals import ANONYMOUS, Principal
from semel.wire.messages.tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer
    from semel.machines.security.delegation_tokens import DelegationToken


def may_ask_for_tokens(broker: BrokerServer, call: Call) -> bool:
    """Whether a client may ask anything about tokens: it authenticated, and not by a token."""
    connection = call.connection
    if connection.by_token:
        return False
    # On a listener without SASL only a certificate says who somebody is.
    return broker.connections.gate_of(connection) is not None or connection.principal != ANONYMOUS


def requested_owner(request: CreateDelegationTokenRequest, call: Call) -> Principal:
    """Whom a token is for: the client itself, unless it names somebody else."""
    if call.version < 3 or not request.owner_principal_name:
        return call.connection.principal
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def refused_token(
    request: CreateDelegationTokenRequest, call: Call, code: ErrorCode
) -> CreateDelegationTokenResponse:
    """The answer to a client that gets no token."""
    owner, requester = requested_owner(request, call), call.connection.principal
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )


def create_delegation_token(broker: BrokerServer, request: CreateDelegationTokenRequest, call: Call) -> Any:
    """Create a token for the client, or for the owner that it names."""
    if not may_ask_for_tokens(broker, call):
        return refused_token(request, call, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    return broker.changes.run(_create(broker, request, call))


async def _create(
    broker: BrokerServer, request: CreateDelegationTokenRequest, call: Call
) -> CreateDelegationTokenResponse:
    store = broker.stores.delegation_tokens
    requester = call.connection.principal
    try:
        token = store.tokens.create(
            _new_id(broker),
            requested_owner(request, call),
            requester,
            [Principal(renewer.principal_type, renewer.principal_name) for renewer in request.renewers],
            request.max_lifetime_ms,
            broker.now_ms(),
        )
        await store.put(token)
    except Refused as error:
        return refused_token(request, call, error.code)
    return CreateDelegationTokenResponse(
        principal_type=token.owner.kind,
        principal_name=token.owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.token_id,
        hmac=store.tokens.hmac_of(token.token_id),
    )


def _new_id(broker: BrokerServer) -> str:
    """An id as Kafka's: 22 letters, the first of which is no dash, because tools would take that for an option."""
    while (text := urlsafe_b64encode(broker.environment.new_uuid().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def renew_delegation_token(broker: BrokerServer, request: RenewDelegationTokenRequest, call: Call) -> Any:
    """Let a token end later."""
    if not may_ask_for_tokens(broker, call):
        return RenewDelegationTokenResponse(
            error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
        )
    return broker.changes.run(_renew(broker, bytes(request.hmac), request.renew_period_ms, call.connection.principal))


async def _renew(broker: BrokerServer, secret: bytes, period_ms: int, who: Principal) -> RenewDelegationTokenResponse:
    store = broker.stores.delegation_tokens
    try:
        await store.know()
        token = store.tokens.renew(secret, who, period_ms, broker.now_ms())
        await store.put(token)
    except Refused as error:
        return RenewDelegationTokenResponse(error_code=error.code)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=token.expires_ms)


def expire_delegation_token(broker: BrokerServer, request: ExpireDelegationTokenRequest, call: Call) -> Any:
    """Let a token end sooner, or at once."""
    if not may_ask_for_tokens(broker, call):
        return ExpireDelegationTokenResponse(
            error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
        )
    who = call.connection.principal
    return broker.changes.run(_expire(broker, bytes(request.hmac), request.expiry_time_period_ms, who))


async def _expire(
    broker: BrokerServer, secret: bytes, period_ms: int, who: Principal
) -> ExpireDelegationTokenResponse:
    store = broker.stores.delegation_tokens
    try:
        await store.know()
        token = store.tokens.expire(secret, who, period_ms, broker.now_ms())
        await (store.remove([token.token_id]) if period_ms < 0 else store.put(token))
    except Refused as error:
        return ExpireDelegationTokenResponse(error_code=error.code)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=token.expires_ms)


def describe_delegation_token(
    broker: BrokerServer, request: DescribeDelegationTokenRequest, call: Call
) -> Generator[None, None, DescribeDelegationTokenResponse]:
    """Describe all tokens, or those that concern the owners in the request.

    With an authorizer the guard takes out those that the client may not see.
    """
    if not may_ask_for_tokens(broker, call):
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    tokens = broker.stores.delegation_tokens.tokens
    owners = None
    if request.owners is not None:
        owners = {Principal(owner.principal_type, owner.principal_name) for owner in request.owners}
    described = []
    try:
        for token in tokens.described(owners):
            yield
            described.append(_described(token, tokens.hmac_of(token.token_id)))
    except Refused as error:
        return DescribeDelegationTokenResponse(error_code=error.code)
    return DescribeDelegationTokenResponse(tokens=described)


def _described(token: DelegationToken, secret: bytes) -> DescribeDelegationTokenResponse.DescribedDelegationToken:
    renewer = DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer
    return DescribeDelegationTokenResponse.DescribedDelegationToken(
        principal_type=token.owner.kind,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.kind,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=secret,
        renewers=[renewer(principal_type=one.kind, principal_name=one.name) for one in token.renewers],
    )

"""Guards of delegation tokens.

Everybody may have tokens of their own. CreateTokens on a user is needed to get one in that user's name; DescribeTokens
on a user, or Describe on the token, to see one that the client neither owns nor asked for nor may renew. Who may renew
or expire a token is decided by the token itself.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.access.guards import Answer, Verdict
from semel.broker.handlers.delegation_tokens import may_ask_for_tokens, refused_token, requested_owner
from semel.errors import ErrorCode
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_Token = DescribeDelegationTokenResponse.DescribedDelegationToken


def create_delegation_token(access: AccessControl, request: CreateDelegationTokenRequest, call: Call) -> Verdict:
    """CreateTokens on the owner, if that is somebody else. Who may ask for no tokens at all is told so first."""
    owner = requested_owner(request, call)
    if (
        owner == call.connection.principal
        or not may_ask_for_tokens(access.broker, call)
        or access.allows(call, Operation.CREATE_TOKENS, ResourceType.USER, str(owner))
    ):
        return None
    return Answer(refused_token(request, call, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED))


def describe_delegation_token(
    access: AccessControl, request: DescribeDelegationTokenRequest, call: Call
) -> Verdict:
    """Tokens that may not be seen are left out."""
    who = call.connection.who

    def may_see(token: _Token) -> bool:
        owner = f"{token.principal_type}:{token.principal_name}"
        requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
        return (
            who in (owner, requester)
            or any(who == f"{one.principal_type}:{one.principal_name}" for one in token.renewers)
            or access.allows(call, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, logged=False)
            or access.allows(call, Operation.DESCRIBE_TOKENS, ResourceType.USER, owner, logged=False)
        )

    def merge(reply: DescribeDelegationTokenResponse) -> Generator[None, None, DescribeDelegationTokenResponse]:
        visible = []
        for token in reply.tokens:
            if may_see(token):
                visible.append(token)
            yield
        reply.tokens = visible
        return reply

    return merge

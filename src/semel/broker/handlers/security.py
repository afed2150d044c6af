"""ACLs, SASL and delegation tokens on a broker without security: Kafka's answers without an authorizer, on PLAINTEXT.

Guarantees:

- ACLs are neither stored nor checked: requests for them are answered with SECURITY_DISABLED.
- Nobody authenticates or gets a delegation token: on a PLAINTEXT listener every client is ANONYMOUS.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.errors import ErrorCode
from semel.wire.messages.security import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
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

#: The principal of every client.
ANONYMOUS = ("User", "ANONYMOUS")
NO_AUTHORIZER = "there is no authorizer, so there are no access rules"
#: The highest known number of each field of an ACL; 0 means that the client's value is unknown to its protocol version.
LAST_RESOURCE_TYPE, LAST_PATTERN_TYPE, LAST_OPERATION, LAST_PERMISSION = 7, 4, 15, 3


def _is_understood(call: Call, resource_type: int, pattern_type: int, operation: int, permission: int) -> bool:
    """Whether an ACL has only known values. Kafka closes the connection for any other."""
    if (
        1 <= resource_type <= LAST_RESOURCE_TYPE
        and 1 <= pattern_type <= LAST_PATTERN_TYPE
        and 1 <= operation <= LAST_OPERATION
        and 1 <= permission <= LAST_PERMISSION
    ):
        return True
    call.connection.refuse("an access rule names something unknown")
    return False


def describe_acls(broker: BrokerServer, request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse | None:
    """Answer that there are no ACLs."""
    if not _is_understood(
        call, request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type
    ):
        return None
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


def create_acls(
    broker: BrokerServer, request: CreateAclsRequest, call: Call
) -> Generator[None, None, CreateAclsResponse | None]:
    """Refuse ACLs: nobody would enforce them."""
    for rule in request.creations:
        yield
        if not _is_understood(
            call, rule.resource_type, rule.resource_pattern_type, rule.operation, rule.permission_type
        ):
            return None
    refused = CreateAclsResponse.AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(results=[refused] * len(request.creations))


def delete_acls(
    broker: BrokerServer, request: DeleteAclsRequest, call: Call
) -> Generator[None, None, DeleteAclsResponse | None]:
    """Answer that there are no ACLs to delete."""
    for rule in request.filters:
        yield
        if not _is_understood(
            call, rule.resource_type_filter, rule.pattern_type_filter, rule.operation, rule.permission_type
        ):
            return None
    row = DeleteAclsResponse.DeleteAclsFilterResult
    refused = row(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))


def sasl_handshake(broker: BrokerServer, request: SaslHandshakeRequest, call: Call) -> SaslHandshakeResponse:
    """Refuse the handshake: a PLAINTEXT connection needs no authentication."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(broker: BrokerServer, request: SaslAuthenticateRequest, call: Call) -> SaslAuthenticateResponse:
    """Refuse, as the handshake."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="nobody authenticates on a PLAINTEXT listener"
    )


def create_delegation_token(
    broker: BrokerServer, request: CreateDelegationTokenRequest, call: Call
) -> CreateDelegationTokenResponse:
    """Refuse: a token is for an authenticated client, and here nobody authenticates."""
    owner_type, owner_name = request.owner_principal_type, request.owner_principal_name
    given = call.version >= 3 and owner_name
    return CreateDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        principal_type=(owner_type or "") if given else ANONYMOUS[0],
        principal_name=(owner_name or "") if given else ANONYMOUS[1],
        token_requester_principal_type=ANONYMOUS[0],
        token_requester_principal_name=ANONYMOUS[1],
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )


def renew_delegation_token(
    broker: BrokerServer, request: RenewDelegationTokenRequest, call: Call
) -> RenewDelegationTokenResponse:
    """Answer that there are no tokens."""
    return RenewDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )


def expire_delegation_token(
    broker: BrokerServer, request: ExpireDelegationTokenRequest, call: Call
) -> ExpireDelegationTokenResponse:
    """Answer that there are no tokens."""
    return ExpireDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )


def describe_delegation_token(
    broker: BrokerServer, request: DescribeDelegationTokenRequest, call: Call
) -> DescribeDelegationTokenResponse:
    """Answer that there are no tokens."""
    return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)

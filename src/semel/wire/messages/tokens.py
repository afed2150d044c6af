"""Delegation tokens: secrets that a client may request and pass on to its workers."""

from __future__ import annotations

from semel.wire.schema import Bytes, Int16, Int32, Int64, String, field, message, struct


@message(key=38, versions="1-3", flexible=2)
class CreateDelegationTokenRequest:
    """Create a token for the sender, or from version 3 for another owner."""

    @struct
    class CreatableRenewers:
        principal_type: String = ""
        principal_name: String = ""

    owner_principal_type: String | None = field("", since=3)
    owner_principal_name: String | None = field("", since=3)
    renewers: list[CreatableRenewers] = field(list)
    max_lifetime_ms: Int64 = 0


@message(key=38, versions="1-3", flexible=2)
class CreateDelegationTokenResponse:
    """The token, or an error."""

    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: String = field("", since=3)
    token_requester_principal_name: String = field("", since=3)
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0


@message(key=39, versions="1-2", flexible=2)
class RenewDelegationTokenRequest:
    """Renew a token."""

    hmac: Bytes = b""
    renew_period_ms: Int64 = 0


@message(key=39, versions="1-2", flexible=2)
class RenewDelegationTokenResponse:
    """Its new expiry."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0


@message(key=40, versions="1-2", flexible=2)
class ExpireDelegationTokenRequest:
    """Expire a token."""

    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0


@message(key=40, versions="1-2", flexible=2)
class ExpireDelegationTokenResponse:
    """Its new expiry."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0


@message(key=41, versions="1-3", flexible=2)
class DescribeDelegationTokenRequest:
    """Ask for the tokens of owners; null asks for all."""

    @struct
    class DescribeDelegationTokenOwner:
        principal_type: String = ""
        principal_name: String = ""

    owners: list[DescribeDelegationTokenOwner] | None = field(list)


@message(key=41, versions="1-3", flexible=2)
class DescribeDelegationTokenResponse:
    """The tokens and their renewers."""

    @struct
    class DescribedDelegationTokenRenewer:
        principal_type: String = ""
        principal_name: String = ""

    @struct
    class DescribedDelegationToken:
        principal_type: String = ""
        principal_name: String = ""
        token_requester_principal_type: String = field("", since=3)
        token_requester_principal_name: String = field("", since=3)
        issue_timestamp: Int64 = 0
        expiry_timestamp: Int64 = 0
        max_timestamp: Int64 = 0
        token_id: String = ""
        hmac: Bytes = b""
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = field(list)

    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = field(list)
    throttle_time_ms: Int32 = 0

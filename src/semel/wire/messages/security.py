"""Authentication, access rules and SCRAM credentials."""

from __future__ import annotations

from semel.wire.schema import Bytes, Int8, Int16, Int32, Int64, String, field, message, struct


@message(key=17, versions="0-1", flexible=None)
class SaslHandshakeRequest:
    """Choose a SASL mechanism."""

    mechanism: String = ""


@message(key=17, versions="0-1", flexible=None)
class SaslHandshakeResponse:
    """The mechanisms that the broker supports."""

    error_code: Int16 = 0
    mechanisms: list[String] = field(list)


@message(key=36, versions="0-2", flexible=2)
class SaslAuthenticateRequest:
    """One step of the authentication."""

    auth_bytes: Bytes = b""


@message(key=36, versions="0-2", flexible=2)
class SaslAuthenticateResponse:
    """The next step, or the end of the authentication."""

    error_code: Int16 = 0
    error_message: String | None = ""
    auth_bytes: Bytes = b""
    session_lifetime_ms: Int64 = field(0, since=1)


@message(key=29, versions="1-3", flexible=2)
class DescribeAclsRequest:
    """The access rules that match."""

    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@message(key=29, versions="1-3", flexible=2)
class DescribeAclsResponse:
    """The rules, by resource."""

    @struct
    class AclDescription:
        principal: String = ""
        host: String = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    @struct
    class DescribeAclsResource:
        resource_type: Int8 = 0
        resource_name: String = ""
        pattern_type: Int8 = 3
        acls: list[DescribeAclsResponse.AclDescription] = field(list)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    resources: list[DescribeAclsResource] = field(list)


@message(key=30, versions="1-3", flexible=2)
class CreateAclsRequest:
    """Add access rules."""

    @struct
    class AclCreation:
        resource_type: Int8 = 0
        resource_name: String = ""
        resource_pattern_type: Int8 = 3
        principal: String = ""
        host: String = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    creations: list[AclCreation] = field(list)


@message(key=30, versions="1-3", flexible=2)
class CreateAclsResponse:
    """The result for each rule."""

    @struct
    class AclCreationResult:
        error_code: Int16 = 0
        error_message: String | None = ""

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = field(list)


@message(key=31, versions="1-3", flexible=2)
class DeleteAclsRequest:
    """Remove the access rules that match."""

    @struct
    class DeleteAclsFilter:
        resource_type_filter: Int8 = 0
        resource_name_filter: String | None = ""
        pattern_type_filter: Int8 = 3
        principal_filter: String | None = ""
        host_filter: String | None = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    filters: list[DeleteAclsFilter] = field(list)


@message(key=31, versions="1-3", flexible=2)
class DeleteAclsResponse:
    """The removed rules, by filter."""

    @struct
    class DeleteAclsMatchingAcl:
        error_code: Int16 = 0
        error_message: String | None = ""
        resource_type: Int8 = 0
        resource_name: String = ""
        pattern_type: Int8 = 3
        principal: String = ""
        host: String = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    @struct
    class DeleteAclsFilterResult:
        error_code: Int16 = 0
        error_message: String | None = ""
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = field(list)

    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = field(list)


@message(key=50, versions="0", flexible=0)
class DescribeUserScramCredentialsRequest:
    """Ask for the SCRAM credentials of users; null asks for all."""

    @struct
    class UserName:
        name: String = ""

    users: list[UserName] | None = field(list)


@message(key=50, versions="0", flexible=0)
class DescribeUserScramCredentialsResponse:
    """Mechanism and iterations of each, never the secret."""

    @struct
    class CredentialInfo:
        mechanism: Int8 = 0
        iterations: Int32 = 0

    @struct
    class DescribeUserScramCredentialsResult:
        user: String = ""
        error_code: Int16 = 0
        error_message: String | None = ""
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = field(list)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[DescribeUserScramCredentialsResult] = field(list)


@message(key=51, versions="0", flexible=0)
class AlterUserScramCredentialsRequest:
    """Add, change or remove SCRAM credentials."""

    @struct
    class ScramCredentialDeletion:
        name: String = ""
        mechanism: Int8 = 0

    @struct
    class ScramCredentialUpsertion:
        name: String = ""
        mechanism: Int8 = 0
        iterations: Int32 = 0
        salt: Bytes = b""
        salted_password: Bytes = b""

    deletions: list[ScramCredentialDeletion] = field(list)
    upsertions: list[ScramCredentialUpsertion] = field(list)


@message(key=51, versions="0", flexible=0)
class AlterUserScramCredentialsResponse:
    """The result for each user."""

    @struct
    class AlterUserScramCredentialsResult:
        user: String = ""
        error_code: Int16 = 0
        error_message: String | None = ""

    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = field(list)

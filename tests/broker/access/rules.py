"""Requests about access rules, short enough to be read in a test."""

from __future__ import annotations

from typing import Any

from semel.config.broker import STANDARD_AUTHORIZER
from semel.machines.security.access import AccessRule, Operation, PatternType, Permission, ResourceType
from semel.wire.messages.security import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from tests.broker.raw import Raw

ANONYMOUS = "User:ANONYMOUS"
#: A broker on which ANONYMOUS, that is every client of a PLAINTEXT listener, needs rules.
WITH_AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER}
#: And one on which ANONYMOUS is an administrator.
AS_SUPER_USER = {**WITH_AUTHORIZER, "super.users": ANONYMOUS}


def rule(
    resource_type: int = ResourceType.TOPIC,
    name: str = "t",
    operation: int = Operation.READ,
    *,
    who: str = "User:alice",
    host: str = "*",
    pattern: int = PatternType.LITERAL,
    permission: int = Permission.ALLOW,
) -> AccessRule:
    return AccessRule(resource_type, name, pattern, who, host, operation, permission)


def creation(of: AccessRule) -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=of.resource_type,
        resource_name=of.resource_name,
        resource_pattern_type=of.pattern_type,
        principal=of.principal,
        host=of.host,
        operation=of.operation,
        permission_type=of.permission,
    )


def create(raw: Raw, *rules: AccessRule, version: int | None = None) -> list[int]:
    """Store rules; the codes."""
    answer = raw.ask(CreateAclsRequest(creations=[creation(one) for one in rules]), version)
    return [row.error_code for row in answer.results]


def wanted(**fields: Any) -> DeleteAclsRequest.DeleteAclsFilter:
    """A filter; without fields it means everything."""
    everything: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return DeleteAclsRequest.DeleteAclsFilter(**{**everything, **fields})


def only(of: AccessRule) -> DeleteAclsRequest.DeleteAclsFilter:
    """A filter that means one rule."""
    return wanted(
        resource_type_filter=of.resource_type,
        resource_name_filter=of.resource_name,
        pattern_type_filter=of.pattern_type,
        principal_filter=of.principal,
        host_filter=of.host,
        operation=of.operation,
        permission_type=of.permission,
    )


def delete(raw: Raw, *filters: DeleteAclsRequest.DeleteAclsFilter, version: int | None = None) -> list[Any]:
    """Remove rules; for each filter its code, or the rules that it removed."""
    answer = raw.ask(DeleteAclsRequest(filters=list(filters)), version)
    return [
        row.error_code
        or {
            AccessRule(
                found.resource_type,
                found.resource_name,
                found.pattern_type,
                found.principal,
                found.host,
                found.operation,
                found.permission_type,
            )
            for found in row.matching_acls
        }
        for row in answer.filter_results
    ]


def describe_request(**fields: Any) -> DescribeAclsRequest:
    row = wanted(**fields)
    return DescribeAclsRequest(**{name: getattr(row, name) for name in DescribeAclsRequest.__slots__})


def described(raw: Raw, *, version: int | None = None, **fields: Any) -> set[AccessRule]:
    answer = raw.ask(describe_request(**fields), version)
    assert answer.error_code == 0, answer
    return {
        AccessRule(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            found.principal,
            found.host,
            found.operation,
            found.permission_type,
        )
        for resource in answer.resources
        for found in resource.acls
    }

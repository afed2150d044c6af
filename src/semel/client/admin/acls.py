"""Access rules (ACLs) on the brokers: create, describe, delete."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeVar

from semel.client.admin.requests import AdminRequests, within_api_timeout
from semel.client.argument_lists import as_list
from semel.client.arguments import as_text
from semel.client.cluster.cluster import Controller
from semel.client.cluster.response_errors import check
from semel.errors import ErrorCode, Misuse
from semel.machines.security.access import AccessRule, Operation, PatternType, Permission, ResourceType
from semel.machines.security.acl_bindings import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    AclBinding,
    check_possible,
    read_word,
)
from semel.wire.messages.security import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

#: A request has so many rules at most; more are sent in several.
RULES_PER_REQUEST = 1000
_Kind = TypeVar("_Kind", bound=enum.IntEnum)


class AclAdmin:
    """The part of the admin client for access rules."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    @within_api_timeout
    async def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Add access rules. One that is there already stays as it is.

        The first that is refused raises its error; the others are added all the same.
        """
        rules = as_rules(acls, new=True)
        results = []
        for some in _in_parts(rules):
            rows = [
                CreateAclsRequest.AclCreation(
                    resource_type=rule.resource_type,
                    resource_name=rule.resource_name,
                    resource_pattern_type=rule.pattern_type,
                    principal=rule.principal,
                    host=rule.host,
                    operation=rule.operation,
                    permission_type=rule.permission,
                )
                for rule in some
            ]
            response = await self._requests.send(CreateAclsRequest(creations=rows), Controller())
            results += response.results
        for rule, result in zip(rules, results, strict=True):
            check(result.error_code, f"adding the rule '{rule}'", result.error_message)

    @within_api_timeout
    async def describe_acls(
        self,
        *,
        principal: str | None = None,
        host: str | None = None,
        operation: str | None = None,
        resource_type: str | None = None,
        resource_name: str | None = None,
        pattern_type: str | None = None,
        permission: str | None = None,
    ) -> list[AclBinding]:
        """The access rules that match. What is not given matches everything.

        With `pattern_type="match"` and the name of a resource: all rules that can decide about this name, also those
        for a prefix of it and for `*`.
        """
        request = DescribeAclsRequest(
            resource_type_filter=_word(resource_type, "resource_type", RESOURCE_TYPES, ResourceType.ANY),
            resource_name_filter=_text(resource_name, "resource_name"),
            pattern_type_filter=_word(
                pattern_type, "pattern_type", (*PATTERN_TYPES, PatternType.MATCH), PatternType.ANY
            ),
            principal_filter=_text(principal, "principal"),
            host_filter=_text(host, "host"),
            operation=_word(operation, "operation", OPERATIONS, Operation.ANY),
            permission_type=_word(permission, "permission", PERMISSIONS, Permission.ANY),
        )
        response = await self._requests.send(request)
        check(response.error_code, "describing access rules", response.error_message)
        return [
            AclBinding.from_rule(
                AccessRule(
                    resource.resource_type,
                    resource.resource_name,
                    resource.pattern_type,
                    row.principal,
                    row.host,
                    row.operation,
                    row.permission_type,
                )
            )
            for resource in response.resources
            for row in resource.acls
        ]

    @within_api_timeout
    async def delete_acls(self, acls: Iterable[AclBinding]) -> list[AclBinding]:
        """Remove exactly these access rules. Returns those that were there."""
        removed: list[AclBinding] = []
        for some in _in_parts(as_rules(acls)):
            rows = [
                DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=rule.resource_type,
                    resource_name_filter=rule.resource_name,
                    pattern_type_filter=rule.pattern_type,
                    principal_filter=rule.principal,
                    host_filter=rule.host,
                    operation=rule.operation,
                    permission_type=rule.permission,
                )
                for rule in some
            ]
            response = await self._requests.send(DeleteAclsRequest(filters=rows), Controller())
            for rule, result in zip(some, response.filter_results, strict=True):
                check(result.error_code, f"removing the rule '{rule}'", result.error_message)
                for row in result.matching_acls:
                    check(row.error_code, f"removing the rule '{rule}'", row.error_message)
                    removed.append(AclBinding.from_rule(rule))
        return removed


def as_rules(given: object, *, new: bool = False) -> list[AccessRule]:
    """Rules to add (`new`) or to remove, each once."""
    return list(dict.fromkeys(as_list(given, "acls", lambda one: _as_rule(one, new=new))))


def _as_rule(given: object, *, new: bool) -> AccessRule:
    if not isinstance(given, AclBinding):
        raise TypeError(f"each of acls is an AclBinding, not {type(given).__name__}")
    try:
        rule = given.rule()
        if new:
            check_possible(rule)
    except ValueError as error:
        raise Misuse(ErrorCode.INVALID_REQUEST, str(error)) from None
    for what in ("principal", "resource_name", "host"):
        as_text(getattr(given, what), what)
    return rule


def _word(given: object, what: str, known: tuple[_Kind, ...], everything: _Kind) -> _Kind:
    if given is None:
        return everything
    try:
        return read_word(given, what, known)
    except ValueError as error:
        raise Misuse(ErrorCode.INVALID_REQUEST, str(error)) from None


def _text(given: object, what: str) -> str | None:
    return None if given is None else as_text(given, what)


def _in_parts(rules: list[AccessRule]) -> Iterable[list[AccessRule]]:
    for begin in range(0, len(rules), RULES_PER_REQUEST):
        yield rules[begin : begin + RULES_PER_REQUEST]

"""Access rules (ACLs): create, describe, delete. Without an authorizer they are refused with SECURITY_DISABLED.

Guarantees:

- A rule is on disk before it is answered (`stored.access_rules`).
- The rules of a request are stored together, with one write. A rule that makes no sense is refused, the others are
  stored.
- What to delete is decided when no other change is being made, so the answer lists exactly what is gone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from semel.broker.dispatch import Pace
from semel.errors import ErrorCode, Refused
from semel.machines.security.access import (
    CLUSTER_NAME,
    OPERATIONS_ON,
    AccessRule,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    RuleFilter,
)
from semel.wire.messages.security import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

NO_AUTHORIZER = "there is no authorizer (authorizer.class.name), so there are no access rules"
#: Kafka's bound for one request: new rules, and rules to remove.
MOST_AT_ONCE = 10_000
#: So many rules are in an answer to DeleteAcls at most, counting those that several filters match.
MOST_LISTED = 100_000
_OPERATIONS = frozenset(Operation) - {Operation.UNKNOWN, Operation.ANY}
_IN_FILTERS = tuple(frozenset(kind) for kind in (ResourceType, PatternType, Operation, Permission))
_NAMED_IN_FILTERS = ("a resource type", "a pattern type", "an operation", "a permission")
_Row = CreateAclsRequest.AclCreation | DeleteAclsRequest.DeleteAclsFilter | DescribeAclsRequest


def describe_acls(
    broker: BrokerServer, request: DescribeAclsRequest, call: Call
) -> Generator[None, None, DescribeAclsResponse | None]:
    """The rules that match, by resource."""
    if not is_readable(request, call):
        return None
    if broker.access is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    resources: dict[tuple[int, str, int], DescribeAclsResponse.DescribeAclsResource] = {}
    wanted = _filter(request)
    for rule in broker.access.rules.candidates(wanted):
        yield
        if not wanted.matches(rule):
            continue
        key = (rule.resource_type, rule.resource_name, rule.pattern_type)
        if key not in resources:
            resources[key] = DescribeAclsResponse.DescribeAclsResource(
                resource_type=rule.resource_type, resource_name=rule.resource_name, pattern_type=rule.pattern_type
            )
        resources[key].acls.append(
            DescribeAclsResponse.AclDescription(
                principal=rule.principal, host=rule.host, operation=rule.operation, permission_type=rule.permission
            )
        )
    return DescribeAclsResponse(resources=list(resources.values()))


def create_acls(broker: BrokerServer, request: CreateAclsRequest, call: Call) -> Generator[None, None, Any]:
    """Store rules. One that is there already is answered as one that is new."""
    row = CreateAclsResponse.AclCreationResult
    results: list[CreateAclsResponse.AclCreationResult] = []
    rules: list[AccessRule] = []
    for creation in request.creations:
        yield
        if not is_readable(creation, call):
            return None
        result = row()
        results.append(result)
        try:
            rules.append(_new_rule(creation))
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
    if broker.access is None:
        refused = row(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        return CreateAclsResponse(results=[refused] * len(request.creations))
    return broker.changes.run(_create(broker.access, rules, results))


async def _create(
    access: AccessControl, rules: list[AccessRule], results: list[CreateAclsResponse.AclCreationResult]
) -> CreateAclsResponse:
    try:
        new = access.stored.missing(rules)
        if len(new) > MOST_AT_ONCE:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"{len(new)} new rules: create at most {MOST_AT_ONCE} at once")
        await access.stored.add(new)
    except Refused as error:
        for result in results:
            result.error_code, result.error_message = error.code, error.why
    return CreateAclsResponse(results=results)


def delete_acls(broker: BrokerServer, request: DeleteAclsRequest, call: Call) -> Generator[None, None, Any]:
    """Remove the rules that match a filter. Each filter is answered with what it matches."""
    for wanted in request.filters:
        yield
        if not is_readable(wanted, call):
            return None
    if broker.access is None:
        refused = DeleteAclsResponse.DeleteAclsFilterResult(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
        )
        return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
    return broker.changes.run(_delete(broker.access, request.filters, Pace(broker, call)))


async def _delete(
    access: AccessControl, filters: Iterable[DeleteAclsRequest.DeleteAclsFilter], pace: Pace
) -> DeleteAclsResponse:
    results = []
    removed: dict[AccessRule, None] = {}
    listed = 0
    await access.stored.know()
    for row in filters:
        result = DeleteAclsResponse.DeleteAclsFilterResult(error_message=None)
        results.append(result)
        try:
            matching = await _matching(access, _filter(row), pace)
            if len(removed) + sum(rule not in removed for rule in matching) > MOST_AT_ONCE:
                raise _invalid(f"it would remove more than {MOST_AT_ONCE} rules: nothing was removed, name fewer")
            listed += len(matching)
            if listed > MOST_LISTED:
                raise _invalid(f"the filters of this request name more than {MOST_LISTED} rules: send fewer filters")
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
            continue
        removed.update(dict.fromkeys(matching))
        for rule in matching:
            await pace.rest()
            result.matching_acls.append(_removed(rule))
    try:
        await access.stored.remove(removed)
    except Refused as error:
        for result in results:
            result.error_code, result.error_message, result.matching_acls = error.code, error.why, []
    return DeleteAclsResponse(filter_results=results)


async def _matching(access: AccessControl, wanted: RuleFilter, pace: Pace) -> list[AccessRule]:
    named = (wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission)
    for value, known, what in zip(named, _IN_FILTERS, _NAMED_IN_FILTERS, strict=True):
        if value not in known:
            raise _invalid(f"the filter names {what} that is not known: {value}")
    matching = []
    await pace.rest()
    for rule in access.rules.candidates(wanted):
        await pace.rest()
        if wanted.matches(rule):
            matching.append(rule)
    return matching


def _removed(rule: AccessRule) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=rule.resource_type,
        resource_name=rule.resource_name,
        pattern_type=rule.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def is_readable(row: _Row, call: Call) -> bool:
    """Whether no field of a rule or a filter is 0, which says UNKNOWN. Kafka closes the connection for it; so do we."""
    if isinstance(row, CreateAclsRequest.AclCreation):
        resource_type, pattern_type = row.resource_type, row.resource_pattern_type
    else:
        resource_type, pattern_type = row.resource_type_filter, row.pattern_type_filter
    if resource_type and pattern_type and row.operation and row.permission_type:
        return True
    call.connection.refuse("an access rule names something unknown")
    return False


def _filter(row: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter) -> RuleFilter:
    return RuleFilter(
        row.resource_type_filter,
        row.resource_name_filter,
        row.pattern_type_filter,
        row.principal_filter,
        row.host_filter,
        row.operation,
        row.permission_type,
    )


def _new_rule(row: CreateAclsRequest.AclCreation) -> AccessRule:
    """The rule to store, or `Refused` with what is wrong, in Kafka's order."""
    name, principal = row.resource_name, row.principal
    if row.resource_type == ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _invalid(f"the only name of a CLUSTER resource is {CLUSTER_NAME}, not {name!r}")
    if not name:
        raise _invalid("the name of the resource is empty")
    if row.resource_type not in OPERATIONS_ON:
        raise _invalid(f"{_said(ResourceType, row.resource_type)} is not the type of a resource")
    if row.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"a rule's pattern is LITERAL or PREFIXED, not {_said(PatternType, row.resource_pattern_type)}")
    if row.operation not in _OPERATIONS:
        raise _invalid(f"{_said(Operation, row.operation)} is not an operation")
    if row.permission_type not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"a rule allows or denies: {_said(Permission, row.permission_type)} is neither")
    if ":" not in principal:
        raise _invalid(f"{principal!r} is not a principal: expected TYPE:NAME, for example User:alice")
    return AccessRule(
        row.resource_type, name, row.resource_pattern_type, principal, row.host, row.operation, row.permission_type
    )


def _said(kind: type[IntEnum], number: int) -> str:
    """A value's name; its number where it has none."""
    return kind(number).name if number in list(kind) else str(number)


def _invalid(why: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, why)

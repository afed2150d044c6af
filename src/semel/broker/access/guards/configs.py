"""Guards of settings: DescribeConfigs to see them, AlterConfigs to change them.

Those of a topic or a group need the right on it; those of brokers, loggers and client metrics the right on the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import made_of
from semel.broker.handlers.configs import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    LOGGER_RESOURCE,
    TOPIC_RESOURCE,
)
from semel.errors import ErrorCode
from semel.machines.security.access import CLUSTER_NAME, Operation, ResourceType
from semel.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_CLUSTER = (ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
#: The type of what has settings -> what the right is needed on, and the error without it.
_ASKED = {
    TOPIC_RESOURCE: (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    GROUP_RESOURCE: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    BROKER_RESOURCE: _CLUSTER,
    LOGGER_RESOURCE: _CLUSTER,
    CLIENT_METRICS_RESOURCE: _CLUSTER,
}


def describe_configs(
    access: AccessControl, request: DescribeConfigsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """DescribeConfigs on each resource."""
    allowed, denied = yield from _split(access, call, Operation.DESCRIBE_CONFIGS, request.resources)
    if not denied:
        return None
    answers = yield from _refusals(DescribeConfigsResponse.DescribeConfigsResult, denied)
    if not allowed:
        return Answer(DescribeConfigsResponse(results=answers))
    request.resources = allowed

    def merge(reply: DescribeConfigsResponse) -> DescribeConfigsResponse:
        reply.results += answers
        return reply

    return merge


def alter_configs(
    access: AccessControl, request: AlterConfigsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """AlterConfigs on each resource."""
    return (yield from _alter(access, request, call, AlterConfigsResponse))


def incremental_alter_configs(
    access: AccessControl, request: IncrementalAlterConfigsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """AlterConfigs on each resource."""
    return (yield from _alter(access, request, call, IncrementalAlterConfigsResponse))


def _alter(access: AccessControl, request: Any, call: Call, kind: type[Any]) -> Generator[None, None, Verdict]:
    times: Counter[tuple[int, str]] = Counter()
    for resource in request.resources:
        times[resource.resource_type, resource.resource_name] += 1
        yield
    # The handler refuses what is named twice, as Kafka does before it asks.
    twice = [row for row in request.resources if times[row.resource_type, row.resource_name] > 1]
    once = [row for row in request.resources if times[row.resource_type, row.resource_name] == 1] if twice else None
    yield
    allowed, denied = yield from _split(
        access, call, Operation.ALTER_CONFIGS, request.resources if once is None else once
    )
    if not denied:
        return None
    answers = yield from _refusals(kind.AlterConfigsResourceResponse, denied)
    if not allowed and not twice:
        return Answer(kind(responses=answers))
    request.resources = [*allowed, *twice]

    def merge(reply: Any) -> Any:
        reply.responses += answers
        return reply

    return merge


def list_config_resources(access: AccessControl, request: ListConfigResourcesRequest, call: Call) -> Verdict:
    """DescribeConfigs on the cluster."""
    if access.allows_on_cluster(call, Operation.DESCRIBE_CONFIGS):
        return None
    return Answer(ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))


def _split(
    access: AccessControl, call: Call, operation: Operation, resources: list[Any]
) -> Generator[None, None, tuple[list[Any], list[Any]]]:
    """The resources that are allowed, and those that are denied. The handler refuses types that have no settings."""
    allowed: list[Any] = []
    denied: list[Any] = []
    for resource in resources:
        kind = _ASKED.get(resource.resource_type)
        if kind is None:
            allowed.append(resource)
        else:
            name = CLUSTER_NAME if kind is _CLUSTER else resource.resource_name
            (allowed if access.allows(call, operation, kind[0], name) else denied).append(resource)
        yield
    return allowed, denied


def _refusals(row: type[Any], denied: list[Any]) -> Generator[None, None, list[Any]]:
    def refusal(resource: Any) -> Any:
        code = _ASKED[resource.resource_type][1]
        return row(
            error_code=code,
            error_message=code.meaning,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return made_of(denied, refusal)

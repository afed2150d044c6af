"""Guards of the APIs about access rules: Describe on the cluster to see them, Alter to change them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.access.guards import Answer, Verdict
from semel.broker.handlers.acls import is_readable
from semel.errors import ErrorCode
from semel.machines.security.access import Operation
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

_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
# Kafka closes the connection for a rule that it cannot read before it asks who sent it. Where the request is allowed,
# the handler does.


def describe_acls(access: AccessControl, request: DescribeAclsRequest, call: Call) -> Verdict:
    """Describe on the cluster."""
    if access.allows_on_cluster(call, Operation.DESCRIBE):
        return None
    if not is_readable(request, call):
        return Answer(None)
    return Answer(DescribeAclsResponse(error_code=_DENIED, error_message="needs Describe on the cluster"))


def create_acls(
    access: AccessControl, request: CreateAclsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Alter on the cluster."""
    if access.allows_on_cluster(call, Operation.ALTER):
        return None
    for creation in request.creations:
        yield
        if not is_readable(creation, call):
            return Answer(None)
    row = CreateAclsResponse.AclCreationResult(error_code=_DENIED, error_message="needs Alter on the cluster")
    return Answer(CreateAclsResponse(results=[row] * len(request.creations)))


def delete_acls(
    access: AccessControl, request: DeleteAclsRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Alter on the cluster."""
    if access.allows_on_cluster(call, Operation.ALTER):
        return None
    for wanted in request.filters:
        yield
        if not is_readable(wanted, call):
            return Answer(None)
    row = DeleteAclsResponse.DeleteAclsFilterResult(error_code=_DENIED, error_message="needs Alter on the cluster")
    return Answer(DeleteAclsResponse(filter_results=[row] * len(request.filters)))

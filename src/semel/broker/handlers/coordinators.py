"""FindCoordinator: the broker that coordinates a group or a transactional id. Here there is one broker."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.errors import ErrorCode
from semel.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

GROUP, TRANSACTION = 0, 1
BATCHED_SINCE = 4


def find_coordinator(
    broker: BrokerServer, request: FindCoordinatorRequest, call: Call
) -> Generator[None, None, FindCoordinatorResponse]:
    """Answer with this broker for every group and transactional id whose stored state can be read."""
    keys = request.coordinator_keys if call.version >= BATCHED_SINCE else [request.key]
    host, port = call.connection.endpoint
    found = []
    for key in keys:
        coordinator = FindCoordinatorResponse.Coordinator(key=key, node_id=-1, host="", port=-1, error_message=None)
        if broker.cluster is not None:
            coordinator.error_code = ErrorCode.INVALID_REQUEST
            coordinator.error_message = "groups and transactions are not served in a cluster (zookeeper.connect) yet"
        elif request.key_type not in (GROUP, TRANSACTION):
            coordinator.error_code = ErrorCode.INVALID_REQUEST
            coordinator.error_message = f"coordinators of type {request.key_type} are not served"
        else:
            shell = broker.groups if request.key_type == GROUP else broker.transactions
            if shell.host.ready_for(key):
                coordinator.node_id, coordinator.host, coordinator.port = broker.node_id, host, port
            else:
                coordinator.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                coordinator.error_message = f"what is stored of {key!r} cannot be read"
        found.append(coordinator)
        yield
    if call.version >= BATCHED_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )

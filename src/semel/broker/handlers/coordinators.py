"""FindCoordinator: the broker that coordinates a group or a transactional id."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from semel.broker.topics.internal import CONSUMER_OFFSETS, TRANSACTION_STATE
from semel.errors import ErrorCode, Refused
from semel.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

GROUP, TRANSACTION = 0, 1
BATCHED_SINCE = 4
_TOPICS = {GROUP: CONSUMER_OFFSETS, TRANSACTION: TRANSACTION_STATE}
_Row = FindCoordinatorResponse.Coordinator


def find_coordinator(broker: BrokerServer, request: FindCoordinatorRequest, call: Call) -> Any:
    """Answer with the broker that coordinates each group or transactional id."""
    return _find_alone(broker, request, call) if broker.cluster is None else _find(broker, request, call)


async def _find(broker: BrokerServer, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    """In a cluster: the leader of the partition of the internal topic. The topic is created if need be (C6)."""
    assert broker.cluster is not None
    keys = request.coordinator_keys if call.version >= BATCHED_SINCE else [request.key]
    found = []
    for key in keys:
        row = _Row(key=key, node_id=-1, host="", port=-1, error_message=None)
        try:
            if request.key_type not in _TOPICS:
                raise Refused(ErrorCode.INVALID_REQUEST, f"coordinators of type {request.key_type} are not served")
            leader = await broker.cluster.coordinators.find(_TOPICS[request.key_type], key)
            address = broker.cluster.address_of(leader, call.connection.listener_name)
            if address is None:
                raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {leader} has no such listener")
            row.node_id, (row.host, row.port) = leader, address
        except Refused as refused:
            row.error_code, row.error_message = refused.code, refused.why
        found.append(row)
    return _response(found, call)


def _find_alone(
    broker: BrokerServer, request: FindCoordinatorRequest, call: Call
) -> Generator[None, None, FindCoordinatorResponse]:
    """Answer with this broker for every group and transactional id whose stored state can be read."""
    keys = request.coordinator_keys if call.version >= BATCHED_SINCE else [request.key]
    host, port = call.connection.endpoint
    found = []
    for key in keys:
        coordinator = _Row(key=key, node_id=-1, host="", port=-1, error_message=None)
        if request.key_type not in (GROUP, TRANSACTION):
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
    return _response(found, call)


def _response(found: list[_Row], call: Call) -> FindCoordinatorResponse:
    if call.version >= BATCHED_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )

"""What the client may do, for handlers: the fields of answers that say so, and the topics that it may see."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.machines.security.access import CLUSTER_NAME, OPERATIONS_ON, Operation, ResourceType

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

#: Every operation on a resource, as Kafka's bits.
_ALL = {kind: sum(1 << operation for operation in operations) for kind, operations in OPERATIONS_ON.items()}


def authorized_operations(broker: BrokerServer, call: Call, resource_type: ResourceType, name: str) -> int:
    """What the client may do to a topic or a group. Without an authorizer everybody may do everything."""
    access = broker.access
    return _ALL[resource_type] if access is None else access.operations(call, resource_type, name)


def cluster_operations(broker: BrokerServer, call: Call) -> int:
    """What the client may do to the cluster; nothing, if it may not describe it."""
    access = broker.access
    if access is not None and not access.allows_on_cluster(call, Operation.DESCRIBE):
        return 0
    return authorized_operations(broker, call, ResourceType.CLUSTER, CLUSTER_NAME)


def visible_topics(broker: BrokerServer, call: Call) -> Callable[[str], bool] | None:
    """Which topics the client may describe; None without an authorizer."""
    access = broker.access
    if access is None:
        return None
    return lambda name: access.allows(call, Operation.DESCRIBE, ResourceType.TOPIC, name, logged=False)

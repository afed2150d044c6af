"""The guard of FindCoordinator: Describe on the group or the transactional id."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import made_of, split
from semel.broker.handlers.coordinators import BATCHED_SINCE, GROUP, TRANSACTION
from semel.errors import ErrorCode
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_ASKED = {
    GROUP: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    TRANSACTION: (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}


def find_coordinator(
    access: AccessControl, request: FindCoordinatorRequest, call: Call
) -> Generator[None, None, Verdict]:
    """Nothing is asked about coordinators that are not served."""
    if request.key_type not in _ASKED:
        return None
    resource_type, code = _ASKED[request.key_type]
    if call.version < BATCHED_SINCE:
        if access.allows(call, Operation.DESCRIBE, resource_type, request.key):
            return None
        return Answer(
            FindCoordinatorResponse(error_code=code, error_message=code.meaning, node_id=-1, host="", port=-1)
        )
    allowed, denied = yield from split(
        access, call, Operation.DESCRIBE, resource_type, request.coordinator_keys, lambda key: key
    )
    if not denied:
        return None
    row = FindCoordinatorResponse.Coordinator
    answers = yield from made_of(
        denied, lambda key: row(key=key, node_id=-1, port=-1, error_code=code, error_message=code.meaning)
    )

    def merge(reply: FindCoordinatorResponse) -> FindCoordinatorResponse:
        reply.coordinators += answers
        return reply

    if not allowed:
        return Answer(merge(FindCoordinatorResponse()))
    request.coordinator_keys = allowed
    return merge

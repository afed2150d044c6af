"""DescribeClientQuotas and AlterClientQuotas, with Kafka's matching and checks."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from semel.broker.dispatch import Pace
from semel.broker.stored.quotas import CLIENT_ID, IP, USER, Entity, Match, check_quota, checked_entity
from semel.errors import ErrorCode, Refused
from semel.wire.messages.configs import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

#: Match types: an exact name, the default, or any name.
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


def describe_client_quotas(
    broker: BrokerServer, request: DescribeClientQuotasRequest, call: Call
) -> Generator[None, None, DescribeClientQuotasResponse]:
    """Describe the quotas of all matching entities."""
    try:
        wanted = _matches(request)
    except Refused as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.why, entries=None)
    response = DescribeClientQuotasResponse
    entries = []
    for entity, quotas in broker.stores.quotas.matching(wanted, strict=request.strict):
        yield
        if quotas is not None:
            entries.append(
                response.EntryData(
                    entity=[response.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    values=[response.ValueData(key=key, value=value) for key, value in quotas.items()],
                )
            )
    return response(entries=entries)


def _matches(request: DescribeClientQuotasRequest) -> dict[str, Match]:
    wanted: dict[str, Match] = {}
    for asked in request.components:
        kind = asked.entity_type
        if not kind:
            raise Refused(ErrorCode.INVALID_REQUEST, "the type of an entity is empty")
        if kind not in (USER, CLIENT_ID, IP):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"there are no entities of type {kind!r}")
        if kind in wanted:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{kind} is in the request more than once")
        if asked.match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise Refused(ErrorCode.INVALID_REQUEST, f"there is no match type {asked.match_type}")
        if (asked.match is None) == (asked.match_type == EXACT):
            raise Refused(ErrorCode.INVALID_REQUEST, "an exact match needs a name, any other match has none")
        wanted[kind] = Match(asked.match, any_name=asked.match_type == SPECIFIED)
    if IP in wanted and len(wanted) > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, "a quota is either for an ip or for users and client ids")
    return wanted


def alter_client_quotas(broker: BrokerServer, request: AlterClientQuotasRequest, call: Call) -> Any:
    """Set and remove quotas. A refused entity stays as it was, the others change."""
    return broker.changes.run(_alter(broker, request, call))


async def _alter(broker: BrokerServer, request: AlterClientQuotasRequest, call: Call) -> AlterClientQuotasResponse:
    pace = Pace(broker, call)
    rows: dict[Entity, AlterClientQuotasResponse.EntryData] = {}
    changes: dict[Entity, dict[str, float | None]] = {}
    for entry in request.entries:
        await pace.rest()
        # Of two names for one type the last one counts, as in Kafka.
        names = {row.entity_type: row.entity_name for row in entry.entity}
        named: Entity = tuple(sorted(names.items()))
        row = AlterClientQuotasResponse.EntryData(
            error_message=None,
            entity=[AlterClientQuotasResponse.EntityData(entity_type=kind, entity_name=name) for kind, name in named],
        )
        was_named_before = named in rows
        rows[named] = row
        try:
            entity = checked_entity(names)
            if was_named_before:
                changes.pop(entity, None)
                raise Refused(ErrorCode.INVALID_REQUEST, "an entity is in the request more than once")
            changes[entity] = _changes(entity, entry.ops)
        except Refused as error:
            row.error_code, row.error_message = error.code, error.why
    if not request.validate_only:
        try:
            await broker.stores.quotas.replace(changes)
        except Refused as error:
            for row in rows.values():
                row.error_code, row.error_message = error.code, error.why
        broker.update_quotas()
    return AlterClientQuotasResponse(entries=list(rows.values()))


def _changes(entity: Entity, operations: list[AlterClientQuotasRequest.OpData]) -> dict[str, float | None]:
    changes: dict[str, float | None] = {}
    for operation in operations:
        if operation.key in changes:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{operation.key} is in the request more than once")
        if not operation.remove:
            check_quota(entity, operation.key, operation.value)
        changes[operation.key] = None if operation.remove else operation.value
    return changes

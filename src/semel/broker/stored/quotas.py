"""Which clients have which quotas, as Kafka names and checks them.

Guarantees:

- A quota is in the metadata store before it holds, and holds again after a restart. What one request sets is set at
  once.
- A quota is for users, client ids, both together, or addresses, each by name or as the default of all that have no name
  of their own. What Kafka refuses is refused, and what nothing would keep to is not accepted.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.errors import ErrorCode, Refused

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

#: The quotas of users and client ids, and those of addresses: name -> the largest whole number, None for any number.
_CLIENT_QUOTAS: dict[str, int | None] = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_QUOTAS: dict[str, int | None] = {CONNECTION_CREATION_RATE: 2**31 - 1}
#: How far from a whole number a number may be that has to be one.
_ROUNDING = 1e-6
_STORE_ENTRY = "client-quotas"

#: Each type with the name, None for the default, sorted: who a quota is for.
Entity = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Match:
    """What a question asks of one type of entity: this name, the default, or (`any_name`) either."""

    name: str | None
    any_name: bool = False


class QuotaStore:
    """All quotas, by entity."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self._entry = StoredEntry(store, _STORE_ENTRY)
        self._quotas: dict[Entity, dict[str, float]] = {
            tuple((kind, name) for kind, name in row["entity"]): row["quotas"] for row in self._entry.read() or ()
        }

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def items(self) -> Iterable[tuple[Entity, Mapping[str, float]]]:
        """Every entity with its quotas."""
        return self._quotas.items()

    def get(self, entity: Entity, quota: str) -> float | None:
        """One quota, of exactly this entity."""
        found = self._quotas.get(entity)
        return None if found is None else found.get(quota)

    def matching(
        self, wanted: Mapping[str, Match], *, strict: bool
    ) -> Iterator[tuple[Entity, Mapping[str, float] | None]]:
        """The entities that have all these types, with `strict` only those that have no other; None for the others."""
        for entity, quotas in self._quotas.items():
            names = dict(entity)
            matches = not (strict and names.keys() != wanted.keys()) and all(
                kind in names and (match.any_name or names[kind] == match.name) for kind, match in wanted.items()
            )
            yield entity, quotas if matches else None

    async def replace(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        """Set and, where there is None, take back quotas that were `checked`. One write, one at a time."""
        quotas = dict(self._quotas)
        for entity, values in changes.items():
            own = dict(quotas.get(entity, {}))
            for name, value in values.items():
                if value is None:
                    own.pop(name, None)
                else:
                    own[name] = value
            if own:
                quotas[entity] = own
            else:
                quotas.pop(entity, None)
        if quotas == self._quotas:
            return

        def rows() -> list[object]:
            return [{"entity": entity, "quotas": values} for entity, values in quotas.items()]

        await self._entry.replace_beside(rows)
        self._quotas = quotas


def checked_entity(names: Mapping[str, str | None]) -> Entity:
    """Who a quota is for, or why that is nobody."""
    if not names:
        raise Refused(ErrorCode.INVALID_REQUEST, "a quota is for somebody")
    for kind, name in names.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise Refused(ErrorCode.INVALID_REQUEST, f"there is no quota for entities of type {kind!r}")
        if name == "":
            raise Refused(ErrorCode.INVALID_REQUEST, f"an empty {kind} has no quota")
    if IP in names:
        if len(names) > 1:
            raise Refused(ErrorCode.INVALID_REQUEST, "a quota is for an address, or for users and client ids")
        if names[IP] is not None:
            try:
                return ((IP, str(ipaddress.ip_address(str(names[IP])))),)
            except ValueError:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{names[IP]} is not an IP address") from None
    return tuple(sorted(names.items()))


def check_quota(entity: Entity, quota: str, value: float) -> None:
    """Refuse a quota that this entity cannot have."""
    known = _IP_QUOTAS if entity[0][0] == IP else _CLIENT_QUOTAS
    if quota not in known:
        raise Refused(ErrorCode.INVALID_REQUEST, f"there is no quota {quota!r} for {' and '.join(dict(entity))}")
    if math.isnan(value) or value <= 0:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{quota} must be above 0")
    most = known[quota]
    if most is None:
        if math.isinf(value):
            raise Refused(ErrorCode.INVALID_REQUEST, f"{quota} must be a number; to lift a quota, remove it")
    elif value > most:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{quota} is at most {most}")
    elif abs(value - round(value)) > _ROUNDING:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{quota} must be a whole number")

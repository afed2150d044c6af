"""The quotas of clients, with Kafka's names and checks.

Guarantees:

- A quota is in the metadata store before it holds, and holds again after a restart. All quotas of one request are
  stored with one write.
- A quota is for users, client ids, both together, or addresses, by name or as the default for all others. What Kafka
  refuses is refused, and a quota that would not be enforced is not accepted.
"""

from __future__ import annotations

import ipaddress
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.errors import ErrorCode, Refused

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

#: The quotas of users and client ids, and those of addresses, with the largest whole number; None for any number.
_CLIENT_QUOTAS: dict[str, int | None] = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_QUOTAS: dict[str, int | None] = {CONNECTION_CREATION_RATE: 2**31 - 1}
#: How far a value may be from a whole number where a whole number is needed.
_ROUNDING = 1e-6
_STORE_ENTRY = "client-quotas"

#: Who a quota is for: pairs of type and name (None for the default), sorted.
Entity = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Match:
    """What a filter asks of one type of entity: this name, the default (None), or any."""

    name: str | None
    any_name: bool = False


class QuotaTable(ABC):
    """All quotas, by entity, wherever they are stored."""

    def __init__(self, quotas: dict[Entity, dict[str, float]]) -> None:
        self._quotas = quotas

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def items(self) -> Iterable[tuple[Entity, Mapping[str, float]]]:
        """Every entity with its quotas."""
        return self._quotas.items()

    def get(self, entity: Entity, quota: str) -> float | None:
        """One quota of exactly this entity."""
        found = self._quotas.get(entity)
        return None if found is None else found.get(quota)

    def matching(
        self, wanted: Mapping[str, Match], *, strict: bool
    ) -> Iterator[tuple[Entity, Mapping[str, float] | None]]:
        """All entities, with their quotas if they match, else None. With `strict` other types must be absent."""
        for entity, quotas in self._quotas.items():
            names = dict(entity)
            matches = not (strict and names.keys() != wanted.keys()) and all(
                kind in names and (match.any_name or names[kind] == match.name) for kind, match in wanted.items()
            )
            yield entity, quotas if matches else None

    @abstractmethod
    async def replace(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        """Set quotas, or remove them (None). They were checked by `check_quota`."""


class QuotaStore(QuotaTable):
    """Quotas on disk."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self._entry = StoredEntry(store, _STORE_ENTRY)
        super().__init__(self._entry.read_as(_stored_quotas))

    async def replace(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        """With one write."""
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


def _stored_quotas(rows: Any) -> dict[Entity, dict[str, float]]:
    found: dict[Entity, dict[str, float]] = {}
    for row in rows or ():
        entity = tuple((kind, name) for kind, name in row["entity"])
        quotas = {name: float(value) for name, value in row["quotas"].items()}
        if not all(isinstance(kind, str) and (name is None or isinstance(name, str)) for kind, name in entity):
            raise ValueError(f"{row['entity']} is nobody")
        found[entity] = quotas
    return found


def quota_bounds(entity: Entity) -> Mapping[str, int | None]:
    """The quotas that an entity may have, with the largest whole number; None for any number."""
    return _IP_QUOTAS if entity[0][0] == IP else _CLIENT_QUOTAS


def checked_entity(names: Mapping[str, str | None]) -> Entity:
    """The entity with these names, or why there is none."""
    if not names:
        raise Refused(ErrorCode.INVALID_REQUEST, "a quota needs an entity: a user, a client-id or an ip")
    for kind, name in names.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise Refused(ErrorCode.INVALID_REQUEST, f"there is no quota for entities of type {kind!r}")
        if name == "":
            raise Refused(ErrorCode.INVALID_REQUEST, f"the name of the {kind} is empty")
    if IP in names:
        if len(names) > 1:
            raise Refused(ErrorCode.INVALID_REQUEST, "a quota is either for an ip or for users and client ids")
        if names[IP] is not None:
            try:
                return ((IP, str(ipaddress.ip_address(str(names[IP])))),)
            except ValueError:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{names[IP]} is not an IP address") from None
    return tuple(sorted(names.items()))


def check_quota(entity: Entity, quota: str, value: float) -> None:
    """Refuse a quota that is not legal for this entity."""
    known = quota_bounds(entity)
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

"""What many guards do: ask about each row of a request."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, TypeVar

from semel.machines.security.access import Operation, ResourceType

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

Row = TypeVar("Row")
Made = TypeVar("Made")


def split(
    access: AccessControl,
    call: Call,
    operation: Operation,
    resource_type: ResourceType,
    rows: Iterable[Row],
    name_of: Callable[[Row], str | None],
    *,
    logged: bool = True,
) -> Generator[None, None, tuple[list[Row], list[Row]]]:
    """The rows that are allowed, and those that are denied. A name of None is allowed: there is no such thing."""
    allowed, denied = [], []
    for row in rows:
        name = name_of(row)
        if name is None or access.allows(call, operation, resource_type, name, logged=logged):
            allowed.append(row)
        else:
            denied.append(row)
        yield
    return allowed, denied


def made_of(rows: Iterable[Row], make: Callable[[Row], Made]) -> Generator[None, None, list[Made]]:
    """What `make` makes of each row, one at a time: there may be very many."""
    found = []
    for row in rows:
        found.append(make(row))
        yield
    return found


def topic_name(access: AccessControl, topic_id: uuid.UUID) -> str | None:
    """The name of the topic with this id, None if there is none."""
    topic = access.broker.topics.by_id.get(topic_id)
    return None if topic is None else topic.name

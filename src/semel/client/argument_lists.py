"""Checks of lists, dictionaries and callbacks, by the same rules as in `arguments`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from semel.client.arguments import INT64_MAX, as_number, as_text, as_topic, as_wait, shown
from semel.client.offset_arguments import PartitionLike, as_partition
from semel.config import ConfigError, Values
from semel.config.table import Table
from semel.errors import ErrorCode, Misuse
from semel.machines.values import TopicPartition

T = TypeVar("T")

#: Stands for "no limit" where an event loop needs a number: a year.
_A_YEAR_MS = 366 * 24 * 3600 * 1000.0


def as_timeout_s(given: object, what: str = "timeout_ms") -> float:
    """How long to wait, from milliseconds to seconds.

    >>> as_timeout_s(1500)
    1.5
    """
    if given is None:
        raise TypeError(f"{what} is a number, not None")
    wait_ms = as_wait(given, what)
    return (_A_YEAR_MS if wait_ms is None else wait_ms) / 1000


def as_values(given: object, table: Table) -> Values:
    """A client's settings, from a dict or parsed already."""
    if isinstance(given, Values):
        if given.table is not table:
            raise TypeError(f"the settings are those of a {given.table.noun}, not of a {table.noun}")
        return given
    settings = as_dict(given, "config")
    for name, value in settings.items():
        if not isinstance(name, str):
            raise TypeError(
                f"config has the key {shown(name)}: settings are named by text, such as 'bootstrap.servers'"
            )
        kind = table[name].kind if name in table else None
        if kind == "string" and value is not None and not isinstance(value, str):
            raise ConfigError(f"{name}={shown(value)}: must be text")
        if kind == "list" and not isinstance(value, str):
            as_texts(value, name)
    return table.parse(settings)


def as_flag(given: object, what: str) -> bool:
    if not isinstance(given, bool):
        raise TypeError(f"{what} is True or False, not {type(given).__name__}")
    return given


def as_callback(given: Any, what: str) -> Any:
    if given is not None and not callable(given):
        raise TypeError(f"{what} is something to call, or None, not {type(given).__name__}")
    return given


def as_list(given: object, what: str, each: Callable[[Any], T]) -> list[T]:
    """All items, each checked by `each`. A string is refused: it would be read as the list of its letters."""
    if isinstance(given, (str, bytes, bytearray, memoryview)) or not isinstance(given, Iterable):
        raise TypeError(f"{what} is a list, not {type(given).__name__}")
    return [each(item) for item in given]


def as_texts(given: object, what: str) -> list[str]:
    return as_list(given, what, lambda item: as_text(item, f"each of {what}"))


def as_ids(given: object, what: str) -> list[str]:
    """Group ids or transactional ids, each once. An empty one is refused."""
    return list(dict.fromkeys(as_list(given, what, lambda item: as_id(item, f"each of {what}"))))


def as_id(given: object, what: str) -> str:
    if not as_text(given, what):
        raise Misuse(ErrorCode.INVALID_REQUEST, f"{what} must not be empty")
    return str(given)


def as_topics(given: object, what: str = "topics") -> list[str]:
    """Topic names, each once."""
    return list(dict.fromkeys(as_list(given, what, as_topic)))


def as_subscription(given: object) -> re.Pattern[str] | frozenset[str]:
    """The argument of `subscribe`: one topic, several, or a pattern."""
    if isinstance(given, re.Pattern):
        if not isinstance(given.pattern, str):
            raise TypeError("topics is a pattern of bytes: topic names are text, so leave out the b")
        return given
    names = [as_topic(given)] if isinstance(given, str) else as_topics(given)
    if not names:
        raise Misuse(
            ErrorCode.INVALID_REQUEST, "subscribe() got no topic: use unsubscribe() to leave the group"
        )
    return frozenset(names)


def as_dict(given: object, what: str) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a dict, not {type(given).__name__}")
    return given


def as_numbers_by_partition(
    given: Mapping[PartitionLike, int], what: str, each: str, least: int
) -> dict[TopicPartition, int]:
    """A number for each partition: a timestamp, or an offset."""
    return {
        as_partition(partition): as_number(number, each, least, INT64_MAX)
        for partition, number in as_dict(given, what).items()
    }


def as_settings(given: object, what: str = "configs") -> dict[str, str | None]:
    """Settings by name. Values are converted to the text that a broker expects; None stays None."""
    found: dict[str, str | None] = {}
    for name, value in as_dict(given, what).items():
        as_id(name, f"a name in {what}")
        if value is None:
            found[name] = None
        elif isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, (str, int, float)):
            found[name] = as_text(str(value), name)
        else:
            raise TypeError(f"{name} in {what} is text or a number, not {type(value).__name__}")
    return found

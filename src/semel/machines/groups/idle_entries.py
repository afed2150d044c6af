"""Dictionaries that are empty most of the time, at no cost while they are.

A broker remembers many groups and few of them have members. What they do not have is one dictionary that all of them
share; whoever gets the first entry gets a dictionary of its own, and gives it up with the last.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from semel.errors import invariant

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Nothing(dict[Any, Any]):
    """Empty, and stays so."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        invariant(False, "something was put into a dictionary that everything idle shares")
        raise AssertionError

    __setitem__ = _refuse
    setdefault = _refuse
    update = _refuse
    __ior__ = _refuse


NOTHING: dict[Any, Any] = _Nothing()


def with_entry(entries: dict[_Key, _Value], key: _Key, value: _Value) -> dict[_Key, _Value]:
    """The dictionary with this entry: another one if it was empty so far."""
    if not entries:
        return {key: value}
    entries[key] = value
    return entries


def without_entry(entries: dict[_Key, _Value], key: _Key) -> dict[_Key, _Value]:
    """The dictionary without this entry, if it has it."""
    entries.pop(key, None)
    return entries or NOTHING

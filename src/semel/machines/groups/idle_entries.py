"""Dictionaries that are empty most of the time and cost no memory then.

A broker stores many groups, and few of them have members. All empty dictionaries are one shared object. The first entry
makes a new dictionary, and with the last entry the shared one comes back.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from semel.errors import invariant

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _SharedEmpty(dict[Any, Any]):
    """A dictionary that stays empty."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        invariant(False, "an entry was put into the shared empty dictionary")
        raise AssertionError

    __setitem__ = _refuse
    setdefault = _refuse
    update = _refuse
    __ior__ = _refuse


SHARED_EMPTY: dict[Any, Any] = _SharedEmpty()


def with_entry(entries: dict[_Key, _Value], key: _Key, value: _Value) -> dict[_Key, _Value]:
    """The dictionary with this entry. A new one if it was empty."""
    if not entries:
        return {key: value}
    entries[key] = value
    return entries


def without_entry(entries: dict[_Key, _Value], key: _Key) -> dict[_Key, _Value]:
    """The dictionary without this entry. The shared one if it is empty now."""
    entries.pop(key, None)
    return entries or SHARED_EMPTY

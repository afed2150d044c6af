"""The error codes of a response, wherever they stand in it.

Some responses have one code, some one per topic or partition, some both. The schema tells where: a field named
`error_code` or `partition_error_code`, at any depth.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from semel.errors import ErrorCode
from semel.wire.schema import fields_of

_CODE_FIELDS = ("error_code", "partition_error_code")
_M = TypeVar("_M")


def error_codes(response: Any) -> Iterator[ErrorCode]:
    """Every error in a response, in the order of the wire."""
    for part, name in _places(response):
        code = getattr(part, name)
        if code:
            yield ErrorCode.of(code)


def with_error(response: _M, code: ErrorCode) -> _M:
    """A copy of a response with this error wherever it said that there was none."""
    changed = copy.deepcopy(response)
    for part, name in _places(changed):
        if not getattr(part, name):
            setattr(part, name, code)
    return changed


def has_error_code(message_class: type[Any], version: int) -> bool:
    """Whether a response of this version has an error code of its own, for the request as a whole."""
    return any(field.name == "error_code" and field.present_in(version) for field in fields_of(message_class))


def _places(message: Any) -> Iterator[tuple[Any, str]]:
    """(message or nested struct, field name) of every error code."""
    kind: Any = type(message)
    for name, is_array in _fields_to_read(kind):
        if name in _CODE_FIELDS:
            yield message, name
            continue
        value = getattr(message, name)
        for part in (value or ()) if is_array else (value,):
            if part is not None:
                yield from _places(part)


@cache
def _fields_to_read(kind: Any) -> tuple[tuple[str, bool], ...]:
    """(name, whether it is an array) of the fields that are error codes or may hold some."""
    return tuple((f.name, f.array) for f in fields_of(kind) if f.name in _CODE_FIELDS or f.struct is not None)

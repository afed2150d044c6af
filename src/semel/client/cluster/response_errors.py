"""Reading error codes out of answers, whatever their shape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from semel.errors import ErrorCode, KafkaError, Misuse, error_for
from semel.wire.schema import Struct, fields_of

_CODE_FIELDS = ("error_code", "partition_error_code")


def error_codes(response: Struct) -> Iterator[ErrorCode]:
    """Every error code in an answer, at whatever depth, the ones that say "no error" left out."""
    kind: Any = type(response)
    for name, is_array in _fields_worth_reading(kind):
        value = getattr(response, name)
        if name in _CODE_FIELDS:
            if value:
                yield ErrorCode.of(value)
        elif is_array:
            for item in value or ():
                yield from error_codes(item)
        elif value is not None:
            yield from error_codes(value)


@cache
def _fields_worth_reading(kind: Any) -> tuple[tuple[str, bool], ...]:
    return tuple((f.name, f.array) for f in fields_of(kind) if f.name in _CODE_FIELDS or f.struct is not None)


def failure(code: int, what: str, message: str | None = None) -> KafkaError | None:
    """The exception for an error code in an answer, or None when there was no error."""
    if not code:
        return None
    row = ErrorCode.of(code)
    return error_for(row, f"{what}: {message or row.meaning}")


def check(code: int, what: str, message: str | None = None, *, final: bool = False) -> None:
    """Raise the exception for an error code in an answer; `what` says what was being done.

    With `final`, asking again would not help even where the code says that it may: a topic to be deleted is not there.
    """
    error = failure(code, what, message)
    if error is None:
        return
    raise Misuse(error.code, error.why) if final and error.code.retriable else error

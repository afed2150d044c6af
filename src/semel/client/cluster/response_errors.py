"""Exceptions for the error codes of responses."""

from __future__ import annotations

from semel.errors import ErrorCode, KafkaError, Misuse, error_for


def failure(code: int, what: str, message: str | None = None) -> KafkaError | None:
    """The exception for an error code in a response; None if there was no error."""
    if not code:
        return None
    row = ErrorCode.of(code)
    return error_for(row, f"{what}: {message or row.meaning}")


def check(code: int, what: str, message: str | None = None, *, final: bool = False) -> None:
    """Raise the exception for an error code in a response. `what` says what was being done.

    With `final` a retriable code raises a Misuse: a topic to be deleted that does not exist will not appear.
    """
    error = failure(code, what, message)
    if error is None:
        return
    raise Misuse(error.code, error.why) if final and error.code.retriable else error

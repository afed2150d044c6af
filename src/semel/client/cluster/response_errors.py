"""Exceptions for the error codes of responses."""

from __future__ import annotations

from semel.errors import ErrorCode, KafkaError, Misuse, error_for


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

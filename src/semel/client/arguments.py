"""Checks of the arguments of public methods, made before anything is done.

An argument of the wrong type raises `TypeError`. A value that makes no sense raises a `Misuse` that says what is
allowed. Nothing was changed then, so the next correct call works.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

from semel.errors import ErrorCode, InvalidRecord, InvalidTopic, Misuse
from semel.machines.transactions.producer import GroupMetadata
from semel.machines.values import ProducerIdentity

Text = bytes | bytearray | memoryview | str
HeadersLike = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
#: The most bytes a text may have in a message of any version.
TEXT_MAX_BYTES = 2**15 - 1
#: A longer wait is treated as a wait without a limit.
_LONGEST_WAIT_MS = 10 * 365 * 24 * 3600 * 1000.0

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


class Headers(list[tuple[str, bytes | None]]):
    """Headers that were checked already: `as_headers` returns them unchanged."""


def as_bytes(given: Text, what: str) -> bytes:
    """Bytes unchanged, text encoded as UTF-8.

    >>> as_bytes("once", "value")
    b'once'
    """
    if isinstance(given, str):
        return _encoded(given, f"a record's {what}", ErrorCode.INVALID_RECORD)
    if isinstance(given, (bytes, bytearray, memoryview)):
        try:
            return bytes(given)
        except ValueError as error:  # a memoryview that was released
            raise InvalidRecord(ErrorCode.INVALID_RECORD, f"a record's {what} cannot be read: {error}") from None
    raise TypeError(f"a record's {what} is bytes or str, not {type(given).__name__}")


def as_headers(given: HeadersLike) -> Headers:
    """Headers as pairs. A name may occur more than once.

    >>> as_headers({"trace": "7f", "empty": None})
    [('trace', b'7f'), ('empty', None)]
    """
    if type(given) is Headers:
        return given
    if type(given) is not list:
        if isinstance(given, (str, bytes, bytearray, memoryview)) or not isinstance(given, Iterable):
            raise TypeError(f"headers are a dict or pairs of name and value, not {type(given).__name__}")
        if isinstance(given, Mapping):
            given = given.items()
    found = Headers()
    for pair in given:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"a header is a pair of name and value, not {shown(pair)}")
        name, value = pair
        if not isinstance(name, str):
            raise TypeError(f"a header's name is str, not {type(name).__name__}")
        if not name.isascii():
            _encoded(name, "a header's name", ErrorCode.INVALID_RECORD)
        if value is not None and type(value) is not bytes:
            value = as_bytes(value, f"header '{name}'")
        found.append((name, value))
    return found


def as_timestamp(given: object) -> int:
    """A time in milliseconds since 1970."""
    value = _whole(given, "timestamp_ms", "whole milliseconds since 1970, such as int(time.time() * 1000)")
    if not 0 <= value <= INT64_MAX:
        why = f"timestamp_ms={shown(value)}: milliseconds since 1970 are from 0 to {INT64_MAX}"
        raise InvalidRecord(ErrorCode.INVALID_TIMESTAMP, why)
    return value


def as_partition_number(given: object) -> int:
    return _whole(given, "partition", "a whole number")


def as_topic(given: object) -> str:
    """A topic name that Kafka allows."""
    if not isinstance(given, str):
        raise TypeError(f"topic is str, not {type(given).__name__}")
    if given in (".", "..") or not _LEGAL_TOPIC.match(given):
        why = f"no topic can be called {shown(given)}"
        raise InvalidTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
    return given


def as_wait(given: object, what: str = "timeout_ms", longest: float = _LONGEST_WAIT_MS) -> float | None:
    """How long to wait; None for no limit."""
    if given is None:
        return None
    if isinstance(given, bool) or not (hasattr(given, "__float__") or hasattr(given, "__index__")):
        raise TypeError(f"{what} is a number or None, not {type(given).__name__}")
    try:
        value = float(given)  # type: ignore[arg-type]
    except OverflowError:
        value = float("inf") if given > 0 else -1.0  # type: ignore[operator]
    if not value >= 0:  # also refuses NaN
        raise Misuse(ErrorCode.INVALID_REQUEST, f"{what}={shown(given)}: must be at least 0")
    return value if value <= longest else None


def as_wait_s(given: object) -> float | None:
    """As `as_wait`, in seconds."""
    return as_wait(given, "timeout", _LONGEST_WAIT_MS / 1000)


def as_identity(given: object) -> ProducerIdentity:
    """The identity that `prepare_transaction` returned. A plain pair is allowed, as it may have been stored as one."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"decided is what prepare_transaction() returned, not {shown(given)}")
    return ProducerIdentity(_whole(given[0], "producer_id"), _whole(given[1], "producer_epoch"))


def as_group(given: GroupMetadata | str) -> GroupMetadata:
    """The group, and the member of it, that commits."""
    group = GroupMetadata(given) if isinstance(given, str) else given
    if not isinstance(group, GroupMetadata):
        raise TypeError(f"group_metadata is consumer.group_metadata() or a group id, not {type(given).__name__}")
    if not as_text(group.group_id, "group_id"):
        raise Misuse(ErrorCode.INVALID_GROUP_ID, "group_id is empty: give the id of the group whose offsets these are")
    as_text(group.member_id, "member_id")
    if group.group_instance_id is not None:
        as_text(group.group_instance_id, "group_instance_id")
    as_number(group.generation_id, "generation_id", -1, INT32_MAX)
    return group


def as_text(given: object, what: str) -> str:
    """A text that fits into every message."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is str, not {type(given).__name__}")
    if len(given) * 4 > TEXT_MAX_BYTES or not given.isascii():
        size = len(_encoded(given, what, ErrorCode.INVALID_REQUEST))
        if size > TEXT_MAX_BYTES:
            raise Misuse(ErrorCode.INVALID_REQUEST, f"{what} has {size} bytes: at most {TEXT_MAX_BYTES} are allowed")
    return given


def as_number(given: object, what: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    value = _whole(given, what)
    if not least <= value <= most:
        raise Misuse(ErrorCode.INVALID_REQUEST, f"{what}={shown(value)}: must be from {least} to {most}")
    return value


def _whole(given: object, what: str, wanted: str = "a whole number") -> int:
    if isinstance(given, bool):
        raise TypeError(f"{what} is {wanted}, not bool")
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} is {wanted}, not {type(given).__name__}") from None


def _encoded(given: str, what: str, code: ErrorCode) -> bytes:
    try:
        return given.encode()
    except UnicodeEncodeError as error:
        kind = InvalidRecord if code is ErrorCode.INVALID_RECORD else Misuse
        raise kind(code, f"{what} cannot be written as UTF-8: {error.reason} at {error.start}") from None


def shown(given: Any) -> str:
    """The argument as text for an error message, shortened if it is long."""
    if isinstance(given, int) and given.bit_length() > 100:
        return f"a number of {given.bit_length()} bits"
    try:
        text = repr(given)
    except Exception:  # a failing __repr__ must not hide the error that is being reported
        text = f"a {type(given).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def require_pyarrow(method: str) -> None:
    """Say what to install, before anything is done, where columns are asked for and pyarrow is missing."""
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        why = f"{method}() needs {error.name}: pip install 'semel[arrow]'"
        raise ModuleNotFoundError(why, name=error.name) from None

"""What both coordinators share: the partition of an id, and the error code after a failed append."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from struct import unpack

from semel.errors import ErrorCode

#: For how many ids the partition is cached.
_REMEMBERED_KEYS = 4096

#: Powers of 31, the highest first: the factors of Java's string hash.
_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(255, -1, -1))

#: The error code for the client, by the error of the log. Other codes are passed on.
_AFTER_FAILED_APPEND = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def after_failed_append(code: ErrorCode) -> ErrorCode:
    """The error code for the client after an append that failed with `code`."""
    return _AFTER_FAILED_APPEND.get(code, code)


def java_hash(text: str) -> int:
    """`String.hashCode` of Java, over UTF-16 code units, as a signed 32-bit number."""
    units: Sequence[int]
    if text.isascii():
        units = text.encode("ascii")
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        units = unpack(f">{len(data) // 2}H", data)
    value = 0
    for start in range(0, len(units), len(_POWERS)):
        part = units[start : start + len(_POWERS)]
        # In parts: an id may have 32,767 bytes.
        value = value * pow(31, len(part), 1 << 32) + sum(map(mul, part, _POWERS[len(_POWERS) - len(part) :]))
        value &= 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@lru_cache(_REMEMBERED_KEYS)
def partition_for(key: str, partition_count: int) -> int:
    """The partition of `__transaction_state` or `__consumer_offsets` that Kafka chooses for an id."""
    value = java_hash(key)
    # Java's smallest integer has no absolute value; Kafka takes 0 for it.
    return (0 if value == -0x80000000 else abs(value)) % partition_count

"""What both coordinators share: the partition a key lives in, and what a failed write means to who asked for it."""

from __future__ import annotations

from functools import lru_cache

from semel.errors import ErrorCode

#: Of so many keys in use, the partition is worked out once and not with every request.
_REMEMBERED_KEYS = 4096

#: Find the coordinator again, ask it again later, or give up; any other code is passed on as it is.
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
    """What to answer when the coordinator's record could not be written, and the log said this."""
    return _AFTER_FAILED_APPEND.get(code, code)


def java_hash(text: str) -> int:
    """`String.hashCode` of Java, over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for position in range(0, len(units), 2):
            value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@lru_cache(_REMEMBERED_KEYS)
def partition_for(key: str, partition_count: int) -> int:
    """The partition of `__transaction_state` or `__consumer_offsets` that Kafka chooses for an id."""
    value = java_hash(key)
    # Java has no absolute value of its smallest integer; Kafka takes 0 for it.
    return (0 if value == -0x80000000 else abs(value)) % partition_count

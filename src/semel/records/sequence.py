"""Sequence numbers of idempotent producers: 0 to 2^31 - 1, then 0 again, never negative."""

from __future__ import annotations

from typing import Final

MAX_SEQUENCE: Final = 2**31 - 1


def next_sequence(sequence: int, count: int) -> int:
    """The sequence `count` records after `sequence`."""
    return (sequence + count) & MAX_SEQUENCE


def last_sequence(base_sequence: int, record_count: int) -> int:
    """The sequence of the last of `record_count` records whose first has `base_sequence`."""
    return (base_sequence + record_count - 1) & MAX_SEQUENCE


def in_sequence(last: int, first: int) -> bool:
    """Does a batch that starts at `first` directly follow one that ended at `last`?"""
    return first == next_sequence(last, 1)

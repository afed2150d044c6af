"""Offsets as callers write them, made into values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semel.machines.contract import TopicPartition
from semel.machines.transaction_manager import OffsetAndMetadata

PartitionLike = TopicPartition | tuple[str, int]
Position = OffsetAndMetadata | int
#: Offsets to commit, by partition; spelled out because a mapping's keys are invariant.
Offsets = Mapping[TopicPartition, Position] | Mapping[tuple[str, int], Position] | Mapping[PartitionLike, Position]


def as_partition(given: PartitionLike) -> TopicPartition:
    """A partition, also from a plain pair.

    >>> as_partition(("payments", 0))
    TopicPartition(topic='payments', partition=0)
    """
    return given if isinstance(given, TopicPartition) else TopicPartition(*given)


def as_partitions(given: Iterable[PartitionLike]) -> list[TopicPartition]:
    return [as_partition(item) for item in given]


def as_offsets(given: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit: the next one to read, per partition."""
    return {
        as_partition(partition): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        for partition, offset in given.items()
    }

"""Checks of partitions and offsets, by the same rules as in `arguments`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semel.client.arguments import INT32_MAX, INT64_MAX, as_number, as_text, as_topic, shown
from semel.machines.transactions.producer import OffsetAndMetadata
from semel.machines.values import TopicPartition

PartitionLike = TopicPartition | tuple[str, int]
Position = OffsetAndMetadata | int
#: Offsets to commit, by partition; spelled out because a mapping's keys are invariant.
Offsets = Mapping[TopicPartition, Position] | Mapping[tuple[str, int], Position] | Mapping[PartitionLike, Position]


def as_partition(given: PartitionLike) -> TopicPartition:
    """A partition; a plain pair is allowed.

    >>> as_partition(("payments", 0))
    TopicPartition(topic='payments', partition=0)
    """
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"a partition is a pair of topic and number, such as ('payments', 0), not {shown(given)}")
    topic, number = given
    return TopicPartition(as_topic(topic), as_number(number, "partition", 0, INT32_MAX))


def as_partitions(given: Iterable[PartitionLike]) -> list[TopicPartition]:
    if isinstance(given, (str, bytes, TopicPartition)) or not isinstance(given, Iterable):
        raise TypeError(f"partitions are a list of pairs of topic and number, not {shown(given)}")
    return [as_partition(item) for item in given]


def as_offsets(given: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit: for each partition, the next offset to read."""
    if not isinstance(given, Mapping):
        raise TypeError(f"offsets are a dict from partition to offset, not {type(given).__name__}")
    return {as_partition(partition): as_position(offset) for partition, offset in given.items()}


def as_position(given: Position) -> OffsetAndMetadata:
    """An offset, with leader epoch and metadata if they were given."""
    if not isinstance(given, OffsetAndMetadata):
        return OffsetAndMetadata(as_number(given, "offset", 0, INT64_MAX))
    return OffsetAndMetadata(
        as_number(given.offset, "offset", 0, INT64_MAX),
        as_number(given.leader_epoch, "leader_epoch", -1, INT32_MAX),
        "" if given.metadata is None else as_text(given.metadata, "metadata"),
    )

"""Which partition a record goes to, where its sender does not say.

Guarantees: equal keys go to equal partitions, the same as with Apache Kafka's own clients (murmur2) while the number
of partitions stays; records without a key fill a batch of one partition before they move on to another (KIP-794).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from semel.machines.values import TopicPartition
from semel.records.partitioner import partition_for_key


@dataclass(slots=True)
class TopicRoutes:
    """The partitions of one topic, and the one that records without a key go to at the moment."""

    topic: str
    partition_count: int
    batch_size_bytes: int
    #: A number from 0 up to, not including, the argument; chance arrives from outside.
    choose: Callable[[int], int]
    ignore_keys: bool = False
    partitions: list[TopicPartition] = field(init=False)
    _current: int = field(init=False)
    _sent_bytes: int = 0

    def __post_init__(self) -> None:
        self.partitions = [TopicPartition(self.topic, number) for number in range(self.partition_count)]
        self._current = self.choose(self.partition_count)

    def route(self, key: bytes | None, size_bytes: int) -> int:
        """The number of the partition for a record with this key and about this size."""
        if key is not None and not self.ignore_keys:
            return partition_for_key(key, self.partition_count)
        self._sent_bytes += size_bytes
        if self._sent_bytes > self.batch_size_bytes and self.partition_count > 1:
            self._sent_bytes = size_bytes
            self._current = (self._current + 1 + self.choose(self.partition_count - 1)) % self.partition_count
        return self._current

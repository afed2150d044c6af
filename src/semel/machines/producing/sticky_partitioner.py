"""Which partition a record goes to, if the caller does not say.

Guarantees: records with equal keys go to the same partition, the one that Apache Kafka's clients choose (murmur2), as
long as the number of partitions does not change. Records without a key fill a batch of one partition before they go to
another (KIP-794).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from semel.machines.values import TopicPartition
from semel.records.partitioner import partition_for_key


@dataclass(slots=True)
class TopicRoutes:
    """The partitions of one topic, and the current one for records without a key."""

    topic: str
    partition_count: int
    batch_size_bytes: int
    #: A random number from 0 up to, not including, the argument. Passed in: a machine has no randomness.
    choose: Callable[[int], int]
    ignore_keys: bool = False
    partitions: list[TopicPartition] = field(init=False)
    _current: int = field(init=False)
    _sent_bytes: int = 0

    def __post_init__(self) -> None:
        self.partitions = [TopicPartition(self.topic, number) for number in range(self.partition_count)]
        self._current = self.choose(self.partition_count)

    def route(self, key: bytes | None, size_bytes: int) -> int:
        """The partition for a record with this key and about this size."""
        if key is not None and not self.ignore_keys:
            return partition_for_key(key, self.partition_count)
        self._sent_bytes += size_bytes
        if self._sent_bytes > self.batch_size_bytes and self.partition_count > 1:
            self._sent_bytes = size_bytes
            self._current = (self._current + 1 + self.choose(self.partition_count - 1)) % self.partition_count
        return self._current

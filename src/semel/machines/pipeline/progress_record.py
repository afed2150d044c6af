"""Progress as a record of a compacted topic: the same marker and offsets as in the group, but they never expire.

Guarantees: `ProgressFinder` gives the last value that was committed under a key, also while transactions of others are
open in the same partition. It needs every batch of the partition, in order, with its markers; its own transactions must
be settled, as they are after InitProducerId.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from semel.machines.pipeline.batch_marker import BatchMarker, is_source_offset
from semel.machines.pipeline.driver_transaction import PipelineProgress
from semel.machines.values import TopicPartition
from semel.records.batch import Batch, read_records

_COMMIT = b"\x00\x00\x00\x01"  # the key of a commit marker: version 0, type 1


def to_record(offsets: Mapping[TopicPartition, int], marker: BatchMarker, *, of_sources: bool) -> bytes:
    """The value of a progress record."""
    where: dict[str, dict[str, int]] = {}
    for place in sorted(offsets):
        where.setdefault(place.topic, {})[str(place.partition)] = offsets[place]
    return json.dumps({"marker": marker.to_metadata(beside_source_offset=of_sources), "offsets": where}).encode()


def from_record(value: bytes | None) -> PipelineProgress:
    """Read the value of a progress record; None, or a deleted one, is no progress.

    >>> marker = BatchMarker("query", 7, "aa")
    >>> from_record(to_record({TopicPartition("payments", 0): 42}, marker, of_sources=True)).marker == marker
    True
    """
    if value is None:
        return PipelineProgress({}, None)
    found = json.loads(value)
    offsets = {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in found["offsets"].items()
        for partition, offset in partitions.items()
    }
    marker = BatchMarker.from_metadata(found["marker"])
    if is_source_offset(found["marker"]):
        return PipelineProgress(offsets, marker)
    return PipelineProgress({}, marker, next(iter(offsets), None))


class ProgressFinder:
    """The last committed value under a key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._open: dict[int, bytes | None] = {}
        self.value: bytes | None = None

    def add(self, batch: Batch) -> None:
        """The next batch of the partition."""
        if batch.is_control:
            if batch.producer_id in self._open:
                value = self._open.pop(batch.producer_id)
                if any(bytes(record.key or b"") == _COMMIT for record in read_records(batch)):
                    self.value = value
            return
        for record in read_records(batch):
            if record.key is None or bytes(record.key) != self._key:
                continue
            value = None if record.value is None else bytes(record.value)
            if batch.is_transactional:
                self._open[batch.producer_id] = value
            else:
                self.value = value

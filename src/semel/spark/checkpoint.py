"""What Spark wrote down before it ran a micro-batch: the query's id, and where each source ends.

Spark writes `<checkpoint>/offsets/<batch id>` before a batch runs and gives a rerun the same offsets, so this is the
batch's identity. Files are read through Hadoop, as Spark itself does: the checkpoint may lie anywhere it can.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from semel.machines.contract import TopicPartition


class CheckpointUnreadable(Exception):
    """The checkpoint does not hold what Spark should have written there."""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Where a micro-batch's sources end, as text for the fingerprint and as offsets where the source has them."""

    texts: tuple[str, ...]
    ends: dict[TopicPartition, int]


def parse_offsets(content: str) -> BatchOffsets:
    """Read one file of Spark's offset log: a version, a line of metadata, then a line for each source.

    In version 1 a line is the source's offset or a dash; in version 2 (named sources) its name stands before it.

    >>> parse_offsets('v1\\n{"batchWatermarkMs":0}\\n{"payments":{"0":42}}').ends
    {TopicPartition(topic='payments', partition=0): 42}
    """
    lines = content.splitlines()
    if not lines or lines[0] not in ("v1", "v2"):
        raise CheckpointUnreadable(f"expected Spark's offset log, version 1 or 2, found {content[:40]!r}")
    named = lines[0] == "v2"
    texts = tuple(line for line in lines[2:] if line and line != "-")
    ends: dict[TopicPartition, int] = {}
    for text in texts:
        for where, offset in _kafka_offsets(text.partition(":")[2] if named else text):
            ends[where] = max(offset, ends.get(where, offset))
    return BatchOffsets(tuple(sorted(texts)) if named else texts, ends)


def _kafka_offsets(text: str) -> list[tuple[TopicPartition, int]]:
    """Offsets in the form Spark's Kafka source and ours write: {"topic": {"0": 42}}; anything else has none."""
    try:
        found = json.loads(text)
        return [
            (TopicPartition(topic, int(partition)), offset)
            for topic, partitions in found.items()
            for partition, offset in partitions.items()
            if isinstance(offset, int)
        ]
    except (ValueError, AttributeError):
        return []


class Checkpoint:
    """A query's checkpoint directory."""

    def __init__(self, spark: Any, location: str) -> None:
        self._jvm = spark._jvm
        self._hadoop = spark._jsc.hadoopConfiguration()
        self.location = location.rstrip("/")

    def query_id(self) -> str:
        """The id that stays with the checkpoint over restarts."""
        return str(json.loads(self._read("metadata"))["id"])

    def offsets(self, batch_id: int) -> BatchOffsets:
        """Where the sources of a micro-batch end."""
        return parse_offsets(self._read(f"offsets/{batch_id}"))

    def _read(self, name: str) -> str:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")
        stream = path.getFileSystem(self._hadoop).open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

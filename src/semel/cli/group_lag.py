"""The lag of a group, counted in visible records.

Offsets are not records: commit and abort markers take offsets, aborted records are never shown, and compaction leaves
gaps. So the log between the committed offset and the end is read, and the records that a read_committed reader would
get are counted. Beyond `most_offsets` the number of offsets is returned instead, and marked as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Leader
from semel.client.cluster.response_errors import check
from semel.machines.reading.read_committed import committed_batches
from semel.machines.values import TopicPartition
from semel.records.batch import Batch, read_records, split
from semel.wire.messages.fetch import FetchRequest

READ_COMMITTED = 1
_FETCH_BYTES = 8 * 1024 * 1024
#: The last version of Fetch that names topics.
_NEWEST_BY_NAME = 12


@dataclass(frozen=True, slots=True)
class Lag:
    """`exact`: the records were counted. Otherwise it is a number of offsets."""

    records: int
    exact: bool


def lag(cluster: BlockingCluster, partition: TopicPartition, start: int, end: int, most_offsets: int) -> Lag:
    """How many records a read_committed reader at `start` has yet to read before `end`, the last stable offset."""
    if end - start > most_offsets:
        return Lag(end - start, exact=False)
    count = 0
    position = start
    while position < end:
        batches, aborted = _fetch_batches(cluster, partition, position)
        if not batches:
            break
        visible = (batch for batch in committed_batches(batches, aborted) if batch.base_offset < end)
        count += _count_from(visible, position)
        position = batches[-1].next_offset
    return Lag(count, exact=True)


def _count_from(batches: Iterable[Batch], start: int) -> int:
    count = 0
    for batch in batches:
        if batch.base_offset >= start:
            count += batch.record_count
        elif batch.last_offset >= start:
            count += sum(record.offset >= start for record in read_records(batch))
    return count


def _fetch_batches(
    cluster: BlockingCluster, partition: TopicPartition, offset: int
) -> tuple[list[Batch], list[tuple[int, int]]]:
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_FETCH_BYTES,
        isolation_level=READ_COMMITTED,
        topics=[
            FetchRequest.FetchTopic(
                topic=partition.topic,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=partition.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
                    )
                ],
            )
        ],
    )
    response = cluster.request_retrying(
        request, to=Leader(partition.topic, partition.partition), newest=_NEWEST_BY_NAME
    )
    check(response.error_code, f"reading {partition}")
    row = response.responses[0].partitions[0]
    check(row.error_code, f"reading {partition} at {offset}")
    if not row.records:
        return [], []
    aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
    return split(row.records, partial_tail=True), aborted

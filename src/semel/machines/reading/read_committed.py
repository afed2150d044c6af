"""Which batches of a fetch a reader sees.

Guarantees: markers are never returned. Under read_committed no batch of an aborted transaction is returned; all others
are, in the order of the log. The broker sends the batches below the last stable offset, with a list of the aborted
transactions among them: (producer id, first offset). Each ends at the next marker of its producer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from semel.records.batch import Batch

#: An aborted transaction: the producer id, and the offset of its first record in this partition.
Aborted = tuple[int, int]


def committed_batches(batches: Iterable[Batch], aborted: Iterable[Aborted]) -> Iterator[Batch]:
    """The batches that a read_committed reader gets."""
    coming = [(first_offset, producer_id) for producer_id, first_offset in aborted]
    heapq.heapify(coming)
    being_aborted: set[int] = set()
    for batch in batches:
        while coming and coming[0][0] <= batch.last_offset:
            being_aborted.add(heapq.heappop(coming)[1])
        if batch.is_control:
            # Commit or abort, the marker ends the producer's transaction.
            being_aborted.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in being_aborted):
            yield batch


def all_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches that a read_uncommitted reader gets: all but the markers."""
    return (batch for batch in batches if not batch.is_control)

"""Which batches of a fetch a reader sees.

Guarantees: markers are never shown; under read_committed no batch of an aborted transaction is shown, every committed
and every plain one is, in the order of the log. The broker sends what lies below the last stable offset together with
the aborted transactions of that range: (producer id, first offset). Its producer's next marker ends each.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from semel.records.batch import Batch

#: A transaction the broker says was aborted: the producer id, and the offset its first record has in this partition.
Aborted = tuple[int, int]


def committed_batches(batches: Iterable[Batch], aborted: Iterable[Aborted]) -> Iterator[Batch]:
    """The batches a read_committed reader sees."""
    coming = [(first_offset, producer_id) for producer_id, first_offset in aborted]
    heapq.heapify(coming)
    being_aborted: set[int] = set()
    for batch in batches:
        while coming and coming[0][0] <= batch.last_offset:
            being_aborted.add(heapq.heappop(coming)[1])
        if batch.is_control:
            # Whatever the marker says: it ends the transaction that is being skipped.
            being_aborted.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in being_aborted):
            yield batch


def all_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches a read_uncommitted reader sees: everything but the markers."""
    return (batch for batch in batches if not batch.is_control)

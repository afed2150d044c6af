"""Batches that were refused for the moment, and those behind them that must not overtake them.

A client sends up to five batches without waiting. If the first is refused because too few replicas are in sync, or
because the new leader does not know of its election yet, the second may come a moment later, when all is well. Kafka
answers it with OUT_OF_ORDER_SEQUENCE_NUMBER, or writes it where the producer is new. librdkafka then begins a new epoch
for all its partitions, and sends again what it has not heard of: records are there twice (its issue 4953). Or it gives
up for good (its issue 3584).

Guarantee: for a while, whatever follows refused batches is refused for the same reason until the last of them is
written. Clients then send all of them again, in order. The first of them may be in the log already: a retry, whose
original the last leader wrote.
"""

from __future__ import annotations

from typing import NamedTuple

from semel.errors import ErrorCode
from semel.machines.producing.producer_state import precedes

#: What a client repeats by itself, and what says that nothing was written.
FOR_THE_MOMENT = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS))
#: How long the others wait for a batch that does not come again.
HELD_FOR_MS = 10_000
#: How many producers of one partition are remembered.
MOST_PRODUCERS = 1000


class _RefusedBatch(NamedTuple):
    producer_epoch: int
    #: Of the first and of the last batch that was refused.
    first_sequence: int
    last_sequence: int
    code: ErrorCode
    refused_ms: int


class RefusedBatches:
    """Of one partition, by producer id."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[int, _RefusedBatch] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def add(self, producer_id: int, producer_epoch: int, first_sequence: int, code: ErrorCode, now_ms: int) -> None:
        if producer_id < 0 or code not in FOR_THE_MOMENT:
            return
        known = self._refused.get(producer_id)
        last_sequence = first_sequence
        if (
            known is not None
            and known.producer_epoch == producer_epoch
            and now_ms - known.refused_ms <= HELD_FOR_MS
        ):
            if precedes(first_sequence, known.last_sequence):
                last_sequence = known.last_sequence
            if precedes(known.first_sequence, first_sequence):
                first_sequence = known.first_sequence
        elif known is None and len(self._refused) >= MOST_PRODUCERS:
            del self._refused[next(iter(self._refused))]
        self._refused[producer_id] = _RefusedBatch(producer_epoch, first_sequence, last_sequence, code, now_ms)

    def holding_back(
        self, producer_id: int, producer_epoch: int, first_sequence: int, expected: int | None, now_ms: int
    ) -> ErrorCode | None:
        """Why a batch must wait for an earlier one; None if it need not.

        `expected`: the sequence that comes next in the log; None if the producer is not known there.
        """
        refused = self._refused.get(producer_id)
        if refused is None:
            return None
        awaited = refused.first_sequence if expected is None else expected
        is_over = (
            refused.producer_epoch != producer_epoch
            or now_ms - refused.refused_ms > HELD_FOR_MS
            # Something else is missing.
            or precedes(awaited, refused.first_sequence)
            # All were written meanwhile, perhaps under another leader.
            or precedes(refused.last_sequence, awaited)
        )
        if not is_over and precedes(awaited, first_sequence):
            return refused.code
        if is_over or first_sequence == refused.last_sequence:
            del self._refused[producer_id]
        return None

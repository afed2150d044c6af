"""The safeguards of compaction."""

from __future__ import annotations

from typing import Any

from semel.log.compaction import Cleaner, Compaction, _Transactions
from semel.log.partition_log import PartitionLog
from semel.simulation.ablations import Patch, ablation


@ablation(
    "compaction stops at the last stable offset",
    "compaction",
    faults=("client killed", "client paused"),
    duration_s=25,
)
def without_compaction_stops_at_the_last_stable_offset(patch: Patch) -> None:
    original = Cleaner.plan

    def plan(self: Cleaner, *args: Any, **options: Any) -> Any:
        inner = Patch()
        inner.set(PartitionLog, "last_stable_offset", property(lambda self: self.end_offset))
        try:
            return original(self, *args, **options)
        finally:
            inner.undo()

    patch.set(Cleaner, "plan", plan)


@ablation("a marker stays while its data does", "compaction", duration_s=25)
def without_a_marker_stays_while_its_data_does(patch: Patch) -> None:
    original = _Transactions._marker

    def marker(self: _Transactions, batch: Any) -> bool:
        original(self, batch)
        return True

    patch.set(_Transactions, "_marker", marker)


@ablation("the last sequence of a producer is kept", "compaction", faults=("index goes bad", "repeated requests"),
          duration_s=25)
def without_the_last_sequence_of_a_producer_is_kept(patch: Patch) -> None:
    """The snapshot of every roll has it, too. If those go bad, it is read from the batches."""
    patch.set(Compaction, "_holds_producer_state", lambda *_: False)


@ablation("aborted records do not win in a compaction", "compaction", duration_s=25)
def without_aborted_records_do_not_win_in_a_compaction(patch: Patch) -> None:
    original = _Transactions.discards

    def discards(self: _Transactions, batch: Any) -> bool:
        return original(self, batch) and batch.is_control

    patch.set(_Transactions, "discards", discards)

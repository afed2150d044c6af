"""The safeguards of the coordinators and their hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from semel.broker.coordinators.groups import GroupShell
from semel.broker.coordinators.host import CoordinatorHost
from semel.broker.coordinators.transactions import TransactionShell
from semel.broker.durability import FsyncDurability
from semel.errors import ErrorCode
from semel.machines.transactions import coordinator as transaction_coordinator
from semel.machines.transactions import metadata as transaction_metadata
from semel.machines.transactions import states as transaction_states
from semel.machines.transactions.coordinator import TransactionCoordinator
from semel.machines.transactions.shard import Shard
from semel.simulation.ablations import GROUPS, LATE, POWER, Patch, ablation, nothing

E = ErrorCode


@ablation("a transaction times out", "timeouts")
def without_a_transaction_times_out(patch: Patch) -> None:
    patch.set(TransactionCoordinator, "_expect_timeout", nothing)


@ablation("a repeated EndTxn is recognised", "transfers", faults=("lost answers",))
def without_a_repeated_endtxn_is_recognised(patch: Patch) -> None:
    patch.set(transaction_metadata, "is_repeated_end", lambda *_: False)


@ablation(
    "an EndTxn waits for the one before it",
    "transfers", "zombies", faults=LATE, durability="fsync",
    unseen_because="the host lets an id's requests wait until its markers are written",
)
def without_an_endtxn_waits_for_the_one_before_it(patch: Patch) -> None:
    original = transaction_states.TRANSACTION_TABLE.step

    def step(state: Any, event: Any) -> Any:
        cell = original(state, event)
        return E.NONE if cell is E.CONCURRENT_TRANSACTIONS else cell

    for module in (transaction_metadata, transaction_coordinator):
        patch.set(module, "TRANSACTION_TABLE", SimpleNamespace(step=step))


@ablation(
    "a request waits for the markers before it, in the host and in the table",
    "transfers", faults=("slow disk",), durability="fsync", faults_per_minute=60,
)
def without_a_request_waits_for_the_markers_before_it(patch: Patch) -> None:
    """Either is enough; without both a transaction begins while the markers of the last one are on their way."""

    async def settled(self: TransactionShell, *transactional_ids: str) -> None:
        return

    patch.set(TransactionShell, "is_settled", lambda self, transactional_id: self.host.ready_for(transactional_id))
    patch.set(TransactionShell, "settled", settled)
    without_an_endtxn_waits_for_the_one_before_it(patch)


@ablation("an absent owner's epoch is bumped", "zombies", faults=("client paused", "client killed"))
def without_an_absent_owner_s_epoch_is_bumped(patch: Patch) -> None:
    def unbumped(old: Any, version: int, now_ms: int, *rest: Any) -> Any:
        state = transaction_states.TransactionState.PREPARE_ABORT
        return transaction_metadata.after_prepare(old, state, 0, now_ms, None)

    patch.set(transaction_coordinator, "after_fence", unbumped)


@ablation("each end bumps the epoch", "transfers", faults=LATE)
def without_each_end_bumps_the_epoch(patch: Patch) -> None:
    original = transaction_metadata.after_prepare

    def unbumped(old: Any, state: Any, version: int, *rest: Any) -> Any:
        return original(old, state, 0, *rest)

    patch.set(transaction_metadata, "after_prepare", unbumped)


@ablation("owner's epoch is checked at the end", "zombies", faults=LATE)
def without_owner_s_epoch_is_checked_at_the_end(patch: Patch) -> None:
    patch.set(transaction_metadata, "owner_of", lambda metadata, identity: metadata)
    patch.set(transaction_metadata, "is_repeated_end", lambda metadata, identity: False)


@ablation(
    "nobody decides while a decision is written",
    "zombies", "transfers", faults=LATE, durability="fsync",
    unseen_because="the host writes a decision and takes it in within one step, so nobody comes between",
)
def without_nobody_decides_while_a_decision_is_written(patch: Patch) -> None:
    patch.set(Shard, "check_not_pending", nothing)


@ablation("a failed write of the coordinator is forgotten", "transfers", faults=("I/O error once", "disk full"))
def without_a_failed_write_of_the_coordinator_is_forgotten(patch: Patch) -> None:
    patch.set(TransactionCoordinator, "append_failed", lambda self, decision, code=None: decision.reply)


@ablation(
    "all markers are waited for",
    "transfers", faults=("slow disk", "broker killed"), durability="fsync",
    unseen_because="one broker writes all markers in one step",
)
def without_all_markers_are_waited_for(patch: Patch) -> None:
    original = TransactionCoordinator.markers_written

    def markers_written(self: TransactionCoordinator, sent: Any, now_ms: int, partitions: Any = None) -> Any:
        return original(self, sent, now_ms)

    patch.set(TransactionCoordinator, "markers_written", markers_written)


@ablation("coordinators are loaded from their topic", "transfers", "copying-eager", faults=("broker killed",))
def without_coordinators_are_loaded_from_their_topic(patch: Patch) -> None:
    patch.set(CoordinatorHost, "_replay_log", nothing)


@ablation("markers reach the group", "copying-eager", faults=GROUPS)
def without_markers_reach_the_group(patch: Patch) -> None:
    patch.set(GroupShell, "marker_written", nothing)


@ablation("the coordinator's record is on disk before its effects", "transfers", faults=POWER, durability="fsync")
def without_the_coordinator_s_record_is_on_disk_before_its_effects(patch: Patch) -> None:
    patch.set(FsyncDurability, "coordinator_first", False)

    def answer(self: FsyncDurability, host: Any, decision: Any, reply: Any, keys: Any) -> Any:
        for effect in decision.effects:
            host.performers[type(effect)].perform(effect)
        return reply

    patch.set(FsyncDurability, "answer", answer)

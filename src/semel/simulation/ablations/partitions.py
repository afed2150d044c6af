"""The safeguards of a partition: what it remembers of its producers, and how far readers may see."""

from __future__ import annotations

from typing import Any

from semel.broker.coordinators.transactions import TransactionShell
from semel.broker.topics.logs import TopicLogs
from semel.client.consumer import fetcher
from semel.errors import ErrorCode
from semel.log.flusher import LogFlusher
from semel.log.partition_log import PartitionLog
from semel.log.reader import LogReader
from semel.machines.producing.producer_state import ProducerEntry, ProducerStates
from semel.machines.reading.read_committed import all_batches
from semel.machines.transactions import coordinator as transaction_coordinator
from semel.simulation.ablations import LATE, POWER, Patch, ablation, nothing

E = ErrorCode


@ablation("sequence check", "idempotent", faults=LATE)
def without_sequence_check(patch: Patch) -> None:
    patch.set(ProducerStates, "check_data", nothing)


@ablation(
    "epoch check in the partition",
    "zombies", faults=LATE,
    unseen_because="the coordinator refuses a stale epoch before the partition is asked",
)
def without_epoch_check_in_the_partition(patch: Patch) -> None:
    patch.set(ProducerStates, "check_epoch", nothing)


@ablation("epoch check in the coordinator and the partition", "zombies", faults=LATE)
def without_epoch_check_in_the_coordinator_and_the_partition(patch: Patch) -> None:
    patch.set(transaction_coordinator, "writer_of", lambda metadata, identity: metadata)
    patch.set(ProducerStates, "check_epoch", nothing)


@ablation(
    "guard: no append between verification and marker",
    "zombies", faults=LATE,
    unseen_because="one broker asks and appends in one step, so nothing comes between",
)
def without_guard_no_append_between_verification_and_marker(patch: Patch) -> None:
    patch.set(ProducerStates, "check_verified", nothing)


@ablation("answers of the last five batches", "in-flight", faults=("lost answers",))
def without_answers_of_the_last_five_batches(patch: Patch) -> None:
    from semel.machines.producing import producer_state

    patch.set(producer_state, "REMEMBERED_BATCHES", 1)


@ablation(
    "marker epoch rule",
    "zombies", faults=LATE,
    unseen_because="the coordinator of one broker sends no stale marker",
)
def without_marker_epoch_rule(patch: Patch) -> None:
    original = ProducerStates.check_marker

    def check_marker(self: ProducerStates, producer_id: int, epoch: int, coordinator_epoch: int, version: int) -> Any:
        return original(self, producer_id, epoch, coordinator_epoch, 1)

    patch.set(ProducerStates, "check_marker", check_marker)


@ablation("coordinator asked before a transactional append", "zombies", "transfers", faults=LATE)
def without_coordinator_asked_before_a_transactional_append(patch: Patch) -> None:
    patch.set(TransactionShell, "admit", lambda *_, **__: E.NONE)


@ablation(
    "producer state after recovery", "idempotent", faults=("broker killed", "slow network", "killed while writing")
)
def without_producer_state_after_recovery(patch: Patch) -> None:
    original = PartitionLog.adopt

    def adopt(self: PartitionLog, loaded: Any) -> None:
        original(self, loaded)
        self.producers.entries.clear()

    patch.set(PartitionLog, "adopt", adopt)


@ablation("last stable offset", "transfers")
def without_last_stable_offset(patch: Patch) -> None:
    patch.set(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark))


@ablation("high watermark waits for the fsync", "idempotent", faults=POWER, durability="fsync")
def without_high_watermark_waits_for_the_fsync(patch: Patch) -> None:
    original = PartitionLog._write

    def write(self: PartitionLog, *args: Any) -> Any:
        appended = original(self, *args)
        self.advance_high_watermark(self.end_offset)
        return appended

    patch.set(PartitionLog, "_write", write)


@ablation("list of aborted transactions", "transfers")
def without_list_of_aborted_transactions(patch: Patch) -> None:
    patch.set(LogReader, "_aborted_within", lambda *_: [])


@ablation("client leaves out aborted records", "transfers")
def without_client_leaves_out_aborted_records(patch: Patch) -> None:
    patch.set(fetcher, "committed_batches", lambda batches, aborted: all_batches(batches))


@ablation("flush before a recovered log is served", "idempotent", faults=("power lost after a crash",),
          durability="fsync")
def without_flush_before_a_recovered_log_is_served(patch: Patch) -> None:
    original = TopicLogs.open

    def open_log(self: TopicLogs, partition: Any) -> Any:
        inner = Patch()
        inner.set(LogFlusher, "flush_what_a_crash_left", nothing)
        try:
            return original(self, partition)
        finally:
            inner.undo()

    patch.set(TopicLogs, "open", open_log)


@ablation("a retry is told from a sequence used again", "reused-sequences", faults=("lost answers",))
def without_telling_a_retry_from_a_sequence_used_again(patch: Patch) -> None:
    """An old bug: after an abort the next record was taken for the aborted one, and answered as written."""
    patch.set(ProducerEntry, "answers_for", lambda *_: True)

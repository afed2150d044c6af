"""The safeguards of files: when something is safe, and what an error means."""

from __future__ import annotations

from typing import Any

from semel.broker.durability import FsyncDurability
from semel.broker.flusher import Flusher
from semel.broker.handlers import produce
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.broker.topics.logs import TopicLogs
from semel.log import recovery
from semel.log.files import Files
from semel.log.flusher import LogFlusher
from semel.log.indexes import TransactionIndex
from semel.log.partition_log import PartitionLog
from semel.log.segment import Segment
from semel.simulation.ablations import DISK, POWER, Patch, ablation, nothing
from semel.wire.messages.produce import ProduceResponse


@ablation("a produce is answered after its fsync", "idempotent", faults=POWER, durability="fsync")
def without_a_produce_is_answered_after_its_fsync(patch: Patch) -> None:
    patch.set(FsyncDurability, "to_flush", lambda self, written: [])


@ablation("a retry is answered after the fsync of its original", "idempotent",
          faults=("power lost", "slow disk", "lost answers", "repeated requests"), durability="fsync")
def without_a_retry_is_answered_after_the_fsync_of_its_original(patch: Patch) -> None:
    """An old bug: a batch that is recognised was answered at once."""
    answer = produce._answer

    def early(broker: Any, request: Any, call: Any, outcome: Any) -> Any:
        fresh = [
            partition
            for partition, reply in zip(outcome.written, outcome.answers, strict=True)
            if reply.base_offset + 1 >= partition.log.end_offset
        ]
        return answer(broker, request, call, outcome) if fresh else ProduceResponse(responses=outcome.responses)

    patch.set(produce, "_answer", early)


@ablation("fsync does what it says", "idempotent", "transfers", faults=POWER, durability="fsync")
def without_fsync_does_what_it_says(patch: Patch) -> None:
    from semel.simulation.disk import SimulatedFiles

    patch.set(SimulatedFiles, "sync", nothing)


@ablation("names are fsynced with their directory", "idempotent", faults=POWER, durability="fsync")
def without_names_are_fsynced_with_their_directory(patch: Patch) -> None:
    from semel.simulation.disk import SimulatedFiles

    patch.set(SimulatedFiles, "sync_directory", nothing)


@ablation("stored entries are fsynced before they are renamed", "transfers", faults=POWER, durability="fsync")
def without_stored_entries_are_fsynced_before_they_are_renamed(patch: Patch) -> None:
    original = Files.replace

    def replace(self: Files, path: Any, data: Any, *, durable: bool = True) -> None:
        original(self, path, data, durable=False)

    patch.set(Files, "replace", replace)


@ablation("an fsync that failed fails its produces", "idempotent", faults=("I/O error once", "power lost"),
          durability="fsync")
def without_an_fsync_that_failed_fails_its_produces(patch: Patch) -> None:
    original = Flusher.flush

    async def flush(self: Flusher, partitions: Any) -> frozenset[Any]:
        await original(self, partitions)
        return frozenset()

    patch.set(Flusher, "flush", flush)


@ablation("no writes after an I/O error", "idempotent", faults=("I/O error once", "power lost"), durability="fsync")
def without_no_writes_after_an_i_o_error(patch: Patch) -> None:
    """The next fsync succeeds, and says nothing about the bytes of the one that failed."""
    patch.set(PartitionLog, "failed", property(lambda self: None, nothing), of_instances=True)


@ablation("what a failed fsync was for is written again", "idempotent", faults=("I/O error once", "power lost"),
          durability="fsync")
def without_what_a_failed_fsync_was_for_is_written_again(patch: Patch) -> None:
    patch.set(LogFlusher, "_write_again", nothing)


@ablation("a torn write is cut off", "idempotent", faults=(*DISK, "broker killed"))
def without_a_torn_write_is_cut_off(patch: Patch) -> None:
    """The next batch may be too large for the segment: then what is left of the torn one stays at its end for good."""
    patch.set(Segment, "cut_unfinished", nothing)
    patch.set(PartitionLog, "failed", property(lambda self: None, nothing), of_instances=True)


@ablation("memory changes after the write", "idempotent", "transfers", faults=("I/O error once", "disk full"))
def without_memory_changes_after_the_write(patch: Patch) -> None:
    original = PartitionLog._write

    def write(self: PartitionLog, batch: Any, now_ms: int) -> Any:
        if batch.producer_id >= 0:
            self.producers.remember_data(batch, self.end_offset, batch.max_timestamp, heard_ms=now_ms)
        return original(self, batch, now_ms)

    patch.set(PartitionLog, "_write", write)


@ablation("errors of the transaction index are told", "transfers", faults=("I/O error once", "disk full"))
def without_errors_of_the_transaction_index_are_told(patch: Patch) -> None:
    original = TransactionIndex.append

    def append(self: TransactionIndex, *args: Any) -> None:
        try:
            original(self, *args)
        except OSError:
            return

    patch.set(TransactionIndex, "append", append)


@ablation(
    "damage is told from a torn tail",
    "idempotent", faults=("log goes bad",),
)
def without_damage_is_told_from_a_torn_tail(patch: Patch) -> None:
    patch.set(recovery, "valid_batch_after", nothing)


@ablation("a crash is recovered from", "idempotent", "transfers", faults=("killed while writing", "broker killed"))
def without_a_crash_is_recovered_from(patch: Patch) -> None:
    original = TopicLogs.__init__

    def believing(self: TopicLogs, *args: Any, clean: bool, **options: Any) -> None:
        original(self, *args, clean=True, **options)

    patch.set(TopicLogs, "__init__", believing)


@ablation("producer ids are stored before they are handed out", "transfers", "idempotent", faults=("broker killed",))
def without_producer_ids_are_stored_before_they_are_handed_out(patch: Patch) -> None:
    original = LocalMetadataStore.update

    def update(self: LocalMetadataStore, name: str, value: Any, expected_version: int) -> int:
        return 0 if name == "latest_producer_id_block" else original(self, name, value, expected_version)

    patch.set(LocalMetadataStore, "update", update)

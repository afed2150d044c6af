"""Each safeguard is needed: with it removed, the test that guards its scenario fails.

The guarding tests are called as they are. What is removed is removed here, by a patch; the product has no switch for
it. The coordinators' safeguards (epochs of owners, pending decisions, bumps, rotation, generations, visibility of
offsets) have their own such tests in `tests/machines/transactions/test_safeguards.py` and
`tests/machines/groups/test_committed_offsets.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.coordinators import host as coordinator_host
from semel.broker.coordinators import marker_sender
from semel.broker.coordinators.groups import GroupShell
from semel.broker.coordinators.host import CoordinatorHost
from semel.broker.topics.logs import TopicLogs
from semel.errors import ErrorCode, InvariantViolation, KafkaError, Refused
from semel.log import flusher, producer_recovery, snapshots
from semel.log.compaction import Cleaner, Compaction, _Transactions
from semel.log.files import Files
from semel.log.flusher import LogFlusher
from semel.log.indexes import TransactionIndex
from semel.log.partition_log import PartitionLog
from semel.log.reader import LogReader
from semel.log.truncation import Truncation
from semel.machines.contract import Decision, StateRecord
from semel.machines.producing.producer_state import ProducerEntry, ProducerStates
from semel.machines.producing.sender import Sender, _Lane
from semel.machines.producing.verifications import Verifications
from semel.machines.transactions import coordinator as transaction_coordinator
from semel.machines.transactions import metadata as transaction_metadata
from semel.machines.transactions import states as transaction_states
from semel.machines.transactions.coordinator import TransactionCoordinator
from semel.machines.transactions.producer import TransactionManager
from semel.machines.transactions.shard import Shard
from semel.records.batch import read_records, split
from semel.simulation.ablations import clients as simulated_clients
from tests.log import test_compaction, test_failures
from tests.machines.producing import test_producer_state, test_sender
from tests.machines.transactions import test_scenarios as test_transaction_scenarios
from tests.machines.transactions import transaction_driver
from tests.scenarios import stage as stage_module
from tests.scenarios import (
    test_client,
    test_coordinator_log,
    test_fencing,
    test_log,
    test_markers,
    test_offsets,
    test_reading,
)
from tests.scenarios.stage import Stage
from tests.support import waiting

Patch = pytest.MonkeyPatch
#: How a guarding test may fail: by its own word, or by that of the broker or the client it drives.
FAILURES = (AssertionError, pytest.fail.Exception, InvariantViolation, Refused, KafkaError, ConnectionError)
Remove = Callable[[Patch], None]
E = ErrorCode


# The partition's memory of its producers


def without_sequence_check(patch: Patch) -> None:
    patch.setattr(ProducerStates, "check_data", lambda *_: None)


def without_epoch_check(patch: Patch) -> None:
    """Neither the coordinator nor the partition looks at a producer's epoch."""
    patch.setattr(transaction_coordinator, "writer_of", lambda metadata, identity: metadata)
    without_epoch_check_in_the_partition(patch)


def without_epoch_check_in_the_partition(patch: Patch) -> None:
    patch.setattr(ProducerStates, "check_epoch", lambda *_: None)


def without_marker_epoch_rule(patch: Patch) -> None:
    """Every marker is taken under the rules of V1."""
    original = ProducerStates.check_marker

    def check_marker(self: ProducerStates, producer_id: int, epoch: int, coordinator_epoch: int, version: int) -> Any:
        return original(self, producer_id, epoch, coordinator_epoch, 1)

    patch.setattr(ProducerStates, "check_marker", check_marker)


def without_coordinator_epoch_check(patch: Patch) -> None:
    original = ProducerStates.check_marker

    def check_marker(self: ProducerStates, producer_id: int, epoch: int, coordinator_epoch: int, version: int) -> Any:
        return original(self, producer_id, epoch, 2**31 - 1, version)

    patch.setattr(ProducerStates, "check_marker", check_marker)


def without_marker_keeping_its_producer_alive(patch: Patch) -> None:
    original = ProducerStates.remember_marker

    def remember_marker(
        self: ProducerStates, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp_ms: int
    ) -> None:
        original(self, producer_id, epoch, coordinator_epoch, offset, -1)

    patch.setattr(ProducerStates, "remember_marker", remember_marker)


def without_guard(patch: Patch) -> None:
    patch.setattr(ProducerStates, "check_verified", lambda *_: None)


def without_tentative_sequence(patch: Patch) -> None:
    patch.setattr(Verifications, "check_sequence", lambda *_, **__: None)


def without_forgetting_sequences_at_a_marker(patch: Patch) -> None:
    def remember_marker(self: ProducerStates, producer_id: int, epoch: int, *args: Any) -> None:
        entry = self.entries.get(producer_id)
        batches = list(entry.batches) if entry is not None else []
        original(self, producer_id, epoch, *args)
        self.entries[producer_id].batches.extend(batches)

    original = ProducerStates.remember_marker
    patch.setattr(ProducerStates, "remember_marker", remember_marker)


def without_telling_a_retry_from_a_sequence_used_again(patch: Patch) -> None:
    patch.setattr(ProducerEntry, "answers_for", lambda *_: True)


def without_wrap(patch: Patch) -> None:
    from semel.machines.producing import producer_state

    patch.setattr(producer_state, "_SEQUENCES", 2**62)


# How far readers may see


def without_last_stable_offset(patch: Patch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark))


def without_waiting_for_the_marker_to_be_safe(patch: Patch) -> None:
    patch.setattr(ProducerStates, "first_unstable_offset", property(lambda self: self._first_open))


def without_high_watermark(patch: Patch) -> None:
    original = PartitionLog._write

    def write(self: PartitionLog, *args: Any) -> Any:
        appended = original(self, *args)
        self.advance_high_watermark(self.end_offset)
        return appended

    patch.setattr(PartitionLog, "_write", write)


def without_a_limit_taken_once(patch: Patch) -> None:
    original = LogReader._end_within

    def end_within(self: Any, segment: Any, limit: int) -> Any:
        return original(self, segment, self._log.high_watermark)

    patch.setattr(LogReader, "_end_within", end_within)


def without_aborted_list(patch: Patch) -> None:
    patch.setattr(LogReader, "_aborted_within", lambda *_: [])


def without_flush_before_serving(patch: Patch) -> None:
    original = TopicLogs.open

    def open_log(self: TopicLogs, partition: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(LogFlusher, "flush", lambda *_, **__: 0)
            return original(self, partition)

    patch.setattr(TopicLogs, "open", open_log)


# The files


def without_index_before_memory(patch: Patch) -> None:
    original = TransactionIndex.append

    def append(self: TransactionIndex, *args: Any) -> None:
        try:
            original(self, *args)
        except OSError:
            return

    patch.setattr(TransactionIndex, "append", append)


def without_stop_after_an_error(patch: Patch) -> None:
    def fail(self: PartitionLog, error: OSError) -> None:
        self.segments.active.cut_unfinished()

    patch.setattr(PartitionLog, "fail", fail)


def without_write_before_memory(patch: Patch) -> None:
    original = PartitionLog._write

    def write(self: PartitionLog, batch: Any, now_ms: int) -> Any:
        if batch.producer_id >= 0:
            self.producers.remember_data(batch, self.end_offset, batch.max_timestamp, heard_ms=now_ms)
        return original(self, batch, now_ms)

    patch.setattr(PartitionLog, "_write", write)


def without_fsync_of_snapshots(patch: Patch) -> None:
    original = Files.replace

    def replace(self: Files, path: Any, data: Any, *, durable: bool = True) -> None:
        original(self, path, data, durable=False)

    patch.setattr(Files, "replace", replace)


def without_checksum_of_snapshots(patch: Patch) -> None:
    """Whatever can be read of a snapshot is believed."""

    def believe(data: bytes) -> Any:
        try:
            return snapshots.decode_snapshot(data)
        except snapshots.DamagedSnapshot:
            whole = data[: 10 + (len(data) - 10) // 46 * 46] if len(data) >= 10 else b"\0" * 10
            body = whole[10:]
            checked = (len(body) // 46).to_bytes(4, "big") + body
            from crc32c import crc32c

            return snapshots.decode_snapshot(b"\0\1" + crc32c(checked).to_bytes(4, "big") + checked)

    patch.setattr(producer_recovery, "decode_snapshot", believe)


def without_producer_state_in_truncation(patch: Patch) -> None:
    original = Truncation._apply

    def apply(self: Truncation, _: Any) -> None:
        original(self, self._log.producers)

    patch.setattr(Truncation, "_apply", apply)


def without_cleaner_bound(patch: Patch) -> None:
    original = Cleaner.plan

    def plan(self: Cleaner, *args: Any, **options: Any) -> Any:
        log = self._log
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.end_offset))
            inner.setattr(log, "high_watermark", log.end_offset)
            return original(self, *args, **options)

    patch.setattr(Cleaner, "plan", plan)


def without_markers_kept_for_their_data(patch: Patch) -> None:
    original = _Transactions._marker

    def marker(self: _Transactions, batch: Any) -> bool:
        original(self, batch)
        return True

    patch.setattr(_Transactions, "_marker", marker)


def without_the_last_sequence_kept(patch: Patch) -> None:
    patch.setattr(Compaction, "_holds_producer_state", lambda *_: False)


# The coordinators' hosts


def without_an_end_to_loading(patch: Patch) -> None:
    """Read on until the end of the log is reached, however often nothing comes."""

    def replay_log(self: CoordinatorHost, partition: Any) -> None:
        log = partition.log
        offset = log.log_start_offset
        for _ in range(1_000):
            if offset >= log.end_offset:
                return
            for batch in split(log.reader.read(offset, 1 << 20, 0).data):
                for record in () if batch.is_control else read_records(batch):
                    value = None if record.value is None else bytes(record.value)
                    key = bytes(record.key or b"")
                    self.coordinator.replay(StateRecord(partition.index, key, value))
                offset = batch.next_offset
        raise AssertionError(f"loading hangs at offset {offset}")

    patch.setattr(CoordinatorHost, "_replay_log", replay_log)


def without_clearing_after_a_failed_write(patch: Patch) -> None:
    patch.setattr(TransactionCoordinator, "append_failed", lambda self, decision, code=None: init_refused(decision))


def init_refused(decision: Decision[Any]) -> Any:
    from semel.machines.transactions.replies import refused

    return refused(decision.reply, E.COORDINATOR_NOT_AVAILABLE, set())


def without_counting_deleted_partitions_as_done(patch: Patch) -> None:
    original = marker_sender.write_marker

    def write_marker(*args: Any) -> None:
        try:
            original(*args)
        except Refused as refused:
            if refused.code is E.UNKNOWN_TOPIC_OR_PARTITION:
                raise Refused(E.NOT_LEADER_OR_FOLLOWER, "somebody else may know it") from None
            raise

    patch.setattr(marker_sender, "write_marker", write_marker)


def without_retry_of_markers(patch: Patch) -> None:
    original = marker_sender.MarkerSender._send

    def send_once(self: Any, markers: Any, targets: Any) -> None:
        if len(targets) == len(markers.partitions):
            original(self, markers, targets)

    patch.setattr(marker_sender.MarkerSender, "_send", send_once)


def without_waiting_for_every_marker(patch: Patch) -> None:
    original = TransactionCoordinator.markers_written

    def markers_written(self: TransactionCoordinator, sent: Any, now_ms: int, partitions: Any = None) -> Any:
        return original(self, sent, now_ms)

    patch.setattr(TransactionCoordinator, "markers_written", markers_written)


def without_markers_for_the_group(patch: Patch) -> None:
    patch.setattr(GroupShell, "marker_written", lambda *_: None)


def without_verification_of_offsets(patch: Patch) -> None:
    from semel.broker.coordinators.transactions import TransactionShell

    original = TransactionShell.admit

    def admit(self: Any, transactional_id: str, producer_id: int, epoch: int, topic: str, *args: Any, **o: Any) -> Any:
        code = original(self, transactional_id, producer_id, epoch, topic, *args, **o)
        return E.NONE if topic == "__consumer_offsets" else code

    patch.setattr(TransactionShell, "admit", admit)


def without_a_bound_on_expiry(patch: Patch) -> None:
    """What does not fit into one batch is not written in several."""
    patch.setattr(coordinator_host, "_can_be_split", lambda records: False)


def without_timeouts(patch: Patch) -> None:
    patch.setattr(TransactionCoordinator, "_expect_timeout", lambda *_: None)


def without_recognising_a_repeated_end(patch: Patch) -> None:
    patch.setattr(transaction_metadata, "is_repeated_end", lambda *_: False)


def without_waiting_for_the_previous_end(patch: Patch) -> None:
    original = transaction_states.TRANSACTION_TABLE.step

    def step(state: Any, event: Any) -> Any:
        cell = original(state, event)
        return E.NONE if cell is E.CONCURRENT_TRANSACTIONS else cell

    for module in (transaction_metadata, transaction_coordinator):
        patch.setattr(module, "TRANSACTION_TABLE", SimpleNamespace(step=step))


def without_an_epoch_bump_for_an_absent_owner(patch: Patch) -> None:
    def unbumped(old: Any, version: int, now_ms: int, *rest: Any) -> Any:
        state = transaction_states.TransactionState.PREPARE_ABORT
        return transaction_metadata.after_prepare(old, state, 0, now_ms, None)

    patch.setattr(transaction_coordinator, "after_fence", unbumped)


def without_an_epoch_bump_at_the_end(patch: Patch) -> None:
    original = transaction_metadata.after_prepare

    def unbumped(old: Any, state: Any, version: int, *rest: Any) -> Any:
        return original(old, state, 0, *rest)

    patch.setattr(transaction_metadata, "after_prepare", unbumped)


def without_rotation(patch: Patch) -> None:
    patch.setattr(transaction_metadata.TransactionMetadata, "is_exhausted", lambda self: False)


def without_identity_of_reports(patch: Patch) -> None:
    patch.setattr(Shard, "completion_of", lambda self, sent: self.completions.get(sent.transactional_id))


# The client


def without_order_among_retries(patch: Patch) -> None:
    simulated_clients.without_retries_keep_their_order(SimpleNamespace(set=patch.setattr))


def without_the_same_bytes_again(patch: Patch) -> None:
    simulated_clients.without_a_retry_is_the_same_bytes(SimpleNamespace(set=patch.setattr))


def without_waiting_for_the_old_epoch(patch: Patch) -> None:
    """A partition takes on the new epoch while batches of the old one are on their way."""
    original = Sender._sendable_at_ms

    def sendable(self: Sender, partition: Any) -> int | None:
        lane = self._lanes.get(partition)
        if lane is None or self.manager is None or lane.identity == self.manager.identity:
            return original(self, partition)
        self._lanes[partition], lane_before = _Lane(), lane
        try:
            return original(self, partition)
        finally:
            self._lanes[partition] = lane_before

    patch.setattr(Sender, "_sendable_at_ms", sendable)


def without_holding_memory_on_the_wire(patch: Patch) -> None:
    original = Sender._finish

    def finish(self: Sender, batch: Any, answer: Any, error: Any) -> None:
        batch.on_wire, was = False, batch.on_wire
        original(self, batch, answer, error)
        batch.on_wire = was

    patch.setattr(Sender, "_finish", finish)


def without_ending_only_what_was_begun(patch: Patch) -> None:
    original = TransactionManager.begin

    def begin(self: TransactionManager) -> None:
        original(self)
        self._started = True

    patch.setattr(TransactionManager, "begin", begin)


def a_partition() -> Any:
    return test_producer_state.Partition()


def a_driver() -> Any:
    return transaction_driver.TransactionDriver()


#: Scenario, the test that guards it, what it is called with, the safeguard to remove.
ABLATIONS: list[tuple[int, Callable[..., None], dict[str, Any], Remove]] = [
    (
        1,
        test_fencing.test_scenario_1_a_late_produce_after_an_abort_by_timeout_is_refused_and_the_lso_moves_on,
        {"protocol": 2},
        without_epoch_check,
    ),
    (
        1,
        test_producer_state.test_a_late_produce_after_the_coordinator_aborted_is_refused_and_the_lso_is_not_stuck,
        {"partition": a_partition},
        without_epoch_check_in_the_partition,
    ),
    (
        2,
        test_fencing.test_scenario_2_a_delayed_end_of_a_transaction_cannot_end_the_next_one,
        {"protocol": 2},
        without_an_epoch_bump_at_the_end,
    ),
    (
        3,
        test_markers.test_scenario_3_an_abort_marker_between_verification_and_append_keeps_the_batch_out,
        {"protocol": 2},
        without_guard,
    ),
    (
        4,
        test_offsets.test_scenario_4_offsets_of_a_group_that_was_not_added_are_refused,
        {},
        without_verification_of_offsets,
    ),
    (
        5,
        test_markers.test_scenario_5_a_later_sequence_does_not_overtake_one_whose_verification_failed,
        {},
        without_tentative_sequence,
    ),
    (
        6,
        test_fencing.test_scenario_6_an_abort_for_an_absent_owner_bumps_the_epoch_and_the_zombie_is_fenced,
        {"protocol": 1, "by": "init"},
        without_an_epoch_bump_for_an_absent_owner,
    ),
    (
        7,
        test_fencing.test_scenario_7_aborting_for_an_absent_owner_at_the_last_epoch_bumps_once,
        {},
        without_rotation,
    ),
    (
        8,
        test_fencing.test_scenario_8_epoch_exhaustion_rotates_the_producer_id_and_the_producer_goes_on,
        {"commit": True},
        without_rotation,
    ),
    (
        9,
        test_markers.test_scenario_9_a_marker_whose_answer_was_lost_is_repeated_without_effect,
        {},
        without_marker_epoch_rule,
    ),
    (
        10,
        test_markers.test_scenario_10_a_late_marker_of_an_older_transaction_does_not_end_a_newer_one,
        {},
        without_marker_epoch_rule,
    ),
    (
        10,
        test_transaction_scenarios.test_scenario_10_completing_an_old_transaction_never_completes_a_newer_one,
        {"driver": a_driver, "version": 4},
        without_identity_of_reports,
    ),
    (
        11,
        test_markers.test_scenario_11_markers_that_land_one_by_one_complete_the_transaction_once,
        {"protocol": 2},
        without_retry_of_markers,
    ),
    (
        11,
        test_markers.test_scenario_11_markers_that_land_one_by_one_complete_the_transaction_once,
        {"protocol": 2},
        without_waiting_for_every_marker,
    ),
    (
        12,
        test_coordinator_log.test_scenario_12_a_write_the_transaction_log_refused_is_forgotten_and_can_be_repeated,
        {"protocol": 2},
        without_clearing_after_a_failed_write,
    ),
    (
        13,
        test_coordinator_log.test_scenario_13_an_id_whose_first_write_failed_leaves_nothing_that_could_not_expire,
        {},
        without_clearing_after_a_failed_write,
    ),
    (
        14,
        test_markers.test_scenario_14_a_producer_known_by_a_marker_only_still_fences_an_older_coordinator,
        {"after": "nothing"},
        without_coordinator_epoch_check,
    ),
    (
        14,
        test_markers.test_scenario_14_a_producer_known_by_a_marker_only_still_fences_an_older_coordinator,
        {"after": "nothing"},
        without_marker_keeping_its_producer_alive,
    ),
    (
        15,
        test_offsets.test_scenario_15_offsets_are_visible_when_the_commit_is_acknowledged,
        {"protocol": 2, "durability": "os"},
        without_markers_for_the_group,
    ),
    (
        16,
        test_reading.test_scenario_16_a_reader_of_committed_records_stops_at_the_last_stable_offset,
        {},
        without_last_stable_offset,
    ),
    (
        16,
        test_reading.test_scenarios_16_and_18_a_read_never_passes_what_it_was_allowed_when_it_began,
        {"isolation": 1},
        without_a_limit_taken_once,
    ),
    (
        17,
        test_reading.test_scenario_17_a_fetch_that_waited_carries_the_aborted_transactions,
        {"version": 12, "commit": False},
        without_aborted_list,
    ),
    (
        18,
        test_reading.test_scenario_18_a_reader_does_not_see_a_batch_before_it_is_as_safe_as_promised,
        {},
        without_high_watermark,
    ),
    (
        18,
        test_reading.test_scenarios_16_and_18_a_read_never_passes_what_it_was_allowed_when_it_began,
        {"isolation": 0},
        without_a_limit_taken_once,
    ),
    (
        19,
        test_failures.test_when_the_transaction_index_cannot_be_written_no_offset_is_given_twice_and_the_lso_stands,
        {},
        without_index_before_memory,
    ),
    (
        19,
        test_log.test_scenario_19_when_an_abort_cannot_be_indexed_it_is_not_visible_and_no_offset_is_given_twice,
        {},
        without_index_before_memory,
    ),
    (
        20,
        test_log.test_scenarios_20_and_21_after_an_io_error_nothing_is_taken_or_remembered_until_a_restart,
        {},
        without_stop_after_an_error,
    ),
    (
        21,
        test_log.test_scenarios_20_and_21_after_an_io_error_nothing_is_taken_or_remembered_until_a_restart,
        {},
        without_write_before_memory,
    ),
    (
        22,
        test_log.test_scenario_22_a_snapshot_has_its_name_only_after_it_was_fsynced,
        {},
        without_fsync_of_snapshots,
    ),
    (
        22,
        test_log.test_scenario_22_a_torn_snapshot_is_recognised_and_rebuilt_from_the_log,
        {},
        without_checksum_of_snapshots,
    ),
    (
        23,
        test_reading.test_scenario_42_a_reset_never_leaves_the_last_stable_offset_past_an_open_transaction,
        {},
        without_producer_state_in_truncation,
    ),
    (
        24,
        test_log.test_scenario_24_sequences_wrap_and_a_retry_from_before_the_wrap_is_still_known,
        {"after": "nothing"},
        without_wrap,
    ),
    (
        25,
        test_compaction.test_a_marker_whose_data_lies_in_another_segment_stays,
        {},
        without_markers_kept_for_their_data,
    ),
    (
        26,
        test_compaction.test_the_last_sequence_of_a_producer_stays_as_an_empty_batch,
        {},
        without_the_last_sequence_kept,
    ),
    (
        27,
        test_log.test_scenarios_25_to_27_compaction_leaves_what_exactly_once_still_needs,
        {},
        without_cleaner_bound,
    ),
    (
        28,
        test_coordinator_log.test_scenario_28_loading_ends_though_there_is_a_gap_before_the_end_of_the_log,
        {},
        without_an_end_to_loading,
    ),
    (
        30,
        test_markers.test_scenario_30_a_topic_deleted_during_commit_does_not_hold_the_transaction,
        {"when": "before the commit", "durability": "os"},
        without_counting_deleted_partitions_as_done,
    ),
    (
        31,
        test_coordinator_log.test_scenario_31_mass_expiry_fits_into_the_batches_the_topic_takes,
        {},
        without_a_bound_on_expiry,
    ),
    (
        35,
        test_fencing.test_scenario_35_an_epoch_bumped_by_the_client_itself_is_refused,
        {"protocol": 1},
        without_epoch_check,
    ),
    (
        36,
        test_sender.test_scenario_36_when_the_first_fails_the_rest_is_retried_in_order_without_a_bump_or_a_duplicate,
        {},
        without_order_among_retries,
    ),
    (
        36,
        test_client.test_scenarios_36_and_37_when_one_of_five_fails_all_are_repeated_in_order_with_the_same_bytes,
        {"refusal": E.NOT_ENOUGH_REPLICAS},
        without_sequence_check,
    ),
    (
        37,
        test_sender.test_scenario_37_a_retried_batch_is_byte_identical,
        {},
        without_the_same_bytes_again,
    ),
    (
        38,
        test_sender.test_scenario_38_an_epoch_bump_resets_idle_partitions_and_keeps_order_in_busy_ones,
        {},
        without_waiting_for_the_old_epoch,
    ),
    (
        39,
        test_sender.test_scenario_39_memory_of_a_batch_given_up_on_its_way_is_held_until_the_connection_lets_go,
        {},
        without_holding_memory_on_the_wire,
    ),
    (
        40,
        test_producer_state.test_after_an_abort_a_reused_sequence_is_not_taken_for_the_old_one,
        {"partition": a_partition},
        without_forgetting_sequences_at_a_marker,
    ),
    (
        40,
        test_fencing.test_scenario_40_after_an_abort_a_reused_sequence_is_not_taken_for_the_old_one,
        {"protocol": 2},
        without_forgetting_sequences_at_a_marker,
    ),
    (
        40,
        test_fencing.test_scenario_40_under_v1_a_sequence_used_again_without_a_new_epoch_is_refused_and_never_a_success,
        {"after": "snapshot"},
        without_telling_a_retry_from_a_sequence_used_again,
    ),
    (
        41,
        test_fencing.test_scenario_41_a_commit_whose_answer_was_lost_succeeds_when_repeated,
        {"protocol": 2, "after": "nothing"},
        without_recognising_a_repeated_end,
    ),
    (
        42,
        test_reading.test_scenario_42_the_last_stable_offset_waits_for_a_marker_that_is_not_yet_safe,
        {},
        without_waiting_for_the_marker_to_be_safe,
    ),
    (
        43,
        test_coordinator_log.test_scenario_43_a_begun_but_empty_transaction_survives_a_restart_and_expires,
        {"after": "restart"},
        without_timeouts,
    ),
    (
        44,
        test_reading.test_scenario_44_after_a_crash_nothing_is_served_that_could_still_be_lost,
        {},
        without_flush_before_serving,
    ),
    (
        45,
        test_offsets.test_scenario_45_unstable_offsets_of_a_producer_that_is_gone_clear_by_timeout,
        {"protocol": 2, "after": "nothing"},
        without_timeouts,
    ),
    (
        46,
        test_fencing.test_scenario_46_ending_while_the_previous_end_completes_is_told_to_wait,
        {"protocol": 2},
        without_waiting_for_the_previous_end,
    ),
    (
        47,
        test_client.test_scenario_47_an_empty_transaction_commits_cleanly,
        {"version": 2},
        without_ending_only_what_was_begun,
    ),
]


def name_of(ablation: tuple[int, Callable[..., None], dict[str, Any], Remove]) -> str:
    scenario, _, _, remove = ablation
    return f"{scenario}-{remove.__name__}"


def play(test: Callable[..., None], given: dict[str, Any], directory: Path) -> None:
    """Run a test as pytest would, and judge what it left."""
    parameters = inspect.signature(test).parameters
    arguments = {name: value() if inspect.isfunction(value) else value for name, value in given.items()}
    stage = Stage(directory)
    with pytest.MonkeyPatch.context() as patch:
        if "stage" in parameters:
            arguments["stage"] = stage
        if "tmp_path" in parameters:
            arguments["tmp_path"] = directory
        if "monkeypatch" in parameters:
            arguments["monkeypatch"] = patch
        try:
            test(**arguments)
        finally:
            stage.close()
    stage.judge()


@pytest.mark.parametrize(("scenario", "test", "given", "remove"), ABLATIONS, ids=map(name_of, ABLATIONS))
def test_without_its_safeguard_the_scenario_fails(
    scenario: int,
    test: Callable[..., None],
    given: dict[str, Any],
    remove: Remove,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(test, given, tmp_path / "with")
    # What will never come need not be waited for as long as what is only late.
    for module in (stage_module, test_offsets):
        monkeypatch.setattr(module, "until", lambda check, **how: waiting.until(check, **{**how, "within_s": 1.5}))
    remove(monkeypatch)
    with pytest.raises(FAILURES):
        play(test, given, tmp_path / "without")


def test_the_modules_that_are_patched_are_those_in_use() -> None:
    """A patch of a name that nobody looks up any more would remove nothing."""
    assert vars(flusher)["encode_snapshot"] is snapshots.encode_snapshot
    assert vars(producer_recovery)["decode_snapshot"] is snapshots.decode_snapshot

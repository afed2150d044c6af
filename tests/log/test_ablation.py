"""Every safeguard is needed: with it taken away, the test that stands for it fails.

The switches are here and nowhere else: the product has no flag to turn a promise off.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.errors import Refused
from semel.log import compaction, recovery, snapshots
from semel.log.compaction import Compaction
from semel.log.indexes import AbortedTransaction, TransactionIndex
from semel.log.partition_log import PartitionLog
from semel.log.reader import LogReader
from semel.log.segment import Segment
from semel.machines.producing import producer_state
from semel.machines.producing.producer_state import ProducerStates
from semel.machines.producing.verifications import Verifications
from tests.log import test_compaction as compacting
from tests.log import test_failures as failures
from tests.log import test_reading as reading
from tests.log import test_recovery as recovering
from tests.machines.producing import test_producer_state as states

Ablation = Callable[[pytest.MonkeyPatch], None]


def without(owner: Any, name: str, replacement: Any) -> Ablation:
    return lambda patch: patch.setattr(owner, name, replacement)


def index_errors_ignored(patch: pytest.MonkeyPatch) -> None:
    append = TransactionIndex.append

    def careless(self: TransactionIndex, files: Any, aborted: AbortedTransaction) -> None:
        try:
            append(self, files, aborted)
        except OSError:
            self._entries.append(aborted)

    patch.setattr(TransactionIndex, "append", careless)


def coordinator_epochs_ignored(patch: pytest.MonkeyPatch) -> None:
    check = ProducerStates.check_marker
    patch.setattr(
        ProducerStates,
        "check_marker",
        lambda self, producer_id, epoch, coordinator, version: check(self, producer_id, epoch, 10**6, version),
    )


def marker_epochs_ignored(patch: pytest.MonkeyPatch) -> None:
    check = ProducerStates.check_marker
    patch.setattr(
        ProducerStates,
        "check_marker",
        lambda self, producer_id, epoch, coordinator, version: check(self, producer_id, epoch, coordinator, 1),
    )


def marker_times_ignored(patch: pytest.MonkeyPatch) -> None:
    remember = ProducerStates.remember_marker
    patch.setattr(
        ProducerStates,
        "remember_marker",
        lambda self, producer_id, epoch, coordinator, offset, at_ms: remember(
            self, producer_id, epoch, coordinator, offset, -1
        ),
    )


def nothing(*arguments: Any, **more: Any) -> None:
    return None


CASES: list[tuple[str, Ablation, Callable[..., None]]] = [
    (
        "K-14884: guards",
        without(ProducerStates, "check_verified", nothing),
        reading.test_a_transaction_whose_late_batch_was_refused_leaves_nothing_behind,
    ),
    (
        "K-14920: tentative sequences",
        without(Verifications, "check_sequence", nothing),
        states.test_a_later_sequence_cannot_overtake_one_whose_verification_timed_out,
    ),
    (
        "fencing by epoch",
        without(ProducerStates, "check_epoch", nothing),
        states.test_a_stale_epoch_is_fenced,
    ),
    (
        "five batches",
        without(producer_state, "REMEMBERED_BATCHES", 4),
        states.test_each_of_the_last_five_batches_is_recognised_and_answered_with_its_offset,
    ),
    (
        "K-7692: wrapping",
        without(producer_state, "_SEQUENCES", 1 << 32),
        states.test_sequences_wrap_to_zero,
    ),
    ("coordinator fencing", coordinator_epochs_ignored, states.test_a_marker_of_an_older_coordinator_is_refused),
    (
        "KIP-1228: marker epochs",
        marker_epochs_ignored,
        states.test_a_second_protocol_marker_needs_a_larger_epoch_than_the_data,
    ),
    (
        "K-19999: retried markers",
        marker_epochs_ignored,
        states.test_the_retry_of_a_written_marker_is_a_success_that_writes_nothing,
    ),
    (
        "K-9144: a marker's time",
        marker_times_ignored,
        states.test_a_producer_known_only_by_a_marker_lives_as_long_as_any,
    ),
    (
        "the last stable offset",
        without(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark)),
        reading.test_read_committed_stops_at_the_first_open_transaction,
    ),
    (
        "markers above the high watermark",
        without(ProducerStates, "first_unstable_offset", property(lambda self: self.first_open_offset)),
        reading.test_an_ended_transaction_stays_out_of_sight_until_its_marker_is_replicated,
    ),
    (
        "K-5376: the aborted list",
        without(LogReader, "_aborted_within", lambda self, offset, upper_bound: []),
        reading.test_the_aborts_of_exactly_the_served_range_come_with_it,
    ),
    (
        "K-7866: the transaction index comes first",
        index_errors_ignored,
        failures.test_when_the_transaction_index_cannot_be_written_no_offset_is_given_twice_and_the_lso_stands,
    ),
    (
        "K-10778: no writes after an error",
        without(PartitionLog, "fail", nothing),
        failures.test_after_an_io_error_no_further_append_is_accepted_and_reads_go_on,
    ),
    (
        "K-6683: a partial write is cut",
        without(Segment, "cut_unfinished", nothing),
        lambda tmp_path: failures.test_a_failed_append_leaves_producer_state_as_it_was(tmp_path, 0.3),
    ),
    (
        "damage is told from a torn tail",
        without(recovery, "valid_batch_after", nothing),
        recovering.test_a_bit_flipped_anywhere_before_the_last_batches_is_reported_and_changes_nothing,
    ),
    (
        "K-9892: a torn snapshot is recognised",
        without(snapshots, "crc32c", lambda data: 0),
        recovering.test_a_snapshot_names_the_producers_as_kafka_would_read_them_and_a_changed_one_is_not_believed,
    ),
    (
        "K-13194: compaction stops at the last stable offset",
        without(PartitionLog, "last_stable_offset", property(lambda self: self.end_offset)),
        compacting.test_compaction_stops_at_the_last_stable_offset_and_at_the_high_watermark,
    ),
    (
        "K-5490: the last sequence is kept",
        without(Compaction, "_holds_producer_state", lambda self, batch: False),
        compacting.test_the_last_sequence_of_a_producer_stays_as_an_empty_batch,
    ),
    (
        "K-8351: markers with data are kept",
        without(compaction._Transactions, "_marker", lambda self, batch: True),
        compacting.test_a_marker_stays_while_data_of_its_transaction_does,
    ),
]


@pytest.mark.parametrize(("ablation", "scenario"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_without_the_safeguard_its_scenario_goes_wrong(
    ablation: Ablation, scenario: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(directory: Path) -> None:
        wanted = list(inspect.signature(scenario).parameters)
        scenario(*(states.Partition() if name == "partition" else directory for name in wanted))

    run(tmp_path / "with")
    ablation(monkeypatch)
    with pytest.raises((AssertionError, Refused, pytest.fail.Exception)):
        run(tmp_path / "without")

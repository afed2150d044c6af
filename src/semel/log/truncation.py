"""Cutting a log back, and beginning it anew: what a follower does when its log is not the beginning of its leader's.

Guarantees:

- The state of the producers is put right before any watermark: no watermark ever rests on what is gone (K-12153).
- A crash at any point leaves a log that is not cut yet, cut a part of the way, or cut; never one with a hole, and never
  one that the next start takes for damaged.
- What takes long only reads, and may run on any thread. The cut itself is short.

`Truncation(log, offset, now_ms)` and `apply` belong to the log's thread. Between them nothing may be appended.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from semel.log import checkpoints
from semel.log.file_names import snapshot_path
from semel.log.partition_files import PartitionFiles
from semel.log.producer_recovery import ProducerLoader, aborted, replay
from semel.log.segment import Segment
from semel.log.segments import Segments
from semel.machines.producing.producer_state import ProducerStates
from semel.records.batch import check

if TYPE_CHECKING:
    from semel.log.indexes import AbortedTransaction
    from semel.log.partition_log import PartitionLog


class Truncation:
    """One cut: `run`, then `apply`. The log ends at `offset` then, or where the batch that holds it began."""

    def __init__(self, log: PartitionLog, offset: int, now_ms: int) -> None:
        if log.failed is not None:
            raise log.refusal()
        self._log = log
        self._offset = offset
        self._now_ms = now_ms
        self._end_offset = log.end_offset
        self._all = list(log.segments)
        holding = log.segments.starting_with(offset)[0]
        #: The segments that stay whole.
        self._whole = self._all[: self._all.index(holding)]
        log.segments.use(holding)
        placed = holding.locate(offset) if offset < log.end_offset else None
        self._position = holding.size_bytes if placed is None else placed.position
        self._cut = Segment(log.files, log.directory, holding.base_offset, self._position, now_ms)
        self._cut.has_no_gaps = holding.has_no_gaps
        self._interval_bytes: int = log.config["index.interval.bytes"]
        self._snapshots = list(log.flusher.snapshots)
        self._producers: ProducerStates | None = None
        self._next_offset = holding.base_offset

    def run(self) -> None:
        """Read what stays: the state of its producers, and the indexes of the segment that is cut. Changes nothing."""
        log, cut = self._log, self._cut
        log.files.drain()  # the snapshot of a segment that goes may still be on its way to the disk
        state = ProducerLoader(
            PartitionFiles(log.files, log.directory), self._now_ms, log.producer_id_expiration_ms, []
        )
        start = self._load_snapshot(state)
        # With descriptors of their own: the log's thread opens and closes its segments meanwhile.
        private = [Segment(log.files, log.directory, one.base_offset, one.size_bytes, 0) for one in self._whole]
        try:
            state.replay_segments([*private, cut], len(private), start)
        finally:
            for segment in private:
                segment.close()
        cut.forget_indexes()
        heard_ms = state.written_ms(cut)
        aborts: list[AbortedTransaction] = []
        expected = cut.base_offset
        try:
            for position, batch in cut.batches_with_positions():
                check(batch, stored=True)
                cut.check_place(batch, expected, position)
                completed = replay(state.producers, batch, heard_ms) if batch.base_offset >= start else None
                if completed is not None and completed.aborted:
                    aborts.append(aborted(completed))
                cut.note(position, batch.size_bytes, batch.last_offset, batch.max_timestamp, self._interval_bytes)
                expected = batch.next_offset
        finally:
            cut.size_bytes = self._position
            cut.close()
        cut.transaction_index.hold(aborts)
        cut.synced_bytes = cut.cold_bytes = 0
        self._producers, self._next_offset = state.producers, expected

    def _load_snapshot(self, state: ProducerLoader) -> int:
        """Begin with the newest usable snapshot that is not past the segment that is cut. Returns its offset."""
        for offset in reversed([offset for offset in self._snapshots if offset <= self._cut.base_offset]):
            if state.load_snapshot(offset):
                return offset
        state.producers.load([])
        return 0

    def apply(self) -> bool:
        """Cut the log. False if it was changed since the cut was planned: plan again."""
        log = self._log
        if log.failed is not None:
            raise log.refusal()
        if self._producers is None or log.end_offset != self._end_offset or list(log.segments) != self._all:
            return False
        try:
            if self._offset < log.segments.start_offset:
                restart_at(log, self._offset, self._now_ms)
            else:
                self._apply(self._producers)
        except OSError as error:
            log.fail(error)
            raise log.refusal() from error
        return True

    def _apply(self, producers: ProducerStates) -> None:
        log, files, cut = self._log, self._log.files, self._cut
        offset = min(self._next_offset, self._offset)
        lower_checkpoints(log, offset)
        cut.created_ms = self._all[len(self._whole)].created_ms
        gone = self._all[len(self._whole) :]
        _remove_snapshots_after(log, offset)
        for segment in reversed(gone[1:]):
            _remove(log, segment)
        gone[0].close()
        files.truncate(cut.descriptor, self._position)
        cut.rewrite_indexes()
        # Durable before the epochs are: a batch of an epoch that the checkpoint does not know is damage.
        files.sync(cut.descriptor)
        files.sync_directory(log.directory)
        cut.synced_bytes = self._position
        log.producers = producers
        log.segments = Segments([*self._whole, cut])
        log.end_offset = offset
        log.flusher.recovery_point = min(log.flusher.recovery_point, offset)
        settle(log, min(log.high_watermark, offset), min(log.log_start_offset, offset))
        log.leader_epochs.truncate_from_end(offset)
        log.write_leader_epochs()


def restart_at(log: PartitionLog, offset: int, now_ms: int) -> None:
    """Remove everything, and begin again at `offset` as a new log does. May raise `OSError`."""
    log.files.drain()
    lower_checkpoints(log, 0)
    # A start that finds less than this has lost something.
    checkpoints.set_offsets(log.files, _data_directory(log), checkpoints.LOG_START_OFFSETS, {_name(log): offset})
    for each in log.flusher.snapshots:
        log.files.remove(snapshot_path(log.directory, each))
    for segment in reversed(list(log.segments)):
        _remove(log, segment)
    segment = Segment(log.files, log.directory, offset, 0, now_ms)
    segment.has_no_gaps = True
    segment.create_files()
    log.files.sync_directory(log.directory)
    log.producers = ProducerStates()
    log.segments = Segments([segment])
    log.end_offset = offset
    log.flusher.snapshots, log.flusher.recovery_point = [], offset
    settle(log, offset, offset)
    log.leader_epochs.truncate_from_end(0)
    log.write_leader_epochs()


def lower_checkpoints(log: PartitionLog, offset: int) -> None:
    """Promise no more than `offset`, durably and before anything is cut: a start that finds less than was promised
    takes the log for damaged."""
    name = _name(log)
    limits = dict.fromkeys(
        (checkpoints.RECOVERY_POINTS, checkpoints.CLEANER_OFFSETS, checkpoints.HIGH_WATERMARKS), offset
    )
    if offset < log.log_start_offset:
        limits[checkpoints.LOG_START_OFFSETS] = offset
    for checkpoint, most in limits.items():
        known = checkpoints.read_offsets(log.files, _data_directory(log), checkpoint).get(name, 0)
        if known > most:
            checkpoints.set_offsets(log.files, _data_directory(log), checkpoint, {name: most})


def settle(log: PartitionLog, high_watermark: int, log_start_offset: int) -> None:
    """The state of the producers is right: now the watermarks may rest on it."""
    log.high_watermark = high_watermark
    log.producers.replicated_to(high_watermark)
    log.log_start_offset = log_start_offset


def _remove(log: PartitionLog, segment: Segment) -> None:
    segment.close()
    for path in segment.paths():
        log.files.remove(path)


def _remove_snapshots_after(log: PartitionLog, offset: int) -> None:
    for each in [each for each in log.flusher.snapshots if each > offset]:
        log.files.remove(snapshot_path(log.directory, each))
    log.flusher.snapshots = [each for each in log.flusher.snapshots if each <= offset]


def _name(log: PartitionLog) -> tuple[str, int]:
    return log.topic, log.partition


def _data_directory(log: PartitionLog) -> str:
    return os.path.dirname(log.directory)

"""A follower's log: the same bytes as its leader's, in the same places.

Guarantees (the letters are the rules of replication):

- A batch is checked as the log's own batches are: its CRC, its offset, its leader epoch. Of an answer with a bad batch
  nothing is written.
- It is written as it came, and the state of the producers comes from it by the same replay as at a start, so a follower
  that is elected knows every batch that its leader knew (R10).
- No leader epoch is known before a batch of it is there, so that a leader can tell where two logs part (R5).
- The high watermark is what the leader says, as far as this log reaches. It is raised only after a batch was written
  or cut away (scenario 32).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from semel.errors import ErrorCode, Refused
from semel.log import checkpoints
from semel.log.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from semel.log.producer_recovery import aborted, replay
from semel.log.truncation import Truncation, restart_at
from semel.records.batch import Batch, check, split
from semel.records.markers import read_marker

if TYPE_CHECKING:
    from semel.log.partition_log import PartitionLog
    from semel.log.segment import Segment


class Following:
    """What a follower does with its log: `log.following`."""

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def begin(self, epoch: int) -> None:
        """Another broker leads the partition under `epoch` from now on.

        Rule R5: an epoch under which this log has nothing is forgotten. It was this broker's own, or that of a leader
        whose batches were cut away; with its entry this follower would claim to have what it does not have.
        """
        log = self._log
        log.leader_epoch = max(log.leader_epoch, epoch)
        if log.leader_epochs.truncate_from_end(log.end_offset):
            log.store_leader_epochs()
        log.epoch_is_on_disk = False

    @property
    def last_fetched_epoch(self) -> int:
        """The leader epoch of the last batch; -1 if there is none. A leader compares it with its own epochs (R7)."""
        return self._log.leader_epochs.latest

    def truncation(self, offset: int, now_ms: int) -> Truncation:
        """A cut at `offset`, whose long part may run on another thread."""
        return Truncation(self._log, offset, now_ms)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Drop everything and begin at `offset`: the leader has removed what comes next here."""
        log = self._log
        if log.failed is not None:
            raise log.refusal()
        try:
            restart_at(log, offset, now_ms)
        except OSError as error:
            log.fail(error)
            raise log.refusal() from error

    def take_watermarks(self, high_watermark: int, log_start_offset: int) -> None:
        """The leader's high watermark and start, as far as this log reaches. They never move back."""
        log = self._log
        log.advance_high_watermark(min(high_watermark, log.end_offset))
        start = min(log_start_offset, log.high_watermark)
        if start <= log.log_start_offset:
            return
        if start > log.segments.start_offset:
            # Records of a kept segment were deleted: a restart must not bring them back.
            try:
                self._set_offset(checkpoints.LOG_START_OFFSETS, start)
            except OSError as error:
                log.fail(error)
                raise log.refusal() from error
        log.log_start_offset = start

    # Appending

    def append(self, data: bytes | bytearray | memoryview, now_ms: int) -> int:
        """Append what the leader sent: whole batches, the last one perhaps cut short by the size of the answer.
        Returns how many bytes were written. `Refused` leaves everything as it was."""
        log = self._log
        if log.failed is not None:
            raise log.refusal()
        view = memoryview(data)
        batches = split(view, partial_tail=True)
        gap_at = self._check(batches)
        try:
            if gap_at is not None:
                # The leader has compacted. A start must not take the gap for damage.
                log.segments.active.has_no_gaps = False
                self._set_offset(checkpoints.CLEANER_OFFSETS, gap_at)
            self._learn_epochs(batches)
            position = first = 0
            while first < len(batches):
                end, size = self._run(batches, first, now_ms)
                self._write(view[position : position + size], batches[first:end], now_ms)
                first, position = end, position + size
        except OSError as error:
            log.fail(error)
            raise log.refusal() from error
        return position

    def _check(self, batches: list[Batch]) -> int | None:
        """Refuse what cannot follow here. Returns the last offset that comes after a gap."""
        log = self._log
        expected, epoch, gap_at = log.end_offset, log.leader_epochs.latest, None
        for batch in batches:
            check(batch, stored=True)
            if batch.base_offset < expected:
                raise self._cannot_follow(f"a batch at offset {batch.base_offset} where {expected} comes next")
            if batch.leader_epoch < epoch or batch.leader_epoch > log.leader_epoch:
                raise self._cannot_follow(
                    f"a batch of leader epoch {batch.leader_epoch} after {epoch}, under {log.leader_epoch}"
                )
            if batch.base_offset > expected:
                gap_at = batch.base_offset
            expected, epoch = batch.next_offset, batch.leader_epoch
        return gap_at

    def _cannot_follow(self, what: str) -> Refused:
        log = self._log
        return Refused(ErrorCode.CORRUPT_MESSAGE, f"{log.topic}-{log.partition}: the leader sent {what}")

    def _learn_epochs(self, batches: list[Batch]) -> None:
        """Before the batches: a batch of an epoch that the checkpoint does not know is damage."""
        log, is_new = self._log, False
        log.settle_topic_id()
        for batch in batches:
            if batch.leader_epoch > log.leader_epochs.latest:
                is_new = log.leader_epochs.assign(batch.leader_epoch, batch.base_offset)
        if is_new:
            log.write_leader_epochs(durable=log.epochs_need_fsync)

    def _run(self, batches: list[Batch], first: int, now_ms: int) -> tuple[int, int]:
        """The batches from `first` on that go into one segment, where the leader put them: (one past the last, their
        bytes). Rolls the log if need be."""
        log = self._log
        head = batches[first]
        size = head.size_bytes
        segment = log.segment_for(size, head.last_offset, head.max_timestamp, now_ms)
        end, most = first + 1, first + self._index_room(segment)
        while end < len(batches) and end < most:
            batch = batches[end]
            if not log.fits(segment, size + batch.size_bytes, batch.last_offset, batch.max_timestamp, now_ms):
                break
            size += batch.size_bytes
            end += 1
        return end, size

    def _index_room(self, segment: Segment) -> int:
        """How many entries fit into the segment's indexes, one at least: each batch may get one."""
        index_bytes: int = self._log.config["segment.index.bytes"]
        by_offset = index_bytes // OFFSET_ENTRY_SIZE - len(segment.offset_index)
        by_time = index_bytes // TIME_ENTRY_SIZE - len(segment.time_index) - 1
        return max(min(by_offset, by_time), 1)

    def _write(self, data: memoryview, batches: list[Batch], now_ms: int) -> None:
        log = self._log
        segment = log.segments.active
        position = segment.size_bytes
        log.files.write_at(segment.descriptor, data, position)
        interval_bytes: int = log.config["index.interval.bytes"]
        for batch in batches:
            size = batch.size_bytes
            segment.note(position, size, batch.last_offset, batch.max_timestamp, interval_bytes)
            position += size
            log.end_offset = batch.next_offset
            if batch.producer_id >= 0:
                if batch.is_control and batch.record_count:
                    self._index_abort(segment, batch)
                replay(log.producers, batch, now_ms)

    def _index_abort(self, segment: Segment, batch: Batch) -> None:
        """Before the transaction ends: the last stable offset moves only past aborts that a restart finds again."""
        log = self._log
        completed = log.producers.completes(batch.producer_id, batch.base_offset, read_marker(batch).commit)
        if completed is not None and completed.aborted:
            segment.transaction_index.load(log.files)
            segment.transaction_index.append(log.files, aborted(completed))

    def _set_offset(self, checkpoint: str, offset: int) -> None:
        log = self._log
        changes = {(log.topic, log.partition): offset}
        checkpoints.set_offsets(log.files, os.path.dirname(log.directory), checkpoint, changes)

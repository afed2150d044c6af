"""Compaction: keep the last record of every key, and everything that exactly-once still needs.

- Only whole segments below min(last stable offset, high watermark) are compacted, never the active one (K-13194).
  Every transaction in them has ended: aborted data is removed, committed data is compacted by key.
- A tombstone, and the marker of a transaction that has no data left, stays for `delete.retention.ms` after compaction
  first sees it in that state. That time is written into the batch itself, so it survives restarts (K-8335).
- A marker stays as long as any batch of its transaction does, in whatever segment (K-8351, K-13727). Its key is never
  compared with users' keys (K-14055).
- The keys of a round fit into the memory given to it (`log.cleaner.dedupe.buffer.size`). A round that finds more keys
  ends where they no longer fit, in the middle of a segment if need be, and the next round goes on from there.
- The batch that holds an active producer's last sequence stays, without records if need be (K-5490). A marker that is
  the only batch of a producer stays whole: it carries the epoch that fences.

`Cleaner.plan` and `Compaction.apply` run on the log's thread, `Compaction.run` on any thread. A compacted segment is
written beside the old ones (`.cleaned`), made durable, renamed (`.swap`, its log last) and only then replaces them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import md5
from itertools import count, pairwise
from typing import TYPE_CHECKING

from semel.config import INT64_MAX
from semel.errors import ErrorCode, Refused
from semel.log import checkpoints
from semel.log.file_names import CLEANED_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, SWAP_SUFFIX
from semel.log.files import Files
from semel.log.indexes import OFFSET_ENTRY_SIZE, RELATIVE_OFFSET_MAX, AbortedTransaction
from semel.log.segment import Segment
from semel.records.batch import Batch, Record, read_records, retain, without_records
from semel.records.markers import read_marker

if TYPE_CHECKING:
    from semel.log.partition_log import PartitionLog

#: Memory for a key and its last offset: two small objects and their place in a dictionary.
BYTES_PER_KEY = 200
_ROUNDS = count()
#: Kafka's default of `log.cleaner.dedupe.buffer.size`.
DEDUPE_BUFFER_BYTES = 134_217_728


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a round of compaction did."""

    first_dirty_offset: int
    bytes_before: int
    bytes_after: int


class Cancelled(Exception):
    """The round was cancelled."""


class _Transactions:
    """Follows the transactions of the compacted range from batch to batch."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        # Producer id -> the aborted transaction we are in, and whether a batch of it was seen.
        self._aborting: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committing: set[int] = set()
        #: Aborts whose marker and data were both seen: they go into the new transaction index.
        self.indexed: list[AbortedTransaction] = []

    def discards(self, batch: Batch) -> bool:
        """Whether the whole batch can go: aborted data, or a marker without data."""
        while self._coming and self._coming[-1].first_offset <= batch.last_offset:
            entry = self._coming.pop()
            self._aborting[entry.producer_id] = (entry, False)
        if batch.is_control:
            return self._marker(batch)
        if not batch.is_transactional:
            return False
        current = self._aborting.get(batch.producer_id)
        if current is not None:
            self._aborting[batch.producer_id] = (current[0], True)
            return True
        self._committing.add(batch.producer_id)
        return False

    def _marker(self, batch: Batch) -> bool:
        if batch.record_count == 0:
            return True
        if read_marker(batch).commit:
            had_data = batch.producer_id in self._committing
            self._committing.discard(batch.producer_id)
            return not had_data
        ended = self._aborting.pop(batch.producer_id, None)
        if ended is not None and ended[1]:
            self.indexed.append(ended[0])
            return False
        return True


class Compaction:
    """One round over one partition, as `log.cleaner` has planned it."""

    def __init__(
        self,
        log: PartitionLog,
        segments: list[Segment],
        first_dirty_offset: int,
        upper_bound: int,
        now_ms: int,
        dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    ) -> None:
        self._log = log
        self._keys_max = dedupe_buffer_bytes // BYTES_PER_KEY
        #: Whether the keys did not fit, so that another round has to go on.
        self.stopped_short = False
        # The round of a broker that was stopped may still be running: each round writes files of its own.
        self._suffix = f".{next(_ROUNDS)}{CLEANED_SUFFIX}"
        self._is_cancelled = False
        self._files: Files = log.files
        self._segments = segments
        self._first_dirty_offset = first_dirty_offset
        self._upper_bound = upper_bound
        self._now_ms = now_ms
        self._delete_retention_ms: int = log.config["delete.retention.ms"]
        self._segment_bytes: int = log.config["segment.bytes"]
        self._index_bytes: int = log.config["segment.index.bytes"]
        self._index_interval_bytes: int = log.config["index.interval.bytes"]
        #: producer id -> (last data offset or -1, epoch), as of the plan.
        self._last_of_producer = {
            entry.producer_id: (entry.last_offset, entry.producer_epoch) for entry in log.producers
        }
        self._aborted: list[AbortedTransaction] = []
        for segment in log.segments:
            segment.transaction_index.load(log.files)
            self._aborted.extend(segment.transaction_index.entries)
        self._groups: list[tuple[list[Segment], Segment]] = []

    # On any thread

    def run(self) -> None:
        """Write the compacted segments beside the old ones. Changes nothing that anybody else reads."""
        try:
            self._run()
        except Cancelled:
            self.abandon()
            raise

    def cancel(self) -> None:
        """Cancel the round: `run` stops at the next batch and removes its files."""
        self._is_cancelled = True

    def _batches(self, segment: Segment) -> Iterator[Batch]:
        for batch in segment.checked_batches():
            if self._is_cancelled:
                raise Cancelled
            yield batch

    def _run(self) -> None:
        latest, mapped_to = self._latest_offsets()
        self.stopped_short = mapped_to < self._upper_bound
        transactions = _Transactions(self._aborted)
        for group in self._groups_that_fit(mapped_to):
            base_offset = group[0].base_offset
            target = Segment(self._files, self._log.directory, base_offset, 0, self._now_ms, suffix=self._suffix)
            self._groups.append((group, target))
            self._clean(group, target, latest, mapped_to, transactions)
        self._upper_bound = mapped_to

    def _latest_offsets(self) -> tuple[dict[bytes, int], int]:
        """(the last offset of every key in the dirty part, the offset up to which keys were read)."""
        latest: dict[bytes, int] = {}
        transactions = _Transactions(self._aborted)
        mapped_to = self._first_dirty_offset
        for number, original in enumerate(self._segments):
            is_last = number + 1 == len(self._segments)
            following = self._upper_bound if is_last else self._segments[number + 1].base_offset
            segment = self._private(original)
            try:
                for batch in self._batches(segment):
                    if transactions.discards(batch) or batch.is_control or batch.last_offset < self._first_dirty_offset:
                        continue
                    for record in read_records(batch):
                        if record.key is not None and record.offset >= self._first_dirty_offset:
                            latest[_key(record.key)] = record.offset
                    if len(latest) >= self._keys_max:
                        return latest, batch.next_offset
            finally:
                segment.close()
            mapped_to = max(mapped_to, following)
        return latest, mapped_to

    def _groups_that_fit(self, mapped_to: int) -> list[list[Segment]]:
        """Neighbouring segments that fit into one segment together."""
        groups: list[list[Segment]] = []
        size = index_size = 0
        for segment in self._segments:
            if segment.base_offset >= mapped_to:
                break
            segment_index = segment.size_bytes // max(self._index_interval_bytes, 1) * OFFSET_ENTRY_SIZE
            fits = (
                groups
                and size + segment.size_bytes <= self._segment_bytes
                and index_size + segment_index <= self._index_bytes
                and mapped_to - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
            )
            if fits:
                groups[-1].append(segment)
                size += segment.size_bytes
                index_size += segment_index
            else:
                groups.append([segment])
                size, index_size = segment.size_bytes, segment_index
        return groups

    def _clean(
        self,
        group: list[Segment],
        target: Segment,
        latest: dict[bytes, int],
        mapped_to: int,
        transactions: _Transactions,
    ) -> None:
        for suffix in SEGMENT_SUFFIXES:
            self._files.remove(target.stem + suffix + self._suffix)
        target.adopt(self._files.open(target.stem + LOG_SUFFIX + self._suffix, create=True))
        transactions.indexed = []
        for original in group:
            segment = self._private(original)
            try:
                for batch in self._batches(segment):
                    data = self._what_is_left(batch, latest, mapped_to, transactions.discards(batch))
                    if data is not None:
                        kept = Batch.parse(data)
                        target.write(
                            data, len(data), kept.last_offset, kept.max_timestamp, self._index_interval_bytes
                        )
            finally:
                segment.close()
        target.transaction_index.hold(transactions.indexed)
        target.finish()
        target.rewrite_indexes()
        self._files.sync(target.descriptor)
        for suffix in SEGMENT_SUFFIXES[1:]:
            if self._files.exists(target.stem + suffix + self._suffix):
                self._files.sync_path(target.stem + suffix + self._suffix)
        target.close()

    def _what_is_left(self, batch: Batch, latest: dict[bytes, int], mapped_to: int, discards: bool) -> bytes | None:
        """The bytes of a batch after compaction; None when the whole batch goes."""
        due = batch.has_delete_horizon and batch.base_timestamp <= self._now_ms
        holds_state = self._holds_producer_state(batch)
        # The last batch of a round stays, if only as an empty one, so that the log's offsets do not seem to end early.
        keep_empty = holds_state or batch.next_offset == mapped_to
        horizon_ms = self._now_ms + self._delete_retention_ms
        if batch.is_control:
            if not discards or batch.record_count == 0:
                return bytes(batch.data) if not discards or keep_empty else None
            if due and not holds_state:
                return without_records(batch) if keep_empty else None
            return retain(batch, [True], horizon_ms)
        if discards:
            return without_records(batch) if keep_empty else None
        if batch.record_count == 0:
            return bytes(batch.data) if keep_empty else None
        has_tombstone = False

        def keep(record: Record) -> bool:
            nonlocal has_tombstone
            if record.offset >= mapped_to:
                return True
            if record.key is None or record.offset < latest.get(_key(record.key), -1):
                return False
            if record.value is None:
                if due:
                    return False
                has_tombstone = True
            return True

        mask = [keep(record) for record in read_records(batch)]
        return retain(batch, mask, horizon_ms if has_tombstone else None, keep_empty=keep_empty)

    def _holds_producer_state(self, batch: Batch) -> bool:
        known = self._last_of_producer.get(batch.producer_id) if batch.producer_id >= 0 else None
        if known is None:
            return False
        last_offset, epoch = known
        if last_offset >= 0:
            return batch.last_offset == last_offset
        return batch.is_control and batch.producer_epoch == epoch

    def _private(self, segment: Segment) -> Segment:
        """The same segment with a descriptor of its own, which nobody else closes."""
        private = Segment(self._files, self._log.directory, segment.base_offset, segment.size_bytes, 0)
        private.adopt(self._files.open_to_read(private.log_path))
        return private

    # On the log's thread

    def apply(self) -> Compacted | None:
        """Replace the old segments by the compacted ones. None when the log has changed meanwhile."""
        log = self._log
        if any(segment not in log.segments for group, _ in self._groups for segment in group):
            self.abandon()
            return None
        before = sum(segment.size_bytes for group, _ in self._groups for segment in group)
        after = sum(cleaned.size_bytes for _, cleaned in self._groups)
        try:
            for group, cleaned in self._groups:
                self._swap(group, cleaned)
            checkpoints.set_offsets(
                log.files,
                os.path.dirname(log.directory),
                checkpoints.CLEANER_OFFSETS,
                {(log.topic, log.partition): self._upper_bound},
            )
        except OSError as error:
            # Half swapped: only recovery can finish it.
            log.fail(error)
            raise
        return Compacted(self._upper_bound, before, after)

    def _swap(self, group: list[Segment], cleaned: Segment) -> None:
        log, files, stem = self._log, self._files, cleaned.stem
        suffixes = [
            suffix
            for suffix in (*SEGMENT_SUFFIXES[1:], LOG_SUFFIX)
            if files.exists(stem + suffix + self._suffix)
        ]
        for suffix in suffixes:
            files.rename(stem + suffix + self._suffix, stem + suffix + SWAP_SUFFIX)
        files.sync_directory(log.directory)
        for segment in group:
            log.retention.remove_later(segment, self._now_ms)
        for suffix in suffixes:
            files.rename(stem + suffix + SWAP_SUFFIX, stem + suffix)
        files.sync_directory(log.directory)
        successor = Segment(files, log.directory, cleaned.base_offset, cleaned.size_bytes, self._now_ms)
        # Else nobody would notice, after the next stop, a bit of them that went bad.
        successor.offset_index.crc = cleaned.offset_index.crc
        successor.time_index.crc = cleaned.time_index.crc
        successor.transaction_index.crc = cleaned.transaction_index.crc
        log.segments.replace(log.segments.index(group[0]), len(group), [successor])

    def abandon(self) -> None:
        """Remove what the round has written."""
        for _, cleaned in self._groups:
            cleaned.close()
            for suffix in SEGMENT_SUFFIXES:
                self._files.remove(cleaned.stem + suffix + self._suffix)


def _key(key: bytes) -> bytes:
    """A long key is represented by its digest, as Kafka's cleaner does for all keys."""
    return key if len(key) <= 32 else md5(key, usedforsecurity=False).digest() + len(key).to_bytes(4, "big")


class Cleaner:
    """Decides what to compact, and when: `log.cleaner`."""

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def compact(self, now_ms: int, *, force: bool = False) -> Compacted | None:
        """Plan, run and apply a round on this thread; None when there is nothing to do."""
        compaction = self.plan(now_ms, force=force)
        if compaction is None:
            return None
        try:
            compaction.run()
            return compaction.apply()
        except Refused:
            compaction.abandon()
            raise
        except OSError as error:
            compaction.abandon()
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"compaction did not finish: {error}") from error

    def plan(
        self, now_ms: int, *, force: bool = False, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    ) -> Compaction | None:
        """What to compact now; None when the topic does not want it or there is too little to gain."""
        log = self._log
        if "compact" not in log.config["cleanup.policy"] or log.failed is not None:
            return None
        limit = min(log.last_stable_offset, log.high_watermark)
        lag_ms: int = log.config["min.compaction.lag.ms"]
        cleanable: list[Segment] = []
        for segment, following in pairwise(log.segments):
            if following.base_offset > limit:
                break
            if lag_ms > 0:
                log.segments.use(segment)
                segment.load_largest_timestamp()
                if segment.max_timestamp_ms > now_ms - lag_ms:
                    break
            cleanable.append(segment)
        if not cleanable:
            return None
        upper_bound = log.segments[len(cleanable)].base_offset
        first_dirty = min(self._first_dirty_offset(), upper_bound)
        total = sum(segment.size_bytes for segment in cleanable)
        dirty = [
            segment
            for segment, following in pairwise(log.segments[: len(cleanable) + 1])
            if following.base_offset > first_dirty
        ]
        dirty_bytes = sum(segment.size_bytes for segment in dirty)
        if not force:
            if dirty_bytes == 0:
                return None
            if dirty_bytes < log.config["min.cleanable.dirty.ratio"] * total and not self._is_overdue(dirty, now_ms):
                return None
        return Compaction(log, cleanable, first_dirty, upper_bound, now_ms, dedupe_buffer_bytes)

    def _is_overdue(self, dirty: list[Segment], now_ms: int) -> bool:
        """Whether a record has waited for longer than `max.compaction.lag.ms`, by its own time where it has one."""
        log = self._log
        lag_ms: int = log.config["max.compaction.lag.ms"]
        if lag_ms == INT64_MAX:
            return False
        for segment in dirty:
            log.segments.use(segment)
            if 0 < segment.first_timestamp_ms < now_ms - lag_ms:
                return True
        return False

    def _first_dirty_offset(self) -> int:
        log = self._log
        offsets = checkpoints.read_offsets(log.files, os.path.dirname(log.directory), checkpoints.CLEANER_OFFSETS)
        known = offsets.get((log.topic, log.partition), 0)
        start = log.segments.start_offset
        # A checkpoint from before a truncation, or from a deleted topic of the same name, says nothing.
        return known if start <= known <= log.end_offset else start

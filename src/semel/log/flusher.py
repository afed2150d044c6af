"""Making a log durable, off the thread that owns it.

Every job has two halves. What to sync is decided on the log's thread, with descriptors of its own; the syncing itself
may run on any thread. A snapshot of producer state is written only after everything below its offset was synced:
whoever finds a snapshot may rely on the log up to there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.log.file_names import snapshot_path
from semel.log.segment import Segment
from semel.log.snapshots import encode_snapshot

if TYPE_CHECKING:
    from semel.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_WRITE_AGAIN_BYTES = 4 * 1024 * 1024


class LogFlusher:
    """Knows how much of the log is durable, and makes the rest so: `log.flusher`."""

    __slots__ = ("_log", "is_created", "recovery_point", "snapshots")

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        #: Everything below this offset was fsynced.
        self.recovery_point = 0
        #: Offsets of the snapshots on disk, rising.
        self.snapshots: list[int] = []
        #: The directory is new and its parent was not synced yet: a power cut could take all of it.
        self.is_created = False

    def flush(self, *, closing: bool = False) -> int:
        """Make everything written so far durable, on this thread. Returns the offset reached."""
        try:
            return self.prepare(closing=closing)()
        except OSError as error:
            self._log.fail(error)
            raise self._log.refusal() from error

    def flush_what_a_crash_left(self, *, same_boot: bool) -> None:
        """Make durable what the last process may not have, before anybody sees it.

        `same_boot`: the machine did not go down since. Then an fsync of that process may have failed: the system took
        its bytes for written, shows them from memory, and the next fsync would succeed without writing them. So they
        are written again.
        """
        log = self._log
        try:
            if same_boot:
                for segment in log.segments:
                    if segment.synced_bytes < segment.size_bytes and log.end_offset > self.recovery_point:
                        self._write_again(segment)
            self.flush()
        except OSError as error:
            log.fail(error)
            raise log.refusal() from error

    def _write_again(self, segment: Segment) -> None:
        first = segment.locate(self.recovery_point)
        if first is None:
            return
        for position in range(first.position, segment.size_bytes, _WRITE_AGAIN_BYTES):
            size = min(_WRITE_AGAIN_BYTES, segment.size_bytes - position)
            self._log.files.write_at(segment.descriptor, segment.read(position, size), position)

    def prepare(self, *, closing: bool = False) -> Callable[[], int]:
        """The function to call, on any thread, to make everything written so far durable. It returns the offset
        reached.

        The active segment's indexes are left out until the log is closed: recovery rebuilds them anyway. The indexes
        of older segments are trusted from then on, so they are synced even where the log file already was.
        """
        log, files = self._log, self._log.files
        end_offset = log.end_offset
        active = log.segments.active
        dirty: list[tuple[Segment, int, int]] = []
        indexed: list[Segment] = []
        indexes: list[str] = []
        is_new = False
        is_created = self.is_created and log.end_offset > 0
        try:
            for segment in log.segments[::-1]:
                log_is_due = segment.synced_bytes < segment.size_bytes
                indexes_are_due = not segment.indexes_synced and (closing or segment is not active)
                if not log_is_due and not indexes_are_due:
                    if segment.base_offset < self.recovery_point:
                        break
                    continue
                is_new = is_new or segment.synced_bytes == 0 or indexes_are_due
                if indexes_are_due:
                    segment.write_indexes()
                    indexed.append(segment)
                    indexes.extend(path for path in segment.paths()[1:] if files.exists(path))
                if log_is_due:
                    is_open = segment.is_open or segment is active
                    descriptor = files.duplicate(segment.descriptor) if is_open else files.open(segment.log_path)
                    dirty.append((segment, descriptor, segment.size_bytes))
        except OSError:
            for _, descriptor, _ in dirty:
                files.close(descriptor)
            raise

        def flush() -> int:
            try:
                # The oldest first: a power cut in between must not leave a hole before what is durable.
                for _, descriptor, _ in reversed(dirty):
                    files.sync(descriptor)
                for path in indexes:
                    try:
                        files.sync_path(path)
                    except FileNotFoundError:
                        # Retention or compaction removed the segment meanwhile: nobody will look for its index.
                        continue
                if is_new:
                    files.sync_directory(log.directory)
                if is_created:
                    files.sync_directory(os.path.dirname(log.directory))
            finally:
                for _, descriptor, _ in dirty:
                    files.close(descriptor)
            if is_created:
                self.is_created = False
            for segment, _, size in dirty:
                segment.synced_bytes = max(segment.synced_bytes, size)
            for segment in indexed:
                segment.indexes_synced = True
            self.recovery_point = max(self.recovery_point, end_offset)
            return end_offset

        return flush

    def snapshot_in_background(self, offset: int) -> None:
        """After a roll: sync what was written, then write the snapshot for `offset` that says so."""
        log = self._log
        state = encode_snapshot(log.producers)
        flush = self.prepare()

        def make_durable() -> None:
            try:
                flush()
                self.write_snapshot(offset, state)
            except OSError as error:
                # The owner's thread may be in the middle of a write: only set the flag here, cut nothing.
                log.failed = log.failed or error
                logger.error("%s-%d takes no more writes: %s", log.topic, log.partition, error)

        log.files.in_background(make_durable)

    def write_snapshot(self, offset: int, state: bytes) -> None:
        """Write a snapshot durably. Of the others keep one: the last that is not past the start of the active segment.
        Recovery reads that segment whole, so it needs the state before it, however often the log was stopped since."""
        log = self._log
        log.files.replace(snapshot_path(log.directory, offset), state)
        known = sorted({*self.snapshots, offset})
        usable = [each for each in known[:-1] if each <= log.segments.active.base_offset]
        self.snapshots = [*(usable or known[:-1])[-1:], known[-1]]
        for each in known:
            if each not in self.snapshots:
                log.files.remove(snapshot_path(log.directory, each))

    def remove_snapshots_before(self, offset: int) -> None:
        log = self._log
        for each in [each for each in self.snapshots if each < offset]:
            self.snapshots.remove(each)
            log.files.remove(snapshot_path(log.directory, each))

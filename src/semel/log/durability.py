"""Making a log durable, off the thread that owns it.

Everything here is split in two: what to sync is decided on the log's thread, through descriptors of our own, and the
syncing itself may happen anywhere. A snapshot of producer state is written only after everything below its offset has
been synced: whoever finds one may rely on the log up to there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.log.segment import SNAPSHOT_SUFFIX, Segment, file_stem
from semel.log.snapshots import encode_snapshot

if TYPE_CHECKING:
    from semel.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def prepare_flush(log: PartitionLog, *, closing: bool = False) -> Callable[[], int]:
    """What to run to make everything written so far durable; it answers the offset reached.

    The active segment's indexes are left alone until the log is closed: recovery rebuilds them anyway. Those of the
    others are trusted from then on, so they are made durable even where the log itself already was.
    """
    files = log.files
    end_offset = log.end_offset
    active = log.segments[-1]
    dirty: list[tuple[Segment, int, int]] = []
    indexed: list[Segment] = []
    indexes: list[str] = []
    is_new = False
    is_created = log.is_created and log.end_offset > 0
    try:
        for segment in reversed(log.segments):
            log_is_due = segment.synced_bytes < segment.size_bytes
            indexes_are_due = not segment.indexes_synced and (closing or segment is not active)
            if not log_is_due and not indexes_are_due:
                if segment.base_offset < log.recovery_point:
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
            # The oldest first: a power cut in between must not leave a hole before what is safe.
            for _, descriptor, _ in reversed(dirty):
                files.sync(descriptor)
            for path in indexes:
                try:
                    files.sync_path(path)
                except FileNotFoundError:
                    # Retention or compaction let the segment go meanwhile: nobody will look for its index.
                    continue
            if is_new:
                files.sync_directory(log.directory)
            if is_created:
                files.sync_directory(os.path.dirname(log.directory))
        finally:
            for _, descriptor, _ in dirty:
                files.close(descriptor)
        if is_created:
            log.is_created = False
        for segment, _, size in dirty:
            segment.synced_bytes = max(segment.synced_bytes, size)
        for segment in indexed:
            segment.indexes_synced = True
        log.recovery_point = max(log.recovery_point, end_offset)
        return end_offset

    return flush


def snapshot_job(log: PartitionLog, offset: int) -> Callable[[], None]:
    """What to run in the background after a roll: sync what was written, then write the snapshot that says so."""
    state = encode_snapshot(log.producers)
    flush = prepare_flush(log)

    def make_durable() -> None:
        try:
            flush()
            write_snapshot(log, offset, state)
        except OSError as error:
            # Off the owner's thread, where a write may be under way: only the flag is raised, nothing is cut.
            log.failed = log.failed or error
            logger.error("%s-%d takes no more writes: %s", log.topic, log.partition, error)

    return make_durable


def write_snapshot(log: PartitionLog, offset: int, state: bytes) -> None:
    """Write a snapshot durably and keep one other: the last that is not past the active segment's beginning. Recovery
    reads that segment whole, so it needs what was known before it, however often the log was stopped since."""
    log.files.replace(f"{log.directory}/{file_stem(offset)}{SNAPSHOT_SUFFIX}", state)
    known = sorted({*log.snapshots, offset})
    usable = [each for each in known[:-1] if each <= log.segments[-1].base_offset]
    log.snapshots = [*(usable or known[:-1])[-1:], known[-1]]
    for each in known:
        if each not in log.snapshots:
            log.files.remove(f"{log.directory}/{file_stem(each)}{SNAPSHOT_SUFFIX}")

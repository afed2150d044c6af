"""Letting go: by age, by size, by request, and by truncation.

Segments go from the front, whole, and only below the high watermark. A segment's files are renamed first and removed
later, so that a crash at any point leaves a log that begins a little earlier or a little later, never one with a hole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.errors import ErrorCode, Refused
from semel.log import checkpoints, recovery
from semel.log.segment import SNAPSHOT_SUFFIX, Segment, file_stem

if TYPE_CHECKING:
    from semel.log.partition_log import PartitionLog


class Deletion:
    """Nothing below an offset (-1: the high watermark) is to be served any more. Wanted, written down, then done."""

    __slots__ = ("log", "target")

    def __init__(self, log: PartitionLog, offset: int) -> None:
        self.log = log
        self.target = log.high_watermark if offset == -1 else offset
        if self.target < 0 or self.target > log.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to {offset}: the high watermark is {log.high_watermark}",
            )

    def apply(self) -> int:
        """The log's start now."""
        self.log.log_start_offset = max(self.log.log_start_offset, self.target)
        return self.log.log_start_offset


def write_down(deletions: Sequence[Deletion]) -> None:
    """Durable before it is answered, with one write: a restart must not bring deleted records back."""
    by_directory: dict[str, list[Deletion]] = {}
    for deletion in deletions:
        if deletion.target > deletion.log.log_start_offset:
            by_directory.setdefault(os.path.dirname(deletion.log.directory), []).append(deletion)
    try:
        for directory, wanted in by_directory.items():
            starts = {(deletion.log.topic, deletion.log.partition): deletion.target for deletion in wanted}
            checkpoints.set_offsets(wanted[0].log.files, directory, checkpoints.LOG_START_OFFSETS, starts)
    except OSError as error:
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log's start cannot be written down: {error}") from error


def _write_down_start(log: PartitionLog, offset: int) -> None:
    starts = {(log.topic, log.partition): offset}
    checkpoints.set_offsets(log.files, os.path.dirname(log.directory), checkpoints.LOG_START_OFFSETS, starts)


def retain(log: PartitionLog, now_ms: int) -> int:
    """Drop what the topic's settings no longer want, and remove the files of what was dropped long enough ago."""
    _remove_doomed(log, now_ms)
    count = _breached(log, now_ms)
    if count == 0:
        return 0
    if count == len(log.segments):
        # Even the active segment is too old: an empty one takes its place first.
        log.roll(now_ms)
    drop_first(log, count, now_ms)
    return count


def _breached(log: PartitionLog, now_ms: int) -> int:
    """How many segments, from the front, are no longer wanted."""
    config = log.config
    by_policy = "delete" in config["cleanup.policy"]
    retention_ms: int = config["retention.ms"]
    retention_bytes: int = config["retention.bytes"]
    surplus = log.size_bytes - retention_bytes if retention_bytes >= 0 else -1
    count = 0
    for number, segment in enumerate(log.segments):
        is_last = number == len(log.segments) - 1
        next_base = log.end_offset if is_last else log.segments[number + 1].base_offset
        if next_base > log.high_watermark or (is_last and segment.size_bytes == 0):
            break
        before_the_start = not is_last and next_base <= log.log_start_offset
        too_old = by_policy and retention_ms >= 0 and now_ms - _largest_timestamp(log, segment) > retention_ms
        too_much = by_policy and surplus >= segment.size_bytes
        if not (before_the_start or too_old or too_much):
            break
        surplus -= segment.size_bytes
        count += 1
    return count


def _largest_timestamp(log: PartitionLog, segment: Segment) -> int:
    log.uses(segment)
    segment.load_largest_timestamp()
    if segment.max_timestamp_ms >= 0:
        return segment.max_timestamp_ms
    return log.files.modified_ms(segment.log_path)


def drop_first(log: PartitionLog, count: int, now_ms: int) -> None:
    """The first `count` segments are no longer part of the log."""
    for segment in log.replace_segments(0, count, []):
        doom(log, segment, now_ms)
    first = log.segments[0].base_offset
    log.log_start_offset = max(log.log_start_offset, first)
    for offset in [offset for offset in log.snapshots if offset < first]:
        log.snapshots.remove(offset)
        log.files.remove(f"{log.directory}/{file_stem(offset)}{SNAPSHOT_SUFFIX}")
    if log.leader_epochs.truncate_from_start(first):
        log.write_leader_epochs()


def doom(log: PartitionLog, segment: Segment, now_ms: int) -> None:
    """Rename a segment's files out of the log, the log itself first: without it the others mean nothing."""
    paths = []
    for path in segment.paths():
        if log.files.exists(path):
            log.files.rename(path, path + recovery.DELETED_SUFFIX)
            paths.append(path + recovery.DELETED_SUFFIX)
    log.doomed.append((now_ms + log.config["file.delete.delay.ms"], paths))


def _remove_doomed(log: PartitionLog, now_ms: int) -> None:
    waiting = []
    for due_ms, paths in log.doomed:
        if due_ms > now_ms:
            waiting.append((due_ms, paths))
            continue
        for path in paths:
            log.files.remove(path)
    log.doomed = waiting


def truncate_to(log: PartitionLog, offset: int, now_ms: int) -> None:
    """Cut the log so that `offset` comes next, then look at it again as after a crash.

    K-12153: producer state is put right before any watermark is looked at.
    """
    if offset >= log.end_offset:
        return
    log.files.drain()
    number = len(log.segments) - 1
    while number > 0 and log.segments[number].base_offset > offset:
        number -= 1
    for gone in reversed(log.replace_segments(number + 1, len(log.segments) - number - 1, [])):
        for path in gone.paths():
            log.files.remove(path)
    segment = log.segments[number]
    placed = segment.locate(offset)
    if placed is not None:
        segment.size_bytes = placed.position
        segment.cut_unfinished()
    segment.close()
    log.leader_epochs.truncate_from_end(offset)
    start_offset = min(log.log_start_offset, offset)
    if start_offset < log.log_start_offset:
        _write_down_start(log, start_offset)
    compacted_to = checkpoints.read_offsets(log.files, os.path.dirname(log.directory), checkpoints.CLEANER_OFFSETS)
    loaded = recovery.load(
        log.files,
        log.directory,
        log.leader_epochs,
        recovery.Circumstances(
            clean=False,
            now_ms=now_ms,
            index_interval_bytes=log.config["index.interval.bytes"],
            producer_id_expiration_ms=log.producer_id_expiration_ms,
            recovery_point=min(log.recovery_point, segment.base_offset),
            contiguous_from=compacted_to.get((log.topic, log.partition), 0),
            compacted="compact" in log.config["cleanup.policy"],
            log_start_offset=start_offset,
        ),
    )
    log.adopt(loaded)
    log.high_watermark = min(log.high_watermark, log.end_offset)
    log.producers.replicated_to(log.high_watermark)
    log.log_start_offset = start_offset
    log.write_leader_epochs()

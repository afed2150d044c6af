"""Removing old segments: by age, by size, or by DeleteRecords.

Segments go from the front, whole, and only below the high watermark. A segment's files are renamed first and removed
later, so a crash at any point leaves a log that begins a little earlier or a little later. A power failure may undo
some renames and not others, which leaves a hole. So where the log begins is on disk before them, as the start of its
first leader epoch: a start tells such a hole from damage by that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.errors import ErrorCode, Refused
from semel.log import checkpoints
from semel.log.file_names import DELETED_SUFFIX
from semel.log.segment import Segment

if TYPE_CHECKING:
    from semel.log.partition_log import PartitionLog


class Deletion:
    """One partition's part of a DeleteRecords request: checked when it is made, then written to disk, then applied."""

    __slots__ = ("log", "target")

    def __init__(self, log: PartitionLog, offset: int) -> None:
        """Nothing below `offset` is to be served any more; -1 stands for the high watermark."""
        self.log = log
        self.target = log.high_watermark if offset == -1 else offset
        if self.target < 0 or self.target > log.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to {offset}: the high watermark is {log.high_watermark}",
            )

    def apply(self) -> int:
        """Move the log's start. Returns where it is now."""
        self.log.log_start_offset = max(self.log.log_start_offset, self.target)
        return self.log.log_start_offset


def write_deletions(deletions: Sequence[Deletion]) -> None:
    """Make deletions durable with one write, before they are answered: a restart must not bring records back."""
    by_directory: dict[str, list[Deletion]] = {}
    for deletion in deletions:
        if deletion.target > deletion.log.log_start_offset:
            by_directory.setdefault(os.path.dirname(deletion.log.directory), []).append(deletion)
    try:
        for directory, wanted in by_directory.items():
            starts = {(deletion.log.topic, deletion.log.partition): deletion.target for deletion in wanted}
            checkpoints.set_offsets(wanted[0].log.files, directory, checkpoints.LOG_START_OFFSETS, starts)
    except OSError as error:
        raise Refused(
            ErrorCode.KAFKA_STORAGE_ERROR, f"the new start of the log cannot be written to disk: {error}"
        ) from error


class Retention:
    """Removes segments that the topic's settings no longer want: `log.retention`."""

    __slots__ = ("_log", "_removed")

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        #: Files of segments that left the log, and when to remove them.
        self._removed: list[tuple[int, list[str]]] = []

    def delete_records_before(self, offset: int) -> int:
        """DeleteRecords: nothing below `offset` (-1: the high watermark) is served any more. Returns the new start."""
        deletion = Deletion(self._log, offset)
        write_deletions([deletion])
        return deletion.apply()

    def enforce(self, now_ms: int) -> int:
        """Remove segments and idle producers that are past retention, and the files of segments that left the log
        long enough ago. Returns how many segments went."""
        log = self._log
        if log.failed is not None:
            return 0
        log.producers.expire(now_ms, log.producer_id_expiration_ms)
        try:
            self._remove_files(now_ms)
            count = self._count_expired(now_ms)
            if count == 0:
                return 0
            if count == len(log.segments):
                # Even the active segment is too old: an empty one takes its place first.
                log.roll(now_ms)
            self._drop_first(count, now_ms)
            return count
        except OSError as error:
            log.fail(error)
            raise log.refusal() from error

    def _count_expired(self, now_ms: int) -> int:
        """How many segments, from the front, are no longer wanted."""
        log = self._log
        config = log.config
        by_policy = "delete" in config["cleanup.policy"]
        retention_ms: int = config["retention.ms"]
        retention_bytes: int = config["retention.bytes"]
        surplus = log.segments.size_bytes - retention_bytes if retention_bytes >= 0 else -1
        count = 0
        for number, segment in enumerate(log.segments):
            is_last = number == len(log.segments) - 1
            next_base = log.end_offset if is_last else log.segments[number + 1].base_offset
            if next_base > log.high_watermark or (is_last and segment.size_bytes == 0):
                break
            before_the_start = not is_last and next_base <= log.log_start_offset
            too_old = by_policy and retention_ms >= 0 and now_ms - self._largest_timestamp(segment) > retention_ms
            too_much = by_policy and surplus >= segment.size_bytes
            if not (before_the_start or too_old or too_much):
                break
            surplus -= segment.size_bytes
            count += 1
        return count

    def _largest_timestamp(self, segment: Segment) -> int:
        self._log.segments.use(segment)
        segment.load_largest_timestamp()
        if segment.max_timestamp_ms >= 0:
            return segment.max_timestamp_ms
        return self._log.files.modified_ms(segment.log_path)

    def _drop_first(self, count: int, now_ms: int) -> None:
        log = self._log
        first = log.segments[count].base_offset
        if log.leader_epochs.truncate_from_start(first):
            log.write_leader_epochs()
        for segment in log.segments.replace(0, count, []):
            self.remove_later(segment, now_ms)
        log.log_start_offset = max(log.log_start_offset, first)
        log.flusher.remove_snapshots_before(first)

    def remove_later(self, segment: Segment, now_ms: int) -> None:
        """Rename a segment's files out of the log now, and remove them after `file.delete.delay.ms`. The log file goes
        first: without it the others mean nothing."""
        log = self._log
        paths = []
        for path in segment.paths():
            if log.files.exists(path):
                log.files.rename(path, path + DELETED_SUFFIX)
                paths.append(path + DELETED_SUFFIX)
        self._removed.append((now_ms + log.config["file.delete.delay.ms"], paths))

    def _remove_files(self, now_ms: int) -> None:
        waiting = []
        for due_ms, paths in self._removed:
            if due_ms > now_ms:
                waiting.append((due_ms, paths))
                continue
            for path in paths:
                self._log.files.remove(path)
        self._removed = waiting

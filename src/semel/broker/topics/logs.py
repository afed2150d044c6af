"""The files of all partitions: how logs are opened, recovered, checkpointed, closed and removed.

Guarantees:

- After a clean stop a log is opened when it is first needed, so a start does not take longer with more partitions.
  After a crash every log is recovered before the first request is served.
- What the last clean stop left is compared with what is there. A difference is reported at the start.
- A directory left by an earlier topic of the same name is set aside, not adopted. A deleted topic's checkpoints are
  deleted with it.
- A clean stop is claimed only if every log was closed without a failure and no partition is offline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from semel.broker.data_directory import begun_directories, partition_directories
from semel.errors import Refused
from semel.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    DamagedCheckpoint,
    machine_stayed_up,
    machine_went_down,
    note_machine,
    read_offsets,
    was_written_with_fsync,
    write_offsets,
)
from semel.log.file_names import LOG_SUFFIX, SNAPSHOT_SUFFIX, file_stem
from semel.log.manifest import Manifest, Marks, differs, encode_marks, restore_checkpoints
from semel.log.opening import ensure_topic_id, is_named_by_manifest, open_partition_log, read_topic_id
from semel.log.partition_log import PartitionLog
from semel.log.snapshots import DamagedSnapshot, decode_snapshot

if TYPE_CHECKING:
    from semel.broker.durability import Durability
    from semel.broker.topics.partition import Partition
    from semel.config import Values
    from semel.environment import Environment
    from semel.log.files import Files

logger = logging.getLogger(__name__)

#: No broker hands out ids as high as this. A client that makes up its own may use one.
MADE_UP_PRODUCER_ID = 2**48
#: How many logs are closed at once when the broker stops.
CLOSING_THREADS = 32
#: The longest name that a file system allows.
DIRECTORY_NAME_MAX = 255


class TopicLogs:
    """The partitions' directories in one data directory."""

    def __init__(
        self,
        directory: Path,
        settings: Values,
        files: Files,
        environment: Environment,
        durability: Durability,
        *,
        clean: bool,
        manifest: Manifest | None = None,
        manifest_before: Manifest | None = None,
        is_replicated: bool = False,
    ) -> None:
        """`is_replicated`: the partitions have replicas on other brokers, and their high watermarks are kept apart."""
        self.directory = directory
        #: The broker's settings; replaced when they change.
        self.settings = settings
        self.files = files
        self.environment = environment
        self._now_ms = environment.now_ms
        self._durability = durability
        self._clean = clean
        #: What the last clean stop left of partitions that were not opened since.
        self._manifest = manifest or Manifest()
        #: After a crash: what the last clean stop left. Files may have been written since.
        self._manifest_before = manifest_before or Manifest()
        self._is_replicated = is_replicated
        self._machine_went_down = self._same_boot = False
        self._may_lack_writes = False
        self._recovery_points: dict[tuple[str, int], int] = {}

    # Starting

    def load(self, partitions: Iterable[Partition]) -> None:
        """Get ready to open the logs of these partitions; after a crash, recover every one of them."""
        partitions = list(partitions)
        restore_checkpoints(self.files, self.directory, self._manifest)
        if not self._clean:
            self._machine_went_down = machine_went_down(self.files, self.directory)
            self._same_boot = machine_stayed_up(self.files, self.directory)
            self._may_lack_writes = self._machine_went_down and not was_written_with_fsync(self.files, self.directory)
        if self._is_replicated:
            self._set_aside_foreign({each.directory.name: each.topic.topic_id for each in partitions if each.is_local})
        here = {(each.topic.name, each.index) for each in partitions if each.is_local}
        points = read_offsets(self.files, self.directory, RECOVERY_POINTS)
        # The line of a deleted topic must not count for a later topic of the same name, nor that of a replica that was
        # moved away for its return.
        self._recovery_points = {key: offset for key, offset in points.items() if key in here}
        for name in self.files.names(self.directory):
            if name.endswith("-delete"):
                self.files.remove_later(self.directory / name)
        if not self._clean:
            for partition in partitions:
                if partition.has_files or (partition.topic.name, partition.index) in self._recovery_points:
                    _open_or_stay_offline(partition)
        if not self._is_replicated:
            note_machine(self.files, self.directory)

    def note_machine(self) -> None:
        """In a cluster: remember the current boot of the machine, surely on disk, for others rely on what this broker
        says to have. By now it has left the in-sync sets for what it lost: a start that is broken off before does that
        again (E4)."""
        with_fsync = self.settings["semel.durability"] == "fsync"
        note_machine(self.files, self.directory, with_fsync=with_fsync, durable=True)

    async def compare_with_manifest(
        self, partitions: Iterable[Partition], still_exists: Callable[[Partition], bool]
    ) -> None:
        """Open the logs whose files differ from what the last clean stop left, so that damage is reported at a start
        and not when somebody first asks. One partition after the other, with requests served in between."""
        for partition in list(partitions):
            expected = self._expected(partition)
            if expected is None or partition.open_log is not None:
                continue
            try:
                is_different = differs(self.files.sizes(partition.directory), expected)
            except OSError:
                is_different = True
            if is_different and still_exists(partition):
                _open_or_stay_offline(partition)
            await asyncio.sleep(0)

    def open(self, partition: Partition) -> PartitionLog:
        """Open a partition's log, recovering it if the last stop was not clean."""
        topic = partition.topic
        promises_fsync = self._durability.promises_fsync(topic)
        lost = self._may_lack_writes if self._is_replicated else self._machine_went_down and not promises_fsync
        log = open_partition_log(
            partition.directory,
            topic.name,
            partition.index,
            topic.values,
            self._now_ms(),
            topic_id=topic.topic_id,
            clean=self._clean,
            files=self.files,
            recovery_point=self._recovery_points.get((topic.name, partition.index)),
            producer_id_expiration_ms=self.settings["producer.id.expiration.ms"],
            unsynced_may_be_lost=lost,
            expected=self._expected(partition),
            before=self._manifest_before.of_partition(partition.directory.name),
            chance=self.environment.chance,
            is_replicated=self._is_replicated,
            committed_is_there=not self._machine_went_down,
            same_boot=self._same_boot,
        )
        self._manifest.partitions.pop(partition.directory.name, None)  # from here on the log knows better
        log.epochs_need_fsync = promises_fsync or not self._is_replicated
        if promises_fsync and self._is_replicated:
            log.topic_id_is_on_disk = log.epoch_is_on_disk = False  # before the first batch they are
        log.verifies_transactions = self.settings["transaction.partition.verification.enable"]
        log.high_watermark_follows_end = self._durability.high_watermark_follows_end and not self._is_replicated
        if not self._clean and not self._durability.high_watermark_follows_end:
            # A crash leaves records that were never fsynced. Nobody may see one that could still be lost.
            try:
                log.flusher.flush_what_a_crash_left(same_boot=not self._machine_went_down)
            except Refused:
                log.segments.close()  # whoever asks next opens it again
                raise
        return log

    def _expected(self, partition: Partition) -> Marks | None:
        return self._manifest.of_partition(partition.directory.name)

    def highest_producer_id(self, partitions: Iterable[Partition]) -> int:
        """The highest producer id in any snapshot; -1 if there is none."""
        highest = -1
        for partition in partitions:
            for name in self.file_sizes(partition):
                if not name.endswith(SNAPSHOT_SUFFIX):
                    continue
                with suppress(DamagedSnapshot, OSError):
                    snapshot = self.files.read(partition.directory / name)
                    ids = [entry.producer_id for entry in decode_snapshot(snapshot)]
                    highest = max([highest, *(one for one in ids if one < MADE_UP_PRODUCER_ID)])
        return highest

    def file_sizes(self, partition: Partition) -> dict[str, int]:
        """Every file of a partition and its size, in the order of their names; empty without a directory."""
        return dict(sorted(self.files.sizes(partition.directory).items())) if partition.has_files else {}

    # Running

    def checkpoint_recovery_points(self, partitions: Iterable[Partition]) -> None:
        """Write down how far each log is known to be on disk, so that recovery begins there."""
        for partition in partitions:
            self.expect(partition)
        write_offsets(self.files, self.directory, RECOVERY_POINTS, self._recovery_points)

    def checkpoint_high_watermarks(self, partitions: Iterable[Partition]) -> None:
        """Write down how far each log is committed (R11). Nobody relies on it after a power failure: a follower that
        knows less truncates no more."""
        offsets = {
            (partition.topic.name, partition.index): partition.open_log.high_watermark
            for partition in partitions
            if partition.open_log is not None
        }
        known = read_offsets(self.files, self.directory, HIGH_WATERMARKS)
        write_offsets(self.files, self.directory, HIGH_WATERMARKS, {**known, **offsets}, durable=False)

    @property
    def may_lack_writes(self) -> bool:
        """Whether the machine went down in a run without fsync: what was acknowledged may be gone (E4). Known after
        `load`."""
        return self._may_lack_writes

    def are_gone(self, log: PartitionLog) -> bool:
        """Whether a log's files were removed under the running broker."""
        return not self.files.exists(log.segments[-1].log_path)

    def expect(self, partition: Partition) -> None:
        """The next start has to find the directory of this partition if it is open now, and so much of its log. Known
        from when the recovery points are written next."""
        if partition.open_log is not None:
            self._recovery_points[partition.topic.name, partition.index] = partition.open_log.flusher.recovery_point

    def set_aside_strays(self, new: list[tuple[str, int, int]]) -> None:
        """Rename directories that are in the way of new partitions: (topic, first partition, one after the last)."""
        for name, first, end in new:
            for index in range(first, end):
                directory = self.directory / f"{name}-{index}"
                if self.files.exists(directory):
                    self.files.rename(directory, self._renamed(directory, "stray"))

    def _set_aside_foreign(self, here: dict[str, UUID]) -> None:
        """Rename the directories of partitions that the cluster does not have on this broker any more: their topic was
        deleted, or they were moved, while the broker was away. `here` are those that it has, with their topic's id.

        They are not removed: what is known of the cluster may be older than what the disk knows. But where a kill left
        a directory without a log there is nothing to lose, nor to find for whoever uses the name next.
        """
        for path in list(begun_directories(self.files, self.directory)):
            gone = self._renamed(path, "delete")  # which `load` removes
            self.files.rename(path, gone)
        for path in list(partition_directories(self.files, self.directory)):
            directory = Path(path)
            wanted = here.get(directory.name)
            if wanted is not None and self._may_be_of(directory, wanted):
                continue
            aside = self._renamed(directory, "stray")
            topic, _, index = directory.name.rpartition("-")
            whose = (topic, int(index))
            self._forget_recovery_points(lambda key, whose=whose: key == whose)  # type: ignore[misc]
            self.files.rename(directory, aside)
            self._manifest.partitions.pop(directory.name, None)
            self._forget_offsets(lambda key, whose=whose: key == whose)  # type: ignore[misc]
            logger.warning(
                "%s is no replica that the cluster has here: it is set aside as %s. Remove it when nobody needs it",
                directory.name, aside,
            )

    async def set_aside(self, partition: Partition) -> Path | None:
        """Rename what is left of a partition, so that it begins anew. Returns the new name, if there was something."""
        whose = (partition.topic.name, partition.index)
        self._manifest.partitions.pop(partition.directory.name, None)
        self._manifest_before.partitions.pop(partition.directory.name, None)
        self._forget_recovery_points(lambda key: key == whose)
        aside = None
        if self.files.exists(partition.directory):
            aside = self._renamed(partition.directory, "stray")
            await asyncio.wrap_future(self.files.in_background(partial(self._move, partition.directory, aside)))
        self._forget_offsets(lambda key: key == whose)
        return aside

    def _move(self, directory: Path, aside: Path) -> None:
        self.files.rename(directory, aside)
        self.files.sync_directory(self.directory)

    def _may_be_of(self, directory: Path, wanted: UUID) -> bool:
        """Whether a directory is to be opened as one of this topic's. If nothing says whose it is, it is not, unless
        others rely on what is in it: then opening it finds the damage."""
        expected = self._manifest.of_partition(directory.name)
        try:
            return read_topic_id(self.files, str(directory), expected) == wanted
        except (OSError, DamagedCheckpoint):
            if is_named_by_manifest(wanted, expected):
                return True
            # It may be that of an earlier topic of this name. After a power loss without fsync this broker leaves the
            # in-sync sets (E4) and fetches everything again; a log without records has nothing to lose.
            return not self._may_lack_writes and self._has_records(directory)

    def name_partitions(self, partitions: Iterable[Partition]) -> None:
        """Before they become replicas: each directory says whose it is. Alone, the broker knows that without them."""
        for partition in partitions:
            if partition.has_files:
                expected = self._expected(partition)
                ensure_topic_id(self.files, str(partition.directory), partition.topic.topic_id, expected)

    def _has_records(self, directory: Path) -> bool:
        first, sizes = file_stem(0) + LOG_SUFFIX, self.files.sizes(directory)
        return any(name.endswith(LOG_SUFFIX) and (size or name != first) for name, size in sizes.items())

    async def remove_partition(self, partition: Partition) -> None:
        """Remove the directory and checkpoints of a partition that is not on this broker any more."""
        gone = (partition.topic.name, partition.index)
        await self._remove([partition.directory], lambda key: key == gone, str(partition))

    async def remove(self, partitions: list[Partition], topic_names: set[str]) -> None:
        """Remove the directories and checkpoints of deleted topics. Nobody waits for the data to be gone."""
        await self._remove([each.directory for each in partitions], lambda key: key[0] in topic_names, "deleted topics")

    async def _remove(self, directories: list[Path], is_gone: Callable[[tuple[str, int]], bool], what: str) -> None:
        try:
            self._forget_recovery_points(is_gone)
        except OSError as error:
            logger.error("the checkpoints in %s still name %s: %s", self.directory, what, error)
        # After everything that still writes into these directories, and before a new topic of the same name.
        await asyncio.wrap_future(self.files.in_background(partial(self._remove_directories, directories)))
        try:
            self._forget_offsets(is_gone)
        except OSError as error:
            logger.error("the checkpoints in %s still name %s: %s", self.directory, what, error)

    def forget(self, partition: Partition) -> None:
        """Expect nothing of a deleted partition any more."""
        self._manifest.partitions.pop(partition.directory.name, None)

    def _remove_directories(self, directories: list[Path]) -> None:
        for directory in directories:
            try:
                if self.files.exists(directory):
                    deleted = self._renamed(directory, "delete")
                    self.files.rename(directory, deleted)
                    self.files.remove_later(deleted)
            except OSError as error:
                logger.error("%s of a deleted topic could not be removed, remove it yourself: %s", directory, error)
        if self.settings["semel.durability"] == "fsync":
            # Else it could be back after a power loss, where a later topic of the same name has its data.
            try:
                self.files.sync_directory(self.directory)
            except OSError as error:
                logger.error("deleted topics may be back in %s after a power loss: %s", self.directory, error)

    def _forget_recovery_points(self, is_gone: Callable[[tuple[str, int]], bool]) -> None:
        """Before a directory goes: a start that finds such a line and no directory takes that for damage. A directory
        without a line is only read whole."""
        points = self._recovery_points
        self._recovery_points = {key: offset for key, offset in points.items() if not is_gone(key)}
        self._forget_lines(RECOVERY_POINTS, is_gone)

    def _forget_offsets(self, is_gone: Callable[[tuple[str, int]], bool]) -> None:
        """A later topic of the same name must not inherit where this one's logs began or were compacted to. After the
        directory is gone: until then they may be needed."""
        for checkpoint in (LOG_START_OFFSETS, CLEANER_OFFSETS, HIGH_WATERMARKS):
            self._forget_lines(checkpoint, is_gone)

    def _forget_lines(self, checkpoint: str, is_gone: Callable[[tuple[str, int]], bool]) -> None:
        offsets = read_offsets(self.files, self.directory, checkpoint)
        kept = {key: offset for key, offset in offsets.items() if not is_gone(key)}
        if len(kept) < len(offsets):
            write_offsets(self.files, self.directory, checkpoint, kept)

    # Stopping

    def close(self, partitions: Iterable[Partition], entries: Callable[[], list[str]]) -> Manifest | None:
        """Close every open log. Returns what the next start has to find, or None if this stop is not clean.

        `entries` gives the entries of the metadata store.
        """
        partitions = list(partitions)
        logs = [log for partition in partitions if (log := partition.open_log) is not None]
        self.files.drain()
        now_ms = self._now_ms()
        # Each close waits for the disk several times. Together they wait for the same commits of the file system.
        with self.environment.threads(CLOSING_THREADS, "semel-close") as threads:
            for closed in [threads.submit(log.close, now_ms) for log in logs]:
                closed.result()
        clean = all(log.failed is None for log in logs)
        clean = clean and all(partition.offline is None for partition in partitions)
        self.checkpoint_recovery_points(partitions)
        if self._is_replicated:
            self.checkpoint_high_watermarks(partitions)
        left = Manifest(entries=entries())
        for partition in partitions:
            name = partition.directory.name
            if partition.open_log is not None and partition.open_log.marks is not None:
                left.partitions[name] = encode_marks(partition.open_log.marks)
            elif name in self._manifest.partitions:
                left.partitions[name] = self._manifest.partitions[name]
            partition.retire()
        self.stop_removing()
        return left if clean else None

    def stop_removing(self) -> None:
        """End the thread that removes files."""
        self.files.stop_removing()

    def _renamed(self, directory: Path, what: str) -> Path:
        """A name for the directory of a partition that is none any more. A long topic name loses its end, as in Kafka:
        with the suffix it would be longer than a file system allows."""
        _, dash, index = directory.name.rpartition("-")
        suffix = f"{dash}{index}.{self.environment.new_uuid().hex}-{what}"
        topic = directory.name.removesuffix(dash + index)
        return directory.with_name(topic[: DIRECTORY_NAME_MAX - len(suffix)] + suffix)


def _open_or_stay_offline(partition: Partition) -> None:
    with suppress(Refused):  # then it is offline, which was logged; requests get the error
        _ = partition.own_log



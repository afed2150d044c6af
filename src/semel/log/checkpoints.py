"""The small text files beside the segments and at the top of a data directory, in Apache Kafka's formats.

- `partition.metadata`: the topic id, so that a directory is never taken for a later topic of the same name.
- `leader-epoch-checkpoint`: where each leader epoch began.
- `log-start-offset-checkpoint`, `recovery-point-offset-checkpoint`, `replication-offset-checkpoint`,
  `cleaner-offset-checkpoint`: one offset per partition, for the whole data directory.
- `.kafka_cleanshutdown`: the last shutdown was clean.
- `.semel_boot_id` (our own): the boot of the machine in which the logs were last written.
- `.semel_manifest`, `.semel_manifest_before` (our own, see `manifest`): what the last clean stop left.
"""

from __future__ import annotations

import base64
import itertools
import logging
import os
import uuid
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path

from semel.log.files import Files

logger = logging.getLogger(__name__)

PARTITION_METADATA = "partition.metadata"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
#: Checkpoints with a line per partition. A new topic must not inherit the lines of a deleted one of the same name.
OF_PARTITIONS = (LOG_START_OFFSETS, RECOVERY_POINTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOT_ID = ".semel_boot_id"
MANIFEST = ".semel_manifest"
#: The manifest of the last clean stop, while the broker runs and after a crash.
MANIFEST_BEFORE = ".semel_manifest_before"
#: The files that a damaged partition had at the last clean stop; stays in its directory until they are restored.
EXPECTED_FILES = ".semel_expected"

#: Apache Kafka in ZooKeeper mode writes the same values, in the other order.
_OUR_MARK = b'{"brokerEpoch":-1,"version":0}'
#: Follows the boot in `.semel_boot_id` where a replica is written with semel.durability=fsync.
_WITH_FSYNC = b"fsync\n"
_BOOT_ID_OF_LINUX = "/proc/sys/kernel/random/boot_id"

NO_TOPIC_ID = uuid.UUID(int=0)


class DamagedCheckpoint(Exception):
    """A checkpoint file whose text is not what was written."""


# Topic ids


def topic_id_text(topic_id: uuid.UUID) -> str:
    """As Kafka writes it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_from_text(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    return f"version: 0\ntopic_id: {topic_id_text(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> uuid.UUID:
    lines = data.decode("utf-8", "replace").splitlines()
    try:
        fields = dict(line.split(": ", 1) for line in lines if line)
        if fields["version"] != "0":
            raise DamagedCheckpoint(f"version {fields['version']} is not known")
        return topic_id_from_text(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise DamagedCheckpoint(f"it does not name a topic id: {error}") from None


# Leader epochs


class LeaderEpochs:
    """Which leader epoch began at which offset."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or ()]
        self._starts = [start for _, start in entries or ()]

    @property
    def latest(self) -> int:
        """-1 before the first."""
        return self._epochs[-1] if self._epochs else -1

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """An epoch begins. True if it is new. An earlier epoch that wrote nothing is removed."""
        if epoch <= self.latest:
            return False
        while self._starts and self._starts[-1] >= start_offset:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest epoch that is not above `epoch`, its end offset). As Kafka: before the first epoch, `epoch`
        itself and the log's start; after the last one, or for no epoch (-1), (-1, -1)."""
        if epoch == -1 or not self._epochs or epoch > self.latest:
            return -1, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        found = bisect_right(self._epochs, epoch)
        if found == 0:
            return epoch, self._starts[0]
        return self._epochs[found - 1], self._starts[found]

    def epoch_at(self, offset: int) -> int:
        found = bisect_right(self._starts, offset)
        return self._epochs[found - 1] if found else -1

    def truncate_from_end(self, end_offset: int) -> bool:
        changed = False
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            changed = True
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Remove the epochs before the log's start. The epoch that covers the start begins there now."""
        found = bisect_right(self._starts, start_offset)
        if found == 0 or (found == 1 and self._starts[0] >= start_offset):
            return False
        epoch = self._epochs[found - 1]
        self._epochs[:found] = [epoch]
        self._starts[:found] = [start_offset]
        return True


def encode_leader_epochs(entries: list[tuple[int, int]]) -> bytes:
    return "".join([f"0\n{len(entries)}\n", *(f"{epoch} {start}\n" for epoch, start in entries)]).encode()


def decode_leader_epochs(data: bytes) -> list[tuple[int, int]]:
    if not data.endswith(b"\n"):
        raise DamagedCheckpoint("its end is missing")  # a number may have lost digits
    rows = [(int(epoch), int(start)) for epoch, start in _rows(data, 2)]
    for earlier, later in itertools.pairwise(rows):
        if later[0] <= earlier[0] or later[1] < earlier[1]:
            raise DamagedCheckpoint(f"epoch {later[0]} at {later[1]} cannot follow {earlier[0]} at {earlier[1]}")
    return rows


def read_leader_epochs(files: Files, directory: str) -> LeaderEpochs | None:
    """The leader epochs of a partition; None when the file is missing or torn. It is not fsynced when a partition is
    created."""
    path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
    try:
        entries = decode_leader_epochs(files.read(path))
    except (FileNotFoundError, DamagedCheckpoint) as error:
        logger.warning("%s is rebuilt from the log: %s", path, error)
        return None
    return LeaderEpochs(entries) if entries else None


# Offsets per partition, for a data directory


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    return "".join([f"0\n{len(lines)}\n", *lines]).encode()


def decode_offsets(data: bytes) -> dict[tuple[str, int], int]:
    if not data:
        return {}  # Kafka creates the file empty, before it has anything to write
    return {(topic, int(partition)): int(offset) for topic, partition, offset in _rows(data, 3)}


def read_offsets(files: Files, data_directory: Path | str, name: str) -> Mapping[tuple[str, int], int]:
    """The offsets in a checkpoint of the data directory; none when the file is missing or cannot be read.

    Every log that is opened asks, and the file has a line for every partition. So it is parsed only when it changed.
    """
    path = os.path.join(data_directory, name)
    if not files.exists(path):
        return {}
    try:
        return files.read_parsed(path, decode_offsets)
    except DamagedCheckpoint as damage:
        # As in Kafka: a checkpoint only saves work or remembers a deletion. The broker starts without it.
        logger.error("%s is ignored: %s", path, damage)
        return {}


def write_offsets(
    files: Files, data_directory: Path | str, name: str, offsets: Mapping[tuple[str, int], int], *, durable: bool = True
) -> None:
    files.replace(os.path.join(data_directory, name), encode_offsets(offsets), durable=durable)


def set_offsets(
    files: Files, data_directory: Path | str, name: str, changes: Mapping[tuple[str, int], int]
) -> None:
    """Change the lines of some partitions, durably and with one write."""
    offsets = read_offsets(files, data_directory, name)
    changed = {**offsets, **changes}
    if changed != offsets:
        write_offsets(files, data_directory, name, changed)


def forget_offset(files: Files, data_directory: Path | str, name: str, partition: tuple[str, int]) -> None:
    offsets = read_offsets(files, data_directory, name)
    if partition in offsets:
        write_offsets(files, data_directory, name, {key: offset for key, offset in offsets.items() if key != partition})


def _rows(data: bytes, width: int) -> list[list[str]]:
    lines = data.decode("utf-8", "replace").splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
        rows = [line.split() for line in lines[2:] if line]
        for row in rows:
            for field in row[-2:]:
                int(field)
    except (IndexError, ValueError) as error:
        raise DamagedCheckpoint(f"it is no checkpoint: {error}") from None
    if version != 0:
        raise DamagedCheckpoint(f"version {version} is not known")
    if len(rows) != count or any(len(row) != width for row in rows):
        raise DamagedCheckpoint(f"it claims {count} entries and has {len(rows)}")
    return rows


# Clean shutdown


def mark_clean_shutdown(files: Files, data_directory: Path | str) -> None:
    files.replace(os.path.join(data_directory, CLEAN_SHUTDOWN), _OUR_MARK)


def marked_by_semel(files: Files, data_directory: Path | str) -> bool:
    """Whether the last clean shutdown was Semel's."""
    path = os.path.join(data_directory, CLEAN_SHUTDOWN)
    return files.exists(path) and files.read(path) == _OUR_MARK


def take_clean_shutdown_mark(files: Files, data_directory: Path | str) -> bool:
    """Whether the last shutdown was clean. Removes the mark: from now on a crash is noticed.

    The directory is fsynced either way. A process may have been killed after it removed the mark or made a partition's
    directory, and before its own fsync: whoever comes next relies on these names.
    """
    path = os.path.join(data_directory, CLEAN_SHUTDOWN)
    is_there = files.exists(path)
    if is_there:
        files.remove(path)
    files.sync_directory(data_directory)
    return is_there


# Restarts of the machine


def machine_went_down(files: Files, data_directory: Path | str) -> bool:
    """Whether the machine was restarted since `note_machine`. Only then can bytes be lost that were written but not
    fsynced. False where that is not known."""
    path = os.path.join(data_directory, BOOT_ID)
    return bool(_boot_id(files)) and files.exists(path) and not machine_stayed_up(files, data_directory)


def machine_stayed_up(files: Files, data_directory: Path | str) -> bool:
    """Whether the machine surely was not restarted since `note_machine`: what was written then is there."""
    path, boot_id = os.path.join(data_directory, BOOT_ID), _boot_id(files)
    return bool(boot_id) and files.exists(path) and files.read(path).startswith(boot_id)


def was_written_with_fsync(files: Files, data_directory: Path | str) -> bool:
    """Whether `note_machine` was told so: then nothing that was acknowledged is lost with the machine."""
    path = os.path.join(data_directory, BOOT_ID)
    return files.exists(path) and files.read(path).endswith(_WITH_FSYNC)


def note_machine(
    files: Files, data_directory: Path | str, *, with_fsync: bool = False, durable: bool = False
) -> None:
    """Remember the current boot of the machine: what is written from now on belongs to it.

    `durable`: also if the machine goes down soon. What is there already may not be on disk, so it is written again.
    """
    path = os.path.join(data_directory, BOOT_ID)
    boot_id = _boot_id(files)
    noted = boot_id + _WITH_FSYNC if with_fsync else boot_id
    if boot_id and (durable or not (files.exists(path) and files.read(path) == noted)):
        files.replace(path, noted, durable=durable)


def _boot_id(files: Files) -> bytes:
    """Linux's id of the current boot; empty on other systems."""
    return files.read(_BOOT_ID_OF_LINUX) if files.exists(_BOOT_ID_OF_LINUX) else b""

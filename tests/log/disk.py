"""A partition log on a disk that does as the test says."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from semel.config import TOPIC, Values
from semel.log.files import Buffer, Files
from semel.log.manifest import Marks
from semel.log.opening import open_partition_log
from semel.log.partition_log import PartitionLog
from semel.machines.producing.verifications import Guard
from semel.records.batch import Batch, Record, build, read_records, split

NOW = 1_700_000_000_000


class InlineFiles(Files):
    """Background work is done at once: a test sees its outcome in the next line."""

    def in_background(self, job: Callable[[], None]) -> None:
        job()


class Killed(BaseException):
    """The process is gone: nothing after this line ran."""


class FaultyFiles(InlineFiles):
    """Fails, or dies, at the n-th change of the disk; `torn` of the bytes of a write still reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.fail_at: int | None = None
        self.fail_when: Callable[[str, str], bool] = lambda call, path: False
        self.error: BaseException = OSError(errno.ENOSPC, "no space left on device")
        self.torn = 0.0
        self.synced: list[str] = []
        self._paths: dict[int, str] = {}

    def _change(self, call: str, path: str) -> None:
        self.changes += 1
        if self.changes == self.fail_at or self.fail_when(call, path):
            raise self.error

    def open(self, path: str | os.PathLike[str], *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        self._paths[descriptor] = os.fspath(path)
        return descriptor

    def duplicate(self, descriptor: int) -> int:
        second = super().duplicate(descriptor)
        self._paths[second] = self._paths.get(descriptor, "")
        return second

    def write_at(self, descriptor: int, data: Buffer, position: int) -> None:
        try:
            self._change("write", self._paths.get(descriptor, ""))
        except BaseException:
            super().write_at(descriptor, memoryview(data)[: int(len(data) * self.torn)], position)
            raise
        super().write_at(descriptor, data, position)

    def write_parts_at(self, descriptor: int, parts: Sequence[Buffer], position: int) -> None:
        self.write_at(descriptor, b"".join(parts), position)

    def truncate(self, descriptor: int, size: int) -> None:
        self._change("truncate", self._paths.get(descriptor, ""))
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        self._change("sync", self._paths.get(descriptor, ""))
        self.synced.append(self._paths.get(descriptor, ""))

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        self._change("rename", os.fspath(target))
        super().rename(source, target)

    def remove(self, path: str | os.PathLike[str]) -> None:
        self._change("remove", os.fspath(path))
        super().remove(path)


def open_below(directory: Path) -> list[int]:
    """Descriptors of files in this directory, removed ones too."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one that lists them
        if path.startswith(f"{directory}{os.sep}"):
            found.append(int(name))
    return found


def close_below(directory: Path) -> None:
    """What the operating system does for a process that died with these files open."""
    for descriptor in open_below(directory):
        os.close(descriptor)


@contextmanager
def scratch() -> Iterator[str]:
    """A directory for one example of many; logs in it need not be closed."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            yield directory
        finally:
            close_below(Path(directory))


def settings(**changes: object) -> Values:
    """Topic settings by Kafka's names, with underscores for dots."""
    return TOPIC.parse({name.replace("_", "."): value for name, value in changes.items()})


def open_log(
    data: Path,
    *,
    clean: bool = True,
    files: Files | None = None,
    now_ms: int = NOW,
    partition: int = 0,
    recovery_point: int | None = None,
    unsynced_may_be_lost: bool = False,
    is_replicated: bool = False,
    expected: Marks | None = None,
    before: Marks | None = None,
    **changes: object,
) -> PartitionLog:
    return open_partition_log(
        data / f"t-{partition}",
        "t",
        partition,
        settings(**changes),
        now_ms,
        clean=clean,
        files=files or InlineFiles(),
        recovery_point=recovery_point,
        unsynced_may_be_lost=unsynced_may_be_lost,
        is_replicated=is_replicated,
        expected=expected,
        before=before,
    )


def batch(
    producer_id: int = -1,
    sequence: int = 0,
    *values: bytes | None,
    epoch: int = 0,
    transactional: bool = False,
    keys: Sequence[bytes | None] | None = None,
    codec: int = 0,
    timestamp_ms: int = NOW,
) -> bytes:
    """What a client would send."""
    given = values or (b"value",)
    return build(
        [(keys[i] if keys else b"key", value) for i, value in enumerate(given)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
        transactional=transactional,
        timestamp_ms=timestamp_ms,
    )


def send(log: PartitionLog, producer_id: int, sequence: int, *values: bytes | None, epoch: int = 0) -> int:
    """A transactional batch with its verification, as a broker does it; the offset it got."""
    guard: Guard | None = log.start_verification(producer_id, epoch, sequence)
    data = batch(producer_id, sequence, *values, epoch=epoch, transactional=True)
    return log.append(data, NOW, guard=guard).base_offset


def end(
    log: PartitionLog, producer_id: int, *, commit: bool, epoch: int = 0, version: int = 1, coordinator: int = 0
) -> int:
    return log.append_marker(producer_id, epoch, commit, coordinator, version, NOW).base_offset


def stored(log: PartitionLog) -> list[Batch]:
    """Every batch that is in the files."""
    return [found for segment in log.segments for found in segment.batches()]


def read_all(log: PartitionLog, isolation: int = 0, max_bytes: int = 1 << 20) -> list[Record]:
    """What a consumer ends up with: aborted data and control records left out, as every client does."""
    records: list[Record] = []
    offset = log.log_start_offset
    while True:
        answer = log.reader.read(offset, max_bytes, isolation)
        batches = split(answer.data)
        if not batches:
            return records
        aborted = sorted(answer.aborted or [], key=lambda entry: entry[1])
        open_aborts: set[int] = set()
        for found in batches:
            while aborted and aborted[0][1] <= found.last_offset:
                open_aborts.add(aborted.pop(0)[0])
            if found.is_control:
                open_aborts.discard(found.producer_id)
            elif not (found.is_transactional and found.producer_id in open_aborts):
                records.extend(record for record in read_records(found) if record.offset >= offset)
        offset = batches[-1].next_offset


def crash(log: PartitionLog) -> None:
    """The process dies: descriptors close, nothing is written."""
    for segment in log.segments:
        segment.close()

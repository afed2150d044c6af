"""A partition whose files were damaged: it opens with what was written, or a part from its beginning, or says so.

The log was written once, by code, on a disk that is a dictionary. Each input is some damage to its files, and how the
broker had stopped. Whatever is read afterwards must be what was there, from the first record on: never something else,
never with a hole.
"""

from __future__ import annotations

import errno
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from semel.errors import Refused
from semel.log import manifest
from semel.log.damage import DamagedLog, ForeignPartition
from semel.log.files import Buffer, Files
from semel.log.opening import open_partition_log
from semel.log.partition_log import PartitionLog
from semel.records.batch import Record
from tests.fuzz.target import INTERESTING, Draw, Target, expect
from tests.log.disk import NOW, batch, crash, end, open_log, read_all, send, settings

DIRECTORY = "/data/t-0"
_SETTINGS = settings(index_interval_bytes=1)


class DiskOfMemory(Files):
    """A disk that is a dictionary: path -> bytes."""

    def __init__(self, content: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.content = {path: bytearray(data) for path, data in (content or {}).items()}
        self._open: dict[int, bytearray] = {}
        self._next = 3

    def open(self, path: Any, *, create: bool = False) -> int:
        path = os.fspath(path)
        if path not in self.content:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.content[path] = bytearray()
        self._next += 1
        self._open[self._next] = self.content[path]
        return self._next

    open_to_read = open

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def duplicate(self, descriptor: int) -> int:
        self._next += 1
        self._open[self._next] = self._open[descriptor]
        return self._next

    def write_at(self, descriptor: int, data: Buffer, position: int) -> None:
        file = self._open[descriptor]
        file.extend(bytes(max(position - len(file), 0)))
        file[position : position + len(data)] = data

    def write_parts_at(self, descriptor: int, parts: Any, position: int) -> None:
        self.write_at(descriptor, b"".join(parts), position)

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        expect(0 <= size <= 1 << 26 and position >= 0, f"{size} bytes are read at {position}")
        return bytes(self._open[descriptor][position : position + size])

    def truncate(self, descriptor: int, size: int) -> None:
        file = self._open[descriptor]
        del file[size:]
        file.extend(bytes(size - len(file)))

    def sync(self, descriptor: int) -> None: ...

    def read(self, path: Any) -> bytes:
        try:
            return bytes(self.content[os.fspath(path)])
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def read_parsed(self, path: Any, parse: Any) -> Any:
        return parse(self.read(path))

    def exists(self, path: Any) -> bool:
        path = os.fspath(path)
        return path in self.content or any(name.startswith(path + "/") for name in self.content)

    def size(self, path: Any) -> int:
        return len(self.read(path))

    def modified_ms(self, path: Any) -> int:
        return NOW

    def make_directory(self, path: Any) -> None: ...

    def sizes(self, directory: Any) -> dict[str, int]:
        start = os.fspath(directory) + "/"
        found = {path[len(start) :]: len(data) for path, data in self.content.items() if path.startswith(start)}
        return {name: size for name, size in found.items() if "/" not in name}

    def rename(self, source: Any, target: Any) -> None:
        self.content[os.fspath(target)] = self.content.pop(os.fspath(source))

    def remove(self, path: Any) -> None:
        self.content.pop(os.fspath(path), None)

    def sync_directory(self, path: Any) -> None: ...

    def in_background(self, job: Any) -> Any:
        job()


class Written(NamedTuple):
    """The log as it was left, and what is in it."""

    content: dict[str, bytes]
    names: list[str]
    marks: manifest.Marks
    records: list[Record]
    committed: list[Record]
    producers: dict[int, Any]
    recovery_point: int


def _fill(log: PartitionLog) -> None:
    log.append(batch(-1, 0, b"first", b"second"), NOW)
    send(log, 7, 0, b"to be aborted")
    log.append(batch(9, 0, b"x" * 40, codec=1), NOW)
    end(log, 7, commit=False)
    log.roll(NOW)
    send(log, 7, 1, b"to be committed")
    end(log, 7, commit=True)
    log.append(batch(9, 1, b"last of the second"), NOW)
    log.roll(NOW)
    log.append(batch(-1, 0, b"y"), NOW)
    send(log, 8, 0, b"still open")


@cache
def written(is_clean: bool) -> Written:
    disk = DiskOfMemory()
    log = open_log(Path("/data"), files=disk, index_interval_bytes=1)
    _fill(log)
    records, committed, producers = read_all(log, 0), read_all(log, 1), log.producers.facts()
    if is_clean:
        log.close(NOW)
    else:
        crash(log)
    content = {path: bytes(data) for path, data in disk.content.items()}
    names = sorted(name for name in content if name.startswith(DIRECTORY + "/"))
    marks = manifest.marks_of(disk, DIRECTORY, {}, disk.sizes(DIRECTORY))
    return Written(content, names, marks, records, committed, producers, log.flusher.recovery_point)


def damage(draw: Draw, was: Written) -> tuple[dict[str, bytes], set[str]]:
    """The files after something happened to them, and which were touched."""
    content, touched = dict(was.content), set()
    for _ in range(1 + draw.byte() % 3):
        name = draw.pick(was.names)
        data = bytearray(content.get(name, b""))
        kind = draw.byte() % 8
        at = draw.number(2) % (len(data) + 1)
        if kind == 0:
            content.pop(name, None)
        elif kind == 1:
            content[name] = bytes(data[:at])
        elif kind == 2:
            content[name] = bytes(data) + draw.short(40)
        elif kind == 3:
            piece = draw.pick(INTERESTING)
            data[at : at + len(piece)] = piece[: len(data) - at]
            content[name] = bytes(data)
        elif kind == 4:
            content[name] = bytes(data[:at]) + bytes(len(data) - at)
        elif kind == 5:
            content[name] = content.get(draw.pick(was.names), b"")
        else:
            piece = draw.short(16)
            data[at : at + len(piece)] = piece[: len(data) - at]
            content[name] = bytes(data)
        if content.get(name) != was.content.get(name):
            touched.add(name)
    return content, touched


def one(data: bytes) -> None:
    draw = Draw(data)
    how = draw.byte()
    is_clean, has_manifest = bool(how & 1), how & 3 == 3
    was = written(is_clean)
    content, touched = damage(draw, was)
    disk = DiskOfMemory(content)
    try:
        log = open_partition_log(
            DIRECTORY, "t", 0, _SETTINGS, NOW,
            clean=is_clean, files=disk, recovery_point=was.recovery_point if how & 4 else None,
            expected=was.marks if has_manifest else None,
        )
    except (DamagedLog, ForeignPartition):
        return
    is_first_gone = not has_manifest and f"{DIRECTORY}/{0:020}.log" not in content
    starts_at = log.log_start_offset if is_first_gone else 0
    # A snapshot of another offset in the place of this one is a valid one, as far as anybody can tell.
    is_swapped = any(name.endswith(".snapshot") and content.get(name) in was.content.values() for name in touched)
    look(log, was, touched, has_manifest=has_manifest, starts_at=starts_at, is_swapped=is_swapped)
    crash(log)
    expect(not disk._open, f"{len(disk._open)} files stay open")


def look(
    log: PartitionLog, was: Written, touched: set[str], *, has_manifest: bool, starts_at: int, is_swapped: bool
) -> None:
    """`starts_at`: without a manifest, a first segment that is missing was deleted because of its age."""
    for isolation, whole in ((0, was.records), (1, was.committed)):
        expected = [record for record in whole if record.offset >= starts_at]
        # Without a manifest nothing tells an index of aborted transactions from another one that could be.
        is_unknown = not has_manifest and any(name.endswith(".txnindex") for name in touched)
        if isolation and (is_unknown or is_swapped):
            continue
        try:
            found = read_all(log, isolation)
        except Refused:
            continue
        if found != expected[: len(found)]:
            expect(False, f"isolation {isolation}: read {found!r:.300} of {expected!r:.300} ({sorted(touched)})")
    if log.end_offset == was.records[-1].offset + 1 and starts_at == 0 and not is_swapped:
        expect(log.producers.facts() == was.producers, f"producer state is another ({sorted(touched)})")


def seeds() -> list[bytes]:
    found = []
    for is_clean in (True, False):
        for number in range(len(written(is_clean).names)):
            for kind in range(8):
                how = (3 if kind % 2 else 1) if is_clean else 4 * (kind % 2)
                found.append(
                    bytes([how, 0, number, kind, 0, 20 + 7 * kind, 9]) + b"\x05\xff\xff\xff\xff\xff\xff\xff\xff"
                )
    return found


TARGET = Target(
    "a partition with damaged files opens with a beginning of what was written, or says that it is damaged",
    one,
    seeds,
    max_bytes=64,
)

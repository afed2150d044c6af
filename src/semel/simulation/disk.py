"""A disk in memory behind the interface of `semel.log.files`, which forgets, tears, fails and fills up when told to.

What a power loss leaves is what a journalling file system may leave that promises nothing it was not asked for:

- Bytes that were fsynced stay. Of those written since, any beginning may be there, and a part of it may be zeros.
- Bytes that were overwritten since the last fsync may be the old or the new ones.
- A new, renamed or removed name is safe once its directory was fsynced. Until then each may be as it was before.
- After an fsync that failed, the bytes it was for, and those after them, are not safe: the system takes them for
  written, and a later fsync that succeeds says nothing about them. Only writing them again helps.

A process that is killed loses nothing: the system has what it wrote.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from semel.log.files import Buffer, Files, Path
from semel.testing.data_directory import DataDirectory

if TYPE_CHECKING:
    from concurrent.futures import Future

    from semel.simulation.machines import Machine, Process

_Parsed = TypeVar("_Parsed")

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: What the disk says it has.
CAPACITY_BYTES = 1 << 40
#: The size of the pieces in which a disk writes: within one, all or nothing is there.
_PIECE = 512


class ProcessDied(BaseException):
    """The process ended in the middle of this call: nothing after it has happened."""


class File:
    """The content of a file, and what of it is safe."""

    __slots__ = ("data", "locked_by", "lost_from", "modified_ms", "number", "safe_bytes", "undo")

    def __init__(self, number: int, now_ms: int) -> None:
        self.number = number
        self.data = bytearray()
        self.modified_ms = now_ms
        #: So many bytes at the beginning are safe, apart from those in `undo`.
        self.safe_bytes = 0
        #: Safe bytes that were overwritten or cut off since the last fsync: where, and what was there.
        self.undo: list[tuple[int, bytes]] = []
        #: From here on nothing is ever safe: an fsync failed.
        self.lost_from: int | None = None
        self.locked_by: object | None = None

    def write(self, data: Buffer, position: int, now_ms: int) -> None:
        content = self.data
        if position < self.safe_bytes:
            self.undo.append((position, bytes(content[position : min(position + len(data), self.safe_bytes)])))
        if position > len(content):
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data
        if self.lost_from is not None and position <= self.lost_from:
            self._written_again_to(position + len(data))
        self.modified_ms = now_ms

    def _written_again_to(self, end: int) -> None:
        """Everything up to here is to be written by the next fsync, whatever became of the last one."""
        assert self.lost_from is not None
        self.lost_from = None if end >= len(self.data) else max(self.lost_from, end)

    def truncate(self, size: int, now_ms: int) -> None:
        if size < self.safe_bytes:
            self.undo.append((size, bytes(self.data[size : self.safe_bytes])))
        if size <= len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))
        if self.lost_from is not None and size <= self.lost_from:
            self.lost_from = None
        self.modified_ms = now_ms

    def sync(self) -> None:
        self.safe_bytes = len(self.data) if self.lost_from is None else min(self.lost_from, len(self.data))
        self.undo.clear()

    def sync_failed(self) -> None:
        if self.lost_from is None:
            self.lost_from = min(self.safe_bytes, len(self.data))

    def lose_power(self, chance: Any) -> None:
        """What is found afterwards."""
        data = self.data
        for position, before in reversed(self.undo):
            if chance.random() < 0.5:
                if position > len(data):
                    data.extend(bytes(position - len(data)))
                data[position : position + len(before)] = before
        safe = min(self.safe_bytes, len(data))
        if len(data) > safe:
            left = safe if chance.random() < 0.4 else chance.randint(safe, len(data))
            if chance.random() < 0.3:
                left = min(len(data), -(-left // _PIECE) * _PIECE)
            del data[left:]
            if left > safe and chance.random() < 0.2:
                # The length was written, this piece of the content was not.
                begin = chance.randrange(safe, left)
                end = min(left, begin + _PIECE)
                data[begin:end] = bytes(end - begin)
        self.safe_bytes = len(data)
        self.undo.clear()
        self.lost_from = None
        self.locked_by = None


class Rot:
    """A bit that went bad. Nobody may have noticed yet: a file that is not read is not repaired."""

    __slots__ = ("_bad", "_good", "file", "position")

    def __init__(self, file: File, position: int, bit: int) -> None:
        self.file, self.position = file, position
        self._good = file.data[position]
        self._bad = file.data[position] = self._good ^ bit

    def restore(self) -> None:
        """As it was, unless somebody else has written there since."""
        if self.position < len(self.file.data) and self.file.data[self.position] == self._bad:
            self.file.data[self.position] = self._good


class Directory:
    """Names now, and names as they were when the directory was last fsynced."""

    __slots__ = ("names", "safe")

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.safe: dict[str, File | Directory] = {}

    def lose_power(self, chance: Any) -> None:
        for name in sorted(self.names.keys() | self.safe.keys()):
            now, before = self.names.get(name), self.safe.get(name)
            if now is not before and chance.random() < 0.5:
                if before is None:
                    del self.names[name]
                else:
                    self.names[name] = before
        self.safe = dict(self.names)
        for entry in self.names.values():
            entry.lose_power(chance)


class Disk:
    """The file system of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.root = Directory()
        self._number = 0
        #: What the next calls meet; see `faults.disk`. Called with the kind of call and the path: it may raise.
        self.obstacle: Callable[[str, str], None] | None = None
        #: How many bytes the disk still takes; None for as many as one likes.
        self.free_bytes: int | None = None
        self.writes = self.syncs = 0
        self.rotten: list[Rot] = []

    def new_file(self) -> File:
        self._number += 1
        return File(self._number, self.machine.now_ms())

    def find(self, path: str) -> File | Directory | None:
        found: File | Directory | None = self.root
        for part in path.split("/"):
            if part:
                if type(found) is not Directory:
                    return None
                found = found.names.get(part)
        return found

    def parent(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        found = self.find(above)
        if type(found) is not Directory:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return found, name

    def lose_power(self) -> None:
        self.root.lose_power(self.machine.chance)
        self.obstacle = None
        self.free_bytes = None

    def restore(self, name: str) -> None:
        """Somebody repairs the bits that went bad in files of this name."""
        for path, file in self.files():
            if path.endswith(f"/{name}"):
                for rot in self.rotten:
                    if rot.file is file:
                        rot.restore()

    def files(self, below: str = "") -> Iterator[tuple[str, File]]:
        """Every file and its path."""

        def walk(directory: Directory, path: str) -> Iterator[tuple[str, File]]:
            for name, entry in sorted(directory.names.items()):
                if type(entry) is Directory:
                    yield from walk(entry, f"{path}/{name}")
                elif type(entry) is File:
                    yield f"{path}/{name}", entry

        start = self.find(below)
        if type(start) is Directory:
            yield from walk(start, below.rstrip("/"))


class StoredData(DataDirectory):
    """A directory of a simulated disk, for whoever checks what was left in it."""

    def __init__(self, disk: Disk, root: str) -> None:
        super().__init__(root)
        self._disk = disk

    def _names(self, path: str, kind: type[File | Directory]) -> list[str]:
        found = self._disk.find(path)
        return sorted(n for n, entry in found.names.items() if type(entry) is kind) if type(found) is Directory else []

    def directories(self) -> list[str]:
        return self._names(self._root, Directory)

    def names(self, directory: str) -> list[str]:
        return self._names(f"{self._root}/{directory}", File)

    def read(self, path: str) -> bytes | None:
        found = self._disk.find(f"{self._root}/{path}")
        return bytes(found.data) if type(found) is File else None


class SimulatedFiles(Files):
    """The disk as one process sees it."""

    def __init__(self, disk: Disk, process: Process) -> None:
        super().__init__(process.new_threads)
        self._disk = disk
        self._process = process
        self._open: dict[int, tuple[File, str]] = {}
        self._next = 3
        self._dead = False
        self._kept: dict[str, tuple[int, int, object]] = {}
        self._in_order: dict[Future[None], None] = {}

    def die(self) -> None:
        """The process is gone: its locks are free, and nothing it still calls happens."""
        self._dead = True
        for file, _ in self._open.values():
            if file.locked_by is self:
                file.locked_by = None

    @property
    def open_files(self) -> int:
        return len(self._open)

    def _meet(self, call: str, path: str) -> None:
        if self._dead:
            raise ProcessDied
        if self._disk.obstacle is not None:
            self._disk.obstacle(call, path)
            if self._dead:
                raise ProcessDied

    def _descriptor(self, file: File, path: str) -> int:
        self._next += 1
        self._open[self._next] = file, path
        return self._next

    # Open files

    def open(self, path: Path, *, create: bool = False) -> int:
        path = os.fspath(path)
        self._meet("open", path)
        directory, name = self._disk.parent(path)
        found = directory.names.get(name)
        if found is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            if self._disk.free_bytes is not None and self._disk.free_bytes <= 0:
                raise OSError(errno.ENOSPC, "no space left on device", path)
            found = directory.names[name] = self._disk.new_file()
        if type(found) is not File:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return self._descriptor(found, path)

    def open_to_read(self, path: Path) -> int:
        return self._descriptor(self._file(os.fspath(path)), os.fspath(path))

    def _file(self, path: str) -> File:
        self._meet("read", path)
        if path == _BOOT_ID:
            file = File(0, 0)
            file.data += f"boot {self._disk.machine.boots}".encode()
            return file
        found = self._disk.find(path)
        if type(found) is not File:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return found

    def close(self, descriptor: int) -> None:
        if self._dead:
            return
        try:
            file, _ = self._open.pop(descriptor)
        except KeyError:
            raise OSError(errno.EBADF, "bad file descriptor") from None
        if file.locked_by is self:
            file.locked_by = None

    def duplicate(self, descriptor: int) -> int:
        file, path = self._of(descriptor)
        return self._descriptor(file, path)

    def _of(self, descriptor: int) -> tuple[File, str]:
        if self._dead:
            raise ProcessDied
        try:
            return self._open[descriptor]
        except KeyError:
            raise OSError(errno.EBADF, "bad file descriptor") from None

    def write_at(self, descriptor: int, data: Buffer, position: int) -> None:
        file, path = self._of(descriptor)
        disk = self._disk
        try:
            self._meet("write", path)
        except BaseException:
            # A part of it may have been written.
            file.write(memoryview(data)[: disk.machine.chance.randint(0, len(data))], position, disk.machine.now_ms())
            raise
        disk.writes += 1
        if disk.free_bytes is not None:
            more = max(0, position + len(data) - len(file.data))
            if more > disk.free_bytes:
                file.write(memoryview(data)[: disk.free_bytes], position, disk.machine.now_ms())
                disk.free_bytes = 0
                raise OSError(errno.ENOSPC, "no space left on device", path)
            disk.free_bytes -= more
        file.write(data, position, disk.machine.now_ms())

    def write_parts_at(self, descriptor: int, parts: Sequence[Buffer], position: int) -> None:
        self.write_at(descriptor, b"".join(parts), position)

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        file, path = self._of(descriptor)
        self._meet("read", path)
        return bytes(memoryview(file.data)[position : position + size])

    def truncate(self, descriptor: int, size: int) -> None:
        file, path = self._of(descriptor)
        self._meet("truncate", path)
        file.truncate(size, self._disk.machine.now_ms())

    def sync(self, descriptor: int) -> None:
        file, path = self._of(descriptor)
        try:
            self._meet("sync", path)
        except OSError:
            file.sync_failed()
            raise
        self._disk.syncs += 1
        file.sync()

    def lock(self, path: Path) -> int:
        descriptor = self.open(path, create=True)
        file, _ = self._open[descriptor]
        if file.locked_by is not None:
            del self._open[descriptor]
            raise BlockingIOError(errno.EWOULDBLOCK, "it is locked", path)
        file.locked_by = self
        return descriptor

    def is_open_as(self, descriptor: int, path: Path) -> bool:
        return self._of(descriptor)[0] is self._disk.find(os.fspath(path))

    # Whole files

    def read(self, path: Path) -> bytes:
        return bytes(self._file(os.fspath(path)).data)

    def read_parsed(self, path: Path, parse: Callable[[bytes], _Parsed]) -> _Parsed:
        path = os.fspath(path)
        file = self._file(path)
        kept = self._kept.get(path)
        # Such a file is only ever replaced, never changed.
        if kept is None or kept[:2] != (file.number, len(file.data)):
            kept = self._kept[path] = file.number, len(file.data), parse(bytes(file.data))
        return kept[2]  # type: ignore[return-value]

    def exists(self, path: Path) -> bool:
        path = os.fspath(path)
        self._meet("look", path)
        return path == _BOOT_ID or self._disk.find(path) is not None

    def size(self, path: Path) -> int:
        return len(self._file(os.fspath(path)).data)

    def modified_ms(self, path: Path) -> int:
        return self._file(os.fspath(path)).modified_ms

    # Directories

    def make_directory(self, path: Path, mode: int = 0o777) -> None:
        self._meet("mkdir", os.fspath(path))
        directory = self._disk.root
        for part in os.fspath(path).split("/"):
            if part:
                found = directory.names.get(part)
                if found is None:
                    found = directory.names[part] = Directory()
                if type(found) is not Directory:
                    raise FileExistsError(errno.EEXIST, "file exists", path)
                directory = found

    def _directory(self, path: Path) -> Directory:
        self._meet("look", os.fspath(path))
        found = self._disk.find(os.fspath(path))
        if type(found) is not Directory:
            raise FileNotFoundError(errno.ENOENT, "no such directory", os.fspath(path))
        return found

    def is_directory(self, path: Path) -> bool:
        return type(self._disk.find(os.fspath(path))) is Directory

    def names(self, directory: Path) -> list[str]:
        return sorted(self._directory(directory).names)

    def sizes(self, directory: Path) -> dict[str, int]:
        names = self._directory(directory).names
        return {name: len(entry.data) for name, entry in sorted(names.items()) if type(entry) is File}

    def space(self, directory: Path) -> tuple[int, int]:
        return CAPACITY_BYTES, CAPACITY_BYTES if self._disk.free_bytes is None else self._disk.free_bytes

    def rename(self, source: Path, target: Path) -> None:
        source, target = os.fspath(source), os.fspath(target)
        self._meet("rename", target)
        from_directory, from_name = self._disk.parent(source)
        to_directory, to_name = self._disk.parent(target)
        if from_name not in from_directory.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        to_directory.names[to_name] = from_directory.names.pop(from_name)

    def remove(self, path: Path) -> None:
        path = os.fspath(path)
        self._meet("remove", path)
        directory, name = self._disk.parent(path)
        directory.names.pop(name, None)

    def sync_directory(self, path: Path) -> None:
        self._meet("sync", os.fspath(path))
        directory = self._directory(path)
        directory.safe = dict(directory.names)

    # On other threads

    def drain(self) -> None:
        for job in tuple(self._in_order):
            job.result()

    def in_background(self, job: Callable[[], None]) -> Future[None]:
        if self._worker is None:
            self._worker = self._new_threads(1, "semel-files")
        future = self._worker.submit(job)
        self._in_order[future] = None
        future.add_done_callback(lambda done: self._in_order.pop(done, None))
        return future

    def remove_later(self, directory: Path) -> None:
        path = os.fspath(directory)

        def remove() -> None:
            above, name = self._disk.parent(path)
            above.names.pop(name, None)

        self.in_background(remove)

    def stop_removing(self, timeout_s: float = 1.0) -> None:
        """What is left has a name that shows that it can be removed."""

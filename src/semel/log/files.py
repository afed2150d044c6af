"""The only place that opens, writes, fsyncs and renames files.

Everything that the log does to a disk goes through a `Files`, which is passed in. A test passes one that fails at a
chosen call or tears a write in two. Errors are `OSError`.

A file is replaced by writing the new one beside it and renaming, so a reader finds either the old or the new one whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from threading import Lock, Thread
from typing import TypeVar

from semel.environment import MACHINE

Buffer = bytes | bytearray | memoryview
Path = str | os.PathLike[str]

_SMALL_FILE = 4096
#: What a disk writes whole or not at all.
OVERWRITTEN_BYTES = 512

_Parsed = TypeVar("_Parsed")


class Files:
    """The real disk."""

    def __init__(self, threads: Callable[[int, str], Executor] = MACHINE.threads) -> None:
        self._new_threads = threads
        self._worker: Executor | None = None
        self._jobs: set[Future[None]] = set()
        self._remover: Thread | None = None
        self._removing = Lock()
        self._doomed: deque[Path] = deque()
        #: What `read_parsed` made of a file, and which file that was: (inode, size, time of the last change).
        self._parsed: dict[str, tuple[tuple[int, int, int], object]] = {}

    # Open files

    def open(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(path, flags, 0o644)

    def open_to_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def duplicate(self, descriptor: int) -> int:
        """A second descriptor of the same open file, for fsync on another thread: the first may be closed meanwhile."""
        return os.dup(descriptor)

    def write_at(self, descriptor: int, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`, with one system call unless that writes less."""
        written = os.pwrite(descriptor, data, position)
        if written != len(data):
            self._write_rest(descriptor, memoryview(data), written, position)

    def write_parts_at(self, descriptor: int, parts: Sequence[Buffer], position: int) -> None:
        written = os.pwritev(descriptor, parts, position)
        if written != sum(map(len, parts)):
            self._write_rest(descriptor, memoryview(b"".join(parts)), written, position)

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only where the file ends."""
        data = os.pread(descriptor, size, position)
        if len(data) == size or not data:
            return data
        # Linux stops at 2 GiB and on signals; a short read elsewhere is the end of the file.
        rest = os.pread(descriptor, size - len(data), position + len(data))
        return data + rest if rest else data

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def _write_rest(self, descriptor: int, data: memoryview, written: int, position: int) -> None:
        while written < len(data):
            count = os.pwrite(descriptor, data[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "the file system accepts no more bytes")
            written += count

    def lock(self, path: Path) -> int:
        """Take the lock of this file, which is created if need be. It is held until the descriptor is closed or the
        process ends. `BlockingIOError`: another process has it."""
        descriptor = self.open(path, create=True)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close(descriptor)
            raise
        return descriptor

    def is_open_as(self, descriptor: int, path: Path) -> bool:
        """Whether the file that was opened is still there under this name: it may have been removed or replaced."""
        try:
            ours, now = os.fstat(descriptor), os.stat(path)
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (now.st_dev, now.st_ino)

    # Whole files

    def read(self, path: Path) -> bytes:
        # A start reads thousands of small files. These calls cost a third of what a file object costs.
        descriptor = self.open_to_read(path)
        try:
            data = os.read(descriptor, _SMALL_FILE)
            if len(data) == _SMALL_FILE:
                while more := os.read(descriptor, 1 << 20):
                    data += more
            return data
        finally:
            os.close(descriptor)

    def read_beginning(self, path: Path) -> bytes:
        """The first bytes of a file, or all of a small one."""
        descriptor = self.open_to_read(path)
        try:
            return self.read_at(descriptor, _SMALL_FILE, 0)
        finally:
            self.close(descriptor)

    def read_parsed(self, path: Path, parse: Callable[[bytes], _Parsed]) -> _Parsed:
        """What `parse` makes of a file. It is kept until the file changes, so nobody may change it.

        For files that are read again and again and seldom replaced. A file has to be read with the same `parse` always.
        """
        path = os.fspath(path)
        stat = os.stat(path)
        read_from = stat.st_ino, stat.st_size, stat.st_mtime_ns
        kept = self._parsed.get(path)
        if kept is None or kept[0] != read_from:
            kept = self._parsed[path] = read_from, parse(self.read(path))
        return kept[1]  # type: ignore[return-value]

    def write_into(self, path: Path, data: Buffer, position: int) -> None:
        """Write `data` at `position` of a file, which is created if need be."""
        descriptor = self.open(path, create=True)
        try:
            self.write_at(descriptor, data, position)
        finally:
            self.close(descriptor)

    def overwrite(self, path: Path, data: Buffer) -> bool:
        """Write a file anew in its place, if it is small and does not become shorter. Returns whether it was written.

        After a crash of the process it holds the old or the new content. A power failure may leave less than the new
        one, or zeros behind the old one: who reads it has to notice that. It costs a hundredth of `replace`, for which
        a file system may write the new file to the disk first.
        """
        if len(data) > OVERWRITTEN_BYTES or not self.exists(path) or self.size(path) > len(data):
            return False
        self.write_into(path, data, 0)
        return True

    def replace(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        """Replace the content of a file. After a crash it holds the old or the new content, never a mixture."""
        path = os.fspath(path)
        beside = path + ".tmp"
        descriptor = self.open(beside, create=True)
        try:
            self.truncate(descriptor, 0)
            self.write_at(descriptor, data, 0)
            if durable:
                self.sync(descriptor)
        finally:
            self.close(descriptor)
        self.rename(beside, path)
        # A third file may get the inode of the first one, and even its time.
        self._parsed.pop(path, None)
        if durable:
            self.sync_directory(os.path.dirname(path) or ".")

    def sync_path(self, path: Path) -> None:
        descriptor = self.open(path)
        try:
            self.sync(descriptor)
        finally:
            self.close(descriptor)

    def create_empty(self, path: Path) -> None:
        self.close(self.open(path, create=True))

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def size(self, path: Path) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: Path) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    # Directories

    def make_directory(self, path: Path, mode: int = 0o777) -> None:
        """Make a directory, and those above it if need be. `mode` is for the last one. It may exist already."""
        os.makedirs(path, mode, exist_ok=True)

    def is_directory(self, path: Path) -> bool:
        return os.path.isdir(path)

    def names(self, directory: Path) -> list[str]:
        """The names of all files and directories in a directory, in order."""
        return sorted(os.listdir(directory))

    def space(self, directory: Path) -> tuple[int, int]:
        """How many bytes the disk has, and how many of them are free."""
        usage = shutil.disk_usage(directory)
        return usage.total, usage.free

    def sizes(self, directory: Path) -> dict[str, int]:
        """Every file of a directory and its size."""
        with os.scandir(directory) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file. It is no error if it does not exist."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    # On other threads

    def in_background(self, job: Callable[[], None]) -> Future[None]:
        """Run `job` on another thread, after the jobs given before it. It has to report its own failures."""
        if self._worker is None:
            self._worker = self._new_threads(1, "semel-files")
        future = self._worker.submit(job)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        return future

    def drain(self) -> None:
        """Wait for everything given to `in_background`."""
        for future in tuple(self._jobs):
            future.result()

    def remove_later(self, directory: Path) -> None:
        """Remove a directory with its content in the background; nobody waits for it."""
        with self._removing:
            self._doomed.append(directory)
            if self._remover is None:
                self._remover = Thread(target=self._remove_doomed, name="semel-remove", daemon=True)
                self._remover.start()

    def stop_removing(self, timeout_s: float = 1.0) -> None:
        """Stop after the current directory. The names of the others show that they can be removed."""
        with self._removing:
            self._doomed.clear()
            remover = self._remover
        if remover is not None:
            remover.join(timeout_s)

    def _remove_doomed(self) -> None:
        while True:
            with self._removing:
                if not self._doomed:
                    self._remover = None
                    return
                directory = self._doomed.popleft()
            shutil.rmtree(directory, ignore_errors=True)

"""The files of a data directory as `semel.testing.invariants` reads them: on a disk, or in a simulation."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


class DataDirectory:
    """The files of a data directory, by their paths in it. A simulation gives another one, which is not on a disk."""

    def __init__(self, root: Path | str) -> None:
        self._root = os.fspath(root)

    def directories(self) -> list[str]:
        """The names of the directories in it."""
        with os.scandir(self._root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def names(self, directory: str) -> list[str]:
        """The names of the files in one of its directories."""
        return os.listdir(os.path.join(self._root, directory))

    def read(self, path: str) -> bytes | mmap.mmap | None:
        """A file's content; None if there is no such file. A log is not read into memory, it may be large."""
        try:
            with open(os.path.join(self._root, path), "rb") as file:
                if not path.endswith(".log") or not os.fstat(file.fileno()).st_size:
                    return file.read()
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            return None

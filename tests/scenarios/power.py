"""A disk whose power can be cut: it knows which bytes and which names could not be taken by it.

The model is that of a journalling file system that promises nothing it was not asked for: what was written since the
last fsync of a file may be there in part, a new or renamed file may be missing or still be the old one until its
directory was fsynced. Bytes that were fsynced stay, and so do names once their directory was.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

from tests.scenarios.stage import Disk, Scene, Stage


class PowerDisk(Disk):
    """Every change is noted until an fsync makes it safe."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        #: File -> how many of its bytes are safe. A file that is not here has been there all along.
        self._safe_bytes: dict[str, int] = {}
        #: Names that are not safe yet -> what was there before them, None if nothing was.
        self._unsafe_names: dict[str, bytes | None] = {}

    # Noting

    def open(self, path: str | os.PathLike[str], *, create: bool = False) -> int:
        with self._lock:
            if create:
                self._note_name(os.fspath(path))
            return super().open(path, create=create)

    def make_directory(self, path: str | os.PathLike[str], mode: int = 0o777) -> None:
        with self._lock:
            self._note_name(os.fspath(path))
            super().make_directory(path, mode)

    def _note_name(self, path: str) -> None:
        if not os.path.exists(path) and path not in self._unsafe_names:
            self._unsafe_names[path] = None
            self._safe_bytes[path] = 0

    def write_at(self, descriptor: int, data: Any, position: int) -> None:
        with self._lock:
            self._note_write(descriptor)
            super().write_at(descriptor, data, position)

    def write_parts_at(self, descriptor: int, parts: Any, position: int) -> None:
        with self._lock:
            self._note_write(descriptor)
            super().write_parts_at(descriptor, parts, position)

    def _note_write(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        if path not in self._safe_bytes:
            self._safe_bytes[path] = os.fstat(descriptor).st_size

    def truncate(self, descriptor: int, size: int) -> None:
        with self._lock:
            super().truncate(descriptor, size)
            path = self._paths[descriptor]
            if path in self._safe_bytes:
                self._safe_bytes[path] = min(self._safe_bytes[path], size)

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        source, target = os.fspath(source), os.fspath(target)
        with self._lock:
            before = Path(target).read_bytes() if os.path.isfile(target) else None
            if target not in self._unsafe_names:
                self._unsafe_names[target] = before
            self._unsafe_names.pop(source, None)
            self._safe_bytes[target] = self._safe_bytes.pop(source, os.path.getsize(source))
            super().rename(source, target)

    # Making safe

    def sync(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        super().sync(descriptor)
        with self._lock:
            path = self._paths[descriptor]
            if path in self._safe_bytes:
                self._safe_bytes[path] = max(self._safe_bytes[path], size)

    def sync_directory(self, path: str | os.PathLike[str]) -> None:
        path = os.fspath(path)
        with self._lock:
            for name in [name for name in self._unsafe_names if os.path.dirname(name) == path]:
                del self._unsafe_names[name]

    # The cut

    def cut(self, source: Path, target: Path, chance: random.Random) -> None:
        """What is found after the power came back, out of the many things that could be."""
        with self._lock:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(".lock"))
            for path, before in sorted(self._unsafe_names.items()):
                here = target / Path(path).relative_to(source)
                if here.exists() and chance.random() < 0.5:
                    if here.is_dir():
                        shutil.rmtree(here)
                    elif before is None:
                        here.unlink()
                    else:
                        here.write_bytes(before)
            for path, safe in sorted(self._safe_bytes.items()):
                here = target / Path(path).relative_to(source)
                if here.is_file() and here.stat().st_size > safe:
                    left = safe if chance.random() < 0.5 else chance.randint(safe, here.stat().st_size)
                    os.truncate(here, left)


def cut_power(stage: Stage, scene: Scene, disk: PowerDisk, chance: random.Random) -> tuple[Scene, PowerDisk]:
    """The broker that starts when the power is back, on what is left."""
    data = stage.new_directory()
    disk.cut(scene.broker.data_dir, data, chance)
    scene.close()
    scene.left_in_order = False
    again = PowerDisk()
    return stage.start(data, disk=again, **scene.options), again

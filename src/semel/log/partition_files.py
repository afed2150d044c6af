"""The files of one partition as a start finds them, and what an interrupted change left among them.

A compaction or a deletion that a crash cut short is finished or undone here, before anything else is loaded. This may
itself be killed at any point: it does again what it did before.
"""

from __future__ import annotations

import re

from semel.errors import Refused
from semel.log.damage import DamagedLog
from semel.log.file_names import LOG_SUFFIX, PASSING_SUFFIXES, SEGMENT_SUFFIXES, SWAP_SUFFIX, file_stem
from semel.log.files import Files
from semel.log.segment import Segment

_STEM = re.compile("[0-9]{20}")


class PartitionFiles:
    """The names and sizes of a partition's files; kept true while files are removed and renamed through it."""

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        self.directory = directory
        self.sizes = files.sizes(directory)

    def offsets(self, suffix: str) -> list[int]:
        """The offsets, rising, in the names of all files of one kind."""
        stems = [name.removesuffix(suffix) for name in self.sizes if name.endswith(suffix)]
        return sorted(int(stem) for stem in stems if _STEM.fullmatch(stem))

    def remove(self, name: str) -> None:
        if name in self.sizes:
            self.files.remove(f"{self.directory}/{name}")
            del self.sizes[name]

    def remove_orphans(self) -> None:
        """Remove indexes whose log is gone. A segment's log is removed first: what is left of it means nothing."""
        bases = set(self.offsets(LOG_SUFFIX))
        for name in list(self.sizes):
            stem, _, kind = name.partition(".")
            if f".{kind}" in SEGMENT_SUFFIXES[1:] and _STEM.fullmatch(stem) and int(stem) not in bases:
                self.remove(name)

    def settle_interrupted_changes(self) -> list[str]:
        """Finish or undo what a crash interrupted. Returns what was repaired, in words.

        A compacted segment takes the place of the old ones once its log is named `.swap`, and not before.
        """
        repairs: list[str] = []
        if not any(name.endswith(PASSING_SUFFIXES) for name in self.sizes):
            return repairs
        for base_offset in self.offsets(LOG_SUFFIX + SWAP_SUFFIX):
            self._finish_swap(base_offset)
            repairs.append(f"finished swapping in the compacted segment {file_stem(base_offset)}")
        for name in list(self.sizes):
            if name.endswith(PASSING_SUFFIXES):
                self.remove(name)
        return repairs

    def _finish_swap(self, base_offset: int) -> None:
        last = self._last_offset_of_swapped(base_offset)
        for old in self.offsets(LOG_SUFFIX):
            # An older segment that reaches past the new one holds something that the new one does not: it stays.
            if base_offset <= old <= last or old == base_offset:
                for suffix in SEGMENT_SUFFIXES:
                    self.remove(file_stem(old) + suffix)
        for suffix in (*SEGMENT_SUFFIXES[1:], LOG_SUFFIX):
            name = file_stem(base_offset) + suffix
            if name + SWAP_SUFFIX in self.sizes:
                self.files.rename(f"{self.directory}/{name}{SWAP_SUFFIX}", f"{self.directory}/{name}")
                self.sizes[name] = self.sizes.pop(name + SWAP_SUFFIX)

    def _last_offset_of_swapped(self, base_offset: int) -> int:
        name = file_stem(base_offset) + LOG_SUFFIX + SWAP_SUFFIX
        path = f"{self.directory}/{name}"
        swapped = Segment(self.files, self.directory, base_offset, self.sizes[name], 0)
        swapped.adopt(self.files.open(path))
        last, end = base_offset - 1, 0
        try:
            for placed in swapped.walk(0):
                last, end = placed.last_offset, placed.position + placed.size_bytes
        except Refused:
            raise DamagedLog(path, end, "the bytes there are no record batch") from None
        finally:
            swapped.close()
        return last

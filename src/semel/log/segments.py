"""The segments of one partition, oldest first, and where recent reads and transactions began in them.

It guarantees that the list, the base offsets and the remembered positions always agree: they change together, here.
Of the older segments only a few stay open, however many are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import overload

from semel.log.segment import Segment

#: How many older segments stay open, with their indexes in memory.
_OPEN_SEGMENTS = 8
#: How many positions are remembered: the next read of a consumer begins where its last one ended.
_REMEMBERED_POSITIONS = 256


class Segments:
    """An ordered list of segments. The last one is the active one: batches are appended to it."""

    __slots__ = ("_all", "_bases", "_older_bytes", "_opened", "active", "positions")

    #: Offset -> (segment, position of the batch that holds it).
    positions: dict[int, tuple[Segment, int]]
    active: Segment

    def __init__(self, segments: list[Segment]) -> None:
        self._all = segments
        self._opened: list[Segment] = []
        self._changed()

    def _changed(self) -> None:
        self._bases = [segment.base_offset for segment in self._all]
        self.active = self._all[-1]
        # Only the active segment grows. Every waiting fetch asks for the total, so the rest is added up once.
        self._older_bytes = sum(segment.size_bytes for segment in self._all[:-1])
        self.positions = {}

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, number: int) -> Segment: ...

    @overload
    def __getitem__(self, number: slice) -> list[Segment]: ...

    def __getitem__(self, number: int | slice) -> Segment | list[Segment]:
        return self._all[number]

    def index(self, segment: Segment) -> int:
        return self._all.index(segment)

    @property
    def size_bytes(self) -> int:
        return self._older_bytes + self.active.size_bytes

    @property
    def start_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self._bases[0]

    def append(self, segment: Segment) -> None:
        """Make `segment` the active one."""
        finished, self.active = self.active, segment
        self._all.append(segment)
        self._bases.append(segment.base_offset)
        self._older_bytes += finished.size_bytes
        self.use(finished)

    def replace(self, first: int, count: int, successors: list[Segment]) -> list[Segment]:
        """Put `successors` in the place of `count` segments, beginning with number `first`. Returns the removed ones,
        closed."""
        removed = self._all[first : first + count]
        self._all[first : first + count] = successors
        self._changed()
        self._opened = [segment for segment in self._opened if segment not in removed]
        for segment in removed:
            segment.close()
        return removed

    def use(self, segment: Segment) -> None:
        """Call this before a read of a segment, which may open it. The one opened longest ago is closed in return."""
        if segment is not self.active and segment not in self._opened:
            self._opened.append(segment)
            while len(self._opened) > _OPEN_SEGMENTS:
                self._opened.pop(0).rest()

    def close(self) -> None:
        for segment in self._all:
            segment.close()

    # Finding an offset

    def starting_with(self, offset: int) -> list[Segment]:
        """The segment whose range holds `offset`, and all that follow it."""
        return self._all[max(bisect_right(self._bases, offset) - 1, 0) :]

    def base_after(self, segment: Segment) -> int:
        """The base offset of the segment that follows an older one."""
        return self._bases[bisect_right(self._bases, segment.base_offset)]

    def remember_position(self, offset: int, segment: Segment, position: int) -> None:
        """The batch that holds `offset` lies at `position` of `segment`."""
        if len(self.positions) >= _REMEMBERED_POSITIONS:
            self.positions.clear()
        self.positions[offset] = (segment, position)

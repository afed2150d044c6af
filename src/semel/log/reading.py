"""The reading half of a partition log.

It guarantees that a reader is given whole batches only, that the limit it may read to is looked at once per read and
never passed (K-9807, K-9835), and that a read_committed reader gets the aborted transactions of exactly the range it
was served: an empty list says that there are none, never that nobody looked. What an earlier process wrote is checked
before it is first served: a reader is told of damage, and so is the broker's log, once, with the file and what to do.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import NamedTuple

from semel.errors import ErrorCode, Refused
from semel.log.damage import DamagedLog
from semel.log.files import Files
from semel.log.indexes import AbortedTransaction, DamagedIndex
from semel.log.segment import Segment
from semel.machines.producing.producer_state import ProducerStates

logger = logging.getLogger(__name__)

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

#: How many older segments stay open, with their indexes in memory.
_OPEN_READERS = 8
#: The most that is read at once of what has to be checked.
_COLD_READ_BYTES = 1 << 20
#: Where recent reads ended: the next read of a consumer begins there.
_REMEMBERED_POSITIONS = 256


class Read(NamedTuple):
    """Whole batches, and what a reader must know about them. `aborted` is None for read_uncommitted."""

    data: bytes | memoryview
    aborted: list[tuple[int, int]] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class Reading:
    """Mixed into the partition log: needs its segments and its watermarks."""

    topic: str
    partition: int
    files: Files
    segments: list[Segment]
    log_start_offset: int
    end_offset: int
    high_watermark: int
    producers: ProducerStates
    _bases: list[int]
    _active: Segment
    _positions: dict[int, tuple[Segment, int]]
    _readers: list[Segment]
    #: Damage that was told already, by file and place.
    _told: set[tuple[str, int]]

    @property
    def last_stable_offset(self) -> int:
        """Everything below has an outcome that can no longer change."""
        first = self.producers.first_unstable_offset
        if 0 <= first < self.high_watermark:
            return max(first, self.log_start_offset)
        return self.high_watermark

    def advance_high_watermark(self, offset: int) -> None:
        """Everything below `offset` may be read. Never goes back."""
        if offset > self.high_watermark:
            self.high_watermark = min(offset, self.end_offset)
            self.producers.replicated_to(self.high_watermark)

    def read(
        self, offset: int, max_bytes: int, isolation: int = READ_UNCOMMITTED, *, at_least_one: bool = True
    ) -> Read:
        """Whole batches from the one that holds `offset` on: as many as fit, never past what this reader may see."""
        last_stable_offset = self.last_stable_offset
        if offset < self.log_start_offset or offset > self.end_offset:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {self.end_offset}",
            )
        limit = last_stable_offset if isolation == READ_COMMITTED else self.high_watermark
        data: bytes | memoryview = b""
        upper_bound, aborted = offset, None
        try:
            if offset < limit:
                data, upper_bound = self._read_batches(offset, limit, max_bytes, at_least_one)
            if isolation == READ_COMMITTED:
                aborted = self._aborted_within(offset, upper_bound) if data else []
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be read: {error}") from error
        except (DamagedIndex, DamagedLog) as damage:
            self.tell(damage)
            raise
        return Read(data, aborted, self.high_watermark, last_stable_offset, self.log_start_offset)

    def tell(self, damage: DamagedIndex | DamagedLog) -> None:
        """Say once, in the broker's log, what somebody came across."""
        place = (damage.path, damage.position) if isinstance(damage, DamagedLog) else (damage.why, 0)
        if place not in self._told:
            self._told.add(place)
            logger.error("%s-%d: %s", self.topic, self.partition, damage.why)

    def _read_batches(
        self, offset: int, limit: int, max_bytes: int, at_least_one: bool
    ) -> tuple[bytes | memoryview, int]:
        """(whole batches, the offset after them)."""
        place = self._position_of(offset)
        if place is None:
            return b"", offset
        segment, position = place
        end_position, end_offset = self._end_within(segment, limit)
        available = end_position - position
        if available <= 0:
            return b"", offset
        if position < segment.cold_bytes and not segment.is_checked(position, min(available, max_bytes)):
            # It will be checked, and others wait meanwhile.
            max_bytes = min(max_bytes, _COLD_READ_BYTES)
        data: bytes | memoryview = segment.read(position, min(available, max(max_bytes, 0)))
        if len(data) < available:
            whole, end_offset = segment.whole_batches(data, position)
            if whole == 0:
                if not at_least_one:
                    return b"", offset
                first = next(segment.walk(position))
                whole, end_offset = first.size_bytes, first.last_offset + 1
                data = segment.read(position, whole)
            if whole < len(data):
                # A view: what was read may be megabytes, and cutting off its end is no reason to copy them.
                data = memoryview(data)[:whole]
            self._remember_position(end_offset, segment, position + whole)
        elif segment is self._active:
            self._remember_position(end_offset, segment, end_position)
        if position < segment.cold_bytes and len(data):
            segment_end = self.end_offset
            if segment is not self._active:
                segment_end = self._bases[self._segment_holding(segment.base_offset) + 1]
            segment.check_cold(data, position, offset, segment_end)
        return data, end_offset

    def _position_of(self, offset: int) -> tuple[Segment, int] | None:
        """Where to begin reading for `offset`; None at the end of the log."""
        known = self._positions.get(offset)
        if known is not None and (known[1] < known[0].size_bytes or known[0] is self._active):
            if not known[0].is_open:
                self.uses(known[0])
            return known
        for segment in self.segments[self._segment_holding(offset) :]:
            self.uses(segment)
            placed = segment.locate(offset)
            if placed is not None:
                return segment, placed.position
            if segment.has_no_gaps and segment.cold_bytes and segment is not self._active:
                raise segment.cannot_find(offset)
        return None

    def _end_within(self, segment: Segment, limit: int) -> tuple[int, int]:
        """How far a read up to the offset `limit` may go in this segment: (position, offset)."""
        if segment is self._active:
            if limit >= self.end_offset:
                return segment.size_bytes, self.end_offset
        else:
            next_base = self._bases[self._segment_holding(segment.base_offset) + 1]
            if limit >= next_base:
                return segment.size_bytes, next_base
        known = self._positions.get(limit)
        if known is not None and known[0] is segment:
            return known[1], limit
        placed = segment.locate(limit)
        if placed is None:
            return segment.size_bytes, limit
        self._remember_position(limit, segment, placed.position)
        return placed.position, limit

    def _remember_position(self, offset: int, segment: Segment, position: int) -> None:
        if len(self._positions) >= _REMEMBERED_POSITIONS:
            self._positions.clear()
        self._positions[offset] = (segment, position)

    def _aborted_within(self, offset: int, upper_bound: int) -> list[tuple[int, int]]:
        """Aborted transactions with data in [offset, upper_bound), as (producer id, first offset)."""
        found: list[AbortedTransaction] = []
        for segment in self.segments[self._segment_holding(offset) :]:
            segment.transaction_index.load(self.files)
            if segment.transaction_index.collect(offset, upper_bound, found):
                break
        return [(entry.producer_id, entry.first_offset) for entry in found]

    def uses(self, segment: Segment) -> None:
        """Somebody is about to read this segment, and perhaps to open it: of the older ones only a few stay open."""
        if segment is not self._active and segment not in self._readers:
            self._readers.append(segment)
            while len(self._readers) > _OPEN_READERS:
                self._readers.pop(0).rest()

    def _segment_holding(self, offset: int) -> int:
        return max(bisect_right(self._bases, offset) - 1, 0)

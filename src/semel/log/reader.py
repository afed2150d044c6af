"""Reading from a partition log.

It guarantees that a reader gets only whole batches, that the limit of a read is taken once and never passed (K-9807,
K-9835), and that a read_committed reader gets the aborted transactions of exactly the range it was served: an empty
list means that there are none, never that nobody looked. Bytes that an earlier process wrote are checked before they
are first served. Damage is reported to the reader, and once to the broker's log, with the file and what to do.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from semel.errors import ErrorCode, Refused
from semel.log.damage import DamagedLog
from semel.log.files import Files
from semel.log.indexes import AbortedTransaction, DamagedIndex
from semel.log.segment import Segment

if TYPE_CHECKING:
    from semel.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
#: A follower reads what is not committed yet: it is what commits it.
READ_TO_END = 2

#: The most that is read at once of what has to be checked.
_COLD_READ_BYTES = 1 << 20


#: A read of any size is done at once.
NO_LIMIT = 2**63 - 1


class Extent:
    """A part of a segment's file that is still to be read, on any thread. It has a descriptor of its own, so it can be
    read whatever becomes of the segment, and of that descriptor when nobody wants it any more."""

    __slots__ = ("_descriptor", "_files", "_position", "size_bytes")

    def __init__(self, segment: Segment, position: int, size_bytes: int) -> None:
        self._descriptor = -1
        self._files: Files = segment.files
        self._position = position
        self.size_bytes = size_bytes
        self._descriptor = self._files.duplicate(segment.descriptor)

    def read(self) -> bytes | None:
        """The bytes; None if they are not there any more."""
        data = self._files.read_at(self._descriptor, self.size_bytes, self._position)
        return data if len(data) == self.size_bytes else None

    def __del__(self) -> None:
        if self._descriptor >= 0:
            self._files.close(self._descriptor)


class Read(NamedTuple):
    """Whole batches, and the watermarks they were read under. `aborted` is None for read_uncommitted.

    `extent` is where the batches are, if there are too many to read them at once; then `data` is empty.
    """

    data: bytes | memoryview
    aborted: list[tuple[int, int]] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    extent: Extent | None = None


class LogReader:
    """Reads batches by offset: `log.reader`."""

    __slots__ = ("_log", "_reported")

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        #: Damage that was reported already, by file and position.
        self._reported: set[tuple[str, int]] = set()

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: int = READ_UNCOMMITTED,
        *,
        at_least_one: bool = True,
        at_once_bytes: int = NO_LIMIT,
    ) -> Read:
        """Whole batches from the one that holds `offset` on: as many as fit, never past what this reader may see.

        More than `at_once_bytes` of them are not read, only found: see `Read.extent`.
        """
        log = self._log
        last_stable_offset = log.last_stable_offset
        if offset < log.log_start_offset or offset > log.end_offset:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {log.log_start_offset} to {log.end_offset}",
            )
        limit = last_stable_offset if isolation == READ_COMMITTED else log.high_watermark
        if isolation == READ_TO_END:
            limit = log.end_offset
        data: bytes | memoryview | Extent = b""
        upper_bound, aborted = offset, None
        try:
            if offset < limit:
                data, upper_bound = self._read_batches(offset, limit, max_bytes, at_least_one, at_once_bytes)
            if isolation == READ_COMMITTED:
                aborted = self._aborted_within(offset, upper_bound) if data else []
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be read: {error}") from error
        except (DamagedIndex, DamagedLog) as damage:
            self.report(damage)
            raise
        if isinstance(data, Extent):
            return Read(b"", aborted, log.high_watermark, last_stable_offset, log.log_start_offset, data)
        return Read(data, aborted, log.high_watermark, last_stable_offset, log.log_start_offset)

    def report(self, damage: DamagedIndex | DamagedLog) -> None:
        """Write damage that a read has met into the broker's log, once."""
        place = (damage.path, damage.position) if isinstance(damage, DamagedLog) else (damage.why, 0)
        if place not in self._reported:
            self._reported.add(place)
            logger.error("%s-%d: %s", self._log.topic, self._log.partition, damage.why)

    def _read_batches(
        self, offset: int, limit: int, max_bytes: int, at_least_one: bool, at_once_bytes: int
    ) -> tuple[bytes | memoryview | Extent, int]:
        """(whole batches, the offset after them)."""
        place = self._position_of(offset)
        if place is None:
            return b"", offset
        segment, position = place
        segments = self._log.segments
        end_position, end_offset = self._end_within(segment, limit)
        available = end_position - position
        if available <= 0:
            return b"", offset
        if position < segment.cold_bytes and not segment.is_checked(position, min(available, max_bytes)):
            # The bytes have to be checked, and other requests wait meanwhile.
            max_bytes = min(max_bytes, _COLD_READ_BYTES)
        wanted = min(available, max(max_bytes, 0))
        if wanted > at_once_bytes and segment.is_checked(position, wanted):
            found, after = (available, end_offset) if wanted == available else segment.whole_extent(position, wanted)
            if found == 0:
                if not at_least_one:
                    return b"", offset
                first = next(segment.walk(position))
                found, after = first.size_bytes, first.last_offset + 1
            extent = self._extent(segment, position, found)
            if extent is not None:
                if found < available or segment is segments.active:
                    segments.remember_position(after, segment, position + found)
                return extent, after
        data: bytes | memoryview = segment.read(position, wanted)
        if len(data) < available:
            whole, end_offset = segment.whole_batches(data, position)
            if whole == 0:
                if not at_least_one:
                    return b"", offset
                first = next(segment.walk(position))
                whole, end_offset = first.size_bytes, first.last_offset + 1
                extent = self._extent(segment, position, whole) if whole > at_once_bytes else None
                if extent is not None:
                    segments.remember_position(end_offset, segment, position + whole)
                    return extent, end_offset
                data = segment.read(position, whole)
            if whole < len(data):
                # A view: `data` may be megabytes, which need not be copied to cut off the end.
                data = memoryview(data)[:whole]
            segments.remember_position(end_offset, segment, position + whole)
        elif segment is segments.active:
            segments.remember_position(end_offset, segment, end_position)
        if position < segment.cold_bytes and len(data):
            segment_end = self._log.end_offset if segment is segments.active else segments.base_after(segment)
            segment.check_cold(data, position, offset, segment_end)
        return data, end_offset

    def _extent(self, segment: Segment, position: int, size_bytes: int) -> Extent | None:
        """So much from there on, to be read later; None if it has to be read at once."""
        if not segment.is_checked(position, size_bytes):
            return None
        # Without another descriptor it is read through the one there is.
        with suppress(OSError):
            return Extent(segment, position, size_bytes)
        return None

    def _position_of(self, offset: int) -> tuple[Segment, int] | None:
        """Where to begin reading for `offset`; None at the end of the log."""
        segments = self._log.segments
        known = segments.positions.get(offset)
        if known is not None and (known[1] < known[0].size_bytes or known[0] is segments.active):
            if not known[0].is_open:
                segments.use(known[0])
            return known
        for segment in segments.starting_with(offset):
            segments.use(segment)
            placed = segment.locate(offset)
            if placed is not None:
                return segment, placed.position
            if segment.has_no_gaps and segment.cold_bytes and segment is not segments.active:
                raise segment.cannot_find(offset)
        return None

    def _end_within(self, segment: Segment, limit: int) -> tuple[int, int]:
        """How far a read up to the offset `limit` may go in this segment: (position, offset)."""
        segments = self._log.segments
        segment_end = self._log.end_offset if segment is segments.active else segments.base_after(segment)
        if limit >= segment_end:
            return segment.size_bytes, segment_end
        known = segments.positions.get(limit)
        if known is not None and known[0] is segment:
            return known[1], limit
        placed = segment.locate(limit)
        if placed is None:
            return segment.size_bytes, limit
        segments.remember_position(limit, segment, placed.position)
        return placed.position, limit

    def _aborted_within(self, offset: int, upper_bound: int) -> list[tuple[int, int]]:
        """Aborted transactions with data in [offset, upper_bound), as (producer id, first offset)."""
        log = self._log
        found: list[AbortedTransaction] = []
        for segment in log.segments.starting_with(offset):
            segment.transaction_index.load(log.files)
            if segment.transaction_index.collect(offset, upper_bound, found):
                break
        return [(entry.producer_id, entry.first_offset) for entry in found]

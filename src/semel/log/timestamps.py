"""Finding records by time, for ListOffsets."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from semel.records.batch import APPEND_TIME, INT64_MIN, Batch, look_into

if TYPE_CHECKING:
    from semel.log.partition_log import PartitionLog
    from semel.log.segment import Segment


#: An index entry is never far from the batch it stands for.
_LOOK_BYTES = 128 * 1024


class Found(NamedTuple):
    """A record by its timestamp, its offset and the leader epoch it was written under."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class TimestampSearch:
    """Finds records by time: `log.times`."""

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def offset_for_timestamp(self, timestamp_ms: int) -> Found | None:
        """The first record that is as late as `timestamp_ms` or later."""
        log = self._log
        for segment in list(log.segments):
            log.segments.use(segment)
            segment.load_largest_timestamp()
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            skip_to = segment.offset_before(timestamp_ms)
            for batch in segment.batches_to_the_end(segment.offset_index.position_before(skip_to), _LOOK_BYTES):
                if batch.max_timestamp >= timestamp_ms and batch.last_offset >= log.log_start_offset:
                    found = self._first_as_late(batch, timestamp_ms)
                    if found is not None:
                        return found
        return None

    def max_timestamp_offset(self) -> Found | None:
        """The latest record by time; the earliest of those that share its timestamp."""
        log = self._log
        latest: tuple[int, Segment, int] | None = None
        for segment, following in zip_longest(log.segments, log.segments[1:]):
            if following is not None and following.base_offset <= log.log_start_offset:
                continue
            log.segments.use(segment)
            segment.load_largest_timestamp()
            largest = segment.max_timestamp_ms, segment.offset_of_max_timestamp
            if largest[1] < log.log_start_offset:
                largest = self._largest_left(segment)
            if largest[0] >= 0 and (latest is None or largest[0] > latest[0]):
                latest = largest[0], segment, largest[1]
        if latest is None:
            return None
        timestamp_ms, segment, last_offset = latest
        log.segments.use(segment)
        segment.load_indexes()
        # An index entry may lie just before the batch it is followed by, so look from the entry before it.
        for batch in segment.batches_to_the_end(segment.offset_index.position_before(last_offset - 1), _LOOK_BYTES):
            if batch.max_timestamp >= timestamp_ms and batch.last_offset >= log.log_start_offset:
                return self._first_as_late(batch, timestamp_ms)
        return None

    def _largest_left(self, segment: Segment) -> tuple[int, int]:
        """(largest timestamp at or after the log start, last offset of its batch); (-1, -1) where there is none."""
        start_offset = self._log.log_start_offset
        segment.load_indexes()
        largest = -1, -1
        start = segment.offset_index.position_before(start_offset)
        for batch in segment.batches_to_the_end(start, _LOOK_BYTES):
            if batch.last_offset < start_offset or batch.max_timestamp <= largest[0]:
                continue
            timestamp_ms = batch.max_timestamp
            if batch.base_offset < start_offset:
                walk = look_into(
                    batch,
                    stored=True,
                    named_max=0,
                    from_offset_delta=start_offset - batch.base_offset,
                    strict=False,
                )
                if batch.timestamp_type != APPEND_TIME or walk.first_offset_delta < 0:
                    timestamp_ms = walk.largest_timestamp
            if timestamp_ms > largest[0]:
                largest = timestamp_ms, batch.last_offset
        return largest

    def _first_as_late(self, batch: Batch, timestamp_ms: int) -> Found | None:
        """The first such record of a batch. No record object is made: there may be very many, and large ones."""
        has_one_time = batch.timestamp_type == APPEND_TIME
        walk = look_into(
            batch,
            stored=True,
            newest=max(timestamp_ms - 1, INT64_MIN),
            named_max=0 if has_one_time else 1,
            from_offset_delta=max(self._log.log_start_offset - batch.base_offset, 0),
            strict=False,
        )
        if has_one_time:
            if walk.first_offset_delta < 0 or batch.max_timestamp < timestamp_ms:
                return None
            return Found(batch.max_timestamp, batch.base_offset + walk.first_offset_delta, batch.leader_epoch)
        for offset_delta, found_ms in walk.far_off:
            return Found(found_ms, batch.base_offset + offset_delta, batch.leader_epoch)
        return None

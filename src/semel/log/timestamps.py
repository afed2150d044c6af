"""Finding records by time: the half of a partition log that ListOffsets asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from semel.records.batch import Batch, read_records

if TYPE_CHECKING:
    from semel.log.segment import Segment


#: An index entry is never far from what it stands for.
_LOOK_BYTES = 128 * 1024


class Found(NamedTuple):
    """A record by its timestamp, its offset and the leader epoch it was written under."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class TimestampSearch:
    """Mixed into the partition log: needs its `segments` and its start and end."""

    segments: list[Segment]
    log_start_offset: int
    end_offset: int

    if TYPE_CHECKING:

        def uses(self, segment: Segment) -> None: ...

    def offset_for_timestamp(self, timestamp_ms: int) -> Found | None:
        """The first record that is as late as `timestamp_ms` or later."""
        for segment in list(self.segments):
            self.uses(segment)
            segment.load_largest_timestamp()
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            segment.load_indexes()
            skip_to = segment.time_index.offset_before(timestamp_ms)
            for batch in segment.batches(segment.offset_index.position_before(skip_to), _LOOK_BYTES):
                if batch.max_timestamp >= timestamp_ms and batch.last_offset >= self.log_start_offset:
                    found = self._first_as_late(batch, timestamp_ms)
                    if found is not None:
                        return found
        return None

    def max_timestamp_offset(self) -> Found | None:
        """The latest record by time; the earliest of those that share its timestamp."""
        latest: Segment | None = None
        for segment in list(self.segments):
            self.uses(segment)
            segment.load_largest_timestamp()
            if segment.max_timestamp_ms >= 0 and (
                latest is None or segment.max_timestamp_ms > latest.max_timestamp_ms
            ):
                latest = segment
        if latest is None:
            return None
        self.uses(latest)
        latest.load_indexes()
        # An index entry may lie just before the batch it is followed by, so look from the entry before it.
        start = latest.offset_index.position_before(latest.offset_of_max_timestamp - 1)
        for batch in latest.batches(start, _LOOK_BYTES):
            if batch.max_timestamp >= latest.max_timestamp_ms:
                return self._first_as_late(batch, latest.max_timestamp_ms)
        return None

    def _first_as_late(self, batch: Batch, timestamp_ms: int) -> Found | None:
        for record in read_records(batch):
            if record.timestamp >= timestamp_ms and record.offset >= self.log_start_offset:
                return Found(record.timestamp, record.offset, batch.leader_epoch)
        return None

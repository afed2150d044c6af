"""One segment: record batches in a file, and the indexes that find them.

It guarantees that a batch is written with one call at the end of the file, that `size_bytes` never counts a byte that
was not written, and that the indexes can be rebuilt from the log byte for byte. A damaged offset or time index is
rebuilt and that is logged. Bytes that an earlier process wrote are checked when they are first read. A segment knows
nothing of producers, transactions or durability: those belong to the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from crc32c import crc32c

from semel.errors import ErrorCode, Refused
from semel.log.damage import DamagedLog
from semel.log.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_stem,
)
from semel.log.files import Files
from semel.log.indexes import (
    OFFSET_ENTRY_SIZE,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY_SIZE,
    DamagedIndex,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from semel.records.batch import Batch, check
from semel.records.layout import (
    CHECKED_FROM,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    OFFSET_AND_LENGTH,
    OFFSETS,
    OFFSETS_AND_CRC,
)

logger = logging.getLogger(__name__)

_NO_BATCH = (0, 0, -1, 0, 0)
_WALK_BYTES = 32 * 1024
_SCAN_BYTES = 4 * 1024 * 1024
_NEAR_BYTES = 2048
#: The distance of entries in an index that is rebuilt here. A start uses the topic's `index.interval.bytes`.
_REBUILT_INTERVAL_BYTES = 4096
#: The place of the largest timestamp among the fields of a header.
_MAX_TIMESTAMP = 8
#: Batches may have no timestamp, which is -1.
_NOT_LOOKED_AT = -2


class Placed(NamedTuple):
    """The position of a batch in a segment."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int


class Segment:
    """A segment of the log; the last one of a partition is the active one and grows."""

    __slots__ = (
        "_checked",
        "_descriptor",
        "_first_timestamp_ms",
        "_indexed_position",
        "_largest_known",
        "base_offset",
        "cold_bytes",
        "created_ms",
        "files",
        "has_no_gaps",
        "indexes_synced",
        "max_timestamp_ms",
        "offset_index",
        "offset_of_max_timestamp",
        "size_bytes",
        "stem",
        "synced_bytes",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self, files: Files, directory: str, base_offset: int, size_bytes: int, created_ms: int, *, suffix: str = ""
    ) -> None:
        """`suffix`: for a segment that is not yet part of the log, which compaction is writing."""
        self.files = files
        self.stem = stem = f"{directory}/{file_stem(base_offset)}"
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        #: How much of the log file was fsynced. Recovery decides this for bytes that an earlier process wrote.
        self.synced_bytes = size_bytes
        #: Whether the index files are complete and were fsynced.
        self.indexes_synced = True
        #: How many bytes an earlier process wrote: they have to be checked before they are served.
        self.cold_bytes = size_bytes
        #: Whether its offsets have no gaps. Compaction leaves gaps.
        self.has_no_gaps = False
        #: The range of bytes that was checked since, and the offset that follows it.
        self._checked = (0, 0, base_offset)
        fresh = size_bytes == 0
        self.offset_index = OffsetIndex(stem + INDEX_SUFFIX + suffix, base_offset, loaded=fresh)
        self.time_index = TimeIndex(stem + TIME_INDEX_SUFFIX + suffix, base_offset, loaded=fresh)
        self.transaction_index = TransactionIndex(stem + TRANSACTION_INDEX_SUFFIX + suffix, loaded=fresh)
        self.max_timestamp_ms = -1
        self.offset_of_max_timestamp = base_offset
        self.created_ms = created_ms
        self._descriptor = -1
        self._first_timestamp_ms = _NOT_LOOKED_AT
        self._indexed_position = 0
        self._largest_known = fresh

    @property
    def log_path(self) -> str:
        return self.stem + LOG_SUFFIX

    @property
    def descriptor(self) -> int:
        if self._descriptor < 0:
            # Only an empty segment may lack its file. Otherwise a missing file would look like an empty segment.
            self._descriptor = self.files.open(self.log_path, create=self.size_bytes == 0)
        return self._descriptor

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def adopt(self, descriptor: int) -> None:
        """Use a descriptor that somebody else opened, perhaps of a file with another name."""
        self._descriptor = descriptor

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        if self._descriptor >= 0:
            self.files.close(self._descriptor)
            self._descriptor = -1

    def rest(self) -> None:
        """Close the file and free the indexes that are on disk. The next use opens and loads them again."""
        self.close()
        self.offset_index.unload()
        self.time_index.unload()

    def create_files(self) -> None:
        """Create the files of a new segment, as Kafka does: an empty log and two empty indexes."""
        for path in (self.log_path, self.offset_index.path, self.time_index.path):
            self.files.create_empty(path)

    # Writing

    def write(
        self,
        data: bytes | bytearray | memoryview | Sequence[bytes | memoryview],
        size_bytes: int,
        last_offset: int,
        max_timestamp_ms: int,
        index_interval_bytes: int,
    ) -> None:
        """Append one batch. If this raises, `size_bytes` is unchanged and `cut_unfinished` removes what was written."""
        position = self.size_bytes
        if isinstance(data, list):
            self.files.write_parts_at(self.descriptor, data, position)
        else:
            self.files.write_at(self.descriptor, data, position)  # type: ignore[arg-type]
        self.note(position, size_bytes, last_offset, max_timestamp_ms, index_interval_bytes)

    def note(
        self, position: int, size_bytes: int, last_offset: int, max_timestamp_ms: int, index_interval_bytes: int
    ) -> None:
        """Add a batch at `position` to size and indexes. Appending and recovery both use this."""
        self.indexes_synced = False
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.offset_of_max_timestamp = last_offset
        if position == 0:
            self._first_timestamp_ms = max_timestamp_ms
        elif position - self._indexed_position > index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(self.max_timestamp_ms, self.offset_of_max_timestamp)
            self._indexed_position = position
        self.size_bytes = position + size_bytes

    def cut_unfinished(self) -> None:
        """After a failed write: cut the file after the last whole batch."""
        self.files.truncate(self.descriptor, self.size_bytes)

    def has_room_for(self, size_bytes: int, last_offset: int, segment_bytes: int, index_bytes: int) -> bool:
        return (
            self.size_bytes + size_bytes <= segment_bytes
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and (len(self.offset_index) + 1) * OFFSET_ENTRY_SIZE <= index_bytes
            # One entry is reserved: a segment gets its last one when it is rolled.
            and (len(self.time_index) + 2) * TIME_ENTRY_SIZE <= index_bytes
        )

    def age_ms(self, timestamp_ms: int, now_ms: int) -> int:
        """The age of the segment: by the timestamps of its batches if they have any, otherwise since it was created."""
        first = self.first_timestamp_ms
        if first >= 0 and timestamp_ms >= 0:
            return timestamp_ms - first
        return now_ms - self.created_ms

    @property
    def first_timestamp_ms(self) -> int:
        if self._first_timestamp_ms == _NOT_LOOKED_AT and self.size_bytes >= HEADER_SIZE:
            first = next(self.batches(chunk_bytes=_WALK_BYTES), None)
            self._first_timestamp_ms = -1 if first is None else first.max_timestamp
        return self._first_timestamp_ms

    def finish(self) -> None:
        """The segment is complete: end its time index with the largest timestamp, and write the indexes."""
        if self.max_timestamp_ms >= 0:
            self.time_index.append(self.max_timestamp_ms, self.offset_of_max_timestamp)
        self.write_indexes()

    def write_indexes(self) -> None:
        self.offset_index.write(self.files)
        self.time_index.write(self.files)

    def rewrite_indexes(self, *, durable: bool = False) -> None:
        """Replace the index files by what is in memory. `durable`: of a segment that the next start may not read."""
        self.offset_index.rewrite(self.files, durable=durable)
        self.time_index.rewrite(self.files, durable=durable)
        self.transaction_index.rewrite(self.files, durable=durable)

    def forget_indexes(self) -> None:
        """Empty the indexes in memory, before `note` rebuilds them."""
        self.offset_index = OffsetIndex(self.offset_index.path, self.base_offset, loaded=True)
        self.time_index = TimeIndex(self.time_index.path, self.base_offset, loaded=True)
        self.transaction_index = TransactionIndex(self.transaction_index.path, loaded=True)
        self.max_timestamp_ms = -1
        self.offset_of_max_timestamp = self.base_offset
        self._first_timestamp_ms = _NOT_LOOKED_AT
        self._indexed_position = 0
        self._largest_known = True

    # Reading

    def load_indexes(self) -> None:
        self._load_offsets()
        is_known = self.time_index.crc is not None
        try:
            self.time_index.load(self.files)
            if not is_known:
                # By its last entry retention decides: a wrong one would remove records too early, or never.
                self._check_time(*self.time_index.last)
        except DamagedIndex as damage:
            self._rebuild(damage.why)
        self.transaction_index.load(self.files)
        self._indexed_position = self.offset_index.last_position

    def _load_offsets(self) -> None:
        try:
            self.offset_index.load(self.files)
        except DamagedIndex as damage:
            self._rebuild(damage.why)

    def _check_time(self, timestamp_ms: int, offset: int) -> None:
        """`DamagedIndex` if an entry of the time index is not true. A damaged log tells nothing about that: the entry
        is believed, and whoever reads the log is told."""
        if timestamp_ms == -1:
            return  # there is no entry
        try:
            # The entry of the offset index before it is near.
            placed = self.locate(offset, _NEAR_BYTES)
            if placed is not None:
                head = HEADER.unpack(self.read(placed.position, HEADER_SIZE))
                if placed.base_offset <= offset and head[_MAX_TIMESTAMP] == timestamp_ms:
                    return
                check(Batch.parse(self.read(placed.position, placed.size_bytes)), stored=True)
        except Refused:
            return
        self.time_index.crc = None  # if it cannot be rebuilt now it is looked at again
        self.time_index.unload()
        raise DamagedIndex(f"{self.time_index.path} is damaged: offset {offset} is not of the time it has there")

    def offset_before(self, timestamp_ms: int) -> int:
        """Everything up to this offset is older than `timestamp_ms`."""
        self.load_indexes()
        entry = self.time_index.entry_before(timestamp_ms)
        try:
            self._check_time(*entry)
        except DamagedIndex as damage:
            self._rebuild(damage.why)
            entry = self.time_index.entry_before(timestamp_ms)
        return entry[1]

    def _rebuild(self, why: str) -> None:
        """Rebuild the offset and time index by reading the whole segment. `DamagedLog` if that is damaged, too."""
        size, largest_known = self.size_bytes, self._largest_known
        before = self.offset_index, self.time_index, self.transaction_index
        self.forget_indexes()
        self.transaction_index = before[2]
        end, expected = 0, self.base_offset
        try:
            for position, batch in self.batches_with_positions():
                # With a batch that claims a wrong offset, the index would lead readers past others.
                self.check_place(batch, expected, position)
                self.note(position, batch.size_bytes, batch.last_offset, batch.max_timestamp, _REBUILT_INTERVAL_BYTES)
                end, expected = position + batch.size_bytes, batch.next_offset
            if end < size:
                raise self.no_batch_at(end)
        except Refused:
            self.offset_index, self.time_index, self._largest_known = before[0], before[1], largest_known
            raise
        finally:
            self.size_bytes = size
        if self.max_timestamp_ms >= 0:
            self.time_index.append(self.max_timestamp_ms, self.offset_of_max_timestamp)
        logger.warning("%s; it is rebuilt from the log", why)
        self.offset_index.rewrite(self.files)
        self.time_index.rewrite(self.files)

    def can_hold(self, batch: Batch) -> bool:
        """Whether the offsets that a batch claims can be in an index of this segment."""
        return self.base_offset <= batch.base_offset <= batch.last_offset <= self.base_offset + RELATIVE_OFFSET_MAX

    def check_place(self, batch: Batch, expected: int, position: int) -> None:
        """`DamagedLog` if a batch claims offsets that it cannot have where `expected` is due."""
        self._check_offset(batch.base_offset, expected, position)
        if not self.can_hold(batch):
            what = f"a batch claims the offsets {batch.base_offset} to {batch.last_offset}"
            raise DamagedLog(self.log_path, position, what, code=ErrorCode.CORRUPT_MESSAGE)

    def load_largest_timestamp(self) -> None:
        """Find the largest timestamp: the last entry of the time index, and the few batches after it."""
        if not self._largest_known:
            self.load_tail()

    def load_tail(self) -> int | None:
        """Load the indexes and read what follows their last entry. Returns the next offset; None if the log does not
        end in a whole batch."""
        self.load_indexes()
        self.max_timestamp_ms, self.offset_of_max_timestamp = self.time_index.last
        next_offset = self.base_offset
        end, expected = self.offset_index.last_entry
        for position, batch in self.batches_with_positions(end, _WALK_BYTES):
            if expected >= 0 and batch.last_offset != expected:
                raise DamagedIndex(f"{self.offset_index.path} is damaged: its last entry is not where a batch begins")
            expected = -1
            if batch.max_timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms, self.offset_of_max_timestamp = batch.max_timestamp, batch.last_offset
            end, next_offset = position + batch.size_bytes, batch.next_offset
        self._largest_known = True
        return next_offset if end == self.size_bytes else None

    def check_cold(self, data: bytes | memoryview, position: int, wanted: int, end_offset: int) -> None:
        """Check whole batches that an earlier process wrote, before they are given to a reader who asked for the
        offset `wanted`: `DamagedLog` if they are not what was written. What was checked once is not checked again.
        `end_offset`: where the segment ends."""
        checked_from, checked_to, next_offset = self._checked
        end = position + len(data)
        if checked_from <= position and end <= checked_to:
            return
        joins = checked_from <= position <= checked_to
        here = checked_to if joins else position
        expected = next_offset if joins else -1
        view = memoryview(data)
        if self.has_no_gaps and OFFSET_AND_LENGTH.unpack_from(view)[0] > wanted:
            raise self.cannot_find(wanted)
        unpack = OFFSETS_AND_CRC.unpack_from
        while here < end:
            # No object per batch: there may be very many, and other requests wait.
            at = here - position
            head = unpack(view, at) if at + HEADER_SIZE <= len(view) else _NO_BATCH
            base_offset, length, magic, crc, last_delta = head
            size = length + LENGTH_OVERHEAD
            is_whole = magic == MAGIC and HEADER_SIZE <= size <= end - here
            if not is_whole or crc32c(view[at + CHECKED_FROM : at + size]) != crc:
                raise self._damage_at(view, at, here)
            if base_offset != expected:
                self._check_offset(base_offset, expected, here)
            here, expected = here + size, base_offset + last_delta + 1
        following = end_offset
        if end < self.size_bytes:
            following = int.from_bytes(self.read(end, 8), "big", signed=True)
        self._check_offset(following, expected, end)
        self._checked = (checked_from if joins else position, end, expected)

    def is_checked(self, position: int, size_bytes: int) -> bool:
        """Whether `size_bytes` from `position` on need no check: this process wrote or checked them."""
        return position >= self.cold_bytes or (
            self._checked[0] <= position and min(position + size_bytes, self.cold_bytes) <= self._checked[1]
        )

    def _damage_at(self, view: memoryview, at: int, position: int) -> DamagedLog:
        """The error for a bad batch."""
        why = "no batch begins there"
        try:
            check(Batch.parse(view, at), stored=True)
        except Refused as refused:
            why = refused.why
        return DamagedLog(self.log_path, position, why, code=ErrorCode.CORRUPT_MESSAGE)

    def cannot_find(self, wanted: int) -> DamagedLog:
        """The error where the segment should hold this offset and does not: it names the first batch that is wrong."""
        here, expected = 0, self.base_offset
        for position, batch in self.batches_with_positions():
            try:
                check(batch, stored=True)
                self._check_offset(batch.base_offset, expected, position)
            except DamagedLog as damage:
                return damage
            except Refused as refused:
                return DamagedLog(self.log_path, position, refused.why, code=ErrorCode.CORRUPT_MESSAGE)
            here, expected = position + batch.size_bytes, batch.next_offset
        what = f"no batch holds offset {wanted}"
        return DamagedLog(self.log_path, here, what, code=ErrorCode.CORRUPT_MESSAGE)

    def _check_offset(self, base_offset: int, expected: int, position: int) -> None:
        """A batch's offset is not covered by its CRC, so it is compared with the batches before and after."""
        wrong = base_offset < max(expected, self.base_offset)
        if wrong or (self.has_no_gaps and 0 <= expected < base_offset):
            due = expected if expected >= 0 else self.base_offset
            what = f"a batch claims offset {base_offset} where {due} must stand"
            raise DamagedLog(self.log_path, position, what, code=ErrorCode.CORRUPT_MESSAGE)

    def read(self, position: int, size_bytes: int) -> bytes:
        return self.files.read_at(self.descriptor, size_bytes, position)

    def walk(self, position: int, chunk_bytes: int = _WALK_BYTES) -> Iterator[Placed]:
        """The place of every batch from `position` on, by their headers. `Refused` where there is no batch."""
        end = self.size_bytes
        chunk, start = b"", position
        while position < end:
            if position + HEADER_SIZE > start + len(chunk):
                start = position
                chunk = self.read(start, min(chunk_bytes, end - start))
                if len(chunk) < HEADER_SIZE:
                    raise self.no_batch_at(position)
            base_offset, length, last_delta = OFFSETS.unpack_from(chunk, position - start)
            size = length + LENGTH_OVERHEAD
            if size < HEADER_SIZE or position + size > end:
                raise self.no_batch_at(position)
            yield Placed(position, size, base_offset, base_offset + last_delta)
            position += size

    def no_batch_at(self, position: int) -> Refused:
        """The error where a batch should begin. To read on would skip records silently."""
        return DamagedLog(self.log_path, position, "no batch begins there", code=ErrorCode.CORRUPT_MESSAGE)

    def locate(self, offset: int, chunk_bytes: int = _WALK_BYTES) -> Placed | None:
        """The first batch that ends at or after `offset`."""
        self._load_offsets()
        start, expected = self.offset_index.entry_before(offset)
        if expected >= 0 and not self._begins_at(start, expected):
            # Reading from a wrong position would skip batches, or begin in the middle of one.
            self._rebuild(f"{self.offset_index.path} is damaged: an entry is not where a batch begins")
            start, _ = self.offset_index.entry_before(offset)
        least = self.base_offset
        for placed in self.walk(start, chunk_bytes):
            if placed.base_offset < least:
                self._check_offset(placed.base_offset, least, placed.position)
            if placed.last_offset >= offset:
                return placed
            least = placed.last_offset + 1
        return None

    def _begins_at(self, position: int, last_offset: int) -> bool:
        """Whether a batch that ends with this offset begins at this position, going by its header."""
        head = self.read(position, HEADER_SIZE)
        if len(head) < HEADER_SIZE:
            return False
        base_offset, _, last_delta = OFFSETS.unpack_from(head)
        return bool(base_offset + last_delta == last_offset)

    def whole_batches(self, data: bytes | memoryview, position: int) -> tuple[int, int]:
        """How many bytes of `data`, read at `position`, are whole batches, and the offset that comes after them."""
        self._load_offsets()
        known, last_offset = self.offset_index.batch_start_at_or_before(position + len(data) - HEADER_SIZE)
        here = max(known - position, 0)
        if here:
            base_offset, _, last_delta = OFFSETS.unpack_from(data, here)
            if base_offset + last_delta != last_offset:
                here = 0  # the index is wrong: go by the batches
        next_offset = -1
        while here + HEADER_SIZE <= len(data):
            base_offset, length, last_delta = OFFSETS.unpack_from(data, here)
            if next_offset < 0:
                next_offset = base_offset
            if length + LENGTH_OVERHEAD < HEADER_SIZE or here + length + LENGTH_OVERHEAD > len(data):
                break
            here += length + LENGTH_OVERHEAD
            next_offset = base_offset + last_delta + 1
        return here, next_offset

    def whole_extent(self, position: int, size_bytes: int) -> tuple[int, int]:
        """The same as `whole_batches` of what would be read there, without reading more than its end."""
        self._load_offsets()
        limit = position + size_bytes
        known, last_offset = self.offset_index.batch_start_at_or_before(limit - HEADER_SIZE)
        if known > position and self._begins_at(known, last_offset):
            end, next_offset = self._walk_to(known, limit)
            if next_offset >= 0:
                return end - position, next_offset
        end, next_offset = self._walk_to(position, limit)
        return end - position, next_offset

    def _walk_to(self, position: int, limit: int) -> tuple[int, int]:
        """Where the last batch ends that is whole before `limit`, and the offset after it; -1 if no batch is there."""
        next_offset = -1
        with suppress(Refused):
            for placed in self.walk(position):
                if next_offset < 0:
                    next_offset = placed.base_offset
                if placed.position + placed.size_bytes > limit:
                    break
                position, next_offset = placed.position + placed.size_bytes, placed.last_offset + 1
        return position, next_offset

    def batches(self, position: int = 0, chunk_bytes: int = _SCAN_BYTES) -> Iterator[Batch]:
        """Every whole batch from `position` on. Stops at the first bytes that are not one."""
        for _, batch in self.batches_with_positions(position, chunk_bytes):
            yield batch

    def batches_with_positions(self, position: int = 0, chunk_bytes: int = _SCAN_BYTES) -> Iterator[tuple[int, Batch]]:
        end = self.size_bytes
        while position + HEADER_SIZE <= end:
            chunk = memoryview(self.read(position, min(chunk_bytes, end - position)))
            here = 0
            while here + HEADER_SIZE <= len(chunk):
                _, length = OFFSET_AND_LENGTH.unpack_from(chunk, here)
                if here + length + LENGTH_OVERHEAD > len(chunk):
                    if here == 0:
                        if length + LENGTH_OVERHEAD <= chunk_bytes or position + length + LENGTH_OVERHEAD > end:
                            return
                        chunk = memoryview(self.read(position, length + LENGTH_OVERHEAD))
                        if len(chunk) < length + LENGTH_OVERHEAD:
                            return
                    else:
                        break
                try:
                    batch = Batch.parse(chunk, here)
                except Refused:
                    return
                yield position + here, batch
                here += batch.size_bytes
            if here == 0:
                return
            position += here

    def batches_to_the_end(self, position: int = 0, chunk_bytes: int = _SCAN_BYTES) -> Iterator[Batch]:
        """Every batch from `position` to the end. `Refused` where there is something else."""
        end = position
        for here, batch in self.batches_with_positions(position, chunk_bytes):
            yield batch
            end = here + batch.size_bytes
        if end < self.size_bytes:
            raise self.no_batch_at(end)

    def checked_batches(self) -> Iterator[Batch]:
        """Every batch of the segment, each with its CRC checked."""
        for batch in self.batches_to_the_end():
            check(batch, stored=True)
            yield batch

    def paths(self) -> list[str]:
        return [self.stem + suffix for suffix in SEGMENT_SUFFIXES]

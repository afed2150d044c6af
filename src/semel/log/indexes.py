"""The three indexes of a segment, in Apache Kafka's formats.

- `.index`: 8 bytes an entry: offset of a batch's last record relative to the segment, position of that batch.
- `.timeindex`: 12 bytes an entry: the largest timestamp so far and the relative offset of the batch that brought it.
- `.txnindex`: 34 bytes an entry: an aborted transaction and where the last stable offset could go after it.

The first two are sparse and can be rebuilt from the log byte for byte, so they are kept in memory and written late. The
third is written at once: read_committed depends on it.

An index knows the CRC-32C of what it wrote, or of what a clean stop left. A file with another CRC-32C is damaged, even
if its entries rise as they should.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeVar

from crc32c import crc32c

from semel.errors import ErrorCode, Refused
from semel.log.files import Files

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12
TRANSACTION_ENTRY_SIZE = 34
RELATIVE_OFFSET_MAX = 2**31 - 1

_TIME_ENTRY = struct.Struct(">qi")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")


_Entries = TypeVar("_Entries")


class DamagedIndex(Refused):
    """An index file that cannot be what was written; it is rebuilt from the log."""

    def __init__(self, why: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, why)


def _replace_durably(files: Files, path: str, data: bytes) -> None:
    """Replace an index that a later start may believe without reading its segment again. Where it is right it stays as
    it is: it may be on disk, and a power failure must not take it from there."""
    if not files.exists(path) or files.read(path) != data:
        files.replace(path, data)


class _SparseIndex:
    """An index that is kept in memory and written late: two columns of numbers, one of them relative offsets."""

    __slots__ = ("_loaded", "_written", "base_offset", "crc", "path")

    ENTRY_SIZE: ClassVar[int]

    def __init__(self, path: str, base_offset: int, *, loaded: bool) -> None:
        self.path = path
        self.base_offset = base_offset
        self._forget()
        self._loaded = loaded
        #: CRC-32C of the file; None where nobody knows it.
        self.crc: int | None = 0 if loaded else None

    def load(self, files: Files) -> None:
        """Read the file, once. Refuses one that is not what was written, or whose entries do not rise."""
        if self._loaded:
            return
        self.crc = self._load(files)
        self._written = len(self)
        self._loaded = True

    def unload(self) -> None:
        """Keep in memory only what is not on disk."""
        if self._loaded and self._written == len(self):
            self._forget()
            self._loaded = False

    def write(self, files: Files) -> None:
        """Append to the file what is only in memory."""
        count = len(self)
        if count == self._written:
            return
        data = self._encode_from(self._written)
        files.write_into(self.path, data, self._written * self.ENTRY_SIZE)
        self._written, self.crc = count, crc32c(data, self.crc or 0)

    def rewrite(self, files: Files, *, durable: bool = False) -> None:
        """Replace the file by what is in memory. `durable`: see `_replace_durably`."""
        if durable:
            data = self._encode_from(0)
            _replace_durably(files, self.path, data)
            self._written, self.crc = len(self), crc32c(data)
            return
        files.replace(self.path, b"", durable=False)
        self._written, self.crc = 0, 0
        self.write(files)

    def __len__(self) -> int:
        raise NotImplementedError

    def _forget(self) -> None:
        self._written = 0

    def _load(self, files: Files) -> int:
        """Take over what the file holds. Returns its CRC-32C."""
        raise NotImplementedError

    def _encode_from(self, first: int) -> bytes:
        """The entries from number `first` on, as the file has them."""
        raise NotImplementedError


class OffsetIndex(_SparseIndex):
    """Where batches lie: relative last offset -> position."""

    __slots__ = ("_offsets", "_positions")

    ENTRY_SIZE = OFFSET_ENTRY_SIZE

    def _forget(self) -> None:
        super()._forget()
        self._offsets, self._positions = array("I"), array("I")

    def _load(self, files: Files) -> int:
        (self._offsets, self._positions), crc = _read(files, self.path, decode_offset_entries, self.crc)
        return crc

    def _encode_from(self, first: int) -> bytes:
        flat = array("I", bytes(OFFSET_ENTRY_SIZE * (len(self) - first)))
        flat[0::2] = self._offsets[first:]
        flat[1::2] = self._positions[first:]
        if sys.byteorder == "little":
            flat.byteswap()
        return flat.tobytes()

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last_position(self) -> int:
        """Position of the last batch that has an entry; 0 when none has."""
        return self._positions[-1] if self._positions else 0

    def append(self, last_offset: int, position: int) -> None:
        self._offsets.append(last_offset - self.base_offset)
        self._positions.append(position)

    def position_before(self, offset: int) -> int:
        """Where to begin looking for the batch that holds `offset`."""
        return self.entry_before(offset)[0]

    def entry_before(self, offset: int) -> tuple[int, int]:
        """(where to begin looking for the batch that holds `offset`, the last offset of the batch there); (0, -1) for
        the beginning of the segment."""
        return self._entry(bisect_right(self._offsets, max(offset - self.base_offset, 0)))

    def batch_start_at_or_before(self, position: int) -> tuple[int, int]:
        """(the largest known start of a batch that is not past `position`, the last offset of that batch), as the
        index has it; (0, -1) where there is none."""
        return self._entry(bisect_right(self._positions, position))

    @property
    def last_entry(self) -> tuple[int, int]:
        """(position, last offset) of the last entry; (0, -1) when there is none."""
        return self._entry(len(self._positions))

    def _entry(self, count: int) -> tuple[int, int]:
        """(position, last offset) of the last of the first `count` entries."""
        return (self._positions[count - 1], self.base_offset + self._offsets[count - 1]) if count else (0, -1)

    def entries(self) -> list[tuple[int, int]]:
        pairs = zip(self._offsets, self._positions, strict=True)
        return [(self.base_offset + offset, position) for offset, position in pairs]


class TimeIndex(_SparseIndex):
    """How far to skip for a timestamp: largest timestamp so far -> relative last offset of its batch."""

    __slots__ = ("_offsets", "_timestamps")

    ENTRY_SIZE = TIME_ENTRY_SIZE

    def _forget(self) -> None:
        super()._forget()
        self._timestamps, self._offsets = array("q"), array("I")

    def _load(self, files: Files) -> int:
        (self._timestamps, self._offsets), crc = _read(files, self.path, decode_time_entries, self.crc)
        return crc

    def _encode_from(self, first: int) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps[first:], self._offsets[first:]))

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last(self) -> tuple[int, int]:
        """(largest timestamp, offset) of the last entry; (-1, base offset) when there is none."""
        if not self._timestamps:
            return -1, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def append(self, timestamp_ms: int, offset: int) -> None:
        """Only a larger timestamp gets an entry."""
        if not self._timestamps or timestamp_ms > self._timestamps[-1]:
            self._timestamps.append(timestamp_ms)
            self._offsets.append(offset - self.base_offset)

    def entry_before(self, timestamp_ms: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry before `timestamp_ms`: everything up to this offset is older. (-1, base
        offset) where there is none."""
        found = bisect_left(self._timestamps, timestamp_ms)
        if not found:
            return -1, self.base_offset
        return self._timestamps[found - 1], self.base_offset + self._offsets[found - 1]

    def entries(self) -> list[tuple[int, int]]:
        pairs = zip(self._timestamps, self._offsets, strict=True)
        return [(stamp, self.base_offset + offset) for stamp, offset in pairs]


class AbortedTransaction(NamedTuple):
    """A transaction whose abort marker is in this segment."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions of a segment, in the order of their markers."""

    __slots__ = ("_entries", "_loaded", "crc", "path")

    def __init__(self, path: str, *, loaded: bool) -> None:
        self.path = path
        self._entries: list[AbortedTransaction] = []
        self._loaded = loaded
        self.crc: int | None = 0 if loaded else None

    def load(self, files: Files) -> None:
        """Read the file, once. A damaged one is rebuilt by the next start: that takes more than this segment."""
        if self._loaded:
            return
        try:
            self._entries, self.crc = _read(files, self.path, decode_transaction_entries, self.crc)
        except DamagedIndex as damage:
            size = files.size(self.path)
            if size % TRANSACTION_ENTRY_SIZE == 0:
                # After a crash a start looks at sizes only. A size that no index can have makes it rebuild this one.
                files.write_into(self.path, b"\0", size)
            raise DamagedIndex(f"{damage.why}; the next start rebuilds it from the log") from None
        self._loaded = True

    def append(self, files: Files, aborted: AbortedTransaction) -> None:
        """Write the entry to disk first: the last stable offset moves only past aborts that a restart finds again."""
        data = encode_transaction_entry(aborted)
        files.write_into(self.path, data, len(self._entries) * TRANSACTION_ENTRY_SIZE)
        self.crc = crc32c(data, self.crc or 0)
        self._entries.append(aborted)

    def hold(self, entries: list[AbortedTransaction]) -> None:
        """Take over rebuilt entries; `rewrite` puts them on disk."""
        self._entries = entries
        self._loaded = True
        self.crc = crc32c(b"".join(map(encode_transaction_entry, entries)))

    def rewrite(self, files: Files, *, durable: bool = False) -> None:
        """Replace the file by what is in memory. `durable`: see `_replace_durably`."""
        data = b"".join(map(encode_transaction_entry, self._entries))
        if data or files.exists(self.path):
            if durable:
                _replace_durably(files, self.path, data)
            else:
                files.replace(self.path, data, durable=False)
        self.crc = crc32c(data)

    def collect(self, from_offset: int, upper_bound: int, into: list[AbortedTransaction]) -> bool:
        """Add those that touch [from_offset, upper_bound); True when no later segment can have another."""
        entries = self._entries
        start = bisect_left(entries, from_offset, key=lambda entry: entry.last_offset)
        for entry in entries[start:]:
            if entry.first_offset < upper_bound:
                into.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return True
        return False

    @property
    def entries(self) -> list[AbortedTransaction]:
        return list(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def encode_transaction_entry(entry: AbortedTransaction) -> bytes:
    return _TRANSACTION_ENTRY.pack(0, *entry)


def decode_offset_entries(data: bytes) -> tuple[array[int], array[int]]:
    """(relative offsets, positions) of an `.index` file."""
    if len(data) % OFFSET_ENTRY_SIZE:
        raise DamagedIndex(f"{len(data)} bytes are no whole number of {OFFSET_ENTRY_SIZE}-byte entries")
    flat = array("I", data)
    if sys.byteorder == "little":
        flat.byteswap()
    offsets, positions = flat[0::2], flat[1::2]
    if not _rises(offsets) or not _rises(positions):
        raise DamagedIndex("the entries do not rise")
    return offsets, positions


def decode_time_entries(data: bytes) -> tuple[array[int], array[int]]:
    """(timestamps, relative offsets) of a `.timeindex` file."""
    if len(data) % TIME_ENTRY_SIZE:
        raise DamagedIndex(f"{len(data)} bytes are no whole number of {TIME_ENTRY_SIZE}-byte entries")
    timestamps, offsets = array("q"), array("I")
    for stamp, offset in _TIME_ENTRY.iter_unpack(data):
        if offset < 0:
            raise DamagedIndex(f"an entry has the relative offset {offset}")
        timestamps.append(stamp)
        offsets.append(offset)
    if not _rises(timestamps):
        raise DamagedIndex("the timestamps do not rise")
    return timestamps, offsets


def decode_transaction_entries(data: bytes) -> list[AbortedTransaction]:
    """The entries of a `.txnindex` file."""
    if len(data) % TRANSACTION_ENTRY_SIZE:
        raise DamagedIndex(f"{len(data)} bytes are no whole number of {TRANSACTION_ENTRY_SIZE}-byte entries")
    entries = []
    previous = -1
    for version, *fields in _TRANSACTION_ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version != 0:
            raise DamagedIndex(f"entry version {version} is not known")
        if entry.last_offset <= previous or entry.first_offset > entry.last_offset:
            raise DamagedIndex(f"the aborted transaction {entry} is out of order")
        previous = entry.last_offset
        entries.append(entry)
    return entries


def _rises(values: array[int]) -> bool:
    return all(map(int.__lt__, values, values[1:]))


def _read(
    files: Files, path: str, decode: Callable[[bytes], _Entries], expected: int | None
) -> tuple[_Entries, int]:
    """What an index file holds, and its CRC-32C."""
    try:
        data = files.read(path)
    except FileNotFoundError:
        data = b""
    crc = crc32c(data)
    try:
        if expected is not None and crc != expected:
            raise DamagedIndex("its CRC-32C is not that of what was written")
        return decode(data), crc
    except DamagedIndex as damage:
        raise DamagedIndex(f"{path} is damaged: {damage.why}") from None

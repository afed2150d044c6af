"""The first hole in a log: finding valid batches behind it, and setting them aside.

When the machine itself went down, bytes that were not fsynced may be missing from one segment and present in the next.
The log then ends at the hole: nothing more was promised, and nothing may be served past a hole. What lies behind it is
moved to a directory of the partition, until a person removes it or the topic is deleted.
"""

from __future__ import annotations

from semel.errors import Refused
from semel.log.file_names import LOG_SUFFIX, file_stem
from semel.log.files import Files
from semel.log.segment import Segment
from semel.records.batch import Batch, check
from semel.records.layout import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, MAGIC_AT, OFFSET_AND_LENGTH

#: The names of directories with set-aside batches begin with this.
CUT_PREFIX = "cut-at-"

_OFFSETS_AHEAD_MAX = 2**31
_COPY_BYTES = 4 * 1024 * 1024


def valid_batch_after(segment: Segment, position: int, expected: int) -> int | None:
    """The position of the first valid batch after `position` with a later offset; None if there is none."""
    window = 8 * 1024 * 1024
    start = position + 1
    while start + HEADER_SIZE <= segment.size_bytes:
        data = memoryview(segment.read(start, window + HEADER_SIZE))
        raw = bytes(data)
        found = raw.find(MAGIC, MAGIC_AT)
        while found >= 0 and found - MAGIC_AT < window and found - MAGIC_AT + HEADER_SIZE <= len(raw):
            here = found - MAGIC_AT
            base_offset, length = OFFSET_AND_LENGTH.unpack_from(raw, here)
            if (
                expected <= base_offset < expected + _OFFSETS_AHEAD_MAX
                and HEADER_SIZE <= length + LENGTH_OVERHEAD <= segment.size_bytes - start - here
            ):
                try:
                    whole = segment.read(start + here, length + LENGTH_OVERHEAD)
                    check(Batch.parse(whole), stored=True)
                except Refused:
                    pass
                else:
                    return start + here
            found = raw.find(MAGIC, found + 1)
        start += window
    return None


def set_aside(
    files: Files, directory: str, end_offset: int, torn: Segment, valid_bytes: int, later: list[Segment]
) -> str:
    """Move the bytes of `torn` from `valid_bytes` on, and all of `later`, to a directory. Returns its path.

    This may be killed at any point. It copies before anything is cut, and moves the last segment first, so that the
    rest still follows the same hole.
    """
    place = f"{directory}/{CUT_PREFIX}{file_stem(end_offset)}"
    files.make_directory(place)
    if valid_bytes < torn.size_bytes:
        copy = f"{place}/{file_stem(torn.base_offset)}{LOG_SUFFIX}.from-byte-{valid_bytes}"
        for position in range(valid_bytes, torn.size_bytes, _COPY_BYTES):
            files.write_into(copy, torn.read(position, _COPY_BYTES), position - valid_bytes)
        files.sync_path(copy)
    for segment in reversed(later):
        segment.close()
        for path in reversed(segment.paths()):
            if files.exists(path):
                files.rename(path, f"{place}/{path.rsplit('/', 1)[1]}")
    files.sync_directory(place)
    files.sync_directory(directory)
    return place

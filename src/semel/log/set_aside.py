"""Keeping what recovery takes out of a log although it is not torn.

When the machine itself went down, what had not been fsynced may be gone from one segment and still be there in the
next. The log then ends where it stops being whole: nobody was promised more, and nothing may be served past a hole.
What lies behind the hole is kept beside the log, in a directory of the partition, until a person or the end of the
topic removes it.
"""

from __future__ import annotations

from semel.log.files import Files
from semel.log.segment import LOG_SUFFIX, Segment, file_stem

_COPY_BYTES = 4 * 1024 * 1024


def set_aside(
    files: Files, directory: str, end_offset: int, torn: Segment, valid_bytes: int, later: list[Segment]
) -> str:
    """Keep the bytes of `torn` from `valid_bytes` on and all of `later`; the answer is where.

    It may be killed at any point: it copies before anything is cut, and moves the last segment first, so that what is
    left to move still follows the same hole.
    """
    place = f"{directory}/cut-at-{file_stem(end_offset)}"
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

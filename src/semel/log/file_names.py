"""The names of a partition's files."""

from __future__ import annotations

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

#: A segment that left the log; its files are removed later.
DELETED_SUFFIX = ".deleted"
#: A compacted segment that is being written.
CLEANED_SUFFIX = ".cleaned"
#: A compacted segment that is whole and takes the place of the old ones.
SWAP_SUFFIX = ".swap"
#: The successor of a file that is being replaced.
TEMPORARY_SUFFIX = ".tmp"
#: What is not, or not yet, part of the log.
PASSING_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX)


def file_stem(offset: int) -> str:
    """The 20 digits with which the names of all files of a segment begin."""
    return f"{offset:020d}"


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{file_stem(offset)}{SNAPSHOT_SUFFIX}"

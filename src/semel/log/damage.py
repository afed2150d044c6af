"""The errors for damaged or missing files: which file, what is wrong with it, and what to do."""

from __future__ import annotations

from uuid import UUID

from semel.errors import ErrorCode, Refused
from semel.log.checkpoints import (
    EXPECTED_FILES,
    HIGH_WATERMARKS,
    MANIFEST,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    topic_id_text,
)

_GO_ON_WITHOUT_IT = (
    "to go on without its records instead, stop the broker, remove its line from the data directory's "
    f"{RECOVERY_POINTS} and {HIGH_WATERMARKS} (the second line of such a file counts the lines), and start again."
)


class DamagedLog(Refused):
    """Stored bytes have changed or are gone, and it is not just a torn tail.

    Whoever asks for the partition is refused with KAFKA_STORAGE_ERROR. A reader who meets the damage while the
    partition is served gets CORRUPT_MESSAGE, which clients do not retry silently.
    """

    def __init__(
        self,
        path: str,
        position: int,
        what: str,
        *,
        code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR,
        remedy: str | None = None,
    ) -> None:
        self.path = path
        self.position = position
        self.what = what
        if remedy is None:
            remedy = (
                "Restore the file from a copy or a replica; to give up everything from there on instead, stop the "
                f"broker, cut the file to {position} bytes, remove the later segments of the partition, its "
                f"{EXPECTED_FILES} if it has one, and the data directory's {RECOVERY_POINTS} and {MANIFEST}, and start "
                "again."
            )
        super().__init__(code, f"{path} is damaged at byte {position}: {what}. Nothing was changed. {remedy}")


class MissingFiles(DamagedLog):
    """A segment or a whole partition that existed at the last stop is missing."""

    def __init__(self, path: str, what: str, remedy: str) -> None:
        super().__init__(path, 0, what)
        self.why = f"{path} is missing: {what}. Nothing was changed. {remedy}"


class ForeignPartition(DamagedLog):
    """The directory belongs to another topic than the one in the metadata store."""

    def __init__(self, path: str, stored: UUID, wanted: UUID) -> None:
        super().__init__(path, 0, "it names another topic")
        self.code = ErrorCode.INCONSISTENT_TOPIC_ID
        self.why = (
            f"{path} belongs to topic id {stored}, the topic of this name has {wanted}. Nothing was changed. Restore "
            "the directory, or the data directory's .metadata/topics, from the same copy; if the directory is the "
            "right one, stop the broker, remove the file, and start again."
        )


class NamelessPartition(DamagedLog):
    """A replica's log has records, and nothing says which topic's they are. Another topic may have had this name."""

    def __init__(self, directory: str, wanted: UUID) -> None:
        path = f"{directory}/{PARTITION_METADATA}"
        super().__init__(path, 0, "it does not name a topic")
        self.why = (
            f"{path} does not name a topic, and its log has records: they may be those of an earlier topic of this "
            f"name. Nothing was changed. Restore the file. If they surely belong to the topic of today, stop the "
            f"broker, write the lines 'version: 0' and 'topic_id: {topic_id_text(wanted)}' into it, and start again."
        )


def missing_segment(path: str, size_bytes: int) -> MissingFiles:
    directory = path.rsplit("/", 1)[0]
    return MissingFiles(
        path,
        f"it had {size_bytes} bytes when the broker last stopped",
        "Restore the file from a copy or a replica; to go on without its records instead, stop the broker, remove the "
        f"later segments of the partition, {directory}/{EXPECTED_FILES}, and the data directory's {RECOVERY_POINTS} "
        f"and {MANIFEST}, and start again.",
    )


def missing_log(path: str) -> MissingFiles:
    return MissingFiles(
        path,
        "its indexes are there",
        "Restore the file from a copy or a replica; to go on without its records instead, stop the broker, remove the "
        "indexes, and start again.",
    )


def missing_segments(directory: str, end_offset: int) -> MissingFiles:
    return MissingFiles(
        f"{directory}: every file of the log",
        f"everything below offset {end_offset} was safely on disk",
        f"Restore the files from a copy or a replica; {_GO_ON_WITHOUT_IT}",
    )


def missing_partition(
    directory: str, end_offset: int | None = None, how: str = "was safely on disk"
) -> MissingFiles:
    had = "it was there when the broker last stopped"
    if end_offset is not None:
        had = f"everything below offset {end_offset} {how}" if end_offset else "it was there when the broker last ran"
    return MissingFiles(directory, had, f"Restore the directory from a copy or a replica; {_GO_ON_WITHOUT_IT}")


def short_log(directory: str, end_offset: int, committed: int) -> MissingFiles:
    """Of a replica that once had more."""
    return MissingFiles(
        f"{directory}: the end of the log",
        f"it ends at offset {end_offset}, yet everything below offset {committed} was committed",
        "Restore the directory from a copy or a replica; to go on without these records instead, stop the broker, "
        f"remove its line from the data directory's {HIGH_WATERMARKS} (the second line of that file counts the lines), "
        "and start again.",
    )


class DirectoryGone(Refused):
    """Files were removed while the broker runs: whatever it writes now would be lost."""

    def __init__(self, path: str) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{path} was removed or replaced while the broker runs; nothing in it is served any more. Stop the broker, "
            "restore the directory from a copy, and start again.",
        )

"""One partition: its log, and who waits for it to change.

Guarantees:

- The log is opened at its first use.
- A partition whose files are damaged or cannot be opened is offline, and no other is: requests for it are answered with
  KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from semel.errors import ErrorCode, Refused
from semel.log.damage import DamagedLog, DirectoryGone
from semel.log.file_names import LOG_SUFFIX

if TYPE_CHECKING:
    from semel.broker.topics.topic import Topic
    from semel.log.files import Files
    from semel.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


class Partition:
    """A partition of a topic."""

    __slots__ = ("_files", "_log", "_open", "directory", "index", "offline", "topic", "watchers")

    #: Whether this broker serves the partition to clients.
    is_served: bool = True
    #: Changes when this broker begins to lead or to follow it; -1 if it does neither.
    reader_role: int = 0
    #: Whether it is on this broker.
    is_local: bool = True

    def __init__(
        self, topic: Topic, index: int, directory: Path, open_log: Callable[[Partition], PartitionLog], files: Files
    ) -> None:
        self.topic = topic
        self.index = index
        self.directory = directory
        self._open = open_log
        self._files = files
        self._log: PartitionLog | None = None
        #: Why the log could not be opened. Damage stays until a restart; anything else is tried again.
        self.offline: Refused | None = None
        #: Called after anything that a reader may see has changed: data, high watermark, last stable offset, existence.
        #: Those who wait longest come first.
        self.watchers: dict[Callable[[], None], None] = {}

    @property
    def has_files(self) -> bool:
        """Whether anything was ever written: the directory exists."""
        return self._files.exists(self.directory)

    @property
    def size_bytes(self) -> int:
        """The size of its log, without opening it: there may be thousands, and a damaged one has a size as well."""
        if self._log is not None:
            return self._log.size_bytes
        if not self.has_files:
            return 0
        return sum(size for name, size in self._files.sizes(self.directory).items() if name.endswith(LOG_SUFFIX))

    @property
    def log(self) -> PartitionLog:
        """The partition's log; the first use opens it."""
        return self._log or self._opened_log()

    @property
    def own_log(self) -> PartitionLog:
        """The log for what a broker does by itself. In a cluster `log` is the leader's alone."""
        return self.log

    @property
    def knows_its_end(self) -> bool:
        """Whether the high watermark is known. A new leader learns it from its followers."""
        return True

    def _opened_log(self) -> PartitionLog:
        log = self._log
        if log is None:
            if isinstance(self.offline, (DamagedLog, DirectoryGone)):
                raise self.offline
            try:
                log = self._log = self._open(self)
            except Refused as why:
                # Also when what a crash left could not be made durable. Else nobody remembers at the next stop that
                # this partition was never opened: the stop counts as clean, and the next start believes what is there.
                self._stays_offline(why)
                raise
            except OSError as error:
                refusal = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"its log cannot be opened: {error}")
                self._stays_offline(refusal)
                raise refusal from error
            self.offline = None
        return log

    def _stays_offline(self, why: Refused) -> None:
        if self.offline is None:
            logger.error("%s-%d is offline: %s", self.topic.name, self.index, why.why)
        self.offline = why

    @property
    def open_log(self) -> PartitionLog | None:
        """The log if it is open."""
        return self._log

    def give_up(self, why: DirectoryGone) -> None:
        """Go offline because the files are gone: open descriptors would still read and write files without a name."""
        log, self._log = self._log, None
        self.offline = why
        if log is not None:
            log.failed = log.failed or OSError(errno.ENOENT, "the directory is gone", log.directory)
            for segment in log.segments:
                segment.close()
        self.wake_watchers()

    @property
    def flush_is_due(self) -> bool:
        """Whether `flush.messages` asks for an fsync now."""
        most, log = self.topic.flush_messages, self._log
        return most is not None and log is not None and log.end_offset - log.flusher.recovery_point >= most

    def wake_watchers(self) -> None:
        """Call everybody who waits for a change of this partition."""
        if self.watchers:
            for watcher in tuple(self.watchers):
                watcher()

    def append_internal(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Append a coordinator's own batch and wake the watchers."""
        self.log.append_internal(data, now_ms)
        self.wake_watchers()

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> None:
        """Append a transaction's marker and wake the watchers."""
        self.log.append_marker(producer_id, producer_epoch, commit, coordinator_epoch, transaction_version, now_ms)
        self.wake_watchers()

    def release(self) -> PartitionLog | None:
        """Give up the log; a later use opens it again."""
        log, self._log, self.offline = self._log, None, None
        return log

    def retire(self) -> PartitionLog | None:
        """Give up the log for good: the partition is deleted, or the broker stops."""
        log, self._log = self._log, None
        self._open = _open_retired
        return log

    def __repr__(self) -> str:
        return f"<{self.topic.name}-{self.index}>"


def _open_retired(partition: Partition) -> PartitionLog:
    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is gone")

"""Topics and their partitions: what exists, under which id and settings, and the log behind each partition.

Guarantees:

- A topic exists once the metadata store says so, and no longer: directories follow the store, never the reverse.
- A topic's id is never reused; a directory left by an earlier topic of the same name is set aside, not adopted.
- Changed settings hold from the next append or read on.
- After a clean stop a partition's log is opened when it is first needed, so that starting does not grow with the
  number of partitions; after a crash every log is recovered before the first request is served.
- A partition whose files are damaged or cannot be opened is offline, alone: it is served KAFKA_STORAGE_ERROR, and no
  clean stop is claimed over it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.broker.data_directory import partition_directories
from semel.broker.stored.metadata_store import PRODUCER_ID_BLOCK, TOPICS, LocalMetadataStore
from semel.config import INT64_MAX, TOPIC, ConfigError, Values, topic_values
from semel.errors import ErrorCode, Refused
from semel.log.checkpoints import (
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    machine_went_down,
    note_machine,
    read_offsets,
    write_offsets,
)
from semel.log.damage import DamagedLog, DirectoryGone
from semel.log.manifest import Manifest, Marks, differs, encode_marks, restore_checkpoints
from semel.log.partition_log import PartitionLog
from semel.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX
from semel.log.snapshots import DamagedSnapshot, decode_snapshot

if TYPE_CHECKING:
    from semel.log.files import Files

logger = logging.getLogger(__name__)

TRANSACTION_STATE = "__transaction_state"
CONSUMER_OFFSETS = "__consumer_offsets"
INTERNAL_TOPICS = frozenset((TRANSACTION_STATE, CONSUMER_OFFSETS))
#: The settings that say how many partitions they are made with.
PARTITIONS_OF_INTERNAL_TOPICS = {
    TRANSACTION_STATE: "transaction.state.log.num.partitions",
    CONSUMER_OFFSETS: "offsets.topic.num.partitions",
}

#: Kafka's bound on what one request may create.
NEW_PARTITIONS_MAX = 10_000
#: No broker gets that far in handing out ids; a client that makes its own up may.
MADE_UP_PRODUCER_ID = 2**48
#: How many logs are closed at once when the broker stops.
CLOSING_THREADS = 32
#: The longest name a file system gives a directory.
DIRECTORY_NAME_MAX = 255

#: Topics as the store keeps them, None for one that it keeps no longer.
Rows = dict[str, dict[str, Any] | None]
#: Awaited between two pieces of long work: others are served meanwhile.
Rest = Callable[[], Awaitable[None]]

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


def check_topic_name(name: str) -> None:
    """Refuse what Kafka refuses as a topic name."""
    if name in (".", "..") or not _LEGAL_NAME.match(name):
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name[:249]!r} is not legal: 1 to 249 letters, digits, '.', '_' and '-', not '.' or '..'",
        )


def check_new_partitions(count: int) -> None:
    """Refuse what Kafka refuses as too much for one request."""
    if count > NEW_PARTITIONS_MAX:
        raise Refused(
            ErrorCode.POLICY_VIOLATION, f"{count} new partitions in one request, {NEW_PARTITIONS_MAX} are the most"
        )


class Partition:
    """One partition: its log, and those who wait for it to change."""

    __slots__ = ("_log", "_open", "directory", "index", "offline", "topic", "watchers")

    def __init__(
        self, topic: Topic, index: int, directory: Path, open_log: Callable[[Partition], PartitionLog]
    ) -> None:
        self.topic = topic
        self.index = index
        self.directory = directory
        self._open = open_log
        self._log: PartitionLog | None = None
        #: Why the log could not be opened. Damage stays until somebody has seen to it; anything else is tried again.
        self.offline: Refused | None = None
        #: Called after anything a reader may see has changed: data, high watermark, last stable offset, existence.
        self.watchers: set[Callable[[], None]] = set()

    @property
    def log(self) -> PartitionLog:
        """The partition's log, opened by whoever first needs it."""
        log = self._log
        if log is None:
            if isinstance(self.offline, (DamagedLog, DirectoryGone)):
                raise self.offline
            try:
                log = self._log = self._open(self)
            except DamagedLog as damage:
                self._stays_offline(damage)
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
    def opened(self) -> PartitionLog | None:
        """The log if somebody needed it already."""
        return self._log

    def give_up(self, why: DirectoryGone) -> None:
        """The files are gone: nobody is served from descriptors of files that no longer have a name."""
        log, self._log = self._log, None
        self.offline = why
        if log is not None:
            log.failed = log.failed or OSError(errno.ENOENT, "the directory is gone", log.directory)
            for segment in log.segments:
                segment.close()
        self.changed()

    @property
    def flush_is_due(self) -> bool:
        """Whether `flush.messages` wants what was written to be on disk now."""
        most, log = self.topic.flush_messages, self._log
        return most is not None and log is not None and log.end_offset - log.recovery_point >= most

    def changed(self) -> None:
        """Wake those who wait for this partition."""
        if self.watchers:
            for watcher in tuple(self.watchers):
                watcher()

    def append_internal(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Append a coordinator's own batch and wake those who wait for this partition."""
        self.log.append_internal(data, now_ms)
        self.changed()

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> None:
        """End a transaction here and wake those who wait for this partition."""
        self.log.append_marker(producer_id, producer_epoch, commit, coordinator_epoch, transaction_version, now_ms)
        self.changed()

    def retire(self) -> PartitionLog | None:
        """Give the log up for good, when the partition is deleted or the broker stops: nobody opens it again."""
        log, self._log = self._log, None
        self._open = _retired
        return log

    def __repr__(self) -> str:
        return f"<{self.topic.name}-{self.index}>"


def _retired(partition: Partition) -> PartitionLog:
    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is gone")


class Topic:
    """A topic: its id, its own settings, its partitions."""

    __slots__ = (
        "_values",
        "flush_messages",
        "internal",
        "min_insync_replicas",
        "name",
        "overrides",
        "partitions",
        "row",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: uuid.UUID, overrides: dict[str, str], values: Values) -> None:
        self.name = name
        self.topic_id = topic_id
        self.overrides = overrides
        self.values = values
        self.partitions: list[Partition] = []
        self.internal = name in INTERNAL_TOPICS
        #: The topic as the store keeps it; replaced, never changed.
        self.row: dict[str, Any] = {}

    @property
    def values(self) -> Values:
        """What holds for this topic: its own settings over the broker's."""
        return self._values

    @values.setter
    def values(self, values: Values) -> None:
        self._values = values
        self.min_insync_replicas: int = values["min.insync.replicas"]
        #: After how many records an fsync is forced; None leaves it to the system.
        self.flush_messages: int | None = values["flush.messages"] if values["flush.messages"] < INT64_MAX else None

    def partition(self, index: int) -> Partition:
        """The partition of this number."""
        if 0 <= index < len(self.partitions):
            return self.partitions[index]
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} has no partition {index}")


class TopicRegistry:
    """All topics of this broker."""

    def __init__(
        self,
        data_directory: Path,
        store: LocalMetadataStore,
        settings: Values,
        files: Files,
        now_ms: Callable[[], int],
        *,
        clean: bool,
        manifest: Manifest | None = None,
    ) -> None:
        self._directory = data_directory
        #: What the last clean stop left of the partitions that nobody has opened since.
        self._manifest = manifest or Manifest()
        self._store = store
        self._settings = settings
        self._files = files
        self._now_ms = now_ms
        self._clean = clean
        self._version = -1
        self._machine_went_down = False
        self._recovery_points: dict[tuple[str, int], int] = {}
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[uuid.UUID, Topic] = {}
        #: Names as Kafka's metrics would have them, and the topic each belongs to.
        self._flat_names: dict[str, str] = {}
        #: What is being written to the store, and who writes it beside the loop.
        self._pending: Rows = {}
        self._writing: Future[int] | None = None
        self._writer: ThreadPoolExecutor | None = None
        #: Told after topics or partitions came or went: assignments on the server depend on it.
        self.changed: list[Callable[[], None]] = []
        #: Set once the data directory is no longer there.
        self.gone: DirectoryGone | None = None

    # Reading

    def get(self, name: str) -> Topic:
        """The topic of this name."""
        topic = self.topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def partition(self, name: str, index: int) -> Partition:
        """A partition by topic name and number."""
        return self.get(name).partition(index)

    def by_topic_id(self, topic_id: uuid.UUID) -> Topic:
        """The topic of this id."""
        topic = self.by_id.get(topic_id)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic_id}")
        return topic

    @property
    def metadata_changes(self) -> int:
        """How often topics were made, changed or deleted: as far as the metadata has come."""
        return self._version + 1

    def all_partitions(self) -> Iterator[Partition]:
        """Every partition of every topic."""
        for topic in list(self.topics.values()):
            yield from topic.partitions

    # Starting and stopping

    def learn(self) -> None:
        """Learn from the store what exists, and refuse if the directories say otherwise. Nothing is changed."""
        stored, self._version = self._store.get(TOPICS)
        if stored is None:
            self._refuse_to_forget_topics()
        try:
            for name, row in (stored or {"topics": {}})["topics"].items():
                configs = _still_legal(name, row["configs"])
                topic = Topic(name, uuid.UUID(row["id"]), configs, topic_values(self._settings, configs))
                self._enlist(topic, row["partitions"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._store.damaged(TOPICS, f"it does not describe topics ({error!r})") from None
        if self._store.get(PRODUCER_ID_BLOCK)[1] < 0:
            self._refuse_to_repeat_producer_ids()

    def load(self) -> None:
        """Get ready to open what `learn` found; after a crash, recover every log."""
        restore_checkpoints(self._files, self._directory, self._manifest)
        points = read_offsets(self._files, self._directory, RECOVERY_POINTS)
        # A line of a topic that is gone must not be held against a later one of its name.
        self._recovery_points = {key: offset for key, offset in points.items() if key[0] in self.topics}
        for path in self._directory.glob("*-delete"):
            self._files.remove_later(path)
        if not self._clean:
            self._machine_went_down = machine_went_down(self._files, self._directory)
            for partition in self.all_partitions():
                if partition.directory.exists() or (partition.topic.name, partition.index) in self._recovery_points:
                    with suppress(Refused):  # offline, by itself: it was logged, and whoever asks is told
                        _ = partition.log
        note_machine(self._files, self._directory)

    def _refuse_to_forget_topics(self) -> None:
        """Without the entry there are no topics; a directory of a partition says that there were."""
        for directory in partition_directories(self._directory):
            raise self._store.missing(TOPICS, f"{directory} holds the records of a topic")

    def _refuse_to_repeat_producer_ids(self) -> None:
        """Without the entry ids begin at 0; a coordinator that wrote something says that some were given out."""
        for partition in self.topics[TRANSACTION_STATE].partitions if TRANSACTION_STATE in self.topics else ():
            for log in partition.directory.glob(f"*{LOG_SUFFIX}"):
                if log.stat().st_size:
                    raise self._store.missing(PRODUCER_ID_BLOCK, f"{log} names producers that have ids")

    def highest_producer_id(self) -> int:
        """The highest id that a snapshot of any partition names; -1 where none does."""
        highest = -1
        for partition in self.all_partitions():
            for snapshot in partition.directory.glob(f"*{SNAPSHOT_SUFFIX}"):
                with suppress(DamagedSnapshot, OSError):
                    named = [entry.producer_id for entry in decode_snapshot(self._files.read(snapshot))]
                    highest = max([highest, *(one for one in named if one < MADE_UP_PRODUCER_ID)])
        return highest

    async def look_over(self) -> None:
        """Compare what is on disk with what the last clean stop left, one partition after the other beside requests.
        What differs is opened at once, so that damage is told at a start and not when somebody first asks."""
        for partition in list(self.all_partitions()):
            expected = self._expected(partition)
            if expected is None or partition.opened is not None:
                continue
            try:
                is_different = differs(self._files.sizes(partition.directory), expected)
            except OSError:
                is_different = True
            if is_different and self.topics.get(partition.topic.name) is partition.topic:
                with suppress(Refused):  # offline, by itself: it was logged, and whoever asks is told
                    _ = partition.log
            await asyncio.sleep(0)

    def _expected(self, partition: Partition) -> Marks | None:
        return self._manifest.of_partition(partition.directory.name)

    def close(self) -> Manifest | None:
        """Close every log that was opened. What the next start has to find; None if that is not everything."""
        logs = [log for partition in self.all_partitions() if (log := partition.opened) is not None]
        if self.gone is not None:
            self._stop_threads()
            return None  # whatever is in its place now is not ours to write to
        self._files.drain()
        now_ms = self._now_ms()
        # Each close waits for the disk several times; together they wait for the same commits of the file system.
        with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="semel-close") as threads:
            for closed in [threads.submit(log.close, now_ms) for log in logs]:
                closed.result()
        clean = all(log.failed is None for log in logs)
        clean = clean and all(partition.offline is None for partition in self.all_partitions())
        self.checkpoint_recovery_points()
        left = Manifest(entries=self._store.entries())
        for partition in self.all_partitions():
            name = partition.directory.name
            if partition.opened is not None and partition.opened.marks is not None:
                left.partitions[name] = encode_marks(partition.opened.marks)
            elif name in self._manifest.partitions:
                left.partitions[name] = self._manifest.partitions[name]
            partition.retire()
        self._stop_threads()
        return left if clean else None

    def _stop_threads(self) -> None:
        if self._writer is not None:
            self._writer.shutdown()
        self._files.stop_removing()

    def checkpoint_recovery_points(self) -> None:
        """Write down how far each log is known to be on disk, so that recovery begins there."""
        if self.gone is not None:
            return
        for partition in self.all_partitions():
            if partition.opened is not None:
                self._recovery_points[partition.topic.name, partition.index] = partition.opened.recovery_point
        write_offsets(self._files, self._directory, RECOVERY_POINTS, self._recovery_points)

    # Changing

    def create(self, name: str, partition_count: int, overrides: dict[str, str] | None = None) -> Topic:
        """Create a topic at once, or refuse as Kafka does. Clients' topics are created by `create_all`."""
        topic = self.planned(name, partition_count, overrides)
        self._set_aside_strays([(name, 0, partition_count)])
        self._save({name: _row(topic, partition_count)})
        self._enlist(topic, partition_count)
        self._announce()
        return topic

    def planned(
        self,
        name: str,
        partition_count: int,
        overrides: dict[str, str] | None = None,
        beside: Mapping[str, str] | None = None,
    ) -> Topic:
        """A topic that could be created now; `beside` are the flat names of others that will be."""
        check_topic_name(name)
        if name in self.topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        # Kafka's metric names cannot tell '.' and '_' apart, so it lets only one of them exist.
        flat = flat_name(name)
        other = self._flat_names.get(flat) or (beside or {}).get(flat)
        if other is not None:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} collides with existing topic {other!r}")
        if partition_count < 1:
            raise Refused(ErrorCode.INVALID_PARTITIONS, "a topic has at least one partition")
        return Topic(name, self._fresh_id(), dict(overrides or {}), self.checked(overrides or {}))

    async def create_all(self, planned: list[tuple[Topic, int]], rest: Rest) -> None:
        """Create topics, with one write to the store."""
        changes: Rows = {topic.name: _row(topic, count) for topic, count in planned}
        new = [(topic.name, 0, count) for topic, count in planned]
        await self._saved(changes, partial(self._set_aside_strays, new))
        for topic, count in planned:
            self._enlist(topic, count)
            await rest()
        self._pending = {}
        self._announce()

    async def delete_all(self, topics: list[Topic], rest: Rest) -> None:
        """Delete topics and their data, with one write to the store. Nobody waits for the data to go."""
        await self._saved({topic.name: None for topic in topics})
        directories = []
        for topic in topics:
            del self.topics[topic.name]
            del self.by_id[topic.topic_id]
            self._flat_names.pop(flat_name(topic.name), None)
            for partition in topic.partitions:
                log = partition.retire()
                if log is not None:
                    for segment in log.segments:
                        segment.close()
                directories.append(partition.directory)
                self._manifest.partitions.pop(partition.directory.name, None)
                partition.changed()
                await rest()
        self._pending = {}
        # Behind those who still write into these directories, and before anybody makes one of the same name.
        await asyncio.wrap_future(self._files.in_background(partial(self._doom, directories)))
        try:
            self._forget_offsets({topic.name for topic in topics})
        except OSError as error:
            logger.error("the checkpoints in %s still name deleted topics: %s", self._directory, error)
        self._announce()

    def _doom(self, directories: list[Path]) -> None:
        for directory in directories:
            try:
                if directory.exists():
                    doomed = _beside(directory, "delete")
                    directory.rename(doomed)
                    self._files.remove_later(doomed)
            except OSError as error:
                logger.error("%s of a deleted topic stays where it is, remove it: %s", directory, error)

    async def grow_all(self, grown: list[tuple[Topic, int]], rest: Rest) -> None:
        """Give topics more partitions, with one write to the store."""
        rows = {topic.name: _row(topic, count) for topic, count in grown}
        new = [(topic.name, len(topic.partitions), count) for topic, count in grown]
        await self._saved({**rows}, partial(self._set_aside_strays, new))
        for topic, count in grown:
            topic.row = rows[topic.name]
            for index in range(len(topic.partitions), count):
                topic.partitions.append(self._partition(topic, index))
            await rest()
        self._pending = {}
        self._announce()

    async def configure_all(self, configured: list[tuple[Topic, dict[str, str]]], rest: Rest) -> None:
        """Replace topics' own settings, which were `checked`, with one write to the store."""
        rows = {topic.name: _row(topic, len(topic.partitions), overrides) for topic, overrides in configured}
        await self._saved({**rows})
        for topic, overrides in configured:
            topic.row = rows[topic.name]
            topic.overrides = overrides
            _apply(topic, self.checked(overrides))
            await rest()
        self._pending = {}

    async def change_defaults(self, settings: Values, rest: Rest) -> None:
        """From now on the broker has these settings; a topic follows where it has none of its own."""
        self._settings = settings
        verifies_transactions = settings["transaction.partition.verification.enable"]
        for topic in list(self.topics.values()):
            _apply(topic, topic_values(settings, topic.overrides))
            for partition in topic.partitions:
                if partition.opened is not None:
                    partition.opened.verifies_transactions = verifies_transactions
            await rest()

    # When the directory is gone

    def give_up(self, why: DirectoryGone) -> None:
        """The data directory was removed or replaced: nothing more is served from it or written into it."""
        self.gone = why
        for partition in self.all_partitions():
            partition.give_up(why)

    def look_for_gone(self) -> None:
        """Find partitions whose files were removed under the running broker."""
        for partition in self.all_partitions():
            log = partition.opened
            if log is not None and log.failed is None and not self._files.exists(log.segments[-1].log_path):
                why = DirectoryGone(log.directory)
                logger.error("%s-%d is offline: %s", partition.topic.name, partition.index, why.why)
                partition.give_up(why)

    # Inside

    def checked(self, overrides: dict[str, str]) -> Values:
        """What would hold for a topic with these settings, or why it cannot have them."""
        try:
            for name in overrides:
                TOPIC.row(name)
            return topic_values(self._settings, overrides)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from None

    # Inside

    def _fresh_id(self) -> uuid.UUID:
        while (topic_id := uuid.uuid4()) in self.by_id:
            continue
        return topic_id

    def _enlist(self, topic: Topic, partition_count: int) -> None:
        for index in range(partition_count):
            topic.partitions.append(self._partition(topic, index))
        topic.row = _row(topic, partition_count)
        self.topics[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        self._flat_names[flat_name(topic.name)] = topic.name

    def _forget_offsets(self, names: set[str]) -> None:
        """A later topic of such a name must not inherit where this one's logs began or were compacted to."""
        self._recovery_points = {key: offset for key, offset in self._recovery_points.items() if key[0] not in names}
        for checkpoint in (LOG_START_OFFSETS, CLEANER_OFFSETS, RECOVERY_POINTS):
            offsets = read_offsets(self._files, self._directory, checkpoint)
            kept = {key: offset for key, offset in offsets.items() if key[0] not in names}
            if len(kept) < len(offsets):
                write_offsets(self._files, self._directory, checkpoint, kept)

    def _partition(self, topic: Topic, index: int) -> Partition:
        return Partition(topic, index, self._directory / f"{topic.name}-{index}", self._open)

    def _open(self, partition: Partition) -> PartitionLog:
        topic = partition.topic
        name = (topic.name, partition.index)
        log = PartitionLog.open(
            partition.directory,
            topic.name,
            partition.index,
            topic.values,
            self._now_ms(),
            topic_id=topic.topic_id,
            clean=self._clean,
            files=self._files,
            recovery_point=self._recovery_points.get(name),
            producer_id_expiration_ms=self._settings["producer.id.expiration.ms"],
            unsynced_may_be_lost=self._machine_went_down and not self._promises_fsync(topic),
            expected=self._expected(partition),
        )
        self._manifest.partitions.pop(partition.directory.name, None)  # from here on the log knows better
        log.verifies_transactions = self._settings["transaction.partition.verification.enable"]
        log.high_watermark_follows_end = self._settings["semel.durability"] == "os"
        if not self._clean and not log.high_watermark_follows_end:
            # A crash leaves records that were never fsynced: nobody may see one that could still be lost.
            log.flush()
        return log

    def _promises_fsync(self, topic: Topic) -> bool:
        return self._settings["semel.durability"] == "fsync" or topic.flush_messages is not None

    def _set_aside_strays(self, new: list[tuple[str, int, int]]) -> None:
        """For new partitions: the topic, and the first and the one after the last of them."""
        for name, first, end in new:
            for index in range(first, end):
                directory = self._directory / f"{name}-{index}"
                if directory.exists():
                    directory.rename(_beside(directory, "stray"))

    def _save(self, changes: Rows) -> None:
        """Store what will be, before it is: what the disk refuses has not happened."""
        if self.gone is not None:
            raise self.gone
        if self._writing is not None:
            # What is on its way to the disk comes first; whoever waits for it is told how it went.
            try:
                self._version = self._writing.result()
            except Exception:
                self._pending = {}
        try:
            self._version = self._store.update(TOPICS, self._stored(changes), self._version)
        except OSError as error:
            raise _not_stored(error) from error

    async def _saved(
        self, changes: Rows, first: Callable[[], object] = lambda: None
    ) -> None:
        """The same beside the loop, and `first` before it. One at a time: whoever changes topics has the broker's word.

        Until they hold, the changes are `_pending`.
        """
        if self.gone is not None:
            raise self.gone
        value, version = self._stored(changes), self._version

        def write() -> int:
            first()
            return self._store.update(TOPICS, value, version)

        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "semel-topics")
        self._pending = changes
        writing = self._writing = self._writer.submit(write)
        try:
            self._version = max(self._version, await asyncio.wrap_future(writing))
        except BaseException as error:
            self._pending = {}
            if isinstance(error, OSError):
                raise _not_stored(error) from error
            raise
        finally:
            self._writing = None

    def _stored(self, changes: Rows) -> dict[str, Any]:
        rows: dict[str, Any] = {name: topic.row for name, topic in self.topics.items()}
        for changed in (self._pending, changes):
            rows.update(changed)
        return {"version": 1, "topics": {name: row for name, row in rows.items() if row is not None}}

    def _announce(self) -> None:
        for told in self.changed:
            told()


def _beside(directory: Path, what: str) -> Path:
    """A new name for a partition's directory that is no longer a partition's. Long topic names lose their end, as in
    Kafka: with the suffix they would be longer than a file system takes."""
    _, dash, index = directory.name.rpartition("-")
    suffix = f"{dash}{index}.{uuid.uuid4().hex}-{what}"
    topic = directory.name.removesuffix(dash + index)
    return directory.with_name(topic[: DIRECTORY_NAME_MAX - len(suffix)] + suffix)


def _not_stored(error: OSError) -> Refused:
    return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata store cannot be written: {error}")


def flat_name(name: str) -> str:
    """What Kafka's metrics make of a topic's name."""
    return name.replace(".", "_")


def _apply(topic: Topic, values: Values) -> None:
    topic.values = values
    for partition in topic.partitions:
        if partition.opened is not None:
            partition.opened.config = values


def _still_legal(topic: str, configs: dict[str, str]) -> dict[str, str]:
    """Stored settings as far as this version knows them; one it does not falls back to its default, aloud."""
    legal = {}
    for name, value in configs.items():
        try:
            TOPIC.row(name).read(value)
        except ConfigError as error:
            logger.warning("topic %s: a stored setting is not legal any more, its default is used: %s", topic, error)
        else:
            legal[name] = value
    return legal


def _row(topic: Topic, partition_count: int, overrides: dict[str, str] | None = None) -> dict[str, Any]:
    """A topic as the store keeps it."""
    configs = topic.overrides if overrides is None else overrides
    return {"id": str(topic.topic_id), "partitions": partition_count, "configs": configs}

"""What Spark stores before it runs a micro-batch: the query's id, and the end offsets of each source.

Spark writes `<checkpoint>/offsets/<batch id>` before a batch runs, and gives a rerun the same offsets. So these offsets
identify the batch. Files are read through Hadoop, as Spark does: the checkpoint may be on any file system that Spark
supports.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from semel.machines.values import TopicPartition

#: Spark's setting for how it writes the files of a checkpoint, and one of the two ways that it has.
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

#: Two threads may start queries in one session: each must find the session's settings as they were.
_setting = threading.Lock()


class CheckpointUnreadable(Exception):
    """The checkpoint does not hold what Spark should have written there."""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """The end offsets of a micro-batch: as text for the fingerprint, and parsed if the source has Kafka offsets."""

    texts: tuple[str, ...]
    #: One per source, in the order of the plan; for named sources in the order of the file.
    by_source: tuple[dict[TopicPartition, int], ...]
    named: bool = False

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The end offsets of all sources."""
        return self.among([True] * len(self.by_source))

    def among(self, chosen: Sequence[bool]) -> dict[TopicPartition, int]:
        """The end offsets of the chosen sources. If it is unclear which line belongs to which source: all or none."""
        if len(chosen) != len(self.by_source) or self.named:
            chosen = [bool(chosen) and all(chosen)] * len(self.by_source)
        ends: dict[TopicPartition, int] = {}
        for wanted, offsets in zip(chosen, self.by_source, strict=True):
            for where, offset in offsets.items() if wanted else ():
                ends[where] = max(offset, ends.get(where, offset))
        return ends


def records_between(begins: BatchOffsets, ends: BatchOffsets) -> int | None:
    """The most records that lie between two offsets of all sources. None if that cannot be told.

    >>> ends = BatchOffsets(("",), ({TopicPartition("t", 0): 7, TopicPartition("t", 1): 5},))
    >>> records_between(BatchOffsets(("",), ({TopicPartition("t", 0): 4, TopicPartition("t", 1): 5},)), ends)
    3
    >>> records_between(BatchOffsets(("",), ({TopicPartition("t", 0): 4},)), ends)  # a new partition: where from?
    """
    if begins.named or ends.named or not ends.by_source or len(begins.by_source) != len(ends.by_source):
        return None
    records = 0
    for since, until in zip(begins.by_source, ends.by_source, strict=True):
        if not until or until.keys() - since.keys() or any(end < since[place] for place, end in until.items()):
            return None  # an end before its start is that of another topic of this name
        records += sum(offset - since[place] for place, offset in until.items())
    return records


def parse_offsets(content: str) -> BatchOffsets:
    """Parse a file of Spark's offset log: a version, a line of metadata, then one line per source.

    In version 1 a line is the source's offset or a dash. In version 2 (named sources) the source's name comes first.

    >>> parse_offsets('v1\\n{"batchWatermarkMs":0}\\n{"payments":{"0":42}}').ends
    {TopicPartition(topic='payments', partition=0): 42}
    """
    lines = content.splitlines()
    if not lines or lines[0] not in ("v1", "v2"):
        raise CheckpointUnreadable(f"expected Spark's offset log, version 1 or 2, found {content[:40]!r}")
    named = lines[0] == "v2"
    given = [line for line in lines[2:] if line]
    texts = tuple(line for line in given if line != "-")
    by_source = tuple(dict(_kafka_offsets(line.partition(":")[2] if named else line)) for line in given)
    return BatchOffsets(tuple(sorted(texts)) if named else texts, by_source, named)


def _kafka_offsets(text: str) -> list[tuple[TopicPartition, int]]:
    """Parse {"topic": {"0": 42}}, the format of Spark's Kafka source and ours. Other sources have no such offsets."""
    try:
        found = json.loads(text)
        return [
            (TopicPartition(topic, int(partition)), offset)
            for topic, partitions in found.items()
            for partition, offset in partitions.items()
            if isinstance(offset, int)
        ]
    except (ValueError, AttributeError):
        return []


class Checkpoint:
    """A query's checkpoint directory. What Spark never changes again is read once: a read is many calls to the JVM."""

    _query_id: str | None = None
    #: The last batch that is done, and its end offsets.
    _last_done: tuple[int, BatchOffsets] | None = None

    def __init__(self, spark: Any, location: str) -> None:
        self._jvm = spark._jvm
        self._hadoop = spark._jsc.hadoopConfiguration()
        self.location = location.rstrip("/")

    @contextmanager
    def written_quickly(self, session: Any) -> Iterator[None]:
        """Let a query that is started meanwhile write a checkpoint on a local disk without starting programs.

        By default Spark starts `chmod` and `readlink` ten times for each file, twenty times for a micro-batch, which
        takes longer than a small batch does. Its other way starts `chmod` twice. Both write a temporary file with a
        checksum beside it, look whether the file is there already, and rename. On other file systems Spark's default
        stays, because a rename there may be safer by its first way. What a user has set stays, too.
        """
        with _setting:
            is_set = session._jsparkSession.sessionState().conf().contains(_FILE_MANAGER)
            if is_set or self._local_folder is None:
                yield
                return
            session.conf.set(_FILE_MANAGER, _BY_FILE_SYSTEM)
            try:
                yield
            finally:
                session.conf.unset(_FILE_MANAGER)

    def query_id(self) -> str:
        """The query's id. It stays the same over restarts."""
        if self._query_id is None:
            text = self._read("metadata")
            try:
                self._query_id = str(uuid.UUID(json.loads(text)["id"]))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise CheckpointUnreadable(
                    f"expected the id of Spark's query in {self.location}/metadata, found {text[:40]!r}; is it the "
                    "directory of a query?"
                ) from None
        return self._query_id

    def offsets(self, batch_id: int) -> BatchOffsets:
        """The end offsets of a micro-batch."""
        name = f"offsets/{batch_id}"
        if self._local_folder is not None:
            # To ask the JVM for a file takes some milliseconds of every micro-batch. Its checksum need not be compared
            # again: Spark has read the file, or has just written it.
            with suppress(OSError):  # then Hadoop finds it, or says why not
                return parse_offsets((self._local_folder / name).read_text("utf-8", errors="replace"))
        return parse_offsets(self._read(name))

    def begins(self, batch_id: int) -> BatchOffsets:
        """The start offsets of a micro-batch: the ends of the one before. None are known of the first."""
        if self._last_done is not None and self._last_done[0] == batch_id - 1:
            return self._last_done[1]
        name = f"offsets/{batch_id - 1}"
        return self.offsets(batch_id - 1) if batch_id > 0 and self._exists(name) else BatchOffsets((), ())

    def remember(self, batch_id: int, offsets: BatchOffsets) -> None:
        """The end offsets of a micro-batch that is done: the next one begins there."""
        self._last_done = batch_id, offsets

    def where_batch_begins(self, batch_id: int) -> str:
        """The start offsets of a micro-batch, for a message: the offsets if they are short, else their file."""
        name = f"offsets/{batch_id - 1}"
        if self._exists(name):
            texts = self.offsets(batch_id - 1).texts
            if len(texts) == 1 and len(texts[0]) <= 500:
                return texts[0]
        return f"what stands in {self.location}/{name}"

    def next_batch(self) -> tuple[str, int] | None:
        """The query's id and the next batch that Spark will run; None if the directory is new."""
        if not self._exists("metadata"):
            return None
        begun, done = self._batches("offsets"), self._batches("commits")
        last = max(begun, default=-1)
        self._refuse_damage(last, max(done, default=-1))
        return self.query_id(), last + 1 if last < 0 or last in done else last

    def _refuse_damage(self, last_begun: int, last_done: int) -> None:
        """Refuse what Spark would fail at in words of its own: files that a power failure or a full disk cut off."""
        if last_done > last_begun:
            raise CheckpointUnreadable(
                f"{self.location}/commits says that batch {last_done} is done, and there is no {self.location}/offsets/"
                f"{last_done}: bring back the whole directory, as it was"
            )
        if last_done >= 0 and not self._is_whole(f"commits/{last_done}"):
            raise CheckpointUnreadable(
                f"{self.location}/commits/{last_done} is damaged, as by a power failure: remove it, and "
                f".{last_done}.crc beside it. Batch {last_done} is then run again, and not written twice"
            )
        if last_begun >= 0 and not self._is_whole(f"offsets/{last_begun}"):
            also = f", commits/{last_begun}" if last_begun == last_done else ""
            raise CheckpointUnreadable(
                f"{self.location}/offsets/{last_begun} is damaged, as by a power failure: remove it{also} and "
                f".{last_begun}.crc beside it. Batch {last_begun} is then planned anew; if it was committed with other "
                "offsets, start() says how to go on"
            )

    def _is_whole(self, name: str) -> bool:
        """Whether a file of Spark's logs has its checksum, and its first two lines: a version, and JSON."""
        try:
            lines = self._read(name).splitlines()
            return lines[0].startswith("v") and isinstance(json.loads(lines[1]), dict)
        except (IndexError, ValueError):
            return False
        except Exception as error:
            java = getattr(error, "java_exception", None)
            if java is None or not str(java.getClass().getName()).endswith(".ChecksumException"):
                raise
            return False

    def is_begun(self, batch_id: int) -> bool:
        """Whether Spark has written down the offsets of this batch: it may have run."""
        return self._exists(f"offsets/{batch_id}")

    @cached_property
    def _local_folder(self) -> Path | None:
        """Where it is, if it is on a local disk."""
        place = self._path("")
        files = place.getFileSystem(self._hadoop)
        if str(files.getUri().getScheme()) != "file":
            return None
        return Path(str(files.makeQualified(place).toUri().getPath()))

    def _batches(self, folder: str) -> set[int]:
        if not self._exists(folder):
            return set()
        path = self._path(folder)
        names = [str(entry.getPath().getName()) for entry in path.getFileSystem(self._hadoop).listStatus(path)]
        return {int(name) for name in names if name.isdigit()}

    def _exists(self, name: str) -> bool:
        path = self._path(name)
        return bool(path.getFileSystem(self._hadoop).exists(path))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")

    def _read(self, name: str) -> str:
        path = self._path(name)
        stream = path.getFileSystem(self._hadoop).open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

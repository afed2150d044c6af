"""The data directory: which process owns it, which cluster it belongs to, and whether it was closed cleanly.

Guarantees:

- One broker at a time: the process holds a lock, which the system releases when the process ends.
- `meta.properties` holds the ids under Kafka's names and is written once. A directory of another node is refused.
- The clean-shutdown mark is removed, and the manifest of a clean stop set aside, before anything is written. So only a
  clean stop can leave them.
- What a start finds in the directory and in the metadata store stays there if the power fails, also what a killed
  process made and did not fsync.
- A directory with data never gets a new identity: a damaged or missing `meta.properties` is an error that says what to
  do. Users alone are no data.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from crc32c import crc32c

from semel.broker.stored.metadata_store import SCRAM_CREDENTIALS, DamagedStore
from semel.config import ConfigError
from semel.log.checkpoints import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCH_CHECKPOINT,
    MANIFEST_BEFORE,
    PARTITION_METADATA,
    mark_clean_shutdown,
    marked_by_semel,
    take_clean_shutdown_mark,
    topic_id_text,
)
from semel.log.files import Files
from semel.log.manifest import Manifest, read_manifest, set_manifest_aside, write_manifest
from semel.properties import read_properties

META_PROPERTIES = "meta.properties"
#: The folder of the metadata store.
METADATA = ".metadata"
#: In a cluster: the cluster's id. The topics are in its ZooKeeper.
OF_A_CLUSTER = ".semel_cluster"
_CRC_LINE = re.compile(rb"# crc32c=([0-9a-f]{8})\n")
_PARTITION = re.compile(r".+-[0-9]+")
#: What a disk says about a place where this user can write nothing, today and tomorrow.
_NOBODY_MAY_WRITE = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT))
#: What the directory of a partition has before its first log file.
_WRITTEN_FIRST = frozenset((LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA))
_NEW_IDENTITY = (
    "Restore it from a copy of the data directory. Without one, remove it and start once with "
    "--set semel.cluster.id=ID, where ID is the cluster's id as clients know it, or a new one."
)


def _node_id(stored: dict[str, str], default: int) -> int:
    return int(stored.get("node.id", stored.get("broker.id", default)))


class DataDirectoryInUse(Exception):
    """Another broker owns the data directory."""


def new_id(new_uuid: Callable[[], UUID]) -> str:
    """A new id as Kafka writes it: base64 of a UUID, without a leading dash, which would look like an option."""
    while True:
        text = topic_id_text(new_uuid())
        if not text.startswith("-"):
            return text


def partition_directories(files: Files, path: Path) -> Iterator[Path]:
    """The directories of partitions, recognised by their names and by the log files in them."""
    for name in sorted(files.names(path)):
        entry = path / name
        if _PARTITION.fullmatch(name) and files.is_directory(entry):
            if any(file.endswith(".log") for file in files.names(entry)):
                yield entry


def begun_directories(files: Files, path: Path) -> Iterator[Path]:
    """The directories of partitions that a kill left half made: without a log file, and with nothing else."""
    for name in sorted(files.names(path)):
        entry = path / name
        if _PARTITION.fullmatch(name) and files.is_directory(entry):
            if all(file.removesuffix(".tmp") in _WRITTEN_FIRST for file in files.names(entry)):
                yield entry


def lock_directory(files: Files, path: Path) -> int:
    """Make the directory if it is missing, and lock it. Closing the descriptor that is returned releases the lock."""
    missing = [parent for parent in (path, *path.parents) if not files.exists(parent)]
    try:
        files.make_directory(path)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{path} cannot be the data directory: it is a file, or below one") from None
    except OSError as error:
        if error.errno in _NOBODY_MAY_WRITE:
            raise _cannot_write(path, error) from None
        raise
    for made in reversed(missing):
        # What is fsynced in it is not safe before its own name is.
        files.sync_directory(made.parent)
    if not files.exists(path / META_PROPERTIES):
        # An earlier start may have been killed before it did that. Who made which directory is not known: those that
        # cannot be fsynced were not made here.
        for above in path.parents:
            with suppress(OSError):
                files.sync_directory(above)
    try:
        return files.lock(path / ".lock")
    except BlockingIOError:
        raise DataDirectoryInUse(f"{path} is in use by another broker") from None
    except OSError as error:
        if error.errno in _NOBODY_MAY_WRITE:
            raise _cannot_write(path, error) from None
        raise


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be the data directory: it cannot be made or written ({error.strerror}); let this user write "
        "there, or name another directory (log.dirs, --data)"
    )


def stored_cluster_id(files: Files, path: Path) -> str | None:
    """The cluster that a directory belongs to; None if it says none that can be read."""
    try:
        return read_properties(files.read(path / META_PROPERTIES).decode()).get("cluster.id")
    except (OSError, ValueError):
        return None


class DataDirectory:
    """A locked data directory and the identity stored in it."""

    def __init__(
        self,
        path: Path,
        node_id: int,
        cluster_id: str | None,
        files: Files,
        new_uuid: Callable[[], UUID],
        *,
        in_zookeeper: bool = False,
        remedy: str | None = None,
    ) -> None:
        """`in_zookeeper`: of a cluster, so that Apache Kafka 3.9 in ZooKeeper mode can take the directory over.
        `remedy`: what to do in a cluster about a directory with data that does not say whose it is."""
        self.path = path
        self._remedy = remedy
        self._files = files
        self._new_uuid = new_uuid
        self._lock = lock_directory(files, path)
        try:
            self.cluster_id, self.directory_id = self._identity(node_id, cluster_id, in_zookeeper=in_zookeeper)
        except BaseException:
            self.unlock()
            raise

    def _identity(self, node_id: int, cluster_id: str | None, *, in_zookeeper: bool) -> tuple[str, str]:
        path = self.path / META_PROPERTIES
        if self._files.exists(path):
            stored = self._read_meta_properties(path)
            owner = _node_id(stored, node_id)
            if owner != node_id:
                raise ConfigError(f"{self.path} belongs to node {owner}, this broker is node {node_id}")
            if cluster_id is not None and stored.get("cluster.id", cluster_id) != cluster_id:
                raise ConfigError(f"{self.path} belongs to cluster {stored['cluster.id']}, not {cluster_id}")
            if "cluster.id" in stored and "directory.id" in stored:
                return stored["cluster.id"], stored["directory.id"]
            cluster_id = stored.get("cluster.id", cluster_id)
            named = "cluster.id" in stored
        else:
            named = False
        if (cluster_id is None or (self._remedy and not named)) and self._holds_data():
            what = "is missing or names no cluster.id, but the directory holds data"
            raise DamagedStore(path, what, self._remedy or _NEW_IDENTITY)
        cluster, directory = cluster_id or new_id(self._new_uuid), new_id(self._new_uuid)
        # Version 0 is that of ZooKeeper mode; Kafka accepts no other there.
        node = (f"broker.id={node_id}", "version=0") if in_zookeeper else (f"node.id={node_id}", "version=1")
        lines = (f"cluster.id={cluster}", f"directory.id={directory}", *node, "")
        body = "\n".join(lines).encode()
        # A comment for Kafka; for us it detects a changed character.
        self._files.replace(path, f"# crc32c={crc32c(body):08x}\n".encode() + body)
        return cluster, directory

    def _read_meta_properties(self, path: Path) -> dict[str, str]:
        data = self._files.read(path)
        try:
            vouched = _CRC_LINE.match(data)
            if vouched is not None and int(vouched[1], 16) != crc32c(data[vouched.end() :]):
                raise ValueError("its CRC-32C does not match its bytes")
            stored = read_properties(data.decode())
            _node_id(stored, 0)
            for name in ("cluster.id", "directory.id"):
                if not stored.get(name, "x").isprintable():
                    raise ValueError(f"{name} is no id")
            return stored
        except ValueError as error:
            raise DamagedStore(path, f"is damaged: {error}", self._remedy or _NEW_IDENTITY) from None

    def _holds_data(self) -> bool:
        """Whether something in it belongs to an identity. Users that were stored before the first start do not."""
        stored = self.path / METADATA
        is_there = self._files.exists(stored)
        entries = {name for name in self._files.names(stored) if not name.endswith(".tmp")} if is_there else set()
        only_users = entries == {SCRAM_CREDENTIALS}
        return (is_there and not only_users) or any(partition_directories(self._files, self.path))

    @property
    def was_closed_cleanly(self) -> bool:
        """Whether the last stop was clean. Valid until `open_for_writing`."""
        return self._files.exists(self.path / CLEAN_SHUTDOWN)

    def manifest(self) -> Manifest | None:
        """What the last stop left, if it was clean and by Semel: Apache Kafka does not update the manifest."""
        return read_manifest(self._files, self.path) if marked_by_semel(self._files, self.path) else None

    def manifest_before(self) -> Manifest | None:
        """After a crash: what the last clean stop left, which may have changed since."""
        return None if self.was_closed_cleanly else read_manifest(self._files, self.path, MANIFEST_BEFORE)

    def is_there(self) -> bool:
        """Whether the directory that was opened is still there: it may have been removed or replaced."""
        return self._files.is_open_as(self._lock, self.path / ".lock") and self._files.exists(
            self.path / META_PROPERTIES
        )

    def open_for_writing(self) -> bool:
        """Take away the marks of a clean stop, and return whether there was one. Only `close_cleanly` sets them again.

        From here on every name that was found is on disk, whoever made it and died before its fsync.
        """
        set_manifest_aside(self._files, self.path)
        was_clean = take_clean_shutdown_mark(self._files, self.path)
        if self._files.exists(self.path / METADATA):
            self._files.sync_directory(self.path / METADATA)
        return was_clean

    def close_cleanly(self, manifest: Manifest) -> None:
        """Mark a clean stop, after everything is flushed: the next start need not recover, and can compare files."""
        write_manifest(self._files, self.path, manifest)
        mark_clean_shutdown(self._files, self.path)

    def note_cluster(self) -> None:
        """Without ZooKeeper the directory shows where its topics are."""
        path = self.path / OF_A_CLUSTER
        if not self._files.exists(path):
            self._files.replace(path, f"{self.cluster_id}\n".encode())

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            self._files.close(self._lock)
            self._lock = -1

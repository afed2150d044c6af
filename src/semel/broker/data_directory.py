"""The data directory as a whole: who owns it, which cluster it belongs to, and whether it was closed cleanly.

Guarantees:

- One broker at a time: the lock is held by the process, so it is gone when the process is, however it ended.
- `meta.properties` carries the ids under Kafka's names and is written once; a directory of another node is refused.
- The clean-shutdown mark is removed before anything is written, so that only an orderly stop can leave one behind.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

from semel.config import ConfigError
from semel.log.checkpoints import mark_clean_shutdown, take_clean_shutdown_mark, topic_id_text
from semel.log.files import Files
from semel.properties import read_properties


class DataDirectoryInUse(Exception):
    """Another broker owns the data directory."""


def new_id() -> str:
    """A fresh id as Kafka writes it: base64 of a UUID, never starting with a dash (it would look like an option)."""
    while True:
        text = topic_id_text(uuid.uuid4())
        if not text.startswith("-"):
            return text


class DataDirectory:
    """A locked data directory and the identity stored in it."""

    def __init__(self, path: Path, node_id: int, cluster_id: str | None, files: Files) -> None:
        self.path = path
        self._files = files
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise DataDirectoryInUse(f"{path} is in use by another broker") from None
        try:
            self.cluster_id, self.directory_id = self._identity(node_id, cluster_id)
        except BaseException:
            self.unlock()
            raise

    def _identity(self, node_id: int, cluster_id: str | None) -> tuple[str, str]:
        path = self.path / "meta.properties"
        if path.exists():
            stored = read_properties(path.read_text())
            if int(stored.get("node.id", node_id)) != node_id:
                raise ConfigError(f"{self.path} belongs to node {stored['node.id']}, this broker is node {node_id}")
            if cluster_id is not None and stored.get("cluster.id") != cluster_id:
                raise ConfigError(f"{self.path} belongs to cluster {stored.get('cluster.id')}, not {cluster_id}")
            if "cluster.id" in stored and "directory.id" in stored:
                return stored["cluster.id"], stored["directory.id"]
            cluster_id = stored.get("cluster.id", cluster_id)
        cluster, directory = cluster_id or new_id(), new_id()
        lines = ("#", f"cluster.id={cluster}", f"directory.id={directory}", f"node.id={node_id}", "version=1", "")
        self._files.replace(path, "\n".join(lines).encode())
        return cluster, directory

    def open_for_writing(self) -> bool:
        """Whether the last stop was clean. From here on, only `close_cleanly` makes the next start a clean one."""
        return take_clean_shutdown_mark(self._files, self.path)

    def close_cleanly(self) -> None:
        """Everything is flushed: the next start need not look for torn writes."""
        mark_clean_shutdown(self._files, self.path)

    def unlock(self) -> None:
        """Let another broker have the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

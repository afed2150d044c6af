"""The blocking face of the client: the same producer, consumer and admin, for code without an event loop.

Nothing is decided here. Every object owns a private event loop in a thread, runs the asyncio client on it, and waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from semel.client.cluster import Cluster, Target
from semel.client.loop_thread import LoopThread
from semel.client.metadata import Metadata, PartitionInfo, TopicInfo
from semel.config import Values


class BlockingCluster:
    """A `Cluster` for code without an event loop: raw requests by message class, with retries and deadlines.

    Make it in the process that uses it (in a Spark executor, inside the task): it owns a thread.
    """

    def __init__(self, config: Values | Mapping[str, object]) -> None:
        self._cluster = Cluster(config)
        self._thread = LoopThread("semel-cluster")

    def __enter__(self) -> BlockingCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def metadata(self) -> Metadata:
        return self._cluster.metadata

    @property
    def finalized_features(self) -> dict[str, int]:
        return self._cluster.finalized_features

    @property
    def transaction_version(self) -> int:
        return self._cluster.transaction_version

    def connect(self) -> None:
        """Reach the cluster once: brokers, versions and finalized features are known afterwards."""
        self._thread.run(self._cluster.connect())

    def request(self, to: Target, message: Any, **options: Any) -> Any:
        """Send once; see `Cluster.request`."""
        return self._thread.run(self._cluster.request(to, message, **options))

    def request_retrying(self, message: Any, **options: Any) -> Any:
        """Send until there is a final answer or the deadline passes; see `Cluster.request_retrying`."""
        return self._thread.run(self._cluster.request_retrying(message, **options))

    def request_all(self, requests: Iterable[tuple[Target, Any]], **options: Any) -> list[Any]:
        """Send several at once, each with retries; the answers come in the order of the requests."""
        return self._thread.run(self._cluster.request_all(requests, **options))

    def topic(self, name: str, **options: Any) -> TopicInfo:
        return self._thread.run(self._cluster.topic(name, **options))

    def partition(self, topic: str, partition: int) -> PartitionInfo:
        return self._thread.run(self._cluster.partition(topic, partition))

    def leader(self, topic: str, partition: int) -> int:
        return self._thread.run(self._cluster.leader(topic, partition))

    def coordinator(self, kind: str, key: str) -> int:
        return self._thread.run(self._cluster.coordinator(kind, key))

    def refresh_metadata(self, topics: Iterable[str] | None, **options: Any) -> None:
        self._thread.run(self._cluster.refresh_metadata(topics, **options))

    def close(self) -> None:
        """Close every connection and stop the thread."""
        if self._thread.loop.is_closed():
            return
        self._thread.run(self._cluster.close())
        self._thread.close()

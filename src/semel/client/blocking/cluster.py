"""The blocking cluster client: `Cluster` on a loop thread, for raw requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from semel.client.blocking.blocking_client import BlockingClient
from semel.client.cluster.cluster import Cluster, Target
from semel.client.cluster.metadata import Metadata, PartitionMetadata, TopicMetadata
from semel.config import Values

if TYPE_CHECKING:
    pass

T = TypeVar("T")


class BlockingCluster(BlockingClient):
    """A `Cluster` for blocking code: sends raw requests, with retries and deadlines.

    Create it in the process that uses it (in a Spark executor, inside the task), because it owns a thread.
    """

    def __init__(self, config: Values | Mapping[str, object]) -> None:
        super().__init__("semel-cluster")
        self._cluster = self._make(lambda: Cluster(config))

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
        """Connect once. Brokers, versions and finalized features are known afterwards."""
        self._thread.run(self._cluster.connect())

    def request(self, to: Target, message: Any, **options: Any) -> Any:
        """Send once; see `Cluster.request`."""
        return self._thread.run(self._cluster.request(to, message, **options))

    def request_retrying(self, message: Any, **options: Any) -> Any:
        """Send until there is a final response, or until the deadline; see `Cluster.request_retrying`."""
        return self._thread.run(self._cluster.request_retrying(message, **options))

    def request_all(self, requests: Iterable[tuple[Target, Any]], **options: Any) -> list[Any]:
        """Send several at once, each with retries. The responses are in the order of the requests."""
        return self._thread.run(self._cluster.request_all(requests, **options))

    def topic(self, name: str, **options: Any) -> TopicMetadata:
        return self._thread.run(self._cluster.topic(name, **options))

    def partition(self, topic: str, partition: int) -> PartitionMetadata:
        return self._thread.run(self._cluster.partition(topic, partition))

    def leader(self, topic: str, partition: int) -> int:
        return self._thread.run(self._cluster.leader(topic, partition))

    def coordinator(self, kind: str, key: str) -> int:
        return self._thread.run(self._cluster.coordinator(kind, key))

    def refresh_metadata(self, topics: Iterable[str] | None, **options: Any) -> None:
        self._thread.run(self._cluster.refresh_metadata(topics, **options))

    def close(self) -> None:
        """Close every connection and stop the thread."""
        self._close(self._cluster.close())

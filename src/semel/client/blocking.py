"""The blocking face of the client: the same producer, consumer and admin, for code without an event loop.

Nothing is decided here. Every object owns a private event loop in a thread, runs the asyncio client on it, and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from semel.client.cluster import Cluster, Target
from semel.client.delivery import BatchDelivery, Delivery
from semel.client.loop_thread import LoopThread
from semel.client.metadata import Metadata, PartitionInfo, TopicInfo
from semel.client.producer import AsyncProducer, Text
from semel.config import Values
from semel.errors import Fatal
from semel.machines.contract import ProducerIdentity, TopicPartition
from semel.machines.transaction_manager import GroupMetadata, OffsetAndMetadata

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class _Face:
    """What the faces share: a loop thread, and closing."""

    def __init__(self, name: str) -> None:
        self._thread = LoopThread(name)

    def _make(self, factory: Callable[[], T]) -> T:
        """Make something on the loop; if that fails, leave no thread behind."""

        async def make() -> T:
            return factory()

        try:
            return self._thread.run(make())
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError

    def _close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run the last coroutine, then stop the thread; closing twice does no harm."""
        if self._thread.is_closed:
            last.close()
            return
        try:
            self._thread.run(last)
        finally:
            self._thread.close()


class Producer(_Face):
    """Sends records, each exactly once and in order, alone or in transactions.

    >>> with Producer({"bootstrap.servers": broker}) as producer:
    ...     delivery = producer.send("greetings", "hello", key="world")
    ...     delivery.result().offset
    0

    With a `transactional.id`, what is sent within a transaction becomes visible at once or never:

    >>> with Producer({"bootstrap.servers": broker, "transactional.id": "docs"}) as producer:
    ...     producer.init_transactions()
    ...     with producer.transaction():
    ...         _ = producer.send("ledger", b"debit")
    ...         _ = producer.send("ledger", b"credit")
    """

    def __init__(self, config: Values | Mapping[str, object]) -> None:
        super().__init__("semel-producer")
        self._producer = self._make(lambda: AsyncProducer(config))

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id and epoch in use; None without idempotence."""
        return self._producer.identity

    def send(
        self,
        topic: str,
        value: Text | None = None,
        key: Text | None = None,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None] | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Take a record in. Blocks up to max.block.ms, only while metadata or memory is missing.

        The delivery's `result()` waits for the broker and says where the record is.
        """
        delivery = self._producer.send_now(topic, value, key, partition, headers, timestamp_ms)
        if delivery is not None and not self._thread.is_closed:
            return delivery
        return self._thread.run(self._producer.send(topic, value, key, partition, headers, timestamp_ms))

    def send_arrow(self, topic: str, rows: pa.Table | pa.RecordBatch, partition: int | None = None) -> BatchDelivery:
        """Send a table with the columns `value`, `key` and `headers`; no Python object is made for any row."""
        return self._thread.run(self._producer.send_arrow(topic, rows, partition))

    def flush(self) -> None:
        """Wait until everything sent so far is delivered or has failed."""
        self._thread.run(self._producer.flush())

    def init_transactions(self) -> None:
        """Take the transactional id over: fences its former owner and ends what that left open."""
        self._thread.run(self._producer.init_transactions())

    def begin_transaction(self) -> None:
        """Open a transaction."""
        self._producer.begin_now()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition | tuple[str, int], OffsetAndMetadata | int],
        group_metadata: GroupMetadata | str,
    ) -> None:
        """Commit a group's offsets with the open transaction. Give `consumer.group_metadata()`, not just a name."""
        self._thread.run(self._producer.send_offsets_to_transaction(offsets, group_metadata))

    def prepare_transaction(self) -> None:
        """Flush, and promise to commit if told so: phase one of two (KIP-939)."""
        self._thread.run(self._producer.prepare_transaction())

    def commit_transaction(self) -> None:
        """Wait for every record of the transaction, then make all of it visible at once."""
        self._thread.run(self._producer.commit_transaction())

    def abort_transaction(self) -> None:
        """Drop the transaction."""
        self._thread.run(self._producer.abort_transaction())

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        """Begin; commit at the end of the block, or abort if it raises."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except Fatal:
            raise
        except BaseException:
            if self._producer.in_transaction:
                self.abort_transaction()
            raise

    def close(self, timeout_ms: float | None = None) -> None:
        """Deliver what was sent, abort an open transaction, and let go of the connections."""
        self._close(self._producer.close(timeout_ms))


class BlockingCluster(_Face):
    """A `Cluster` for code without an event loop: raw requests by message class, with retries and deadlines.

    Make it in the process that uses it (in a Spark executor, inside the task): it owns a thread.
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
        self._close(self._cluster.close())

"""The blocking producer: `AsyncProducer` on a loop thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from semel.client.arguments import HeadersLike, Text, as_headers, as_wait
from semel.client.blocking.blocking_client import BlockingClient
from semel.client.offset_arguments import Offsets
from semel.client.producer.delivery import BatchDelivery, Delivery
from semel.client.producer.producer import AsyncProducer
from semel.config import Values
from semel.errors import Fatal
from semel.machines.transactions.producer import GroupMetadata
from semel.machines.values import ProducerIdentity

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Producer(BlockingClient):
    """Sends records, each exactly once and in order, alone or in transactions.

    >>> with Producer({"bootstrap.servers": broker}) as producer:
    ...     delivery = producer.send("greetings", "hello", key="world")
    ...     delivery.result().offset
    0

    With a `transactional.id`, the records of a transaction become visible together, or not at all:

    >>> with Producer({"bootstrap.servers": broker, "transactional.id": "docs"}) as producer:
    ...     producer.init_transactions()
    ...     with producer.transaction():
    ...         _ = producer.send("ledger", b"debit")
    ...         _ = producer.send("ledger", b"credit")

    An argument of the wrong type raises TypeError. Everything else that goes wrong raises a `semel.errors.KafkaError`;
    for a value that makes no sense that is a `Misuse`, such as `InvalidRecord`. Nothing was sent then, and the next
    correct call works. What fails later is told by the deliveries; of those that nobody looks at the log has the number
    and the reason.

    Close it, or use `with`. A producer that is dropped without being closed, or still open at the end of the program,
    still sends what it was given, for up to semel.exit.timeout.ms, and logs how much it could not send. After a fork
    only the process that created it can use it; calls in the other one raise Misuse.
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
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Take a record in. Blocks only while metadata or memory is missing, for up to max.block.ms.

        The `result()` of the delivery waits for the broker and returns the place of the record.
        """
        if headers is not None:
            headers = as_headers(headers)  # once: an iterator cannot be read a second time below
        delivery = self._producer.send_now(topic, value, key, partition, headers, timestamp_ms)
        if delivery is not None:
            return delivery
        return self._thread.run(self._producer.send(topic, value, key, partition, headers, timestamp_ms))

    def send_arrow(self, topic: str, rows: pa.Table | pa.RecordBatch, partition: int | None = None) -> BatchDelivery:
        """Send a table with the columns `value`, `key` and `headers`. No Python object is created for any row."""
        return self._thread.run(self._producer.send_arrow(topic, rows, partition))

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until everything sent so far is delivered or has failed, or until `timeout_ms` has passed."""
        self._thread.run(self._producer.flush(timeout_ms))

    def init_transactions(self, *, keep_prepared: bool = False) -> ProducerIdentity | None:
        """Take over the transactional id: fence its former owner and end the transaction that it left open.

        With `keep_prepared` (two-phase commit) a prepared transaction is kept for `complete_transaction`, and its
        identity is returned.
        """
        producer = self._producer
        return self._heard(lambda: producer.init_transactions(keep_prepared=keep_prepared), producer.reached_nobody)

    def begin_transaction(self) -> None:
        """Open a transaction."""
        self._producer.begin_now()

    def send_offsets_to_transaction(
        self,
        offsets: Offsets,
        group_metadata: GroupMetadata | str,
    ) -> None:
        """Commit a group's offsets with the open transaction. Pass `consumer.group_metadata()`, not only a group id."""
        self._thread.run(self._producer.send_offsets_to_transaction(offsets, group_metadata))

    def prepare_transaction(self) -> ProducerIdentity:
        """Phase one of a two-phase commit (KIP-939): flush, and promise to commit. Store the returned identity."""
        return self._heard(self._producer.prepare_transaction, self._producer.reached_nobody)

    def complete_transaction(self, decided: ProducerIdentity) -> None:
        """Phase two: commit if `decided` is the identity of the prepared transaction, and abort otherwise."""
        self._heard(lambda: self._producer.complete_transaction(decided), self._producer.reached_nobody)

    def commit_transaction(self) -> None:
        """Wait until every record of the transaction is written, then make all of them visible at once."""
        self._heard(self._producer.commit_transaction, self._producer.reached_nobody)

    def abort_transaction(self) -> None:
        """Abort the transaction: no read_committed reader will see its records."""
        self._heard(self._producer.abort_transaction, self._producer.reached_nobody)

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        """Begin a transaction. Commit it at the end of the block, or abort it if the block raises."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except Fatal:
            raise
        except BaseException as error:
            self._thread.run(self._producer.abort_after(error))
            raise

    def close(self, timeout_ms: float | None = None) -> None:
        """Deliver what was sent, abort an open transaction, and close the connections.

        Waits for `timeout_ms` at most, by default delivery.timeout.ms. Records not delivered by then fail with
        `ClientClosed`, which says whether they may have been written. Their number is logged.
        """
        wait_ms = as_wait(timeout_ms)
        self._close(self._producer.close(wait_ms))

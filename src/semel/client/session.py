"""Consume, transform, produce, exactly once: a consumer and a producer in one transaction.

Guarantees: the records sent for a batch, and the fact that the batch was read, become visible in one transaction or not
at all. A batch whose transaction did not commit (the block raised, the group moved on, the coordinator aborted) is read
again, by this member or by the new owner of its partitions. Errors of the transaction itself are retried: the log says
so, and after `retry_timeout_ms` the error is raised.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from semel.client.argument_lists import as_timeout_s
from semel.client.arguments import HeadersLike, Text, as_headers, shown
from semel.client.blocking.blocking_client import BlockingClient
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.consumer.fetcher import ConsumerRecord
from semel.client.forking import OfOneProcess
from semel.client.producer.delivery import Delivery
from semel.client.producer.producer import AsyncProducer
from semel.config import CONSUMER, PRODUCER, ConfigError
from semel.environment import MACHINE, Environment
from semel.errors import AbortTransaction, ErrorCode, KafkaError, Misuse, Retriable
from semel.machines.transactions.producer import ProducerState
from semel.net.connection import Connection

#: Settings that the session sets itself, because exactly-once depends on them.
_DECIDED = {"enable.auto.commit": False, "isolation.level": "read_committed"}
_ABORTABLE = (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR, ProducerState.ABORTING)
#: The default of `retry_timeout_ms`, the same as Kafka Streams' task.timeout.ms.
_RETRY_TIMEOUT_MS = 300_000

_log = logging.getLogger(__name__)


class AsyncTransactSession(OfOneProcess):
    """The exactly-once loop for asyncio. `TransactSession` is the same for blocking code.

    The settings are those of a consumer and of a producer together. Both `group.id` and `transactional.id` are needed.
    Every running session must have its own transactional id. A transaction that fails because of the brokers is retried
    for up to `retry_timeout_ms`; then its error is raised.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        retry_timeout_ms: float = _RETRY_TIMEOUT_MS,
        connect: Callable[[str, int], Awaitable[Connection]] | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        consumer, producer = split_settings(config)
        self._retry_timeout_s = as_timeout_s(retry_timeout_ms, "retry_timeout_ms")
        #: How many batches are read again because their transaction did not commit.
        self.aborted = 0
        self._consumer = AsyncConsumer(consumer, connect=connect, environment=environment)
        self._producer = AsyncProducer(producer, connect=connect, environment=environment)
        self._initialized = False
        #: Whether a block of `transaction()` is running.
        self._in_block = False
        #: The error that `send` of this session has raised in the block.
        self._raised: KafkaError | None = None
        #: How many transactions have failed in a row, and since when.
        self._failures, self._failing_since = 0, 0.0

    async def __aenter__(self) -> AsyncTransactSession:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def subscribe(self, topics: Iterable[str] | str | re.Pattern[str]) -> None:
        """Share these topics with the other members of group.id."""
        await self._consumer.subscribe(topics)

    async def send(
        self,
        topic: str,
        value: Text | None = None,
        key: Text | None = None,
        partition: int | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Send a record in the transaction of the current batch."""
        try:
            return await self._producer.send(topic, value, key, partition, headers, timestamp_ms)
        except KafkaError as error:
            raise self._own(error) from error.__cause__

    def send_now(self, *arguments: object, **named: object) -> Delivery | None:
        """As `AsyncProducer.send_now`: from any thread, without waiting."""
        try:
            return self._producer.send_now(*arguments, **named)  # type: ignore[arg-type]
        except KafkaError as error:
            raise self._own(error) from error.__cause__

    def _own(self, error: KafkaError) -> KafkaError:
        """An error of the session's own producer. If no transaction is open, a clearer error says that."""
        if (
            isinstance(error, Misuse)
            and error.code is ErrorCode.INVALID_TXN_STATE
            and not self._producer.in_transaction
        ):
            why = "send() needs a block of transaction() that got records: otherwise no transaction is open"
            return Misuse(ErrorCode.INVALID_TXN_STATE, why)
        self._raised = error
        return error

    @asynccontextmanager
    async def transaction(self, timeout_ms: float = 1_000) -> AsyncIterator[list[ConsumerRecord]]:
        """The next records, in a transaction that ends with the block; an empty list if none came in time.

        If `send` of this session, a delivery or the commit fails because of the brokers, the transaction is aborted,
        counted in `aborted` and logged, and its records are read again. After `retry_timeout_ms` of this the error is
        raised. Any other exception of the block, retriable or not, aborts the transaction and is raised. After a fatal
        error the session cannot be used any more.
        """
        records = await self.begin(timeout_ms)
        try:
            yield records
        except BaseException as error:
            if not await self.end(error):
                raise
        else:
            await self.end(None)

    async def begin(self, timeout_ms: float) -> list[ConsumerRecord]:
        """End the last transaction, if that is still open, then poll, and open a transaction if there are records."""
        as_timeout_s(timeout_ms)
        if self._in_block:
            why = "transaction() inside a block of transaction(): end the first block before the next one"
            raise Misuse(ErrorCode.INVALID_TXN_STATE, why)
        if not self._initialized:
            await self._producer.init_transactions()
            self._initialized = True
        if self._failures:
            await asyncio.sleep(self._consumer.backoff(self._failures))
        await self._settle()
        self._raised = None
        records = await self._consumer.poll(timeout_ms)
        self._in_block = True
        try:
            if records:
                await self._producer.begin_transaction()
        except BaseException:
            self._in_block = False
            self._consumer.rewind()  # the records reached nobody
            raise
        return records

    async def end(self, error: BaseException | None) -> bool:
        """End the transaction: commit, or abort if the block raised. Returns whether its exception is handled."""
        self._in_block = False
        ours = error is not None and (error is self._raised or self._producer.state is ProducerState.ABORTABLE_ERROR)
        try:
            if error is None:
                if self._producer.in_transaction:
                    await self.commit()
                    self._went_well()
                return True
        except (AbortTransaction, Retriable) as failed:
            error, ours = failed, True
        except BaseException:
            await self.give_back()
            raise
        await self.give_back()
        if not ours or not isinstance(error, (AbortTransaction, Retriable)):
            return False
        if self._may_try_again(error):
            return True
        raise error

    def _went_well(self) -> None:
        if self._failures:
            _log.warning(
                "transactional.id '%s': a transaction was committed again, after %d that failed in %.1f s",
                self._name,
                self._failures,
                asyncio.get_running_loop().time() - self._failing_since,
            )
            self._failures = 0

    def _may_try_again(self, error: KafkaError) -> bool:
        """Count a failed transaction, and warn of the first. Returns False after `retry_timeout_ms`."""
        now = asyncio.get_running_loop().time()
        if not self._failures:
            self._failing_since = now
            what = "transactional.id '%s': a transaction failed and its records are read again: %s"
            _log.warning(what, self._name, error)
        self._failures += 1
        if now - self._failing_since <= self._retry_timeout_s:
            return True
        tries, self._failures = self._failures, 0
        error.add_note(
            f"{tries} transactions in a row have failed within {now - self._failing_since:.1f} s: that is longer than "
            f"retry_timeout_ms={self._retry_timeout_s * 1000:g}. Nothing of them is visible; their records come again."
        )
        return False

    @property
    def _name(self) -> str:
        return str(self._producer.config["transactional.id"])

    async def commit(self) -> None:
        """Commit the records that were sent, together with the offsets of the batch."""
        if self._producer.in_transaction:
            await self._producer.send_offsets_to_transaction(self._consumer.consumed(), self._consumer.group_metadata())
            await self._producer.commit_transaction()

    async def give_back(self) -> None:
        """Abort the transaction; the batch will be read again.

        A commit whose response is late cannot be aborted any more: its outcome is awaited before the next batch.
        """
        if self._producer.state not in _ABORTABLE:
            return
        self.aborted += 1
        self._consumer.rewind()
        try:
            await self._producer.abort_transaction()
        except Retriable:
            return  # the abort continues, and is awaited before the next batch

    async def _settle(self) -> None:
        if self._producer.state is ProducerState.COMMITTING:
            try:
                await self._producer.commit_transaction()
            except AbortTransaction:
                await self.give_back()
        if self._producer.state in (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR):
            await self.give_back()  # the caller was interrupted before it got its records
        if self._producer.state is ProducerState.ABORTING:
            await self._producer.abort_transaction()

    async def close(self) -> None:
        """Abort an open transaction, leave the group, and close the connections."""
        try:
            await self._producer.close()
        finally:
            await self._consumer.close()

    @property
    def abandon_within_s(self) -> float:
        """How long a session that nobody closed may take to end: see `semel.client.finalizers`."""
        return self._producer.abandon_within_s + self._consumer.abandon_within_s

    async def abandon(self) -> None:
        """End without having been closed: abort an open transaction, and commit nothing."""
        try:
            await self._producer.abandon()
        finally:
            await self._consumer.abandon()


class TransactSession(BlockingClient):
    """The exactly-once loop: reading a batch and sending its results happen together, or not at all.

    >>> import semel
    >>> with semel.Producer({"bootstrap.servers": broker}) as producer:
    ...     _ = producer.send("numbers", "21").result()
    >>> config = {"bootstrap.servers": broker, "group.id": "doublers", "transactional.id": "doubler-1"}
    >>> with TransactSession({**config, "auto.offset.reset": "earliest"}) as session:
    ...     session.subscribe("numbers")
    ...     doubled = 0
    ...     while not doubled:
    ...         with session.transaction() as records:
    ...             for record in records:
    ...                 _ = session.send("doubles", str(2 * int(record.value)))
    ...                 doubled += 1

    An argument of the wrong type raises TypeError, everything else that goes wrong a `semel.errors.KafkaError`.
    """

    def __init__(self, config: Mapping[str, object], *, retry_timeout_ms: float = _RETRY_TIMEOUT_MS) -> None:
        super().__init__("semel-session")
        self._session = self._make(lambda: AsyncTransactSession(config, retry_timeout_ms=retry_timeout_ms))

    @property
    def aborted(self) -> int:
        """How many batches are read again because their transaction did not commit."""
        return self._session.aborted

    def subscribe(self, topics: Iterable[str] | str | re.Pattern[str]) -> None:
        """Share these topics with the other members of group.id."""
        self._thread.run(self._session.subscribe(topics))

    def send(
        self,
        topic: str,
        value: Text | None = None,
        key: Text | None = None,
        partition: int | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Send a record in the transaction of the current batch."""
        if headers is not None:
            headers = as_headers(headers)  # once: an iterator cannot be read a second time below
        delivery = self._session.send_now(topic, value, key, partition, headers, timestamp_ms)
        if delivery is not None:
            return delivery
        return self._thread.run(self._session.send(topic, value, key, partition, headers, timestamp_ms))

    @contextmanager
    def transaction(self, timeout_ms: float = 1_000) -> Iterator[list[ConsumerRecord]]:
        """The next records, in a transaction that ends with the block; see `AsyncTransactSession.transaction`."""
        try:
            records = self._thread.run(self._session.begin(timeout_ms))
        except Exception:
            raise
        except BaseException as interrupt:
            self._thread.run(self._session.end(interrupt))  # the records reached nobody
            raise
        try:
            yield records
        except BaseException as error:
            if not self._thread.run(self._session.end(error)):
                raise
        else:
            self._thread.run(self._session.end(None))

    def close(self) -> None:
        """Abort an open transaction, leave the group, and close the connections."""
        self._close(self._session.close())


def split_settings(config: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """The consumer's settings and the producer's. An unknown setting is refused, with the nearest known name.

    >>> split_settings({"group.id": "g", "transactional.id": "t", "linger.ms": 0})[1]
    {'transactional.id': 't', 'linger.ms': 0}
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"config is a dict, not {type(config).__name__}")
    for name in config:
        if not isinstance(name, str):
            raise TypeError(f"config has the key {shown(name)}: settings are named by text, such as 'group.id'")
    for needed in ("group.id", "transactional.id"):
        if not config.get(needed):
            raise ConfigError(f"a session needs the setting {needed}")
    for name, value in _DECIDED.items():
        if name in config and config[name] != value:
            raise ConfigError(f"{name}={config[name]}: a session needs {name}={str(value).lower()}, and sets it itself")
    for name in config:
        if name not in CONSUMER and name not in PRODUCER:
            CONSUMER.row(name)
    consumer = {name: value for name, value in config.items() if name in CONSUMER}
    producer = {name: value for name, value in config.items() if name in PRODUCER}
    return {**consumer, **_DECIDED}, producer

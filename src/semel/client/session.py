"""Read, transform, write, exactly once: a consumer and a producer that move on together.

Guarantees: what is sent while a batch of records is being worked on, and the fact that the batch was read, become
visible in one transaction or not at all. A batch whose transaction did not commit (the body raised, the group moved on,
the coordinator aborted) is read again, by this member or by whoever has its partitions now.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from semel.client.arguments import HeadersLike, Text, as_headers
from semel.client.connection import Connection
from semel.client.consumer import AsyncConsumer
from semel.client.delivery import Delivery
from semel.client.face import Face
from semel.client.fetcher import ConsumerRecord
from semel.client.producer import AsyncProducer
from semel.config import CONSUMER, PRODUCER, ConfigError
from semel.errors import AbortTransaction, Fatal, Retriable
from semel.machines.transaction_manager import State

#: What the session decides itself, because exactly-once depends on it.
_DECIDED = {"enable.auto.commit": False, "isolation.level": "read_committed"}
_ABORTABLE = (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING)


class AsyncTransactSession:
    """The exactly-once loop for asyncio. `TransactSession` is the same for blocking code.

    The settings are those of a consumer and of a producer together; both `group.id` and `transactional.id` are needed.
    Every running session must have a transactional id of its own.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        connect: Callable[[str, int], Awaitable[Connection]] = Connection.open,
    ) -> None:
        consumer, producer = split_settings(config)
        #: How many batches were given back because their transaction did not commit.
        self.aborted = 0
        self._consumer = AsyncConsumer(consumer, connect=connect)
        self._producer = AsyncProducer(producer, connect=connect)
        self._initialized = False

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
        """Send a record with the transaction of the batch that is being worked on."""
        return await self._producer.send(topic, value, key, partition, headers, timestamp_ms)

    def send_now(self, *arguments: object, **named: object) -> Delivery | None:
        """As `AsyncProducer.send_now`: from any thread, without waiting."""
        return self._producer.send_now(*arguments, **named)  # type: ignore[arg-type]

    @asynccontextmanager
    async def transaction(self, timeout_ms: float = 1_000) -> AsyncIterator[list[ConsumerRecord]]:
        """The next records, in a transaction that ends with the block; an empty list when none came in time.

        A transaction that the brokers made impossible is aborted, counted in `aborted`, and its records come again; an
        exception of the block aborts and is raised; a fatal error is raised: the session is over.
        """
        records = await self.begin(timeout_ms)
        try:
            yield records
            await self.commit()
        except Fatal:
            raise
        except (AbortTransaction, Retriable):
            await self.give_back()
        except BaseException:
            await self.give_back()
            raise

    async def begin(self, timeout_ms: float) -> list[ConsumerRecord]:
        """Poll, and open a transaction if anything came; first the fate of the last one is settled."""
        if not self._initialized:
            await self._producer.init_transactions()
            self._initialized = True
        await self._settle()
        records = await self._consumer.poll(timeout_ms)
        if records:
            await self._producer.begin_transaction()
        return records

    async def commit(self) -> None:
        """Make what was sent visible, together with the fact that the batch was read."""
        if self._producer.in_transaction:
            await self._producer.send_offsets_to_transaction(self._consumer.consumed(), self._consumer.group_metadata())
            await self._producer.commit_transaction()

    async def give_back(self) -> None:
        """Drop what was sent; the batch will be read again.

        A commit whose answer is overdue cannot be dropped any more: it is settled before the next batch is read.
        """
        if self._producer.state not in _ABORTABLE:
            return
        self.aborted += 1
        self._consumer.rewind()
        try:
            await self._producer.abort_transaction()
        except Retriable:
            return  # it goes on, and is waited for before the next batch is read

    async def _settle(self) -> None:
        if self._producer.state is State.COMMITTING:
            try:
                await self._producer.commit_transaction()
            except AbortTransaction:
                await self.give_back()
        if self._producer.state is State.ABORTING:
            await self._producer.abort_transaction()

    async def close(self) -> None:
        """Abort what is open, leave the group, let go of the connections."""
        try:
            await self._producer.close()
        finally:
            await self._consumer.close()

    @property
    def abandon_within_s(self) -> float:
        """How long ending without having been closed may take: see `semel.client.endings`."""
        return self._producer.abandon_within_s + self._consumer.abandon_within_s

    async def abandon(self) -> None:
        """End without having been closed: abort what is open, commit nothing."""
        try:
            await self._producer.abandon()
        finally:
            await self._consumer.abandon()


class TransactSession(Face):
    """The exactly-once loop: read a batch, send what follows from it, and both count together or not at all.

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
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__("semel-session")
        self._session = self._make(lambda: AsyncTransactSession(config))

    @property
    def aborted(self) -> int:
        """How many batches were given back because their transaction did not commit."""
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
        """Send a record with the transaction of the batch that is being worked on."""
        if headers is not None:
            headers = as_headers(headers)  # once: what is read below for a second time may be an iterator
        delivery = self._session.send_now(topic, value, key, partition, headers, timestamp_ms)
        if delivery is not None:
            return delivery
        return self._thread.run(self._session.send(topic, value, key, partition, headers, timestamp_ms))

    @contextmanager
    def transaction(self, timeout_ms: float = 1_000) -> Iterator[list[ConsumerRecord]]:
        """The next records, in a transaction that ends with the block; see `AsyncTransactSession.transaction`."""
        records = self._thread.run(self._session.begin(timeout_ms))
        try:
            yield records
            self._thread.run(self._session.commit())
        except Fatal:
            raise
        except (AbortTransaction, Retriable):
            self._thread.run(self._session.give_back())
        except BaseException:
            self._thread.run(self._session.give_back())
            raise

    def close(self) -> None:
        """Abort what is open, leave the group, let go of the connections."""
        self._close(self._session.close())


def split_settings(config: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """The consumer's settings and the producer's; what neither has is refused with the nearest name.

    >>> split_settings({"group.id": "g", "transactional.id": "t", "linger.ms": 0})[1]
    {'transactional.id': 't', 'linger.ms': 0}
    """
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

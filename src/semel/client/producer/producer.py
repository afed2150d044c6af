"""The producer: takes records in and sends batches, each exactly once and in order, alone or in transactions.

The rules are in `machines`: `accumulator` collects records into batches, `sender` orders and retries them, and
`transactions.producer` holds the producer's identity. The parts of the producer are in this folder: `send_loop` sends,
`routing` chooses partitions, `transactions` and `arrow_sender` do what their names say. Any thread may call `send_now`
and `begin_now`. Everything else belongs to the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from semel.client.arguments import (
    INT64_MAX,
    HeadersLike,
    Text,
    as_bytes,
    as_headers,
    as_partition_number,
    as_timestamp,
    as_topic,
    as_wait,
    require_pyarrow,
)
from semel.client.cluster.cluster import Cluster
from semel.client.delegation import method_of
from semel.client.finalizers import drop
from semel.client.forking import OfOneProcess
from semel.client.producer.config import parse_config
from semel.client.producer.delivery import BatchDelivery, Delivery
from semel.client.producer.routing import Routing
from semel.client.producer.send_loop import SendLoop
from semel.client.producer.transactions import ProducerTransactions
from semel.config import Values
from semel.environment import MACHINE, Environment
from semel.errors import ErrorCode, Fatal, KafkaError, RequestTimedOut
from semel.machines.transactions.producer import ProducerState
from semel.machines.values import ProducerIdentity
from semel.net.connection import Connection

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class AsyncProducer(OfOneProcess):
    """A producer for asyncio. `semel.Producer` is the same for blocking code.

    >>> import asyncio
    >>> async def send_one():
    ...     async with AsyncProducer({"bootstrap.servers": broker}) as producer:
    ...         delivery = await producer.send("postcards", "hello")
    ...         return (await delivery).offset
    >>> asyncio.run(send_one())
    0

    Create it on the running loop. Close it, or use `async with`. An argument of the wrong type raises TypeError,
    everything else that goes wrong a `semel.errors.KafkaError`. Nothing was sent then, and the next correct call works.
    """

    def __init__(
        self,
        config: Values | Mapping[str, object],
        *,
        clock_ms: Callable[[], int] | None = None,
        connect: Callable[[str, int], Awaitable[Connection]] | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        self.config = values = parse_config(config)
        self._clock_ms = clock_ms or environment.now_ms
        self._cluster = Cluster(values, auto_create_topics=True, connect=connect, environment=environment)
        self._sending = sending = SendLoop(values, self._cluster, environment.steady_ms)
        self._routing = Routing(values, self._cluster, sending)
        self._transactions = ProducerTransactions(values, sending)
        # `send_now` is called for every record: what it needs is one attribute away.
        self._manager, self._accumulator, self._sender = sending.manager, sending.accumulator, sending.sender
        self._deliveries, self._lock, self._origin = sending.deliveries, sending.lock, self._cluster.origin
        self._routes = self._routing.routes
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id and epoch in use; None without idempotence."""
        return self._transactions.identity

    @property
    def state(self) -> ProducerState:
        """The state of the producer; without idempotence always ready."""
        return self._transactions.state

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: begun, and neither committed nor aborted."""
        return self._transactions.is_open

    # --- sending --------------------------------------------------------------------------------------------------

    def send_now(
        self,
        topic: str,
        value: Text | None = None,
        key: Text | None = None,
        partition: int | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery | None:
        """Take a record in without waiting, from any thread. Returns None if metadata or memory is missing."""
        if self._origin.lost:
            raise self._origin.refusal("the producer")
        # All checks of the record are done before the lock is taken: after that it is taken whole or not at all.
        if type(topic) is not str:
            topic = as_topic(topic)
        if value is not None and type(value) is not bytes:
            value = as_bytes(value, "value")
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "key")
        fields = () if headers is None else as_headers(headers)
        if timestamp_ms is None:
            timestamp_ms = self._clock_ms()
        elif type(timestamp_ms) is not int or not 0 <= timestamp_ms <= INT64_MAX:
            timestamp_ms = as_timestamp(timestamp_ms)
        if partition is not None and type(partition) is not int:
            partition = as_partition_number(partition)
        info = self._cluster.metadata.topics.get(topic)
        if info is None:
            return None
        route = self._routes.get(topic)
        if route is None or route.info is not info:
            route = self._routing.route_of(info)
        with self._lock:
            try:
                if partition is None:
                    partition = route.routes.route(key, len(value) + 20 if value else 20)
                elif not 0 <= partition < route.routes.partition_count:
                    return None
                # An open batch belongs to the open transaction, so its partition was checked already.
                batch = route.open[partition]
                if batch is not None and (self._manager is None or self._manager.may_write):
                    position = self._accumulator.extend(batch, key, value, fields, timestamp_ms)
                    if position >= 0:
                        return Delivery(self._deliveries, batch, position)
                self._sending.check_open()
                target = route.routes.partitions[partition]
                if self._manager is not None:
                    self._manager.check_write()
                now_ms = self._sending.steady_ms()
                appended = self._accumulator.append(target, key, value, fields, timestamp_ms, now_ms)
                if appended is None:
                    return None
                if self._manager is not None:
                    self._manager.write(target)
                batch, position, wake = appended
                route.open[partition] = batch
                if wake:
                    self._sending.wake_from_outside()
            except Exception:
                raise
            except BaseException:
                self._sending.mend()
                raise
        return Delivery(self._deliveries, batch, position)

    async def send(
        self,
        topic: str,
        value: Text | None = None,
        key: Text | None = None,
        partition: int | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Take a record in, waiting up to max.block.ms for metadata and memory. Await the delivery for the outcome."""
        self._sending.check_open()
        if headers is not None:
            headers = as_headers(headers)  # once: an iterator cannot be read a second time below
        deadline = self._routing.deadline()
        while True:
            self._sending.check_open()
            delivery = self.send_now(topic, value, key, partition, headers, timestamp_ms)
            if delivery is not None:
                return delivery
            await self._routing.wait_for_room(topic, partition, deadline)

    async def send_arrow(
        self, topic: str, rows: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> BatchDelivery:
        """Send a table with the column `value`, and optionally `key` and `headers`.

        Rows with a key go to the partition of the key, all others of a call to one partition. Rows of one partition
        keep their order. No Python object is created for any row.
        """
        require_pyarrow("send_arrow")
        from semel.client.producer.arrow_sender import ArrowSender

        return await ArrowSender(self._sending, self._routing, self._clock_ms).send(topic, rows, partition)

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until everything sent so far is delivered or has failed. The deliveries say what has failed.

        Waits for `timeout_ms` at most. Without it the limit is delivery.timeout.ms: then every record has an outcome.
        """
        wait_ms = as_wait(timeout_ms)
        self._sending.check_open()
        if wait_ms is None:
            await self._sending.flush()
            return
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._sending.flush()
        except TimeoutError:
            why = f"flush() did not finish within timeout_ms={wait_ms:g}; the sending continues"
            raise RequestTimedOut(ErrorCode.REQUEST_TIMED_OUT, why) from None

    # --- transactions ---------------------------------------------------------------------------------------------

    init_transactions = method_of("_transactions", ProducerTransactions.init_transactions)
    begin_transaction = method_of("_transactions", ProducerTransactions.begin_transaction)
    begin_now = method_of("_transactions", ProducerTransactions.begin_now)
    send_offsets_to_transaction = method_of("_transactions", ProducerTransactions.send_offsets_to_transaction)
    prepare_transaction = method_of("_transactions", ProducerTransactions.prepare_transaction)
    complete_transaction = method_of("_transactions", ProducerTransactions.complete_transaction)
    commit_transaction = method_of("_transactions", ProducerTransactions.commit_transaction)
    abort_transaction = method_of("_transactions", ProducerTransactions.abort_transaction)
    abort_after = method_of("_transactions", ProducerTransactions.abort_after)
    reached_nobody = method_of("_transactions", ProducerTransactions.reached_nobody)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncProducer]:
        """Begin a transaction. Commit it at the end of the block, or abort it if the block raises."""
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except Fatal:
            raise
        except BaseException as error:
            await self.abort_after(error)
            raise

    # --- closing --------------------------------------------------------------------------------------------------

    async def close(self, timeout_ms: float | None = None) -> None:
        """Deliver what was sent, abort an open transaction, and close the connections.

        Waits for `timeout_ms` at most, by default delivery.timeout.ms. Records not delivered by then have failed.
        """
        wait_ms = as_wait(timeout_ms)
        wait_ms = self.config["delivery.timeout.ms"] if wait_ms is None else wait_ms
        await self._close(wait_ms, f"close() gave the producer {wait_ms:g} ms")

    @property
    def abandon_within_s(self) -> float:
        """How long a producer that nobody closed may take to end: see `semel.client.finalizers`."""
        return float(self.config["semel.exit.timeout.ms"]) / 1000

    async def abandon(self) -> None:
        """End without having been closed: deliver what can be delivered soon, and log how much was not."""
        limit_ms = self.config["semel.exit.timeout.ms"]
        await self._close(
            limit_ms, f"nobody closed the producer, and semel.exit.timeout.ms={limit_ms} ends its sending"
        )

    async def _close(self, timeout_ms: float, what: str) -> None:
        if self._sending.closing or self._origin.lost:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self.state in (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR):
                    await self.abort_transaction()
                else:
                    await self._sending.flush()
        except (TimeoutError, KafkaError):
            pass  # the deliveries say what was lost; the coordinator ends an open transaction
        self._sending.closing = True
        try:
            unsent, unanswered = await self._sending.stop()
        finally:
            self._sending.forget_batch = None  # no cycle: what is closed is freed at once
            self._sending.unheard.close()
            await self._cluster.close()
        if unsent or unanswered:
            _log.warning(
                "%s: %d records were not sent, %d were sent and not acknowledged (bootstrap.servers=%s)",
                what,
                unsent,
                unanswered,
                ",".join(self.config["bootstrap.servers"]),
            )

    def __del__(self) -> None:
        sending = getattr(self, "_sending", None)
        if sending is not None and not sending.closing and not self._origin.lost:
            drop(self, "a producer", self._loop)

"""The producer: records in, batches out, each exactly once and in order, alone or in transactions.

The rules are in `machines`: `accumulator` gathers, `sender` orders and retries, `transaction_manager` knows who this
producer is. `send_loop` does all sending; this module is what a user calls. `send_now` may be called from any thread,
everything else belongs to the loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.client.arguments import (
    INT64_MAX,
    HeadersLike,
    Text,
    as_bytes,
    as_group,
    as_headers,
    as_identity,
    as_partition_number,
    as_timestamp,
    as_topic,
    as_wait,
)
from semel.client.cluster.cluster import Cluster
from semel.client.cluster.connection import Connection
from semel.client.cluster.metadata import TopicMetadata
from semel.client.offset_arguments import Offsets, as_offsets
from semel.client.producer.config import parse_config
from semel.client.producer.delivery import BatchDelivery, Delivery
from semel.client.producer.send_loop import SendLoop
from semel.config import Values
from semel.errors import ErrorCode, Fatal, KafkaError, Misuse, RequestTimedOut, error_for
from semel.machines.producing.accumulator import ProducerBatch
from semel.machines.producing.sticky_partitioner import TopicRoutes
from semel.machines.transactions.producer import (
    GroupMetadata,
    ProducerState,
    TransactionManager,
)
from semel.machines.values import ProducerIdentity, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

#: What ends producers that were dropped: a loop alone does not keep its tasks.
_ending: set[asyncio.Task[None]] = set()

_OPEN = (
    ProducerState.IN_TRANSACTION,
    ProducerState.PREPARED,
    ProducerState.COMMITTING,
    ProducerState.ABORTING,
    ProducerState.ABORTABLE_ERROR,
)
_SETTLED = (
    ProducerState.UNINITIALIZED,
    ProducerState.READY,
    ProducerState.PREPARED,
    ProducerState.ABORTABLE_ERROR,
    ProducerState.FATAL_ERROR,
)


@dataclass(slots=True)
class _Route:
    """A topic as its records are sent: what is known of it, and the newest batch of each partition."""

    info: TopicMetadata
    routes: TopicRoutes
    open: list[ProducerBatch | None]


class AsyncProducer:
    """A producer for asyncio. `semel.Producer` is the same for blocking code.

    Make it on the running loop and close it, or use it as `async with AsyncProducer(config) as producer`. An argument
    of the wrong type raises TypeError, all else a `semel.errors.KafkaError`; then the next correct call works.
    """

    def __init__(
        self,
        config: Values | Mapping[str, object],
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        connect: Callable[[str, int], Awaitable[Connection]] | None = None,
    ) -> None:
        self.config = values = parse_config(config)
        self._clock_ms = clock_ms
        self._cluster = Cluster(values, auto_create_topics=True, connect=connect)
        self._sending = sending = SendLoop(values, self._cluster, clock_ms)
        self._manager, self._accumulator, self._sender = sending.manager, sending.accumulator, sending.sender
        self._deliveries, self._lock, self._origin = sending.deliveries, sending.lock, self._cluster.origin
        self._routes: dict[str, _Route] = {}
        self._loop = asyncio.get_running_loop()
        self._closing = False

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id and epoch in use; None without idempotence."""
        return None if self._manager is None else self._manager.identity

    @property
    def state(self) -> ProducerState:
        """Where the producer stands; without idempotence always ready."""
        return ProducerState.READY if self._manager is None else self._manager.state

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: begun, and neither committed nor aborted."""
        return self._manager is not None and self._manager.state in _OPEN

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
        """Take a record in without waiting, from any thread. None where that needs metadata or memory first."""
        if self._origin.lost:
            raise self._origin.refusal("the producer")
        # All that can be wrong with a record is found here: from the lock on, it is taken whole or not at all.
        if type(topic) is not str:
            topic = as_topic(topic)
        if value is not None and type(value) is not bytes:
            value = as_bytes(value, "value")
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "key")
        fields = () if headers is None else as_headers(headers)
        now_ms = self._clock_ms()
        if timestamp_ms is None:
            timestamp_ms = now_ms
        elif type(timestamp_ms) is not int or not 0 <= timestamp_ms <= INT64_MAX:
            timestamp_ms = as_timestamp(timestamp_ms)
        if partition is not None and type(partition) is not int:
            partition = as_partition_number(partition)
        info = self._cluster.metadata.topics.get(topic)
        if info is None:
            return None
        route = self._routes.get(topic)
        if route is None or route.info is not info:
            route = self._route_of(info)
        with self._lock:
            if partition is None:
                partition = route.routes.route(key, len(value) + 20 if value else 20)
            elif not 0 <= partition < route.routes.partition_count:
                return None
            # An open batch belongs to the open transaction: its partition needs no second look.
            batch = route.open[partition]
            if batch is not None and (self._manager is None or self._manager.may_write):
                position = self._accumulator.extend(batch, key, value, fields, timestamp_ms)
                if position >= 0:
                    return Delivery(self._deliveries, batch, position)
            self._check_open()
            target = route.routes.partitions[partition]
            if self._manager is not None:
                self._manager.check_write()
            appended = self._accumulator.append(target, key, value, fields, timestamp_ms, now_ms)
            if appended is None:
                return None
            if self._manager is not None:
                self._manager.write(target)
            batch, position, wake = appended
            route.open[partition] = batch
            if wake:
                self._sending.wake_from_outside()
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
        """Take a record in, waiting up to max.block.ms for metadata and memory. Await the answer for its delivery."""
        self._check_open()
        if headers is not None:
            headers = as_headers(headers)  # once: what is read below for a second time may be an iterator
        deadline = self._loop.time() + self.config["max.block.ms"] / 1000
        while True:
            self._check_open()
            delivery = self.send_now(topic, value, key, partition, headers, timestamp_ms)
            if delivery is not None:
                return delivery
            await self._wait_for_room(topic, partition, deadline)

    async def send_arrow(
        self, topic: str, rows: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> BatchDelivery:
        """Send a table: columns `value`, and where there are any `key` and `headers`, straight into batches.

        Rows with a key go to its partition, the others to one partition for each call. Rows of one partition keep
        their order; no Python object is made for any of them.
        """
        from semel.client.producer.arrow import check_rows, encode_by_partition

        self._check_open()
        topic = as_topic(topic)
        check_rows(rows)
        if partition is not None:
            partition = as_partition_number(partition)
        deadline = self._loop.time() + self.config["max.block.ms"] / 1000
        info = await self._topic_with(topic, partition, deadline)
        with self._lock:
            if self._manager is not None:
                self._manager.check_write()
            keyless = self._route_of(info).routes.route(None, self._accumulator.batch_size_bytes)
        most = self._accumulator.max_request_bytes
        encoded = encode_by_partition(
            rows,
            partition_count=len(info.partitions),
            partition=partition,
            keyless_partition=keyless,
            timestamp_ms=self._clock_ms(),
            codec=self._sending.codec,
            level=self._sending.level,
            max_batch_bytes=min(most, max(self._accumulator.batch_size_bytes, 1 << 18)),
            max_row_bytes=most,
        )
        batches: list[ProducerBatch] = []
        for number, data, record_count in encoded:
            target = TopicPartition(topic, number)
            while (batch := self._append_encoded(target, data, record_count)) is None:
                try:
                    await self._wait_for_room(topic, None, deadline)
                except RequestTimedOut as late:
                    taken = sum(batch.record_count for batch in batches)
                    why = f"{late.why}; {taken} of {rows.num_rows} rows were taken in, and are sent"
                    raise RequestTimedOut(late.code, why) from None
            batches.append(batch)
        self._sending.wake()
        return BatchDelivery(self._deliveries, batches)

    def _append_encoded(self, target: TopicPartition, data: bytes, record_count: int) -> ProducerBatch | None:
        with self._lock:
            self._check_open()
            if self._manager is not None:
                self._manager.check_write()
            batch = self._accumulator.append_encoded(target, data, record_count, self._clock_ms())
            if batch is not None and self._manager is not None:
                self._manager.write(target)
            return batch

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until everything sent so far is delivered or has failed; failures are told by the deliveries.

        With `timeout_ms` no longer than that; else delivery.timeout.ms ends it, at which every record has its outcome.
        """
        wait_ms = as_wait(timeout_ms)
        self._check_open()
        if wait_ms is None:
            await self._wait_for_all()
            return
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._wait_for_all()
        except TimeoutError:
            why = f"flush() did not finish within timeout_ms={wait_ms:g}; what was sent goes on"
            raise RequestTimedOut(ErrorCode.REQUEST_TIMED_OUT, why) from None

    async def _wait_for_all(self) -> None:
        with self._lock:
            self._accumulator.close_all()
            pending = list(self._accumulator.batches()) + self._sender.unfinished_batches()
        self._sending.wake()
        for batch in pending:
            await self._deliveries.wait_async(batch)

    def _route_of(self, info: TopicMetadata) -> _Route:
        """How records of a topic are routed; the current partition is kept while their number stays."""
        count = len(info.partitions)
        known = self._routes.get(info.name)
        if known is not None and known.routes.partition_count == count:
            known.info = info
            return known
        ignore_keys = self.config["partitioner.ignore.keys"]
        routes = TopicRoutes(info.name, count, self.config["batch.size"], random.randrange, ignore_keys)
        route = self._routes[info.name] = _Route(info, routes, [None] * count)
        return route

    async def _wait_for_room(self, topic: str, partition: int | None, deadline: float) -> None:
        """Wait for what `send_now` was missing: metadata, or memory."""
        known = self._cluster.metadata.topics.get(topic)
        if await self._topic_with(topic, partition, deadline) is not known:
            return  # there is news, and time has passed: see whether that was all
        self._sending.wake()  # what lingers need not, when there is no room for more
        try:
            async with asyncio.timeout_at(deadline):
                await self._sending.changed()
        except TimeoutError:
            raise RequestTimedOut(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the buffer (buffer.memory={self.config['buffer.memory']}) stayed full for "
                f"max.block.ms={self.config['max.block.ms']}: brokers do not keep up with what is sent",
            ) from None

    async def _topic_with(self, topic: str, partition: int | None, deadline: float) -> TopicMetadata:
        """What is known of a topic, asked for anew if it seems to lack this partition; a Misuse if it does lack it."""
        as_topic(topic)
        limit = f"max.block.ms={self.config['max.block.ms']}"
        left_ms = max(1.0, (deadline - self._loop.time()) * 1000)
        info = await self._cluster.topic(topic, timeout_ms=left_ms, limit=limit)
        if partition is None or 0 <= partition < len(info.partitions):
            return info
        self._cluster.forget_topic(topic)
        left_ms = max(1.0, (deadline - self._loop.time()) * 1000)
        info = await self._cluster.topic(topic, timeout_ms=left_ms, limit=limit)
        if not 0 <= partition < len(info.partitions):
            raise _no_such_partition(topic, partition, len(info.partitions))
        return info

    # --- transactions ---------------------------------------------------------------------------------------------

    async def init_transactions(self, *, keep_prepared: bool = False) -> ProducerIdentity | None:
        """Take the transactional id over: fences its former owner and ends what that left open.

        With `keep_prepared` (two-phase commit) a prepared transaction stays for `complete_transaction`; its identity
        is the answer.
        """
        manager = self._need_manager("init_transactions")
        self._check_open()
        with self._lock:
            manager.initialize(keep_prepared=keep_prepared)
        await self._settle("init_transactions")
        return manager.prepared

    async def begin_transaction(self) -> None:
        """Open a transaction; records and offsets sent from now on become visible together or not at all."""
        self.begin_now()

    def begin_now(self) -> None:
        """Open a transaction; there is nothing to wait for, so any thread may call this."""
        self._check_open()
        manager = self._need_manager("begin_transaction")
        with self._lock:
            manager.begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Offsets,
        group_metadata: GroupMetadata | str,
    ) -> None:
        """Commit a group's offsets with the open transaction. Give `consumer.group_metadata()`, not just a name."""
        given, group = as_offsets(offsets), as_group(group_metadata)
        manager = self._need_manager("send_offsets_to_transaction")
        self._check_open()
        with self._lock:
            manager.add_offsets(given, group)
        self._sending.wake()
        async with self._blocking("send_offsets_to_transaction"):
            await self._until(lambda: not manager.offsets_pending)
        if manager.error is not None:
            raise manager.error

    async def prepare_transaction(self) -> ProducerIdentity:
        """Flush, and promise to commit if told so: phase one of two (KIP-939). Write the answer down elsewhere."""
        manager = self._need_manager("prepare_transaction")
        self._check_open()
        async with self._blocking("prepare_transaction"):
            await self._wait_for_all()
        with self._lock:
            manager.prepare()
        return manager.identity

    async def complete_transaction(self, decided: ProducerIdentity) -> None:
        """Phase two: commit if this is the transaction that was written down, abort it if not."""
        given = as_identity(decided)
        manager = self._need_manager("complete_transaction")
        self._check_open()
        with self._lock:
            manager.complete(given)
        await self._settle("complete_transaction")

    async def commit_transaction(self) -> None:
        """Wait for every record of the transaction, then make all of it visible at once.

        Takes max.block.ms at most, records and coordinator together; call it again to wait on.
        """
        manager = self._need_manager("commit_transaction")
        self._check_open()
        async with self._blocking("commit_transaction"):
            if manager.state is ProducerState.IN_TRANSACTION:
                await self._wait_for_all()
            with self._lock:
                manager.commit()
            await self._wait_for_outcome(manager)
        if manager.error is not None:
            raise manager.error

    async def abort_transaction(self) -> None:
        """Drop the transaction: what was sent in it will never be seen by a read_committed reader."""
        manager = self._need_manager("abort_transaction")
        self._check_open()
        with self._lock:
            manager.abort()
            why = "the transaction was aborted before this record was sent"
            self._sender.give_up(error_for(ErrorCode.TRANSACTION_ABORTABLE, why), sent_too=False)
        await self._settle("abort_transaction")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncProducer]:
        """Begin; commit at the end of the block, or abort if it raises."""
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except Fatal:
            raise
        except BaseException as error:
            await self.abort_after(error)
            raise

    async def abort_after(self, error: BaseException) -> None:
        """Drop the transaction because of an error, which stays the one to be raised even if the abort fails too.

        One whose commit was asked for cannot be dropped any more: call `commit_transaction` again.
        """
        if not self.in_transaction or self.state is ProducerState.COMMITTING:
            return
        try:
            await self.abort_transaction()
        except KafkaError as failed:
            error.add_note(f"the abort failed too: {failed}")

    async def _settle(self, what: str) -> None:
        """Wait until the step that was begun has an outcome, and raise it if it is an error."""
        manager = self._need_manager(what)
        async with self._blocking(what):
            await self._wait_for_outcome(manager)
        if manager.error is not None:
            raise manager.error

    async def _wait_for_outcome(self, manager: TransactionManager) -> None:
        self._sending.wake()
        await self._until(lambda: manager.state in _SETTLED)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._sending.check_running()
            await self._sending.changed()

    @asynccontextmanager
    async def _blocking(self, what: str) -> AsyncIterator[None]:
        """All that a call waits for, which together takes max.block.ms at most."""
        limit_ms = self.config["max.block.ms"]
        try:
            async with asyncio.timeout(limit_ms / 1000):
                yield
        except TimeoutError:
            raise RequestTimedOut(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{what}() did not finish within max.block.ms={limit_ms}; it goes on: call {what}() again to wait on"
                + (f". The last trouble: {self._sending.trouble}" if self._sending.trouble else ""),
            ) from None

    def _need_manager(self, what: str) -> TransactionManager:
        if self._manager is None:
            raise Misuse(ErrorCode.INVALID_TXN_STATE, f"{what}() needs enable.idempotence=true and transactional.id")
        return self._manager

    # --- closing --------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._origin.lost:
            raise self._origin.refusal("the producer")
        if self._closing:
            raise Misuse(ErrorCode.INVALID_REQUEST, "the producer is closed")
        self._sending.check_running()

    async def close(self, timeout_ms: float | None = None) -> None:
        """Deliver what was sent, for up to `timeout_ms`, abort an open transaction, and let go of the connections.

        Without `timeout_ms` up to delivery.timeout.ms. Records that were not delivered by then have failed.
        """
        wait_ms = as_wait(timeout_ms)
        wait_ms = self.config["delivery.timeout.ms"] if wait_ms is None else wait_ms
        await self._close(wait_ms, f"close() gave the producer {wait_ms:g} ms")

    @property
    def abandon_within_s(self) -> float:
        """How long ending without having been closed may take: see `semel.client.finalizers`."""
        return float(self.config["semel.exit.timeout.ms"]) / 1000

    async def abandon(self) -> None:
        """End without having been closed: deliver what can be delivered soon, and say how much that was not."""
        limit_ms = self.config["semel.exit.timeout.ms"]
        await self._close(
            limit_ms, f"nobody closed the producer, and semel.exit.timeout.ms={limit_ms} ends its sending"
        )

    async def _close(self, timeout_ms: float, what: str) -> None:
        if self._closing or self._origin.lost:
            return
        manager = self._manager
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if manager is not None and manager.state in (
                    ProducerState.IN_TRANSACTION,
                    ProducerState.ABORTABLE_ERROR,
                ):
                    await self.abort_transaction()
                else:
                    await self._wait_for_all()
        except (TimeoutError, KafkaError):
            pass  # the deliveries tell what was lost; the coordinator ends what was left open
        self._closing = True
        unsent, unanswered = await self._sending.stop()
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
        if getattr(self, "_closing", True) or self._origin.lost:
            return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_by_itself)
        why = "a producer was not closed: await close() or use `async with`"
        warnings.warn(why, ResourceWarning, stacklevel=2, source=self)

    def _end_by_itself(self) -> None:
        task = self._loop.create_task(self.abandon())
        _ending.add(task)
        task.add_done_callback(_ending.discard)


def _no_such_partition(topic: str, partition: int, count: int) -> KafkaError:
    return Misuse(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{topic}' has partitions 0 to {count - 1}, not {partition}"
    )

"""The producer: records in, batches out, each exactly once and in order, alone or in transactions.

The rules are in `machines`: `accumulator` gathers, `sender` orders and retries, `transaction_manager` knows who this
producer is. This module owns the clock, the connections and whoever waits. One task does all sending; `send_now` may
be called from any thread, everything else belongs to the loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.client.cluster import Cluster, Coordinator, Target
from semel.client.connection import Connection
from semel.client.delivery import BatchDelivery, Deliveries, Delivery
from semel.client.metadata import TopicInfo
from semel.client.offsets import as_offsets
from semel.client.producer_config import checked
from semel.config import Values
from semel.errors import ErrorCode, Fatal, KafkaError, Misuse, RequestTimedOut, Retriable, error_for
from semel.machines.accumulator import Accumulator, ProducerBatch
from semel.machines.contract import ProducerIdentity, TopicPartition
from semel.machines.partitioner import TopicRoutes
from semel.machines.sender import Answer, Produce, Sender
from semel.machines.transaction_manager import (
    GroupMetadata,
    OffsetAndMetadata,
    Send,
    State,
    TransactionManager,
)
from semel.records.compression import NAMES as CODEC_NAMES
from semel.wire.messages.produce import ProduceRequest

if TYPE_CHECKING:
    import pyarrow as pa

Text = bytes | bytearray | memoryview | str

_OPEN = (State.IN_TRANSACTION, State.PREPARED, State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR)
_SETTLED = (State.READY, State.PREPARED, State.ABORTABLE_ERROR, State.FATAL_ERROR)
_COORDINATOR_IN_DOUBT = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass(slots=True)
class _Route:
    """A topic as its records are sent: what is known of it, and the newest batch of each partition."""

    info: TopicInfo
    routes: TopicRoutes
    open: list[ProducerBatch | None]


class AsyncProducer:
    """A producer for asyncio. `semel.Producer` is the same for blocking code.

    Make it on the running loop and close it, or use it as `async with AsyncProducer(config) as producer`.
    """

    def __init__(
        self,
        config: Values | Mapping[str, object],
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        connect: Callable[[str, int], Awaitable[Connection]] = Connection.open,
    ) -> None:
        self.config = values = checked(config)
        self._clock_ms = clock_ms
        self._cluster = Cluster(values, connect=connect)
        self._codec = CODEC_NAMES.index(values["compression.type"])
        self._acks = -1 if values["acks"] in ("all", "-1") else int(values["acks"])
        self._manager: TransactionManager | None = None
        if values["enable.idempotence"]:
            self._manager = TransactionManager(
                values["transactional.id"],
                values["transaction.timeout.ms"],
                values["transaction.two.phase.commit.enable"],
            )
        self._accumulator = Accumulator(
            batch_size_bytes=values["batch.size"],
            linger_ms=values["linger.ms"],
            buffer_memory_bytes=values["buffer.memory"],
            max_request_bytes=values["max.request.size"],
            codec=self._codec,
        )
        self._sender = Sender(
            self._accumulator,
            self._manager,
            max_in_flight=values["max.in.flight.requests.per.connection"],
            retries=values["retries"],
            retry_backoff_ms=values["retry.backoff.ms"],
            retry_backoff_max_ms=values["retry.backoff.max.ms"],
            delivery_timeout_ms=values["delivery.timeout.ms"],
        )
        self._deliveries = Deliveries()
        self._lock = self._deliveries.lock
        self._routes: dict[str, _Route] = {}
        self._coordinator_tries = 0
        #: What went wrong last with a coordinator, for the person who waits for it.
        self._trouble = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing = False
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._wake_asked = False
        self._change: asyncio.Future[None] = self._loop.create_future()
        self._runner = self._loop.create_task(self._run())

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id and epoch in use; None without idempotence."""
        return None if self._manager is None else self._manager.identity

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
        headers: Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None] | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery | None:
        """Take a record in without waiting, from any thread. None where that needs metadata or memory first."""
        info = self._cluster.metadata.topics.get(topic)
        if info is None:
            return None
        route = self._routes.get(topic)
        if route is None or route.info is not info:
            route = self._route_of(info)
        if value is not None and type(value) is not bytes:
            value = as_bytes(value, "value")
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "key")
        fields = () if headers is None else as_headers(headers)
        now_ms = self._clock_ms()
        if timestamp_ms is None:
            timestamp_ms = now_ms
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
                self._manager.write(target)
            appended = self._accumulator.append(target, key, value, fields, timestamp_ms, now_ms)
            if appended is None:
                return None
            batch, position, wake = appended
            route.open[partition] = batch
            if wake and not self._wake_asked:
                self._wake_asked = True
                self._loop.call_soon_threadsafe(self._wake.set)
        return Delivery(self._deliveries, batch, position)

    async def send(
        self,
        topic: str,
        value: Text | None = None,
        key: Text | None = None,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None] | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Take a record in, waiting up to max.block.ms for metadata and memory. Await the answer for its delivery."""
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
        from semel.client.arrow import encode_by_partition

        deadline = self._loop.time() + self.config["max.block.ms"] / 1000
        self._check_open()
        info = await self._cluster.topic(topic, allow_auto_create=True, timeout_ms=self.config["max.block.ms"])
        if partition is not None and not 0 <= partition < len(info.partitions):
            raise _no_such_partition(topic, partition, len(info.partitions))
        with self._lock:
            keyless = self._route_of(info).routes.route(None, self._accumulator.batch_size_bytes)
        encoded = encode_by_partition(
            rows,
            partition_count=len(info.partitions),
            partition=partition,
            keyless_partition=keyless,
            timestamp_ms=self._clock_ms(),
            codec=self._codec,
            max_batch_bytes=min(self._accumulator.max_request_bytes, max(self._accumulator.batch_size_bytes, 1 << 18)),
        )
        batches = []
        for number, data, record_count in encoded:
            target = TopicPartition(topic, number)
            while (batch := self._append_encoded(target, data, record_count)) is None:
                await self._wait_for_room(topic, None, deadline)
            batches.append(batch)
        self._wake.set()
        return BatchDelivery(self._deliveries, batches)

    def _append_encoded(self, target: TopicPartition, data: bytes, record_count: int) -> ProducerBatch | None:
        with self._lock:
            if self._manager is not None:
                self._manager.write(target)
            return self._accumulator.append_encoded(target, data, record_count, self._clock_ms())

    async def flush(self) -> None:
        """Wait until everything sent so far is delivered or has failed; failures are told by the deliveries."""
        with self._lock:
            self._accumulator.close_all()
            pending = list(self._accumulator.batches()) + self._sender.unfinished_batches()
        self._wake.set()
        for batch in pending:
            await self._deliveries.wait_async(batch)

    def _route_of(self, info: TopicInfo) -> _Route:
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
        left = deadline - self._loop.time()
        unknown = topic not in self._cluster.metadata.topics
        info = await self._cluster.topic(topic, allow_auto_create=True, timeout_ms=max(1.0, left * 1000))
        if partition is not None and not 0 <= partition < len(info.partitions):
            raise _no_such_partition(topic, partition, len(info.partitions))
        if unknown:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._changed()
        except TimeoutError:
            raise RequestTimedOut(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the buffer (buffer.memory={self.config['buffer.memory']}) stayed full for "
                f"max.block.ms={self.config['max.block.ms']}: brokers do not keep up with what is sent",
            ) from None

    # --- transactions ---------------------------------------------------------------------------------------------

    async def init_transactions(self, *, keep_prepared: bool = False) -> ProducerIdentity | None:
        """Take the transactional id over: fences its former owner and ends what that left open.

        With `keep_prepared` (two-phase commit) a prepared transaction stays for `complete_transaction`; its identity
        is the answer.
        """
        manager = self._need_manager("init_transactions")
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
        with self._lock:
            self._need_manager("begin_transaction").begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition | tuple[str, int], OffsetAndMetadata | int],
        group_metadata: GroupMetadata | str,
    ) -> None:
        """Commit a group's offsets with the open transaction. Give `consumer.group_metadata()`, not just a name."""
        group = GroupMetadata(group_metadata) if isinstance(group_metadata, str) else group_metadata
        manager = self._need_manager("send_offsets_to_transaction")
        self._check_open()
        with self._lock:
            manager.add_offsets(as_offsets(offsets), group)
        self._wake.set()
        await self._until(lambda: not manager.offsets_pending, "send_offsets_to_transaction")
        if manager.error is not None:
            raise manager.error

    async def prepare_transaction(self) -> ProducerIdentity:
        """Flush, and promise to commit if told so: phase one of two (KIP-939). Write the answer down elsewhere."""
        manager = self._need_manager("prepare_transaction")
        await self.flush()
        with self._lock:
            manager.prepare()
        return manager.identity

    async def complete_transaction(self, decided: ProducerIdentity) -> None:
        """Phase two: commit if this is the transaction that was written down, abort it if not."""
        manager = self._need_manager("complete_transaction")
        with self._lock:
            manager.complete(decided)
        await self._settle("complete_transaction")

    async def commit_transaction(self) -> None:
        """Wait for every record of the transaction, then make all of it visible at once."""
        manager = self._need_manager("commit_transaction")
        self._check_open()
        if manager.state is State.IN_TRANSACTION:
            await self.flush()
        with self._lock:
            manager.commit()
        await self._settle("commit_transaction")

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
        except BaseException:
            if self.in_transaction:
                await self.abort_transaction()
            raise

    async def _settle(self, what: str) -> None:
        """Wait until the step that was begun has an outcome, and raise it if it is an error."""
        manager = self._need_manager(what)
        self._wake.set()
        await self._until(lambda: manager.state in _SETTLED, what)
        if manager.error is not None:
            raise manager.error

    async def _until(self, reached: Callable[[], bool], what: str) -> None:
        limit_ms = self.config["max.block.ms"]
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while not reached():
                    await self._changed()
        except TimeoutError:
            raise RequestTimedOut(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{what}() did not finish within max.block.ms={limit_ms}; it goes on: call {what}() again to wait on"
                + (f". The last trouble: {self._trouble}" if self._trouble else ""),
            ) from None

    def _need_manager(self, what: str) -> TransactionManager:
        if self._manager is None:
            raise Misuse(ErrorCode.INVALID_TXN_STATE, f"{what}() needs enable.idempotence=true and transactional.id")
        return self._manager

    # --- the one task that sends ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wake_at = self._step()
            if wake_at is None:
                await self._wake.wait()
                continue
            wait = (wake_at - self._clock_ms()) / 1000
            if wait > 0:
                timer = self._loop.call_later(wait, self._wake.set)
                await self._wake.wait()
                timer.cancel()
            else:
                await asyncio.sleep(0)

    def _step(self) -> int | None:
        """Ask the machines once, and start what they say. The answer is when to ask again."""
        manager, now_ms = self._manager, self._clock_ms()
        with self._lock:
            self._wake_asked = False
            requests, wake_at = self._sender.poll(now_ms, self._leader)
            send = None
            if manager is not None:
                if manager.state is State.UNINITIALIZED and not manager.is_transactional and not self._closing:
                    manager.initialize()
                if manager.state is State.FATAL_ERROR and manager.error is not None:
                    self._sender.give_up(manager.error, sent_too=True)
                left = self._sender.busy or not self._accumulator.is_empty
                send = manager.poll(now_ms, batches_left=left)
                if send is None and manager.not_before_ms > now_ms:
                    wake_at = manager.not_before_ms if wake_at is None else min(wake_at, manager.not_before_ms)
            finished = self._sender.finished()
        for request in requests:
            self._start(self._produce(request))
        if send is not None:
            self._start(self._converse(send))
        if self._sender.stale_leaders and not self._refreshing:
            self._refreshing = True
            self._start(self._find_leaders())
        self._deliveries.announce(finished)
        self._note_change()
        return wake_at

    def _leader(self, partition: TopicPartition) -> int | None:
        return self._cluster.metadata.leader(partition.topic, partition.partition)

    async def _produce(self, request: Produce) -> None:
        """Send one request and hand the answers to the machine."""
        message = self._message(request)
        try:
            response = await self._cluster.request(request.node_id, message, newest=self._newest_produce())
        except KafkaError as error:
            code, why = error.code, error.why
            with self._lock:
                if isinstance(error, Retriable):
                    self._sender.on_no_answer(request, code, self._clock_ms())
                else:
                    refusal = Answer(code, message=why)
                    self._sender.on_answers(request, [refusal] * len(request.batches), self._clock_ms())
        else:
            answers = _answers(request, response)
            with self._lock:
                self._sender.on_answers(request, answers, self._clock_ms())
        self._wake.set()

    def _newest_produce(self) -> int:
        """From version 12 on a produce joins the transaction by itself, which V1 coordinators do not expect."""
        manager = self._manager
        return 11 if manager is not None and manager.is_transactional and manager.version < 2 else 12

    def _message(self, request: Produce) -> ProduceRequest:
        topics: dict[str, list[Any]] = {}
        for batch in request.batches:
            topics.setdefault(batch.partition.topic, []).append(
                ProduceRequest.PartitionProduceData(index=batch.partition.partition, records=batch.data)
            )
        return ProduceRequest(
            transactional_id=None if self._manager is None else self._manager.transactional_id,
            acks=self._acks,
            timeout_ms=self.config["request.timeout.ms"],
            topic_data=[ProduceRequest.TopicProduceData(name=t, partition_data=p) for t, p in topics.items()],
        )

    async def _converse(self, send: Send) -> None:
        """Send one request to a coordinator and hand the answer to the machine."""
        manager = self._need_manager("send")
        to: Target = Coordinator(send.coordinator, send.key) if manager.is_transactional else None
        self._coordinator_tries += 1
        try:
            if not self._cluster.finalized_features:
                await self._cluster.connect()
            # Which protocol is spoken is settled before the first identity is asked for, and stays.
            if manager.state is State.INITIALIZING:
                manager.version = self._cluster.transaction_version
            response = await self._cluster.request(to, send.message, version=send.version, newest=send.newest)
        except KafkaError as error:
            self._trouble = error.why
            with self._lock:
                if isinstance(error, Retriable):
                    manager.on_disconnect(self._clock_ms(), self._backoff_ms())
                else:
                    manager.on_error(error)
            self._cluster.forget_coordinator(send.coordinator, send.key)
        else:
            with self._lock:
                code = manager.on_response(send.message, response, self._clock_ms(), self._backoff_ms())
            self._trouble = "" if code is ErrorCode.NONE else f"{code.name}, {code.meaning}"
            if code is ErrorCode.NONE:
                self._coordinator_tries = 0
            if code in _COORDINATOR_IN_DOUBT:
                self._cluster.forget_coordinator(send.coordinator, send.key)
        self._wake.set()

    def _backoff_ms(self) -> int:
        return max(1, int(self._cluster.backoff(self._coordinator_tries) * 1000))

    async def _find_leaders(self) -> None:
        """Ask who leads the partitions whose leader is in doubt, until somebody does."""
        tries = 0
        try:
            while self._sender.stale_leaders:
                with self._lock:
                    doubtful = set(self._sender.stale_leaders)
                try:
                    await self._cluster.refresh_metadata(sorted({p.topic for p in doubtful}), allow_auto_create=True)
                except Retriable:
                    found: set[TopicPartition] = set()
                except KafkaError as error:
                    with self._lock:
                        self._sender.give_up(error, sent_too=True)
                        self._sender.stale_leaders -= doubtful
                    return
                else:
                    found = {p for p in doubtful if self._leader(p) is not None}
                with self._lock:
                    self._sender.stale_leaders -= found
                self._wake.set()
                if self._sender.stale_leaders:
                    tries += 1
                    await asyncio.sleep(self._cluster.backoff(tries))
        finally:
            self._refreshing = False
            self._wake.set()

    # --- waiting and closing --------------------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _changed(self) -> None:
        """Wait until the machines were asked once more."""
        await asyncio.shield(self._change)

    def _note_change(self) -> None:
        if not self._change.done():
            self._change.set_result(None)
        self._change = self._loop.create_future()

    def _check_open(self) -> None:
        if self._closing:
            raise Misuse(ErrorCode.INVALID_REQUEST, "the producer is closed")
        if self._runner.done() and not self._runner.cancelled():
            self._runner.result()

    async def close(self, timeout_ms: float | None = None) -> None:
        """Deliver what was sent, for up to `timeout_ms`, abort an open transaction, and let go of the connections."""
        if self._closing:
            return
        timeout_ms = self.config["delivery.timeout.ms"] if timeout_ms is None else timeout_ms
        manager = self._manager
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if manager is not None and manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                    await self.abort_transaction()
                else:
                    await self.flush()
        except (TimeoutError, KafkaError):
            pass  # the deliveries tell what was lost; the coordinator ends what was left open
        self._closing = True
        self._runner.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(self._runner, *self._tasks, return_exceptions=True)
        with self._lock:
            self._sender.give_up(error_for(ErrorCode.NETWORK_EXCEPTION, "the producer was closed"), sent_too=True)
            finished = self._sender.finished()
        self._deliveries.announce(finished)
        await self._cluster.close()


def _answers(request: Produce, response: Any) -> list[Answer]:
    """The broker's word on each batch, in the request's order; without a response (acks=0) everything is believed."""
    if response is None:
        return [Answer(ErrorCode.NONE)] * len(request.batches)
    found = {
        (topic.name, row.index): Answer(
            ErrorCode.of(row.error_code), row.base_offset, row.log_append_time_ms, row.error_message
        )
        for topic in response.responses
        for row in topic.partition_responses
    }
    missing = Answer(ErrorCode.UNKNOWN_SERVER_ERROR, message="the broker's answer leaves this partition out")
    return [found.get((b.partition.topic, b.partition.partition), missing) for b in request.batches]


def as_bytes(given: Text, what: str) -> bytes:
    """Bytes as they are, text as UTF-8.

    >>> as_bytes("once", "value")
    b'once'
    """
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    raise TypeError(f"a record's {what} is bytes or str, not {type(given).__name__}")


def as_headers(
    given: Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None],
) -> Sequence[tuple[str, bytes | None]]:
    """Headers as pairs; a name may come more than once."""
    pairs = given.items() if isinstance(given, Mapping) else given
    return [(name, None if value is None else as_bytes(value, "header")) for name, value in pairs]


def _no_such_partition(topic: str, partition: int, count: int) -> KafkaError:
    return Misuse(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{topic}' has partitions 0 to {count - 1}, not {partition}"
    )

"""The task of a producer that sends: polls the machines, sends what they say, and gives them the responses.

Only this task uses the network. The lock exists because `send_now` puts records into the accumulator from any thread.
The machines are called only with the lock held, and never wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

from semel.client.cluster.cluster import Cluster, Coordinator, Target
from semel.client.producer.delivery import Deliveries
from semel.client.producer.unheard import UnheardFailures
from semel.config import Values
from semel.config.codecs import CODECS
from semel.errors import ClientClosed, ErrorCode, KafkaError, Misuse, Retriable, error_for
from semel.machines.producing.accumulator import Accumulator, ProducerBatch
from semel.machines.producing.sender import BatchAnswer, Produce, Sender
from semel.machines.transactions.producer import ProducerState, Send, TransactionManager
from semel.machines.values import TopicPartition
from semel.records.compression import LEVEL_SETTINGS
from semel.wire.messages.produce import ProduceRequest

_log = logging.getLogger(__name__)

_COORDINATOR_IN_DOUBT = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class SendLoop:
    """A producer's machines, and the task that runs them."""

    def __init__(self, values: Values, cluster: Cluster, steady_ms: Callable[[], int]) -> None:
        self.config = values
        self.cluster = cluster
        self.codec = CODECS.index(values["compression.type"])
        self.level = values[LEVEL_SETTINGS[self.codec]] if self.codec in LEVEL_SETTINGS else None
        self.manager: TransactionManager | None = None
        if values["enable.idempotence"]:
            self.manager = TransactionManager(
                values["transactional.id"],
                values["transaction.timeout.ms"],
                values["transaction.two.phase.commit.enable"],
            )
        self.accumulator = Accumulator(
            batch_size_bytes=values["batch.size"],
            linger_ms=values["linger.ms"],
            buffer_memory_bytes=values["buffer.memory"],
            max_request_bytes=values["max.request.size"],
            codec=self.codec,
            level=self.level,
        )
        self.sender = Sender(
            self.accumulator,
            self.manager,
            max_in_flight=values["max.in.flight.requests.per.connection"],
            retries=values["retries"],
            retry_backoff_ms=values["retry.backoff.ms"],
            retry_backoff_max_ms=values["retry.backoff.max.ms"],
            delivery_timeout_ms=values["delivery.timeout.ms"],
        )
        #: Of transactions the commit tells.
        self.unheard = UnheardFailures(cluster.origin, values["client.id"])
        self.deliveries = Deliveries(cluster.origin)
        #: Gives up what it keeps of a batch that is done.
        self.forget_batch: Callable[[ProducerBatch], None] | None = None
        self.lock = self.deliveries.lock
        #: The last error of a coordinator, for the message to a caller who waits for it.
        self.coordinator_error = ""
        #: Nothing more is taken in.
        self.closing = False
        #: The time of the machines. Not the wall clock: if that is set back by an hour, a retry would wait for the
        #: hour, and delivery.timeout.ms too.
        self.steady_ms = steady_ms
        self._acks = -1 if values["acks"] in ("all", "-1") else int(values["acks"])
        self._coordinator_tries = 0
        self._refreshing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._topics_used: set[str] = set()
        #: The unexpected error that ended the producer.
        self._failure: BaseException | None = None
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._wake_asked = False
        #: Those who wait for the next poll of the machines. Each may give up without disturbing the others.
        self._waiting: list[asyncio.Future[None]] = []
        self._runner = self._loop.create_task(self._run())
        self._runner.add_done_callback(self._on_end)
        self._start(self._refresh_topics_in_use())

    def wake(self) -> None:
        """There is something to send. On the loop only."""
        self._wake.set()

    def wake_from_outside(self) -> None:
        """There is something to send. From any thread, with the lock held."""
        if not self._wake_asked:
            self._wake_asked = True
            self._loop.call_soon_threadsafe(self._wake.set)

    def mend(self) -> None:
        """The caller of `send_now` was interrupted (Ctrl-C) between any two steps. From any thread, with the lock held.

        The record is in its batch whole or not at all, and its caller knows only that it may be. Its neighbours must
        not suffer: a record that is written and not counted would spoil the batch.
        """
        for partition in self.accumulator.mend():
            if self.manager is not None and self.manager.may_write:
                self.manager.write(partition)
        self._wake_asked = True
        self._loop.call_soon_threadsafe(self._wake.set)

    async def wait_for_change(self) -> None:
        """Wait until the machines have been polled again."""
        change: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(change)
        await change

    async def flush(self) -> None:
        """Wait until every record taken in so far is delivered or has failed."""
        with self.lock:
            self.accumulator.close_all()
            pending = list(self.accumulator.batches()) + self.sender.unfinished_batches()
        self.wake()
        for batch in pending:
            await self.deliveries.wait_async(batch)

    def check_open(self) -> None:
        """Raise if nothing can be sent: after a fork, after closing, or after an unexpected error."""
        if self.cluster.origin.lost:
            raise self.cluster.origin.refusal("the producer")
        if self.closing:
            raise Misuse(ErrorCode.INVALID_REQUEST, "the producer is closed")
        self.check_running()

    def check_running(self) -> None:
        """Raise the unexpected error that stopped the sending, if there was one."""
        if self._failure is not None:
            raise self._failure

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """A task ended. If it was an unexpected error, all deliveries fail with it."""
        self._tasks.discard(task)
        if task is self._runner and task.cancelled() and not self._stopping and self._failure is None:
            self._on_loop_end()
        failure = None if task.cancelled() else task.exception()
        if failure is None or self._failure is not None:
            return
        self._failure = failure
        self._runner.cancel()
        self._fail_all(error_for(ErrorCode.UNKNOWN_SERVER_ERROR, f"the producer itself failed: {failure!r}"))
        self._note_change()

    def _on_loop_end(self) -> None:
        """The event loop ends and cancels everything, and nobody closed the producer."""
        unsent, unanswered = self._give_up_all("the event loop ended and nobody closed the producer")
        if unsent or unanswered:
            _log.warning(
                "an event loop ended and nobody closed the producer on it: %d records were not sent, %d were sent and "
                "not acknowledged. Use `async with`, or await close()",
                unsent,
                unanswered,
            )

    def _fail_all(self, error: KafkaError) -> None:
        with self.lock:
            self.sender.give_up(error, sent_too=True)
            finished = self.sender.finished()
        self._announce(finished)

    def _give_up_all(self, why: str) -> tuple[int, int]:
        """Fail all records that are left. Returns how many were not sent, and how many were sent without a response."""
        with self.lock:
            unsent = sum(batch.record_count for batch in self.accumulator.batches())
            unanswered = sum(batch.record_count for batch in self.sender.unfinished_batches())
            never = f"{why} before this record was sent: it was not written"
            self.sender.give_up(ClientClosed(ErrorCode.OPERATION_NOT_ATTEMPTED, never), sent_too=False)
            perhaps = f"{why} before the broker answered: this record may have been written or not"
            self.sender.give_up(ClientClosed(ErrorCode.UNKNOWN_SERVER_ERROR, perhaps), sent_too=True)
            finished = self.sender.finished()
        self._announce(finished)
        return unsent, unanswered

    async def stop(self) -> tuple[int, int]:
        """Stop sending, and fail what is not delivered. Returns the same as `_give_up_all`."""
        self._stopping = True
        self._runner.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(self._runner, *self._tasks, return_exceptions=True)
        return self._give_up_all("the producer was closed")

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wake_at = self._step()
            if wake_at is None:
                await self._wake.wait()
                continue
            wait = (wake_at - self.steady_ms()) / 1000
            if wait > 0:
                timer = self._loop.call_later(wait, self._wake.set)
                await self._wake.wait()
                timer.cancel()
            else:
                await asyncio.sleep(0)

    def _step(self) -> int | None:
        """Poll the machines once and start what they say. Returns when to poll again; None: when woken up."""
        manager, now_ms = self.manager, self.steady_ms()
        with self.lock:
            self._wake_asked = False
            requests, wake_at = self.sender.poll(now_ms, self._leader, self._throttled_ms)
            send = None
            if manager is not None:
                if manager.state is ProducerState.UNINITIALIZED and not manager.is_transactional:
                    # After a refusal, ask for an identity again only when there is something to send.
                    if manager.error is None or not self.accumulator.is_empty:
                        manager.initialize()
                if manager.state is ProducerState.FATAL_ERROR and manager.error is not None:
                    self.sender.give_up(manager.error, sent_too=True)
                left = self.sender.busy or not self.accumulator.is_empty
                send = manager.poll(now_ms, batches_left=left)
                if send is None and manager.not_before_ms > now_ms:
                    wake_at = manager.not_before_ms if wake_at is None else min(wake_at, manager.not_before_ms)
            finished = self.sender.finished()
        for request in requests:
            self._start(self._produce(request))
        if send is not None:
            self._start(self._ask_coordinator(send))
        if self.sender.stale_leaders and not self._refreshing:
            self._refreshing = True
            self._start(self._find_leaders())
        self._announce(finished)
        self._note_change()
        return wake_at

    def _announce(self, finished: list[ProducerBatch]) -> None:
        """Tell whoever waits for these batches, and see to those that failed."""
        if self.manager is None or not self.manager.is_transactional:
            for batch in finished:
                if batch.error is not None:
                    self.unheard.watch(batch)
                    if self.forget_batch is not None:
                        with self.lock:
                            self.forget_batch(batch)
        self.deliveries.announce(finished)

    def _leader(self, partition: TopicPartition) -> int | None:
        return self.cluster.metadata.leader(partition.topic, partition.partition)

    def _throttled_ms(self, node_id: int) -> int:
        return math.ceil(self.cluster.throttled_s(node_id) * 1000)

    async def _produce(self, request: Produce) -> None:
        """Send one produce request and give the outcomes to the machine."""
        message = self._message(request)
        try:
            response = await self.cluster.request(request.node_id, message, newest=self._newest_produce())
        except asyncio.CancelledError:
            with self.lock:
                self.sender.on_stop(request)
            raise
        except KafkaError as error:
            code, why = error.code, error.why
            with self.lock:
                if isinstance(error, Retriable):
                    self.sender.on_no_answer(request, code, self.steady_ms())
                else:
                    refusal = BatchAnswer(code, message=why)
                    self.sender.on_answers(request, [refusal] * len(request.batches), self.steady_ms())
        else:
            answers = _answers(request, response)
            with self.lock:
                self.sender.on_answers(request, answers, self.steady_ms())
        self._wake.set()

    def _newest_produce(self) -> int:
        """From version 12 on a produce adds its partitions to the transaction, which needs transaction.version 2."""
        manager = self.manager
        return 11 if manager is not None and manager.is_transactional and manager.version < 2 else 12

    def _message(self, request: Produce) -> ProduceRequest:
        topics: dict[str, list[Any]] = {}
        for batch in request.batches:
            self._topics_used.add(batch.partition.topic)
            topics.setdefault(batch.partition.topic, []).append(
                ProduceRequest.PartitionProduceData(index=batch.partition.partition, records=batch.data)
            )
        return ProduceRequest(
            transactional_id=None if self.manager is None else self.manager.transactional_id,
            acks=self._acks,
            timeout_ms=self.config["request.timeout.ms"],
            topic_data=[ProduceRequest.TopicProduceData(name=t, partition_data=p) for t, p in topics.items()],
        )

    async def _ask_coordinator(self, send: Send) -> None:
        """Send one request to a coordinator and give the response to the machine."""
        manager = self.manager
        assert manager is not None
        to: Target = Coordinator(send.coordinator, send.key) if manager.is_transactional else None
        self._coordinator_tries += 1
        try:
            if not self.cluster.finalized_features:
                await self.cluster.connect()
            # The transaction protocol is chosen before the first identity is requested, and does not change after that.
            if manager.state is ProducerState.INITIALIZING:
                manager.version = self.cluster.transaction_version
            response = await self.cluster.request(to, send.message, version=send.version, newest=send.newest)
        except KafkaError as error:
            self.coordinator_error = error.why
            with self.lock:
                if isinstance(error, Retriable):
                    manager.on_disconnect(self.steady_ms(), self._backoff_ms())
                else:
                    manager.on_error(error)
            self.cluster.forget_coordinator(send.coordinator, send.key)
        else:
            with self.lock:
                code = manager.on_response(send.message, response, self.steady_ms(), self._backoff_ms())
                if manager.state is ProducerState.UNINITIALIZED and manager.error is not None:
                    self.sender.give_up(manager.error, sent_too=True)
            self.coordinator_error = "" if code is ErrorCode.NONE else f"{code.name}, {code.meaning}"
            if code is ErrorCode.NONE:
                self._coordinator_tries = 0
            if code in _COORDINATOR_IN_DOUBT:
                self.cluster.forget_coordinator(send.coordinator, send.key)
        self._wake.set()

    def _backoff_ms(self) -> int:
        return max(1, int(self.cluster.backoff(self._coordinator_tries) * 1000))

    async def _find_leaders(self) -> None:
        """Fetch metadata until all partitions whose leader is in doubt have one."""
        tries = 0
        try:
            while self.sender.stale_leaders:
                with self.lock:
                    doubtful = set(self.sender.stale_leaders)
                refused = await self._refresh(sorted({p.topic for p in doubtful}))
                found = {p for p in doubtful if self._leader(p) is not None or p.topic in refused}
                with self.lock:
                    for topic, error in refused.items():
                        self.sender.give_up(error, sent_too=True, topic=topic)
                        if self.manager is not None:
                            self.manager.fail(error, renew=True)
                with self.lock:
                    self.sender.stale_leaders -= found
                self._wake.set()
                if self.sender.stale_leaders:
                    tries += 1
                    await asyncio.sleep(self.cluster.backoff(tries))
        finally:
            self._refreshing = False
            self._wake.set()

    async def _refresh(self, topics: list[str]) -> dict[str, KafkaError]:
        """Fetch metadata of these topics. Returns those that cannot be used, with the error."""
        try:
            await self.cluster.refresh_metadata(topics)
        except Retriable:
            return {}
        except KafkaError as error:
            if len(topics) == 1:
                return {topics[0]: error}
            each = [await self._refresh([topic]) for topic in topics]
            return {topic: why for refused in each for topic, why in refused.items()}
        return {}

    async def _refresh_topics_in_use(self) -> None:
        """Fetch metadata of the topics in use every metadata.max.age.ms: they may have more partitions.

        Other topics are not asked for: that might create one again that was deleted.
        """
        while True:
            await asyncio.sleep(self.config["metadata.max.age.ms"] / 1000)
            topics, self._topics_used = sorted(self._topics_used), set()
            if topics:
                await self._refresh(topics)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _note_change(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for change in waiting:
                if not change.done():
                    change.set_result(None)


def _answers(request: Produce, response: Any) -> list[BatchAnswer]:
    """The outcome of each batch, in the order of the request. Without a response (acks=0) all count as written."""
    if response is None:
        return [BatchAnswer(ErrorCode.NONE)] * len(request.batches)
    found = {
        (topic.name, row.index): BatchAnswer(
            ErrorCode.of(row.error_code),
            row.base_offset,
            row.log_append_time_ms,
            row.error_message,
            tuple(refused.batch_index for refused in row.record_errors) if row.record_errors else (),
        )
        for topic in response.responses
        for row in topic.partition_responses
    }
    missing = BatchAnswer(ErrorCode.UNKNOWN_SERVER_ERROR, message="the broker's response does not have this partition")
    return [found.get((b.partition.topic, b.partition.partition), missing) for b in request.batches]

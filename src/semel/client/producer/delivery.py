"""What `send` returns: the place of the record once it is written, or the error.

Records of one batch share its outcome, so a delivery is only a batch and a position in it. Objects for waiting are
created only when somebody waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from semel.client.arguments import as_wait_s
from semel.client.forking import OfOneProcess, Origin
from semel.client.producer.unheard import Witness
from semel.errors import ErrorCode, KafkaError, Misuse, RequestTimedOut
from semel.machines.producing.accumulator import ProducerBatch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The place of a record.

    `offset` is -1 if the broker did not return it (acks=0, or a duplicate of an old batch). `append_time_ms` is the
    broker's time for topics with message.timestamp.type=LogAppendTime, otherwise -1.
    """

    topic: str
    partition: int
    offset: int
    append_time_ms: int


class Deliveries:
    """The callbacks that wait for batches. Shared by a producer and its deliveries, and used from any thread."""

    def __init__(self, origin: Origin) -> None:
        self.lock = threading.Lock()
        self.origin = origin
        #: The thread of the loop that sends.
        self._thread = threading.get_ident()
        self._waiters: dict[ProducerBatch, list[Callable[[], object]]] = {}

    def when_done(self, batch: ProducerBatch, callback: Callable[[], object]) -> None:
        """Call `callback` once, when the batch is done; at once if it is done already."""
        self.origin.check("the producer")
        with self.lock:
            if not batch.done:
                self._waiters.setdefault(batch, []).append(callback)
                return
        callback()

    def announce(self, batches: list[ProducerBatch]) -> None:
        """These batches are done: call the callbacks. Not to be called with the lock held.

        A callback that fails, because its loop is closed for example, does not keep the others from being called.
        """
        if not self._waiters:
            return
        with self.lock:
            callbacks = [callback for batch in batches for callback in self._waiters.pop(batch, ())]
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.warning("a callback that waited for a delivery failed", exc_info=True)

    def check_wait(self, wait_s: float | None) -> None:
        """Refuse to wait in the thread that sends: it would wait for itself, and the producer would stand still."""
        if threading.get_ident() == self._thread and wait_s != 0:
            why = "result() inside a callback of the producer, or on its event loop, would wait for itself"
            raise Misuse(ErrorCode.INVALID_REQUEST, f"{why}: await the delivery, or add a callback")

    async def wait_async(self, batch: ProducerBatch) -> None:
        if batch.done:
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        self.when_done(batch, lambda: loop.call_soon_threadsafe(settle))
        await done


class Delivery(OfOneProcess):
    """One record that is being sent. Wait with `result()` in a thread, with `await` on a loop, or add a callback."""

    __slots__ = ("_batch", "_deliveries", "_position")

    def __init__(self, deliveries: Deliveries, batch: ProducerBatch, position: int) -> None:
        self._deliveries = deliveries
        self._batch = batch
        self._position = position

    def done(self) -> bool:
        """Whether the record is delivered or has failed."""
        return self._batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds. Returns the place of the record, or raises why it was not written.

        On the event loop of an asyncio producer use `await` instead.
        """
        wait_s = as_wait_s(timeout)
        if not self._batch.done:
            self._deliveries.check_wait(wait_s)
            event = threading.Event()
            self._deliveries.when_done(self._batch, event.set)
            if not event.wait(wait_s):
                raise RequestTimedOut(
                    ErrorCode.REQUEST_TIMED_OUT, f"not acknowledged within {wait_s:g} s; still trying"
                )
        return self._outcome()

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """As `result`, but return the error instead of raising it; None if the record was delivered."""
        wait_s = as_wait_s(timeout)
        if not self._batch.done:
            self._deliveries.check_wait(wait_s)
        try:
            self.result(wait_s)
        except KafkaError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` when done, in the producer's own thread: it must not block.

        An exception of the callback is logged and does not stop the sending.
        """
        if not callable(callback):
            raise TypeError(f"a callback is a function of the delivery, not {type(callback).__name__}")

        def call() -> None:
            try:
                callback(self)
            except Exception:
                _log.exception("the callback of %r failed", self)

        self._deliveries.when_done(self._batch, call)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from self._deliveries.wait_async(self._batch).__await__()
        return self._outcome()

    def _outcome(self) -> RecordMetadata:
        offset, append_time_ms, error = self._batch.outcome(self._position)
        if error is not None:
            _note_heard(self._batch)
            raise error
        partition = self._batch.partition
        return RecordMetadata(partition.topic, partition.partition, offset, append_time_ms)

    def __repr__(self) -> str:
        return f"<Delivery to {self._batch.partition}: {'done' if self._batch.done else 'on its way'}>"


class BatchDelivery(OfOneProcess):
    """Many records that are being sent, from `send_arrow`: one wait for all of them."""

    __slots__ = ("_batches", "_deliveries")

    def __init__(self, deliveries: Deliveries, batches: list[ProducerBatch]) -> None:
        self._deliveries = deliveries
        self._batches = batches

    @property
    def record_count(self) -> int:
        return sum(batch.record_count for batch in self._batches)

    def done(self) -> bool:
        return all(batch.done for batch in self._batches)

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait for all. Returns one entry per batch, with the place of its first record, or raises the first error."""
        wait_s = as_wait_s(timeout)
        deadline = None if wait_s is None else time.monotonic() + wait_s
        for batch in self._batches:
            if not batch.done:
                self._deliveries.check_wait(wait_s)
                event = threading.Event()
                self._deliveries.when_done(batch, event.set)
                if not event.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    raise RequestTimedOut(
                        ErrorCode.REQUEST_TIMED_OUT, f"not acknowledged within {wait_s:g} s; still trying"
                    )
        return self._outcome()

    def __await__(self) -> Generator[Any, None, list[RecordMetadata]]:
        for batch in self._batches:
            yield from self._deliveries.wait_async(batch).__await__()
        return self._outcome()

    def _outcome(self) -> list[RecordMetadata]:
        for batch in self._batches:
            if batch.error is not None:  # set too if the batch was split and one part failed
                for failed in self._batches:
                    _note_heard(failed)
                raise batch.error
        return [Delivery(self._deliveries, batch, 0)._outcome() for batch in self._batches]


def _note_heard(batch: ProducerBatch) -> None:
    if isinstance(batch.witness, Witness):
        batch.witness.heard = True

"""Tells of records that failed and whose deliveries nobody looked at: who only sends would lose them silently.

Guarantees: a failure that somebody has asked for (`result`, `exception`, `await`) is not logged; of all others the log
has the number, the topic and the reason, but no more than a line per topic and reason every ten seconds, and the rest
when the producer is closed. Nothing is logged while a lock is held, as a handler of the log may send records itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from semel.client.forking import Origin
from semel.errors import ClientClosed, ErrorCode, KafkaError
from semel.machines.producing.accumulator import ProducerBatch

_log = logging.getLogger(__name__)

_PAUSE_S = 10.0


class Witness:
    """Belongs to a batch that has failed, and is freed with it: then nobody can ask for its outcome any more."""

    __slots__ = ("_error", "_note", "_place", "heard")

    def __init__(self, batch: ProducerBatch, error: KafkaError, note: Callable[[str, KafkaError, int], None]) -> None:
        self.heard = False
        self._error = error
        self._note = note
        failed = sum(1 for position in range(batch.record_count) if batch.outcome(position)[2] is not None)
        self._place = (batch.partition.topic, failed)

    def __del__(self) -> None:
        if not self.heard:
            topic, failed = self._place
            self._note(topic, self._error, failed)


class UnheardFailures:
    """The failures of one producer that nobody has heard of."""

    def __init__(self, origin: Origin, client_id: str) -> None:
        self._origin = origin
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        #: What witnesses have left, from any thread.
        self._new: deque[tuple[str, KafkaError, int]] = deque()
        #: By topic and reason: how many records, with the last error, and when the log may have the next line.
        self._open: dict[tuple[str, ErrorCode], tuple[int, KafkaError]] = {}
        self._not_before: dict[tuple[str, ErrorCode], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def watch(self, batch: ProducerBatch) -> None:
        """This batch has failed. On the loop."""
        error = batch.error
        if error is not None and not isinstance(error, ClientClosed):  # of those `close` tells
            batch.witness = Witness(batch, error, self._note)

    def _note(self, topic: str, error: KafkaError, failed: int) -> None:
        if self._origin.lost:
            return
        self._new.append((topic, error, failed))
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:  # the loop is closed
            self._closed = True
            self._tell()

    def _tell(self) -> None:
        while self._new:
            topic, error, failed = self._new.popleft()
            so_far = self._open.get((topic, error.code), (0, error))[0]
            self._open[topic, error.code] = (so_far + failed, error)
        now = 0.0 if self._closed else self._loop.time()
        for key, (failed, error) in list(self._open.items()):
            if self._closed or self._not_before.get(key, now) <= now:
                del self._open[key]
                self._not_before[key] = now + _PAUSE_S
                _log.warning(
                    "producer '%s': %d records for topic '%s' were not written, and nobody asked for their outcome: %s "
                    "Look at the deliveries that send() returns.",
                    self._client_id,
                    failed,
                    key[0],
                    error,
                )
        if self._open and self._timer is None:  # never after closing: then all is told
            self._timer = self._loop.call_later(_PAUSE_S, self._tell_later)

    def _tell_later(self) -> None:
        self._timer = None
        self._tell()

    def close(self) -> None:
        """Tell the rest at once. On the loop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

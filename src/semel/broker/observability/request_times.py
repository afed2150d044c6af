"""How long requests take, by API: a histogram, kept only while somebody can scrape it.

A request's time runs from its frame being whole to its answer being handed to the socket, waiting included: what
Kafka calls TotalTimeMs. A broker without a metrics port serves with a plain `Dispatcher` and never looks at a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Coroutine
from struct import Struct
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.dispatch import Dispatcher
from semel.broker.net.connection import Buffers, Served, ServerConnection

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

#: Upper bounds of the histogram; what takes longer still is counted beyond the last.
BOUNDS_MS = (0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0)
_api_key_of = Struct(">h").unpack_from


class RequestTimes:
    """The times of one API's requests since the start."""

    __slots__ = ("counts", "longest_ms", "sum_ms")

    def __init__(self) -> None:
        #: One for each of `BOUNDS_MS`, and one for everything beyond.
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0
        self.longest_ms = 0.0

    def add(self, took_ms: float) -> None:
        """Count one request."""
        self.counts[bisect_left(BOUNDS_MS, took_ms)] += 1
        self.sum_ms += took_ms
        if took_ms > self.longest_ms:
            self.longest_ms = took_ms


class TimedDispatcher(Dispatcher):
    """Serves like any dispatcher, and remembers how long it took."""

    def __init__(self, broker: BrokerServer) -> None:
        super().__init__(broker)
        self.times: dict[int, RequestTimes] = {}

    def serve(self, connection: ServerConnection, frame: memoryview) -> Served:
        """Serve one request."""
        began = perf_counter()
        served = super().serve(connection, frame)
        api_key = _api_key_of(frame)[0]
        if type(served) is CoroutineType:
            return self._served_later(served, api_key, began)
        self._add(api_key, began)
        return served

    async def _served_later(
        self, served: Coroutine[Any, Any, Buffers | None], api_key: int, began: float
    ) -> Buffers | None:
        buffers = await served
        self._add(api_key, began)
        return buffers

    def _add(self, api_key: int, began: float) -> None:
        times = self.times.get(api_key)
        if times is None:
            if api_key not in self.routes:
                return
            times = self.times[api_key] = RequestTimes()
        times.add((perf_counter() - began) * 1000)

"""What a request takes: its time for the metrics, and its work and its bytes for the quotas.

Guarantees:

- A broker without quotas and without a metrics port has no meter, and reads no clock for a request.
- A request's time runs from its frame being complete to its answer being encoded, waiting included: Kafka's
  TotalTimeMs.
- A request's work is the time it had the thread. What it waits for others is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.broker.observability.request_times import RequestTimes
from semel.wire.apis import ApiKey

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.quotas import Quotas


class Measurement:
    """One request being measured. Its dispatcher calls the methods in the order they stand here."""

    __slots__ = ("_began_ns", "_call", "_clock_ns", "_meter", "_size_bytes", "_spent_ns", "_started_ns")

    def __init__(self, meter: RequestMeter, call: Call, size_bytes: int) -> None:
        self._meter = meter
        self._clock_ns = meter.clock_ns
        self._call = call
        self._size_bytes = size_bytes
        self._spent_ns = 0
        self._began_ns = self._started_ns = self._clock_ns()

    def start(self) -> None:
        """The handler is called now."""
        self._started_ns = self._clock_ns()

    def stop(self) -> None:
        """The handler returned, with a reply or with a coroutine that continues later."""
        self._spent_ns += self._clock_ns() - self._started_ns

    async def watch(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await the rest of the handler's work, and count it."""
        return await _Watched(coroutine, self)

    def count(self, reply: Any) -> None:
        """Count the work against the quotas, before the reply is encoded: it says how long the client has to wait."""
        quotas, call = self._meter.quotas, self._call
        if quotas is None:
            return
        # Without a reply the client cannot be told to wait. A produce is counted by its bytes in any case.
        wait_ms = 0 if reply is None else quotas.work_wait_ms(call, self._spent_ns)
        if call.api_key == ApiKey.PRODUCE:
            wait_ms = max(wait_ms, quotas.produce_wait_ms(call, self._size_bytes))
        quotas.throttle(call, reply, wait_ms)

    def finish(self) -> None:
        """The answer is encoded."""
        times = self._meter.times
        if times is not None:
            api_key = self._call.api_key
            known = times.get(api_key)
            if known is None:
                known = times[api_key] = RequestTimes()
            known.add((self._clock_ns() - self._began_ns) / 1_000_000)


class RequestMeter:
    """Measures requests by quotas, by the clock, or both."""

    __slots__ = ("clock_ns", "quotas", "times")

    def __init__(
        self, quotas: Quotas | None, times: dict[int, RequestTimes] | None, clock_ns: Callable[[], int]
    ) -> None:
        self.clock_ns = clock_ns
        self.quotas = quotas
        #: The times by API; None without a metrics port.
        self.times = times

    def begin(self, call: Call, size_bytes: int) -> Measurement:
        """A request's frame of this size is complete."""
        return Measurement(self, call, size_bytes)


class _Watched:
    """Awaits a coroutine, and adds up how long it had the thread."""

    __slots__ = ("_coroutine", "_measurement")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], measurement: Measurement) -> None:
        self._coroutine = coroutine
        self._measurement = measurement

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            self._measurement.start()
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value
            finally:
                self._measurement.stop()
            try:
                step = partial(self._coroutine.send, (yield waits_for))
            except BaseException as error:
                step = partial(self._coroutine.throw, error)

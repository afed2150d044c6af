"""An event loop in its own thread, so that blocking code can use the asyncio clients.

A forked process does not have this thread. A client from before the fork raises an error there, and does not hang.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from semel.client.forking import Origin
from semel.errors import ErrorCode, Misuse, RequestTimedOut

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers in other threads, until it is closed. Calls that wait then raise Misuse."""

    def __init__(self, name: str) -> None:
        self.origin = Origin()
        self.name = name
        self.loop = _new_loop()
        # Nothing may be handed to the loop once it is being stopped. Reentrant, because a garbage collection may run
        # while it is held, and find a client that nobody closed.
        self._gate = threading.RLock()
        self._closing = False
        self._awaited: set[concurrent.futures.Future[Any]] = set()
        self._last: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()  # a SystemExit of a callback ends it too
        finally:
            with self._gate:
                self._closing = True
            self.loop.close()
            for future in self._awaited.copy():
                future.cancel()  # tasks that ignored the cancellation will never end

    @property
    def is_closed(self) -> bool:
        return self._closing

    def run(self, work: Coroutine[Any, Any, T], *, timeout_ms: float | None = None) -> T:
        """Run the coroutine and return its result. It is cancelled if the caller is interrupted, or on a timeout."""
        try:
            future = self._hand_over(work)
        except BaseException:
            work.close()
            raise
        try:
            return future.result(None if timeout_ms is None else timeout_ms / 1000)
        except concurrent.futures.CancelledError:
            raise Misuse(ErrorCode.INVALID_REQUEST, f"{self.name} was closed during the call") from None
        except BaseException as error:
            if isinstance(error, TimeoutError) and not future.done():
                future.cancel()
                raise RequestTimedOut(
                    ErrorCode.REQUEST_TIMED_OUT, f"{self.name}: still at it after {timeout_ms:g} ms"
                ) from None
            future.cancel()
            raise
        finally:
            self._awaited.discard(future)
            del future  # an exception keeps this frame alive: without a cycle, clients are freed at once

    def _hand_over(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        self.origin.check(self.name)
        self._check_outside()
        with self._gate:
            if self._closing:
                raise Misuse(ErrorCode.INVALID_REQUEST, f"{self.name} is closed")
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            self._awaited.add(future)
            return future

    def _check_outside(self) -> None:
        if threading.current_thread() is self._thread:
            why = f"{self.name}: a blocking call inside one of its own callbacks would wait for itself"
            raise Misuse(ErrorCode.INVALID_REQUEST, why)

    def close(self, patience_s: float = 10.0) -> None:
        """Stop the loop. Tasks that still run are cancelled first, and get `patience_s` to end."""
        if self.origin.lost:
            return
        self._check_outside()
        with self._gate:
            first, self._closing = not self._closing, True
        if first:
            asyncio.run_coroutine_threadsafe(_cancel_all(patience_s), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def finish(self, last: Callable[[], Coroutine[Any, Any, None]], patience_s: float = 10.0) -> None:
        """Run the last coroutine and then stop the loop, without waiting; `join` waits. Nothing else is accepted."""
        if self.origin.lost:
            return
        with self._gate:
            if self._closing:
                return
            self._closing = True
            self.loop.call_soon_threadsafe(self._begin_last, last, patience_s)

    def _begin_last(self, last: Callable[[], Coroutine[Any, Any, None]], patience_s: float) -> None:
        self._last = self.loop.create_task(self._finish(last(), patience_s))

    async def _finish(self, last: Coroutine[Any, Any, None], patience_s: float) -> None:
        try:
            await last
        finally:
            await _cancel_all(patience_s)
            await asyncio.sleep(0)  # closed connections are released in the next iteration of the loop
            self.loop.stop()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, no longer than `timeout_s`."""
        self._thread.join(timeout_s)


async def _cancel_all(patience_s: float) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=patience_s)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop

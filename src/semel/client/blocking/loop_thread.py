"""An event loop in a thread of its own: what lets blocking code use the asyncio client.

A process that was forked has no such thread any more, so a face made before a fork says so instead of hanging.
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
    """Runs coroutines for callers in other threads, until closed. Whoever waits when it closes is told."""

    def __init__(self, name: str) -> None:
        self.origin = Origin()
        self.name = name
        self.loop = _new_loop()
        # Nothing may be handed to the loop after the decision to stop it. Taken again where a garbage collection in the
        # midst of it finds a client that nobody closed.
        self._gate = threading.RLock()
        self._closing = False
        self._awaited: set[concurrent.futures.Future[Any]] = set()
        self._last: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()  # also ended by a SystemExit that a callback raised
        finally:
            with self._gate:
                self._closing = True
            self.loop.close()
            for future in self._awaited.copy():
                future.cancel()  # what would not be cancelled will not end any more either

    @property
    def is_closed(self) -> bool:
        return self._closing

    def run(self, work: Coroutine[Any, Any, T], *, timeout_ms: float | None = None) -> T:
        """Wait for the work's result. An interrupt of the caller, or the end of `timeout_ms`, cancels the work."""
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
            del (
                future
            )  # what is raised keeps this frame, which must not keep what is raised: clients are dropped at once

    def _hand_over(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        self.origin.check(self.name)
        if threading.current_thread() is self._thread:
            raise Misuse(
                ErrorCode.INVALID_REQUEST,
                f"{self.name}: a blocking call inside one of its own callbacks would wait for itself",
            )
        with self._gate:
            if self._closing:
                raise Misuse(ErrorCode.INVALID_REQUEST, f"{self.name} is closed")
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            self._awaited.add(future)
            return future

    def close(self, patience_s: float = 10.0) -> None:
        """Stop the loop; what still runs on it is cancelled first, and given `patience_s` to end."""
        if self.origin.lost:
            return
        with self._gate:
            first, self._closing = not self._closing, True
        if first:
            asyncio.run_coroutine_threadsafe(_cancel_all(patience_s), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def finish(self, last: Callable[[], Coroutine[Any, Any, None]], patience_s: float = 10.0) -> None:
        """Run the last work and stop the loop, without waiting for either; `join` does. Nothing else is taken in."""
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
            await asyncio.sleep(0)  # connections that were let go of are closed in the next turn of the loop
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

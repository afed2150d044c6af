"""An event loop in a thread of its own: what lets blocking code use the asyncio client.

A process that was forked has no such thread any more, so a face made before a fork says so instead of hanging.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from semel.errors import ErrorCode, Misuse

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers in other threads, until closed."""

    def __init__(self, name: str) -> None:
        self._owner = os.getpid()
        self._name = name
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    @property
    def is_closed(self) -> bool:
        return not self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work's result. An interrupt of the caller cancels the work."""
        if os.getpid() != self._owner:
            work.close()
            raise Misuse(ErrorCode.INVALID_REQUEST, f"{self._name} was made before a fork: make it in this process")
        if threading.current_thread() is self._thread:
            work.close()
            raise Misuse(
                ErrorCode.INVALID_REQUEST,
                f"{self._name}: a blocking call inside one of its own callbacks would wait for itself",
            )
        if not self._thread.is_alive():
            work.close()
            raise Misuse(ErrorCode.INVALID_REQUEST, f"{self._name} is closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Misuse(ErrorCode.INVALID_REQUEST, f"{self._name} was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop; what still runs on it is cancelled first."""
        if os.getpid() != self._owner or not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop

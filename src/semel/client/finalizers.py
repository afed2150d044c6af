"""Ends clients that nobody closed: those that are dropped, and those that are still open when the program exits.

Guarantees: records that were taken in are still sent, within a time limit, and the log says how many were not; the
client's thread ends and its descriptors are closed. Dropping a client never blocks, because the client's own thread
does the work. The exit of the program waits for that thread.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from semel.client.blocking.loop_thread import LoopThread


_log = logging.getLogger(__name__)

#: How long a thread may take to stop, in addition to the time that its client needs to finish.
_SLACK_S = 5.0


class Abandonable(Protocol):
    """A client for asyncio that can end without having been closed."""

    @property
    def abandon_within_s(self) -> float:
        """How long `abandon` may take."""

    async def abandon(self) -> None:
        """Finish what must not be lost, log what was lost, and close the connections."""


class Finalizer:
    """Ends a blocking client. Holds its thread and its asyncio client, but not the blocking client itself."""

    def __init__(self, thread: LoopThread, client: Abandonable) -> None:
        self.thread = thread
        self._client = client
        self._dropped = False
        _open.add(self)
        _watch_a_child_of_multiprocessing()

    def over(self) -> None:
        """The client was closed."""
        _open.discard(self)

    def begin(self, *, dropped: bool = False) -> None:
        """Let the thread finish and stop. Does not wait: the garbage collector may call this, in any thread."""
        self._dropped = dropped
        self.thread.finish(self._finish)

    async def _finish(self) -> None:
        if self._dropped:  # Python hides a ResourceWarning by default
            _log.warning("%s was dropped without being closed: call close() or use `with`", self.thread.name)
        try:
            await self._client.abandon()
        except Exception:
            _log.exception("%s was not closed, and ending it failed", self.thread.name)
        finally:
            self.over()

    def wait(self, since: float) -> None:
        self.thread.join(max(0.0, since + self._client.abandon_within_s + _SLACK_S - time.monotonic()))


_open: set[Finalizer] = set()


def end_open_clients() -> None:
    """End all open clients at once, so that the waits overlap. All other threads have ended by now."""
    since = time.monotonic()
    left = [finalizer for finalizer in list(_open) if not finalizer.thread.origin.lost]
    for finalizer in left:
        finalizer.begin()
    for finalizer in left:
        finalizer.wait(since)


atexit.register(end_open_clients)

#: The id of the process in which `_at_end_of_child` is registered.
_watched_in = 0


def _watch_a_child_of_multiprocessing() -> None:
    """A child of multiprocessing does not run atexit functions: register with multiprocessing itself."""
    global _watched_in
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None or _watched_in == os.getpid():
        return
    from multiprocessing import util

    _watched_in = os.getpid()
    util.Finalize(None, _at_end_of_child, exitpriority=-10)  # after its queues


def _at_end_of_child() -> None:
    for thread in threading.enumerate():  # they may still use a client; multiprocessing would wait for them next
        if not thread.daemon and thread not in (threading.current_thread(), threading.main_thread()):
            thread.join()
    end_open_clients()


_abandoning: set[asyncio.Task[None]] = set()


def keep_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Let a loop finish this, though nobody waits for it: a task that is not kept may be collected half done."""
    task = loop.create_task(work)
    _abandoning.add(task)
    task.add_done_callback(_abandoning.discard)


def drop(client: Abandonable, name: str, loop: asyncio.AbstractEventLoop) -> None:
    """For `__del__` of an asyncio client that was not closed: warn, and let its loop end it. Does not wait."""

    def end() -> None:
        _log.warning("%s was dropped without being closed: await close() or use `async with`", name)
        keep_task(loop, client.abandon())

    if not loop.is_closed():
        loop.call_soon_threadsafe(end)
    warnings.warn(f"{name} was not closed: await close() or use `async with`", ResourceWarning, stacklevel=3)

"""The end of a blocking client that nobody closed: one that was dropped, or that is there when the program ends.

Guarantees: what it was given is still sent, within a bound, and what could not be sent is told; its thread ends and its
descriptors are closed. Dropping never waits, the client's own thread does the work; the program's end waits for it.
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
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from semel.client.blocking.loop_thread import LoopThread


_log = logging.getLogger(__name__)

#: What a thread gets to stop in, beyond the time its client takes for what is left to do.
_SLACK_S = 5.0


class Abandonable(Protocol):
    """A client for asyncio that can end without having been closed."""

    @property
    def abandon_within_s(self) -> float:
        """How long `abandon` may take."""

    async def abandon(self) -> None:
        """Finish what must not be lost, say what was lost, and let go of the connections."""


class Finalizer:
    """What is left to do for a face when it goes. Knows its thread and its client, never the face itself."""

    def __init__(self, thread: LoopThread, client: Abandonable) -> None:
        self.thread = thread
        self._client = client
        self._dropped = False
        _open.add(self)
        _watch_a_child_of_multiprocessing()

    def over(self) -> None:
        """It was closed in good order."""
        _open.discard(self)

    def begin(self, *, dropped: bool = False) -> None:
        """Have the thread finish and stop. Never waits: a garbage collector may call this, in any thread."""
        self._dropped = dropped
        self.thread.finish(self._finish)

    async def _finish(self) -> None:
        if self._dropped:  # Python hides a ResourceWarning unless asked; the log is read
            _log.warning("%s was dropped without being closed: call close() or use `with`", self.thread.name)
        try:
            await self._client.abandon()
        except Exception:
            _log.exception("%s was not closed, and could not be ended in good order", self.thread.name)
        finally:
            self.over()

    def wait(self, since: float) -> None:
        self.thread.join(max(0.0, since + self._client.abandon_within_s + _SLACK_S - time.monotonic()))


_open: set[Finalizer] = set()


def _at_exit() -> None:
    """All at once, so that the longest wait is the whole wait. Other threads have ended, only these still run."""
    since = time.monotonic()
    left = [finalizer for finalizer in list(_open) if not finalizer.thread.origin.lost]
    for finalizer in left:
        finalizer.begin()
    for finalizer in left:
        finalizer.wait(since)


atexit.register(_at_exit)

#: The process in which multiprocessing was asked to say when it ends.
_watched_in = 0


def _watch_a_child_of_multiprocessing() -> None:
    """Where multiprocessing forked a process, it also ends it, and asks nobody but those who told it to."""
    global _watched_in
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None or _watched_in == os.getpid():
        return
    from multiprocessing import util

    _watched_in = os.getpid()
    util.Finalize(None, _at_end_of_child, exitpriority=-10)  # after its queues


def _at_end_of_child() -> None:
    for thread in threading.enumerate():  # whoever still works may use a client; multiprocessing waits for them next
        if not thread.daemon and thread not in (threading.current_thread(), threading.main_thread()):
            thread.join()
    _at_exit()


_abandoning: set[asyncio.Task[None]] = set()


def drop(client: Abandonable, name: str, loop: asyncio.AbstractEventLoop) -> None:
    """For `__del__` of a client for asyncio that was not closed: warn, and have its loop end it. Never waits."""

    def end() -> None:
        _log.warning("%s was dropped without being closed: await close() or use `async with`", name)
        task = loop.create_task(client.abandon())
        _abandoning.add(task)
        task.add_done_callback(_abandoning.discard)

    if not loop.is_closed():
        loop.call_soon_threadsafe(end)
    warnings.warn(f"{name} was not closed: await close() or use `async with`", ResourceWarning, stacklevel=3)

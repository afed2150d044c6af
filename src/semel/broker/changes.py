"""Changes to what the metadata store keeps: topics, settings, quotas, credentials.

Guarantees:

- One change at a time.
- A change that has begun is carried out, also if the client that asked for it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from semel.errors import InvariantViolation

_Result = TypeVar("_Result")


class Changes:
    """Runs one change after the other."""

    def __init__(self, handle_failure: Callable[[BaseException], None]) -> None:
        self._handle_failure = handle_failure
        self._one_at_a_time = asyncio.Lock()
        self._running: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Make a change when no other is being made."""
        try:
            await self._one_at_a_time.acquire()
        except BaseException:
            work.close()
            raise
        task = self._running = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._done)
        # Shielded: this coroutine ends with the client's connection, the change must not.
        return await asyncio.shield(task)

    async def finish(self, timeout_s: float) -> None:
        """Wait for the change that is being made, if there is one."""
        if self._running is not None:
            await asyncio.wait([self._running], timeout=timeout_s)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._one_at_a_time.release()
        # Whoever waits for the change gets its error. A broken invariant stops the broker, also if nobody waits.
        if not task.cancelled() and isinstance(error := task.exception(), InvariantViolation):
            self._handle_failure(error)

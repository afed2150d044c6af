"""The queue "after the reply, before the next request".

Guarantees:

- A step runs after the current request is answered and after the readers it woke are served.
- No request is served while a step is left. So a client that got a reply never finds its step undone.
- After a broken invariant no step runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class AfterReply:
    """Steps that answered requests still have to do, in the order they were added."""

    __slots__ = ("_may_run", "steps")

    def __init__(self, may_run: Callable[[], bool]) -> None:
        self._may_run = may_run
        #: Callers that serve requests look here first: an empty queue must cost them nothing.
        self.steps: deque[Callable[[], None]] = deque()

    def add(self, step: Callable[[], None]) -> None:
        """Run this step in a later turn of the loop, or when the next request arrives, whichever comes first."""
        if not self.steps:
            asyncio.get_running_loop().call_soon(self._run_first)
        self.steps.append(step)

    def run_all(self) -> None:
        """Run every step now: another request arrived first, or the broker stops."""
        while self.steps:
            self.steps.popleft()()

    def _run_first(self) -> None:
        """One step per turn of the loop: connections are served between two steps."""
        if self.steps and self._may_run():
            step = self.steps.popleft()
            if self.steps:
                asyncio.get_running_loop().call_soon(self._run_first)
            step()

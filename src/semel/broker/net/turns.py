"""Shares the one thread: how much work is done in one turn of the event loop, and who continues in the next.

Guarantees:

- The work of all connections and requests in one turn is bounded: after `TURN_S` everybody else waits for a later turn.
- Connections that ask for little do not wait for those that ask for much. The first half of a turn is for connections
  that had nothing left to do. The other half is for those that did not finish within their share, `SHARE_S`, and for
  requests that take longer than a turn. Neither half is left unused.
- Nobody waits for ever: in each half, those that waited longest go first.
- A short turn costs no more than reading a clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from semel.environment import MACHINE

#: The work of one turn. A piece of work that cannot be split may exceed it.
TURN_S = 0.010
#: How long one connection may work in a turn while others wait.
SHARE_S = 0.002
#: After less work than this no callback is scheduled to end the turn.
_WORTH_ENDING_S = 0.001


class Turns:
    """One for every event loop that serves connections."""

    __slots__ = ("_is_ending", "_loop", "_modest", "_others", "_spent_s", "clock", "put_off")

    def __init__(self, clock: Callable[[], float] = MACHINE.work_clock_s) -> None:
        self.clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spent_s = 0.0
        self._is_ending = False
        #: Callbacks of those who wait. One that returns True has only woken a task, which will work later.
        self._modest: deque[Callable[[], bool]] = deque()
        self._others: deque[Callable[[], bool]] = deque()
        #: How often somebody had to wait for a later turn, since the start.
        self.put_off = 0

    @property
    def is_used_up(self) -> bool:
        """Whether nobody may begin to work in this turn."""
        return self._spent_s >= TURN_S

    def is_over(self, since: float) -> bool:
        """Whether the turn is over for somebody who has worked since then, by `clock`."""
        return self._spent_s + self.clock() - since >= TURN_S

    def share_is_over(self, since: float) -> bool:
        """The same for a connection, which gets less time while others wait."""
        spent_s = self.clock() - since
        return self._spent_s + spent_s >= TURN_S or (spent_s >= SHARE_S and bool(self._others or self._modest))

    def worked(self, since: float) -> None:
        """Count work that began at `since` and ends now."""
        self._spent_s += self.clock() - since
        if self._spent_s >= _WORTH_ENDING_S and not self._is_ending:
            self._end_soon()

    def later(self, go_on: Callable[[], bool], *, is_modest: bool = False) -> None:
        """Call this in a later turn. It returns True if it only woke a task that will do the work.

        `is_modest`: it has done no work since it last had nothing to do.
        """
        self.put_off += 1
        (self._modest if is_modest else self._others).append(go_on)
        if not self._is_ending:
            self._end_soon()

    async def rest(self, since: float) -> float:
        """Call this between two pieces of work: it waits for a later turn if this one is over.

        `since` is when the work began. Returns when the next piece begins.
        """
        if not self.is_over(since):
            return since
        self.worked(since)
        await self.next()
        return self.clock()

    async def next(self) -> None:
        """Wait for a later turn."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        woken = loop.create_future()

        def go_on() -> bool:
            if woken.done():
                return False
            woken.set_result(None)
            return True

        self.later(go_on)
        await woken

    def _end_soon(self) -> None:
        self._is_ending = True
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        """Begin a new turn with those who wait."""
        self._is_ending = False
        self._spent_s = 0.0
        modest, others = self._modest, self._others
        if not modest and not others:
            return
        try:
            self._go_on(modest, TURN_S / 2) and self._go_on(others, TURN_S) and self._go_on(modest, TURN_S)
        finally:
            if (modest or others) and not self._is_ending:
                self._end_soon()

    def _go_on(self, waiting: deque[Callable[[], bool]], until_s: float) -> bool:
        """Let those who wait work until this much of the turn is spent. Returns whether any of it is left."""
        while waiting and self._spent_s < until_s:
            if waiting.popleft()():
                # Its work comes later, and cannot be counted here. So only one of its kind is woken in a turn.
                return False
        return True

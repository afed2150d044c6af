"""Shares the one thread: how much work is done in one turn of the event loop, and who goes on in the next.

Guarantees:

- What all connections and all requests do in one turn is bounded together: once a turn has been worked in for `TURN_S`,
  whoever asks is told that it is over and comes again in a later turn.
- Who asks for little is not kept waiting by those who ask for much: the first half of a turn is for connections that
  had nothing left to ask, the other half for those who did not get done with their share, `SHARE_S`, and for requests
  that take longer than a turn. Neither half is left unused.
- Nobody waits for ever: in each half, those who have waited longest go first.
- A turn that is short costs nobody anything but a look at a clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

#: So long may one turn be worked in. What is done in one piece comes on top of it.
TURN_S = 0.010
#: So long may one connection work in it while others wait.
SHARE_S = 0.002
#: Work of less than this is not worth a callback that ends its turn.
_WORTH_ENDING_S = 0.001


class Turns:
    """One for every event loop that serves connections."""

    __slots__ = ("_is_ending", "_loop", "_modest", "_others", "_spent_s", "clock", "put_off")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spent_s = 0.0
        self._is_ending = False
        #: What goes on later; one that says True has only been woken, and will work after it was called.
        self._modest: deque[Callable[[], bool]] = deque()
        self._others: deque[Callable[[], bool]] = deque()
        #: How often somebody had to wait for a later turn, since the start.
        self.put_off = 0

    @property
    def is_used_up(self) -> bool:
        """Whether this turn is over for those who have not begun."""
        return self._spent_s >= TURN_S

    def is_over(self, since: float) -> bool:
        """Whether this turn is over for somebody who works since then, by `clock`."""
        return self._spent_s + self.clock() - since >= TURN_S

    def share_is_over(self, since: float) -> bool:
        """The same for a connection, which works for less long while others wait."""
        spent_s = self.clock() - since
        return self._spent_s + spent_s >= TURN_S or (spent_s >= SHARE_S and bool(self._others or self._modest))

    def worked(self, since: float) -> None:
        """Count a stretch of work that began at `since` and ends now."""
        self._spent_s += self.clock() - since
        if self._spent_s >= _WORTH_ENDING_S and not self._is_ending:
            self._end_soon()

    def later(self, go_on: Callable[[], bool], *, is_modest: bool = False) -> None:
        """Call this in a later turn. It says whether its work is still to come, in a task that it woke.

        `is_modest`: it has not worked since it last had nothing to do.
        """
        self.put_off += 1
        (self._modest if is_modest else self._others).append(go_on)
        if not self._is_ending:
            self._end_soon()

    async def rest(self, since: float) -> float:
        """Between two pieces of work that began at `since`: wait for a later turn if this one is over.

        Returns since when the next piece counts.
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
        """A new turn of the loop has begun: those who wait go first."""
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
        """Let those who wait work until so much of this turn is spent; whether anything is left of it."""
        while waiting and self._spent_s < until_s:
            if waiting.popleft()():
                # It works only after this. So it is woken alone, and the next of its kind in the next turn.
                return False
        return True

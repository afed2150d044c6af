"""What all connections together may hold: requests that are arriving, and answers that nobody reads.

Guarantees:

- Small requests need nothing from here: whatever others hold, they are read and served.
- Nobody can take all there is. A connection may hold as much as is left for the others; only one at a time may go
  beyond that, so that frames that each hold a part do not wait for each other.
- Who holds memory has to go on. A request that stalls is given up, and sooner where others wait for its memory. So is
  a reader that takes nothing of its answer, but only where others wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Protocol

#: What a connection reads into: one for all of them, kept by one only while it needs it.
RECEIVE_BUFFER_BYTES = 128 * 1024
#: How many receive buffers that came back are kept for the next who needs one.
SPARE_BUFFERS = 8
#: What a request has to bring within the timeout, unless it is whole by then.
STEP_BYTES = 64 * 1024
#: Where others wait, who holds memory has to move this part of it ...
HURRIED_PART = 16
#: ... within this part of the timeout.
HURRIED_TIME = 6
#: The most of what is left that a single answer may take.
ANSWER_PART = 4
#: How many of those who wait are tried when something comes back; the next look tries all.
WOKEN_TOGETHER = 16

NO_LIMIT = 2**63 - 1


def new_buffer(size_bytes: int) -> memoryview:
    """A buffer of its own pages: they are taken when something is read into them, and given back with it, where an
    allocator would keep the holes that connections leave."""
    return memoryview(mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS))


def grown(buffer: memoryview, used_bytes: int, size_bytes: int) -> memoryview:
    """The same buffer with more room. Its pages move as they are: to copy a large one would hold up everybody.

    Not where somebody still looks into it, or where the system cannot do that.
    """
    pages = buffer.obj
    try:
        buffer.release()
        pages.resize(size_bytes)  # type: ignore[attr-defined]
        return memoryview(pages)
    except (BufferError, OSError, SystemError, ValueError):
        larger = new_buffer(size_bytes)
        larger[:used_bytes] = memoryview(pages)[:used_bytes]
        return larger


class Sender(Protocol):
    """A connection that may hold a part of a request."""

    @property
    def held_bytes(self) -> int:
        """What it took from the pool."""

    def room_came_back(self) -> bool:
        """Try again to take what was refused; whether that ended the waiting."""

    def look_after(self, now_s: float, timeout_s: float, hurried: bool) -> bool:
        """Give up a request that stalls, give back what is not needed; whether to look again next time."""


class MemoryPool:
    """Bounds what all connections together hold in buffers and parked requests (`queued.max.request.bytes`)."""

    __slots__ = (
        "_ahead",
        "_spare",
        "_timeout_s",
        "_waiting",
        "limit_bytes",
        "refusals",
        "scratch",
        "used_bytes",
        "watched",
    )

    def __init__(self, limit_bytes: int, timeout_s: float = 30.0) -> None:
        #: While less is used, somebody who holds nothing may take a receive buffer.
        self.limit_bytes = limit_bytes if limit_bytes > 0 else NO_LIMIT
        self._timeout_s = timeout_s
        #: Who waits for memory, the longest first.
        self._waiting: dict[Sender, None] = {}
        #: Who goes on although it holds more than is left.
        self._ahead: Sender | None = None
        self._spare: list[memoryview] = []
        #: What every connection that holds nothing reads into.
        self.scratch = new_buffer(RECEIVE_BUFFER_BYTES)
        #: Who holds a buffer or a part of a request.
        self.watched: set[Sender] = set()
        self.used_bytes = 0
        #: How often somebody had to wait, since the start.
        self.refusals = 0

    @property
    def waiting(self) -> int:
        """How many wait for something to come back."""
        return len(self._waiting)

    @property
    def is_low(self) -> bool:
        """Whether half is gone: the time to give back what is only kept for later."""
        return self.limit_bytes <= 2 * self.used_bytes

    def take(self, size_bytes: int, taker: Sender) -> bool:
        """Take `size_bytes` more for a buffer, or be refused when that leaves too little for others."""
        held_bytes = taker.held_bytes
        if held_bytes + size_bytes > self.limit_bytes - self.used_bytes:
            if self._ahead not in (None, taker):
                return False
            self._ahead = taker
        self.used_bytes += size_bytes
        return True

    def take_scratch(self) -> memoryview:
        """The buffer that was just read into, for good; everybody else goes on with another."""
        taken, self.scratch = self.scratch, self.take_buffer()
        return taken

    def take_buffer(self) -> memoryview:
        """A receive buffer."""
        self.used_bytes += RECEIVE_BUFFER_BYTES
        return self._spare.pop() if self._spare else new_buffer(RECEIVE_BUFFER_BYTES)

    def give_back(self, size_bytes: int, holder: Sender | None = None, buffer: memoryview | None = None) -> None:
        """Return what was taken and let those go on who were refused."""
        self.used_bytes -= size_bytes
        if buffer is not None and len(buffer) == RECEIVE_BUFFER_BYTES and len(self._spare) < SPARE_BUFFERS:
            self._spare.append(buffer)
        if holder is not None and holder is self._ahead:
            self._ahead = None
        if self._waiting:
            self._wake(WOKEN_TOGETHER)

    def wait(self, sender: Sender) -> None:
        """Have it called when something was given back."""
        self.refusals += 1
        self._waiting[sender] = None

    def forget(self, sender: Sender) -> None:
        """It is gone, and waits for nothing."""
        self._waiting.pop(sender, None)
        self.watched.discard(sender)

    def _wake(self, count: int) -> None:
        for sender in list(islice(self._waiting, count)):
            del self._waiting[sender]
            if not sender.room_came_back():
                # Behind those who have not been tried.
                self._waiting[sender] = None

    def look(self, now_s: float) -> None:
        """Give up what stalls, take back what nobody needs; for a timer to call, every second or so."""
        hurried = bool(self._waiting)
        for sender in tuple(self.watched):
            if not sender.look_after(now_s, self._timeout_s, hurried):
                self.watched.discard(sender)
        if self._waiting and self.used_bytes < self.limit_bytes:
            self._wake(len(self._waiting))


class Reader(Protocol):
    """A connection that has not read its answers."""

    @property
    def unread_bytes(self) -> int:
        """What is left of them."""

    def give_up_reading(self) -> None:
        """End the connection: others need the memory."""


class _Unread:
    """What one reader was sent, and how it gets on with it."""

    __slots__ = ("left_bytes", "since_s", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.left_bytes = size_bytes
        #: Since when it took so little.
        self.since_s: float | None = None


class UnreadAnswers:
    """Bounds what all connections together leave unread (`semel.queued.max.response.bytes`).

    An answer of records is made no larger than a part of what is left. With nothing left, requests for such answers
    wait, and readers who do not go on lose their connection.
    """

    __slots__ = ("_limit_bytes", "_readers", "_timeout_s", "_waiting", "is_full", "used_bytes")

    def __init__(self, limit_bytes: int, timeout_s: float = 30.0) -> None:
        self._limit_bytes = limit_bytes if limit_bytes > 0 else NO_LIMIT
        self._timeout_s = timeout_s
        self._readers: dict[Reader, _Unread] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.used_bytes = 0
        #: Whether large answers have to wait.
        self.is_full = False

    @property
    def waiting(self) -> int:
        """How many requests wait for others to read."""
        return len(self._waiting)

    @property
    def answer_bytes(self) -> int:
        """How large the next answer may be."""
        return max(self._limit_bytes - self.used_bytes, 0) // ANSWER_PART

    def left_unread(self, reader: Reader, size_bytes: int) -> None:
        """It did not take its answer of this size at once."""
        self._readers[reader] = _Unread(size_bytes)
        self._add(size_bytes)

    def was_read(self, reader: Reader) -> None:
        """It took its answer after all, or is gone."""
        unread = self._readers.pop(reader, None)
        if unread is not None:
            self._add(-unread.size_bytes)

    def reserve(self, size_bytes: int) -> None:
        """Count an answer that is made and will be written in a later turn of the loop; less than 0 takes it back."""
        self._add(size_bytes)

    def _add(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self.is_full = self.used_bytes >= self._limit_bytes
        if not self.is_full:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def room(self) -> None:
        """Wait until others have read."""
        enqueue = self._waiting.append
        while self.is_full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            enqueue(waiter)
            # Whoever was woken too early keeps its place.
            enqueue = self._waiting.appendleft
            try:
                await waiter
            except asyncio.CancelledError:
                # It may have been woken already: its turn goes to the next.
                if not self.is_full:
                    self._wake()
                raise
        # Whoever comes next sees first what this one takes: it runs a turn of the loop later.
        self._wake()

    def look(self, now_s: float) -> None:
        """See who reads; with nothing left, give up those who do not, the largest first; for a timer to call."""
        window_s = self._timeout_s / HURRIED_TIME
        stalled = []
        for reader, unread in self._readers.items():
            left_bytes = reader.unread_bytes
            if unread.since_s is None or (unread.left_bytes - left_bytes) * HURRIED_PART >= unread.size_bytes:
                unread.since_s, unread.left_bytes = now_s, left_bytes
            elif now_s - unread.since_s >= window_s:
                stalled.append((unread.size_bytes, reader))
        if not self.is_full:
            return
        stalled.sort(key=lambda pair: pair[0], reverse=True)
        for _, reader in stalled:
            if 2 * self.used_bytes <= self._limit_bytes:
                return
            self.was_read(reader)
            reader.give_up_reading()

"""The memory that all connections together may hold: requests that are arriving, and answers that are not read.

Guarantees:

- Small requests need none of it: they are read and served whatever others hold.
- Nobody can take all of it. A connection may hold as much as is left for the others. Only one at a time may hold more,
  so that half-read frames do not wait for each other.
- A request that stalls while it holds memory is refused, earlier if others wait for the memory. A client that does not
  read its answer is disconnected, but only if others wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Protocol

#: The size of a receive buffer. All connections read into one; a connection takes its own only while it needs it.
RECEIVE_BUFFER_BYTES = 128 * 1024
#: How many returned receive buffers are kept for reuse.
SPARE_BUFFERS = 8
#: How many bytes of a request must arrive within the timeout, unless it is complete by then.
STEP_BYTES = 64 * 1024
#: If others wait, a connection that holds memory must receive or read this part of it (one 16th) ...
HURRIED_PART = 16
#: ... within this part of the timeout (one 6th).
HURRIED_TIME = 6
#: A single answer may take this part (a quarter) of what is left.
ANSWER_PART = 4
#: How many waiting connections are tried when memory is returned. The timer tries all.
WOKEN_TOGETHER = 16

NO_LIMIT = 2**63 - 1


def new_buffer(size_bytes: int) -> memoryview:
    """A buffer of its own pages, which the system takes back when it is freed. An allocator would keep the holes that
    connections leave."""
    return memoryview(mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS))


def grown(buffer: memoryview, used_bytes: int, size_bytes: int) -> memoryview:
    """The same buffer, enlarged. Its pages are moved, not copied: a copy of a large buffer would block the loop.

    It is copied all the same if somebody holds a view of it, or if the system cannot move it.
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


class BufferHolder(Protocol):
    """A connection that may hold a part of a request."""

    @property
    def held_bytes(self) -> int:
        """How many bytes it holds of the pool."""

    def room_came_back(self) -> bool:
        """Try again to get what was refused. Returns False if it still has to wait."""

    def look_after(self, now_s: float, timeout_s: float, hurried: bool) -> bool:
        """Refuse a request that stalls, return what is not needed. Returns whether to look again next time."""


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
        #: While less than this is used, a connection that holds nothing may take a receive buffer.
        self.limit_bytes = limit_bytes if limit_bytes > 0 else NO_LIMIT
        self._timeout_s = timeout_s
        #: The connections that wait for memory, the longest waiting first.
        self._waiting: dict[BufferHolder, None] = {}
        #: The one connection that may hold more than is left.
        self._ahead: BufferHolder | None = None
        self._spare: list[memoryview] = []
        #: The buffer that every connection without its own reads into.
        self.scratch = new_buffer(RECEIVE_BUFFER_BYTES)
        #: The connections that hold a buffer or a part of a request.
        self.watched: set[BufferHolder] = set()
        self.used_bytes = 0
        #: How often a connection had to wait, since the start.
        self.refusals = 0

    @property
    def waiting(self) -> int:
        """How many connections wait for memory."""
        return len(self._waiting)

    @property
    def is_low(self) -> bool:
        """Whether half of it is used: then buffers are not kept for later."""
        return self.limit_bytes <= 2 * self.used_bytes

    def take(self, size_bytes: int, taker: BufferHolder) -> bool:
        """Take more bytes for a buffer. Returns False if that leaves too little for others."""
        held_bytes = taker.held_bytes
        if held_bytes + size_bytes > self.limit_bytes - self.used_bytes:
            if self._ahead not in (None, taker):
                return False
            self._ahead = taker
        self.used_bytes += size_bytes
        return True

    def take_scratch(self) -> memoryview:
        """Take the scratch buffer; the other connections get a new one."""
        taken, self.scratch = self.scratch, self.take_buffer()
        return taken

    def take_buffer(self) -> memoryview:
        """A receive buffer."""
        self.used_bytes += RECEIVE_BUFFER_BYTES
        return self._spare.pop() if self._spare else new_buffer(RECEIVE_BUFFER_BYTES)

    def give_back(self, size_bytes: int, holder: BufferHolder | None = None, buffer: memoryview | None = None) -> None:
        """Return memory, and let waiting connections continue."""
        self.used_bytes -= size_bytes
        if buffer is not None and len(buffer) == RECEIVE_BUFFER_BYTES and len(self._spare) < SPARE_BUFFERS:
            self._spare.append(buffer)
        if holder is not None and holder is self._ahead:
            self._ahead = None
        if self._waiting:
            self._wake(WOKEN_TOGETHER)

    def wait(self, holder: BufferHolder) -> None:
        """Call this connection's `room_came_back` when memory is returned."""
        self.refusals += 1
        self._waiting[holder] = None

    def forget(self, holder: BufferHolder) -> None:
        """The connection is closed."""
        self._waiting.pop(holder, None)
        self.watched.discard(holder)

    def _wake(self, count: int) -> None:
        for holder in list(islice(self._waiting, count)):
            del self._waiting[holder]
            if not holder.room_came_back():
                # Behind those that were not tried yet.
                self._waiting[holder] = None

    def look(self, now_s: float) -> None:
        """Refuse requests that stall, take back unused buffers. A timer calls this about every second."""
        hurried = bool(self._waiting)
        for holder in tuple(self.watched):
            if not holder.look_after(now_s, self._timeout_s, hurried):
                self.watched.discard(holder)
        if self._waiting and self.used_bytes < self.limit_bytes:
            self._wake(len(self._waiting))


class Reader(Protocol):
    """A connection whose client has not read its answers."""

    @property
    def unread_bytes(self) -> int:
        """How many bytes are not read."""

    def give_up_reading(self) -> None:
        """Close the connection: others need the memory."""


class _Unread:
    """What one client was sent, and how fast it reads."""

    __slots__ = ("left_bytes", "since_s", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.left_bytes = size_bytes
        #: Since when it has read too little.
        self.since_s: float | None = None


class UnreadAnswers:
    """Bounds the answers that all clients together have not read (`semel.queued.max.response.bytes`).

    An answer with records is built no larger than a part of what is left. With nothing left, requests for such answers
    wait, and clients that do not read are disconnected.
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
        """How many requests wait until others have read."""
        return len(self._waiting)

    @property
    def answer_bytes(self) -> int:
        """How large the next answer may be."""
        return max(self._limit_bytes - self.used_bytes, 0) // ANSWER_PART

    def left_unread(self, reader: Reader, size_bytes: int) -> None:
        """A client did not read its answer of this size at once."""
        self._readers[reader] = _Unread(size_bytes)
        self._add(size_bytes)

    def was_read(self, reader: Reader) -> None:
        """A client has read its answer, or its connection ended."""
        unread = self._readers.pop(reader, None)
        if unread is not None:
            self._add(-unread.size_bytes)

    def reserve(self, size_bytes: int) -> None:
        """Count an answer that will be written in a later turn of the loop; a negative size takes it back."""
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
            # Woken too early, it keeps its place.
            enqueue = self._waiting.appendleft
            try:
                await waiter
            except asyncio.CancelledError:
                # It may have been woken already: then the next one is woken instead.
                if not self.is_full:
                    self._wake()
                raise
        # The next one runs a turn of the loop later, and sees what this one takes.
        self._wake()

    def look(self, now_s: float) -> None:
        """See who reads. With nothing left, disconnect those who do not, the largest first. A timer calls this."""
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

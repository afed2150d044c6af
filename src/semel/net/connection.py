"""Length-prefixed frames over one reusable buffer per connection.

Guarantees:

- A frame is handed over as a memoryview into the connection's buffer: no copy between the socket and the handler.
- The buffer grows only as bytes arrive. A length that lies costs its sender a closed connection and us nothing.
- Requests of one connection are served one at a time and answered in order. Kafka promises it, and sequence numbers
  rely on it. Meanwhile reading goes on only as far as the buffer has room, which is the back pressure.
- A peer that does not read its answers is not served further until it does.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

#: What goes onto the socket: buffers that are written one after the other, the length prefix included.
Buffers = list[bytes | bytearray | memoryview]
#: A served request gives its answer, nothing (no answer is expected), or a coroutine that will give either.
Served = Buffers | None | Coroutine[Any, Any, Buffers | None]

INITIAL_BUFFER_BYTES = 128 * 1024
#: A buffer that grew past this for one large frame is given back once it is empty.
KEPT_BUFFER_BYTES = 4 * 1024 * 1024
#: How many small answers at most go out with one write.
ANSWERS_TOGETHER = 32
#: Below this much room at the tail, what is left of a partial frame moves to the front first.
SMALL_ROOM_BYTES = 16 * 1024
#: No frame of the protocol is shorter than a request header of version 0 or a response header.
MIN_FRAME_BYTES = 4

_length_at = struct.Struct(">i").unpack_from


class MemoryPool:
    """Bounds what all connections together hold in grown buffers and parked requests.

    As with Kafka's `queued.max.request.bytes`, a taker is let through while anything at all is left, so that one
    frame larger than the limit cannot wait for ever; the next taker then waits until enough came back. Frames take
    memory bit by bit as they arrive, so several could each hold a part and wait for the others: one of those who hold
    something may therefore always go on.
    """

    __slots__ = ("_ahead", "_limit_bytes", "_waiting", "refusals", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[Callable[[], None]] = deque()
        #: Who goes on although nothing is left.
        self._ahead: object = None
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
        return 0 < self._limit_bytes <= 2 * self.used_bytes

    def take(self, size_bytes: int, holder: object = None) -> bool:
        """Take `size_bytes`, or refuse when the pool is exhausted; `holder` is a taker that holds something already."""
        if 0 < self._limit_bytes <= self.used_bytes:
            if holder is None or self._ahead not in (None, holder):
                self.refusals += 1
                return False
            self._ahead = holder
        self.used_bytes += size_bytes
        return True

    def call_when_free(self, callback: Callable[[], None]) -> None:
        """Call back once, when something was given back."""
        self._waiting.append(callback)

    def give_back(self, size_bytes: int, holder: object = None) -> None:
        """Return what was taken and wake those who were refused."""
        self.used_bytes -= size_bytes
        was_ahead = holder is not None and holder is self._ahead
        if was_ahead:
            self._ahead = None
        if self._waiting and (was_ahead or self.used_bytes < self._limit_bytes):
            waiting, self._waiting = self._waiting, deque()
            for callback in waiting:
                callback()


class FramedProtocol(asyncio.BufferedProtocol):
    """Cuts what arrives into frames and calls `frame_received` for each, in order."""

    def __init__(self, max_frame_bytes: int, pool: MemoryPool | None = None) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pool = pool
        self._taken_bytes = 0
        self._buffer = memoryview(bytearray(INITIAL_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._busy = False
        self._reading_paused = False
        self._writing_paused = False
        self._received_anything = False
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.closed = False

    # What a side of the conversation defines.

    def frame_received(self, frame: memoryview) -> None:
        """Take one frame. The view is valid until this returns, or, after `_busy` was set, until `_resume`."""
        raise NotImplementedError

    def refused(self, why: str) -> None:
        """Learn why the connection is being closed by us."""

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._return_grown()

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._buffer
        if len(buffer) - self._end < SMALL_ROOM_BYTES and not self._busy:
            self._make_room()
            buffer = self._buffer
        return buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._received_anything = True
        if not self._busy and not self._writing_paused:
            self._take_frames()
        if self._end == len(self._buffer) and not self.closed:
            if self._busy or self._writing_paused:
                self._pause_reading()
            else:
                self._make_room()
                if self._end == len(self._buffer):
                    self._wait_for_room()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._serve_on()

    # Frames

    def was_active(self) -> bool:
        """Tell whether anything arrived since the last time this was asked."""
        active, self._received_anything = self._received_anything or self._busy, False
        return active

    @property
    def is_not_read(self) -> bool:
        """Whether the peer leaves its answers on the socket."""
        return self._writing_paused

    def close(self) -> None:
        """Close after what was already written."""
        if self.transport is not None and not self.closed:
            self.transport.close()

    def refuse(self, why: str) -> None:
        """Close at once: what this peer sends cannot be understood."""
        if not self.closed:
            self.closed = True
            self.refused(why)
            self.transport.abort()

    def _take_frames(self) -> None:
        """Hand over every frame that is whole, as long as somebody takes them."""
        buffer, end = self._buffer, self._end
        while end - self._start >= 4 and not self.closed:
            start = self._start
            length = _length_at(buffer, start)[0]
            if not MIN_FRAME_BYTES <= length <= self._max_frame_bytes:
                self.refuse(f"a frame of {length} bytes, allowed are {MIN_FRAME_BYTES} to {self._max_frame_bytes}")
                return
            frame_end = start + 4 + length
            if frame_end > end:
                return
            self._start = frame_end
            self.frame_received(buffer[start + 4 : frame_end])
            if self._busy or self._writing_paused:
                return
        if self._start == end:
            self._start = self._end = 0
            if len(buffer) > INITIAL_BUFFER_BYTES and (
                len(buffer) > KEPT_BUFFER_BYTES or (self._pool is not None and self._pool.is_low)
            ):
                self._shrink()

    def _shrink(self) -> None:
        """Go on in a buffer as small as the first, if what has arrived of the next frame fits into it."""
        pending = self._end - self._start
        if len(self._buffer) > INITIAL_BUFFER_BYTES > pending:
            small = memoryview(bytearray(INITIAL_BUFFER_BYTES))
            small[:pending] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = small, 0, pending
            self._return_grown()

    def _make_room(self) -> None:
        start, end, buffer = self._start, self._end, self._buffer
        pending = end - start
        wanted = 4 + _length_at(buffer, start)[0] if pending >= 4 else 4
        if start:
            buffer[:pending] = buffer[start:end]
            self._start, self._end = 0, pending
        if wanted > len(buffer) and len(buffer) - pending < SMALL_ROOM_BYTES:
            # Twice what has really arrived, never what the length merely claims.
            size = min(2 * len(buffer), wanted)
            if self._pool is not None:
                if not self._pool.take(size - len(buffer), self if self._taken_bytes else None):
                    return
                self._taken_bytes += size - len(buffer)
            grown = memoryview(bytearray(size))
            grown[:pending] = buffer[:pending]
            self._buffer = grown

    def _room_came_back(self) -> None:
        if self.closed:
            return
        self._make_room()
        if self._end == len(self._buffer):
            self._wait_for_room()
        else:
            self._resume_reading()

    def _wait_for_room(self) -> None:
        self._pause_reading()
        if self._pool is not None:
            self._pool.call_when_free(self._room_came_back)

    def _return_grown(self) -> None:
        if self._pool is not None and self._taken_bytes:
            taken, self._taken_bytes = self._taken_bytes, 0
            self._pool.give_back(taken, self)

    def _resume(self) -> None:
        """Go on with the next frame after a busy one was served."""
        self._busy = False
        self._serve_on()

    def _serve_on(self) -> None:
        if self.closed or self._busy or self._writing_paused:
            return
        self._take_frames()
        if self._reading_paused and not self._busy and not self.closed:
            self._room_came_back()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self.closed:
            self._reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._busy and not self.closed:
            self._reading_paused = False
            self.transport.resume_reading()


class ServerConnection(FramedProtocol):
    """The answering side: each frame goes to `serve`, each answer is written before the next frame is looked at."""

    def __init__(
        self,
        serve: Callable[[ServerConnection, memoryview], Served],
        failed: Callable[[BaseException], None],
        max_frame_bytes: int,
        pool: MemoryPool | None = None,
    ) -> None:
        super().__init__(max_frame_bytes, pool)
        self._serve = serve
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._answers: Buffers = []
        #: Whether further requests have to wait for a while.
        self.is_muted = False
        self.peer: tuple[str, int] = ("", 0)
        #: What the client said of itself in ApiVersions.
        self.software = ("unknown", "unknown")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = (str(peer[0]), int(peer[1]))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._task is not None:
            self._task.cancel()

    def _take_frames(self) -> None:
        super()._take_frames()
        # What arrived together is answered together: one write, however many requests.
        if self._answers:
            self._write_answers()
        if self.is_muted:
            self._shrink()

    def refuse(self, why: str) -> None:
        # What was served before is answered: a producer must not send again what was written.
        if self._answers:
            self._write_answers()
        super().refuse(why)

    def _write_answers(self) -> None:
        answers, self._answers = self._answers, []
        if not self.closed:
            self.transport.writelines(answers)

    def frame_received(self, frame: memoryview) -> None:
        try:
            served = self._serve(self, frame)
        except BaseException as error:
            self._fail(error)
            return
        if served is None:
            return
        if type(served) is list:
            self._answers += served
            # Small answers wait for each other; records, or many answers, go out at once: memory stays bounded.
            if len(served) > 1 or len(self._answers) >= ANSWERS_TOGETHER:
                self._write_answers()
            return
        self._busy = True
        coroutine = cast(Coroutine[Any, Any, "Buffers | None"], served)
        self._task = asyncio.get_running_loop().create_task(self._answer_later(coroutine, len(frame)))
        # A connection may go before its task has begun, and then nobody else would close the coroutine.
        self._task.add_done_callback(lambda _: coroutine.close())

    async def _answer_later(self, coroutine: Awaitable[Buffers | None], frame_bytes: int) -> None:
        pool = self._pool
        if pool is not None:
            pool.used_bytes += frame_bytes
        try:
            buffers = await coroutine
        except asyncio.CancelledError:
            if not self.closed:
                self.close()
            return
        except BaseException as error:
            self._fail(error)
            return
        finally:
            self._task = None
            if pool is not None:
                pool.give_back(frame_bytes)
        if buffers is not None and not self.closed:
            self.transport.writelines(buffers)
        self._resume()

    def mute(self, time_s: float) -> None:
        """Serve no further request for so long; the one that is being served is answered."""
        self.is_muted = self._busy = True
        asyncio.get_running_loop().call_later(time_s, self._unmute)

    def _unmute(self) -> None:
        self.is_muted = False
        if self._task is None:
            self._resume()

    def _resume(self) -> None:
        if self.is_muted:
            # Whoever has to wait, perhaps for hours, keeps nothing that others need.
            self._shrink()
        else:
            super()._resume()

    def _fail(self, error: BaseException) -> None:
        """Serving failed in a way nobody foresaw: whoever runs this connection decides what it means."""
        self._failed(error)
        self.refuse(f"serving failed: {error}")

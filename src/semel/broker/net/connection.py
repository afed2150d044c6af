"""Length-prefixed frames, read into one buffer that all connections share.

Guarantees:

- A large frame is handed over as a memoryview into the buffer it was read into: no copy between the socket and the
  handler. A small one is copied, so that whoever waits for its answer holds no more than the frame.
- A connection that is silent holds no buffer. One in the middle of a frame holds what has arrived of it, and its buffer
  grows only as bytes arrive. A length that lies costs its sender a closed connection and us nothing.
- Requests of one connection are served one at a time and answered in order. Kafka promises it, and sequence numbers
  rely on it. Meanwhile reading goes on only as far as there is room, which is the back pressure.
- A peer that does not read its answers is not served further until it does.
- However many requests arrive together, a turn of the event loop serves them for a bounded time; the rest wait for
  later turns, and none is lost when their sender hangs up meanwhile.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from semel.broker.net.memory import (
    HURRIED_PART,
    HURRIED_TIME,
    RECEIVE_BUFFER_BYTES,
    STEP_BYTES,
    MemoryPool,
    UnreadAnswers,
    grown,
)
from semel.broker.net.turns import Turns

#: What goes onto the socket: buffers that are written one after the other, the length prefix included.
Buffers = list[bytes | bytearray | memoryview]
#: A served request gives its answer, nothing (no answer is expected), or a coroutine that will give either.
Served = Buffers | None | Coroutine[Any, Any, Buffers | None]

#: Up to so much that has arrived is kept without a buffer. A frame that fits, its length included, is copied out of it.
SMALL_BYTES = 16 * 1024
SMALL_FRAME_BYTES = SMALL_BYTES - 4
#: A buffer that grew past this for one large frame is given back once it is empty.
KEPT_BUFFER_BYTES = 4 * 1024 * 1024
#: How many small answers at most go out with one write, and how many bytes of them.
ANSWERS_TOGETHER = 32
ANSWER_BYTES_TOGETHER = 64 * 1024
#: With more than this unread a peer is not served.
UNREAD_BYTES = 16 * 1024
#: Below this much room at the tail, what is left of a partial frame moves to the front first.
SMALL_ROOM_BYTES = 16 * 1024
#: No frame of the protocol is shorter than a request header of version 0 or a response header.
MIN_FRAME_BYTES = 4

_length_at = struct.Struct(">i").unpack_from
_NOTHING = memoryview(b"")
_NO_BUFFERS: Buffers = []


class FramedProtocol(asyncio.BufferedProtocol):
    """Cuts what arrives into frames and calls `frame_received` for each, in order.

    What has arrived and was not served yet lies in `_buffer[_start:_end]`. That is the pool's scratch buffer while it
    is being looked at; afterwards a copy, if it is small; else the scratch buffer itself, which then is this
    connection's own (`_held_bytes`) and grows as the frame arrives.
    """

    def __init__(self, max_frame_bytes: int, pool: MemoryPool | None = None) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pool = MemoryPool(-1) if pool is None else pool
        self._held_bytes = 0
        self._buffer = _NOTHING
        self._start = 0
        self._end = 0
        self._busy = False
        #: Whether the frame that is being served lies in the buffer, which then must not move.
        self._pinned = False
        self._reading_paused = False
        self._writing_paused = False
        self._received_bytes = 0
        self._received_before = 0
        #: Since when the frame at hand is arriving, and what had been received by then.
        self._arriving: tuple[float, int] | None = None
        self._received_at_look = 0
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
        self._let_go()
        self._pool.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._buffer
        if self._held_bytes:
            if len(buffer) - self._end < SMALL_ROOM_BYTES and not self._pinned:
                self._make_room()
                buffer = self._buffer
            return buffer[self._end :]
        pool = self._pool
        bounded = self._busy or self._writing_paused or pool.used_bytes >= pool.limit_bytes
        if not buffer and not bounded:
            return pool.scratch
        pending = self._end - self._start
        pool.scratch[:pending] = buffer[self._start : self._end]
        return pool.scratch[pending : SMALL_BYTES if bounded else RECEIVE_BUFFER_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._received_bytes += nbytes
        on_scratch = not self._held_bytes
        if on_scratch:
            self._end += nbytes - self._start
            self._start = 0
            self._buffer = self._pool.scratch
        else:
            self._end += nbytes
        if not self._busy and not self._writing_paused:
            self._take_frames()
        if on_scratch:
            if self._start == self._end and not self._pinned:
                self._buffer = _NOTHING
                self._start = self._end = 0
                return
            self._leave_scratch()
        if not self.closed and not self._has_room():
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
        active = self._busy or self._received_bytes != self._received_before
        self._received_before = self._received_bytes
        return active

    @property
    def is_not_read(self) -> bool:
        """Whether the peer leaves its answers on the socket."""
        return self._writing_paused

    @property
    def held_bytes(self) -> int:
        """What this connection took from the pool."""
        return self._held_bytes

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
            self._arriving = None
            frame = buffer[start + 4 : frame_end]
            self.frame_received(memoryview(bytearray(frame)) if length <= SMALL_FRAME_BYTES else frame)
            if self._busy or self._writing_paused:
                return
        if self._start == end:
            self._start = self._end = 0
            if self._held_bytes and (len(buffer) > KEPT_BUFFER_BYTES or self._pool.is_low):
                self._shrink()

    def _leave_scratch(self) -> None:
        """Others read into it next: keep what is still needed."""
        pending = self._end - self._start
        if pending > SMALL_BYTES or self._pinned:
            self._buffer = self._pool.take_scratch()
            self._held_bytes = RECEIVE_BUFFER_BYTES
        else:
            self._keep_a_copy(pending)
        if not self.closed:
            self._pool.watched.add(self)

    def _keep_a_copy(self, pending: int) -> None:
        self._buffer = memoryview(bytearray(self._buffer[self._start : self._end])) if pending else _NOTHING
        self._start, self._end = 0, pending

    def _shrink(self) -> None:
        """Give the buffer back, if nothing lies in it but a little of the next frame."""
        pending = self._end - self._start
        if self._held_bytes and pending < SMALL_BYTES and not self._pinned:
            buffer = self._buffer
            self._keep_a_copy(pending)
            self._return(buffer)

    def _make_room(self) -> None:
        """Make this connection's own buffer larger, if the frame at hand needs that and the pool allows it."""
        start, end, buffer = self._start, self._end, self._buffer
        pending = end - start
        wanted = 4 + _length_at(buffer, start)[0] if pending >= 4 else 4
        if start:
            buffer[:pending] = buffer[start:end]
            self._start, self._end = 0, pending
        if wanted > len(buffer) and len(buffer) - pending < SMALL_ROOM_BYTES and not self._is_held_back():
            # Twice what has really arrived, never what the length merely claims.
            size = min(2 * len(buffer), wanted)
            if not self._pool.take(size - len(buffer), self):
                return
            self._held_bytes += size - len(buffer)
            self._buffer = _NOTHING
            self._buffer = grown(buffer, pending, size)

    def _is_held_back(self) -> bool:
        """Whether frames have to wait although they are here."""
        return self._busy or self._writing_paused

    def _is_bounded(self) -> bool:
        """Whether no more may arrive than is kept without a buffer."""
        return self._busy or self._writing_paused or self._pool.used_bytes >= self._pool.limit_bytes

    def _has_room(self) -> bool:
        pending = self._end - self._start
        if not self._held_bytes:
            if pending < SMALL_BYTES:
                return True
            if self._is_bounded():
                return False
            buffer = self._pool.take_buffer()
            buffer[:pending] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = buffer, 0, pending
            self._held_bytes = RECEIVE_BUFFER_BYTES
        if self._end == len(self._buffer) and not self._pinned:
            self._make_room()
        return self._end < len(self._buffer)

    def _wait_for_room(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        # Held back, it is its own answer that reading waits for.
        if not self._is_held_back():
            self._pool.wait(self)

    def room_came_back(self) -> bool:
        """Read on, if there is room now; whether there is nothing to wait for any more."""
        if self.closed or self._is_held_back() or not self._reading_paused:
            return True
        if not self._has_room():
            return False
        self._reading_paused = False
        self.transport.resume_reading()
        return True

    def _return(self, buffer: memoryview | None = None) -> None:
        held, self._held_bytes = self._held_bytes, 0
        self._pool.give_back(held, self, buffer)

    def _let_go(self) -> None:
        """Nothing will be read any more."""
        # A request that is still being served may look into the buffer: it is not for others.
        self._buffer, self._start, self._end = _NOTHING, 0, 0
        if self._held_bytes:
            self._return()

    def look_after(self, now_s: float, timeout_s: float, hurried: bool) -> bool:
        """Give up a frame that stalls, give back a buffer that nobody uses; whether there is anything to look after."""
        if self.closed:
            return False
        was_silent = self._received_bytes == self._received_at_look
        self._received_at_look = self._received_bytes
        pending = self._end - self._start
        if self._is_held_back() or not pending:
            # It is not the peer's turn, or nothing is arriving.
            self._arriving = None
            if was_silent:
                self._shrink()
            return self._end > self._start or self._held_bytes > 0
        if self._arriving is None:
            self._arriving = (now_s, self._received_bytes)
            return True
        began_s, received_before = self._arriving
        took_s, received = now_s - began_s, self._received_bytes - received_before
        if took_s >= timeout_s:
            if received < STEP_BYTES:
                self._stalled(took_s)
            else:
                self._arriving = (now_s, self._received_bytes)
        elif hurried and not self._reading_paused and took_s >= (window_s := timeout_s / HURRIED_TIME):
            if received * HURRIED_PART * window_s < self._held_bytes * took_s:
                self._stalled(took_s)
        return not self.closed

    def _stalled(self, took_s: float) -> None:
        pending = self._end - self._start
        wanted = 4 + _length_at(self._buffer, self._start)[0] if pending >= 4 else 4
        self.stalls(f"a request stalled: {pending} of {wanted} bytes, and next to nothing for {took_s:.0f} s")

    def stalls(self, why: str) -> None:
        """The peer does not go on with what it began."""
        self.refuse(why)

    def _resume(self) -> None:
        """Go on with the next frame after a busy one was served."""
        self._busy = False
        self._serve_on()

    def _serve_on(self) -> None:
        if self.closed or self._busy or self._writing_paused:
            return
        self._take_frames()
        if self._reading_paused and not self.room_came_back():
            self._pool.wait(self)


class ServerConnection(FramedProtocol):
    """The answering side: each frame goes to `serve`, each answer is written before the next frame is looked at."""

    def __init__(
        self,
        serve: Callable[[ServerConnection, memoryview], Served],
        failed: Callable[[BaseException], None],
        max_frame_bytes: int,
        pool: MemoryPool | None = None,
        unread: UnreadAnswers | None = None,
        turns: Turns | None = None,
    ) -> None:
        super().__init__(max_frame_bytes, pool)
        self._unread = UnreadAnswers(-1) if unread is None else unread
        self._serve = serve
        self._failed = failed
        self._turns = turns
        #: Since when frames are taken in this turn of the loop.
        self._since = 0.0
        #: Whether further frames wait for a later turn, and whether their sender has hung up meanwhile.
        self._is_put_off = self._has_ended = False
        self._task: asyncio.Task[None] | None = None
        self._answers: Buffers = []
        self._answer_bytes = 0
        #: What is counted of the answer that is being made.
        self._reserved_bytes = 0
        #: What is being handed to the socket at this moment.
        self._written = _NO_BUFFERS
        #: Whether the request being served, and what arrived behind it, is served even if its sender hangs up.
        self.finishes = False
        #: Whether further requests have to wait for a while.
        self.is_muted = False
        self.peer: tuple[str, int] = ("", 0)
        #: What the client said of itself in ApiVersions.
        self.software = ("unknown", "unknown")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=UNREAD_BYTES)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = (str(peer[0]), int(peer[1]))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unread.was_read(self)
        self._take_back_reserve()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        # An answer is in memory as long as any of it is unread.
        self._unread.left_unread(self, max(sum(map(len, self._written)), self.unread_bytes))

    def resume_writing(self) -> None:
        self._unread.was_read(self)
        super().resume_writing()

    def reserve(self, size_bytes: int) -> None:
        """Count so much for the answer to the request at hand, until it is written or its connection is gone."""
        if not self.closed:
            self._unread.reserve(size_bytes - self._reserved_bytes)
            self._reserved_bytes = size_bytes

    @property
    def unread_bytes(self) -> int:
        """What the peer has not taken of its answers."""
        return self.transport.get_write_buffer_size()

    def give_up_reading(self) -> None:
        """End it: the peer does not read, and others need the memory."""
        self.stalls(f"{self.unread_bytes} bytes of answers are not read, and others wait for the memory")

    def eof_received(self) -> bool:
        # What was sent before is served; a producer that asks for no answer may well hang up at once.
        self._has_ended = self._is_put_off or self.finishes
        return self._has_ended

    def _take_frames(self) -> None:
        turns = self._turns
        if turns is None:
            super()._take_frames()
        elif turns.is_used_up:
            self._put_off(turns, is_modest=True)
        else:
            self._since = turns.clock()
            super()._take_frames()
            turns.worked(self._since)
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
        self._answer_bytes = 0
        if not self.closed:
            self._write(answers)

    def _take_back_reserve(self) -> None:
        reserved, self._reserved_bytes = self._reserved_bytes, 0
        self._unread.reserve(-reserved)

    def _write(self, buffers: Buffers) -> None:
        if self._reserved_bytes:
            self._take_back_reserve()
        self._written = buffers
        self.transport.writelines(buffers)
        self._written = _NO_BUFFERS

    def frame_received(self, frame: memoryview) -> None:
        try:
            served = self._serve(self, frame)
        except BaseException as error:
            self._fail(error)
            return
        if served is None or type(served) is list:
            if served is not None:
                self._answers += served
                self._answer_bytes += len(served[0])
                # Small answers wait for each other; records, or many answers, go out at once: memory stays bounded.
                if (
                    len(served) > 1
                    or len(self._answers) >= ANSWERS_TOGETHER
                    or self._answer_bytes >= ANSWER_BYTES_TOGETHER
                ):
                    self._write_answers()
            turns = self._turns
            if turns is not None and self._start < self._end and not self._busy and turns.share_is_over(self._since):
                self._put_off(turns, is_modest=False)
            return
        self._busy = True
        self._pinned = len(frame) > SMALL_FRAME_BYTES
        coroutine = cast(Coroutine[Any, Any, "Buffers | None"], served)
        # A large frame lies in a buffer that is counted already.
        frame_bytes = 0 if self._pinned else len(frame)
        self._task = asyncio.get_running_loop().create_task(self._answer_later(coroutine, frame_bytes))
        # A connection may go before its task has begun, and then nobody else would close the coroutine.
        self._task.add_done_callback(lambda _: coroutine.close())

    async def _answer_later(self, coroutine: Awaitable[Buffers | None], frame_bytes: int) -> None:
        self._pool.used_bytes += frame_bytes
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
            self._pinned = self.finishes = False
            if frame_bytes:
                self._pool.give_back(frame_bytes)
            if self._reserved_bytes:
                self._take_back_reserve()
        if buffers is not None and not self.closed:
            self._write(buffers)
        self._resume()

    def _put_off(self, turns: Turns, *, is_modest: bool) -> None:
        """Take no further frame in this turn of the loop."""
        self._busy = self._is_put_off = True
        turns.later(self._go_on, is_modest=is_modest)

    def _go_on(self) -> bool:
        self._is_put_off = False
        if self._task is None:
            self._resume()
        return False

    def _serve_on(self) -> None:
        super()._serve_on()
        if self._has_ended and not self._busy and not self._writing_paused:
            self.close()

    def mute(self, time_s: float) -> None:
        """Serve no further request for so long; the one that is being served is answered."""
        self.is_muted = self._busy = True
        asyncio.get_running_loop().call_later(time_s, self._unmute)

    def _unmute(self) -> None:
        self.is_muted = False
        if self._task is None and not self._is_put_off:
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

"""Length-prefixed frames, read into one buffer that all connections share.

Guarantees:

- A large frame is handed over as a memoryview into the buffer it was read into: no copy between the socket and the
  handler. A small frame is copied, so that a waiting request holds no more memory than its frame.
- A silent connection holds no buffer. A connection in the middle of a frame holds what has arrived of it, and its
  buffer grows only as bytes arrive. A frame with a wrong length closes its connection and takes no memory.
- Reading goes on only as far as there is memory: that is the back pressure.
- All connections together read large frames for a bounded time in one turn of the event loop.
"""

from __future__ import annotations

import asyncio
import struct
from typing import cast

from semel.broker.net.memory import HURRIED_PART, HURRIED_TIME, RECEIVE_BUFFER_BYTES, STEP_BYTES, MemoryPool, grown
from semel.broker.net.turns import Turns

#: This much of what has arrived is kept without a buffer. A frame that fits, with its length, is copied out of it.
SMALL_BYTES = 16 * 1024
SMALL_FRAME_BYTES = SMALL_BYTES - 4
#: A buffer that grew beyond this for a large frame is returned once it is empty.
KEPT_BUFFER_BYTES = 4 * 1024 * 1024
#: At most this much of a large frame is read in one piece: about a millisecond of work.
READ_BYTES = 1024 * 1024
#: With less room than this at the end of the buffer, a partial frame is moved to the front first.
SMALL_ROOM_BYTES = 16 * 1024
#: What a client that speaks TLS is refused with, and the first two bytes of its handshake.
TLS_WITHOUT_TLS = "a TLS handshake, and this listener has no TLS: use another one, or take SSL out of security.protocol"
_TLS_HANDSHAKE = 0x1603
#: No frame of the protocol is shorter than a request header of version 0 or a response header.
MIN_FRAME_BYTES = 4

_length_at = struct.Struct(">i").unpack_from
_NOTHING = memoryview(b"")


class FramedProtocol(asyncio.BufferedProtocol):
    """Splits what arrives into frames and calls `frame_received` for each, in order.

    The bytes that were not served yet are in `_buffer[_start:_end]`. While they are being read, `_buffer` is the pool's
    scratch buffer. Afterwards it is a copy if they are few. If they are many, the connection keeps the scratch buffer
    as its own (`_held_bytes`), and it grows as the frame arrives.
    """

    def __init__(self, max_frame_bytes: int, pool: MemoryPool | None = None) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pool = MemoryPool(-1) if pool is None else pool
        self._held_bytes = 0
        self._buffer = _NOTHING
        #: The size that the buffer gets before the next read, if that is more than it has.
        self._next_size = 0
        self._start = 0
        self._end = 0
        self._busy = False
        #: Whether the frame being served is a view into the buffer, which then must not move.
        self._pinned = False
        self._reading_paused = False
        #: Whether reading is paused only until a later turn of the loop.
        self._reads_later = False
        self._writing_paused = False
        #: How the thread is shared, and when the current piece began to be read.
        self._turns: Turns | None = None
        self._reading_since = 0.0
        self._received_bytes = 0
        self._received_before = 0
        #: When the current frame began to arrive, and how many bytes had been received by then.
        self._arriving: tuple[float, int] | None = None
        self._received_at_look = 0
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.closed = False

    # For subclasses

    def frame_received(self, frame: memoryview) -> None:
        """Take one frame. The view is valid until this returns, or, after `_busy` was set, until `_resume`."""
        raise NotImplementedError

    def refused(self, why: str) -> None:
        """Called with the reason when we close the connection."""

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
            if self._next_size > len(buffer):
                # Not before: while a loop reads into the buffer it holds it, and then it could only be copied.
                self._buffer = _NOTHING
                self._buffer = grown(buffer, self._end, self._next_size)
            buffer = self._buffer
            turns, most = self._turns, READ_BYTES
            if turns is not None:
                self._reading_since = turns.clock()
                if turns.is_used_up:
                    most = SMALL_BYTES
            return buffer[self._end : self._end + most]
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
            if self._turns is not None:
                # The bytes were copied out of the system since `get_buffer`.
                self._turns.worked(self._reading_since)
        if not self._busy and not self._writing_paused:
            self._take_frames()
        if on_scratch:
            if self._start == self._end and not self._pinned:
                self._buffer = _NOTHING
                self._start = self._end = 0
                return
            self._leave_scratch()
        if self.closed:
            return
        if not self._has_room():
            self._wait_for_room()
        elif self._held_bytes and self._turns is not None and self._turns.is_used_up:
            self._read_later(self._turns)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._serve_on()

    # Frames

    def was_active(self) -> bool:
        """Whether anything arrived since the last call."""
        active = self._busy or self._received_bytes != self._received_before
        self._received_before = self._received_bytes
        return active

    @property
    def is_not_read(self) -> bool:
        """Whether the client does not read its answers."""
        return self._writing_paused

    @property
    def held_bytes(self) -> int:
        """How many bytes this connection holds of the pool."""
        return self._held_bytes

    def close(self) -> None:
        """Close once everything that was written is sent."""
        if self.transport is not None and not self.closed:
            self.transport.close()

    def refuse(self, why: str) -> None:
        """Close at once, and say why."""
        if not self.closed:
            self.closed = True
            self.refused(why)
            self.transport.abort()

    def _take_frames(self) -> None:
        """Hand over every complete frame until the connection is busy."""
        buffer, end = self._buffer, self._end
        while end - self._start >= 4 and not self.closed:
            start = self._start
            length = _length_at(buffer, start)[0]
            if not MIN_FRAME_BYTES <= length <= self._max_frame_bytes:
                looks_like_tls = length >> 16 == _TLS_HANDSHAKE
                wrong = f"a frame of {length} bytes, allowed are {MIN_FRAME_BYTES} to {self._max_frame_bytes}"
                self.refuse(TLS_WITHOUT_TLS if looks_like_tls else wrong)
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
        """Keep what is still needed: other connections read into the scratch buffer next."""
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
        """Return the buffer if it holds no more than a little of the next frame."""
        pending = self._end - self._start
        if self._held_bytes and pending < SMALL_BYTES and not self._pinned:
            buffer = self._buffer
            self._keep_a_copy(pending)
            self._return(buffer)

    def _make_room(self) -> None:
        """Enlarge this connection's buffer, if the current frame needs it and the pool allows it."""
        start, end, buffer = self._start, self._end, self._buffer
        pending = end - start
        wanted = 4 + _length_at(buffer, start)[0] if pending >= 4 else 4
        if start:
            buffer[:pending] = buffer[start:end]
            self._start, self._end = 0, pending
        has_little = len(buffer) - pending < SMALL_ROOM_BYTES and self._next_size <= len(buffer)
        if wanted > len(buffer) and has_little and not self._is_held_back():
            # Twice what has arrived. The length is only a claim.
            size = min(2 * len(buffer), wanted)
            if not self._pool.take(size - len(buffer), self):
                return
            self._held_bytes += size - len(buffer)
            self._next_size = size

    def _is_held_back(self) -> bool:
        """Whether complete frames have to wait: one is being served, or the client does not read."""
        return self._busy or self._writing_paused

    def _is_bounded(self) -> bool:
        """Whether this connection may not take a buffer."""
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
        return self._end < max(len(self._buffer), self._next_size)

    def _wait_for_room(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        # A connection that is held back does not wait for memory, but for its own answer.
        if not self._is_held_back():
            self._pool.wait(self)

    def _read_later(self, turns: Turns) -> None:
        """Read on in a later turn: the loop would read as long as the client sends."""
        self._reading_paused = self._reads_later = True
        self.transport.pause_reading()
        turns.later(self._read_on)

    def _read_on(self) -> bool:
        self._reads_later = False
        if self.closed:
            return False
        if not self._has_room():
            self._wait_for_room()
            return False
        self._reading_paused = False
        self.transport.resume_reading()
        # The loop reads after this, in the same turn.
        return True

    def room_came_back(self) -> bool:
        """Continue to read if there is room now. Returns False if it still has to wait."""
        if self.closed or self._is_held_back() or not self._reading_paused or self._reads_later:
            return True
        if not self._has_room():
            return False
        self._reading_paused = False
        self.transport.resume_reading()
        return True

    def _return(self, buffer: memoryview | None = None) -> None:
        held, self._held_bytes = self._held_bytes, 0
        self._next_size = 0
        self._pool.give_back(held, self, buffer)

    def _let_go(self) -> None:
        """Return everything: nothing more will be read."""
        # A request that is still being served may use the buffer: nobody else may get it.
        self._buffer, self._start, self._end = _NOTHING, 0, 0
        if self._held_bytes:
            self._return()

    def look_after(self, now_s: float, timeout_s: float, hurried: bool) -> bool:
        """Refuse a frame that stalls, return an unused buffer. Returns whether to look again next time."""
        if self.closed:
            return False
        was_silent = self._received_bytes == self._received_at_look
        self._received_at_look = self._received_bytes
        pending = self._end - self._start
        if self._is_held_back() or not pending:
            # The client waits for us, or nothing is arriving.
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
        """The client stopped in the middle of a request, or of reading an answer."""
        self.refuse(why)

    def _resume(self) -> None:
        """Continue with the next frame."""
        self._busy = False
        self._serve_on()

    def _serve_on(self) -> None:
        if self.closed or self._busy or self._writing_paused:
            return
        self._take_frames()
        if self._reading_paused and not self.room_came_back():
            self._pool.wait(self)

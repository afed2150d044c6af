"""One client's connection: requests in, answers out.

Guarantees:

- Requests of one connection are served one at a time and answered in order. Kafka promises it, and sequence numbers
  rely on it. In a cluster a request that is served and whose answer only waits for other brokers does not hold up the
  next one (`LaterAnswer`); at most `MOST_OPEN` do.
- A client that does not read its answers is not served until it does.
- However many requests arrive together, one turn of the event loop serves them for a bounded time. The rest waits for
  later turns, and none is lost when the client hangs up meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, cast

from semel.broker.net.framing import SMALL_FRAME_BYTES, FramedProtocol
from semel.broker.net.memory import MemoryPool, UnreadAnswers
from semel.broker.net.turns import Turns
from semel.machines.security.principals import ANONYMOUS, Principal

#: What is written to the socket: buffers one after the other, the length prefix included.
Buffers = list[bytes | bytearray | memoryview]
#: A served request gives its answer, None (no answer is expected), a coroutine that gives either later, or an answer
#: that comes later while the next requests are served.
Served: TypeAlias = "Buffers | Coroutine[Any, Any, Buffers | None] | LaterAnswer | None"

#: How many small answers at most go out with one write, and how many bytes of them.
ANSWERS_TOGETHER = 32
ANSWER_BYTES_TOGETHER = 64 * 1024
#: A client with more unread bytes than this is not served.
UNREAD_BYTES = 16 * 1024
#: How many requests of one connection may wait for their answers.
MOST_OPEN = 8

_NO_BUFFERS: Buffers = []
_ANONYMOUS = str(ANONYMOUS)


class LaterAnswer:
    """The answer to a request that is served already: it waits for other brokers, its connection does not."""

    __slots__ = ("_buffers", "_connection", "is_given", "when_lost")

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._buffers: Buffers | None = None
        self.is_given = False
        #: Called if the connection ends before.
        self.when_lost: Callable[[], None] | None = None

    def give(self, buffers: Buffers | None) -> None:
        """Answer, once all earlier requests of the connection are answered."""
        if not self.is_given:
            self.is_given = True
            self._buffers = buffers
            self._connection.answer_in_order()

    def take(self) -> Buffers | None:
        buffers, self._buffers = self._buffers, None
        return buffers


class ServerConnection(FramedProtocol):
    """Hands each frame to `serve`, and writes its answer before it takes the next one."""

    def __init__(
        self,
        serve: Callable[[ServerConnection, memoryview], Served],
        handle_failure: Callable[[BaseException], None],
        max_frame_bytes: int,
        pool: MemoryPool | None = None,
        unread: UnreadAnswers | None = None,
        turns: Turns | None = None,
    ) -> None:
        super().__init__(max_frame_bytes, pool)
        self._unread = UnreadAnswers(-1) if unread is None else unread
        self._serve = serve
        self._handle_failure = handle_failure
        self._turns = turns
        #: When this connection began to take frames in this turn of the loop.
        self._since = 0.0
        #: Whether further frames wait for a later turn, and whether the client has hung up meanwhile.
        self._is_put_off = self._has_ended = False
        self._task: asyncio.Task[None] | None = None
        self._answers: Buffers = []
        self._answer_bytes = 0
        #: Requests that wait for their answers while others are served, and what is to be answered after them.
        self._open: deque[LaterAnswer] = deque()
        #: Whether so many are open that the next request has to wait.
        self._is_full = False
        #: The bytes that are counted for the answer being built.
        self._reserved_bytes = 0
        #: What is being written to the socket at this moment.
        self._written = _NO_BUFFERS
        #: Whether the current request, and what arrived after it, is served even if the client hangs up.
        self.finishes = False
        #: Whether further requests have to wait because of a quota.
        self.is_muted = False
        self.peer: tuple[str, int] = ("", 0)
        #: The client's name and version, from ApiVersions.
        self.software = ("unknown", "unknown")
        #: Who the client is, and the same as text for access rules. Whoever does not authenticate is ANONYMOUS.
        self.principal = ANONYMOUS
        self.who = _ANONYMOUS
        #: Whether it showed a delegation token.
        self.by_token = False
        #: The address that this client is told to connect to: that of the listener it came by.
        self.endpoint: tuple[str, int] = ("", 0)
        #: The name of that listener.
        self.listener_name = ""

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
        for later in self._open:
            if later.when_lost is not None and not later.is_given:
                later.when_lost()
        self._open.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        # The whole answer stays in memory while any of it is unread.
        self._unread.left_unread(self, max(sum(map(len, self._written)), self.unread_bytes))

    def resume_writing(self) -> None:
        self._unread.was_read(self)
        super().resume_writing()

    def authenticated(self, principal: Principal) -> None:
        """The client has shown who it is."""
        self.principal, self.who = principal, str(principal)

    def serve_by(self, serve: Callable[[ServerConnection, memoryview], Served], max_frame_bytes: int) -> None:
        """Hand the next requests to `serve`, and take none that is larger."""
        self._serve = serve
        self._max_frame_bytes = max_frame_bytes

    def end_with(self, answer: Buffers | None, delay_s: float) -> None:
        """Take nothing more, hold nothing, and after a while write this answer and close."""
        if self.closed:
            return
        self._busy = True
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        self._let_go()
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, self._end_now, answer)
        else:
            self._end_now(answer)

    def _end_now(self, answer: Buffers | None) -> None:
        if not self.closed:
            if answer is not None:
                self._write(answer)
            self.close()

    def reserve(self, size_bytes: int) -> None:
        """Count this many bytes for the answer to the current request, until it is written or the connection ends."""
        if not self.closed:
            self._unread.reserve(size_bytes - self._reserved_bytes)
            self._reserved_bytes = size_bytes

    @property
    def unread_bytes(self) -> int:
        """How many bytes of answers the client has not read."""
        return self.transport.get_write_buffer_size()

    def give_up_reading(self) -> None:
        """Close the connection: the client does not read, and others need the memory."""
        self.stalls(f"{self.unread_bytes} bytes of answers are not read, and others wait for the memory")

    def eof_received(self) -> bool:
        # What was sent before is served: a producer with acks=0 may hang up as soon as it has sent everything.
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
        # Requests that arrived together are answered with one write.
        if self._answers:
            self._write_answers()
        if self.is_muted:
            self._shrink()

    def refuse(self, why: str) -> None:
        # Served requests are answered first: a producer must not send again what was written.
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
            if self._open:
                self._answer_after_open(served)
            elif served is not None:
                self._answers += served
                self._answer_bytes += len(served[0])
                # Small answers are collected. Records, or many answers, are written at once, to bound the memory.
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
        if type(served) is LaterAnswer:
            self._open.append(served)
            if served.is_given:
                self.answer_in_order()
            elif len(self._open) >= MOST_OPEN:
                self._busy = self._is_full = True
            return
        self._busy = True
        self._pinned = len(frame) > SMALL_FRAME_BYTES
        coroutine = cast(Coroutine[Any, Any, "Buffers | None"], served)
        # The buffer of a large frame is counted already.
        frame_bytes = 0 if self._pinned else len(frame)
        self._task = asyncio.get_running_loop().create_task(self._answer_later(coroutine, frame_bytes))
        # If the connection ends before the task has begun, nobody else closes the coroutine.
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
        if self._open and not self.closed:
            self._answer_after_open(buffers)
        elif buffers is not None and not self.closed:
            self._write(buffers)
        if not self._is_full:
            self._resume()

    # Answers that wait for other brokers

    def _answer_after_open(self, buffers: Buffers | None) -> None:
        """The request is served, and earlier ones are not answered yet."""
        if buffers is not None:
            answer = LaterAnswer(self)
            self._open.append(answer)
            if len(self._open) >= MOST_OPEN:
                self._busy = self._is_full = True
            answer.give(buffers)

    def answer_in_order(self) -> None:
        """Write the answers that have come, as far as no earlier one is missing."""
        waiting = self._open
        if not waiting or not waiting[0].is_given or self.closed:
            return
        answers: Buffers = []
        while waiting and waiting[0].is_given:
            buffers = waiting.popleft().take()
            if buffers is not None:
                answers += buffers
        if answers:
            if self._answers:
                self._write_answers()
            self._write(answers)
        if self._is_full and len(waiting) < MOST_OPEN:
            # In a turn of its own: this may be called while another connection is served.
            asyncio.get_running_loop().call_soon(self._has_room_again)

    def _has_room_again(self) -> None:
        if self._is_full and len(self._open) < MOST_OPEN:
            self._is_full = False
            if self._task is None and not self._is_put_off and not self.is_muted:
                self._resume()

    def was_active(self) -> bool:
        return super().was_active() or bool(self._open)

    def _put_off(self, turns: Turns, *, is_modest: bool) -> None:
        """Leave further frames to a later turn of the loop."""
        self._busy = self._is_put_off = True
        turns.later(self._go_on, is_modest=is_modest)

    def _go_on(self) -> bool:
        self._is_put_off = False
        if self._task is None and not self._is_full:
            self._resume()
        return False

    def _serve_on(self) -> None:
        super()._serve_on()
        if self._has_ended and not self._busy and not self._writing_paused:
            self.close()

    def mute(self, time_s: float) -> None:
        """Serve no further request for this long. The current one is answered."""
        self.is_muted = self._busy = True
        asyncio.get_running_loop().call_later(time_s, self._unmute)

    def _unmute(self) -> None:
        self.is_muted = False
        if self._task is None and not self._is_put_off and not self._is_full:
            self._resume()

    def _resume(self) -> None:
        if self.is_muted:
            # It may wait for hours: it holds no memory meanwhile.
            self._shrink()
        else:
            super()._resume()

    def _fail(self, error: BaseException) -> None:
        """Report an unexpected failure, and close."""
        self._handle_failure(error)
        self.refuse(f"serving failed: {error}")

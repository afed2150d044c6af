"""Frames: however the bytes of several connections are cut and mixed, each gets its own frames, in order.

The model is a list of frames for each connection. The connections share one pool of memory, which is small, so they
also wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from semel.broker.net import framing, memory
from semel.broker.net.framing import MIN_FRAME_BYTES, FramedProtocol
from semel.broker.net.memory import MemoryPool
from tests.fuzz.target import Draw, Target, expect

#: The sizes at which connections do something else, a hundredth of the real ones: to copy megabytes finds nothing.
SMALL_FRAME_BYTES, RECEIVE_BUFFER_BYTES = 156, 1280
_SCALE = {
    "SMALL_BYTES": SMALL_FRAME_BYTES + 4, "SMALL_FRAME_BYTES": SMALL_FRAME_BYTES, "SMALL_ROOM_BYTES": 160,
    "RECEIVE_BUFFER_BYTES": RECEIVE_BUFFER_BYTES, "KEPT_BUFFER_BYTES": 3000, "READ_BYTES": 2000, "STEP_BYTES": 640,
}
MAX_FRAME_BYTES = 4_000
POOL_BYTES = 2 * RECEIVE_BUFFER_BYTES
CONNECTIONS = 3
#: Around every size at which something else happens: small frames, receive buffers, buffers that grow.
SIZES = (
    4, 5, 9, 40, SMALL_FRAME_BYTES - 1, SMALL_FRAME_BYTES, SMALL_FRAME_BYTES + 1, SMALL_FRAME_BYTES + 5, 400,
    RECEIVE_BUFFER_BYTES - 5, RECEIVE_BUFFER_BYTES - 4, RECEIVE_BUFFER_BYTES, 2 * RECEIVE_BUFFER_BYTES, 3_900,
    MAX_FRAME_BYTES,
)
PIECES = (1, 2, 3, 4, 7, 50, SMALL_FRAME_BYTES, 500, RECEIVE_BUFFER_BYTES, 2 * RECEIVE_BUFFER_BYTES, 1 << 20)
#: Bytes to cut frames from: where a frame begins says which one it is.
_FILLING = bytes(range(251)) * (MAX_FRAME_BYTES // 251 + 2)


class Transport:
    """Whether the loop reads, and whether the connection is over."""

    def __init__(self) -> None:
        self.reading = True
        self.aborted = False

    def pause_reading(self) -> None:
        expect(self.reading, "reading is paused twice")
        self.reading = False

    def resume_reading(self) -> None:
        expect(not self.reading, "reading goes on twice")
        self.reading = True

    def abort(self) -> None:
        self.aborted = True

    close = abort


class Connection(FramedProtocol):
    """Compares each frame with the model. Some are served later, as a request that waits for a disk is."""

    def __init__(self, pool: MemoryPool) -> None:
        super().__init__(MAX_FRAME_BYTES, pool)
        self.line = Transport()
        self.connection_made(cast(Any, self.line))
        #: What the client has sent and nobody read, and the frames that have to come.
        self.sent = bytearray()
        self.expected: list[bytes] = []
        self.is_wrong = self.serves_later = False
        self.served: memoryview | None = None

    def frame_received(self, frame: memoryview) -> None:
        expect(not self._busy, "a frame while another is served")
        expect(self.expected, "a frame that nobody sent")
        if not self.serves_later:
            expect(frame == self.expected.pop(0), "a frame with other bytes")
            return
        self._busy, self._pinned, self.served = True, len(frame) > SMALL_FRAME_BYTES, frame

    def answer(self) -> None:
        """The frame that is being served must not have changed since it came."""
        if self.served is not None:
            expect(self.served == self.expected.pop(0), "the bytes of a frame changed while it was served")
            self.served, self._pinned = None, False
            self._resume()

    def send(self, size: int, number: int) -> None:
        if not self.is_wrong:
            body = _FILLING[number % 251 : number % 251 + size]
            self.sent += size.to_bytes(4, "big") + body
            self.expected.append(body)

    def send_wrong(self, length: int) -> None:
        if not MIN_FRAME_BYTES <= length <= MAX_FRAME_BYTES:
            self.sent += length.to_bytes(4, "big", signed=True)
            self.is_wrong = True

    def arrive(self, most: int) -> None:
        """Let some of what was sent arrive, as a loop would: only into the room that is offered."""
        while most > 0 and self.sent and self.line.reading and not self.line.aborted:
            room = self.get_buffer(-1)
            expect(len(room) > 0, "no room is offered, and reading goes on")
            part = min(len(room), most, len(self.sent))
            room[:part] = self.sent[:part]
            del self.sent[:part]
            most -= part
            self.buffer_updated(part)

    def lose(self) -> None:
        if not self.is_lost:
            self.is_lost = self.line.aborted = True
            self.connection_lost(None)
            self.served = None

    is_lost = False


@contextmanager
def scaled_down() -> Iterator[None]:
    """Small buffers, until this ends."""
    before = [
        (module, name, getattr(module, name))
        for module in (framing, memory)
        for name in _SCALE
        if hasattr(module, name)
    ]
    for module, name, _ in before:
        setattr(module, name, _SCALE[name])
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def one(data: bytes) -> None:
    with scaled_down():
        tell(Draw(data))


def tell(draw: Draw) -> None:
    pool = MemoryPool(POOL_BYTES, 30.0)
    connections = [Connection(pool) for _ in range(CONNECTIONS)]
    most_bytes = POOL_BYTES + MAX_FRAME_BYTES + (CONNECTIONS + 1) * RECEIVE_BUFFER_BYTES
    clock = number = 0
    for _ in range(32):
        if not draw:
            break
        step = draw.byte()
        connection = connections[step & 3 if step & 3 < CONNECTIONS else 0]
        action = step >> 2 & 15
        if connection.is_lost:
            continue
        if action < 4:
            number += 1
            connection.send(draw.pick(SIZES), number)
        elif action < 10:
            connection.arrive(draw.pick(PIECES))
        elif action == 10:
            connection.serves_later = not connection.serves_later
        elif action == 11:
            connection.answer()
        elif action == 12:
            connection.resume_writing() if connection.is_not_read else connection.pause_writing()
        elif action == 13:
            clock += draw.byte() % 40
            pool.look(float(clock))
        elif action == 14:
            connection.send_wrong(draw.number(4, signed=True))
        elif step & 0x40:
            connection.lose()
        expect(0 <= pool.used_bytes <= most_bytes, f"{pool.used_bytes} bytes are held")
    finish(pool, connections)


def finish(pool: MemoryPool, connections: list[Connection]) -> None:
    """One connection after the other ends; the last one has to get all of its frames."""
    for place, connection in enumerate(connections):
        others = connections[place + 1 :]
        for other in others:
            other.lose()
        if not connection.is_lost:
            drain(connection)
            connection.lose()
        del others[:]
    expect(pool.used_bytes == 0, f"{pool.used_bytes} bytes are held for nobody")
    expect(not pool.watched and not pool.waiting, "a connection that is gone is waited for")


def drain(connection: Connection) -> None:
    was_refused = connection.line.aborted
    connection.serves_later = False
    for _ in range(200):
        connection.answer()
        if connection.is_not_read:
            connection.resume_writing()
        if not connection.sent or connection.line.aborted:
            break
        connection.arrive(1 << 20)
    connection.answer()
    if connection.line.aborted:
        expect(was_refused or connection.is_wrong, "a connection is refused that did nothing wrong")
        expect(was_refused or not connection.expected, "frames before a wrong one are not served")
    else:
        expect(not connection.sent, "a connection does not read, and nobody holds memory")
        expect(not connection.expected and not connection.is_wrong, "frames are left over, or a wrong one was taken")


def _step(connection: int, action: int, more: int | None = None) -> bytes:
    return bytes([connection | action << 2]) + (b"" if more is None else bytes([more]))


def seeds() -> list[bytes]:
    found = []
    for size in range(len(SIZES)):
        for piece in (3, 7, 10):
            story = _step(0, 0, size) + _step(0, 1, 2) + _step(1, 0, size) + _step(0, 4, piece) + _step(1, 5, piece)
            found.append(story * 2 + _step(0, 4, 10))
            found.append(
                _step(0, 10) + story + _step(0, 11) + _step(0, 12) + story + _step(1, 13, 31) + _step(1, 13, 9)
            )
    found.append(_step(0, 0, 3) + _step(0, 14) + b"\x7f\xff\xff\xff" + _step(0, 4, 10))
    found.append(
        _step(1, 0, 15) + _step(0, 0, 15) + _step(1, 4, 9) * 2 + _step(0, 4, 9) * 2 + bytes([1 | 15 << 2 | 0x40])
    )
    return found


TARGET = Target(
    "however bytes are cut, each connection gets its frames whole and in order, in bounded memory",
    one,
    seeds,
    max_bytes=160,
)

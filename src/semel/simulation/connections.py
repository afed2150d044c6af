"""A connection of the simulated network: its two ends, as asyncio shows them, and what is on its way between them."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from semel.wire.apis import ApiKey

if TYPE_CHECKING:
    from semel.simulation.machines import Machine, Process
    from semel.simulation.network import Network

#: How much a system takes for a program that does not read.
WINDOW_BYTES = 64 * 1024
_HIGH_WATER_BYTES = 64 * 1024
#: Requests that change something once, as the bytes of their API keys: a second arrival must change nothing.
_WORTH_REPEATING = frozenset(
    key.to_bytes(2, "big")
    for key in (
        ApiKey.PRODUCE, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT, ApiKey.OFFSET_COMMIT,
    )
)


class Connection:
    """Two transports, and what is on its way between them."""

    __slots__ = ("ends", "loses_answer", "name", "network", "number")

    def __init__(self, network: Network, number: int, client: Process, server: Process, name: str) -> None:
        self.network = network
        self.number = number
        self.name = f"{number} {name}"
        one, two = Transport(self, client, is_client=True), Transport(self, server, is_client=False)
        one.peer, two.peer = two, one
        self.ends = one, two
        #: Whether the next answer is lost, and the connection with it.
        self.loses_answer = False

    def is_asked_about(self, dead: Transport) -> bool:
        """Whether the system at the other end sends something, so that it hears of the death."""
        return bool(dead.peer.outgoing) or dead.peer.silence_s is not None

    def grew_silent(self) -> None:
        """No more answers come. An end that is looked after hears of it, unless that is over by then."""
        loop = self.network._loop
        for end in self.ends:
            if end.silence_s is not None and not end.is_over:
                loop.deliver_at(loop.time() + end.silence_s, end.still_silent, (), end.process)

    def healed(self) -> None:
        for end in self.ends:
            end.send_on()

    def reset(self) -> None:
        """Both sides learn, each in its own time, that the connection is gone. What was on its way is lost."""
        loop = self.network._loop
        for end in self.ends:
            end.outgoing.clear()
            end.generation += 1
            if end.process.is_alive and not end.is_over:
                loop.call_at(
                    loop.time() + self.network.delay_s(),
                    end.lost,
                    ConnectionResetError(104, "Connection reset by peer"),
                    context=end.process.context.copy(),
                )
        self.forget()

    def forget(self) -> None:
        self.network.connections.pop(self.number, None)


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, connection: Connection, process: Process, *, is_client: bool) -> None:
        super().__init__()
        self.connection = connection
        self.network = connection.network
        self.process = process
        self._here = process.machine
        self.is_client = is_client
        self.peer: Transport
        self.protocol: Any = None
        #: What waits for a cut to heal: data, or None for the end.
        self.outgoing: deque[bytes | None] = deque()
        #: Raised by a reset: what is on its way then does not arrive.
        self.generation = 0
        self._last_arrival_s = 0.0
        #: What arrived and was not read: data, or None for the end, and whether the sender knows that it arrived.
        self._inbox: deque[tuple[bytes | None, bool]] = deque()
        self._inbox_bytes = 0
        self._unsent_bytes = 0
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._is_writing_paused = False
        self._is_reading = True
        self._is_closing = False
        self.is_over = False
        #: After how long a silence the system gives the connection up, if it is to look after it.
        self.silence_s: float | None = None
        process.transports[connection.number * 2 + is_client] = self

    # Beginning and end

    def begin(self, protocol: Any) -> None:
        if self.is_over or not self.process.is_alive:
            return
        self.protocol = protocol
        protocol.connection_made(self)
        self._read_on()

    def is_closing(self) -> bool:
        return self._is_closing or self.is_over

    def close(self) -> None:
        if not self._is_closing and not self.is_over:
            self._is_closing = True
            self._send(None)
            self.network._loop.call_soon(self.lost, None)

    def abort(self) -> None:
        if not self.is_over:
            self._is_closing = True
            self.connection.loses_answer = False
            self._send(None)
            self.network._loop.call_soon(self.lost, None)

    def lost(self, error: Exception | None) -> None:
        """The connection is over for this end."""
        if self.is_over:
            return
        self.is_over = self._is_closing = True
        self.process.transports.pop(self.connection.number * 2 + self.is_client, None)
        if self.peer.is_over:
            self.connection.forget()
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    @property
    def machine(self) -> Machine:
        return self._here

    def still_silent(self) -> None:
        """Nothing came from the other machine for so long, unless that changed meanwhile."""
        here, there = self._here, self.peer._here
        if not self.is_over and (self.network.is_cut(here, there) or self.network.is_cut(there, here)):
            self.lost(TimeoutError(110, "Connection timed out"))

    def process_died(self, *, told: bool) -> None:
        """With `told` the system of the dead process says so to the other side."""
        self.is_over = self._is_closing = True
        self.process.transports.pop(self.connection.number * 2 + self.is_client, None)
        if told:
            self._send(None, by_reset=True)

    def _ended(self, error: Exception | None) -> None:
        """The other side has ended the connection."""
        if self.is_over:
            return
        if error is not None or self.protocol is None:
            self.lost(error)
        elif not self.protocol.eof_received():
            self._is_closing = True
            self._send(None)
            self.lost(None)

    # Sending

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._write(bytes(data))

    def writelines(self, buffers: Iterable[bytes | bytearray | memoryview]) -> None:
        self._write(b"".join(buffers))

    def _write(self, data: bytes) -> None:
        if self._is_closing or not data:
            return
        self._unsent_bytes += len(data)
        self._send(data)
        if self._unsent_bytes > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self.protocol.pause_writing()

    def _send(self, data: bytes | None, *, by_reset: bool = False) -> None:
        network, connection = self.network, self.connection
        if connection.loses_answer and not self.is_client and data is not None:
            network._world.trace.note("loses", connection.name)
            connection.reset()
            return
        if self.outgoing or network.is_cut(self._here, self.peer._here):
            self.outgoing.append(data)
            return
        chance = network.chance
        if data is not None and len(data) > 8 and chance.random() < network.conditions.split_chance:
            middle = chance.randrange(1, len(data))
            self._fly(data[:middle])
            self._fly(data[middle:])
        else:
            self._fly(data, by_reset)

    def _fly(self, data: bytes | None, by_reset: bool = False) -> None:
        network, peer = self.network, self.peer
        loop = network._loop
        arrival_s = loop._now + network.delay_s()
        if arrival_s < self._last_arrival_s:
            arrival_s = self._last_arrival_s
        self._last_arrival_s = arrival_s
        if peer.process.is_alive:
            loop.deliver_at(arrival_s, peer._arrive, (data, self.generation, by_reset), peer.process)
        elif data is not None and not self.is_over:
            # Nobody is there any more, and the system says so.
            self.connection.reset()

    def send_on(self) -> None:
        """A cut has healed, perhaps the one that was in the way."""
        while self.outgoing and not self.network.is_cut(self.process.machine, self.peer.process.machine):
            self._fly(self.outgoing.popleft())

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def _was_taken(self, size_bytes: int) -> None:
        """The other side's system has taken so many bytes."""
        self._unsent_bytes -= size_bytes
        if self._is_writing_paused:
            self._may_write_again()

    def _may_write_again(self) -> None:
        if self._unsent_bytes <= self._low and self.process.is_alive:
            self._is_writing_paused = False
            self.network._loop.call_soon(self._resume_writing, context=self.process.context.copy())

    def _resume_writing(self) -> None:
        if not self.is_over:
            self.protocol.resume_writing()

    # Receiving

    def _arrive(self, data: bytes | None, generation: int, by_reset: bool) -> None:
        if self.is_over or generation != self.peer.generation:
            return
        network, connection = self.network, self.connection
        if data is None:
            network._trace.note("ends", connection.name)
            if by_reset:
                self._inbox.clear()
                self._ended(ConnectionResetError(104, "Connection reset by peer"))
                return
            self._inbox.append((None, True))
            self._read_on()
            return
        size = len(data)
        network.delivered_bytes += size
        network._trace.note_data(network._loop._now, connection.name, connection.number, data)
        if not self.is_client:
            network.requests += 1
            if data[4:6] in _WORTH_REPEATING and int.from_bytes(data[:4], "big") == size - 4:
                network.heard.append((network._loop._now, data))
        is_taken = self._inbox_bytes + size <= WINDOW_BYTES
        if is_taken:
            sender = self.peer
            sender._unsent_bytes -= size
            if sender._is_writing_paused:
                sender._may_write_again()
        if not self._inbox and is_taken and self._is_reading and self.protocol is not None:
            self._hand_over(data)
        else:
            self._inbox_bytes += size
            self._inbox.append((data, is_taken))
            self._read_on()

    def _read_on(self) -> None:
        while self._inbox and self._is_reading and self.protocol is not None and not self.is_over:
            data, is_taken = self._inbox.popleft()
            if data is None:
                self._ended(None)
                return
            self._inbox_bytes -= len(data)
            if not is_taken:
                self.peer._was_taken(len(data))
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        protocol = self.protocol
        size = len(data)
        buffer = protocol.get_buffer(size)
        if len(buffer) >= size:
            buffer[:size] = data
            protocol.buffer_updated(size)
            return
        position = 0
        while True:
            count = min(len(buffer), size - position)
            buffer[:count] = data[position : position + count]
            position += count
            protocol.buffer_updated(count)
            if position == size:
                return
            if not self._is_reading or self.is_over:
                # It has paused in the middle.
                self._inbox.appendleft((data[position:], True))
                self._inbox_bytes += size - position
                return
            buffer = protocol.get_buffer(size - position)

    def is_reading(self) -> bool:
        return self._is_reading and not self.is_closing()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.network._loop.call_soon(self._read_on)

    # The rest of what asyncio's transports have

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.peer.process.machine.name, 40_000 + self.connection.number % 20_000
        if name == "sockname":
            return self.process.machine.name, 9092
        if name == "socket":
            return _Socket(self)
        return default

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def can_write_eof(self) -> bool:
        return False


class _Socket:
    """What is asked of the socket below a transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if level == socket.IPPROTO_TCP and option == socket.TCP_USER_TIMEOUT:
            self._transport.silence_s = value / 1000

    def fileno(self) -> int:
        return -1

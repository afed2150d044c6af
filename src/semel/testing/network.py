"""The network between the brokers of a cluster, and to its ZooKeeper, so that a test can cut it, one way or both ways.

Every broker has a relay in front of the listener that brokers use among themselves, and relays of its own to
ZooKeeper. A relay knows who connects: brokers say so in the client id of each request. A cut loses nothing that TCP
would keep: bytes wait, and arrive after `heal` if the connection still lives by then. Connections are still accepted
while there is a cut, as if packets vanished: a port that refuses connections would say that the process is dead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from semel.wire import Malformed
from semel.wire.frames import parse_request

#: Where cuts are made: a broker's number, or this.
ZOOKEEPER = "zookeeper"
Place = int | str
#: How the client ids of brokers begin.
_BROKER = "semel-broker-"
_PIECE_BYTES = 256 * 1024
_LARGEST_FIRST_FRAME = 8 * 1024 * 1024
_WAIT_S = 10.0

T = TypeVar("T")


class Network:
    """Relays on a thread of their own. `cut` and `heal` hold for connections that are there and for new ones."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="semel-network", daemon=True)
        self._cuts: set[tuple[Place, Place]] = set()
        self._healed = asyncio.Condition()
        self._relays: list[Relay] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Once more does nothing, also if it was never started."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_WAIT_S)
        self._loop.close()

    def relay(self, at: Place, host: str, port: int, *, only_from: Place | None = None) -> Relay:
        """A new relay in front of HOST:PORT, where `at` is. `only_from`: nobody else uses it."""
        made = Relay(self, at, host, port, only_from)
        self._run(made.listen())
        self._relays.append(made)
        return made

    @property
    def cuts(self) -> list[tuple[Place, Place]]:
        """What is lost now: (from, to)."""
        return sorted(self._cuts, key=str)

    def cut(self, sender: Place, receiver: Place) -> None:
        self._run(self._change(lambda: self._cuts.add((sender, receiver))))

    def heal(self, is_healed: Callable[[Place, Place], bool]) -> None:
        def change() -> None:
            self._cuts = {one for one in self._cuts if not is_healed(*one)}

        self._run(self._change(change))

    async def _change(self, change: Callable[[], object]) -> None:
        async with self._healed:
            change()
            self._healed.notify_all()

    async def passes(self, sender: Place, receiver: Place) -> None:
        """Wait until nothing is cut on this way."""
        if (sender, receiver) in self._cuts:
            async with self._healed:
                await self._healed.wait_for(lambda: (sender, receiver) not in self._cuts)

    def run_for(self, relay: Relay, work: Callable[[Relay], Coroutine[Any, Any, T]]) -> T:
        return self._run(work(relay))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_S)

    async def _end(self) -> None:
        for relay in self._relays:
            await relay.close()


class Relay:
    """One address, which stays the same, in front of another one."""

    def __init__(self, network: Network, at: Place, host: str, port: int, only_from: Place | None) -> None:
        self._network = network
        self._at = at
        self._to = (host, port)
        self._only_from = only_from
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    # For other threads

    def open(self) -> None:
        """Take connections (again): the broker is about to run."""
        self._network.run_for(self, Relay.listen)

    def shut(self) -> None:
        """Refuse connections, as the port of a process that is gone does."""
        self._network.run_for(self, Relay.refuse)

    # On the loop

    async def listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        await self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = b""
        source = self._only_from
        if source is None:
            first = await _first_frame(reader)
            source = _sender(first)
        await self._network.passes(source, self._at)
        try:
            from_there, there = await asyncio.open_connection(*self._to)
        except ConnectionRefusedError:
            if self._only_from is None:
                await self.refuse()  # the broker has ended: whoever asks must learn that from the port
            return
        there.write(first)
        pumps = [
            asyncio.ensure_future(self._pump(reader, there, source, self._at)),
            asyncio.ensure_future(self._pump(from_there, writer, self._at, source)),
        ]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            there.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: Place, receiver: Place
    ) -> None:
        """One direction, until its sender closes. The end of a connection does not pass a cut either."""
        with suppress(ConnectionError):
            while data := await reader.read(_PIECE_BYTES):
                await self._network.passes(sender, receiver)
                writer.write(data)
                await writer.drain()
        await self._network.passes(sender, receiver)
        writer.close()


async def _first_frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    length = int.from_bytes(size, "big")
    if length > _LARGEST_FIRST_FRAME:
        raise ConnectionError("that is no request of a broker")
    return size + await reader.readexactly(length)


def _sender(frame: bytes) -> Place:
    try:
        client_id = parse_request(memoryview(frame)[4:])[0].client_id or ""
    except Malformed:
        client_id = ""
    number = client_id.removeprefix(_BROKER)
    return int(number) if number.isdecimal() and number != client_id else client_id

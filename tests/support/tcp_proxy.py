"""A proxy for any protocol, whose two directions can each be held: what is sent meanwhile arrives later, as over a
network that was cut. `lose` ends the connections with all that was held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from tests.support.processes import free_port


class TcpProxy:
    """One address of 127.0.0.1 in front of another. It serves from its own thread."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        #: All that was ever held back.
        self.held = bytearray()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._run(self._start())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        #: Set while that direction is open: from who connects, and to who connects.
        self._requests, self._answers = asyncio.Event(), asyncio.Event()
        self._requests.set()
        self._answers.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        for one in (self._pass(reader, back, self._requests), self._pass(there, writer, self._answers)):
            task = asyncio.ensure_future(one)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: asyncio.Event) -> None:
        pieces: asyncio.Queue[bytes] = asyncio.Queue()
        passing = asyncio.ensure_future(self._pass_on(pieces, writer, is_open))
        try:
            while data := await reader.read(65536):
                if not is_open.is_set():
                    self.held += data
                pieces.put_nowait(data)
            pieces.put_nowait(b"")
            await passing
        except OSError:
            pass
        finally:
            passing.cancel()
            writer.close()
            self._writers.discard(writer)

    async def _pass_on(
        self, pieces: asyncio.Queue[bytes], writer: asyncio.StreamWriter, is_open: asyncio.Event
    ) -> None:
        while data := await pieces.get():
            await is_open.wait()
            writer.write(data)
            await writer.drain()
        await is_open.wait()

    def hold(self, *, requests: bool = True, answers: bool = True) -> None:
        async def held() -> None:
            if requests:
                self._requests.clear()
            if answers:
                self._answers.clear()

        self._run(held())

    def release(self) -> None:
        async def released() -> None:
            self._requests.set()
            self._answers.set()

        self._run(released())

    def lose(self) -> None:
        """The connections are gone, and what was held with them. New ones work."""

        async def lost() -> None:
            for writer in list(self._writers):
                writer.transport.abort()
            for task in list(self._tasks):
                task.cancel()
            self._requests.set()
            self._answers.set()

        self._run(lost())

    def close(self) -> None:
        async def closed() -> None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            for task in list(self._tasks):
                task.cancel()

        self._run(closed())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

"""A broker inside another program: started with `with`, stopped when the block ends.

>>> import semel
>>> with semel.Broker() as broker:
...     host, port = broker.bootstrap_servers.split(":")
...     int(port) > 0
True
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from semel.broker.listeners import address_text
from semel.broker.server import BrokerServer
from semel.config import BROKER

START_TIMEOUT_S = 60.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Broker:
    """A broker on its own thread.

    Without `data_dir` it keeps its data in a temporary directory that goes when the broker does. It listens on a free
    port of 127.0.0.1 unless `listen` says otherwise. `settings` are the broker's, under Kafka's names.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        listen: str = "127.0.0.1:0",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._temporary = tempfile.mkdtemp(prefix="semel-") if data_dir is None else None
        self.data_dir = Path(self._temporary or str(data_dir))
        given = {"listeners": f"PLAINTEXT://{listen}", **(settings or {}), "log.dirs": (str(self.data_dir),)}
        self.server = BrokerServer(BROKER.parse(given))
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> Broker:
        """Start and return once clients can connect."""
        self._thread = threading.Thread(target=self._run, name="semel-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError("the broker did not start in time")
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def stop(self) -> None:
        """Stop cleanly."""
        if self._thread is not None and self._thread.is_alive():
            self.call(self.server.stop())
            self._thread.join()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def bootstrap_servers(self) -> str:
        """What a client needs to find this broker."""
        return address_text(*self.server.endpoint)

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the broker's loop and wait for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self) -> None:
        loop = self._loop = new_event_loop()
        try:
            loop.run_until_complete(self._serve())
        finally:
            loop.close()

    async def _serve(self) -> None:
        try:
            await self.server.start()
        except BaseException as error:
            self._error = error
            return
        finally:
            self._started.set()
        await self.server.stopped.wait()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

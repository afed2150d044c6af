"""A broker inside another program: started with `with`, stopped when the block ends.

>>> import semel
>>> with semel.Broker() as broker:
...     host, port = broker.bootstrap_servers.split(":")
...     int(port) > 0
True
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from semel.broker.listeners import address_text
from semel.broker.server import BrokerServer
from semel.config import BROKER, ConfigError

if TYPE_CHECKING:
    from semel.broker.embedded_security import PreparedSecurity, Security

START_TIMEOUT_S = 60.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop: uvloop's if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Broker:
    """A broker on its own thread.

    Without `data_dir` its data is in a temporary directory, which is removed when the broker stops. It listens on a
    free port of 127.0.0.1 unless `listen` is given. `settings` are the broker's settings, under Kafka's names.
    `security` gives it TLS, users and access rules; `client_settings` is what its clients then need.

    >>> import semel
    >>> with semel.Broker(security=semel.Security(users={"alice": "wonderland"})) as broker:
    ...     with semel.Producer(broker.client_settings("alice")) as producer:
    ...         producer.send("payments", b"12.50").result(30).offset
    0

    An argument of the wrong type raises TypeError, a setting that is not legal ConfigError. Nothing is created then.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        listen: str = "127.0.0.1:0",
        settings: Mapping[str, object] | None = None,
        security: Security | None = None,
    ) -> None:
        given = {"listeners": f"PLAINTEXT://{_checked_listen(listen)}", **_checked_settings(settings)}
        self._security: PreparedSecurity | None = None
        if security is not None:
            self._security = _prepared(security, listen, _checked_settings(settings))
            given |= self._security.settings
        parsed = BROKER.parse(given)
        if "log.dirs" in parsed.explicit and parsed["log.dirs"] != (str(data_dir),):
            raise ConfigError("log.dirs: an embedded broker keeps its data in data_dir; give that instead")
        self._temporary: str | None = None
        self._owner = os.getpid()
        if data_dir is None:
            self._temporary = tempfile.mkdtemp(prefix="semel-")
            self.data_dir = Path(self._temporary)
        else:
            self.data_dir = _checked_directory(data_dir)
        try:
            if self._security is not None:
                self._security.write_files()
                given |= self._security.settings
            self.server = BrokerServer(BROKER.parse({**given, "log.dirs": (str(self.data_dir),)}))
        except BaseException:
            self._remove_temporary()
            raise
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Done when the loop runs no more.
        self._ended: Future[None] = Future()

    def start(self) -> Broker:
        """Start, and return once clients can connect. A broker can be started once."""
        if self._thread is not None:
            raise RuntimeError("the broker was started before: create a new Broker with the same data_dir")
        _started.add(self)
        self._thread = threading.Thread(target=self._run, name="semel-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError("the broker did not start in time")
        if self._error is not None:
            self._thread.join()
            self._remove_temporary()
            raise self._error
        return self

    def stop(self) -> None:
        """Stop cleanly. In a process forked from the one that started it, this does nothing."""
        if os.getpid() != self._owner:
            return
        if self._thread is not None and self._thread.is_alive() and self._loop is not None:
            self._stop(self._thread, self._loop)
        self._remove_temporary()

    def _stop(self, thread: threading.Thread, loop: asyncio.AbstractEventLoop) -> None:
        """Stop, unless the broker has just stopped by itself, for a broken invariant. Then nobody answers here."""
        stopping = self.server.stop()
        try:
            asked = asyncio.run_coroutine_threadsafe(stopping, loop)
        except RuntimeError:
            # The loop is closed.
            pass
        else:
            wait((asked, self._ended), return_when=FIRST_COMPLETED)
            if asked.done():
                asked.result()
        thread.join()
        stopping.close()

    def _remove_temporary(self) -> None:
        _started.discard(self)
        if self._security is not None:
            self._security.remove()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, for a client's `bootstrap.servers`."""
        if self._thread is None:
            raise RuntimeError("the broker is not started: use `with Broker() as broker` or call start()")
        return address_text(*self.server.listening.endpoint)

    def client_settings(
        self, user: str | None = None, *, form: str = "librdkafka", mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, Any]:
        """What a client needs to connect as this user; without security it needs the address alone.

        The names are librdkafka's, for confluent-kafka and for Semel's own clients. Other forms are "java" (what stands
        in a client.properties), "kafka-python" and "aiokafka" (arguments of their constructors). A broker with one user
        need not be told which. The mechanisms are SCRAM-SHA-512, SCRAM-SHA-256 and PLAIN.
        """
        from semel.broker.client_forms import in_form

        found = {"bootstrap.servers": self.bootstrap_servers}
        if self._security is not None:
            found |= self._security.client_settings(user, mechanism)
        elif user is not None:
            raise ConfigError(f"there is no user {user!r}: the broker was made without security")
        return in_form(found, form)

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the broker's loop and wait for it."""
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the broker is not running in this process")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self) -> None:
        loop = self._loop = new_event_loop()
        try:
            loop.run_until_complete(self._serve())
        finally:
            loop.close()
            self._ended.set_result(None)

    async def _serve(self) -> None:
        try:
            await self.server.start(None if self._security is None else self._security.store)
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


#: Brokers that were started and not stopped.
_started: set[Broker] = set()


def _at_exit() -> None:
    """Remove what brokers that nobody stopped have among the temporary files: keys and passwords may be there."""
    if not _started:
        return
    if clients := sys.modules.get("semel.client.finalizers"):
        clients.end_open_clients()  # they may still have records for a broker of ours
    for broker in list(_started):
        if os.getpid() == broker._owner:
            broker._remove_temporary()


atexit.register(_at_exit)


def _checked_directory(given: object) -> Path:
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        hint = ": settings are given as Broker(settings={...})" if isinstance(given, Mapping) else ""
        raise TypeError(f"data_dir is a path, not {type(given).__name__}{hint}")
    if not os.fspath(given):
        raise ConfigError("data_dir is empty: name a directory, or leave it out for a temporary one")
    return Path(given)


def _checked_listen(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(f"listen is text such as '127.0.0.1:9092', not {type(given).__name__}")
    return given


def _checked_settings(given: Mapping[str, object] | None) -> Mapping[str, object]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"settings are a dict of Kafka's names, not {type(given).__name__}")
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"the name of a setting is str, not {type(name).__name__}")
    return given


def _prepared(given: object, listen: str, settings: Mapping[str, object]) -> PreparedSecurity:
    from semel.broker.embedded_security import PreparedSecurity, Security

    if not isinstance(given, Security):
        raise TypeError(f"security is a semel.Security, such as Security(users=['alice']), not {type(given).__name__}")
    prepared = PreparedSecurity(given, listen)
    for name in settings:
        if name in prepared.names:
            raise ConfigError(f"{name}: it follows from security; leave it out of settings")
    return prepared

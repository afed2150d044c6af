"""What the blocking clients share: an event loop in its own thread, and the end of it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.client.blocking.loop_thread import LoopThread
from semel.client.finalizers import Abandonable, Finalizer
from semel.client.forking import OfOneProcess

T = TypeVar("T")
Client = TypeVar("Client", bound=Abandonable)


class _Call:
    """A call of the user's thread that the loop carries out."""

    __slots__ = ("interrupted", "over", "returned")

    def __init__(self) -> None:
        #: The user's thread does not wait any more. Set by that thread.
        self.interrupted = False
        #: It ended well. Set by the loop's thread.
        self.returned = False
        self.over = asyncio.Event()


class BlockingClient(OfOneProcess):
    """The base of the blocking clients: a loop thread, and closing.

    A client that is dropped without being closed warns (ResourceWarning) and closes itself: see `finalizers`.
    """

    _finalizer: Finalizer | None = None

    def __init__(self, name: str) -> None:
        self._thread = LoopThread(name)
        self._last_call = _Call()

    def _make(self, factory: Callable[[], Client]) -> Client:
        """Create the asyncio client on the loop. If that fails, stop the thread."""

        async def make() -> Client:
            return factory()

        try:
            client = self._thread.run(make())
        except BaseException:
            self._thread.close()
            raise
        self._finalizer = Finalizer(self._thread, client)
        return client

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that does not wait, on the loop's thread."""

        async def call() -> T:
            return function(*arguments)

        return self._thread.run(call())

    def _heard(self, work: Callable[[], Coroutine[Any, Any, T]], on_lost: Callable[[], object] | None = None) -> T:
        """Run what changes something that its caller has to know of.

        If the caller is interrupted (Ctrl-C) and the work ends well all the same, `on_lost` is called, in any thread.
        The next call begins when this one is over.
        """
        call = _Call()
        try:
            return self._thread.run(self._carry_out(work, call, on_lost))
        except Exception:
            raise
        except BaseException:
            # The work goes on until its cancellation arrives, and may even begin only now. So either this side or the
            # other one sees that both have happened.
            call.interrupted = True
            if call.returned and on_lost is not None:
                on_lost()
            raise

    async def _carry_out(
        self, work: Callable[[], Coroutine[Any, Any, T]], call: _Call, on_lost: Callable[[], object] | None
    ) -> T:
        before, self._last_call = self._last_call, call
        try:
            if before.interrupted:
                await before.over.wait()
            result = await work()
            call.returned = True
            if call.interrupted and on_lost is not None:
                on_lost()
            return result
        finally:
            call.over.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        finalizer = self._finalizer
        if finalizer is None or finalizer.thread.is_closed or finalizer.thread.origin.lost:
            return
        finalizer.begin(dropped=True)
        why = f"{self._thread.name} was not closed: call close() or use `with`"
        warnings.warn(why, ResourceWarning, stacklevel=2, source=self)

    def close(self) -> None:
        raise NotImplementedError

    def _close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run the last coroutine, then stop the thread. Does nothing if it is closed already, or after a fork."""
        if self._thread.is_closed or self._thread.origin.lost:
            last.close()
            return
        try:
            self._thread.run(last)
        finally:
            self._thread.close()  # refused inside a callback, as the call before: it stays open
            if self._finalizer is not None:
                self._finalizer.over()

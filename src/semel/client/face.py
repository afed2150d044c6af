"""What the blocking faces share: a private event loop in a thread, and a clean end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.client.loop_thread import LoopThread

T = TypeVar("T")


class Face:
    """What the faces share: a loop thread, and closing."""

    def __init__(self, name: str) -> None:
        self._thread = LoopThread(name)

    def _make(self, factory: Callable[[], T]) -> T:
        """Make something on the loop; if that fails, leave no thread behind."""

        async def make() -> T:
            return factory()

        try:
            return self._thread.run(make())
        except BaseException:
            self._thread.close()
            raise

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call something that does not wait, on the loop, where everything else happens."""

        async def call() -> T:
            return function(*arguments)

        return self._thread.run(call())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError

    def _close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run the last coroutine, then stop the thread; closing twice does no harm."""
        if self._thread.is_closed:
            last.close()
            return
        try:
            self._thread.run(last)
        finally:
            self._thread.close()

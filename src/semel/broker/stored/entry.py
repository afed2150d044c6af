"""One entry of the metadata store, as the stores of topics, settings, quotas and credentials use it.

Guarantees:

- A change is on disk before it holds: `replace` returns, or `then` is called, only after the store has it.
- A disk that fails refuses the change (`Refused`) and changes nothing.
- A change that is being written beside the loop goes before any later one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.errors import ErrorCode, Refused

_Parsed = TypeVar("_Parsed")


def settings_by_name(value: Any) -> dict[str, dict[str, str]]:
    """A stored value of this form: settings, each as text, by whose they are. ValueError if it is of another."""
    for name, settings in ({} if value is None else value).items():
        if not all(isinstance(text, str) for text in settings.values()):
            raise ValueError(f"a setting of {name!r} is not text")
    return value or {}


class StoredEntry:
    """Reads an entry, remembers its version, and replaces the whole of it."""

    __slots__ = ("_code", "_failure", "_name", "_store", "_writing", "version")

    def __init__(
        self,
        store: LocalMetadataStore,
        name: str,
        *,
        code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR,
        failure: str = "the change could not be written",
    ) -> None:
        """`code` and `failure`: what a client is told when the disk fails."""
        self._store = store
        self._name = name
        self._code = code
        self._failure = failure
        #: The version that was read or written last; -1 for an entry that does not exist.
        self.version = -1
        #: The change that is being written beside the loop.
        self._writing: _Write | None = None

    def read(self) -> Any:
        """The stored value; None if there is none."""
        value, self.version = self._store.get(self._name)
        return value

    def read_as(self, parse: Callable[[Any], _Parsed]) -> _Parsed:
        """What `parse` makes of the stored value, which is None if there is none. `DamagedStore` if it cannot."""
        value = self.read()
        try:
            return parse(value)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"a value in it cannot be read: {type(error).__name__}: {error}"
            raise self._store.damage_error(self._name, why) from None

    def wait(self) -> None:
        """Wait for a change that is being written beside the loop. Whoever asked for it is told of a failure."""
        if self._writing is not None:
            self._writing.future.exception()
            self._finish(self._writing)

    def replace(self, value: Any) -> None:
        """Store a value now. A change on its way to the disk must have been waited for: `value` depends on it."""
        try:
            self.version = self._store.update(self._name, value, self.version)
        except OSError as error:
            raise self._refusal(error) from error

    async def replace_beside(
        self, value: Any, *, first: Callable[[], object] | None = None, then: Callable[[], None] | None = None
    ) -> None:
        """Store a value beside the event loop; one such call at a time.

        `value` may be a function: it is called on the thread, and `first` before it. `then` is called on the loop once
        the value is stored.
        """
        version = self.version

        def write() -> int:
            if first is not None:
                first()
            return self._store.update(self._name, value() if callable(value) else value, version)

        writing = self._writing = _Write(self._store.beside(write), then)
        try:
            await asyncio.wrap_future(writing.future)
        except OSError as error:
            raise self._refusal(error) from error
        finally:
            self._finish(writing)

    def _finish(self, writing: _Write) -> None:
        """Take over what came of a write. The first who sees it does, be it `wait` or the caller itself."""
        future = writing.future
        if self._writing is not writing or not future.done():
            return
        self._writing = None
        if not future.cancelled() and future.exception() is None:
            self.version = future.result()
            if writing.then is not None:
                writing.then()

    def _refusal(self, error: OSError) -> Refused:
        return Refused(self._code, f"{self._failure}: {error}")


class _Write:
    """A change on its way to the disk, and what to do once it is there."""

    __slots__ = ("future", "then")

    def __init__(self, future: concurrent.futures.Future[int], then: Callable[[], None] | None) -> None:
        self.future = future
        self.then = then

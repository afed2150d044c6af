"""Log warnings about what a client waits for: one when the wait begins, one when it is over.

A client retries by itself when a broker is down or a topic is missing, and its caller only sees that nothing comes. The
log says why: once for each cause, however often it is retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from dataclasses import dataclass

from semel.errors import sentence

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Wait:
    since: float
    what: str
    told: bool = False


class WaitWarnings:
    """The waits of one client, each under its own key. Everything happens on one loop."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._open: dict[Hashable, _Wait] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(self, key: Hashable, what: str, why: str, *, after_s: float = 0.0) -> None:
        """The client waits for this. The warning is logged after `after_s` seconds: short waits are normal."""
        now = asyncio.get_running_loop().time()
        wait = self._open.setdefault(key, _Wait(now, what))
        if not wait.told and now - wait.since >= after_s:
            wait.told = True
            _log.warning("%s: %s: %s It is tried again until that is over", self._who, what, sentence(why))

    def end(self, key: Hashable) -> None:
        """The client does not wait for this any more."""
        wait = self._open.pop(key, None)
        if wait is not None and wait.told:
            passed = asyncio.get_running_loop().time() - wait.since
            _log.warning("%s: over after %.1f s: %s", self._who, passed, wait.what)

    def forget(self) -> None:
        """The client is closed: no more warnings."""
        self._open.clear()

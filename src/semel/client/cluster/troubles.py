"""What a client waits for without a word to its caller: one warning when it begins, one when it is over.

A client goes on by itself when a broker is down or a topic is missing, and whoever waits for records sees nothing. The
log says why, once for each cause, however often it is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Trouble:
    since: float
    what: str
    told: bool = False


class Troubles:
    """The troubles of one client, each under a key of its own. Everything happens on one loop."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._open: dict[Hashable, _Trouble] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def begins(self, key: Hashable, what: str, why: str, *, after_s: float = 0.0) -> None:
        """It is so, now: told of once it has been so for `after_s`, since some of it passes by itself."""
        now = asyncio.get_running_loop().time()
        trouble = self._open.setdefault(key, _Trouble(now, what))
        if not trouble.told and now - trouble.since >= after_s:
            trouble.told = True
            _log.warning("%s: %s: %s. It is tried again until that is over", self._who, what, why)

    def ends(self, key: Hashable) -> None:
        """It is not so, now."""
        trouble = self._open.pop(key, None)
        if trouble is not None and trouble.told:
            passed = asyncio.get_running_loop().time() - trouble.since
            _log.warning("%s: over after %.1f s: %s", self._who, passed, trouble.what)

    def forget(self) -> None:
        """Nobody waits for anything any more."""
        self._open.clear()

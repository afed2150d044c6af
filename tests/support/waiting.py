"""Waiting for a condition, never for a while: every wait has a deadline and says what it waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_never = threading.Event()


def until(check: Callable[[], T], *, within_s: float = 30.0, what: str = "the condition", every_s: float = 0.02) -> T:
    """The first true answer of `check`; an AssertionError naming `what` when the deadline passes without one."""
    deadline = time.monotonic() + within_s
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {within_s:g} s for {what}; last answer: {answer!r}")
        _never.wait(every_s)

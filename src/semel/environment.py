"""What a broker or a client has from the machine it runs on: clocks, chance, ids and threads.

Guarantees:

- This is the only place that asks the operating system for them. All other code is given an `Environment`, so a
  simulation can give another one and decide what time it is, what chance says and when a thread has worked.
  The disk is given in the same way (`semel.log.files`), and the event loop stands for the network and for timers.
- `MACHINE` is the real one, and the default everywhere.

Secrets are no part of it: salts, nonces and passwords always come from the operating system.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Environment:
    """One machine, as a process on it sees it."""

    #: Milliseconds since 1970. It may jump.
    now_ms: Callable[[], int] = _wall_clock_ms
    #: Milliseconds since some moment, by a clock that nobody sets: for timeouts and pauses. From any thread, which the
    #: time of an event loop is not: uvloop's stands still while the loop waits.
    steady_ms: Callable[[], int] = _steady_clock_ms
    #: Measures work, in seconds: how long somebody had the thread.
    work_clock_s: Callable[[], float] = time.perf_counter
    #: The same in nanoseconds.
    work_clock_ns: Callable[[], int] = time.perf_counter_ns
    #: For jitter and for choices where any would do. Not for secrets.
    chance: random.Random = random.Random()  # noqa: RUF009 - one for the whole process, as in the random module
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    #: So many threads, which are named like this.
    threads: Callable[[int, str], Executor] = ThreadPoolExecutor


#: The machine that this process runs on.
MACHINE = Environment()

"""Plays many seeds, in several processes if told. A seed does the same wherever it is played.

Each process is started anew and not forked, so what one seed leaves behind in memory reaches only those after it there.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from semel.simulation.coverage import Cell, Coverage
from semel.simulation.play import Plan
from semel.simulation.runs import Result, run

#: A process may have as many seeds waiting besides the one it plays: it is never idle, and little is thrown away at the
#: end.
_WAITING = 1


@dataclass(slots=True)
class Played:
    """What came of a seed, and the cells of state tables that it took."""

    result: Result
    cells: frozenset[Cell]
    #: The trace of a replay that was different.
    other_trace: str | None = None

    @property
    def repeats(self) -> bool:
        """Whether each replay did the same."""
        return self.other_trace is None


def play(plan: Plan, replays: int = 0) -> Played:
    """Play a plan, and again as often as told."""
    covered = Coverage()
    with covered:
        result = run(plan)
    for _ in range(replays):
        again = run(plan)
        if again.trace_hash != result.trace_hash:
            return Played(result, covered.cells, again.trace_hash)
    return Played(result, covered.cells)


def play_all(plans: Iterable[Plan], *, processes: int, replays: int = 0) -> Generator[Played, None, None]:
    """Play plans, and tell of each as it ends: with several processes not in the order of the plans.

    `plans` may be endless: it is asked for the next one when a process is nearly free.
    """
    if processes == 1:
        for plan in plans:
            yield play(plan, replays)
        return
    coming = iter(plans)
    running: set[Future[Played]] = set()
    # Children of a fork would share what this process has in memory, and its threads would be missing in them.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(processes, context, _leave_interrupts_to_the_parent)
    is_over = False
    try:
        while True:
            while len(running) < processes * (1 + _WAITING) and (following := next(coming, None)) is not None:
                with _no_interrupt():
                    running.add(pool.submit(play, following, replays))
            if not running:
                is_over = True
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in sorted(done, key=lambda future: future.result().result.plan.seed):
                yield one.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if not is_over:
            # Nobody waits for the seeds that they are playing, which may take minutes.
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches all processes of a terminal. The first one ends the others, without a traceback from each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Whoever is started meanwhile is not interrupted before it has come to `_leave_interrupts_to_the_parent`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

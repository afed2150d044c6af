"""Plays many seeds, in several processes if told. A seed does the same wherever it is played.

Each process is started anew and not forked, so what one seed leaves behind in memory reaches only those after it there.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
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


def play(plan: Plan, replays: int = 0) -> Played:
    """Play a plan, and again as often as told: another trace is a violation."""
    covered = Coverage()
    with covered:
        result = run(plan)
    for _ in range(replays):
        again = run(plan)
        if again.trace_hash != result.trace_hash:
            result.violations.append(f"a replay was different: {result.trace_hash} and {again.trace_hash}")
    return Played(result, covered.cells)


def play_all(plans: Iterable[Plan], *, processes: int, replays: int = 0) -> Iterator[Played]:
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
    pool = ProcessPoolExecutor(processes, context, _leave_interrupts_to_the_parent)
    try:
        while True:
            while len(running) < processes * (1 + _WAITING) and (following := next(coming, None)) is not None:
                running.add(pool.submit(play, following, replays))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in sorted(done, key=lambda future: future.result().result.plan.seed):
                yield one.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches all processes of a terminal. The first one ends the others, without a traceback from each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

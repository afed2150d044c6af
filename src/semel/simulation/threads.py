"""Threads of a simulated process: a piece of work takes a while by the virtual clock, and is then done in one moment.

Guarantees:

- One thread does its work in the order in which it was given; several may finish in another order.
- Whoever waits for the result of a piece of work without an event loop gets it at once: the work is done then.
- The work of a process that died is never done.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.simulation.machines import Process


class Job(Future[Any]):
    """A piece of work. Asking for its result does it, if it is not done."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work: Callable[[], Any] | None = work

    def do(self) -> None:
        work, self._work = self._work, None
        if work is None or not self.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)

    def result(self, timeout: float | None = None) -> Any:
        self.do()
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.do()
        return super().exception(0)


class SimulatedThreads(Executor):
    """So many threads of a process."""

    def __init__(self, process: Process, count: int, name: str) -> None:
        self._process = process
        self._count = count
        self._last_end_s = 0.0
        self._jobs: dict[Job, None] = {}

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        process = self._process
        job = Job(lambda: work(*args, **named))
        loop = process.machine.world.loop
        end_s = loop.time() + process.machine.work_time_s()
        if self._count == 1:
            end_s = self._last_end_s = max(end_s, self._last_end_s)
        self._jobs[job] = None
        loop.call_at(end_s, self._do, job, context=process.context)
        return job

    def _do(self, job: Job) -> None:
        self._jobs.pop(job, None)
        job.do()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        jobs, self._jobs = self._jobs, {}
        for job in jobs:
            if cancel_futures:
                job.cancel()
            elif wait:
                job.do()

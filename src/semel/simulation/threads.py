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
    import asyncio

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


class Awaited:
    """A piece of work whose result is awaited on the event loop. It needs none of a `Job`'s locks."""

    __slots__ = ("_args", "_work", "future")

    def __init__(self, work: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any]) -> None:
        self._work, self._args = work, args
        self.future = future

    def do(self) -> None:
        future = self.future
        if future.done():
            return
        try:
            result = self._work(*self._args)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def cancel(self) -> None:
        self.future.cancel()


class SimulatedThreads(Executor):
    """So many threads of a process."""

    def __init__(self, process: Process, count: int, name: str) -> None:
        self._process = process
        self._count = count
        self._last_end_s = 0.0
        self._jobs: dict[Job | Awaited, None] = {}

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        job = Job(lambda: work(*args, **named))
        self._begin(job)
        return job

    def result_of(self, work: Callable[..., Any], args: tuple[Any, ...]) -> asyncio.Future[Any]:
        """The same for an event loop, which waits for the result."""
        job = Awaited(work, args, self._process.machine.world.loop.create_future())
        self._begin(job)
        return job.future

    def _begin(self, job: Job | Awaited) -> None:
        process = self._process
        loop = process.machine.world.loop
        end_s = loop.time() + process.machine.work_time_s()
        if self._count == 1:
            end_s = self._last_end_s = max(end_s, self._last_end_s)
        self._jobs[job] = None
        loop.deliver_at(end_s, self._do, (job,), process)

    def _do(self, job: Job | Awaited) -> None:
        self._jobs.pop(job, None)
        job.do()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        jobs, self._jobs = self._jobs, {}
        for job in jobs:
            if cancel_futures:
                job.cancel()
            elif wait:
                job.do()

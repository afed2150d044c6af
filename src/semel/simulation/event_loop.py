"""An asyncio event loop on virtual time: when nothing is ready, the clock jumps to the next timer.

Guarantees:

- Deterministic: callbacks run in the order in which they were scheduled, timers in the order of their times and then of
  their creation. The loop reads no clock, opens no socket and starts no thread.
- Every callback belongs to a process, which its context says. The callbacks of a dead process are never run, and those
  of a paused one are kept until it goes on.
- A program that never lets time pass is stopped (`BusyLoop`), and so is one in which nothing can ever happen again
  (`NothingHappens`).
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from semel.simulation.threads import SimulatedThreads

if TYPE_CHECKING:
    from semel.simulation.machines import Process
    from semel.simulation.network import Network

#: So many callbacks at one moment are no program, but a loop that never ends.
CALLBACKS_AT_ONE_MOMENT = 200_000
#: When the virtual time begins, as a clock that nobody sets would say: not 0, so that 0 is seen as a mistake.
BEGINS_AT_S = 1_000.0

#: The process that a callback belongs to; None for the world itself.
PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("PROCESS", default=None)


class NothingHappens(Exception):
    """Everybody waits, and nothing is left that could wake anybody."""


class BusyLoop(Exception):
    """Callbacks call each other, and time does not pass."""


class Handle:
    """A callback that is due. asyncio's own does more than is needed here, and takes twice the time: this one has not
    even an `__init__`, because a call of that takes longer than all the rest."""

    __slots__ = ("_args", "_callback", "_context")
    #: None once it was cancelled.
    _callback: Callable[..., Any] | None
    _args: tuple[Any, ...]
    _context: contextvars.Context

    def cancel(self) -> None:
        self._callback = None

    def cancelled(self) -> bool:
        return self._callback is None


class Timer(Handle):
    """A callback that is due at some time."""

    __slots__ = ("_loop", "_when")
    _when: float
    _loop: VirtualTimeLoop

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        if self._callback is not None:
            self._callback = None
            loop = self._loop
            loop._cancelled_timers = count = loop._cancelled_timers + 1
            if count > 500 and count * 2 > len(loop._timers):
                loop.forget_cancelled_timers()


@contextmanager
def interrupted_between_callbacks() -> Iterator[None]:
    """Ctrl-C ends a world between two callbacks: in the middle of one, what runs in the world would take it for its own
    failure. Whoever runs the loop looks at `was_interrupted`. The second Ctrl-C ends anything anywhere."""

    def interrupt(*_: object) -> None:
        loop = asyncio._get_running_loop()
        if not isinstance(loop, VirtualTimeLoop) or loop.was_interrupted:
            raise KeyboardInterrupt
        loop.was_interrupted = True
        loop.stop()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def without_a_list_of_tasks() -> Iterator[None]:
    """Every task is noted in a set of weak references, for `asyncio.all_tasks`, which nobody asks in a world: each
    process knows its own. The set costs more than the rest of a task."""
    tasks = getattr(asyncio.tasks, "_scheduled_tasks", None) or getattr(asyncio.tasks, "_all_tasks", None)
    if not isinstance(tasks, WeakSet):
        yield
        return
    tasks.add = _ignore  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del tasks.add


def _ignore(task: object) -> None:
    """Nobody asks."""


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """The loop of one world. Everything in it runs here: brokers, clients, faults and checkers."""

    def __init__(self) -> None:
        super().__init__()
        self._ready: deque[Any]
        self._stopping: bool
        self._now = BEGINS_AT_S
        self._timers: list[tuple[float, int, Handle]] = []
        self._cancelled_timers = 0
        self._number = 0
        #: How many callbacks were run, and how many of them since the clock last moved.
        self.callbacks = 0
        self._at_this_moment = 0
        #: Whose callback is being run.
        self._running: Process | None = None
        #: Whether somebody at the terminal wants it to end.
        self.was_interrupted = False
        self.network: Network
        #: Called with what a callback raised, and the process it belongs to.
        self.on_failure: Callable[[Process | None, dict[str, Any]], None] = lambda process, context: None

    # Time

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        timer = Timer()
        timer._callback, timer._args = callback, args
        timer._context = copy_context() if context is None else context
        timer._when, timer._loop = when, self
        self._number = number = self._number + 1
        heappush(self._timers, (when, number, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def deliver_at(self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], process: Process) -> None:
        """Call something in a process at a time. Nobody can cancel it."""
        handle = Handle()
        handle._callback, handle._args, handle._context = callback, args, process.context.copy()
        self._number = number = self._number + 1
        heappush(self._timers, (when, number, handle))

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = Handle()
        handle._callback, handle._args = callback, args
        handle._context = copy_context() if context is None else context
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_soon(callback, *args, context=context)

    def forget_cancelled_timers(self) -> None:
        """Leave out timers that were cancelled. Called once they are many."""
        self._timers[:] = [entry for entry in self._timers if entry[2]._callback is not None]
        heapify(self._timers)
        self._cancelled_timers = 0

    def _run_once(self) -> None:
        """Run until the loop is stopped. asyncio would ask after every turn; here it is asked inside."""
        ready, timers, get_process = self._ready, self._timers, PROCESS
        popleft, due = ready.popleft, ready.append
        while not self._stopping:
            if not ready:
                while timers and timers[0][2]._callback is None:
                    heappop(timers)
                if not timers:
                    raise NothingHappens("everybody waits for something that nobody will do")
                if timers[0][0] > self._now:
                    self._now = timers[0][0]
                    self._at_this_moment = 0
            now = self._now
            while timers and timers[0][0] <= now:
                timer = heappop(timers)[2]
                if timer._callback is not None:
                    due(timer)
            count = len(ready)
            self.callbacks += count
            self._at_this_moment += count
            while count:
                count -= 1
                handle = popleft()
                callback = handle._callback
                if callback is None:
                    continue
                context = handle._context
                process = context.get(get_process)
                if process is not None and not process.runs:
                    process.missed(handle)
                    continue
                self._running = process
                try:
                    context.run(callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    what = f"Exception in callback {getattr(callback, '__qualname__', callback)}"
                    self.call_exception_handler({"message": what, "exception": error})
            if self._at_this_moment > CALLBACKS_AT_ONE_MOMENT:
                raise BusyLoop(f"{self._at_this_moment} callbacks, and the time is still {now}")

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("this loop has no sockets")

    def _write_to_self(self) -> None:
        """There is nobody to wake: everything runs on this thread."""

    # Failures

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Each process has its own handler, as each has its own loop outside of the simulation."""
        process = self._running
        if process is not None and not process.is_alive:
            return
        self.on_failure(process, context)
        if process is not None and process.exception_handler is not None:
            process.context.copy().run(process.exception_handler, self, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """`on_failure` was told already."""

    def set_exception_handler(self, handler: Any) -> None:
        process = PROCESS.get()
        if process is not None:
            process.exception_handler = handler

    # What tasks and futures are made of

    #: Asked for every future and task: no.
    get_debug = bool

    def create_future(self) -> asyncio.Future[Any]:
        future = NumberedFuture(loop=self)
        self._number = future.number = self._number + 1
        return future

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        return NumberedTask(self, coro, name=name, context=context)

    def next_number(self) -> int:
        self._number += 1
        return self._number

    # Threads and sockets

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        if executor is None:
            process = PROCESS.get()
            assert process is not None, "a thread belongs to a process"
            executor = process.default_threads
        if isinstance(executor, SimulatedThreads):
            return executor.result_of(func, args)
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> tuple[Any, Any]:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str | None, port: int, **options: Any
    ) -> Any:
        return self.network.listen(protocol_factory, port, is_serving=options.get("start_serving", True))


class NumberedFuture(asyncio.Future):  # type: ignore[type-arg]
    """A future whose hash is its number: sets of futures have the same order in every run."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class NumberedTask(asyncio.Task):  # type: ignore[type-arg]
    """The same for tasks. It also tells its process, which closes its coroutines when it dies."""

    __slots__ = ("number",)
    number: int

    def __init__(self, loop: VirtualTimeLoop, coroutine: Any, **options: Any) -> None:
        loop._number = self.number = loop._number + 1
        if options["name"] is None:
            options["name"] = ""  # to make one up takes a while, and nobody reads it
        super().__init__(coroutine, loop=loop, **options)
        process = PROCESS.get()
        if process is not None:
            process.began(self)

    def __hash__(self) -> int:
        return self.number

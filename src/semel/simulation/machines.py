"""Machines and the processes on them.

A machine has a disk, a wall clock that may be wrong, and an address in the network. A process runs on it: a broker or a
client. A process ends by itself, is killed (its files stay as they are), or loses its machine (power loss: what was
not synced may be gone).
"""

from __future__ import annotations

import contextvars
import random
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from semel.client.forking import Origin
from semel.environment import Environment
from semel.simulation.disk import Disk, ProcessDied, SimulatedFiles
from semel.simulation.event_loop import PROCESS, NumberedTask
from semel.simulation.threads import SimulatedThreads

if TYPE_CHECKING:
    import asyncio

    from semel.simulation.connections import Transport
    from semel.simulation.network import Server
    from semel.simulation.world import World

#: What a wall clock shows when the virtual time begins: 14 November 2023.
EPOCH_MS = 1_700_000_000_000


class Machine:
    """One machine: it outlives its processes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self._loop = world.loop
        self.name = name
        self.chance = random.Random(f"{world.seed} machine {name}")
        self.is_up = True
        #: How wrong its clock is.
        self.clock_error_ms = 0
        #: How fast it ever was.
        self.fastest_error_ms = 0
        self.boots = 1
        self.disk = Disk(self)
        #: How much longer than usual the disk and its threads take.
        self.slowness = 1.0
        self.processes: list[Process] = []

    def now_ms(self) -> int:
        """What its wall clock shows."""
        return EPOCH_MS + self.clock_error_ms + int(self._loop._now * 1000)

    def steady_ms(self) -> int:
        """What its clock shows that nobody sets."""
        return int(self._loop._now * 1000)

    def work_time_s(self) -> float:
        """How long a thread takes for a piece of work."""
        return (0.0001 + 0.002 * self.chance.random() ** 3) * self.slowness

    def lose_power(self) -> None:
        """Everything that runs is gone, nobody is told, and the disk keeps what was synced and some of the rest."""
        self.is_up = False
        for process in tuple(self.processes):
            process.die(told=False)
        self.disk.lose_power()
        self.world.network.lost_power(self)
        self.world.trace.note("power", self.name)

    def boot(self) -> None:
        """The power is back."""
        self.is_up = True
        self.boots += 1
        self.world.network.came_back(self)
        self.world.trace.note("boot", self.name)


class Process:
    """One process from its start to its end. A restart makes a new one."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.name = name
        self.is_alive = True
        self.is_paused = False
        #: Whether its callbacks are run.
        self.runs = True
        world = machine.world
        self.number = world.next_process_number()
        chance = self.chance = random.Random(f"{world.seed} {name} {self.number}")
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)
        self.exception_handler: Any = None
        #: Its tasks. Those that are done are left out when there are many.
        self.tasks: list[NumberedTask] = []
        self._many_tasks = 32
        self.servers: list[Server] = []
        self.transports: dict[int, Transport] = {}
        self._missed: list[Any] = []
        #: Of the clients that were made in it.
        self.origins: list[Origin] = []
        #: Called when it is killed.
        self.on_death: list[Callable[[], None]] = []
        self._work_s = 0.0
        self.environment = Environment(
            now_ms=machine.now_ms,
            steady_ms=machine.steady_ms,
            work_clock_s=self._work_clock_s,
            work_clock_ns=lambda: int(self._work_clock_s() * 1e9),
            chance=chance,
            new_uuid=lambda: uuid.UUID(int=chance.getrandbits(128), version=4),
            threads=self.new_threads,
        )
        self.files = SimulatedFiles(machine.disk, self)
        self.default_threads = SimulatedThreads(self, 8, "default")
        machine.processes.append(self)

    def new_threads(self, count: int, name: str) -> SimulatedThreads:
        return SimulatedThreads(self, count, name)

    def _work_clock_s(self) -> float:
        """Work takes no virtual time. This clock says that it took some, so that turns of the loop end."""
        self._work_s += 0.00005 if self.chance.random() < 0.98 else 0.006
        return self._work_s

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task of this process."""
        return self.context.copy().run(self.machine.world.loop.create_task, coroutine)

    async def result_of(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine returns that runs in this process; for the world. `ProcessDied` if the process dies."""
        end = self.machine.world.loop.create_future()

        def done(_: object = None) -> None:
            if not end.done():
                end.set_result(None)

        self.on_death.append(done)
        task = self.spawn(coroutine)
        task.add_done_callback(done, context=contextvars.copy_context())
        await end
        if not task.done():
            raise ProcessDied
        if done in self.on_death:
            self.on_death.remove(done)
        return task.result()

    def began(self, task: NumberedTask) -> None:
        """One of its tasks begins."""
        self.tasks.append(task)
        if len(self.tasks) > self._many_tasks:
            self._forget_done_tasks()
            self._many_tasks = 32 + 2 * len(self.tasks)

    def _forget_done_tasks(self) -> None:
        """Let go of tasks that are done. asyncio tells now of those whose failure nobody has asked for."""
        self.tasks = [one for one in self.tasks if not one.done()]

    def missed(self, handle: Any) -> None:
        """One of its callbacks was due while it did not run."""
        if self.is_paused and self.is_alive:
            self._missed.append(handle)

    def pause(self) -> None:
        """Stop it, as SIGSTOP does, or a garbage collector: its connections stay open, and time passes."""
        if self.is_alive:
            self.is_paused, self.runs = True, False

    def go_on(self) -> None:
        """Let it go on: everything that was due meanwhile is due now."""
        if not self.is_paused:
            return
        self.is_paused, self.runs = False, self.is_alive
        missed, self._missed = self._missed, []
        self.machine.world.loop._ready.extend(missed)

    def die(self, *, told: bool = True) -> None:
        """Kill it at this moment. With `told` the system closes its connections, so the others learn of it."""
        if not self.is_alive:
            return
        self._forget_done_tasks()
        self.is_alive = self.runs = self.is_paused = False
        self._missed.clear()
        self.machine.processes.remove(self)
        self.machine.world.trace.note("dies", self.name)
        self.files.die()
        for server in tuple(self.servers):
            server.close()
        for transport in tuple(self.transports.values()):
            transport.process_died(told=told)
        # Their `finally` blocks run now and here, where they can change nothing any more. They may begin other tasks.
        while self.tasks:
            tasks, self.tasks = self.tasks, []
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _forgive_gathered(task)
                self.context.copy().run(_close, task.get_coro())
        for origin in self.origins:
            origin.lost = True  # else the world, which drops its clients, would have them end themselves
        callbacks, self.on_death = self.on_death, []
        for callback in callbacks:
            callback()


def _forgive_gathered(task: Any) -> None:
    """Ask for the outcomes that a task was waiting for in an `asyncio.gather`, which asks when it has all of them."""
    for one in getattr(task._fut_waiter, "_children", ()):
        if one.done() and not one.cancelled():
            one.exception()


def _close(coroutine: Any) -> None:
    """End a coroutine now. One that waits in a `finally` block goes on to its next one."""
    for _ in range(100):
        try:
            coroutine.close()
            return
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                return
        except BaseException:
            return

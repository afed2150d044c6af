"""What breaks. One file for each part of the world; `FAULTS` has the kinds by name.

A fault is a coroutine that is called with the play and a source of chance. It breaks something, waits, and repairs it.
A plan has a list of strikes, each with its moment and its own seed, so that a shorter list can be tried.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.simulation.play import Play

Fault = Callable[["Play", random.Random], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault."""

    name: str
    run: Fault
    #: How often it is drawn, beside the others.
    weight: float = 1.0
    #: Whether it may lose what was written and not fsynced: then only `semel.durability=fsync` promises anything.
    loses_unsynced: bool = False
    #: Whether it strikes one broker, and brokers of a cluster.
    alone: bool = True
    in_a_cluster: bool = True

    def may_strike(self, brokers: int, durability: str) -> bool:
        """Whether what is promised then survives it."""
        if brokers > 1:
            return self.in_a_cluster
        return self.alone and (durability == "fsync" or not self.loses_unsynced)


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault at one moment."""

    at_s: float
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.at_s:.3f}:{self.kind}:{self.seed}"

    @classmethod
    def parse(cls, text: str) -> Strike:
        at_s, kind, seed = text.split(":")
        if kind not in FAULTS:
            raise ValueError(f"there is no fault {kind!r}")
        return cls(float(at_s), kind, int(seed))


FAULTS: dict[str, Kind] = {}


def fault(
    name: str,
    *,
    weight: float = 1.0,
    loses_unsynced: bool = False,
    alone: bool = True,
    in_a_cluster: bool = True,
) -> Callable[[Fault], Fault]:
    """Register a kind of fault under this name."""

    def register(run: Fault) -> Fault:
        FAULTS[name] = Kind(name, run, weight, loses_unsynced, alone, in_a_cluster)
        return run

    return register


async def strike(play: Play, begin_s: float, one: Strike) -> None:
    """Wait for the moment of a strike, and let it happen."""
    await asyncio.sleep(max(0.0, begin_s + one.at_s - play.world.loop.time()))
    play.struck[one.kind] += 1
    play.world.trace.note("fault", str(one))
    await FAULTS[one.kind].run(play, random.Random(one.seed))


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

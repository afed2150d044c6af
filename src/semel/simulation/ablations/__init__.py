"""Takes safeguards away, one at a time, and looks how many seeds it takes to notice.

A safeguard that no seed needs is not needed, or the simulation is blind for what it guards against. The safeguards are
removed from here, by patches; the product has no switch for any of them.

    python -m semel.simulation.ablations [name ...] [--seeds 1000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from semel.simulation.runs import command, draw_plan, run

#: Within so many seeds each must be noticed.
SEEDS = 1_000


_NOT_THERE = object()


class Patch:
    """Changes attributes, and puts them back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any, *, of_instances: bool = False) -> None:
        """`of_instances`: the instances have it, and their class does not."""
        if not of_instances and not hasattr(owner, name):
            raise AttributeError(f"{owner} has no {name}: what was removed before is elsewhere now")
        self._before.append((owner, name, owner.__dict__.get(name, _NOT_THERE)))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._before:
            owner, name, before = self._before.pop()
            if before is _NOT_THERE:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


Remove = Callable[[Patch], None]


@dataclass(frozen=True, slots=True)
class Ablation:
    """A safeguard, and where its absence is noticed."""

    name: str
    remove: Remove
    workloads: tuple[str, ...]
    faults: tuple[str, ...] = ()
    durability: str | None = None
    duration_s: float = 10.0
    #: Why no seed notices, where that is known: usually another safeguard stands behind this one.
    unseen_because: str = ""
    brokers: int = 1
    faults_per_minute: float = 40


ABLATIONS: dict[str, Ablation] = {}


def ablation(
    name: str,
    *workloads: str,
    faults: tuple[str, ...] = (),
    durability: str | None = None,
    duration_s: float = 10.0,
    unseen_because: str = "",
    brokers: int = 1,
    faults_per_minute: float = 40,
) -> Callable[[Remove], Remove]:
    """Register a safeguard by the function that removes it."""

    def register(remove: Remove) -> Remove:
        ABLATIONS[name] = Ablation(
            name, remove, workloads, faults, durability, duration_s, unseen_because, brokers, faults_per_minute
        )
        return remove

    return register


@contextmanager
def removed(name: str) -> Iterator[None]:
    """Without this safeguard."""
    patch = Patch()
    try:
        ABLATIONS[name].remove(patch)
        yield
    finally:
        patch.undo()


def nothing(*_: Any, **__: Any) -> None:
    """In place of a check."""


KILLS = ("broker killed", "client killed", "lost answers")
LATE = ("repeated requests", "lost answers", "client paused")
POWER = ("power lost", "slow disk")
DISK = ("I/O error once", "disk full", "killed while writing")
GROUPS = ("client killed", "client paused", "broker killed", "lost answers")


@dataclass(frozen=True, slots=True)
class Caught:
    """How an ablation was noticed."""

    seed: int
    what: str
    command: str


def look_for(name: str, seeds: int = SEEDS, first: int = 0) -> Caught | None:
    """Play seeds without a safeguard until one fails."""
    found = ABLATIONS[name]
    with removed(name):
        for seed in range(first, first + seeds):
            plan = draw_plan(
                seed,
                workloads=found.workloads,
                faults=found.faults,
                durability=found.durability,
                duration_s=found.duration_s,
                faults_per_minute=found.faults_per_minute,
                brokers=found.brokers,
            )
            if violations := run(plan).violations:
                return Caught(seed, violations[0], command(plan))
    return None


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    names = options.names or list(ABLATIONS)
    missed = unseen = 0
    for name in names:
        began = time.process_time()
        # Those that nobody is expected to notice get a few seeds, in case that has changed.
        caught = look_for(name, min(options.seeds, 10) if ABLATIONS[name].unseen_because else options.seeds)
        took_s = time.process_time() - began
        if caught is None and ABLATIONS[name].unseen_because:
            unseen += 1
            print(f"not seen   {name}: {ABLATIONS[name].unseen_because} ({took_s:.0f} CPU s)", flush=True)
        elif caught is None:
            missed += 1
            print(f"NOT CAUGHT {name}: {options.seeds} seeds ({took_s:.0f} CPU s)", flush=True)
        else:
            print(f"seed {caught.seed:>4}  {name}: {caught.what[:140]} ({took_s:.1f} CPU s)", flush=True)
    print(f"{len(names) - missed - unseen} of {len(names)} safeguards are missed when they are removed")
    return 1 if missed else 0


for _module in iter_modules(__path__):
    if _module.name != "__main__":
        import_module(f"{__name__}.{_module.name}")

"""`semel simulate`: the real broker and clients in a simulated world, seed after seed, with faults and checks."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from semel.simulation.faults import Strike
    from semel.simulation.play import Plan
    from semel.simulation.runs import Result
    from semel.simulation.seeds import Played

#: The exit code of a command that Ctrl-C ended: 1 would say that a seed failed.
_INTERRUPTED = 130


class _Number(click.FloatRange):
    """A float that is a number: click takes "nan" for one that is in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not a number.", param, ctx)
        return number


_POSITIVE = _Number(0, min_open=True)


@click.command()
@click.option("--seed", type=click.IntRange(0), help="Play this seed only.")
@click.option("--seeds", help="Play these seeds: FIRST..LAST, the last one too.  [default: 0..100]")
@click.option("--hours", type=_POSITIVE, help="Play seeds until so many simulated hours are over, and all of --seeds.")
@click.option(
    "--duration", type=_Number(0, 100_000, min_open=True), default=20.0, show_default=True,
    help="How long a seed has faults, in simulated seconds.",
)
@click.option("--workload", "workloads", multiple=True, help="Play this workload; several may be given.")
@click.option("--fault", "faults", multiple=True, help="Let only faults of this kind strike; several may be given.")
@click.option(
    "--faults-per-minute", type=_Number(0, 6_000), default=18.0, show_default=True,
    help="How often faults strike; 0 is never.",
)
@click.option("--durability", type=click.Choice(["os", "fsync"]), help="semel.durability; by default the seed decides.")
@click.option("--strikes", help="Exactly these faults, as a failure prints them.")
@click.option("--brokers", type=click.IntRange(1, 9), default=1, show_default=True, help="How many brokers.")
@click.option("--no-shrink", is_flag=True, help="Do not look for the smallest set of faults that still fails.")
@click.option("--coverage", is_flag=True, help="Name the kinds of faults and the cells of state tables never taken.")
@click.option("--replays", type=click.IntRange(0), default=0, help="Play each seed again so often, and compare.")
@click.option("--processes", type=click.IntRange(1), help="How many seeds at the same time; by default one per core.")
@click.pass_context
def simulate(
    context: click.Context,
    seed: int | None,
    seeds: str | None,
    hours: float | None,
    duration: float,
    workloads: tuple[str, ...],
    faults: tuple[str, ...],
    faults_per_minute: float,
    durability: str | None,
    strikes: str | None,
    brokers: int,
    no_shrink: bool,
    coverage: bool,
    replays: int,
    processes: int | None,
) -> None:
    """Run brokers and clients in a simulated world with faults.

    They are the real ones, on virtual time. A seed decides what happens, and everything is checked. A failure prints
    one line that plays it again; the exit code is 1 then. Ctrl-C ends it with
    what was played so far, and exit code 130.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of names would be another one in every process.
        os.execve(sys.executable, [sys.executable, "-m", "semel", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    from semel.simulation.event_loop import interrupted_between_callbacks
    from semel.simulation.runs import draw_plan
    from semel.simulation.seeds import play_all

    first, last = _seeds(seed, seeds, hours)
    only = _strikes(strikes, duration, faults)
    _check(workloads, faults, only or (), brokers, durability)
    tally = _Tally(seed is not None, replays, not no_shrink)

    def plans() -> Iterator[Plan]:
        # What is simulated meanwhile decides whether there is a next one.
        number = first
        while number <= last or (hours is not None and tally.simulated_s < hours * 3600):
            plan = draw_plan(
                number,
                workloads=workloads,
                duration_s=duration,
                durability=durability,
                faults=faults,
                faults_per_minute=faults_per_minute,
                brokers=brokers,
            )
            if only is not None:
                plan.strikes = only
            yield plan
            number += 1

    at_once = processes or (1 if first == last and hours is None else len(os.sched_getaffinity(0)))
    interrupted = False
    try:
        with (
            interrupted_between_callbacks(),
            closing(_all_played(play_all(plans(), processes=at_once, replays=replays))) as coming,
        ):
            for one in coming:
                tally.add(one)
    except KeyboardInterrupt:
        interrupted = True
        # What is thrown away was in the middle of something.
        warnings.simplefilter("ignore")
        sys.unraisablehook = lambda problem: None
        click.echo("interrupted; played until then:", err=True)
    tally.show()
    if coverage:
        tally.show_coverage(brokers, durability)
    if interrupted or tally.failures:
        context.exit(_INTERRUPTED if interrupted else 1)


@dataclass(slots=True)
class _Tally:
    """Counts what was played, and tells of it."""

    is_one_seed: bool
    replays: int
    shrinks: bool
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    played: int = 0
    requests: int = 0
    failures: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    cells: set[tuple[str, str, str]] = field(default_factory=set)
    began: float = field(default_factory=time.monotonic)
    shown: float = 0.0

    def add(self, one: Played) -> None:
        result = one.result
        self.cells |= one.cells
        self.played += 1
        self.simulated_s += result.simulated_s
        self.cpu_s += result.cpu_s
        self.requests += result.requests
        self.struck += result.struck
        plan = result.plan
        if result.violations or not one.repeats:
            self.failures += 1
            self._tell_failure(one, result)
        elif self.is_one_seed:
            played = ", ".join(plan.workloads)
            click.echo(f"seed {plan.seed} ok: {played}, {plan.durability}, trace {result.trace_hash}")
        if time.monotonic() - self.shown > 5 and not self.is_one_seed:
            self.shown = time.monotonic()
            click.echo(
                f"{self._seeds}, {self.failures} failed, {self.simulated_s / 3600:.2f} simulated hours, "
                f"{self._speed:.0f} simulated seconds per CPU second"
            )

    def _tell_failure(self, one: Played, result: Result) -> None:
        from semel.simulation.runs import command, shrink

        plan = result.plan
        click.echo(f"seed {plan.seed} FAILED after {result.simulated_s:.1f} simulated seconds:")
        for what in result.violations[:10]:
            click.echo(f"  {what}")
        if len(result.violations) > 10:
            click.echo(f"  and {len(result.violations) - 10} more")
        if not one.repeats:
            click.echo(f"  a replay was different: the trace was {result.trace_hash} and {one.other_trace}")
        again = command(plan) + (f" --replays {self.replays}" if not one.repeats else "")
        click.echo(f"  again:  {again}")
        if self.shrinks and result.violations and one.repeats and plan.strikes:
            smallest = shrink(plan)
            if len(smallest.strikes) < len(plan.strikes):
                click.echo(f"  with {len(smallest.strikes)} of {len(plan.strikes)} faults:")
                click.echo(f"          {command(smallest)}")
            else:
                click.echo("  no fault can be left out")

    @property
    def _seeds(self) -> str:
        return "1 seed" if self.played == 1 else f"{self.played} seeds"

    @property
    def _speed(self) -> float:
        return self.simulated_s / max(self.cpu_s, 0.001)

    def show(self) -> None:
        click.echo(
            f"{self._seeds}, {self.failures} failed; {self.simulated_s / 3600:.2f} simulated hours in "
            f"{self.cpu_s:.0f} CPU seconds and {time.monotonic() - self.began:.0f} seconds: {self._speed:.0f} "
            f"simulated per CPU second, {self.requests / max(self.simulated_s, 0.001):.0f} requests per simulated "
            "second"
        )
        struck = ", ".join(f"{kind} {count}" for kind, count in sorted(self.struck.items()))
        click.echo(f"faults: {struck or 'none'}")

    def show_coverage(self, brokers: int, durability: str | None) -> None:
        from semel.simulation.coverage import Coverage
        from semel.simulation.faults import FAULTS

        possible = {kind.name for kind in FAULTS.values() if kind.may_strike(brokers, durability or "fsync")}
        click.echo(f"kinds of faults that never struck: {', '.join(sorted(possible - self.struck.keys())) or 'none'}")
        covered = Coverage()
        covered.add(self.cells)
        for line in covered.report():
            click.echo(line)


def _all_played(coming: Generator[Played, None, None]) -> Generator[Played, None, None]:
    from concurrent.futures.process import BrokenProcessPool

    try:
        yield from coming  # which is closed with this one
    except BrokenProcessPool:
        raise click.ClickException(
            "a process that played seeds was killed, perhaps for want of memory. The seeds that were not told of are "
            "not played; --processes says how many processes there are"
        ) from None


def _seeds(seed: int | None, seeds: str | None, hours: float | None) -> tuple[int, int]:
    """The first seed and the last. Where hours decide alone, the last one is before the first."""
    if seed is not None:
        if seeds is not None or hours is not None:
            raise click.UsageError(f"--seed plays one seed: leave {'--hours' if seeds is None else '--seeds'} out")
        return seed, seed
    if seeds is None:
        return (0, -1) if hours is not None else (0, 100)
    first, dots, last = seeds.partition("..")
    # A range without a seed would end well and prove nothing.
    if not (first.isdecimal() and (last.isdecimal() or not dots)) or int(last or first) < int(first):
        raise click.UsageError(f"--seeds {seeds}: write FIRST..LAST, such as 0..999")
    return int(first), int(last or first)


def _strikes(text: str | None, duration_s: float, faults: Sequence[str]) -> list[Strike] | None:
    from semel.simulation.runs import parse_strikes

    if text is None:
        return None
    if faults:
        raise click.UsageError("--strikes says which faults there are: leave --fault out")
    try:
        strikes = parse_strikes(text)
    except ValueError as error:
        why = f"--strikes {text!r}: {error}; write SECONDS:FAULT:SEED, as a failure prints it, with a space between two"
        raise click.UsageError(why) from None
    for one in strikes:
        if not 0 <= one.at_s <= duration_s:
            raise click.UsageError(f"--strikes: {one} is not between 0 and the {duration_s:g} s of --duration")
    return strikes


def _check(
    workloads: Sequence[str], faults: Sequence[str], strikes: Sequence[Strike], brokers: int, durability: str | None
) -> None:
    """Refuse what would be played in the wrong world: it would fail without cause, or do nothing."""
    from semel.simulation.faults import FAULTS
    from semel.simulation.workloads import WORKLOADS

    for name in workloads:
        if name not in WORKLOADS:
            raise click.UsageError(f"there is no workload {name!r}; there are: {', '.join(sorted(WORKLOADS))}")
        if not (WORKLOADS[name].in_a_cluster if brokers > 1 else WORKLOADS[name].alone):
            raise click.UsageError(f"the workload {name!r} is not played with {_brokers(brokers)}")
    for name in (*faults, *(one.kind for one in strikes)):
        if name not in FAULTS:
            raise click.UsageError(f"there is no fault {name!r}; there are: {', '.join(sorted(FAULTS))}")
        if not FAULTS[name].may_strike(brokers, "fsync"):
            raise click.UsageError(f"the fault {name!r} does not strike {_brokers(brokers)}")
        if not FAULTS[name].may_strike(brokers, durability or "fsync"):
            raise click.UsageError(
                f"the fault {name!r} takes what was not fsynced, which only --durability fsync promises to keep"
            )


def _brokers(count: int) -> str:
    return "one broker (--brokers 3 is a cluster)" if count == 1 else "a cluster (--brokers 1 is one broker)"

"""`semel simulate`: the real broker and clients in a simulated world, seed after seed, with faults and checks."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from semel.simulation.play import Plan
    from semel.simulation.seeds import Played

_POSITIVE = click.FloatRange(0, min_open=True)


@click.command()
@click.option("--seed", type=int, help="Play this seed only.")
@click.option("--seeds", default="0..100", show_default=True, help="Play these seeds: FIRST..LAST, the last one too.")
@click.option("--hours", type=_POSITIVE, help="Go on with further seeds until so many simulated hours are over.")
@click.option("--duration", type=_POSITIVE, default=20.0, show_default=True, help="Simulated seconds per seed.")
@click.option("--workload", "workloads", multiple=True, help="Play this workload; several may be given.")
@click.option("--fault", "faults", multiple=True, help="Let only faults of this kind strike; several may be given.")
@click.option("--faults-per-minute", type=_POSITIVE, default=18.0, show_default=True, help="How often faults strike.")
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
    seeds: str,
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
    one line that plays it again; the exit code is 1 then.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of names would be another one in every process.
        os.execve(sys.executable, [sys.executable, "-m", "semel", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    from semel.simulation.coverage import Coverage
    from semel.simulation.faults import FAULTS, Strike
    from semel.simulation.runs import FAULTS_PER_MINUTE, command, draw_plan, shrink
    from semel.simulation.seeds import play_all
    from semel.simulation.workloads import WORKLOADS

    for given, known, what in ((workloads, WORKLOADS, "workload"), (faults, FAULTS, "fault")):
        for name in given:
            if name not in known:
                raise click.UsageError(f"there is no {what} {name!r}; there are: {', '.join(sorted(known))}")
    first, last = (seed, seed) if seed is not None else _range(seeds)
    began, shown = time.monotonic(), 0.0
    simulated_s = cpu_s = 0.0
    played = requests = failures = 0
    struck: Counter[str] = Counter()
    covered = Coverage()

    def plans() -> Iterator[Plan]:
        # What is simulated meanwhile decides whether there is a next one.
        number = first
        while number <= last or (hours is not None and simulated_s < hours * 3600):
            plan = draw_plan(
                number,
                workloads=workloads,
                duration_s=duration,
                durability=durability,
                faults=faults,
                faults_per_minute=faults_per_minute,
                brokers=brokers,
            )
            if strikes is not None:
                plan.strikes = [Strike.parse(text.replace("_", " ")) for text in strikes.split()]
            yield plan
            number += 1

    at_once = processes or (1 if first == last and hours is None else len(os.sched_getaffinity(0)))
    for one in _all_played(play_all(plans(), processes=at_once, replays=replays)):
        result = one.result
        plan, number = result.plan, result.plan.seed
        covered.add(one.cells)
        played += 1
        simulated_s += result.simulated_s
        cpu_s += result.cpu_s
        requests += result.requests
        struck += result.struck
        if result.violations:
            failures += 1
            click.echo(f"seed {number} FAILED after {result.simulated_s:.1f} simulated seconds:")
            for what in result.violations[:10]:
                click.echo(f"  {what}")
            # Without other options the seed draws the same faults again.
            is_drawn = strikes is None and not faults and faults_per_minute == FAULTS_PER_MINUTE
            click.echo(f"  again:  {command(plan, with_strikes=not is_drawn)}")
            if not no_shrink and len(plan.strikes) > 1:
                smallest = shrink(plan)
                click.echo(f"  with {len(smallest.strikes)} of {len(plan.strikes)} faults:")
                click.echo(f"          {command(smallest, with_strikes=True)}")
        elif seed is not None:
            click.echo(f"seed {number} ok: {', '.join(plan.workloads)}, {plan.durability}, trace {result.trace_hash}")
        if time.monotonic() - shown > 5 and seed is None:
            shown = time.monotonic()
            click.echo(
                f"{played} seeds, {failures} failed, {simulated_s / 3600:.2f} simulated hours, "
                f"{simulated_s / max(cpu_s, 0.001):.0f} simulated seconds per CPU second"
            )
    took_s = time.monotonic() - began
    click.echo(
        f"{played} seeds, {failures} failed; {simulated_s / 3600:.2f} simulated hours in {cpu_s:.0f} CPU seconds and "
        f"{took_s:.0f} seconds: {simulated_s / max(cpu_s, 0.001):.0f} simulated per CPU second, "
        f"{requests / max(simulated_s, 0.001):.0f} requests per simulated second"
    )
    click.echo("faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(struck.items())))
    if coverage:
        possible = {kind.name for kind in FAULTS.values() if kind.may_strike(brokers, durability or "fsync")}
        never = sorted(possible - struck.keys())
        click.echo(f"kinds of faults that never struck: {', '.join(never) or 'none'}")
        for line in covered.report():
            click.echo(line)
    if failures:
        context.exit(1)


def _all_played(coming: Iterator[Played]) -> Iterator[Played]:
    from concurrent.futures.process import BrokenProcessPool

    try:
        yield from coming
    except BrokenProcessPool:
        raise click.ClickException(
            "a process that played seeds was killed, perhaps for want of memory. The seeds that were not told of are "
            "not played; --processes says how many processes there are"
        ) from None


def _range(text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    # A range without a seed would end well and prove nothing.
    if not (first.isdecimal() and (last.isdecimal() or not dots)) or int(last or first) < int(first):
        raise click.UsageError(f"--seeds {text}: write FIRST..LAST, such as 0..999")
    return int(first), int(last or first)

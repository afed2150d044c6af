"""Plays seeds: draws the plan of a seed, runs it, says how to play it again, and shrinks the faults of a failure."""

from __future__ import annotations

import random
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from semel.simulation.event_loop import BEGINS_AT_S, BusyLoop, NothingHappens
from semel.simulation.faults import FAULTS, Strike
from semel.simulation.play import FAULTS_PER_MINUTE, Plan, Play
from semel.simulation.workloads import WORKLOADS

#: How long a seed's faults last, in virtual seconds, unless asked otherwise.
DURATION_S = 20.0


@dataclass(slots=True)
class Result:
    """What came of one seed."""

    plan: Plan
    violations: list[str]
    trace_hash: str
    last_events: list[str]
    simulated_s: float
    cpu_s: float
    callbacks: int
    requests: int
    struck: Counter[str]
    counts: Counter[str]

    @property
    def command(self) -> str:
        """The line that plays exactly this again."""
        return command(self.plan)


def command(plan: Plan) -> str:
    """The line that plays exactly this plan. The strikes are in it if the seed would draw others."""
    parts = ["semel simulate", f"--seed {plan.seed}", f"--duration {_number(plan.duration_s)}"]
    parts += [f"--workload {name}" for name in plan.workloads]
    parts.append(f"--durability {plan.durability}")
    if plan.brokers > 1:
        parts.append(f"--brokers {plan.brokers}")
    if _is_drawn(plan):
        parts += [f"--fault {shlex.quote(name)}" for name in plan.faults]
        if plan.faults_per_minute != FAULTS_PER_MINUTE:
            parts.append(f"--faults-per-minute {_number(plan.faults_per_minute)}")
    else:
        text = " ".join(str(one).replace(" ", "_") for one in plan.strikes)
        parts.append(f"--strikes {shlex.quote(text)}")
    return " ".join(parts)


def parse_strikes(text: str) -> list[Strike]:
    """The strikes of such a line. A `ValueError` says what is wrong."""
    return [Strike.parse(one.replace("_", " ")) for one in text.split()]


def _is_drawn(plan: Plan) -> bool:
    again = draw_plan(
        plan.seed,
        workloads=plan.workloads,
        duration_s=plan.duration_s,
        durability=plan.durability,
        faults=plan.faults,
        faults_per_minute=plan.faults_per_minute,
        brokers=plan.brokers,
    )
    return again == plan


def _number(value: float) -> str:
    """As people write it, and not rounded."""
    return str(int(value)) if value == int(value) else repr(value)


def draw_plan(
    seed: int,
    *,
    workloads: Sequence[str] = (),
    duration_s: float = DURATION_S,
    durability: str | None = None,
    faults: Sequence[str] = (),
    faults_per_minute: float = FAULTS_PER_MINUTE,
    brokers: int = 1,
) -> Plan:
    """What a seed decides, apart from what was asked for.

    Faults that lose what was not fsynced decide for fsync: without it nothing is promised then.
    """
    chance = random.Random(f"plan {seed}")
    drawn_durability = "fsync" if chance.random() < 0.4 else "os"
    names = [name for name, kind in sorted(WORKLOADS.items()) if (kind.in_a_cluster if brokers > 1 else kind.alone)]
    drawn = tuple(sorted(chance.sample(names, min(len(names), chance.choice((1, 1, 2, 2, 3))))))
    if brokers == 1 and any(FAULTS[name].loses_unsynced for name in faults):
        drawn_durability = "fsync"
    durability = durability or drawn_durability
    played = tuple(dict.fromkeys(workloads)) or drawn
    kinds = [kind for kind in FAULTS.values() if kind.may_strike(brokers, durability)]
    # Each seed has its own few kinds: all of them at once would hide what two of them do together.
    chosen = chance.sample(kinds, chance.randint(1, min(6, len(kinds))))
    if faults:
        chosen = [FAULTS[name] for name in faults]
    strikes = []
    at_s = 0.0
    while faults_per_minute and (at_s := at_s + chance.expovariate(faults_per_minute / 60)) < duration_s:
        kind = chance.choices(chosen, [one.weight for one in chosen])[0]
        strikes.append(Strike(round(at_s, 3), kind.name, chance.getrandbits(32)))
    return Plan(seed, played, duration_s, durability, strikes, brokers, tuple(faults), faults_per_minute)


def run(plan: Plan) -> Result:
    """Play a plan to its end."""
    began = time.process_time()
    play = Play(plan)
    world = play.world
    try:
        play.run()
    except (BusyLoop, NothingHappens) as error:
        world.violations.append(f"{type(error).__name__}: {error}")
    except Exception as error:
        world.violations.append(f"the play ended: {type(error).__name__}: {error}")
    if world.loop.was_interrupted:
        raise KeyboardInterrupt
    return Result(
        plan,
        world.violations,
        world.trace.hash,
        world.trace.last(),
        world.loop.time() - BEGINS_AT_S,
        time.process_time() - began,
        world.loop.callbacks,
        world.network.requests,
        play.struck,
        play.counts,
    )


def shrink(plan: Plan, tries: int = 60) -> Plan:
    """A plan with fewer strikes that still fails."""
    strikes, size = list(plan.strikes), max(1, len(plan.strikes) // 2)
    while size >= 1 and tries > 0:
        position, is_smaller = 0, False
        while position < len(strikes) and tries > 0:
            shorter = strikes[:position] + strikes[position + size :]
            tries -= 1
            if run(replace(plan, strikes=shorter)).violations:
                strikes, is_smaller = shorter, True
            else:
                position += size
        if not is_smaller:
            size //= 2
    return replace(plan, strikes=strikes)

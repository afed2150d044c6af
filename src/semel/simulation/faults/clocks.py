"""Faults of wall clocks."""

from __future__ import annotations

import random

from semel.simulation.faults import fault
from semel.simulation.play import Play


@fault("clock jumps")
async def clock_jumps(play: Play, chance: random.Random) -> None:
    """The clock of the broker, or of a client, is set forward or back."""
    names = [actor.name for actor in play.actors] + [broker.machine.name for broker in play.brokers] * 3
    machine = play.world.machine(chance.choice(names))
    machine.clock_error_ms += chance.choice((-3_600_000, -5_000, -300, 300, 5_000, 20_000, 3_600_000))
    machine.fastest_error_ms = max(machine.fastest_error_ms, machine.clock_error_ms)

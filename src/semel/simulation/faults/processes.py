"""Faults of processes and machines."""

from __future__ import annotations

import asyncio
import random

from semel.simulation.faults import fault
from semel.simulation.play import Play


@fault("broker killed", weight=2)
async def broker_killed(play: Play, chance: random.Random) -> None:
    """kill -9, and a new start on what is left."""
    await play.restart_broker(lambda: play.broker.kill(), chance.uniform(0.05, 2))


@fault("broker restarted")
async def broker_restarted(play: Play, chance: random.Random) -> None:
    """A stop in order, and a new start."""
    await play.restart_broker(play.broker.stop, chance.uniform(0.05, 2))


@fault("broker paused")
async def broker_paused(play: Play, chance: random.Random) -> None:
    """The broker's process gets no time for a while."""
    process = play.broker.process
    if process is not None:
        process.pause()
        await asyncio.sleep(chance.choice((0.2, 2.0, 7.0)) * (0.5 + chance.random()))
        process.go_on()


@fault("power lost", weight=2, loses_unsynced=True)
async def power_lost(play: Play, chance: random.Random) -> None:
    """The broker's machine is off for a while, and what was not fsynced may be gone."""
    await play.restart_broker(lambda: play.broker.lose_power(), chance.uniform(0.2, 4))


@fault("client killed", weight=2)
async def client_killed(play: Play, chance: random.Random) -> None:
    """A client dies in the middle of whatever it does. Another life begins after a while."""
    if play.actors:
        chance.choice(play.actors).kill()


@fault("client paused", weight=2)
async def client_paused(play: Play, chance: random.Random) -> None:
    """A client gets no time for so long that others may have taken over."""
    actor = chance.choice(play.actors) if play.actors else None
    if actor is not None and actor.process is not None:
        process = actor.process
        process.pause()
        await asyncio.sleep(chance.choice((0.5, 5.0, 9.0, 15.0)) * (0.5 + chance.random()))
        process.go_on()


@fault("client vanished")
async def client_vanished(play: Play, chance: random.Random) -> None:
    """A client's machine loses its power: nobody is told, and its connections stay half open."""
    if play.actors:
        actor = chance.choice(play.actors)
        machine = play.world.machine(actor.name)
        machine.lose_power()
        await asyncio.sleep(chance.uniform(0.2, 5))
        if not machine.is_up:
            machine.boot()

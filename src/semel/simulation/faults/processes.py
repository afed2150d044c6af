"""Faults of processes and machines."""

from __future__ import annotations

import asyncio
import random

from semel.simulation.faults import fault
from semel.simulation.play import Play
from semel.simulation.world import BrokerNode


@fault("broker killed", weight=2)
async def broker_killed(play: Play, chance: random.Random) -> None:
    """kill -9, and a new start on what is left."""
    broker = play.a_broker(chance)
    await play.restart_broker(broker, broker.kill, chance.uniform(0.05, 2))


@fault("broker restarted")
async def broker_restarted(play: Play, chance: random.Random) -> None:
    """A stop in order, and a new start."""
    broker = play.a_broker(chance)
    await play.restart_broker(broker, broker.stop, chance.uniform(0.05, 2))


@fault("broker paused")
async def broker_paused(play: Play, chance: random.Random) -> None:
    """The broker's process gets no time for a while."""
    process = play.a_broker(chance).process
    if process is not None:
        process.pause()
        await asyncio.sleep(chance.choice((0.2, 2.0, 7.0)) * (0.5 + chance.random()))
        process.go_on()


@fault("power lost", weight=2, loses_unsynced=True)
async def power_lost(play: Play, chance: random.Random) -> None:
    """The broker's machine is off for a while, and what was not fsynced may be gone."""
    broker, off_s = play.a_broker(chance), chance.uniform(0.2, 4)
    if not play.is_cluster or play.plan.durability == "fsync":
        await play.restart_broker(broker, broker.lose_power, off_s)
        return
    await lose_power_of_one(play, broker, off_s)


async def lose_power_of_one(play: Play, broker: BrokerNode, off_s: float) -> None:
    """A machine of a cluster loses its power; where that is more than is promised, its process is killed."""
    # One machine at a time, and only while two replicas have all that is committed: more is not promised (F1).
    async with play.power_lock:
        is_safe = play.everything_is_safe()
        if is_safe:
            play.without_power.append(broker)
        play.counts["power lost" if is_safe else "killed in place of a power loss"] += 1
        await play.restart_broker(broker, broker.lose_power if is_safe else broker.kill, off_s)


@fault("power lost after a crash", loses_unsynced=True, in_a_cluster=False)
async def power_lost_after_a_crash(play: Play, chance: random.Random) -> None:
    """The broker dies while an fsync takes its time. A reader sees what is there after the restart; then it is dark."""
    broker, network = play.a_broker(chance), play.world.network
    machine = broker.machine
    machine.slowness = 500.0
    await asyncio.sleep(chance.uniform(0.1, 1))
    machine.slowness = 1.0
    # Some clients are away meanwhile: the next record to a partition would make everything before it safe as well.
    away = [actor.name for actor in play.actors if chance.random() < 0.6]
    for name in away:
        network.cut(name, machine.name)
    await play.restart_broker(broker, broker.kill, 0.05)
    await asyncio.sleep(chance.choice((0.1, 0.5, 1.0)))
    await play.restart_broker(broker, broker.lose_power, chance.uniform(0.2, 1))
    for name in away:
        network.heal(name, machine.name)


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

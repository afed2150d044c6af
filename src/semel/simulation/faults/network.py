"""Faults of the network."""

from __future__ import annotations

import asyncio
import random

from semel.simulation.faults import fault
from semel.simulation.play import Play


def _a_client(play: Play, chance: random.Random) -> str:
    return chance.choice([actor.name for actor in play.actors] or ["admin"])


@fault("slow network")
async def slow(play: Play, chance: random.Random) -> None:
    """Everything takes long, for a while."""
    conditions = play.world.network.conditions
    conditions.delay_s, conditions.spike_chance, conditions.spike_s = chance.uniform(0.005, 0.3), 0.2, 2.0
    await asyncio.sleep(chance.uniform(0.5, 6))
    conditions.reset()


@fault("pieces")
async def pieces(play: Play, chance: random.Random) -> None:
    """What is written at once arrives in pieces."""
    conditions = play.world.network.conditions
    conditions.split_chance = 0.8
    await asyncio.sleep(chance.uniform(0.5, 5))
    conditions.split_chance = 0.02


@fault("cut", weight=2)
async def cut(play: Play, chance: random.Random) -> None:
    """A client and the broker are cut off from each other: one way or both."""
    network, client, broker = play.world.network, _a_client(play, chance), play.a_broker(chance).machine.name
    ways = chance.choice([[(client, broker)], [(broker, client)], [(client, broker), (broker, client)]])
    for way in ways:
        network.cut(*way)
    await asyncio.sleep(chance.choice((0.1, 1.0, 4.0, 9.0)) * (0.5 + chance.random()))
    for way in ways:
        network.heal(*way)


@fault("reset", weight=2)
async def reset(play: Play, chance: random.Random) -> None:
    """Connections break: what was on its way is lost."""
    for connection in list(play.world.network.connections.values()):
        if chance.random() < 0.5:
            connection.reset()


@fault("lost answers", weight=3)
async def lost_answers(play: Play, chance: random.Random) -> None:
    """Requests arrive, and their answers do not."""
    connections = list(play.world.network.connections.values())
    for connection in chance.sample(connections, min(len(connections), chance.randint(1, 4))):
        connection.loses_answer = True
    await asyncio.sleep(chance.uniform(0.1, 2))
    for connection in connections:
        connection.loses_answer = False

"""What coordinators and leaders say to each other arrives late: after the one who said it is none any more (C3, C4).

By chance that is rare: such a request takes a millisecond. Here one connection stands still, as TCP does when packets
are lost, and what was sent arrives in the end.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from semel.machines.znodes import paths
from semel.simulation.connections import Transport
from semel.simulation.faults import fault
from semel.simulation.faults.clusters import expire
from semel.simulation.faults.in_sync_sets import TOO_LONG_S, a_place, until
from semel.simulation.faults.stalls import connections, go_on, stop
from semel.simulation.play import Play, registers
from semel.simulation.world import BrokerNode
from semel.wire.apis import ApiKey

in_a_cluster = partial(fault, alone=False)

TRANSACTIONS = "__transaction_state"
_MARKERS = int(ApiKey.WRITE_TXN_MARKERS).to_bytes(2, "big")


def _coordinators(play: Play) -> list[BrokerNode]:
    """Those who coordinate transactions."""
    folder = paths.topic(TRANSACTIONS) + "/"
    leaders = {state.leader for path, state in registers(play.world) if path.startswith(folder) and state.leader > 0}
    return [play.brokers[number - 1] for number in sorted(leaders)]


@in_a_cluster("markers arrive late", weight=0.5)
async def markers_arrive_late(play: Play, chance: random.Random) -> None:
    """A coordinator's markers are on their way to another broker while the coordinator is replaced."""
    coordinators = _coordinators(play)
    if not coordinators:
        return
    coordinator = chance.choice(coordinators)
    others = [broker for broker in play.brokers if broker is not coordinator]
    ends = [each.ends[0] for other in others for each in connections(play, coordinator, other)]
    for end in ends:
        stop(end)
    with_markers: list[Transport] = []
    for _ in range(400):
        with_markers = [end for end in ends if any(data and data[4:6] == _MARKERS for data in end.outgoing)]
        if with_markers:
            break
        await asyncio.sleep(0.005)
    for end in ends:
        if end not in with_markers:
            go_on(end)
    if with_markers:
        expire(play, coordinator)
        await asyncio.sleep(chance.uniform(0.3, 3))
        for end in with_markers:
            go_on(end)


@in_a_cluster("coordinator's answers arrive late", weight=0.5)
async def answers_arrive_late(play: Play, chance: random.Random) -> None:
    """A leader asks a coordinator about a transaction. When it hears the answer the transaction has ended."""
    coordinators = _coordinators(play)
    if not coordinators:
        return
    coordinator = chance.choice(coordinators)
    leader = chance.choice([broker for broker in play.brokers if broker is not coordinator])
    ends = [each.ends[1] for each in connections(play, leader, coordinator)]
    for end in ends:
        stop(end)
    # Longer than a client waits, and shorter than the leader does.
    await asyncio.sleep(chance.uniform(3.1, 4.8))
    for end in ends:
        go_on(end)


@in_a_cluster("coordinator dies before its log is committed", weight=0.5)
async def dies_before_its_log_is_committed(play: Play, chance: random.Random) -> None:
    """A coordinator dies with a record that one follower has and the other has not. The first one coordinates next, and
    dies; then the other does, which never had the record. Clients die as well, so nobody asks again."""
    place = a_place(play, chance, only=TRANSACTIONS)
    if place is None:
        return
    first, second, third = place.leader, place.heir, place.other
    async with play.power_lock, first.lock:  # nobody else ends two brokers at once
        ends = [each.ends[1] for server in (first, second) for each in connections(play, third, server)]
        for end in ends:
            stop(end)
        await until(lambda: place.high_watermark(first) < place.end(first) == place.end(second), 2.0)
        first.kill()
        if await until(lambda: place.leads(second), TOO_LONG_S):
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            async with second.lock:
                for actor in play.actors:
                    if chance.random() < 0.7:
                        actor.kill()
                second.kill()
                for end in ends:
                    go_on(end)
                await until(lambda: place.leads(third), TOO_LONG_S)
                await play.start_broker(second)
        for end in ends:
            go_on(end)
        await play.start_broker(first)

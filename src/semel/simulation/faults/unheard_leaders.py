"""A follower that does not hear that its leader was replaced, and came back (R6)."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

from semel.cluster.session import ZooKeeperError
from semel.machines.znodes import paths
from semel.machines.znodes.values import decode_state, encode_state
from semel.simulation.faults import fault
from semel.simulation.faults.in_sync_sets import Place, a_place, until
from semel.simulation.faults.stalls import connections, go_on, holds_a_request, stop
from semel.simulation.play import Play
from semel.simulation.world import BrokerNode
from semel.simulation.zookeeper import SimulatedSession

in_a_cluster = partial(fault, alone=False)

#: All steps together take less than a session with ZooKeeper lasts: nobody may miss the follower.
STEP_S = 0.7


@in_a_cluster("leader is back unheard", weight=0.5)
async def leader_is_back_unheard(play: Play, chance: random.Random) -> None:
    """A follower has records of its leader that the next leader has not. Its fetch is on the way while the other one
    leads and gives the leadership back, with other records in their place; and it hears of neither."""
    place = a_place(play, chance)
    if place is None:
        return
    first, second, third = place.leader, place.heir, place.other
    deaf = third.session
    behind = [each.ends[0] for each in connections(play, second, first)]
    late = [each.ends[0] for each in connections(play, third, first)]
    somebody = SimulatedSession(play.world.zookeeper, session_timeout_ms=3_000)
    for end in behind:
        stop(end)
    try:
        is_behind = await until(lambda: all(map(holds_a_request, behind)), STEP_S)
        # What the leader gets now the other follower still hears of. When it asks for more, that has to wait.
        for end in late:
            stop(end)
        has_more = is_behind and await until(
            lambda: place.end(third) > place.end(second) and all(map(holds_a_request, late)), STEP_S
        )
        if has_more and deaf is not None:
            deaf.cut(requests=False, answers=True)
            with suppress(ZooKeeperError):
                await somebody.open(timeout_ms=1_000)
                await _elect(place, somebody, second)
                for end in behind:
                    go_on(end)
                await until(lambda: place.end(first) == place.end(second) >= place.end(third), STEP_S)
                await _elect(place, somebody, first)
    finally:
        for end in (*behind, *late):
            go_on(end)
        if deaf is not None:
            deaf.heal()
    with suppress(ZooKeeperError):
        await somebody.close()


async def _elect(place: Place, session: SimulatedSession, broker: BrokerNode) -> None:
    """As an administrator may: elect one that is in sync, and wait until it has heard."""
    number = place.id_of(broker)
    path = paths.state(place.topic, place.number)
    data, stat = await session.get(path)
    _, life = await session.get(paths.life(number))
    state = decode_state(data, path)
    if number in state.isr:
        elected = state._replace(
            leader=number, leader_epoch=state.leader_epoch + 1, leader_broker_epoch=life.version
        )
        await session.set(path, encode_state(elected), stat.version)
        await until(lambda: place.has_heard_that_it_leads(broker), STEP_S)

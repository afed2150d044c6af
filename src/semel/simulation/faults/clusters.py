"""Faults of a cluster: brokers that do not reach each other, or not their ZooKeeper, and a ZooKeeper that fails."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import permutations

from semel.machines.znodes import paths
from semel.machines.znodes.values import decode_controller
from semel.simulation.faults import fault
from semel.simulation.faults.processes import lose_power_of_one
from semel.simulation.play import Play, registers
from semel.simulation.world import BrokerNode

in_a_cluster = partial(fault, alone=False)


def expire(play: Play, broker: BrokerNode) -> None:
    """ZooKeeper ends the session of a broker that lives."""
    session, zookeeper = broker.session, play.world.zookeeper
    known = None if session is None else zookeeper.ensemble.sessions.get(session.session_id)
    if known is not None and zookeeper.ensemble.has_quorum:
        zookeeper.ensemble.end_session(known, zookeeper.now_ms())
        if known.connection is not None:
            known.connection.drop()


def _a_while(chance: random.Random) -> float:
    """Shorter or longer than a session with ZooKeeper, and than the time a follower may lag."""
    return chance.choice((0.2, 1.0, 3.0, 6.0)) * (0.5 + chance.random())


async def _cut(play: Play, ways: list[tuple[str, str]], for_s: float) -> None:
    network = play.world.network
    for way in ways:
        network.cut(*way)
    await asyncio.sleep(for_s)
    for way in ways:
        network.heal(*way)


@in_a_cluster("brokers cut off from each other", weight=3)
async def brokers_cut(play: Play, chance: random.Random) -> None:
    """Two brokers do not reach each other, one way or both; everybody else reaches them."""
    one, two = (broker.machine.name for broker in chance.sample(play.brokers, 2))
    ways = chance.choice([[(one, two)], [(two, one)], [(one, two), (two, one)]])
    await _cut(play, ways, _a_while(chance))


@in_a_cluster("broker cut off from all others", weight=2)
async def broker_alone(play: Play, chance: random.Random) -> None:
    """One broker reaches no other broker. Clients and ZooKeeper reach it."""
    alone = play.a_broker(chance).machine.name
    others = [broker.machine.name for broker in play.brokers if broker.machine.name != alone]
    ways = [(alone, other) for other in others] + [(other, alone) for other in others]
    await _cut(play, ways, _a_while(chance))


@in_a_cluster("brokers all cut off", weight=0.5)
async def brokers_all_cut(play: Play, chance: random.Random) -> None:
    """No broker reaches another."""
    names = [broker.machine.name for broker in play.brokers]
    await _cut(play, list(permutations(names, 2)), _a_while(chance))


def _controller(play: Play, chance: random.Random) -> BrokerNode:
    node = play.world.zookeeper.ensemble.newest.nodes.get(paths.CONTROLLER)
    return play.a_broker(chance) if node is None else play.brokers[decode_controller(node.data) - 1]


@in_a_cluster("controller killed")
async def controller_killed(play: Play, chance: random.Random) -> None:
    """kill -9 of whoever is the controller."""
    broker = _controller(play, chance)
    await play.restart_broker(broker, broker.kill, chance.uniform(0.05, 3))


@in_a_cluster("leader killed", weight=2)
async def leader_killed(play: Play, chance: random.Random) -> None:
    """kill -9 of a leader, and of the next one soon after."""
    led = [state for _, state in registers(play.world) if state.leader > 0]
    if led:
        first = play.brokers[chance.choice(led).leader - 1]
        second, after_s = play.a_broker(chance), chance.uniform(0.0, 1.5)

        async def then() -> None:
            await asyncio.sleep(after_s)
            if second is not first:
                await play.restart_broker(second, second.kill, chance.uniform(0.05, 2))

        await asyncio.gather(play.restart_broker(first, first.kill, chance.uniform(0.05, 3)), then())


@in_a_cluster("all brokers killed", weight=0.5)
async def all_killed(play: Play, chance: random.Random) -> None:
    """Every process at once; each is back after a time of its own."""
    waits = [chance.uniform(0.05, 5) for _ in play.brokers]
    await asyncio.gather(
        *(play.restart_broker(each, each.kill, wait_s) for each, wait_s in zip(play.brokers, waits, strict=True))
    )


@in_a_cluster("rolling restart")
async def rolling_restart(play: Play, chance: random.Random) -> None:
    """A stop in order and a new start, one broker after the other."""
    for broker in play.brokers:
        await play.restart_broker(broker, broker.stop, chance.uniform(0.05, 1))


@in_a_cluster("last in sync loses its power", loses_unsynced=True)
async def last_in_sync_loses_its_power(play: Play, chance: random.Random) -> None:
    """A leader is cut off until nobody is in sync with it, and then its machine goes dark."""
    led = [state for _, state in registers(play.world) if state.leader > 0]
    if not led:
        return
    broker = play.brokers[chance.choice(led).leader - 1]
    number, network = play.brokers.index(broker) + 1, play.world.network
    others = [other.machine.name for other in play.brokers if other is not broker]
    ways = [(broker.machine.name, other) for other in others] + [(other, broker.machine.name) for other in others]
    for way in ways:
        network.cut(*way)
    for _ in range(40):
        await asyncio.sleep(0.2)
        if any(state.isr == (number,) for _, state in registers(play.world)):
            break
    await asyncio.sleep(chance.uniform(0.0, 1.5))
    await lose_power_of_one(play, broker, chance.uniform(0.2, 3))
    for way in ways:
        network.heal(*way)


# ZooKeeper


@in_a_cluster("broker cut off from ZooKeeper", weight=2)
async def cut_off_from_zookeeper(play: Play, chance: random.Random) -> None:
    """A broker does not reach ZooKeeper, or does not hear it; the other brokers reach it."""
    session = play.a_broker(chance).session
    requests, answers = chance.choice(((True, True), (True, False), (False, True)))
    for_s = _a_while(chance)
    if session is not None:
        session.cut(requests=requests, answers=answers)
        await asyncio.sleep(for_s)
        session.heal()


@in_a_cluster("answers of ZooKeeper lost", weight=3)
async def zookeeper_answers_lost(play: Play, chance: random.Random) -> None:
    """Changes are made, and their answers are lost."""
    for broker in play.brokers:
        times = chance.choice((0, 1, 1, 3))
        if broker.session is not None:
            broker.session.answers_to_lose += times
    await asyncio.sleep(chance.uniform(0.1, 2))
    for broker in play.brokers:
        if broker.session is not None:
            broker.session.answers_to_lose = 0


@in_a_cluster("connection to ZooKeeper dropped")
async def zookeeper_dropped(play: Play, chance: random.Random) -> None:
    """Brokers lose their connections, and go on with another server."""
    for broker in play.brokers:
        if chance.random() < 0.5 and broker.session is not None:
            broker.session.drop_connection()


@in_a_cluster("session expired", weight=2)
async def session_expired(play: Play, chance: random.Random) -> None:
    """ZooKeeper ends the session of a broker that lives."""
    expire(play, play.a_broker(chance))


@in_a_cluster("ZooKeeper lags", weight=2)
async def zookeeper_lags(play: Play, chance: random.Random) -> None:
    """Some servers learn of changes later, and so do the brokers that watch there."""
    zookeeper = play.world.zookeeper
    slow = chance.sample(range(len(zookeeper.servers)), chance.randint(1, 2))
    for number in slow:
        zookeeper.lag(number, (0.0, chance.choice((100.0, 1_000.0, 4_000.0))))
    await asyncio.sleep(_a_while(chance))
    for number in slow:
        zookeeper.lag_of_server.pop(number, None)


@in_a_cluster("ZooKeeper server stopped")
async def zookeeper_server_stopped(play: Play, chance: random.Random) -> None:
    """One server of ZooKeeper is gone, or frozen."""
    zookeeper = play.world.zookeeper
    number, silently, for_s = chance.randrange(len(zookeeper.servers)), chance.random() < 0.5, _a_while(chance)
    if zookeeper.servers[number].up:
        zookeeper.stop(number, silently=silently)
        await asyncio.sleep(for_s)
        if not zookeeper.servers[number].up:
            zookeeper.start(number)


@in_a_cluster("quorum of ZooKeeper lost")
async def quorum_lost(play: Play, chance: random.Random) -> None:
    """ZooKeeper answers nothing for a while: nothing is decided, and what was decided goes on."""
    zookeeper = play.world.zookeeper
    stopped = [server.number for server in zookeeper.servers if server.up][: chance.randint(2, 3)]
    silently, for_s = chance.random() < 0.5, _a_while(chance)
    for number in stopped:
        zookeeper.stop(number, silently=silently)
    await asyncio.sleep(for_s)
    for number in stopped:
        if not zookeeper.servers[number].up:
            zookeeper.start(number)

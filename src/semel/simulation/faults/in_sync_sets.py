"""Faults that strike while the in-sync set of a partition changes, each at the moment when it hurts most.

By chance these moments are rare: a change takes milliseconds. What the rules R2, R8 and Z1 forbid happens in them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from semel.broker.replication.partition import ReplicatedPartition
from semel.cluster.session import ZooKeeperError
from semel.machines.replication.values import PartitionState
from semel.machines.znodes import paths
from semel.machines.znodes.values import TopicAssignment, decode_state
from semel.simulation.faults import fault
from semel.simulation.faults.clusters import expire
from semel.simulation.play import Play, registers
from semel.simulation.world import BrokerNode
from semel.simulation.zookeeper import SimulatedSession

in_a_cluster = partial(fault, alone=False)

#: How often these faults look whether their moment has come.
LOOK_S = 0.001
#: Longer than a follower may lag, and than a session lasts.
TOO_LONG_S = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """A partition with all replicas in sync, and who has it. `heir` leads next if the leader dies."""

    play: Play
    topic: str
    number: int
    leader: BrokerNode
    heir: BrokerNode
    other: BrokerNode

    @property
    def state(self) -> PartitionState | None:
        """What the register says now; None if the topic is gone."""
        path = paths.state(self.topic, self.number)
        node = self.play.world.zookeeper.ensemble.newest.nodes.get(path)
        return None if node is None else decode_state(node.data, path)

    def id_of(self, broker: BrokerNode) -> int:
        return self.play.brokers.index(broker) + 1

    def is_in_sync(self, broker: BrokerNode) -> bool:
        state = self.state
        return state is not None and self.id_of(broker) in state.isr

    def leads(self, broker: BrokerNode) -> bool:
        state = self.state
        return state is not None and self.id_of(broker) == state.leader

    def has_heard_that_it_leads(self, broker: BrokerNode) -> bool:
        state, partition = self.state, self._partition(broker)
        leader = None if partition is None or partition.replica is None else partition.replica.leader
        return self.leads(broker) and state is not None and leader is not None and leader.state == state

    def _partition(self, broker: BrokerNode) -> ReplicatedPartition | None:
        topics = broker.topics
        topic = None if topics is None else topics.topics.get(self.topic)
        partition = None if topic is None else topic.partitions[self.number]
        return partition if isinstance(partition, ReplicatedPartition) else None

    def high_watermark(self, broker: BrokerNode) -> int:
        partition = self._partition(broker)
        return -1 if partition is None or partition.open_log is None else partition.open_log.high_watermark

    def end(self, broker: BrokerNode) -> int:
        partition = self._partition(broker)
        return -1 if partition is None or partition.open_log is None else partition.open_log.end_offset

    def is_wished(self, broker: BrokerNode) -> bool:
        """Whether the leader has asked for it, and nobody has decided yet."""
        partition = self._partition(self.leader)
        leader = None if partition is None or partition.replica is None else partition.replica.leader
        return leader is not None and leader.wished is not None and self.id_of(broker) in leader.wished.isr


def a_place(play: Play, chance: random.Random, only: str | None = None) -> Place | None:
    """A place, perhaps of one topic only; None if there is none now."""
    nodes = play.world.zookeeper.ensemble.newest.nodes
    places = []
    for path, state in registers(play.world):
        topic, _, number = path.removesuffix("/state").partition("/partitions/")
        replicas = TopicAssignment.decode(nodes[topic].data, topic).partitions.get(int(number), ())
        if only not in (None, topic.rpartition("/")[2]):
            continue
        if len(replicas) == 3 and {*replicas} == {*state.isr} and state.leader > 0:
            heir, other = (play.brokers[each - 1] for each in replicas if each != state.leader)
            leader = play.brokers[state.leader - 1]
            places.append(Place(play, topic.rpartition("/")[2], int(number), leader, heir, other))
    return chance.choice(places) if places else None


async def until(holds: Callable[[], bool], within_s: float) -> bool:
    for _ in range(int(within_s / LOOK_S)):
        if holds():
            return True
        await asyncio.sleep(LOOK_S)
    return False


@asynccontextmanager
async def _cut(play: Play, one: BrokerNode, two: BrokerNode) -> AsyncIterator[None]:
    names, network = (one.machine.name, two.machine.name), play.world.network
    ways = (names, names[::-1])
    for way in ways:
        network.cut(*way)
    try:
        yield
    finally:
        for way in ways:
            network.heal(*way)


@in_a_cluster("in-sync set grows unheard", weight=0.5)
async def grows_unheard(play: Play, chance: random.Random) -> None:
    """A follower is back in the set. Its leader does not hear that the change was made, and loses it again; then the
    leader dies."""
    place = a_place(play, chance)
    if place is None:
        return
    async with _cut(play, place.leader, place.heir):
        await until(lambda: not place.is_in_sync(place.heir), 2 * TOO_LONG_S)
        await asyncio.sleep(0.05)  # the leader knows that
        session = place.leader.session
        if session is not None:
            session.cut(requests=False, answers=True)
    is_back = await until(lambda: place.is_in_sync(place.heir), 1.5)
    async with _cut(play, place.leader, place.heir):
        await asyncio.sleep(chance.uniform(0.2, 0.8) if is_back else 0.0)
        if place.leads(place.leader):
            await play.restart_broker(place.leader, place.leader.kill, chance.uniform(0.5, 2))
        if session is not None:
            session.heal()


@in_a_cluster("in-sync set shrinks unwritten", weight=0.5)
async def shrinks_unwritten(play: Play, chance: random.Random) -> None:
    """A leader loses a follower, and ZooKeeper before it can say so. When its session is over that follower leads."""
    place = a_place(play, chance)
    if place is None:
        return
    async with _cut(play, place.leader, place.heir):
        await asyncio.sleep(chance.uniform(2.0, 2.9))
        session = place.leader.session
        if session is not None:
            session.cut(requests=True, answers=False)
        await until(lambda: not place.leads(place.leader), TOO_LONG_S)
    await asyncio.sleep(chance.uniform(0, 1))
    if session is not None:
        session.heal()


@in_a_cluster("leader dies while a follower catches up", weight=0.5)
async def dies_while_one_catches_up(play: Play, chance: random.Random) -> None:
    """A follower is back and asks, and no answer reaches it. Its leader hears it, and dies; or the leader that follows,
    which does not know yet how far everything is committed."""
    place = a_place(play, chance)
    if place is None:
        return
    of_the_next = chance.random() < 0.5
    async with play.power_lock, place.heir.lock:  # nobody else ends two brokers at once
        place.heir.kill()
        await until(lambda: not place.is_in_sync(place.heir), 2.0)
        before = place.high_watermark(place.leader)
        more_is_committed = await until(lambda: place.high_watermark(place.leader) > before, 2.0)
        leader = place.leader
        async with leader.lock:
            if of_the_next and more_is_committed:
                leader.kill()
                await until(lambda: place.leads(place.other), TOO_LONG_S)
        if of_the_next:
            leader = place.other
        way = f" {place.heir.machine.name}>{leader.machine.name}"
        deaf = asyncio.ensure_future(_lose_answers(play, way))
        try:
            await play.start_broker(place.heir)
            await until(lambda: place.is_in_sync(place.heir), 1.0)
            async with leader.lock:
                leader.kill()
                await until(lambda: place.leads(place.heir), 1.0)
        finally:
            _hear_again(play, deaf, way)
    for broker in play.brokers:
        async with broker.lock:
            await play.start_broker(broker)


@in_a_cluster("leadership without a record", weight=0.5)
async def leadership_without_a_record(play: Play, chance: random.Random) -> None:
    """A leader dies with records that nobody else has. The next one writes nothing and loses its session; then the
    first leads again, with these records."""
    place = a_place(play, chance)
    if place is None:
        return
    first, second, third = place.leader, place.heir, place.other
    async with play.power_lock, third.lock:  # nobody else ends two brokers at once
        third.kill()
        await until(lambda: not place.is_in_sync(third), 2.0)
        async with _cut(play, first, second):
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            async with first.lock:
                first.kill()
                await until(lambda: place.leads(second), TOO_LONG_S)
                await play.start_broker(first)
            if place.leads(second):
                expire(play, second)
                await until(lambda: place.leads(first), TOO_LONG_S)
        await play.start_broker(third)


@in_a_cluster("reboot races an entry into the set", weight=0.5, loses_unsynced=True)
async def reboot_races_an_entry(play: Play, chance: random.Random) -> None:
    """A follower has caught up, and its leader's wish to have it in the set is on its way to ZooKeeper. Before it is
    there the follower's machine loses its power, and is back without the end of its log."""
    place = a_place(play, chance)
    if place is None:
        return
    leader, heir = place.leader, place.heir
    async with play.power_lock, heir.lock:
        async with _cut(play, leader, heir):
            await until(lambda: not place.is_in_sync(heir), 2 * TOO_LONG_S)
            await asyncio.sleep(0.05)
            session = leader.session
            if session is not None:
                session.requests_late_s = 0.7
        way = f" {heir.machine.name}>{leader.machine.name}"
        if not await until(lambda: place.is_wished(heir), 1.0) or not play.everything_is_safe():
            if session is not None:
                session.requests_late_s = 0.0
            return
        play.without_power.append(heir)
        heir.lose_power()
        deaf = asyncio.ensure_future(_lose_answers(play, way))
        try:
            await play.start_broker(heir)
            await until(lambda: place.is_in_sync(heir), 1.0)
            async with leader.lock:
                leader.kill()
                await until(lambda: place.leads(heir), 1.0)
                await play.start_broker(leader)
        finally:
            _hear_again(play, deaf, way)


def _hear_again(play: Play, deaf: asyncio.Future[None], way: str) -> None:
    deaf.cancel()
    for connection in play.world.network.connections.values():
        if connection.name.endswith(way):
            connection.loses_answer = False


async def _lose_answers(play: Play, way: str) -> None:
    """On all connections of one broker to another, until it is cancelled."""
    while True:
        for connection in play.world.network.connections.values():
            if connection.name.endswith(way):
                connection.loses_answer = True
        await asyncio.sleep(LOOK_S / 4)  # sooner than a new connection has its first answer


@in_a_cluster("broker taken for dead")
async def taken_for_dead(play: Play, chance: random.Random) -> None:
    """Somebody certifies a broker that lives (E6), which hears of it late."""
    victim, zookeeper = play.a_broker(chance), play.world.zookeeper
    late_s = chance.choice((0.0, 1.0, TOO_LONG_S))
    link = None if victim.session is None else victim.session._link
    if link is None:
        return
    zookeeper.lag(link.number, (late_s * 900, late_s * 1000))
    somebody = SimulatedSession(zookeeper, session_timeout_ms=3_000)
    with suppress(ZooKeeperError):
        await somebody.open(timeout_ms=3_000)
        await somebody.delete(paths.broker(play.brokers.index(victim) + 1))
    with suppress(ZooKeeperError):
        await somebody.close()
    await asyncio.sleep(late_s)
    zookeeper.lag_of_server.pop(link.number, None)

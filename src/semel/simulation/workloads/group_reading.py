"""Groups that read a topic and commit as they go: every record is read at least once, and without faults soon."""

from __future__ import annotations

import asyncio
from functools import partial

from semel.errors import CommitFailed, KafkaError
from semel.simulation.play import CONSUMER_SETTINGS, PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.copying import GROUPS, Quiet, Restart, create

PARTITIONS = 4
SESSION_TIMEOUT_MS = 10_000
#: Without faults a record is read within this time: a few heartbeats, and less than a session.
READ_WITHIN_S = 6.0
#: Faults that are no reason for a group to wait.
HARMLESS = frozenset({"pieces", "slow disk"})


class GroupReading(Workload):
    """One kind of group; the subclasses say which."""

    group: str

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        self.topic = f"read-{self.group}"
        self.judged_topics = (self.topic,)
        #: When a record was acknowledged and when it was first read.
        self.acknowledged: dict[bytes, float] = {}
        self.read_at: dict[bytes, float] = {}
        self._fed_until = 0.0
        play.actor(f"feeder-{self.group}", self.feed)
        for number in range(3):
            play.actor(f"member-{self.group}-{number}", self.read)

    async def prepare(self) -> None:
        await self.play.admin(partial(create, self.topic, PARTITIONS))

    async def feed(self, actor: Actor) -> None:
        """Send what is to be read."""
        play, chance = self.play, actor.chance
        async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=0) as producer:
            while not play.is_ending:
                partition, value = chance.randrange(PARTITIONS), play.next_value(actor.who)
                place = play.sending(actor.who, self.topic, partition, value)
                try:
                    offset = (await (await producer.send(self.topic, value, partition=partition))).offset
                    play.sent(place, offset)
                    self.acknowledged[value] = play.world.loop.time()
                except KafkaError:
                    play.counts["sends of unknown fate"] += 1
                self._fed_until = play.world.loop.time()
                await asyncio.sleep(chance.random() * 0.2)

    async def read(self, actor: Actor) -> None:
        """Read and commit, and now and then leave the group for a while."""
        play, chance, loop = self.play, actor.chance, self.play.world.loop
        settings = {**CONSUMER_SETTINGS, **GROUPS[self.group], "enable_auto_commit": False}
        settings |= {"session_timeout_ms": SESSION_TIMEOUT_MS, "heartbeat_interval_ms": 500}
        if self.group == "consumer":
            for name in ("session_timeout_ms", "heartbeat_interval_ms"):
                settings.pop(name)
        async with play.clients.consumer(**settings, group_id=self.topic) as consumer:
            await consumer.subscribe([self.topic])
            quiet = Quiet(play, consumer)
            while not quiet.is_over(self._fed_until):
                for one in await consumer.poll(timeout_ms=200):
                    assert one.value is not None
                    self.read_at.setdefault(one.value, loop.time())
                    quiet.something_came()
                if chance.random() < 0.7:
                    consumer.commit_soon(on_done=_not_heard)
                else:
                    try:
                        await consumer.commit()
                    except CommitFailed:
                        play.counts["commits refused"] += 1
                if chance.random() < 0.008 and not play.is_ending:
                    raise Restart

    async def check(self, committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]) -> None:
        world = self.play.world
        for (topic, partition), records in committed.items():
            for offset, _, value in records:
                if topic == self.topic and value not in self.read_at:
                    world.violated(f"{self.topic}: nobody has read {value!r} at offset {offset} of {partition}")
                    return
        if self.play.struck.keys() <= HARMLESS:
            for value, at_s in self.acknowledged.items():
                waited_s = self.read_at[value] - at_s
                if waited_s > READ_WITHIN_S:
                    world.violated(f"{self.topic}: without any fault {value!r} was read only after {waited_s:.1f} s")
                    return


def _not_heard(error: KafkaError | None) -> None:
    """What could not be committed is read again by somebody."""


@workload("reading-eager")
class ReadingEager(GroupReading):
    """A classic group that revokes everything at a rebalance."""

    group = "eager"


@workload("reading-cooperative")
class ReadingCooperative(GroupReading):
    """A classic group that goes on reading during a rebalance."""

    group = "cooperative"


@workload("reading-consumer")
class ReadingConsumer(GroupReading):
    """A group of the consumer protocol (KIP-848)."""

    group = "consumer"

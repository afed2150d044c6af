"""Consumers that change their minds: they subscribe, unsubscribe, leave while they join, and seek before they know
where they are; some ask for what the group does not do.

What they read is nobody's business. They must come to an end, and nothing but an error of the protocol may meet them.
"""

from __future__ import annotations

import asyncio
from functools import partial

from semel.client.consumer.consumer import AsyncConsumer
from semel.errors import KafkaError
from semel.machines.values import TopicPartition
from semel.simulation.play import CONSUMER_SETTINGS, PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.copying import GROUPS, create

TOPICS = ("here", "there")
PARTITIONS = 3
#: What the group does not do: another way to share partitions out, which is refused for good.
STRANGE: dict[str, dict[str, object]] = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "consumer": {"group_protocol": "consumer", "group_remote_assignor": "nobody-knows-it"},
}


@workload("wandering")
class Wandering(Workload):
    """A group of each kind; its members come, go and look elsewhere."""

    in_a_cluster = False

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        play.actor("wanderers-feed", self.feed)
        for group in self.chance.sample(sorted(GROUPS), 2):
            for number in range(3):
                play.actor(f"wanderer-{group}-{number}", partial(self.wander, group))

    async def prepare(self) -> None:
        for topic in TOPICS:
            await self.play.admin(partial(create, topic, PARTITIONS))

    async def feed(self, actor: Actor) -> None:
        """Something to read."""
        play, chance = self.play, actor.chance
        async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=0) as producer:
            while not play.is_ending:
                value = play.next_value(actor.who)
                await producer.send(chance.choice(TOPICS), value, partition=chance.randrange(PARTITIONS))
                await asyncio.sleep(chance.random())

    async def wander(self, group: str, actor: Actor) -> None:
        """Live as a consumer for a while, and again."""
        play, chance = self.play, actor.chance
        while not play.is_ending:
            kind = STRANGE[group] if chance.random() < 0.2 else GROUPS[group]
            settings = {**CONSUMER_SETTINGS, **kind, "enable_auto_commit": chance.random() < 0.5}
            if group == "consumer":
                for name in ("session_timeout_ms", "heartbeat_interval_ms"):
                    settings.pop(name)
            try:
                async with play.clients.consumer(**settings, group_id=f"wanderers-{group}") as consumer:
                    await consumer.subscribe(list(TOPICS))
                    for _ in range(chance.randint(3, 30)):
                        try:
                            await self._do_something(actor, consumer)
                        except KafkaError as error:
                            play.counts[f"wanderers refused: {type(error).__name__}"] += 1
                            await asyncio.sleep(0.1)
            except KafkaError:
                play.counts["wanderers ended by an error"] += 1
            await asyncio.sleep(chance.random())

    async def _do_something(self, actor: Actor, consumer: AsyncConsumer) -> None:
        chance = actor.chance
        what = chance.randrange(-8, 10)
        if what < 3:
            await consumer.poll(timeout_ms=chance.choice((0, 1, 50, 400)))
        elif what == 3:
            await consumer.subscribe(chance.choice(([TOPICS[0]], [TOPICS[1]], list(TOPICS))))
        elif what == 4:
            # With or without giving the join any time.
            await consumer.subscribe([chance.choice(TOPICS)])
            await asyncio.sleep(chance.choice((0.0, 0.001, 0.002, 0.01, 0.11)))
            await consumer.unsubscribe()
        elif what == 5:
            await consumer.unsubscribe()
        elif what == 6:
            consumer.rewind()
        elif what == 7:
            await consumer.commit()
        else:
            places = sorted(consumer.assignment())
            if not places or (what == 8 and chance.random() < 0.2):
                # Not in a group: where to begin is not known yet.
                await consumer.unsubscribe()
                topic = chance.choice(TOPICS)
                places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
                consumer.assign(places)
            seek = chance.randrange(4)
            if seek == 0:
                consumer.seek(chance.choice(places), chance.choice((0, 1, 10**6)))
            elif seek == 1:
                consumer.seek_to_beginning(places)
            elif seek == 2:
                consumer.seek_to_end(places)
            else:
                consumer.rewind()

"""Idempotent producers and readers: what was acknowledged is there once, and in order."""

from __future__ import annotations

import asyncio

from semel.errors import KafkaError
from semel.simulation.play import CONSUMER_SETTINGS, PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.testing.history import Assigned, Poll, Reached, Seen

TOPIC = "plain"
PARTITIONS = 2


@workload("idempotent")
class Idempotent(Workload):
    """Producers send to the partitions of one topic, readers follow."""

    #: Its topic, and what the names of its actors begin with.
    topic = TOPIC
    judged_topics: tuple[str, ...] = (TOPIC,)
    prefix = ""
    #: Whether the records of a burst are sent a little apart, so that several batches are on their way.
    has_pauses = False

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        for number in range(self.chance.randint(1, 3)):
            play.actor(f"{self.prefix}producer-{number}", self.produce)
        play.actor(f"{self.prefix}reader-0", self.read)

    async def prepare(self) -> None:
        # In small segments every torn write is soon at an end.
        configs = {"segment.bytes": self.chance.choice(("2000", "6000"))}
        await self.play.admin(lambda admin: admin.create_topic(self.topic, partitions=PARTITIONS, configs=configs))

    async def produce(self, actor: Actor) -> None:
        """Send bursts, and note what is heard of each record."""
        play, chance = self.play, actor.chance
        starts = play.brokers[0].starts
        async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=chance.choice((0, 0, 5))) as producer:
            while not play.is_ending:
                partition = chance.randrange(PARTITIONS)
                deliveries = []
                for _ in range(chance.choice((1, 1, 2, 5, 20))):
                    value = play.next_value(actor.who) + b" " * chance.choice((0, 0, 0, 100))
                    place = play.sending(actor.who, self.topic, partition, value)
                    deliveries.append((place, await producer.send(self.topic, value, partition=partition)))
                    if self.has_pauses:
                        await asyncio.sleep(chance.random() * 0.003)
                for place, delivery in deliveries:
                    try:
                        offset = (await delivery).offset
                        play.sent(place, offset)
                        # Only a broker that started since has forgotten where the last five batches are.
                        if offset < 0 and starts == play.brokers[0].starts and not play.is_cluster:
                            play.world.violated(f"idempotent: {actor.who} was not told where its record is")
                    except KafkaError:
                        play.counts["sends of unknown fate"] += 1
                await asyncio.sleep(chance.random() * 0.4)

    async def read(self, actor: Actor) -> None:
        """Read from the beginning, in any life."""
        play, chance = self.play, actor.chance
        isolation = chance.choice(("read_committed", "read_uncommitted"))
        places = [(self.topic, number) for number in range(PARTITIONS)]
        async with play.clients.consumer(**CONSUMER_SETTINGS, isolation_level=isolation) as consumer:
            consumer.assign(places)
            play.note(Assigned(actor.who, frozenset(places)))
            play.note(Reached(actor.who, tuple((place, 0) for place in places)))
            while not play.is_ending:
                records = await consumer.poll(timeout_ms=500)
                seen = tuple(Seen(one.topic, one.partition, one.offset, one.value) for one in records)
                if seen:
                    play.note(Poll(actor.who, seen, committed_only=isolation == "read_committed"))


@workload("in-flight")
class InFlight(Idempotent):
    """Producers with several batches on their way to one partition: an answer is lost, and later ones arrived."""

    topic = "rapid"
    judged_topics = (topic,)
    prefix = "rapid-"
    has_pauses = True

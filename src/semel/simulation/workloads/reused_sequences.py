"""A client of the old protocol that uses a sequence again after an abort, as some libraries did.

Either the broker takes such a record as a new one, or it refuses it. It must not answer that it was written when it
was not: then a commit would lose it.
"""

from __future__ import annotations

import asyncio

from semel.errors import KafkaError
from semel.machines.values import TopicPartition
from semel.simulation.old_producer import OldProducer, cluster_of
from semel.simulation.play import Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.testing.history import Ended, Ending, Outcome
from semel.wire.apis import ApiKey

TOPIC = "reused"
PLACE = TopicPartition(TOPIC, 0)


@workload("reused-sequences")
class ReusedSequences(Workload):
    """One record in each transaction, by requests of our own."""

    judged_topics = (TOPIC,)
    uses_old_protocol = True
    #: A Produce of an aborted transaction looks like the next one, for which its sequence is used again.
    not_repeated = frozenset({ApiKey.END_TXN, ApiKey.PRODUCE})

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        play.actor("reuser-0", self.write)

    async def prepare(self) -> None:
        await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=1))

    async def write(self, actor: Actor) -> None:
        play, chance = self.play, actor.chance
        async with cluster_of(actor) as cluster:
            producer, number, sequence = OldProducer(actor, cluster), 0, 0
            await producer.begin()
            while not play.is_ending:
                number += 1
                transaction, value = (actor.who, number), play.next_value(actor.who)
                place = play.sending(actor.who, *PLACE, value, transaction)
                await producer.add(PLACE)
                try:
                    play.sent(place, await producer.produce(PLACE, sequence, value))
                except KafkaError:
                    play.note(Ended(actor.who, transaction, Outcome.FAILED))
                    await producer.begin()
                    sequence = 0
                    continue
                commit = chance.random() < 0.5
                play.note(Ending(actor.who, transaction) if commit else Ended(actor.who, transaction, Outcome.FAILED))
                await producer.end(committed=commit)
                if commit:
                    play.note(Ended(actor.who, transaction, Outcome.OK))
                    sequence += 1  # after an abort it is used again
                await asyncio.sleep(chance.random() * 0.2)

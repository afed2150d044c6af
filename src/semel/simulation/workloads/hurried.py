"""A client of the old protocol that aborts while its write is still on its way, as one does that waits no longer.

The leader may have asked the coordinator about that write, and hear that all is well after the transaction has ended.
What is written then would be open for ever, or would become a part of the next transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

from semel.errors import KafkaError
from semel.machines.values import TopicPartition
from semel.simulation.old_producer import OldProducer, cluster_of
from semel.simulation.play import Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.testing.history import Ended, Ending, Outcome

TOPIC = "hurried"
PARTITIONS = 3


def _forget(late: set[asyncio.Task[int]], write: asyncio.Task[int]) -> None:
    late.discard(write)
    if not write.cancelled():
        write.exception()  # nobody asks any more


@workload("hurried")
class Hurried(Workload):
    """One record in each transaction. After a write that it did not wait for a client takes a new epoch."""

    judged_topics = (TOPIC,)
    uses_old_protocol = True
    #: With one broker nobody has to be asked.
    alone = False

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        for number in range(2):
            play.actor(f"hurrier-{number}", self.write)

    async def prepare(self) -> None:
        await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=PARTITIONS))

    async def write(self, actor: Actor) -> None:
        """One transaction after the other."""
        async with cluster_of(actor) as cluster:
            producer, number = OldProducer(actor, cluster), 0
            late: set[asyncio.Task[int]] = set()
            sequences: Counter[TopicPartition] = Counter()
            await producer.begin()
            while not self.play.is_ending:
                number += 1
                if not await self._transact(actor, producer, (actor.who, number), sequences, late):
                    await producer.begin()
                    sequences.clear()
                await asyncio.sleep(actor.chance.random() * 0.2)
            if late:
                await asyncio.wait(late)

    async def _transact(
        self,
        actor: Actor,
        producer: OldProducer,
        transaction: tuple[str, int],
        sequences: Counter[TopicPartition],
        late: set[asyncio.Task[int]],
    ) -> bool:
        """One transaction. Returns whether the client knows what became of it."""
        play, chance = self.play, actor.chance
        partition = TopicPartition(TOPIC, chance.randrange(PARTITIONS))
        value = play.next_value(actor.who)
        place = play.sending(actor.who, *partition, value, transaction)
        commits = False
        try:
            await producer.add(partition)
            write = asyncio.ensure_future(producer.produce(partition, sequences[partition], value))
            late.add(write)
            write.add_done_callback(partial(_forget, late))
            await asyncio.wait([write], timeout=chance.choice((0.0, 0.05, 1.0)))
            is_heard = write.done()
            if is_heard:
                play.sent(place, write.result())
                sequences[partition] += 1
                commits = chance.random() < 0.5
            play.note(Ending(actor.who, transaction) if commits else Ended(actor.who, transaction, Outcome.FAILED))
            await producer.end(committed=commits)
        except KafkaError:
            if not commits:  # whatever was written is aborted, at the latest by the next identity
                play.note(Ended(actor.who, transaction, Outcome.FAILED))
            return False
        if commits:
            play.note(Ended(actor.who, transaction, Outcome.OK))
        return is_heard

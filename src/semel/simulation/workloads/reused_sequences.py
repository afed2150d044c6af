"""A client of the old protocol that uses a sequence again after an abort, as some libraries did.

Either the broker takes such a record as a new one, or it refuses it. It must not answer that it was written when it
was not: then a commit would lose it.

A leader that was replaced and has not heard of it cannot know that the transaction has ended. As Apache Kafka's, it
takes such a record for a retry of one that is committed in its log. The client sees that the offset is an old one, and
begins anew.
"""

from __future__ import annotations

import asyncio

from semel.client.cluster.cluster import Cluster
from semel.errors import ErrorCode, KafkaError, Retriable
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.simulation.old_producer import OldProducer, cluster_of
from semel.simulation.play import Actor, Play, registers
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
            producer, number, sequence, last_offset = OldProducer(actor, cluster), 0, 0, -1
            await producer.begin()
            while not play.is_ending:
                number += 1
                transaction, value = (actor.who, number), play.next_value(actor.who)
                place = play.sending(actor.who, *PLACE, value, transaction)
                await producer.add(PLACE)
                try:
                    offset = await producer.produce(PLACE, sequence, value)
                    if offset <= last_offset and self._was_replaced(cluster):
                        play.counts["answers of a leader that was replaced"] += 1
                        raise Retriable(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it was replaced, and had not heard of it")
                    last_offset = offset
                    play.sent(place, offset)
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

    def _was_replaced(self, cluster: Cluster) -> bool:
        """Whether the leader that this client knows is one no more, or not under this leader epoch."""
        if not self.play.is_cluster:
            return False
        known = cluster.metadata.partition(*PLACE)
        path = paths.state(*PLACE)
        (state,) = (state for each, state in registers(self.play.world) if each == path)
        return known is None or (known.leader, known.leader_epoch) != (state.leader, state.leader_epoch)

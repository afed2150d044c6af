"""A client of the old protocol that uses a sequence again after an abort, as some libraries did.

Either the broker takes such a record as a new one, or it refuses it. It must not answer that it was written when it
was not: then a commit would lose it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from semel.client.cluster.cluster import Cluster, Coordinator, Leader
from semel.errors import ErrorCode, KafkaError, error_for
from semel.machines.transactions import requests
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.records.batch import build
from semel.simulation.event_loop import PROCESS
from semel.simulation.play import CLIENT_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.testing.history import Ended, Ending, Outcome
from semel.wire.apis import ApiKey
from semel.wire.messages.produce import ProduceRequest

TOPIC = "reused"
#: The newest version of Produce that the old protocol has.
OLD_PRODUCE = 11


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
        settings = {name.replace("_", "."): value for name, value in CLIENT_SETTINGS.items()}
        process = PROCESS.get()
        assert process is not None
        async with Cluster({**play.clients.settings, **settings}, environment=process.environment) as cluster:
            number = sequence = 0
            identity = await self._begin(cluster, actor)
            while not play.is_ending:
                number += 1
                transaction, value = (actor.who, number), play.next_value(actor.who)
                place = play.sending(actor.who, TOPIC, 0, value, transaction)
                await self._ask(cluster, requests.add_partitions(actor.name, identity, [TopicPartition(TOPIC, 0)]))
                try:
                    play.sent(place, await self._produce(cluster, actor, identity, sequence, value))
                except KafkaError:
                    play.note(Ended(actor.who, transaction, Outcome.FAILED))
                    identity, sequence = await self._begin(cluster, actor), 0
                    continue
                commit = chance.random() < 0.5
                play.note(Ending(actor.who, transaction) if commit else Ended(actor.who, transaction, Outcome.FAILED))
                end = requests.end(actor.name, identity, committed=commit, transaction_version=1)
                await self._ask(cluster, end)
                if commit:
                    play.note(Ended(actor.who, transaction, Outcome.OK))
                    sequence += 1  # after an abort it is used again
                await asyncio.sleep(chance.random() * 0.2)

    async def _begin(self, cluster: Cluster, actor: Actor) -> ProducerIdentity:
        answer = await self._ask(cluster, requests.init_producer_id(actor.name, requests.NO_IDENTITY, 8_000))
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    @staticmethod
    async def _ask(cluster: Cluster, send: requests.Send) -> Any:
        answer = await cluster.request_retrying(
            send.message, to=Coordinator(send.coordinator, send.key), newest=send.newest, timeout_ms=15_000
        )
        code = ErrorCode(getattr(answer, "error_code", 0))
        if code is not ErrorCode.NONE:
            raise error_for(code, code.meaning)
        return answer

    async def _produce(
        self, cluster: Cluster, actor: Actor, identity: ProducerIdentity, sequence: int, value: bytes
    ) -> int:
        data = build(
            [(None, value)],
            timestamp_ms=self.play.brokers[0].machine.now_ms(),
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        partition = ProduceRequest.PartitionProduceData(index=0, records=data)
        topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[partition])
        request = ProduceRequest(transactional_id=actor.name, acks=-1, timeout_ms=3_000, topic_data=[topic])
        answer = await cluster.request_retrying(request, to=Leader(TOPIC, 0), newest=OLD_PRODUCE, timeout_ms=15_000)
        found = answer.responses[0].partition_responses[0]
        if found.error_code:
            code = ErrorCode(found.error_code)
            raise error_for(code, code.meaning)
        return int(found.base_offset)

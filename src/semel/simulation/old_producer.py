"""A producer of the transaction protocol before KIP-890, which may do what our client never does."""

from __future__ import annotations

from typing import Any

from semel.client.cluster.cluster import Cluster, Coordinator, Leader
from semel.errors import ErrorCode, error_for
from semel.machines.transactions import requests
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.records.batch import build
from semel.simulation.event_loop import PROCESS
from semel.simulation.play import CLIENT_SETTINGS, Actor
from semel.wire.messages.produce import ProduceRequest

#: The newest version of Produce that the old protocol has.
OLD_PRODUCE = 11
TRANSACTION_TIMEOUT_MS = 8_000


def cluster_of(actor: Actor) -> Cluster:
    """The connections of this actor's process."""
    settings = {name.replace("_", "."): value for name, value in CLIENT_SETTINGS.items()}
    process = PROCESS.get()
    assert process is not None
    return Cluster({**actor.play.clients.settings, **settings}, environment=process.environment)


class OldProducer:
    """What it is told to send it sends. It keeps no state but its identity; each error that it is told is raised."""

    def __init__(self, actor: Actor, cluster: Cluster) -> None:
        self._actor, self._cluster = actor, cluster
        self._identity = requests.NO_IDENTITY

    async def begin(self) -> None:
        """Take an identity, and fence who had it before."""
        send = requests.init_producer_id(self._actor.name, requests.NO_IDENTITY, TRANSACTION_TIMEOUT_MS)
        answer = await self._ask(send)
        self._identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)

    async def add(self, place: TopicPartition) -> None:
        """Add a partition to the transaction."""
        await self._ask(requests.add_partitions(self._actor.name, self._identity, [place]))

    async def end(self, *, committed: bool) -> None:
        """Commit or abort."""
        await self._ask(
            requests.end(self._actor.name, self._identity, committed=committed, transaction_version=1)
        )

    async def produce(self, place: TopicPartition, sequence: int, value: bytes) -> int:
        """Write one record. Returns its offset."""
        data = build(
            [(None, value)],
            timestamp_ms=self._actor.play.brokers[0].machine.now_ms(),
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        partition = ProduceRequest.PartitionProduceData(index=place.partition, records=data)
        topic = ProduceRequest.TopicProduceData(name=place.topic, partition_data=[partition])
        request = ProduceRequest(transactional_id=self._actor.name, acks=-1, timeout_ms=3_000, topic_data=[topic])
        answer = await self._cluster.request_retrying(
            request, to=Leader(place.topic, place.partition), newest=OLD_PRODUCE, timeout_ms=15_000
        )
        found = answer.responses[0].partition_responses[0]
        if found.error_code:
            code = ErrorCode(found.error_code)
            raise error_for(code, code.meaning)
        return int(found.base_offset)

    async def _ask(self, send: requests.Send) -> Any:
        answer = await self._cluster.request_retrying(
            send.message, to=Coordinator(send.coordinator, send.key), newest=send.newest, timeout_ms=15_000
        )
        code = ErrorCode(getattr(answer, "error_code", 0))
        if code is not ErrorCode.NONE:
            raise error_for(code, code.meaning)
        return answer

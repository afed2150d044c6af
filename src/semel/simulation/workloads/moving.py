"""Partitions whose leaders and replicas move while they are written, because a client asks for it.

What was acknowledged is there once and in order, as with `idempotent`, whoever leads and wherever it is.
"""

from __future__ import annotations

import asyncio
from typing import Any

from semel.client.admin.admin import AsyncAdmin
from semel.client.cluster.cluster import Controller
from semel.errors import KafkaError
from semel.simulation.play import CLIENT_SETTINGS, Actor, Play
from semel.simulation.workloads import workload
from semel.simulation.workloads.idempotent import PARTITIONS, Idempotent
from semel.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    ElectLeadersRequest,
)

TIMEOUT_MS = 5_000
PREFERRED = 0


async def _ask(admin: AsyncAdmin, request: Any) -> None:
    """Ask once: what is not needed, or cannot be now, is answered so."""
    await admin.cluster.request(Controller(), request, timeout_ms=TIMEOUT_MS)


async def _reassign(admin: AsyncAdmin, topic: str, numbers: list[int], replicas: list[int] | None) -> None:
    request = AlterPartitionReassignmentsRequest
    partitions = [request.ReassignablePartition(partition_index=number, replicas=replicas) for number in numbers]
    topics = [request.ReassignableTopic(name=topic, partitions=partitions)]
    await _ask(admin, request(timeout_ms=TIMEOUT_MS, topics=topics))


class Moving(Idempotent):
    """Producers and a reader, and a mover that asks again and again."""

    alone = False

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        play.actor(f"{self.prefix}mover-0", self.move)

    async def move(self, actor: Actor) -> None:
        """Until the end; then everything goes back to its place."""
        play, chance = self.play, actor.chance
        async with play.clients.admin(**CLIENT_SETTINGS) as admin:
            while not play.is_ending:
                await asyncio.sleep(chance.choice((0.05, 0.5, 2.0)) * chance.random())
                try:
                    await self.one_move(admin, actor)
                    play.counts[f"{self.prefix}moves"] += 1
                except KafkaError as error:
                    play.counts[f"{self.prefix}moves refused: {error.code.name}"] += 1
            await self.put_back(admin)

    async def one_move(self, admin: AsyncAdmin, actor: Actor) -> None:
        """Ask for one."""
        raise NotImplementedError

    async def put_back(self, admin: AsyncAdmin) -> None:
        """At the end."""


@workload("elections")
class Elections(Moving):
    """Partitions go to their first replica, again and again; which one is the first changes."""

    topic, prefix = "elected", "elections-"
    judged_topics = ("elected",)

    async def one_move(self, admin: AsyncAdmin, actor: Actor) -> None:
        chosen = [number for number in range(PARTITIONS) if actor.chance.random() < 0.7]
        if actor.chance.random() < 0.5:
            order = actor.chance.sample(range(1, len(self.play.brokers) + 1), min(3, len(self.play.brokers)))
            await _reassign(admin, self.topic, chosen, order)
        rows = [ElectLeadersRequest.TopicPartitions(topic=self.topic, partitions=chosen)]
        wanted = rows if actor.chance.random() < 0.7 else None  # None: all partitions, of every topic
        await _ask(admin, ElectLeadersRequest(election_type=PREFERRED, topic_partitions=wanted, timeout_ms=TIMEOUT_MS))


@workload("reassignments")
class Reassignments(Moving):
    """Replicas are added, taken away and put into another order; some moves are cancelled. Partitions are added too."""

    topic, prefix = "moved", "reassignments-"
    judged_topics = ("moved",)

    async def one_move(self, admin: AsyncAdmin, actor: Actor) -> None:
        chance, brokers = actor.chance, range(1, len(self.play.brokers) + 1)
        if chance.random() < 0.1:
            count = PARTITIONS + chance.randint(1, 3)
            rows = [CreatePartitionsRequest.CreatePartitionsTopic(name=self.topic, count=count)]
            await _ask(admin, CreatePartitionsRequest(topics=rows, timeout_ms=TIMEOUT_MS))
            return
        wanted: list[int] | None = chance.sample(brokers, min(len(brokers), chance.choice((2, 3, 3))))
        if chance.random() < 0.15:
            wanted = None  # cancel it
        chosen = [number for number in range(PARTITIONS) if chance.random() < 0.7]
        await _reassign(admin, self.topic, chosen, wanted)

    async def put_back(self, admin: AsyncAdmin) -> None:
        await _reassign(admin, self.topic, list(range(PARTITIONS)), [1, 2, 3][: len(self.play.brokers)])

"""Producers that leave in the middle of a transaction and never come back: the coordinator ends it in time."""

from __future__ import annotations

import asyncio
import contextvars

from semel.simulation.play import Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.transfers import TRANSACTIONAL
from semel.testing.history import Ended, Outcome

TOPIC = "left"
#: At rest everybody has waited for longer than this: T6.
TIMEOUT_MS = 4_000


@workload("timeouts")
class Timeouts(Workload):
    """Each life has a transactional id of its own, which nobody uses again."""

    judged_topics = (TOPIC,)

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        play.actor("leaver-0", self.leave)

    async def prepare(self) -> None:
        await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=1))

    async def leave(self, actor: Actor) -> None:
        """Write something, and die."""
        play, loop = self.play, self.play.world.loop
        await asyncio.sleep(actor.chance.random() * 2)
        if play.is_ending:
            return
        transaction = (actor.who, 1)
        settings = {**TRANSACTIONAL, "transaction_timeout_ms": TIMEOUT_MS, "transactional_id": actor.who}
        async with play.clients.producer(**settings) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            value = play.next_value(actor.who)
            place = play.sending(actor.who, TOPIC, 0, value, transaction)
            play.note(Ended(actor.who, transaction, Outcome.FAILED))
            play.sent(place, (await (await producer.send(TOPIC, value, partition=0))).offset)
            play.counts["transactions left open"] += 1
            loop.call_soon(actor.kill, context=contextvars.Context())
            await asyncio.sleep(60)

"""Many transactional ids that are used for a while and then no more: all of them are forgotten, and none too early.

Alone in its world it forgets within seconds, so that ids come back after they were forgotten. Beside others it waits
longer than any client retries.
"""

from __future__ import annotations

import asyncio

from semel.client.admin.admin import AsyncAdmin
from semel.simulation.play import Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.transfers import TRANSACTIONAL, end

TOPIC = "many-ids"
PARTITIONS = 2
IDS_EACH = 8
PREFIX = "many"
#: How often the broker looks for what has expired.
INTERVAL_MS = 1_000


@workload("expiry")
class Expiry(Workload):
    """Each actor has several ids, one transaction at a time."""

    judged_topics = (TOPIC,)
    expires_ms: int

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        self.expires_ms = 6_000 if len(play.plan.workloads) == 1 else 30_000
        play.set_for_brokers(
            {
                "transactional.id.expiration.ms": self.expires_ms,
                "transaction.remove.expired.transaction.cleanup.interval.ms": INTERVAL_MS,
                "producer.id.expiration.ms": self.expires_ms,
                "producer.id.expiration.check.interval.ms": INTERVAL_MS,
            }
        )
        for number in range(3):
            play.actor(f"{PREFIX}-{number}", self.use)

    async def prepare(self) -> None:
        await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=PARTITIONS))

    async def use(self, actor: Actor) -> None:
        """Take one id after the other."""
        play, chance = self.play, actor.chance
        number = 0
        while not play.is_ending:
            name = f"{actor.name}.{chance.randrange(IDS_EACH)}"
            async with play.clients.producer(**TRANSACTIONAL, transactional_id=name) as producer:
                await producer.init_transactions()
                for _ in range(chance.choice((0, 1, 1, 2))):
                    number += 1
                    transaction = (actor.who, number)
                    await producer.begin_transaction()
                    deliveries = []
                    for partition in range(PARTITIONS):
                        value = play.next_value(actor.who)
                        place = play.sending(actor.who, TOPIC, partition, value, transaction)
                        deliveries.append((place, await producer.send(TOPIC, value, partition=partition)))
                    for place, delivery in deliveries:
                        play.sent(place, (await delivery).offset)
                    await end(play, actor, producer, transaction, commit=chance.random() < 0.8)
                    if chance.random() < 0.1:
                        # So long that it may be forgotten meanwhile. That must not go unnoticed.
                        await asyncio.sleep(chance.random() * 10)

    async def check(self, committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]) -> None:
        play = self.play
        if play.struck["clock jumps"]:
            return  # nobody knows what is old
        await asyncio.sleep((self.expires_ms + 3 * INTERVAL_MS) / 1000)
        left = await play.admin(_transactional_ids)
        if left:
            play.world.violated(f"expiry: {len(left)} ids are still known, such as {left[0]}")
        for broker in play.brokers:
            assert broker.server is not None
            for number in range(PARTITIONS):
                log = broker.server.topics.partition(TOPIC, number).own_log
                if count := len(list(log.producers)):
                    play.world.violated(f"expiry: {TOPIC}-{number} still knows {count} producers")


async def _transactional_ids(admin: AsyncAdmin) -> list[str]:
    return [one.transactional_id for one in await admin.list_transactions() if one.transactional_id.startswith(PREFIX)]

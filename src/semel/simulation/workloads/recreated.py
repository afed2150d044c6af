"""Topics that are created, written, read, deleted and created again under the same name, while brokers fail.

A topic of today has nothing of an earlier one of its name, and of a deleted one nothing is left on any disk.
"""

from __future__ import annotations

import asyncio

from semel.client.admin.admin import AsyncAdmin
from semel.errors import ErrorCode, KafkaError
from semel.simulation.play import CLIENT_SETTINGS, CONSUMER_SETTINGS, PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.world import DATA
from semel.wire.apis import ApiKey

NAMES = ("again-0", "again-1")
PARTITIONS = 2
#: How long it may take until a topic is gone, or its records are there, with faults that last.
WITHIN_S = 90.0


@workload("recreated")
class Recreated(Workload):
    """One actor for each name."""

    alone = False
    not_repeated = frozenset({ApiKey.PRODUCE})  # it names the topic by its name, so it would be in the next one

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        for name in NAMES:
            play.actor(f"creator-{name}", self.live)

    async def live(self, actor: Actor) -> None:
        """One topic after the other."""
        play, chance, name = self.play, actor.chance, actor.name.removeprefix("creator-")
        number = 0
        while not play.is_ending:
            number += 1
            mark = f"{actor.who}.{number} ".encode()
            async with play.clients.admin(**CLIENT_SETTINGS) as admin:
                await self._delete(admin, name)
                await admin.create_topic(name, partitions=PARTITIONS)
                play.counts["topics created"] += 1
            async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=0) as producer:
                deliveries = [
                    await producer.send(name, mark + b"x" * 50, partition=index % PARTITIONS)
                    for index in range(chance.choice((0, 2, 10)))
                ]
                for delivery in deliveries:
                    await delivery
            await self._read(name, mark, len(deliveries))
            await asyncio.sleep(chance.random())
        async with play.clients.admin(**CLIENT_SETTINGS) as admin:
            await self._delete(admin, name)

    @staticmethod
    async def _delete(admin: AsyncAdmin, name: str) -> None:
        """Delete the topic if it is there, and wait until it is not."""
        async with asyncio.timeout(WITHIN_S):
            while name in await admin.list_topics():
                try:
                    await admin.delete_topics([name])
                except KafkaError as error:
                    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise
                await asyncio.sleep(0.1)

    async def _read(self, name: str, mark: bytes, count: int) -> None:
        """Everything in the topic is of this life of it. A broker that lags may show an earlier one at first."""
        loop = self.play.world.loop
        until_s = loop.time() + WITHIN_S
        while True:
            found = await self._values(name, count)
            if len(found) == count and all(value.startswith(mark) for value in found):
                return
            if loop.time() > until_s:
                self.play.world.violated(f"recreated: {name} of {mark!r} should have {count} records, and has {found}")
                return
            await asyncio.sleep(0.5)

    async def _values(self, name: str, count: int) -> list[bytes]:
        places = [(name, number) for number in range(PARTITIONS)]
        found: list[bytes] = []
        async with self.play.clients.consumer(**CONSUMER_SETTINGS) as consumer:
            consumer.assign(places)
            consumer.seek_to_beginning(places)
            for _ in range(8):
                found += [one.value or b"" for one in await consumer.poll(timeout_ms=250)]
                if count and len(found) >= count:
                    break
        return found

    async def check(self, committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]) -> None:
        for broker in self.play.brokers:
            for path, _ in broker.machine.disk.files(DATA):
                directory = path.removeprefix(f"{DATA}/").partition("/")[0]
                if directory in [f"{name}-{number}" for name in NAMES for number in range(PARTITIONS)]:
                    self.play.world.violated(f"recreated: {broker.machine.name} still has {path}")
                    return

"""Consume, transform, produce: groups of sessions copy a topic, while members come and go.

Each input record is in the output exactly once (G1), whatever was killed, paused or cut off.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from functools import partial

from semel.client.admin.admin import AsyncAdmin
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.consumer.fetcher import ConsumerRecord
from semel.errors import ErrorCode, KafkaError
from semel.simulation.play import CONSUMER_SETTINGS, PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.testing.history import Ended, Ending, Outcome

PARTITIONS = 3
#: Without input for so long after the end, everything has been copied.
QUIET_S = 16.0
#: A rebalance without faults takes less.
REBALANCE_S = 3.0
GROUPS: dict[str, dict[str, object]] = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}


class Quiet:
    """Knows how long nothing has come to a member of a group, for which it must have partitions. A dead member keeps
    them until its session ends, which begins anew with every coordinator."""

    def __init__(self, play: Play, consumer: AsyncConsumer) -> None:
        self._play = play
        self._consumer = consumer
        self._last = self._had_partitions = play.world.loop.time()

    def something_came(self) -> None:
        self._last = self._play.world.loop.time()

    def is_over(self, fed_until: float) -> bool:
        """Whether the member may end. Asked again and again."""
        now = self._play.world.loop.time()
        if self._consumer.assignment():
            self._had_partitions = now
        elif now - self._had_partitions > REBALANCE_S:
            self._last = now
        return self._play.is_ending and now - max(self._last, fed_until) >= QUIET_S


class Copying(Workload):
    """One kind of group; the subclasses say which."""

    group: str

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        self.source, self.target = f"in-{self.group}", f"out-{self.group}"
        self.judged_topics = (self.source, self.target)
        play.actor(f"source-{self.group}", self.feed)
        for number in range(self.chance.randint(2, 3)):
            play.actor(f"copier-{self.group}-{number}", self.copy)
        self._fed_until = 0.0

    async def prepare(self) -> None:
        for topic in (self.source, self.target):
            await self.play.admin(partial(create, topic, PARTITIONS))

    async def feed(self, actor: Actor) -> None:
        """Send what is to be copied."""
        play, chance = self.play, actor.chance
        async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=0) as producer:
            while not play.is_ending:
                deliveries = []
                for _ in range(chance.choice((1, 2, 6))):
                    partition = chance.randrange(PARTITIONS)
                    value = play.next_value(actor.who)
                    place = play.sending(actor.who, self.source, partition, value)
                    deliveries.append((place, await producer.send(self.source, value, partition=partition)))
                for place, delivery in deliveries:
                    try:
                        play.sent(place, (await delivery).offset)
                    except KafkaError:
                        play.counts["sends of unknown fate"] += 1
                self._fed_until = play.world.loop.time()
                await asyncio.sleep(chance.random() * 0.6)
        self._fed_until = play.world.loop.time()

    def _settings(self, actor: Actor) -> dict[str, object]:
        group = GROUPS[self.group]
        settings = {**PRODUCER_SETTINGS, **CONSUMER_SETTINGS, **group}
        if self.group == "consumer":
            for name in ("session_timeout_ms", "heartbeat_interval_ms"):
                settings.pop(name)
        return {
            **settings,
            "group_id": f"group-{self.group}",
            "transactional_id": actor.name,
            "transaction_timeout_ms": 8_000,
            "linger_ms": 0,
        }

    async def copy(self, actor: Actor) -> None:
        """Copy until there was nothing to copy for a while after the end."""
        play, chance = self.play, actor.chance
        async with play.clients.session(**self._settings(actor)) as session:
            await session.subscribe([self.source])
            quiet, number = Quiet(play, session._consumer), 0
            while not quiet.is_over(self._fed_until):
                number += 1
                transaction = (actor.who, number)
                aborted = session.aborted
                records: list[ConsumerRecord] = []
                with suppress(_Stumbled):
                    async with session.transaction(timeout_ms=500) as records:
                        for one in records:
                            # Each try has a value of its own, so that the judge can tell them apart.
                            assert one.value is not None
                            value = one.value + b" by " + f"{actor.who}.{number}".encode()
                            play.sending(actor.who, self.target, one.partition, value, transaction)
                            await session.send(self.target, value, partition=one.partition)
                        if records:
                            quiet.something_came()
                            if chance.random() < 0.1:
                                await asyncio.sleep(chance.random() * 2)
                            if chance.random() < 0.05:
                                play.note(Ended(actor.who, transaction, Outcome.FAILED))
                                raise _Stumbled
                            play.note(Ending(actor.who, transaction))
                if records and session.aborted == aborted:
                    play.note(Ended(actor.who, transaction, Outcome.OK))
                    play.counts["copied batches"] += 1
                if chance.random() < 0.005:
                    raise Restart  # it leaves the group for a while

    async def check(self, committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]) -> None:
        check_copied(self.play, f"copying, {self.group}", self.source, self.target, committed)


def check_copied(
    play: Play,
    what: str,
    source: str,
    target: str,
    committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]],
) -> None:
    """Each record of one topic is in the other exactly once. A copy's value goes on after a space."""
    expected, found = Counter[bytes](), Counter[bytes]()
    for (topic, _), records in committed.items():
        for _, _, value in records:
            assert value is not None
            if topic == source:
                expected[value] += 1
            elif topic == target:
                found[value.partition(b" ")[0]] += 1
    for value in expected - found:
        play.world.violated(f"{what}: {value!r} is missing in the output")
        break
    for value in found - expected:
        play.world.violated(f"{what}: {value!r} is there {found[value]} times")
        break


async def create(topic: str, partitions: int, admin: AsyncAdmin) -> None:
    """Make a topic; for `play.admin`."""
    await admin.create_topic(topic, partitions=partitions)


class _Stumbled(Exception):
    """A mistake in the block of a transaction: its batch comes again."""


class Restart(KafkaError):
    """The actor has had enough; its next life begins."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NONE, "restarts by itself")


@workload("copying-eager")
class CopyingEager(Copying):
    """A classic group that revokes everything at a rebalance."""

    group = "eager"


@workload("copying-cooperative")
class CopyingCooperative(Copying):
    """A classic group that moves only what must be moved."""

    group = "cooperative"


@workload("copying-consumer")
class CopyingConsumer(Copying):
    """A group of the consumer protocol (KIP-848)."""

    group = "consumer"

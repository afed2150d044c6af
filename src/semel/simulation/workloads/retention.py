"""A topic whose old records are removed: what is removed was old enough, and what is left has no hole.

Records get the broker's time, so that only its clock decides. Besides, somebody deletes records by hand
(DeleteRecords).
"""

from __future__ import annotations

import asyncio

from semel.errors import KafkaError
from semel.simulation.play import CLIENT_SETTINGS, CONSUMER_SETTINGS, PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload

TOPIC = "short-lived"
PARTITIONS = 2
RETENTION_S = 4.0
SEGMENT_BYTES = 1_500


@workload("retention")
class Retention(Workload):
    """Writers, a reader that may be overtaken, and somebody who deletes."""

    in_a_cluster = False  # it has not been played there yet

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        play.set_for_brokers({"log.retention.check.interval.ms": 1_000})
        #: By partition: offset -> the value that somebody knows to be there, and when it was sent at the earliest.
        self.known: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.sent_s: dict[bytes, float] = {}
        #: Below this offset everything may be gone: somebody asked for that.
        self.deleted_to = [0] * PARTITIONS
        for number in range(2):
            play.actor(f"short-writer-{number}", self.write)
        play.actor("short-reader", self.read)
        play.actor("deleter", self.delete)

    async def prepare(self) -> None:
        configs = {
            "retention.ms": str(int(RETENTION_S * 1000)),
            "segment.bytes": str(SEGMENT_BYTES),
            "segment.ms": "2000",
            "message.timestamp.type": "LogAppendTime",
            "file.delete.delay.ms": "500",
        }
        await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=PARTITIONS, configs=configs))

    def _see(self, partition: int, offset: int, value: bytes) -> None:
        """R4: an offset holds one record, for ever."""
        before = self.known[partition].setdefault(offset, value)
        if before != value:
            self.play.world.violated(f"retention: offset {offset} of {partition} held {before!r}, and now {value!r}")

    async def write(self, actor: Actor) -> None:
        """Send records, one after the other."""
        play, chance = self.play, actor.chance
        async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=0) as producer:
            while not play.is_ending:
                partition, value = chance.randrange(PARTITIONS), play.next_value(actor.who)
                self.sent_s[value] = play.world.loop.time()
                try:
                    sent = await (await producer.send(TOPIC, value, partition=partition))
                    if sent.offset >= 0:
                        self._see(partition, sent.offset, value)
                except KafkaError:
                    play.counts["sends of unknown fate"] += 1
                await asyncio.sleep(chance.random() * 0.2)

    async def read(self, actor: Actor) -> None:
        """Read on, now and then after a rest so long that the position is gone."""
        play, chance = self.play, actor.chance
        last = [-1] * PARTITIONS
        async with play.clients.consumer(**CONSUMER_SETTINGS) as consumer:
            consumer.assign([(TOPIC, number) for number in range(PARTITIONS)])
            while not play.is_ending:
                for one in await consumer.poll(timeout_ms=300):
                    assert one.value is not None
                    self._see(one.partition, one.offset, one.value)
                    if one.offset <= last[one.partition]:
                        play.world.violated(f"retention: a reader of {one.partition} went back to {one.offset}")
                    last[one.partition] = one.offset
                if chance.random() < 0.05:
                    await asyncio.sleep(chance.random() * 8)

    async def delete(self, actor: Actor) -> None:
        """Delete the oldest records by hand."""
        play, chance = self.play, actor.chance
        async with play.clients.admin(**CLIENT_SETTINGS) as admin:
            while not play.is_ending:
                await asyncio.sleep(1 + chance.random() * 4)
                partition = chance.randrange(PARTITIONS)
                known = sorted(self.known[partition])
                if known:
                    offset = chance.choice(known[-20:])
                    self.deleted_to[partition] = max(self.deleted_to[partition], offset)
                    await admin.delete_records({(TOPIC, partition): offset})

    async def check(self, committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]) -> None:
        from semel.simulation.checkers.histories import read_back

        play = self.play
        history = len(play.history)
        found = await read_back(play, (TOPIC,))
        del play.history[history:]  # what retention removed would be missed
        now_s = play.world.loop.time()
        server = play.brokers[0].server
        assert server is not None
        clock_is_right = not play.struck["clock jumps"]
        for number in range(PARTITIONS):
            log = server.topics.partition(TOPIC, number).own_log
            first = log.log_start_offset
            seen: set[bytes] = set()
            for offset, _, value in found[TOPIC, number]:
                assert value is not None
                self._see(number, offset, value)
                if value in seen:
                    play.world.violated(f"retention: {value!r} is twice in {number}")
                seen.add(value)
            for offset, value in self.known[number].items():
                if offset >= first and value not in seen:
                    play.world.violated(f"retention: offset {offset} of {number} is missing, the log begins at {first}")
                age_s = now_s - self.sent_s[value]
                if self.deleted_to[number] <= offset < first and age_s < RETENTION_S and clock_is_right:
                    play.world.violated(f"retention: offset {offset} of {number} was removed after {age_s:.1f} s")
            if clock_is_right and log.size_bytes > 3 * SEGMENT_BYTES:
                play.world.violated(f"retention: {number} still has {log.size_bytes} bytes")

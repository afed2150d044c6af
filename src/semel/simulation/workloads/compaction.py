"""A compacted topic: after any compaction the last committed value of every key is there, and none goes back."""

from __future__ import annotations

import asyncio

from semel.simulation.play import CONSUMER_SETTINGS, PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload

TOPIC = "latest"
KEYS_EACH = 16
TOMBSTONE = b"gone"


@workload("compaction")
class Compaction(Workload):
    """Each writer has keys of its own, so it knows what the last value of each must be."""

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        #: Key -> its versions in the order they were sent: (number, deleted, committed: True, False or None).
        self.versions: dict[bytes, list[tuple[int, bool, bool | None]]] = {}
        #: Where the records of the brief writer are, as it was told, by their numbers.
        self.places: dict[int, int] = {}
        for number in range(2):
            play.actor(f"writer-{number}", self.write)
        play.actor("brief-writer", self.write_briefly)
        play.actor("latest-reader", self.read)

    async def prepare(self) -> None:
        configs = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.bytes": "2000",
            "segment.ms": "4000",
            # A replica that is away for longer never sees a deletion, as in Kafka.
            "delete.retention.ms": "60000" if self.play.is_cluster else "3000",
        }
        await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=1, configs=configs))

    async def write(self, actor: Actor) -> None:
        """Overwrite keys, in transactions or without."""
        play, chance = self.play, actor.chance
        keys = [f"{actor.name} {number}".encode() for number in range(KEYS_EACH)]
        transactional = {"transactional_id": actor.name, "transaction_timeout_ms": 8_000}
        async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=0, **transactional) as producer:
            await producer.init_transactions()
            while not play.is_ending:
                await producer.begin_transaction()
                noted = []
                for _ in range(chance.randint(1, 5)):
                    # Some keys are written all the time, others hardly ever: those must outlive many compactions.
                    key, deleted = keys[int(len(keys) * chance.random() ** 3)], chance.random() < 0.1
                    number = int(play.next_value("").rpartition(b".")[2])
                    versions = self.versions.setdefault(key, [])
                    versions.append((number, deleted, None))
                    noted.append((versions, len(versions) - 1))
                    await producer.send(TOPIC, None if deleted else b"%d" % number, key, partition=0)
                commit = chance.random() < 0.7
                if chance.random() < 0.1:
                    # Meanwhile others go on, segments are full, and the cleaner comes along: it must wait here.
                    await producer.flush()
                    await asyncio.sleep(chance.random() * 7)
                if not commit:
                    self._settle(noted, False)
                    await producer.flush()  # else an abort may forget what was not sent yet
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    self._settle(noted, True)
                await asyncio.sleep(chance.random() * 0.3)

    async def write_briefly(self, actor: Actor) -> None:
        """A new producer for every few records. What the log knows of each must outlive its records, which the next
        one overwrites: else a request that comes again is written again."""
        play, chance = self.play, actor.chance
        keys = [f"{actor.name} {number}".encode() for number in range(3)]
        while not play.is_ending:
            async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=0) as producer:
                for _ in range(chance.randint(1, 3)):
                    number = int(play.next_value("").rpartition(b".")[2])
                    sent = await (await producer.send(TOPIC, b"%d" % number, chance.choice(keys), partition=0))
                    if sent.offset >= 0:
                        self._is_at(number, sent.offset)
            await asyncio.sleep(chance.random())

    def _is_at(self, number: int, offset: int) -> None:
        """A record has one offset, for ever."""
        before = self.places.setdefault(number, offset)
        if before != offset:
            self.play.world.violated(f"compaction: {number} is at offset {before}, and again at {offset}")

    @staticmethod
    def _settle(noted: list[tuple[list[tuple[int, bool, bool | None]], int]], committed: bool) -> None:
        for versions, place in noted:
            number, deleted, _ = versions[place]
            versions[place] = number, deleted, committed

    async def read(self, actor: Actor) -> None:
        """What is seen of a key only gets newer."""
        play = self.play
        seen: dict[bytes, int] = {}
        settings = {**CONSUMER_SETTINGS, "isolation_level": "read_committed"}
        async with play.clients.consumer(**settings) as consumer:
            consumer.assign([(TOPIC, 0)])
            while not play.is_ending:
                for one in await consumer.poll(timeout_ms=500):
                    if one.value is not None and one.key is not None:
                        number = int(one.value)
                        if one.key not in self.versions:
                            self._is_at(number, one.offset)
                        elif number <= seen.get(one.key, -1):
                            play.world.violated(f"compaction: {one.key!r} went back from {seen[one.key]} to {number}")
                        seen[one.key] = number

    async def check(self, committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]) -> None:
        if self.play.is_cluster and self.play.struck["clock jumps"]:
            return  # nobody knows for how long deletions are kept
        from semel.simulation.checkers.histories import read_back

        history = len(self.play.history)
        found = (await read_back(self.play, (TOPIC,)))[TOPIC, 0]
        del self.play.history[history:]  # what compaction removed would be missed
        visible: dict[bytes, bytes | None] = {}
        for offset, key, value in found:
            assert key is not None
            visible[key] = value
            if key not in self.versions and value is not None:
                self._is_at(int(value), offset)
        for key, versions in self.versions.items():
            # The last one that is known to be committed, or any later one of unknown fate.
            last = max((place for place, one in enumerate(versions) if one[2] is True), default=-1)
            allowed = [one for one in versions[max(last, 0) :] if one[2] is not False]
            texts = {None if deleted else b"%d" % number for number, deleted, _ in allowed}
            if last < 0:
                texts.add(None)
            shown = visible.get(key)
            if shown not in texts:
                self.play.world.violated(f"compaction: {key!r} is {shown!r}, not one of {sorted(map(str, texts))[:5]}")

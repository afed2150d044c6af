"""Random lives on a real broker: producers of both protocols, zombies, timeouts, offsets, restarts and crashes.

What a reader of committed records ends up with is exactly what was committed, in the order in which it was written
(R1, R3, R5); a group's offset is the last one that was committed (G1); the files keep every invariant (L, T, C). What
readers saw on the way, up to the last stable offset of every partition, is judged as a history.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from semel.broker.topics.internal import INTERNAL_TOPICS
from semel.errors import ErrorCode
from semel.records.batch import split
from semel.testing.history import (
    Assigned,
    Ended,
    Ending,
    Operation,
    Outcome,
    Poll,
    Reached,
    Seen,
    Send,
    judge,
)
from semel.testing.invariants import Watch, check
from tests.broker.raw import batch
from tests.scenarios.power import PowerDisk, cut_power
from tests.scenarios.stage import Scene, Stage, Steps, committed_records
from tests.support.waiting import until

E = ErrorCode
PARTITIONS = 2
#: What every client answers by asking again: the markers of the last transaction are being written.
LATER = (E.CONCURRENT_TRANSACTIONS, E.NOT_ENOUGH_REPLICAS)


def patiently(ask: Callable[[], ErrorCode]) -> ErrorCode:
    """Ask until the answer is one."""
    answers: list[ErrorCode] = []
    until(lambda: answers.append(ask()) or answers[-1] not in LATER, within_s=10, what="another answer than 'later'")
    return answers[-1]


@dataclass
class Life:
    """One run: what was done, and what must be visible because of it."""

    stage: Stage
    scene: Scene
    chance: random.Random
    version: int | None
    #: Where the power is cut instead of the process killed.
    disk: PowerDisk | None = None
    watch: Watch = field(default_factory=Watch)
    producers: list[Steps] = field(default_factory=list)
    #: By producer: what its open transaction holds.
    open_records: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    open_offset: dict[str, int] = field(default_factory=dict)
    #: By partition: every value in the order it was written, and which of them count.
    written: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    committed: set[bytes] = field(default_factory=set)
    offset: int = -1
    number: int = 0
    history: list[Operation] = field(default_factory=list)
    #: How many transactions each producer has ended.
    ended: Counter[str] = field(default_factory=Counter)

    def sent(self, partition: int, values: list[bytes], producer: Steps | None = None) -> None:
        self.written[partition] += values
        name = "plain" if producer is None else producer.id
        transaction = None if producer is None else (name, self.ended[name])
        self.history += [Send(name, "ledger", partition, value, transaction=transaction) for value in values]

    def has_ended(self, producer: Steps, outcome: Outcome) -> None:
        self.history.append(Ended(producer.id, (producer.id, self.ended[producer.id]), outcome))
        self.ended[producer.id] += 1

    def step(self) -> None:
        actions = [self.write] * 8 + [self.commit] * 3 + [self.abort] * 2
        actions += [self.send_offset, self.take_over, self.retry, self.plain, self.look, self.tidy_up]
        self.chance.choice(actions)()
        if self.chance.random() < 0.02:
            self.begin_anew()

    def producer(self) -> Steps:
        return self.chance.choice(self.producers)

    def write(self) -> None:
        producer, partition = self.producer(), self.chance.randrange(PARTITIONS)
        values = [b"%06d" % (self.number + position) for position in range(self.chance.randint(1, 3))]
        self.number += len(values)
        assert patiently(lambda: producer.write("ledger", *values, partition=partition)) is E.NONE
        self.sent(partition, values, producer)
        self.open_records.setdefault(producer.id, []).extend((partition, value) for value in values)

    def plain(self) -> None:
        value = b"%06d" % self.number
        self.number += 1
        assert self.scene.raw.produce("ledger", batch(value)).error_code == E.NONE
        self.sent(0, [value])
        self.committed.add(value)

    def retry(self) -> None:
        """The last batch again, as if its answer had been lost."""
        producer = self.producer()
        records = self.open_records.get(producer.id, [])
        if records:
            partition, value = records[-1]
            sequence = producer.sequences["ledger", partition] - 1
            answer = producer.produce("ledger", value, sequence=sequence, partition=partition)
            # As long as it was alone in its batch it is recognised; as a part of one it is out of order.
            assert answer[0] in (E.NONE, E.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def send_offset(self) -> None:
        producer = self.producer()
        self.number += 1
        assert patiently(lambda: producer.send_offset("readers", "ledger", self.number)) is E.NONE
        self.open_offset[producer.id] = self.number

    def commit(self) -> None:
        self.end(self.producer(), True)

    def abort(self) -> None:
        self.end(self.producer(), False)

    def end(self, producer: Steps, commit: bool) -> None:
        records, offset = self.open_records.pop(producer.id, []), self.open_offset.pop(producer.id, None)
        if not records and offset is None:
            return
        before = producer.identity
        self.history.append(Ending(producer.id, (producer.id, self.ended[producer.id])))
        assert patiently(lambda: producer.end(commit)) is E.NONE
        self.has_ended(producer, Outcome.OK if commit else Outcome.FAILED)
        if self.chance.random() < 0.3 and producer.protocol == 2:
            assert producer.end(commit, identity=before) in (E.NONE, E.CONCURRENT_TRANSACTIONS)
        if commit:
            self.committed |= {value for _, value in records}
            # Of two transactions the offset that was written later counts, in whichever order they end.
            self.offset = max(self.offset, -1 if offset is None else offset)

    def take_over(self) -> None:
        """The owner is replaced in the middle of what it did; its last words come too late."""
        producer = self.producer()
        zombie = Steps(self.scene, producer.id, protocol=producer.protocol)
        zombie.producer_id, zombie.epoch = producer.identity
        zombie.sequences = dict(producer.sequences)
        self.open_records.pop(producer.id, None)
        self.open_offset.pop(producer.id, None)
        assert producer.init() is E.NONE
        self.has_ended(producer, Outcome.FAILED)
        assert zombie.write("ledger", b"zombie") in (E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED)
        assert zombie.send_offset("readers", "ledger", 999_999) is not E.NONE
        assert zombie.end(True) is not E.NONE

    def look(self) -> None:
        places = [("ledger", partition) for partition in range(PARTITIONS)]
        self.history.append(Assigned("reader", frozenset(places)))
        self.history.append(Reached("reader", tuple((place, 0) for place in places)))
        for isolation in (0, 1):
            for topic, partition in places:
                for data in self.scene.read(topic, partition, isolation):
                    self.watch.saw(topic, isolation, data)
                    if isolation:
                        seen = (Seen(topic, partition, *record) for record in committed_records(data))
                        self.history.append(Poll("reader", tuple(seen)))
                        end = max((one.next_offset for one in split(data.records or b"")), default=None)
                        if end is not None:
                            self.history.append(Reached("reader", (((topic, partition), end),)))

    def tidy_up(self) -> None:
        """The cleaner has its turn with everything the coordinators wrote down."""
        server = self.scene.broker.server

        def compact() -> None:
            for topic in INTERNAL_TOPICS & server.topics.topics.keys():
                for partition in server.topics.topics[topic].partitions:
                    if partition.open_log is not None:
                        partition.log.roll(server.now_ms())
                        partition.log.cleaner.compact(server.now_ms(), force=True)

        self.scene.on_loop(compact)

    def begin_anew(self) -> None:
        if self.disk is not None:
            self.scene, self.disk = cut_power(self.stage, self.scene, self.disk, self.chance)
            for producer in self.producers:
                producer.scene = self.scene
            return
        again = self.stage.crash if self.chance.random() < 0.7 else self.stage.restart
        self.scene = again(self.scene)
        for producer in self.producers:
            producer.scene = self.scene

    def finish(self) -> None:
        for producer in self.producers:
            if self.chance.random() < 0.5:
                self.end(producer, True)
            else:
                assert producer.init() is E.NONE
                self.has_ended(producer, Outcome.FAILED)
                self.open_records.pop(producer.id, None)
        assert self.scene.offset("readers", "ledger", stable=True) == (self.offset, E.NONE)
        names = [producer.id for producer in self.producers]
        until(lambda: not any("Prepare" in self.scene.state(name) for name in names), what="the markers")
        self.look()
        self.watch.check()
        assert [str(anomaly) for anomaly in judge(self.history, at_rest=True)] == []
        for partition in range(PARTITIONS):
            expected = [value for value in self.written[partition] if value in self.committed]
            assert self.scene.committed("ledger", partition) == expected
            stable, high = self.scene.ends("ledger", partition)
            assert stable == high
        self.scene.close()
        check(self.scene.broker.data_dir, transaction_version=self.version, at_rest=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("protocols", [(1, 1), (2, 2), (1, 2)], ids=["v1", "v2", "both"])
def test_what_is_visible_is_what_was_committed(stage: Stage, protocols: tuple[int, ...], seed: int) -> None:
    chance = random.Random(f"{protocols} {seed}")
    durability = "fsync" if seed % 3 == 2 else "os"
    scene = stage.start(log_segment_bytes=3_000, log_index_interval_bytes=300, semel_durability=durability)
    scene.raw.create("ledger", PARTITIONS)
    life = Life(stage, scene, chance, version=2 if 1 not in protocols else None)
    life.producers = [scene.producer(f"application-{number}", protocol=p) for number, p in enumerate(protocols * 2)]
    for _ in range(150):
        life.step()
    life.finish()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("protocols", [(1, 1), (2, 2)], ids=["v1", "v2"])
def test_what_was_acknowledged_after_fsync_survives_a_power_cut(
    stage: Stage, protocols: tuple[int, ...], seed: int
) -> None:
    """C1, C2, R3, T4: nothing that anybody was told or shown is taken back."""
    chance = random.Random(f"power {protocols} {seed}")
    disk = PowerDisk()
    scene = stage.start(disk=disk, log_segment_bytes=3_000, log_index_interval_bytes=300, semel_durability="fsync")
    scene.raw.create("ledger", PARTITIONS)
    life = Life(stage, scene, chance, version=2 if 1 not in protocols else None, disk=disk)
    life.producers = [scene.producer(f"application-{number}", protocol=p) for number, p in enumerate(protocols * 2)]
    for _ in range(100):
        life.step()
        if chance.random() < 0.03:
            life.begin_anew()
    life.finish()

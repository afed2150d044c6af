"""Transactions under kill -9 of the broker, every one to three seconds: nothing lost, nothing twice, nothing stuck.

`make soak` runs it for five minutes with each kind of durability; SEMEL_SOAK_SECONDS says for how long instead. A short
form runs with the other tests.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from semel.testing import invariants
from semel.testing.history import judge
from semel.wire.messages.fetch import ListOffsetsRequest
from tests.broker.raw import Raw
from tests.broker.soak import Copier, Record, Watcher, Worker, Writer
from tests.support.processes import BrokerProcess
from tests.support.waiting import until

PARTITIONS = 3
WRITERS, COPIERS = 4, 2
SOAK_S = float(os.environ.get("SEMEL_SOAK_SECONDS", "300"))
SETTINGS = {
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    # Small segments everywhere, and a cleaner that is never far behind.
    "log.segment.bytes": 30_000,
    "offsets.topic.segment.bytes": 20_000,
    "transaction.state.log.segment.bytes": 20_000,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.delete.retention.ms": 2000,
    "log.retention.check.interval.ms": 1000,
    # A copier that was killed in the middle of a rebalance must not keep the other waiting for long.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
}
#: What ends a client of Apache Kafka too, in the same place of the protocol. Nothing else may.
#: INVALID_TXN_STATE: an AddPartitionsToTxn that died with the broker, and librdkafka aborts without repeating it. The
#: coordinator knows only the committed transaction before (tests/broker/test_retries.py shows it on Apache Kafka).
LAWFUL_ENDS = ("_FENCED", "at abort_transaction: INVALID_TXN_STATE")


class Run:
    """One broker, its clients, and what they did."""

    def __init__(self, data: Path, durability: str, seed: int) -> None:
        self.durability = durability
        self.chance = random.Random(seed)
        self.broker = BrokerProcess(data, settings={**SETTINGS, "semel.durability": durability})
        self.record = Record()
        self.kills = 0
        topics = ("plain", "compacted", "source", "target")
        self.places = [(topic, number) for topic in topics for number in range(PARTITIONS)]
        written = [place for place in self.places if place[0] != "target"]
        at = self.broker.bootstrap_servers
        self.writers: list[Worker] = [
            Writer(f"writer-{number}", at, self.record, seed + number, written) for number in range(WRITERS)
        ]
        self.copiers: list[Worker] = [
            Copier(f"copier-{number}", at, self.record, seed - 1 - number, "source", "target")
            for number in range(COPIERS)
        ]
        self.watching = threading.Event()

    def start(self) -> None:
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        for topic in ("plain", "compacted", "source", "target"):
            config = {"cleanup.policy": "compact"} if topic == "compacted" else {}
            admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(20)
        self.watcher = Watcher(self.broker.bootstrap_servers, self.record, self.places)
        self.watch = threading.Thread(target=self._watch, daemon=True)
        self.watch.start()
        for worker in (*self.writers, *self.copiers):
            worker.thread.start()

    def _watch(self) -> None:
        try:
            while not self.watching.is_set():
                self.watcher.poll(0.2)
        except BaseException as error:
            self.record.failures.append(error)

    def kill_for(self, seconds: float) -> None:
        """Kill the broker every one to three seconds, and start it again at once."""
        wait = threading.Event()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.record.failures:
            wait.wait(self.chance.uniform(1.0, 3.0))  # the moment of the kill is the random input of this test
            self.broker.kill9()
            self.kills += 1
            self.broker.start(within_s=60)

    def settle(self) -> None:
        """With the broker left alone everybody gets on; then nobody begins anything new."""
        for worker in self.writers:
            before = worker.ended
            until(
                lambda w=worker, n=before: w.ended > n or self.record.failures,
                within_s=150,
                what=f"{worker.name} to go on",
            )
        self._end(self.writers)
        there = self._all_of_the_source()

        def copied() -> bool:
            return bool(self.record.failures) or len(self._committed("target")) >= there

        until(copied, within_s=150, what="the copiers to copy what is there", every_s=0.2)
        self._end(self.copiers)

    def _all_of_the_source(self) -> int:
        """How many records are to be copied. Nobody writes any more. The watcher may not have seen the last ones."""
        places = [place for place in self.places if place[0] == "source"]
        self._wait_for_ends(places)
        reader = Watcher(self.broker.bootstrap_servers, self.record, places, "reader of the source")
        until(lambda: self._read_on(reader) and reader.ends == set(places), within_s=120, what="its end", every_s=0)
        reader.close()
        return len(reader.values.get("source", ()))

    def _wait_for_ends(self, places: list[tuple[str, int]]) -> None:
        """Until no transaction is open there."""
        with Raw(self.broker.bootstrap_servers) as raw:
            for topic, partition in places:
                until(
                    lambda t=topic, p=partition: _is_stable(raw, t, p),
                    within_s=60,
                    what=f"the last stable offset of {topic}-{partition} to reach its end",
                )

    def _end(self, workers: list[Worker]) -> None:
        for worker in workers:
            worker.stop.set()
        for worker in workers:
            worker.thread.join(200)
            assert not worker.thread.is_alive(), f"{worker.name} hangs"
        assert self.record.failures == []

    def _committed(self, topic: str) -> list[bytes]:
        return list(self.watcher.values.get(topic, ()))

    def finish(self) -> None:
        """Everything that can be read is read, twice: by who watched all along, and by who comes afterwards."""
        self._wait_for_ends(self.places)
        self.watching.set()
        self.watch.join(30)
        late = Watcher(self.broker.bootstrap_servers, self.record, self.places, "late reader")
        # A client tells of an end once, so only who comes now is sure to be told of every one.
        until(lambda: self._read_on(late) and late.ends == set(self.places), within_s=120, what="every end", every_s=0)
        until(
            lambda: self._read_on(self.watcher) and self.watcher.count >= late.count,
            within_s=60,
            what=f"the watcher to read all of {late.count} records",
            every_s=0,
        )
        for one in (late, self.watcher):
            one.close()
        for topic in ("plain", "compacted", "source", "target"):
            assert sorted(self.watcher.values.get(topic, ())) == sorted(late.values.get(topic, ()))
        copies = Counter(value.partition(b"|")[0] for value in late.values.get("target", ()))
        assert copies == Counter(late.values.get("source", ())), "each record of the source is copied once"
        assert self.broker.stop() == 0

    @staticmethod
    def _read_on(watcher: Watcher) -> bool:
        watcher.poll(0.1)
        return True

    def report(self) -> str:
        workers = [*self.writers, *self.copiers]
        committed, aborted = sum(one.committed for one in workers), sum(one.aborted for one in workers)
        met = ", ".join(f"{what} {count}" for what, count in sorted(self.record.errors.items())) or "none"
        ended = "; ".join(self.record.fatal) or "none"
        return (
            f"{self.durability}: {self.kills} kills, {committed} transactions committed and {aborted} aborted, "
            f"{self.watcher.count} records read; errors met: {met}; clients ended: {ended}"
        )

    def close(self) -> None:
        for worker in (*self.writers, *self.copiers):
            worker.stop.set()
        self.watching.set()
        self.broker.close()


def _is_stable(raw: Raw, topic: str, partition: int) -> bool:
    """Whether readers of committed records get as far as the log goes."""
    found = []
    for isolation_level in (1, 0):
        row = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
        asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])
        answer = raw.ask(ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[asked]), 7)
        found.append(answer.topics[0].partitions[0].offset)
    return found[0] == found[1]


def soak(data: Path, durability: str, seconds: float) -> None:
    run = Run(data, durability, seed=random.randrange(1 << 30))
    try:
        run.start()
        run.kill_for(seconds)
        run.settle()
        run.finish()
    finally:
        print(run.report())
        run.close()
    assert [str(anomaly) for anomaly in judge(run.record.history, at_rest=True)] == []
    unlawful = [what for what in run.record.fatal if not any(code in what for code in LAWFUL_ENDS)]
    assert unlawful == []
    invariants.check(data, at_rest=True)
    assert run.kills >= seconds / 10
    assert sum(worker.committed for worker in run.writers) >= WRITERS


@pytest.mark.timeout(400)
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_seconds_of_kills_lose_nothing_double_nothing_and_leave_nothing_stuck(
    tmp_path: Path, durability: str
) -> None:
    soak(tmp_path / "data", durability, 6.0)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 1200)
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_minutes_of_kills_lose_nothing_double_nothing_and_leave_nothing_stuck(tmp_path: Path, durability: str) -> None:
    soak(tmp_path / "data", durability, SOAK_S)

"""Three of Kafka's transactional copiers in a chain, copiers and broker killed at random: out comes what went in.

A copier reads a topic, writes the next and commits its place, all in one transaction. Any lapse of the broker's
(a fenced copier that could still write, an offset visible without its output, an aborted record shown) comes out at
the end of the chain as a record too many, too few or out of order.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from semel.testing.history import judge
from tests.support import java_tools
from tests.support.dump_log import complaints
from tests.support.processes import BrokerProcess, Process
from tests.support.reading import read_all
from tests.support.stored_transactions import TimedPoll, history, stored_transactions, timed_poll
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("kafka_jars")]

STAGES = 3


class Chain:
    """The copiers, each started again whenever it has ended: a copier stops at the end it saw when it began."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.copiers: list[Process | None] = [None] * STAGES
        self.started = [0] * STAGES

    def tend(self) -> None:
        for stage, copier in enumerate(self.copiers):
            if copier is None or not copier.running():
                if copier is not None:
                    copier.close()
                self.copiers[stage] = self._start(stage)
                self.started[stage] += 1

    def _start(self, stage: int) -> Process:
        return java_tools.start(
            "transactional-message-copier",
            *("--broker-list", self.broker.bootstrap_servers),
            *("--input-topic", f"stage-{stage}", "--input-partition", 0, "--output-topic", f"stage-{stage + 1}"),
            *("--transactional-id", f"copier-{stage}", "--consumer-group", f"copier-{stage}"),
            *("--transaction-size", 50, "--transaction-timeout", 10_000, "--enable-random-aborts"),
        )

    def kill9(self, stage: int) -> None:
        copier = self.copiers[stage]
        if copier is not None:
            copier.kill9()

    def close(self) -> None:
        for copier in self.copiers:
            if copier is not None:
                copier.kill9()
                copier.close()


class Watcher:
    """A read_committed consumer of the last topic, reading through all of it; `polls` are what it saw, in order."""

    def __init__(self, broker: BrokerProcess) -> None:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "watcher", "enable.auto.commit": False}
        quick = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "log_level": 0}
        self.consumer = Consumer({**settings, **quick, "isolation.level": "read_committed"})
        self.consumer.assign([TopicPartition(f"stage-{STAGES}", 0, 0)])
        self.polls: list[TimedPoll] = []
        self.seen = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        while not self.stop.is_set():
            messages = [one for one in self.consumer.consume(1000, timeout=0.1) if one.error() is None]
            if messages:
                self.polls.append(timed_poll(messages))
                self.seen += len(messages)

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        self.consumer.close()


def survive(directory: Path, *, records: int, for_s: float, every_s: tuple[float, float], within_s: float) -> None:
    chance = random.Random(3)
    with BrokerProcess(directory) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = [NewTopic(f"stage-{stage}", 1, 1) for stage in range(STAGES + 1)]
        for created in admin.create_topics(topics).values():
            created.result(10)
        where = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "stage-0")
        java_tools.run("verifiable-producer", *where, "--max-messages", records, "--throughput", -1)
        wanted = [str(number).encode() for number in range(records)]

        chain, watcher = Chain(broker), Watcher(broker)
        pause = threading.Event()
        kills = 0
        try:
            until_s = time.monotonic() + for_s
            while time.monotonic() < until_s:
                chain.tend()
                pause.wait(chance.uniform(*every_s))  # the moment of a kill is the random input of this test
                victim = chance.randrange(STAGES + 1)
                if victim == STAGES:
                    broker.kill9()
                    broker.start()
                else:
                    chain.kill9(victim)
                kills += 1

            def arrived() -> bool:
                chain.tend()
                return watcher.seen >= records

            until(arrived, within_s=within_s, every_s=0.2, what=f"{records} records at the end of the chain")
        finally:
            chain.close()
            watcher.close()
        assert kills > 3
        assert read_all(broker.bootstrap_servers, f"stage-{STAGES}") == wanted
        transactions = stored_transactions(broker.bootstrap_servers, f"stage-{STAGES}")
        assert any(one.committed is False for one in transactions), "none was aborted: nothing was shown"
        assert judge(history(transactions, watcher.polls, in_order=wanted), at_rest=True) == []
        aborted = sum(one.committed is False for one in transactions)
        print(
            f"{records} records through {STAGES} copiers, {kills} kills -9: each once and in order at the end, "
            f"{len(transactions)} transactions stored there, {aborted} aborted, {len(watcher.polls)} polls judged"
        )
        assert broker.stop() == 0
    assert complaints(directory) == []


@pytest.mark.timeout(180)
def test_a_chain_of_copiers_survives_kills(tmp_path) -> None:
    survive(tmp_path / "data", records=3_000, for_s=15, every_s=(1.0, 3.0), within_s=90)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_chain_of_copiers_survives_two_minutes_of_kills(tmp_path) -> None:
    survive(tmp_path / "data", records=50_000, for_s=120, every_s=(0.5, 6.0), within_s=600)

"""A broker killed at random moments under load: each acknowledged record is there once, and its files are sound."""

from __future__ import annotations

import random
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from semel.testing.history import Outcome, Poll, Seen, Send, judge
from tests.support.dump_log import complaints
from tests.support.processes import BrokerProcess
from tests.support.reading import read_all
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("kafka_jars")]

ROUNDS = 20
PARTITIONS = 3


class Load:
    """An idempotent producer that sends for as long as it is told to, through whatever happens to the broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 100,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "queue.buffering.max.messages": 2_000,
                "log_level": 0,
            }
        )
        self.sends: list[Send] = []
        #: How many sends were answered when the broker was started last.
        self.acknowledged_before = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._send)
        self.thread.start()

    def _send(self) -> None:
        number = 0
        while not self.stop.is_set():
            try:
                self.producer.produce("t", str(number).encode(), partition=number % PARTITIONS, on_delivery=self._told)
                number += 1
            except BufferError:
                self.producer.poll(0.05)
            self.producer.poll(0)

    def _told(self, error: object, message: object) -> None:
        outcome = Outcome.OK if error is None else Outcome.UNKNOWN
        self.sends.append(
            Send("producer", message.topic(), message.partition(), message.value(), message.offset(), outcome)
        )

    def has_gone_on(self) -> bool:
        """Whether an answer came since the last start of the broker."""
        return len(self.sends) > self.acknowledged_before

    def finish(self) -> list[Send]:
        self.stop.set()
        self.thread.join()
        assert self.producer.flush(60) == 0
        return self.sends


def test_twenty_kills_under_load_lose_nothing_double_nothing_and_leave_sound_files(tmp_path) -> None:
    chance = random.Random(20)
    settings = {"log.segment.bytes": 1_048_576}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(10)
        load = Load(broker.bootstrap_servers)
        wait = threading.Event()
        try:
            for number in range(ROUNDS):
                if number % 4 == 3:
                    # One more, which may come before clients are back.
                    wait.wait(chance.uniform(0.0, 0.3))
                    broker.kill9()
                    broker.start()
                    load.acknowledged_before = len(load.sends)
                # A kill before the producer has found the broker again would not be one under load.
                until(load.has_gone_on, within_s=20, what="an answer of the broker that was started again")
                wait.wait(chance.uniform(0.05, 0.6))  # the moment of the kill is the random input of this test
                broker.kill9()
                broker.start()
                load.acknowledged_before = len(load.sends)
        finally:
            sends = load.finish()
        assert all(send.outcome is Outcome.OK for send in sends)
        assert len(sends) > ROUNDS * 100
        # Nothing is deleted and there are no markers, so a value's place in the reading is its offset.
        polls = [
            Poll("reader", tuple(Seen("t", partition, offset, value) for offset, value in enumerate(values)))
            for partition in range(PARTITIONS)
            for values in [read_all(broker.bootstrap_servers, "t", partition)]
        ]
        assert judge([*sends, *polls], at_rest=True) == []
        assert broker.stop() == 0
    assert complaints(tmp_path / "data") == []

"""A Kafka Streams application with exactly_once_v2 and a state store: killed, started again, and its output exact."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from semel.testing.history import judge
from tests.support import java_tools
from tests.support.processes import Process
from tests.support.requirements import kafka_libs
from tests.support.stored_transactions import TimedPoll, history, stored_transactions, timed_poll
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

SOURCE = Path(__file__).parent / "java" / "ExactlyOnceCount.java"
RECORDS = 6_000
KEYS = 8
PARTITIONS = 2


def start_counting(broker, state: Path) -> Process:
    command = ["java", *java_tools.QUICK, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command += ["-cp", f"{kafka_libs()}/*", str(SOURCE), broker.bootstrap_servers, "input", "output", str(state)]
    return Process(command, name="streams")


class Output:
    """The committed counts per key, read on and on by librdkafka."""

    def __init__(self, broker) -> None:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "output", "enable.auto.commit": False}
        self.consumer = Consumer({**settings, "isolation.level": "read_committed"})
        self.consumer.assign([TopicPartition("output", partition, 0) for partition in range(PARTITIONS)])
        self.counts: dict[bytes, list[int]] = defaultdict(list)
        self.polls: list[TimedPoll] = []

    def total(self) -> int:
        messages = self.consumer.consume(10_000, timeout=0.1)
        self.polls.append(timed_poll(messages))
        for message in messages:
            assert message.error() is None, message.error()
            self.counts[message.key()].append(int(message.value()))
        return sum(map(len, self.counts.values()))


def test_a_streams_application_killed_twice_counts_each_record_once(broker, tmp_path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for topic in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("input", "output")]).values():
        topic.result(20)
    chance = random.Random(7)
    sent: Counter[bytes] = Counter()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})

    def send(count: int) -> None:
        for _ in range(count):
            key = f"key-{chance.randrange(KEYS)}".encode()
            sent[key] += 1
            producer.produce("input", b"x", key=key)
        assert producer.flush(30) == 0

    output = Output(broker)
    application: Process | None = None
    try:
        for part in range(3):
            application = start_counting(broker, tmp_path / "state")
            application.wait_for_line("state RUNNING", within_s=60)
            before = output.total()
            send(RECORDS // 3)
            if part < 2:
                # In the middle of its work: something came out, and more is on its way.
                until(lambda least=before: output.total() > least, within_s=40, what="the first counts")
                application.kill9()
        until(lambda: output.total() >= RECORDS, within_s=60, what=f"{RECORDS} counts")
        application.terminate()
        assert output.total() == RECORDS
    finally:
        if application is not None:
            application.close()
        output.consumer.close()
    transactions = [
        one
        for partition in range(PARTITIONS)
        for one in stored_transactions(broker.bootstrap_servers, "output", partition)
    ]
    assert judge(history(transactions, output.polls), at_rest=True) == []
    assert output.counts == {key: list(range(1, count + 1)) for key, count in sent.items()}

"""A chain of sessions, killed with -9 together with their broker, for as long as the records last."""

from __future__ import annotations

import random
import sys
import threading
import time

import pytest

from semel import Admin, Consumer, Producer
from semel.testing.history import Seen, judge
from tests.support.processes import BrokerProcess, Process
from tests.support.requirements import CHECKOUT
from tests.support.stored_transactions import TimedPoll, history, stored_transactions

PARTITIONS, COUNT = 3, 40_000


class Chain:
    """Sessions that copy a to b and b to c, two of each, and are started again whenever they end."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.members = [("a", "b", "1"), ("a", "b", "2"), ("b", "c", "1"), ("b", "c", "2")]
        self.processes: dict[tuple[str, str, str], Process] = {}

    def start(self, member: tuple[str, str, str]) -> None:
        source, target, number = member
        script = str(CHECKOUT / "tests" / "client" / "copier.py")
        command = [sys.executable, script, self.bootstrap, source, target, f"{source}-to-{target}", number]
        environment = {"PYTHONPATH": f"{CHECKOUT / 'src'}:{CHECKOUT}"}
        self.processes[member] = Process(command, name=f"copier-{source}-{number}", environment=environment)

    def restart_one(self) -> None:
        member = random.choice(self.members)
        self.processes[member].kill9()
        self.start(member)

    def keep_running(self) -> None:
        for member in self.members:
            if not self.processes[member].running():
                self.start(member)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill9()


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_chain_of_sessions_killed_at_random_copies_every_record_once_and_in_order(
    broker_process: BrokerProcess,
) -> None:
    bootstrap = broker_process.bootstrap_servers
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        for topic in "abc":
            admin.create_topic(topic, PARTITIONS)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(COUNT):
            producer.send("a", b"%d" % number, partition=number % PARTITIONS)
    chain = Chain(bootstrap)
    for member in chain.members:
        chain.start(member)
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    polls: list[TimedPoll] = []
    wait = threading.Event()
    deadline = time.monotonic() + 300
    next_fault = time.monotonic() + 1
    faults = 0
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "retry.backoff.ms": 20}

    def poll(reader: Consumer, timeout_ms: int) -> None:
        records = reader.poll(timeout_ms=timeout_ms)
        seen = (Seen("c", record.partition, record.offset, record.value) for record in records)
        polls.append(TimedPoll(time.time_ns() // 1_000_000, tuple(seen)))
        for record in records:
            found[record.partition].append(int(record.value or b""))

    try:
        with Consumer(config) as reader:
            reader.assign([("c", number) for number in range(PARTITIONS)])
            while sum(map(len, found)) < COUNT and time.monotonic() < deadline:
                poll(reader, 100)
                if time.monotonic() >= next_fault and faults < 25:
                    faults += 1
                    if faults % 6 == 0:
                        broker_process.kill9()
                        broker_process.start()
                    else:
                        chain.restart_one()
                    next_fault = time.monotonic() + random.uniform(0.5, 2.0)
                chain.keep_running()
            wait.wait(1)
            poll(reader, 2_000)
    finally:
        chain.stop()
    written = [one for number in range(PARTITIONS) for one in stored_transactions(bootstrap, "c", number)]
    assert [str(each) for each in judge(history(written, polls))] == []
    assert found == [list(range(number, COUNT, PARTITIONS)) for number in range(PARTITIONS)]
    assert faults >= 5
    print(f"{COUNT} records through {len(chain.members)} sessions, {faults} kills -9: each once and in order")

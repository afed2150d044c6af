"""Three brokers with three replicas of everything, beside Apache Kafka's: rates, waits, and gaps after a kill -9.

Both clusters run on this machine, each alone: Semel's with a ZooKeeper of one node, Kafka's with its three controllers
in the brokers. CPU seconds are those of all of their processes, ZooKeeper's included. All topics need two replicas in
sync. A gap is the longest time between two answers of the same kind while one broker is killed and others take over; a
client that sends all the time measures it. Kafka's session timeout is its default, 9 s; Semel's is the default, too,
but for the frozen leader. What only asks whether Semel keeps a bound is not measured on Kafka.
"""

from __future__ import annotations

import itertools
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.clients import producer_performance, transactional_producer
from bench.harness import Family, Row
from tests.support.apache_kafka import ThreeApacheKafkas
from tests.support.cluster import running_cluster
from tests.support.processes import Process
from tests.support.waiting import until

BULK = "three brokers: produce 500,000 x 100 B, acks=all, 3 replicas"
CPU = "three brokers: CPU of all of them for it"
ONE = "three brokers: one record at a time, acks=all, p50"
TRANSACTION = "three brokers: transaction of 10 records over 3 topics, p50"
LEADER_GAP = "three brokers: longest gap in acks after kill -9 of a leader"
COORDINATOR_GAP = "three brokers: longest gap in commits after kill -9 of the coordinator"
CONTROLLER_GAP = "three brokers: kill -9 of the controller to the next new topic"
MEMORY = "three brokers: resident memory of one, idle"
FROZEN_GAP = "three brokers: SIGSTOP of a leader to the next ack, beyond zookeeper.session.timeout.ms"
ROLLING_GAP = "three brokers: longest gap in acks in a rolling restart of all"
ROLLING_ERRORS = "three brokers: failed sends in it"
AWAY_ERRORS = "three brokers: failed sends while ZooKeeper is away for 60 s"
MANY_GAP = "three brokers: kill -9 of one, 1,000 partitions, to an ack from each of them"
MANY_COST = "three brokers: CPU per record, beside 1,000 partitions to beside none"
TRANSACTION_COST = "three brokers: CPU of a transaction, 50 partitions of each internal topic to 2"
FROZEN_SESSION_MS = 6000

TOPICS = ("orders", "payments", "ledger")
REPLICAS = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
#: Three heaps of a gigabyte would leave little of a small machine for the page cache.
KAFKA_JVM = ("-Xmx512m", "-Xms512m", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


@dataclass
class Brokers:
    """A running cluster of either kind."""

    kind: str
    bootstrap_servers: str
    #: By node id.
    processes: dict[int, Process]
    #: All that its work costs: ZooKeeper too.
    helpers: list[Process]
    restart: Callable[[int], None]

    def cpu_s(self) -> float:
        return sum(process.cpu_s() for process in (*self.processes.values(), *self.helpers))

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def create(self, topic: str, partitions: int = 1) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(60)

    def leader(self, topic: str, partition: int = 0) -> int:
        def found() -> int:
            row = self.admin.list_topics(topic, timeout=30).topics[topic].partitions.get(partition)
            return 0 if row is None else max(0, int(row.leader))  # the broker that is asked may know it a moment later

        return until(found, within_s=30)

    def wait_for_replicas(self) -> None:
        """Until every replica of every topic is in sync."""

        def complete() -> bool:
            topics = self.admin.list_topics(timeout=30).topics.values()
            return all(len(row.isrs) == len(row.replicas) for topic in topics for row in topic.partitions.values())

        until(complete, within_s=120)


@contextmanager
def brokers(kind: str) -> Iterator[Brokers]:
    """Three brokers of one kind, started, with empty data directories."""
    if kind == "kafka":
        with ThreeApacheKafkas(jvm=KAFKA_JVM, settings=REPLICAS) as kafka:
            processes = {number: node.running for number, node in kafka.nodes.items()}

            def restart(number: int) -> None:
                kafka.nodes[number].launch()
                kafka.nodes[number].wait_until_started(within_s=120)
                processes[number] = kafka.nodes[number].running

            yield Brokers(kind, kafka.bootstrap_servers, processes, [], restart)
    else:
        names = {name.replace(".", "_"): value for name, value in REPLICAS.items()}
        with running_cluster(3, session_timeout_ms=None, **names) as cluster:
            processes = {number: broker.running for number, broker in cluster.brokers.items()}

            def restart(number: int) -> None:
                cluster[number].start()
                processes[number] = cluster[number].running

            helpers = [node.running for node in cluster.zookeeper.nodes]
            yield Brokers(kind, cluster.bootstrap_servers, processes, helpers, restart)


def measure(cluster: Any) -> dict[str, float]:
    for topic in (*TOPICS, "bulk", "single"):
        cluster.create(topic)
    figures = {MEMORY: statistics.mean(one.resident_bytes() for one in cluster.processes.values()) / 1e6}
    producer_performance(cluster, "bulk", 50_000, 100)  # Kafka's compiler has seen it once
    used_s = cluster.cpu_s()
    figures[BULK] = producer_performance(cluster, "bulk", 500_000, 100)
    figures[CPU] = cluster.cpu_s() - used_s
    figures[ONE] = one_at_a_time(cluster)
    figures[TRANSACTION] = transactions(cluster)
    figures[LEADER_GAP] = gap(cluster, _send_records(cluster, "single"), lambda: cluster.leader("single"))
    figures[COORDINATOR_GAP] = gap(cluster, _commit(cluster, "gap"), lambda: coordinator(cluster, "gap"))
    if cluster.kind == "semel":  # in Kafka the controller is behind all brokers, and no client is told which it is
        figures[CONTROLLER_GAP] = controller_gap(cluster)
        cluster.wait_for_replicas()
        figures[ROLLING_GAP], figures[ROLLING_ERRORS] = rolling_restart(cluster)
        figures[AWAY_ERRORS] = without_zookeeper(cluster)
        figures |= many_partitions(cluster)
        figures[FROZEN_GAP] = frozen_leader()
        figures[TRANSACTION_COST] = cpu_of_a_transaction(50) / cpu_of_a_transaction(2)
    return figures


def one_at_a_time(cluster: Brokers, samples: int = 500) -> float:
    """Milliseconds from a record's send to its acknowledgement, each sent after the last was acknowledged."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0, "log_level": 0})
    waits = []
    for _ in range(samples + 50):
        began = time.perf_counter()
        producer.produce("single", b"x" * 100)
        assert producer.flush(30) == 0
        waits.append((time.perf_counter() - began) * 1000)
    return statistics.median(waits[50:])


def transactions(cluster: Any, samples: int = 300) -> float:
    """Milliseconds from begin to the end of commit."""
    producer = transactional_producer(cluster, "latency")
    waits = []
    for number in range(samples + 50):
        began = time.perf_counter()
        producer.begin_transaction()
        for record in range(10):
            producer.produce(TOPICS[record % len(TOPICS)], f"{number}-{record}".encode())
        producer.commit_transaction(60)
        waits.append((time.perf_counter() - began) * 1000)
    return statistics.median(waits[50:])


#: Does one thing after the other until the event, and appends the time at which each was answered.
Work = Callable[[threading.Event, list[float]], None]


def gap(cluster: Brokers, work: Work, victim: Callable[[], int], after_s: float = 3.0) -> float:
    """Seconds: the longest time between two answers around a kill -9 of the victim. It is started again afterwards."""
    stop, answered = threading.Event(), [time.perf_counter()]
    thread = threading.Thread(target=work, args=(stop, answered))
    thread.start()
    try:
        until(lambda: len(answered) > 100, within_s=60)
        number = victim()
        killed_at = time.perf_counter()
        cluster.processes[number].kill9()
        until(lambda: answered[-1] > killed_at + after_s, within_s=120)
    finally:
        stop.set()
        thread.join(120)
    near = [when for when in answered if when > killed_at - 1]
    longest = max(later - earlier for earlier, later in itertools.pairwise(near))
    cluster.restart(number)
    cluster.wait_for_replicas()
    return longest


def _send_records(cluster: Brokers, topic: str) -> Work:
    def work(stop: threading.Event, answered: list[float]) -> None:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0, "log_level": 0}
        producer = Producer({**settings, "enable.idempotence": True})

        def told(error: object, _: object) -> None:
            assert error is None, error
            answered.append(time.perf_counter())

        while not stop.is_set():
            producer.produce(topic, b"x" * 100, on_delivery=told)
            producer.poll(0.002)
        assert producer.flush(60) == 0

    return work


def _commit(cluster: Any, transactional_id: str) -> Work:
    def work(stop: threading.Event, answered: list[float]) -> None:
        producer = transactional_producer(cluster, transactional_id)
        while not stop.is_set():
            producer.begin_transaction()
            producer.produce("orders", b"x" * 100)
            producer.commit_transaction(120)
            answered.append(time.perf_counter())

    return work


def coordinator(cluster: Brokers, transactional_id: str) -> int:
    """The leader of the id's partition: Java's hash of the id, without its sign."""
    hashed = 0
    for letter in transactional_id:
        hashed = (31 * hashed + ord(letter)) & 0xFFFFFFFF
    rows = cluster.admin.list_topics("__transaction_state", timeout=30).topics["__transaction_state"].partitions
    return int(rows[(hashed & 0x7FFFFFFF) % len(rows)].leader)


def controller_gap(cluster: Brokers) -> float:
    """Seconds from the kill of the controller until a topic could be created."""
    admin = cluster.admin
    number = admin.list_topics(timeout=30).controller_id
    cluster.processes[number].kill9()
    killed_at = time.perf_counter()
    for attempt in range(1000):
        try:
            admin.create_topics([NewTopic(f"after-{attempt}", 1, 2)], request_timeout=5)[f"after-{attempt}"].result(10)
            break
        except KafkaException:  # not yet
            if time.perf_counter() - killed_at > 60:
                raise
    took = time.perf_counter() - killed_at
    cluster.restart(number)
    return took


def rolling_restart(cluster: Brokers) -> tuple[float, float]:
    """The longest gap in acks while each broker is stopped and started, one after the other; and failed sends."""
    stop, answered, failed = threading.Event(), [time.perf_counter()], [0]
    thread = threading.Thread(target=_send_and_count(cluster, "single", failed), args=(stop, answered))
    thread.start()
    try:
        until(lambda: len(answered) > 100, within_s=60)
        first = len(answered) - 1  # how long the client takes to begin is not the restart's affair
        for number in sorted(cluster.processes):
            cluster.processes[number].terminate()
            cluster.restart(number)
            cluster.wait_for_replicas()
    finally:
        stop.set()
        thread.join(120)
    return max(later - earlier for earlier, later in itertools.pairwise(answered[first:])), failed[0]


def without_zookeeper(cluster: Brokers, away_s: float = 60.0) -> float:
    """How many sends fail while ZooKeeper does not answer."""
    stop, answered, failed = threading.Event(), [time.perf_counter()], [0]
    thread = threading.Thread(target=_send_and_count(cluster, "single", failed), args=(stop, answered))
    thread.start()
    try:
        until(lambda: len(answered) > 100, within_s=60)
        for helper in cluster.helpers:
            helper.signal(signal.SIGSTOP)
        time.sleep(away_s)
        seen = len(answered)
        until(lambda: len(answered) > seen + 100, within_s=60)
    finally:
        for helper in cluster.helpers:
            helper.signal(signal.SIGCONT)
        stop.set()
        thread.join(120)
    cluster.wait_for_replicas()
    return failed[0]


def _send_and_count(cluster: Brokers, topic: str, failed: list[int]) -> Work:
    def work(stop: threading.Event, answered: list[float]) -> None:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0, "log_level": 0}
        producer = Producer({**settings, "enable.idempotence": True})

        def told(error: object, _: object) -> None:
            if error is None:
                answered.append(time.perf_counter())
            else:
                failed[0] += 1

        while not stop.is_set():
            producer.produce(topic, b"x" * 100, on_delivery=told)
            producer.poll(0.002)
        failed[0] += producer.flush(60)

    return work


def cpu_of_a_record(cluster: Brokers, samples: int = 1000) -> float:
    """CPU seconds of all brokers for a record that is sent alone."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0, "log_level": 0})
    used_s = 0.0
    for number in range(samples + 100):
        if number == 100:
            used_s = cluster.cpu_s()
        producer.produce("single", b"x" * 100)
        assert producer.flush(30) == 0
    return (cluster.cpu_s() - used_s) / samples


def many_partitions(cluster: Brokers, count: int = 1000) -> dict[str, float]:
    """What a thousand partitions cost a record elsewhere, and how long all of them are without a broker that dies."""
    alone_s = cpu_of_a_record(cluster)
    cluster.create("many", count)
    cluster.wait_for_replicas()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 5, "log_level": 0})

    def write_to_each() -> None:
        for partition in range(count):
            producer.produce("many", b"x", partition=partition)
        assert producer.flush(120) == 0

    write_to_each()
    write_to_each()
    cost = cpu_of_a_record(cluster) / alone_s
    number = cluster.leader("many")
    killed_at = time.perf_counter()
    cluster.processes[number].kill9()
    write_to_each()
    took_s = time.perf_counter() - killed_at
    cluster.restart(number)
    return {MANY_COST: cost, MANY_GAP: took_s}


def frozen_leader() -> float:
    """Seconds beyond the session timeout until somebody else acknowledges. Each try is a new client: one that waits for
    the frozen broker's answer waits for its own timeouts."""
    names = {name.replace(".", "_"): value for name, value in REPLICAS.items()}
    with running_cluster(3, session_timeout_ms=FROZEN_SESSION_MS, **names) as running:
        processes = {number: broker.running for number, broker in running.brokers.items()}
        cluster = Brokers("semel", running.bootstrap_servers, processes, [], lambda _: None)
        cluster.create("single")
        cluster.wait_for_replicas()
        number = cluster.leader("single")
        others = ",".join(broker.address for other, broker in running.brokers.items() if other != number)
        frozen_at = time.perf_counter()
        running[number].freeze()
        while True:
            producer = Producer(
                {"bootstrap.servers": others, "acks": "all", "message.timeout.ms": 500, "log_level": 0, "linger.ms": 0}
            )
            done: list[object] = []
            producer.produce("single", b"x", on_delivery=lambda error, _, done=done: done.append(error))
            producer.flush(1)
            if any(error is None for error in done):
                return time.perf_counter() - frozen_at - FROZEN_SESSION_MS / 1000
            assert time.perf_counter() - frozen_at < 120, "nobody leads"


def cpu_of_a_transaction(partitions: int) -> float:
    """CPU seconds of all brokers for a transaction, with so many partitions of the internal topics."""
    names = {name.replace(".", "_"): value for name, value in REPLICAS.items()}
    counts = {"offsets_topic_num_partitions": partitions, "transaction_state_log_num_partitions": partitions}
    with running_cluster(3, session_timeout_ms=None, **names, **counts) as running:
        processes = {number: broker.running for number, broker in running.brokers.items()}
        cluster = Brokers("semel", running.bootstrap_servers, processes, [], lambda _: None)
        for topic in TOPICS:
            cluster.create(topic)
        transactions(cluster, samples=50)
        used_s = cluster.cpu_s()
        transactions(cluster, samples=300)
        return (cluster.cpu_s() - used_s) / 350


FAMILIES = [
    Family(
        "cluster",
        (
            Row(BULK, "records/s", 1.5, higher_is_better=True),
            Row(CPU, "s", 0.35, higher_is_better=False),
            Row(ONE, "ms", 0.5, higher_is_better=False),
            Row(TRANSACTION, "ms", 0.4, higher_is_better=False),
            Row(LEADER_GAP, "s", 1.0, higher_is_better=False, alone=True),
            Row(COORDINATOR_GAP, "s", 1.5, higher_is_better=False, alone=True),
            Row(CONTROLLER_GAP, "s", 1.5, higher_is_better=False, alone=True),
            Row(MEMORY, "MB", 60, higher_is_better=False, alone=True),
            Row(FROZEN_GAP, "s", 1.0, higher_is_better=False, alone=True),
            Row(ROLLING_GAP, "s", 0.5, higher_is_better=False, alone=True),
            Row(ROLLING_ERRORS, "sends", 0, higher_is_better=False, alone=True),
            Row(AWAY_ERRORS, "sends", 0, higher_is_better=False, alone=True),
            Row(MANY_GAP, "s", 3.0, higher_is_better=False, alone=True),
            Row(MANY_COST, "x", 1.3, higher_is_better=False, alone=True),
            Row(TRANSACTION_COST, "x", 1.3, higher_is_better=False, alone=True),
        ),
        measure,
        starts_itself=True,
        servers=brokers,
    )
]

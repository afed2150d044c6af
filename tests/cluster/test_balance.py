"""`semel cluster balance` as a person uses it, on real broker processes over the built-in ZooKeeper."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)
PARTITIONS, RECORDS = 6, 600


@pytest.fixture(scope="module")
def cluster() -> Iterator[semel.Cluster]:
    """Four brokers. Topics are made with one replica, and min.insync.replicas would ask for two."""
    settings = {"default.replication.factor": 1, "min.insync.replicas": 2, "offsets.topic.num.partitions": 3}
    with semel.Cluster(brokers=4, settings=settings) as running:
        yield running


def balance(cluster: semel.Cluster, *options: str, answer: str = "", code: int = 0) -> str:
    words = [sys.executable, "-m", "semel", "cluster", "balance", "--bootstrap", cluster.address(1), *options]
    done = subprocess.run(words, input=answer, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def replicas(cluster: semel.Cluster, topic: str) -> list[list[int]]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    parts = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return [sorted(parts[number].replicas) for number in sorted(parts)]


def create(cluster: semel.Cluster, topic: str, at: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic(topic, PARTITIONS, replica_assignment=[at] * PARTITIONS)
    for made in admin.create_topics([new]).values():
        made.result(30)


def values_of(cluster: semel.Cluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "x", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[bytes] = []
    try:

        def all_there() -> bool:
            found.extend(value for each in consumer.consume(500, 0.2) if (value := each.value()) is not None)
            return len(found) >= count

        until(all_there, within_s=60, what=f"{count} records of {topic}")
    finally:
        consumer.close()
    return sorted(found)


def test_topics_get_replicas_and_are_written_meanwhile_and_a_broker_is_emptied(cluster: semel.Cluster) -> None:
    create(cluster, "payments", [1])
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "acks": "all"})
    failed: list[object] = []
    sent: list[bytes] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.002):
            value = b"%d" % len(sent)
            sent.append(value)
            producer.produce("payments", value, on_delivery=lambda error, _: failed.append(error) if error else None)
            producer.poll(0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        shown = balance(cluster, "--replication-factor", "3", answer="n\n")
        assert "3 replicas are wanted" in shown and "Carry it out?" in shown, shown
        assert replicas(cluster, "payments") == [[1]] * PARTITIONS, "nothing without a yes"

        done = balance(cluster, "--replication-factor", "3", "--yes", "--at-once", "4")
        assert "partitions done" in done, done
        assert all(len(each) == 3 for each in replicas(cluster, "payments"))
        assert "nothing to move" in balance(cluster, "--replication-factor", "3", "--yes")

        emptied = balance(cluster, "--remove", "1", "--yes")
        assert "Broker 1 holds nothing any more: stop it" in emptied, emptied
        assert replicas(cluster, "payments") == [[2, 3, 4]] * PARTITIONS
    finally:
        stop.set()
        writer.join()
    assert producer.flush(60) == 0 and not failed, failed[:3]
    cluster.kill(1)
    try:
        assert values_of(cluster, "payments", len(sent)) == sorted(sent)
    finally:
        cluster.restart(1)


def test_a_broker_that_is_lost_is_replaced(cluster: semel.Cluster) -> None:
    create(cluster, "replaced", [2, 3, 4])
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(RECORDS):
        producer.produce("replaced", b"%d" % number)
    assert producer.flush(60) == 0
    cluster.kill(4)
    try:
        until(lambda: '"away"' in balance(cluster, "--json"), within_s=60, what="broker 4 to be known as dead")
        balance(cluster, "--remove", "4", "--topic", "replaced", "--yes")
        assert replicas(cluster, "replaced") == [[1, 2, 3]] * PARTITIONS
        assert values_of(cluster, "replaced", RECORDS) == sorted(b"%d" % number for number in range(RECORDS))
    finally:
        cluster.restart(4)


def test_interrupted_it_is_run_again_and_goes_on(cluster: semel.Cluster) -> None:
    create(cluster, "interrupted", [1])
    # Broker 4 cannot be filled while it is frozen: the command waits, and is interrupted then.
    cluster.pause(4)
    words = [sys.executable, "-m", "semel", "cluster", "balance", "--bootstrap", cluster.address(1)]
    options = ("--topic", "interrupted", "--replication-factor", "4", "--yes")
    try:
        process = subprocess.Popen([*words, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until(
            lambda: any(4 in each for each in replicas(cluster, "interrupted")),
            within_s=60,
            what="the moves to have begun",
        )
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
        assert process.returncode == 1 and "run the command again" in said, said
    finally:
        cluster.resume(4)
    balance(cluster, *options)
    assert replicas(cluster, "interrupted") == [[1, 2, 3, 4]] * PARTITIONS


def test_the_plan_as_json_changes_nothing_without_yes(cluster: semel.Cluster) -> None:
    create(cluster, "planned", [2])
    plan = json.loads(balance(cluster, "--topic", "planned", "--replication-factor", "2", "--json"))
    assert plan["carried_out"] is False and len(plan["moves"]) == PARTITIONS
    assert all(len(move["copied_to"]) >= 1 and move["why"] for move in plan["moves"])
    assert replicas(cluster, "planned") == [[2]] * PARTITIONS


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--replication-factor", "9"), "4 brokers run"),
        (("--topic", "nobody"), "there is no topic nobody"),
        (("--remove", "77"), "Broker 77 holds no replicas"),
    ],
)
def test_mistakes_are_told_in_words(cluster: semel.Cluster, options: tuple[str, ...], why: str) -> None:
    assert why in balance(cluster, *options, answer="n\n", code=0 if options[0] == "--remove" else 1)

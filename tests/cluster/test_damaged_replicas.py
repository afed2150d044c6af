"""A file of one replica that is lost or damaged, while other brokers have everything (E11)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

import semel
from semel.machines.znodes import paths
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster() -> Iterator[semel.Cluster]:
    settings = {"log.segment.bytes": 16_384, "leader.imbalance.check.interval.seconds": 3600}
    with semel.Cluster(brokers=3, settings=settings) as running:
        yield running


@pytest.fixture
def zookeeper(cluster: semel.Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start(30)
    yield client
    client.stop()
    client.close()


def create(cluster: semel.Cluster, topic: str, *replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic(topic, 1, replica_assignment=[list(replicas)])]).values():
        made.result(30)


def write(cluster: semel.Cluster, topic: str, first: int, count: int) -> None:
    """And wait until all of it is acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "enable.idempotence": True,
            "batch.num.messages": 10,
            "log_level": 0,
        }
    )
    failed = []
    for number in range(first, first + count):
        value = b"%d" % number
        producer.produce(topic, value.ljust(1000, b"."), on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert [error for error in failed if error is not None] == []


def read(cluster: semel.Cluster, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "any", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []

    def all_of_it() -> bool:
        found.extend(int(each.value().rstrip(b".")) for each in consumer.consume(1000, 0.2) if each.error() is None)
        return len(found) >= count

    try:
        until(all_of_it, within_s=60, what=f"{count} records")
    finally:
        consumer.close()
    return found


def replica(cluster: semel.Cluster, broker: int, topic: str) -> Path:
    return cluster.data_dir / f"broker-{broker}" / f"{topic}-0"


def log_of(cluster: semel.Cluster, broker: int, topic: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(replica(cluster, broker, topic).glob("*.log"))]


def in_sync(zookeeper: KazooClient, topic: str) -> list[int]:
    return sorted(json.loads(zookeeper.get(paths.state(topic, 0))[0])["isr"])


def strays(cluster: semel.Cluster, broker: int, topic: str) -> list[Path]:
    return [*(cluster.data_dir / f"broker-{broker}").glob(f"{topic}-0.*-stray")]


def kill_all_and_start(cluster: semel.Cluster, damage: Path) -> None:
    """All die in the same moment, so all stay in the in-sync set. Meanwhile a file goes."""
    for number in cluster.numbers:
        cluster.pause(number)
    for number in cluster.numbers:
        cluster.kill(number)
    damage.unlink()
    for number in cluster.numbers:
        cluster.restart(number)


def test_a_broker_in_sync_whose_files_are_gone_lets_another_lead_and_is_filled_again(
    cluster: semel.Cluster, zookeeper: KazooClient
) -> None:
    """It is the first of the replicas, would lead, and have the others cut off everything that was acknowledged."""
    create(cluster, "first", 1, 2, 3)
    write(cluster, "first", 0, 10)
    until(lambda: in_sync(zookeeper, "first") == [1, 2, 3], within_s=60, what="all to be in sync")
    kill_all_and_start(cluster, replica(cluster, 1, "first") / "00000000000000000000.log")
    write(cluster, "first", 10, 30)
    assert read(cluster, "first", 40) == [*range(40)]
    until(lambda: in_sync(zookeeper, "first") == [1, 2, 3], within_s=60, what="broker 1 to be back in the set")
    until(
        lambda: log_of(cluster, 1, "first") == log_of(cluster, 2, "first") == log_of(cluster, 3, "first"),
        within_s=60,
        what="the replicas to be equal",
    )
    assert len(strays(cluster, 1, "first")) == 1, "what was left of its files is kept"


def test_a_follower_that_lost_a_segment_while_it_was_stopped_is_filled_again(
    cluster: semel.Cluster, zookeeper: KazooClient
) -> None:
    create(cluster, "stopped", 1, 2, 3)
    write(cluster, "stopped", 0, 100)
    until(lambda: in_sync(zookeeper, "stopped") == [1, 2, 3], within_s=60, what="all to be in sync")
    cluster.shut_down(2)
    segments = sorted(replica(cluster, 2, "stopped").glob("*.log"))
    assert len(segments) > 3
    segments[1].unlink()
    cluster.restart(2)
    until(lambda: in_sync(zookeeper, "stopped") == [1, 2, 3], within_s=60, what="broker 2 to be back in the set")
    assert log_of(cluster, 2, "stopped") == log_of(cluster, 1, "stopped")
    assert len(strays(cluster, 2, "stopped")) == 1


def test_the_only_one_who_has_everything_stays_offline_and_keeps_its_files(
    cluster: semel.Cluster, zookeeper: KazooClient
) -> None:
    create(cluster, "alone", 3)
    write(cluster, "alone", 0, 100)
    cluster.shut_down(3)
    segments = sorted(replica(cluster, 3, "alone").glob("*.log"))
    lost = segments[1].read_bytes()
    segments[1].unlink()
    cluster.restart(3)
    until(lambda: "alone-0 is offline" in cluster.output(3), within_s=60, what="the loss to be told")
    cluster.shut_down(3)
    assert in_sync(zookeeper, "alone") == [3] and strays(cluster, 3, "alone") == []
    segments[1].write_bytes(lost)
    cluster.restart(3)
    assert read(cluster, "alone", 100) == [*range(100)]

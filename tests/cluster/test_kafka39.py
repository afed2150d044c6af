"""Apache Kafka 3.9, the last one on ZooKeeper, as judge: it reads our znodes, and clusters change hands with ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

import semel
from tests.support.kafka39 import EitherBroker, read_znodes
from tests.support.requirements import require_kafka39
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeper, running_zookeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    require_kafka39()
    with running_zookeeper() as running:
        yield running


def test_kafkas_own_client_of_zookeeper_reads_our_znodes(zookeeper: ZooKeeper) -> None:
    settings = {"broker.rack": "a", "min.insync.replicas": 1}
    with semel.Cluster(brokers=2, zookeeper=zookeeper.connect, settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        new = NewTopic("payments", 2, replica_assignment=[[1, 2], [2, 1]], config={"retention.ms": "77"})
        for made in admin.create_topics([new]).values():
            made.result(30)
        entry = ConfigEntry("log.retention.ms", "88", incremental_operation=AlterConfigOpType.SET)
        for changed in admin.incremental_alter_configs(
            [ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])]
        ).values():
            changed.result(30)
        cluster.kill(2)
        until(lambda: "isr 1 " in "\n".join(read_znodes(zookeeper.connect)), within_s=90, what="the set to shrink")
        said = read_znodes(zookeeper.connect)
        cluster.restart(2)
    assert "controller 1" in said
    port = cluster.address(1).split(":")[1]
    assert f"broker 1 EndPoint(127.0.0.1,{port},ListenerName(PLAINTEXT),PLAINTEXT) rack Some(a)" in said
    assert not [line for line in said if line.startswith("broker 2")], "a dead broker has no node"
    assert "replicas payments-0 1,2 adding  removing " in said
    assert "replicas payments-1 2,1 adding  removing " in said
    for number in (0, 1):
        (state,) = [line for line in said if line.startswith(f"state payments-{number}")]
        assert " leader 1 " in state and " isr 1 " in state, state
    assert "settings payments {retention.ms=77}" in said
    assert "broker settings 1 {log.retention.ms=88}" in said
    assert any(line.startswith("topic payments id ") for line in said)
    assert any(line.startswith("producer ids ") for line in said)


# A cluster that changes hands

PARTITIONS = 3
SETTINGS: dict[str, object] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.min.isr": 2,
    "group.initial.rebalance.delay.ms": 0,
}


class Story:
    """What was written and committed so far, by whoever ran."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.committed_values: list[bytes] = []
        self._rounds = 0

    def goes_on(self) -> None:
        """A committed transaction with offsets in it, an aborted one, and offsets of a group, of ids that go on."""
        self._rounds += 1
        producer = Producer({"bootstrap.servers": self._servers, "transactional.id": "transfers"})
        producer.init_transactions(120)
        producer.begin_transaction()
        values = [b"%d-%d" % (self._rounds, number) for number in range(100)]
        for number, value in enumerate(values):
            producer.produce("payments", value, partition=number % PARTITIONS)
        producer.commit_transaction(120)
        self.committed_values += values
        producer.begin_transaction()
        producer.produce("payments", b"aborted", partition=0)
        assert producer.flush(60) == 0
        producer.abort_transaction(120)
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "readers"})
        offsets = [TopicPartition("payments", each, self._rounds * 10 + each) for each in range(PARTITIONS)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    def is_all_there(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "readers",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        offsets = until(lambda: _committed(consumer), within_s=90, what="a coordinator of the group")
        assert offsets == [self._rounds * 10 + each for each in range(PARTITIONS)]
        consumer.assign([TopicPartition("payments", each, 0) for each in range(PARTITIONS)])
        found: list[bytes] = []
        ended: set[int | None] = set()
        deadline = time.monotonic() + 90
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, f"{len(found)} records were read"
            for message in consumer.consume(500, 0.5):
                value = message.value()
                if message.error() is not None:
                    ended.add(message.partition())
                elif value is not None:
                    found.append(value)
        consumer.close()
        assert sorted(found) == sorted(self.committed_values)


def _committed(consumer: Consumer) -> list[int] | None:
    """None while the brokers have just started and nobody coordinates the group."""
    try:
        rows = consumer.committed([TopicPartition("payments", each) for each in range(PARTITIONS)], 30)
    except KafkaException:
        return None
    return [row.offset for row in rows]


@pytest.mark.soak
def test_a_cluster_of_kafka_is_taken_over_and_handed_back_and_taken_over_again(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    brokers = [EitherBroker(number, tmp_path, zookeeper.connect, SETTINGS) for number in (1, 2, 3)]
    story = Story(",".join(broker.address for broker in brokers))
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.close)
        for turn, kafka in enumerate((True, False, True, False)):
            for broker in brokers:
                broker.launch(kafka=kafka)
            for broker in brokers:
                broker.wait()
            if turn == 0:
                admin = AdminClient({"bootstrap.servers": brokers[0].address})
                for made in admin.create_topics([NewTopic("payments", PARTITIONS, 3)]).values():
                    made.result(60)
            else:
                story.is_all_there()
            story.goes_on()
            story.is_all_there()
            for broker in brokers:
                broker.stop()


@pytest.mark.soak
def test_a_cluster_that_semel_began_is_handed_to_kafka(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    brokers = [EitherBroker(number, tmp_path, zookeeper.connect, SETTINGS) for number in (1, 2, 3)]
    story = Story(",".join(broker.address for broker in brokers))
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.close)
        for kafka in (False, True):
            for broker in brokers:
                broker.launch(kafka=kafka)
            for broker in brokers:
                broker.wait()
            if kafka:
                story.is_all_there()
            else:
                admin = AdminClient({"bootstrap.servers": brokers[0].address})
                for made in admin.create_topics([NewTopic("payments", PARTITIONS, 3)]).values():
                    made.result(60)
            story.goes_on()
            story.is_all_there()
            for broker in brokers:
                broker.stop()

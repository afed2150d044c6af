"""Three broker processes over a real ZooKeeper, and what happens to records when one of them dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from semel.errors import ErrorCode
from semel.records.batch import read_records
from semel.wire.apis import ApiKey
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest, MetadataResponse
from tests.broker.raw import Raw, batch, fetch_request, stored_batches
from tests.support.cluster import Cluster, running_cluster
from tests.support.requirements import require_zookeeper
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    require_zookeeper()
    with running_cluster(3, replica_lag_time_max_ms=8000) as running:
        yield running


@pytest.fixture(autouse=True)
def everybody_lives(cluster: Cluster) -> Iterator[None]:
    """Each test finds three brokers, whatever the one before has done."""
    yield
    for broker in cluster.brokers.values():
        if not broker.running.running():
            broker.start()
        broker.thaw()


def partitions_of(cluster: Cluster, topic: str, at: int) -> list[MetadataResponse.MetadataResponsePartition]:
    with Raw(cluster[at].address) as raw:
        rows = [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer: MetadataResponse = raw.ask(MetadataRequest(topics=rows, allow_auto_topic_creation=False), 9)
        return sorted(answer.topics[0].partitions, key=lambda row: row.partition_index)


def create(cluster: Cluster, topic: str, partitions: int = 3, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    config = {name.replace("_", "."): value for name, value in settings.items()}
    for created in admin.create_topics([NewTopic(topic, partitions, 3, config=config)]).values():
        created.result(30)
    until(lambda: all_in_sync(cluster, topic, partitions), within_s=60, what=f"every replica of {topic} to be in sync")


def all_in_sync(cluster: Cluster, topic: str, partitions: int) -> bool:
    living = [number for number, broker in cluster.brokers.items() if broker.running.running()]
    for at in living:
        rows = partitions_of(cluster, topic, at)
        if len(rows) < partitions or any(len(row.isr_nodes) < 3 or row.leader_id < 0 for row in rows):
            return False
    return True


class Writer:
    """An idempotent producer of librdkafka, and what was acknowledged."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int = 3) -> None:
        self.topic, self.partitions = topic, partitions
        self.sent = 0
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self.failed: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None and offset is not None and value is not None
        self.acknowledged.append((partition, offset, value))

    def write(self, count: int) -> None:
        """Send so many, and wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        for _ in range(count):
            self._producer.produce(
                self.topic, b"%d" % self.sent, partition=self.sent % self.partitions, callback=self._delivered
            )
            self.sent += 1
            self._producer.poll(0)
        deadline = time.monotonic() + 120
        while len(self.acknowledged) < wanted and not self.failed:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {wanted} were acknowledged"
            self._producer.poll(0.05)
        assert not self.failed, self.failed


def stored(cluster: Cluster, topic: str, partitions: int = 3) -> list[tuple[int, int, bytes]]:
    """What a reader finds: (partition, offset, value)."""
    found = []
    for row in partitions_of(cluster, topic, living(cluster)):
        with Raw(cluster[row.leader_id].address) as raw:
            offset = 0
            while True:
                data = raw.fetch(topic, offset, partition=row.partition_index, max_wait_ms=0)
                assert data.error_code == 0, ErrorCode(data.error_code)
                batches = stored_batches(data)
                if not batches:
                    break
                for one in batches:
                    for record in read_records(one):
                        found.append((row.partition_index, record.offset, bytes(record.value or b"")))
                offset = batches[-1].next_offset
    return found


def living(cluster: Cluster) -> int:
    return next(number for number, broker in cluster.brokers.items() if broker.running.running())


def logs(cluster: Cluster, topic: str, partition: int) -> list[bytes]:
    """The files of each replica, one after the other."""
    found = []
    for broker in cluster.brokers.values():
        directory: Path = broker.directory / f"{topic}-{partition}"
        found.append(b"".join(path.read_bytes() for path in sorted(directory.glob("*.log"))))
    return found


def check(cluster: Cluster, writer: Writer) -> None:
    """Nothing lost, nothing twice, and every replica the same."""
    until(
        lambda: all_in_sync(cluster, writer.topic, writer.partitions), within_s=90, what="every replica to be in sync"
    )
    found = stored(cluster, writer.topic, writer.partitions)
    assert len({value for *_, value in found}) == len(found), "no record is there twice"
    assert set(writer.acknowledged) <= set(found), "what was acknowledged is there, at its offset"
    for partition in range(writer.partitions):
        until(
            lambda one=partition: len(set(logs(cluster, writer.topic, one))) == 1,  # type: ignore[misc]
            within_s=30,
            what="the replicas to be byte-identical",
        )


def test_what_was_acknowledged_survives_kill_9_of_its_leader(cluster: Cluster) -> None:
    """E6 E2 R4 R7"""
    create(cluster, "killed-leader", min_insync_replicas="2")
    writer = Writer(cluster, "killed-leader")
    writer.write(300)
    for partition in range(2):
        leader = partitions_of(cluster, "killed-leader", living(cluster))[partition].leader_id
        cluster[leader].kill9()
        # Most of these were sent while nobody led the partition.
        writer.write(300)
        cluster[leader].start()
        writer.write(60)
    check(cluster, writer)


def test_a_stopped_broker_hands_over_and_comes_back(cluster: Cluster) -> None:
    create(cluster, "stopped", min_insync_replicas="2")
    writer = Writer(cluster, "stopped")
    writer.write(90)
    for broker in cluster.brokers.values():
        assert broker.running.terminate() == 0
        writer.write(90)
        broker.start()
        until(lambda: all_in_sync(cluster, "stopped", 3), within_s=60, what="the broker to be in sync again")
    check(cluster, writer)


def test_topics_are_created_after_the_controller_was_killed(cluster: Cluster) -> None:
    """E1 E6"""
    with Raw(cluster[1].address) as raw:
        controller = raw.ask(MetadataRequest(topics=[]), 9).controller_id
    cluster[controller].kill9()
    other = living(cluster)

    def another_controls() -> bool:
        with Raw(cluster[other].address) as raw:
            return raw.ask(MetadataRequest(topics=[]), 9).controller_id not in (-1, controller)

    until(another_controls, within_s=30, what="another controller")
    cluster[controller].start()
    create(cluster, "after-the-controller")


def test_below_min_insync_replicas_acks_all_is_refused_and_nothing_is_lost(cluster: Cluster) -> None:
    """R3 P3 E5"""
    create(cluster, "too-few", 1, min_insync_replicas="2")
    writer = Writer(cluster, "too-few", 1)
    writer.write(10)
    (row,) = partitions_of(cluster, "too-few", 1)
    others = [number for number in cluster.brokers if number != row.leader_id]
    for number in others:
        cluster[number].kill9()

    def refused() -> bool:
        with Raw(cluster[row.leader_id].address) as raw:
            code = ErrorCode(raw.produce("too-few", batch(b"refused"), acks=-1, version=9).error_code)
        return code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    until(refused, within_s=60, what="acks=all to be refused")
    with Raw(cluster[row.leader_id].address) as raw:
        assert raw.produce("too-few", batch(b"refused"), acks=-1, version=9).error_code == 19
    assert len(stored(cluster, "too-few", 1)) == 10, "what is on one replica alone is shown to nobody"
    for number in others:
        cluster[number].start()
    writer.write(10)
    until(lambda: all_in_sync(cluster, "too-few", 1), within_s=60, what="all to be in sync")
    assert set(writer.acknowledged) <= set(stored(cluster, "too-few", 1))


def test_a_leader_that_was_frozen_acknowledges_nothing_when_it_wakes(cluster: Cluster) -> None:
    """E2 R2 Z5"""
    create(cluster, "frozen", min_insync_replicas="2")
    writer = Writer(cluster, "frozen")
    writer.write(60)
    leader = partitions_of(cluster, "frozen", 1)[0].leader_id
    other = next(number for number in cluster.brokers if number != leader)
    cluster[leader].freeze()
    until(
        lambda: partitions_of(cluster, "frozen", other)[0].leader_id not in (-1, leader),
        within_s=90,
        what="another leader",
    )
    writer.write(60)
    cluster[leader].thaw()
    writer.write(60)
    check(cluster, writer)


def test_while_zookeeper_does_not_answer_records_are_written_and_read(cluster: Cluster) -> None:
    """Z6"""
    create(cluster, "without-zookeeper", min_insync_replicas="2")
    writer = Writer(cluster, "without-zookeeper")
    writer.write(60)
    node = cluster.zookeeper.nodes[0]
    node.freeze()
    try:
        writer.write(300)
        assert len(stored(cluster, "without-zookeeper")) >= 360
    finally:
        node.thaw()
    writer.write(60)
    check(cluster, writer)


def test_a_broker_that_does_not_lead_says_who_does(cluster: Cluster) -> None:
    """KIP-951"""
    create(cluster, "hints", 1)
    (row,) = partitions_of(cluster, "hints", 1)
    other = next(number for number in cluster.brokers if number != row.leader_id)
    with Raw(cluster[other].address) as raw:
        from tests.broker.raw import produce_request

        answer = raw.ask(produce_request("hints", batch(b"x"), acks=-1), 12)
        part = answer.responses[0].partition_responses[0]
        assert (part.error_code, part.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, row.leader_id)
        (endpoint,) = answer.node_endpoints
        assert (endpoint.node_id, endpoint.port) == (row.leader_id, cluster[row.leader_id].port)
        data = raw.fetch("hints", max_wait_ms=0)
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_nobody_reads_as_a_replica_who_is_none(cluster: Cluster) -> None:
    """P4"""
    create(cluster, "forged", 1)
    (row,) = partitions_of(cluster, "forged", 1)
    with Raw(cluster[row.leader_id].address) as raw:
        for replica in (7, row.leader_id):
            answer = raw.ask(fetch_request({("forged", 0): 0}, replica_id=replica), 12)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_what_is_not_served_in_a_cluster_is_not_advertised(cluster: Cluster) -> None:
    with Raw(cluster[1].address) as raw:
        served = {row.api_key for row in raw.ask(ApiVersionsRequest(), 0).api_keys}
        assert ApiKey.PRODUCE in served
        assert not served & {ApiKey.DELETE_TOPICS, ApiKey.JOIN_GROUP, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.CREATE_ACLS}
        found = raw.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators[0]
        assert found.error_code == ErrorCode.INVALID_REQUEST
        assert "not served in a cluster" in (found.error_message or "")


def test_a_broker_whose_machine_went_down_does_not_lead_what_it_may_have_lost(cluster: Cluster) -> None:
    """E4: it leaves every in-sync set before it is registered, even as the last member."""
    create(cluster, "power", 1)
    (row,) = partitions_of(cluster, "power", 1)
    last = row.leader_id
    others = [number for number in cluster.brokers if number != last]
    for number in others:
        cluster[number].kill9()
    until(lambda: partitions_of(cluster, "power", last)[0].isr_nodes == [last], within_s=60, what="one to be left")
    cluster[last].kill9()
    (cluster[last].directory / ".semel_boot_id").write_text("another boot\n")
    cluster[last].start()
    for number in others:
        cluster[number].start()
    until(
        lambda: all(partitions_of(cluster, "power", at)[0].leader_id == -1 for at in cluster.brokers),
        within_s=60,
        what="nobody to lead",
    )
    assert partitions_of(cluster, "power", last)[0].isr_nodes == []

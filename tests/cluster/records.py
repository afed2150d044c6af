"""What tests of a cluster write and read: topics with three replicas, a producer that remembers, and every replica's
files."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from semel.errors import ErrorCode
from semel.records.batch import read_records
from semel.testing import invariants
from semel.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.broker.raw import Raw, stored_batches
from tests.support import dump_log
from tests.support.cluster import Cluster
from tests.support.waiting import until


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
                "socket.timeout.ms": 8_000,  # what was sent to a frozen leader is sent to the next one, soon
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
    until(lambda: led(cluster, topic, partitions), within_s=60, what=f"the asked broker to know the leaders of {topic}")
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


def led(cluster: Cluster, topic: str, partitions: int) -> bool:
    """Whether the broker that is asked knows a living leader of each partition. Others may know it earlier."""
    leaders = [row.leader_id for row in partitions_of(cluster, topic, living(cluster))]
    return len(leaders) == partitions and all(
        leader in cluster.brokers and cluster[leader].running.running() for leader in leaders
    )


def living(cluster: Cluster) -> int:
    return next(number for number, broker in cluster.brokers.items() if broker.running.running())


def logs(cluster: Cluster, topic: str, partition: int) -> list[bytes]:
    """The files of each replica, one after the other."""
    found = []
    for broker in cluster.brokers.values():
        directory: Path = broker.directory / f"{topic}-{partition}"
        found.append(b"".join(path.read_bytes() for path in sorted(directory.glob("*.log"))))
    return found


def check_files(cluster: Cluster) -> None:
    """F6, and what else is to be said of the files: stops the brokers, and lets Kafka's own reader look as well."""
    for broker in cluster.brokers.values():
        if broker.running.running():
            broker.thaw()
            assert broker.running.terminate(within_s=90) == 0
    directories = [broker.directory for broker in cluster.brokers.values()]
    for directory in directories:
        invariants.check(directory, at_rest=True)
    assert dump_log.complaints(*directories, gaps=False) == []


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

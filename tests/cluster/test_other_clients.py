"""Clients that nobody here wrote, on three brokers with three replicas, while one broker after the other is restarted
or killed: Java's transactions, groups and tools, Kafka Streams with exactly_once_v2, and franz-go and sarama."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.records import check_files
from tests.support.cluster import Cluster, running_cluster
from tests.support.requirements import CHECKOUT, require_go, require_kafka, require_zookeeper
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeper
from tests.tools.test_java_transactions import (  # noqa: F401
    test_a_second_instance_with_the_same_id_fences_the_first,
    test_records_are_consumed_transformed_and_produced_once_with_their_offsets,
    test_transactions_over_two_topics_with_every_codec_are_kept_or_dropped_whole,
)
from tests.tools.test_streams import PARTITIONS, Output, start_counting
from tests.tools.test_verifiable import (  # noqa: F401
    test_consumer_performance_reads_what_producer_performance_wrote,
    test_the_verifiable_producer_has_every_record_acknowledged,
)

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(600)]

RECORDS = 4000
#: A broker is back this long before the next one goes.
PAUSE_S = 4.0
GO = CHECKOUT / "tests" / "security" / "go-client"


class Restarts:
    """One broker after the other goes and comes back: told to stop, or killed."""

    def __init__(self, cluster: Cluster) -> None:
        self.count = 0
        self.failures: list[BaseException] = []
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        brokers = list(self._cluster.brokers.values())
        try:
            while not self._over.wait(PAUSE_S):
                broker = brokers[self.count % len(brokers)]
                if self.count % 2:
                    broker.kill9()
                else:
                    assert broker.running.terminate(within_s=90) == 0
                broker.start()
                self.count += 1
        except BaseException as error:
            self.failures.append(error)

    def end(self) -> None:
        self._over.set()
        self._thread.join(120)
        assert self.failures == []
        assert self.count > 0


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    """The whole cluster: these clients want nothing of it but its addresses."""
    require_kafka()
    require_zookeeper()
    with running_cluster(
        3,
        zookeeper=ZooKeeper(3),
        default_replication_factor=3,
        min_insync_replicas=2,
        offsets_topic_num_partitions=5,
        transaction_state_log_num_partitions=5,
        group_initial_rebalance_delay_ms=0,
    ) as running:
        restarts = Restarts(running)
        yield running
        restarts.end()
        print(f"{restarts.count} restarts")
        check_files(running)


def test_a_streams_application_counts_each_record_once(broker: Cluster, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for topic in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in ("input", "output")]).values():
        topic.result(60)
    sent: Counter[bytes] = Counter()
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5, "enable.idempotence": True, "log_level": 0}
    )
    output = Output(broker)
    with start_counting(broker, tmp_path / "state") as application:
        application.wait_for_line("state RUNNING", within_s=120)
        for number in range(RECORDS):
            key = f"key-{number % 8}".encode()
            sent[key] += 1
            producer.produce("input", b"x", key=key)
            if number % 100 == 0:
                producer.poll(0.5)  # so that a few restarts fall into it
        assert producer.flush(120) == 0
        until(lambda: output.total() >= RECORDS, within_s=240, what=f"{RECORDS} counts")
        application.terminate(within_s=60)
    assert output.total() == RECORDS
    output.consumer.close()
    assert output.counts == {key: list(range(1, count + 1)) for key, count in sent.items()}


@pytest.fixture(scope="module")
def go_clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_go()
    folder = tmp_path_factory.mktemp("go-clients")
    command = ["go", "build", "-o", str(folder), "./franz-cluster", "./sarama-cluster"]
    built = subprocess.run(command, cwd=GO, capture_output=True, text=True, timeout=480, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def found_by(program: Path, broker: Cluster, count: int, pause: str) -> Counter[str]:
    """What the program has read at the end. It writes `count` numbers, with a pause after each."""
    command = [str(program), broker.bootstrap_servers, str(count), pause]
    done = subprocess.run(command, capture_output=True, text=True, timeout=420, check=False)
    print(done.stderr)
    assert done.returncode == 0, done.stderr
    return Counter(json.loads(done.stdout))


def test_franz_go_copies_each_record_once(broker: Cluster, go_clients: Path) -> None:
    found = found_by(go_clients / "franz-cluster", broker, 2000, "20ms")
    assert found == Counter(str(number) for number in range(2000))


def test_sarama_writes_each_record_once_and_its_group_reads_all(broker: Cluster, go_clients: Path) -> None:
    found = found_by(go_clients / "sarama-cluster", broker, 800, "40ms")
    topics = ("sarama-plain", "sarama-ledger")
    assert found == Counter(f"{topic} {number}" for topic in topics for number in range(800))

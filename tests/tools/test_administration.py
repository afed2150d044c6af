"""Kafka's command line administration: topics, settings, offsets, records, directories."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from tests.support import java_tools

pytestmark = pytest.mark.java


@pytest.fixture
def at(broker) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap_servers)


def fill(at: tuple[str, str], topic: str, count: int) -> None:
    java_tools.run("console-producer", *at, "--topic", topic, stdin="".join(f"{number}\n" for number in range(count)))


def test_a_topic_is_created_listed_described_grown_and_deleted(at) -> None:
    settings = ("--config", "retention.ms=3600000", "--config", "cleanup.policy=compact")
    java_tools.run("topics", *at, "--create", "--topic", "made", "--partitions", 3, *settings)
    assert "made" in java_tools.run("topics", *at, "--list").stdout.split()
    described = java_tools.run("topics", *at, "--describe", "--topic", "made").stdout
    assert "PartitionCount: 3" in described
    assert "retention.ms=3600000" in described
    assert "cleanup.policy=compact" in described
    assert described.count("Leader: ") == 3
    java_tools.run("topics", *at, "--alter", "--topic", "made", "--partitions", 5)
    assert "PartitionCount: 5" in java_tools.run("topics", *at, "--describe", "--topic", "made").stdout
    java_tools.run("topics", *at, "--delete", "--topic", "made")
    assert "made" not in java_tools.run("topics", *at, "--list").stdout.split()


def test_creating_a_topic_twice_says_that_it_exists(at) -> None:
    java_tools.run("topics", *at, "--create", "--topic", "twice")
    again = java_tools.run("topics", *at, "--create", "--topic", "twice", check=False)
    assert again.exit_code != 0
    assert "already exists" in again.stdout + again.stderr
    java_tools.run("topics", *at, "--create", "--topic", "twice", "--if-not-exists")


def test_a_bad_setting_is_refused_with_its_name(at) -> None:
    refused = java_tools.run("topics", *at, "--create", "--topic", "bad", "--config", "retention.ms=soon", check=False)
    assert refused.exit_code != 0
    assert "retention.ms" in refused.stdout + refused.stderr


def test_settings_are_altered_described_and_taken_back(at) -> None:
    java_tools.run("topics", *at, "--create", "--topic", "tuned")
    entity = ("--entity-type", "topics", "--entity-name", "tuned")
    java_tools.run("configs", *at, "--alter", *entity, "--add-config", "retention.ms=60000,max.message.bytes=2000000")
    described = java_tools.run("configs", *at, "--describe", *entity).stdout
    assert "retention.ms=60000" in described
    assert "max.message.bytes=2000000" in described
    java_tools.run("configs", *at, "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms=60000" not in java_tools.run("configs", *at, "--describe", *entity).stdout
    everything = java_tools.run("configs", *at, "--describe", "--all", *entity).stdout
    assert "segment.bytes=1073741824" in everything


def test_a_broker_tells_its_settings(at) -> None:
    entity = ("--entity-type", "brokers", "--entity-name", "1", "--all")
    listed = java_tools.run("configs", *at, "--describe", *entity)
    told = dict(line.split()[0].split("=", 1) for line in listed.stdout.splitlines() if line.startswith("  "))
    assert told["num.partitions"] == "1"
    assert told["node.id"] == "1"
    assert told["transaction.max.timeout.ms"] == "900000"


def test_get_offsets_answers_earliest_latest_and_by_time(broker, at) -> None:
    timestamps_ms = [1_000_000 + late for late in (10, 20, 30, 40, 90, 60, 70)]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 100})
    for timestamp_ms in timestamps_ms:
        producer.produce("counted", b"x", partition=0, timestamp=timestamp_ms)
    assert producer.flush(20) == 0

    def offset(*when: str) -> str:
        return java_tools.run("get-offsets", *at, "--topic", "counted", *when).stdout.strip()

    assert offset() == "counted:0:7"
    assert offset("--time", "earliest") == "counted:0:0"
    assert offset("--time", "max-timestamp") == "counted:0:4"
    assert offset("--time", "1000030") == "counted:0:2"


def test_deleted_records_move_the_start_of_the_log(at, tmp_path) -> None:
    fill(at, "shortened", 10)
    wanted = tmp_path / "offsets.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": "shortened", "partition": 0, "offset": 4}], "version": 1}))
    assert "low_watermark: 4" in java_tools.run("delete-records", *at, "--offset-json-file", wanted).stdout
    earliest = java_tools.run("get-offsets", *at, "--topic", "shortened", "--time", "earliest")
    assert earliest.stdout.strip() == "shortened:0:4"


def test_log_directories_are_described(at) -> None:
    fill(at, "sized", 5)
    said = java_tools.run("log-dirs", *at, "--describe", "--topic-list", "sized").stdout
    described = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    directories = described["brokers"][0]["logDirs"]
    sizes = [one["size"] for directory in directories for one in directory["partitions"]]
    assert len(sizes) == 1
    assert sizes[0] > 0


def test_the_cluster_id_and_the_finalized_transaction_version_are_told(at) -> None:
    assert "Cluster ID: " in java_tools.run("cluster", "cluster-id", *at).stdout
    features = java_tools.run("features", *at, "describe").stdout
    transaction = next(line for line in features.splitlines() if "transaction.version" in line)
    assert "FinalizedVersionLevel: 2" in transaction


def test_the_quorum_is_described(at) -> None:
    status = java_tools.run("metadata-quorum", *at, "describe", "--status").stdout
    told = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert told["LeaderId"].strip() == "1"
    assert told["MaxFollowerLag"].strip() == "0"
    assert '"id": 1' in told["CurrentVoters"]
    replication = java_tools.run("metadata-quorum", *at, "describe", "--replication").stdout.splitlines()
    rows = [line.split() for line in replication if line.strip()]
    assert rows[0][0] == "NodeId"
    assert [(row[0], row[-1]) for row in rows[1:]] == [("1", "Leader")]

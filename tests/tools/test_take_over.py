"""docs/how-to/take-over-a-kafka-directory.md, step by step, both ways.

What readers, groups and transactional producers had is there after each step, and producers that begin later are
not taken for earlier ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from semel.cli import command_line
from tests.support.apache_kafka import ApacheKafka
from tests.support.pages import blocks_of
from tests.support.processes import BrokerProcess
from tests.support.requirements import CHECKOUT, require_kafka

PAGE = CHECKOUT / "docs" / "how-to" / "take-over-a-kafka-directory.md"
PROGRAMS = {block.file_name: block.text for block in blocks_of(PAGE) if block.file_name is not None}
PARTITIONS = 2

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


def run(directory: Path, name: str, *arguments: object) -> list[str]:
    (directory / name).write_text(PROGRAMS[name])
    command = [sys.executable, str(directory / name), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def create(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic("payments", PARTITIONS, 1)]).values():
        created.result(30)


def pay(servers: str, *values: str) -> None:
    """A transaction for each value, the way the same till always writes."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "till"})
    producer.init_transactions(60)
    for number, value in enumerate(values):
        producer.begin_transaction()
        producer.produce("payments", value.encode(), partition=number % PARTITIONS)
        if value.startswith("aborted"):
            producer.flush(30)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def begin_anew(servers: str, value: str) -> None:
    """A producer that nobody knows yet: it gets an id, and its first record is not taken for somebody's repeat."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    producer.produce("payments", value.encode(), partition=0)
    assert producer.flush(30) == 0


def committed(servers: str) -> set[str]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "none", "enable.partition.eof": True})
    consumer.assign([TopicPartition("payments", partition, 0) for partition in range(PARTITIONS)])
    found, ended = set(), 0
    while ended < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "no answer in 30 s"
        if message.error() is None:
            value = message.value().decode()
            assert value not in found
            found.add(value)
        else:
            ended += 1
    consumer.close()
    return found


def commit_offsets(servers: str, offset: int) -> None:
    # Kafka's fresh coordinator turns the first ones away: this client tries again.
    with semel.Consumer({"bootstrap.servers": servers, "group.id": "readers"}) as consumer:
        consumer.commit({("payments", 0): offset})


def committed_offset(servers: str) -> int:
    with semel.Consumer({"bootstrap.servers": servers, "group.id": "readers"}) as consumer:
        return consumer.committed([("payments", 0)])["payments", 0].offset


def test_a_directory_goes_from_kafka_to_semel(tmp_path: Path) -> None:
    require_kafka()
    copy = tmp_path / "copy"
    with ApacheKafka() as kafka:
        create(kafka.bootstrap_servers)
        pay(kafka.bootstrap_servers, "a", "aborted 1", "b")
        begin_anew(kafka.bootstrap_servers, "c")
        commit_offsets(kafka.bootstrap_servers, 3)
        kafka.stop()
        shutil.copytree(kafka.data, copy)
    shutil.rmtree(copy / "__cluster_metadata-0")
    (copy / "bootstrap.checkpoint").unlink()
    assert "payments 2" in run(tmp_path, "take_over.py", copy)

    with BrokerProcess(copy, settings={"node.id": 1}) as broker:
        assert committed(broker.bootstrap_servers) == {"a", "b", "c"}
        assert committed_offset(broker.bootstrap_servers) == 3
        pay(broker.bootstrap_servers, "d", "aborted 2", "e")
        begin_anew(broker.bootstrap_servers, "f")
        commit_offsets(broker.bootstrap_servers, 5)
        assert broker.stop() == 0
        assert "ERROR" not in broker.log_path.read_text()
    with pytest.raises(SystemExit) as ended:
        command_line()(["log", "dump", str(copy)])
    assert ended.value.code == 0, "nothing is wrong with any file"


def test_a_directory_goes_from_semel_to_kafka(tmp_path: Path) -> None:
    require_kafka()
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        create(broker.bootstrap_servers)
        pay(broker.bootstrap_servers, "a", "aborted 1", "b")
        for value in "cd":
            begin_anew(broker.bootstrap_servers, value)
        commit_offsets(broker.bootstrap_servers, 3)
        assert broker.stop() == 0
    block = json.loads((data / ".metadata" / "latest_producer_id_block").read_text().splitlines()[1])
    with ApacheKafka() as kafka:
        create(kafka.bootstrap_servers)
        run(tmp_path, "prepare_kafka.py", kafka.bootstrap_servers, block["block_end"], "payments")
        kafka.stop()
        assert "payments-1" in run(tmp_path, "hand_over.py", data, kafka.data)
        kafka.start()
        assert committed(kafka.bootstrap_servers) == {"a", "b", "c", "d"}
        assert committed_offset(kafka.bootstrap_servers) == 3
        pay(kafka.bootstrap_servers, "e", "aborted 2", "f")
        begin_anew(kafka.bootstrap_servers, "g")
        assert committed(kafka.bootstrap_servers) == set("abcdefg")
        kafka.stop()
        assert "orrupt" not in (kafka.directory / "server.log").read_text()

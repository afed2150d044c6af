"""Kafka's TransactionsCommand and TransactionalMessageCopier."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import KafkaException, Producer

from tests.support import java_tools
from tests.support.reading import read_all

pytestmark = pytest.mark.java


@pytest.fixture
def at(broker) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap_servers)


def open_transaction(broker, transactional_id: str, topic: str) -> Producer:
    """A producer with one record in `topic` and its transaction still open."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id, "linger.ms": 0}
    producer = Producer(settings)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"held", partition=0)
    assert producer.flush(20) == 0
    return producer


def rows(text: str) -> list[dict[str, str]]:
    header, *lines = [line.split("\t") if "\t" in line else line.split() for line in text.splitlines() if line.strip()]
    names = [name.strip() for name in header]
    return [dict(zip(names, (cell.strip() for cell in line), strict=False)) for line in lines]


def test_an_open_transaction_is_listed_described_and_seen_at_its_partition(broker, at) -> None:
    producer = open_transaction(broker, "listed", "held")
    (listed,) = [
        row for row in rows(java_tools.run("transactions", *at, "list").stdout) if row["TransactionalId"] == "listed"
    ]
    assert listed["TransactionState"] == "Ongoing"
    (described,) = rows(java_tools.run("transactions", *at, "describe", "--transactional-id", "listed").stdout)
    assert described["TransactionState"] == "Ongoing"
    assert described["TopicPartitions"] == "held-0"
    where = ("--topic", "held", "--partition", "0")
    (at_partition,) = rows(java_tools.run("transactions", *at, "describe-producers", *where).stdout)
    assert at_partition["ProducerId"] == described["ProducerId"]
    assert at_partition["CurrentTransactionStartOffset"] == "0"
    producer.abort_transaction(20)
    after = rows(java_tools.run("transactions", *at, "describe", "--transactional-id", "listed").stdout)
    assert after[0]["TransactionState"] in ("CompleteAbort", "Empty")


def test_a_transaction_within_its_timeout_is_not_called_hanging(broker, at) -> None:
    producer = open_transaction(broker, "patient", "quiet")
    found = java_tools.run("transactions", *at, "find-hanging", "--broker-id", 1, "--max-transaction-timeout", 15)
    assert "quiet" not in found.stdout
    producer.abort_transaction(20)


def test_abort_by_start_offset_frees_the_partition(broker, at) -> None:
    open_transaction(broker, "stuck", "blocked")
    plain = Producer({"bootstrap.servers": broker.bootstrap_servers})
    plain.produce("blocked", b"after", partition=0)
    assert plain.flush(20) == 0
    assert read_all(broker.bootstrap_servers, "blocked") == []
    java_tools.run("transactions", *at, "abort", "--topic", "blocked", "--partition", 0, "--start-offset", 0)
    assert read_all(broker.bootstrap_servers, "blocked") == [b"after"]


def test_a_forced_termination_fences_the_owner(broker, at) -> None:
    producer = open_transaction(broker, "owned", "taken")
    java_tools.run("transactions", *at, "forceTerminateTransaction", "--transactionalId", "owned")
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(20)
    assert caught.value.args[0].fatal()
    assert read_all(broker.bootstrap_servers, "taken") == []


@pytest.mark.parametrize("way", ["assigned", "group"])
def test_the_copier_copies_each_record_once_though_it_aborts_at_random(broker, at, way: str) -> None:
    source, target = f"from-{way}", f"to-{way}"
    for topic in (source, target):
        java_tools.run("topics", *at, "--create", "--topic", topic)
    java_tools.run("verifiable-producer", *at, "--topic", source, "--max-messages", 2000, "--throughput", -1)
    how = ("--group-mode", "--use-group-metadata") if way == "group" else ()
    copied = java_tools.run(
        "transactional-message-copier",
        *("--broker-list", broker.bootstrap_servers, "--input-topic", source, "--input-partition", 0),
        *("--output-topic", target, "--transactional-id", f"copier-{way}", "--consumer-group", f"copier-{way}"),
        *("--transaction-size", 100, "--max-messages", 2000, "--enable-random-aborts", *how),
    )
    last = json.loads(copied.stdout.strip().splitlines()[-1])
    assert last["remaining"] == 0
    assert read_all(broker.bootstrap_servers, target) == [str(number).encode() for number in range(2000)]

"""A transaction that no coordinator knows: Kafka's TransactionsCommand and `semel txn doctor` find it and end it.

Such transactions are what brokers without verification let happen: a late write of a producer whose transaction is
over, or never had that partition, opens one that nobody will ever end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from semel.cli.txn import txn
from semel.errors import ErrorCode
from semel.wire.messages.transactions import InitProducerIdRequest
from tests.broker.raw import Raw, batch, values_of
from tests.support import java_tools
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import BrokerProcess
from tests.support.requirements import require_kafka
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]

HOUR_MS = 3_600_000
#: The last version of Produce that does not add the partition to the transaction by itself.
V1_PRODUCE = 11


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | ApacheKafka]:
    require_kafka()
    settings = {"transaction.partition.verification.enable": "false"}
    if os.environ.get("SEMEL_TEST_AGAINST") == "kafka":
        with ApacheKafka(settings=settings) as kafka:
            yield kafka
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as running:
        yield running


@pytest.fixture
def raw(broker) -> Iterator[Raw]:
    with Raw(broker.bootstrap_servers) as connection:
        yield connection


def hang(raw: Raw, topic: str) -> int:
    """A record of an hour ago in a transaction that was never told of its partition, and a plain record behind it."""
    raw.create(topic)
    request = InitProducerIdRequest(transactional_id=f"lost-{topic}", transaction_timeout_ms=60_000)

    def identity():
        answer = raw.ask(request, 4)
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return answer if answer.error_code == ErrorCode.NONE else None

    producer = until(identity, what="a producer id")
    long_ago_ms = time.time_ns() // 1_000_000 - HOUR_MS
    written = batch(
        b"lost",
        timestamp_ms=long_ago_ms,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    answer = raw.produce(topic, written, transactional_id=f"lost-{topic}", version=V1_PRODUCE)
    assert answer.error_code == ErrorCode.NONE
    assert raw.produce(topic, batch(b"after"), version=V1_PRODUCE).error_code == ErrorCode.NONE
    assert last_stable_offset(raw, topic) == 0
    producer_id: int = producer.producer_id
    return producer_id


def last_stable_offset(raw: Raw, topic: str) -> int:
    return raw.fetch(topic, isolation_level=1, max_wait_ms=0).last_stable_offset


def assert_free(raw: Raw, topic: str) -> None:
    """The marker is behind both records, and the lost one is named as aborted."""
    assert last_stable_offset(raw, topic) == 3
    data = raw.fetch(topic, isolation_level=1, max_wait_ms=0)
    assert [row.first_offset for row in data.aborted_transactions] == [0]
    assert values_of(data) == [b"lost", b"after"], "as they are stored; which to drop is the reader's to do"


def table(text: str) -> list[dict[str, str]]:
    header, *lines = [line.split() for line in text.splitlines() if line.strip()]
    return [dict(zip(header, line, strict=False)) for line in lines]


def find_hanging(at: tuple[str, str], topic: str) -> list[dict[str, str]]:
    # In minutes. Kafka goes by the times of records, Semel by when they were written, which was just now.
    where = ("--broker-id", 1, "--max-transaction-timeout", 0)
    found = table(java_tools.run("transactions", *at, "find-hanging", *where).stdout)
    return [row for row in found if row["Topic"] == topic]


def test_kafkas_command_finds_a_hanging_transaction_and_ends_it_by_the_coordinates_it_gave(broker, raw) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    producer_id = hang(raw, "forgotten")
    (found,) = find_hanging(at, "forgotten")
    assert (found["Partition"], found["ProducerId"], found["StartOffset"]) == ("0", str(producer_id), "0")
    coordinates = ("--topic", found["Topic"], "--partition", found["Partition"], "--producer-id", found["ProducerId"])
    epochs = ("--producer-epoch", found["ProducerEpoch"], "--coordinator-epoch", found["CoordinatorEpoch"])
    java_tools.run("transactions", *at, "abort", *coordinates, *epochs)
    assert_free(raw, "forgotten")
    assert find_hanging(at, "forgotten") == []


def test_the_doctor_finds_explains_and_heals_a_hanging_transaction(broker, raw) -> None:
    producer_id = hang(raw, "blocked")
    where = ("--bootstrap", broker.bootstrap_servers)
    sick = CliRunner().invoke(txn, ["doctor", "blocked", *where])
    assert sick.exit_code == 1, sick.output
    assert "blocked-0: hanging" in sick.output
    assert str(producer_id) in sick.output
    healed = CliRunner().invoke(txn, ["doctor", "blocked", "--fix", "--yes", *where])
    assert healed.exit_code == 0, healed.output
    assert "wrote the missing abort marker into blocked-0" in healed.output
    assert_free(raw, "blocked")
    assert "nothing holds readers back" in CliRunner().invoke(txn, ["doctor", "blocked", *where]).output

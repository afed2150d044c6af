"""Answers that get lost: clients retry with five requests in flight, and every record is stored once and in order.

Some answers are lost with their connection, some without a word, so that the client has to wait for its timeout. What
clients were told and what is stored afterwards is given to the judge of histories.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, Producer

import semel
from semel.broker.embedded import Broker
from semel.records.batch import read_records, split
from semel.testing.fault_proxy import Cut, Fault, FaultProxy, Mute, Passing, Rule, Swallow, Way
from semel.testing.history import Outcome, Poll, Seen, Send, judge
from semel.wire.apis import ApiKey
from tests.broker.raw import Raw
from tests.support import java_tools
from tests.support.apache_kafka import ApacheKafka
from tests.support.reading import read_all
from tests.support.sequences import refuse_first_further_batch
from tests.support.waiting import until

RECORDS = 100_000
#: How long clients wait for an answer that does not come.
REQUEST_TIMEOUT_MS = 1000


def losing(faults: dict[int, Fault]) -> Rule:
    """A rule: of every forty answers to Produce those with these numbers meet their fault."""

    def rule(passing: Passing) -> Fault | None:
        if passing.way is Way.RESPONSE and passing.api_key == ApiKey.PRODUCE:
            return faults.get(passing.count % 40)
        return None

    return rule


def stored(broker: Broker, topic: str) -> Iterator[Seen]:
    with Raw(broker) as raw:
        offset = 0
        while (data := raw.fetch(topic, offset, max_wait_ms=0)).records:
            for batch in split(data.records):
                assert batch.base_offset == offset
                offset = batch.next_offset
                for record in read_records(batch):
                    assert record.value is not None
                    yield Seen(topic, 0, record.offset, bytes(record.value))


def assert_once_and_in_order(broker: Broker, topic: str, sends: list[Send]) -> None:
    assert len(sends) == RECORDS
    assert {send.outcome for send in sends} == {Outcome.OK}
    seen = tuple(stored(broker, topic))
    assert judge([*sends, Poll("reader", seen)], at_rest=True) == []
    assert [one.value for one in seen] == [b"%d" % number for number in range(RECORDS)]


@pytest.mark.timeout(300)
def test_librdkafka_behind_a_proxy_that_loses_answers_writes_every_record_once(broker: Broker, topic: str) -> None:
    sends: list[Send] = []

    def told(error: object, message: confluent_kafka.Message) -> None:
        outcome = Outcome.OK if error is None else Outcome.UNKNOWN
        # Of a batch whose retry the broker knew already, librdkafka may not know the offset: it says a negative one.
        at = message.offset()
        offset = at if at is not None and at >= 0 else None
        sends.append(Send("producer", topic, 0, message.value(), offset, outcome))

    faults = losing({7: Cut(), 15: Swallow(), 23: Cut(), 31: Mute(), 39: Cut()})
    with FaultProxy(broker.bootstrap_servers, faults) as proxy:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 5,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "batch.num.messages": 500,
                "linger.ms": 2,
                "queue.buffering.max.messages": RECORDS + 1,
                "reconnect.backoff.ms": 1,
                "reconnect.backoff.max.ms": 10,
                "retry.backoff.ms": 1,
                "log_level": 0,
                "on_delivery": told,
            }
        )
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number, partition=0)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(200) == 0
        assert min(proxy.faults[kind] for kind in ("Cut", "Mute", "Swallow")) >= 3, proxy.faults
    assert_once_and_in_order(broker, topic, sends)


@pytest.mark.java
@pytest.mark.timeout(300)
def test_the_java_client_behind_a_proxy_that_loses_answers_writes_every_record_once(
    broker: Broker, topic: str, kafka_jars: None, tmp_path: Path
) -> None:
    # The tool itself switches retries off.
    config = tmp_path / "producer.properties"
    config.write_text(
        "retries=2147483647\nenable.idempotence=true\nmax.in.flight.requests.per.connection=5\nbatch.size=4096\n"
        f"request.timeout.ms={REQUEST_TIMEOUT_MS}\n"
        "retry.backoff.ms=5\nreconnect.backoff.ms=1\nreconnect.backoff.max.ms=10\n"
    )
    with Raw(broker) as raw:
        raw.create(topic)
    # The Java client takes an answer out of turn for a broken broker, so none is swallowed alone.
    faults = losing({7: Cut(), 23: Cut(), 31: Mute(), 39: Cut()})
    with FaultProxy(broker.bootstrap_servers, faults) as proxy:
        where = ("--bootstrap-server", proxy.bootstrap_servers, "--topic", topic, "--command-config", config)
        said = java_tools.run("verifiable-producer", *where, "--max-messages", RECORDS, timeout_s=250).stdout
        assert min(proxy.faults[kind] for kind in ("Cut", "Mute")) >= 3, proxy.faults
    told = [json.loads(line) for line in said.splitlines() if '"producer_send_' in line]
    sends = [
        Send(
            "producer",
            topic,
            0,
            row["value"].encode(),
            row["offset"] if row.get("offset", -1) >= 0 else None,
            Outcome.OK if row["name"] == "producer_send_success" else Outcome.UNKNOWN,
        )
        for row in told
    ]
    assert_once_and_in_order(broker, topic, sends)


def test_librdkafka_aborts_and_goes_on_under_a_new_epoch_when_a_reused_sequence_is_refused(
    semel_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses one again only when a broker dies at the wrong moment, so the refusal is made as the partition does."""
    epochs = refuse_first_further_batch(monkeypatch)
    at = semel_broker.bootstrap_servers
    with Raw(semel_broker) as raw:
        raw.create("t")
    producer = Producer({"bootstrap.servers": at, "transactional.id": "reuses", "log_level": 0})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("t", b"first", partition=0)
    producer.flush(20)
    producer.abort_transaction(20)
    producer.begin_transaction()
    producer.produce("t", b"second", partition=0)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(20)
    assert refused.value.args[0].txn_requires_abort() and not refused.value.args[0].fatal()
    producer.abort_transaction(20)
    producer.begin_transaction()
    producer.produce("t", b"third", partition=0)
    producer.commit_transaction(20)
    assert epochs[-1] > epochs[0]
    assert read_all(at, "t") == [b"third"]


def aborted_without_its_partitions(servers: str, transactional_id: str) -> str:
    """What librdkafka is told when it aborts a transaction whose AddPartitionsToTxn never reached the broker."""

    def rule(passing: Passing) -> Fault | None:
        # All from the second one on: librdkafka may send it once more before it aborts.
        lost = passing.way is Way.REQUEST and passing.api_key == ApiKey.ADD_PARTITIONS_TO_TXN and passing.count >= 2
        return Cut() if lost else None

    with FaultProxy(servers, rule) as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": transactional_id})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"committed", partition=0)
        producer.commit_transaction(30)
        producer.begin_transaction()
        producer.produce("t", b"lost", partition=0)
        until(lambda: proxy.faults["Cut"] >= 1, what="the request to be lost")
        try:
            producer.abort_transaction(30)
        except KafkaException as error:
            return f"{error.args[0].name()}, fatal: {error.args[0].fatal()}"
        return "aborted"


@pytest.mark.java
@pytest.mark.timeout(120)
def test_an_abort_of_what_never_arrived_is_answered_as_apache_kafka_does(
    semel_broker: Broker, apache_kafka: ApacheKafka
) -> None:
    """It could as well be the abort of a commit whose answer got lost: success would be a lie."""
    for servers in (semel_broker.bootstrap_servers, apache_kafka.bootstrap_servers):
        with semel.Admin({"bootstrap.servers": servers}) as admin:
            admin.create_topic("t", if_not_exists=True)
        assert aborted_without_its_partitions(servers, "aborts") == "INVALID_TXN_STATE, fatal: True"

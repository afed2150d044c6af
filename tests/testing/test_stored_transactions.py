"""The history that is read out of a log lets the judge name what a reader must not have seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from semel import Admin
from semel import Producer as Ours
from semel.broker.embedded import Broker
from semel.testing.history import AnomalyKind, Seen, judge
from tests.support.stored_transactions import TimedPoll, history, stored_transactions, timed_poll
from tests.support.waiting import until

KEPT = [b"a", b"b", b"c", b"d"]


@pytest.fixture
def servers(semel_broker: Broker) -> str:
    """A broker with a, b committed, then c, d aborted, then c, d written again and committed."""
    servers: str = semel_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "writer"})
    producer.init_transactions(20)
    for values, commits in ((KEPT[:2], True), (KEPT[2:], False), (KEPT[2:], True)):
        producer.begin_transaction()
        for value in values:
            producer.produce("t", value, partition=0)
        assert producer.flush(20) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(20)
    return servers


def polled(servers: str, isolation: str) -> TimedPoll:
    settings = {"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": isolation})
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        messages = []
        count = 4 if isolation == "read_committed" else 6
        until(lambda: messages.extend(consumer.consume(10, timeout=0.2)) or len(messages) >= count, what="records")
        return timed_poll(messages)
    finally:
        consumer.close()


def kinds(servers: str, poll: TimedPoll) -> set[AnomalyKind]:
    made = history(stored_transactions(servers, "t"), [poll], in_order=KEPT)
    return {anomaly.kind for anomaly in judge(made, at_rest=True)}


def test_a_lawful_reader_is_let_pass(servers: str) -> None:
    assert [one.committed for one in stored_transactions(servers, "t")] == [True, False, True]
    assert kinds(servers, polled(servers, "read_committed")) == set()


def test_a_reader_that_was_shown_aborted_records_is_told_so(servers: str) -> None:
    assert kinds(servers, polled(servers, "read_uncommitted")) == {AnomalyKind.ABORTED_READ}


def test_a_reader_that_was_shown_records_before_their_marker_is_told_so(servers: str) -> None:
    poll = polled(servers, "read_committed")
    assert kinds(servers, replace(poll, at_ms=poll.at_ms - 60_000)) == {AnomalyKind.UNCOMMITTED_READ}


def test_a_reader_that_was_shown_half_a_transaction_is_told_so(servers: str) -> None:
    poll = polled(servers, "read_committed")
    half = tuple(one for one in poll.records if one.value != b"c")
    assert kinds(servers, replace(poll, records=half)) == {AnomalyKind.LOST_WRITE, AnomalyKind.POLL_SKIP}


def test_partitions_that_disagree_about_an_outcome_are_told_of(semel_broker: Broker) -> None:
    servers: str = semel_broker.bootstrap_servers
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topic("two", 2)
    with Ours({"bootstrap.servers": servers, "transactional.id": "writer"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            for partition, value in enumerate(KEPT[:2]):
                producer.send("two", value, partition=partition)
    transactions = [one for partition in range(2) for one in stored_transactions(servers, "two", partition)]
    assert len({one.name for one in transactions}) == 1
    seen = tuple(Seen("two", one.partition, *one.records[0]) for one in transactions)
    poll = TimedPoll(max(one.ended_at_ms for one in transactions), seen)
    assert judge(history(transactions, [poll]), at_rest=True) == []
    for torn in (0, 1):
        disagreeing = [replace(one, committed=one.partition != torn) for one in transactions]
        half = replace(poll, records=(seen[1 - torn],))
        assert judge(history(disagreeing, [half]), at_rest=True) != []


def test_a_record_that_was_never_written_is_missed(servers: str) -> None:
    made = history(stored_transactions(servers, "t"), [polled(servers, "read_committed")], in_order=[*KEPT, b"e"])
    assert {anomaly.kind for anomaly in judge(made, at_rest=True)} == {AnomalyKind.UNSEEN}

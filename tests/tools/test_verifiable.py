"""Kafka's system-test clients: VerifiableProducer and VerifiableConsumer, with both group protocols."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.support import java_tools
from tests.support.processes import Process
from tests.support.waiting import until

pytestmark = pytest.mark.java


def events(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def seen_by(consumer: Process) -> list[tuple[int, int, str]]:
    """(partition, offset, value) of each record the consumer printed."""
    return [
        (event["partition"], event["offset"], event["value"])
        for event in events(consumer.output())
        if event["name"] == "record_data"
    ]


def test_the_verifiable_producer_has_every_record_acknowledged(broker) -> None:
    where = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "verified")
    done = java_tools.run("verifiable-producer", *where, "--max-messages", 2000, "--throughput", -1)
    said = events(done.stdout)
    acknowledged = [event for event in said if event["name"] == "producer_send_success"]
    assert len(acknowledged) == 2000
    assert {event["value"] for event in acknowledged} == {str(number) for number in range(2000)}
    assert len({(event["partition"], event["offset"]) for event in acknowledged}) == 2000


@pytest.mark.parametrize("protocol", ["CLASSIC", "CONSUMER"])
def test_two_verifiable_consumers_share_a_topic_and_read_each_record(broker, protocol: str) -> None:
    topic = f"shared-{protocol.lower()}"
    at = ("--bootstrap-server", broker.bootstrap_servers)
    java_tools.run("topics", *at, "--create", "--topic", topic, "--partitions", 4)
    options = (*at, "--topic", topic, "--group-id", topic, "--group-protocol", protocol, "--verbose")
    start = partial(java_tools.start, "verifiable-consumer", *options)
    with start() as one, start() as two:
        for consumer in (one, two):
            consumer.wait_for_line(r'"name":"partitions_assigned".*"partition"', within_s=40)
        java_tools.run("verifiable-producer", *at, "--topic", topic, "--max-messages", 1000, "--throughput", -1)
        until(lambda: len(seen_by(one) + seen_by(two)) >= 1000, within_s=30, what="1,000 records at two consumers")
        both = seen_by(one) + seen_by(two)
        assert sorted(int(value) for _, _, value in both) == list(range(1000))
        for consumer in (one, two):
            assert consumer.terminate() in (0, 143)


def test_consumer_performance_reads_what_producer_performance_wrote(broker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "performance")
    load = ("--num-records", 20000, "--record-size", 100, "--throughput", -1)
    written = java_tools.run("producer-performance", *at, *load)
    assert written.stdout.splitlines()[-1].startswith("20000 records sent")
    read = java_tools.run("consumer-performance", *at, "--num-records", 20000, "--timeout", 20000)
    header, figures = (line.split(", ") for line in read.stdout.strip().splitlines()[-2:])
    row = dict(zip(header, figures, strict=False))
    assert next(value for name, value in row.items() if name.startswith("data.consumed.in.nMsg")) == "20000"

"""Kafka's ConsumerGroupCommand: groups listed, described with their lag, moved and deleted."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from tests.support import java_tools
from tests.support.waiting import until

pytestmark = pytest.mark.java


@pytest.fixture
def at(broker) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap_servers)


def fill(at: tuple[str, str], topic: str, count: int) -> None:
    java_tools.run("console-producer", *at, "--topic", topic, stdin="".join(f"{number}\n" for number in range(count)))


def read(broker, topic: str, group: str, count: int) -> Consumer:
    """A member of the group that has read and committed `count` records, still in the group."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    last = [None]
    seen = 0

    def enough() -> bool:
        nonlocal seen
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            seen += 1
            last[0] = message
        return seen == count

    until(enough, within_s=30, what=f"{count} records")
    consumer.commit(message=last[0], asynchronous=False)
    return consumer


def described(at: tuple[str, str], group: str, *options: str) -> list[dict[str, str]]:
    lines = java_tools.run("consumer-groups", *at, "--describe", "--group", group, *options).stdout.splitlines()
    rows = [line.split() for line in lines if line.strip()]
    header = next(row for row in rows if row[0] == "GROUP")
    return [dict(zip(header, row, strict=False)) for row in rows if row[0] == group]


def test_an_active_group_is_listed_and_described_with_its_lag_and_members(broker, at) -> None:
    fill(at, "followed", 10)
    consumer = read(broker, "followed", "followers", 4)
    try:
        assert "followers" in java_tools.run("consumer-groups", *at, "--list").stdout.split()
        (row,) = described(at, "followers")
        assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("4", "10", "6")
        (member,) = described(at, "followers", "--members")
        assert member["#PARTITIONS"] == "1"
        (state,) = described(at, "followers", "--state")
        assert state["STATE"] == "Stable"
    finally:
        consumer.close()


def test_an_empty_group_can_be_moved_and_deleted(broker, at) -> None:
    fill(at, "moved", 10)
    read(broker, "moved", "movers", 6).close()
    reset = ("--group", "movers", "--topic", "moved", "--reset-offsets")
    java_tools.run("consumer-groups", *at, *reset, "--to-offset", 2, "--execute")
    (row,) = described(at, "movers")
    assert (row["CURRENT-OFFSET"], row["LAG"]) == ("2", "8")
    java_tools.run("consumer-groups", *at, *reset, "--to-earliest", "--execute")
    assert described(at, "movers")[0]["CURRENT-OFFSET"] == "0"
    java_tools.run("consumer-groups", *at, "--delete-offsets", "--group", "movers", "--topic", "moved")
    java_tools.run("consumer-groups", *at, "--delete", "--group", "movers", check=False)
    assert "movers" not in java_tools.run("consumer-groups", *at, "--list").stdout.split()


def test_a_group_with_members_cannot_be_deleted(broker, at) -> None:
    fill(at, "kept", 1)
    consumer = read(broker, "kept", "keepers", 1)
    try:
        refused = java_tools.run("consumer-groups", *at, "--delete", "--group", "keepers", check=False)
        assert "not empty" in refused.stdout + refused.stderr
    finally:
        consumer.close()

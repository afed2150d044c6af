"""The consumer protocol (KIP-848) with a client that speaks it: librdkafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer

from semel.client.blocking.admin import Admin
from tests.support.waiting import until

if TYPE_CHECKING:
    from semel.broker.embedded import Broker

PARTITIONS = 4


@pytest.fixture
def admin(semel_broker: Broker) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": semel_broker.bootstrap_servers}) as admin:
        admin.create_topic("ledger", partitions=PARTITIONS)
        yield admin


def consumer(broker: Broker, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "readers",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )


def produce(broker: Broker, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce("ledger", str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def owned(one: Consumer) -> set[int]:
    one.poll(0.05)
    return {place.partition for place in one.assignment()}


def test_members_share_the_partitions_and_commit(semel_broker: Broker, admin: Admin) -> None:
    with ExitStack() as stack:
        first, second = consumer(semel_broker), consumer(semel_broker)
        for one in (first, second):
            one.subscribe(["ledger"])
            stack.callback(one.close)
        until(_shared(first, second), within_s=40, what="both members to have half")
        produce(semel_broker, 40)
        seen: set[bytes] = set()

        def all_read() -> bool:
            for one in (first, second):
                message = one.poll(0.05)
                if message is not None and message.error() is None:
                    seen.add(message.value() or b"")
                    one.commit(message=message, asynchronous=False)
            return len(seen) == 40

        until(all_read, within_s=30, what="every record")
        described = admin.describe_groups(["readers"])["readers"]
        assert (described.type, described.state, described.assignor) == ("consumer", "Stable", "uniform")
        offsets = admin.list_group_offsets("readers")
        assert {place.partition: at.offset for place, at in offsets.items()} == dict.fromkeys(range(PARTITIONS), 10)


def test_what_a_member_leaves_behind_goes_to_another(semel_broker: Broker, admin: Admin) -> None:
    first, second = consumer(semel_broker), consumer(semel_broker)
    first.subscribe(["ledger"])
    second.subscribe(["^led.*"])
    try:
        until(_shared(first, second), within_s=40, what="both members to have half")
    finally:
        second.close()
    until(lambda: len(owned(first)) == PARTITIONS, within_s=30, what="the first member to have all")
    first.close()
    until(lambda: admin.list_groups()[0].state == "Empty", within_s=10, what="an empty group")


def _shared(first: Consumer, second: Consumer) -> Callable[[], bool]:
    def shared() -> bool:
        mine, theirs = owned(first), owned(second)
        assert mine.isdisjoint(theirs)
        return len(mine) == len(theirs) == PARTITIONS // 2

    return shared

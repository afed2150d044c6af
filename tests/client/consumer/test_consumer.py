"""The consumer against real brokers: positions, isolation, groups and their rebalances."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from contextlib import suppress
from dataclasses import replace

import confluent_kafka
import pytest

from semel import Admin, Broker, Consumer, Producer
from semel.client.cluster.metadata import Metadata
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.group.consumer_member import ConsumerGroupMember
from semel.errors import CommitFailed, MemberFenced, Misuse, OffsetOutOfRange, TopicExists
from semel.machines.values import TopicPartition
from semel.testing.fault_proxy import Cut, FaultProxy, Way, every
from semel.wire.apis import ApiKey
from semel.wire.messages.groups import LeaveGroupRequest
from semel.wire.messages.metadata import MetadataResponse
from tests.broker.raw import Raw
from tests.client.witness import Witness
from tests.support.processes import BrokerProcess
from tests.support.waiting import until


def fill(bootstrap: str, topic: str, count: int, partitions: int = 1) -> None:
    """`count` records in every partition, with a second between their timestamps."""
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(topic, partitions, if_not_exists=True)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for partition in range(partitions):
            for number in range(count):
                producer.send(
                    topic, b"%d" % number, partition=partition, timestamp_ms=1_700_000_000_000 + number * 1_000
                )


def reader(bootstrap: str, **settings: object) -> Consumer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Consumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", **named})


def take(consumer: Consumer, count: int) -> list[bytes | None]:
    """The next `count` values."""
    found: list[bytes | None] = []

    def enough() -> bool:
        found.extend(record.value for record in consumer.poll(timeout_ms=200))
        return len(found) >= count

    until(enough, what=f"{count} records", every_s=0)
    assert len(found) == count
    return found


def test_reading_goes_on_where_it_is_sent(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 100)
    with reader(bootstrap, max_poll_records=10) as consumer:
        consumer.assign([(name, 0)])
        assert take(consumer, 10) == [b"%d" % n for n in range(10)]
        assert consumer.position((name, 0)) == 10
        consumer.seek((name, 0), 95)
        assert take(consumer, 5) == [b"95", b"96", b"97", b"98", b"99"]
        consumer.seek_to_beginning()
        assert take(consumer, 10)[0] == b"0"
        consumer.seek_to_end()
        assert consumer.position((name, 0)) == 100
        assert consumer.poll(timeout_ms=50) == []
        assert consumer.lag((name, 0)) == 0


def test_offsets_are_found_by_time_and_at_both_ends(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 10)
    partition = TopicPartition(name, 0)
    with reader(bootstrap) as consumer:
        found = consumer.offsets_for_times({partition: 1_700_000_004_500})[partition]
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (5, 1_700_000_005_000)
        assert consumer.offsets_for_times({partition: 1_800_000_000_000}) == {partition: None}
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 10}
        assert consumer.partitions_for(name) == [partition]


def test_a_paused_partition_waits_and_loses_nothing(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 20, partitions=2)
    with reader(bootstrap) as consumer:
        consumer.assign([(name, 0), (name, 1)])
        consumer.pause([(name, 0)])
        assert take(consumer, 20) == [b"%d" % n for n in range(20)]
        assert consumer.poll(timeout_ms=100) == []
        assert consumer.paused() == {TopicPartition(name, 0)}
        consumer.resume([(name, 0)])
        assert take(consumer, 20) == [b"%d" % n for n in range(20)]


def test_a_partition_without_a_leader_does_not_keep_the_others_from_being_read(
    bootstrap: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bootstrap, name, 3, partitions=2)
    update = Metadata.update

    def without_the_second_leader(self: Metadata, response: MetadataResponse, at: float) -> None:
        update(self, response, at)
        info = self.topics.get(name)
        if info is not None and not healed.is_set():
            first, second = info.partitions
            self.topics[name] = replace(info, partitions=(first, replace(second, leader=-1)))

    healed = threading.Event()
    monkeypatch.setattr(Metadata, "update", without_the_second_leader)
    with reader(bootstrap) as consumer:
        consumer.assign([(name, 0), (name, 1)])
        take(consumer, 3)
        assert consumer.position((name, 0)) == 3
        healed.set()
        take(consumer, 3)
        assert consumer.position((name, 1)) == 3


def test_without_an_offset_and_without_a_policy_the_setting_is_named(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 1)
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "none", "group.id": name}
    with Consumer(config) as consumer:
        consumer.assign([(name, 0)])
        with pytest.raises(OffsetOutOfRange, match=r"auto\.offset\.reset"):
            until(lambda: consumer.poll(timeout_ms=200), what="an error")


def test_without_a_group_and_a_policy_reading_starts_where_it_is_sent(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 3, partitions=2)
    with reader(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([(name, 0), (name, 1)])
        with pytest.raises(OffsetOutOfRange, match=r"no committed offset.*auto\.offset\.reset"):
            consumer.position((name, 1))
        consumer.seek((name, 0), 1)
        consumer.seek_to_end([(name, 1)])
        assert take(consumer, 2) == [b"1", b"2"]
        assert consumer.position((name, 1)) == 3


def test_an_offset_deleted_under_the_reader_is_reset_by_policy(
    bootstrap: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(bootstrap, name, 10)
    with Admin({"bootstrap.servers": bootstrap}) as admin, reader(bootstrap) as consumer:
        admin.delete_records({(name, 0): 6})
        consumer.assign([(name, 0)])
        consumer.seek((name, 0), 2)
        assert take(consumer, 4) == [b"6", b"7", b"8", b"9"]
    told = [row.getMessage() for row in caplog.records if row.name == "semel.client.consumer.fetcher"]
    assert told == [
        f"{name}-0: offset 2 is not in the log (any more): auto.offset.reset=earliest, so reading goes on at its "
        "beginning"
    ]


def again(bootstrap: str, topic: str, count: int) -> None:
    """Another topic of this name, with so many records that say it."""
    settings = {"bootstrap.servers": bootstrap}
    with Admin(settings) as admin:
        admin.delete_topics([topic])

        def created() -> bool:
            try:
                admin.create_topic(topic)
            except TopicExists:  # Apache Kafka forgets it a little later
                return False
            return True

        until(created, what="the topic to be created again")
    with Producer(settings) as producer:
        for number in range(count):
            producer.send(topic, b"again %d" % number)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("read", [2, 9], ids=["less was read", "more was read"])
def test_a_topic_that_was_created_again_is_read_from_its_start(
    bootstrap: str, name: str, policy: str, read: int
) -> None:
    fill(bootstrap, name, read)
    with reader(bootstrap, auto_offset_reset=policy, allow_auto_create_topics="false") as consumer:
        consumer.assign([(name, 0)])
        consumer.seek((name, 0), 0)
        take(consumer, read)
        again(bootstrap, name, 5)
        assert take(consumer, 5) == [b"again %d" % number for number in range(5)]
        # A position that is given now is one in the new topic.
        consumer.seek((name, 0), 3)
        assert take(consumer, 2) == [b"again 3", b"again 4"]


def test_without_a_policy_a_topic_that_was_created_again_is_told(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 2)
    with reader(bootstrap, auto_offset_reset="none", allow_auto_create_topics="false") as consumer:
        consumer.assign([(name, 0)])
        consumer.seek((name, 0), 0)
        take(consumer, 2)
        again(bootstrap, name, 5)
        with pytest.raises(OffsetOutOfRange, match="deleted and created again"):
            take(consumer, 1)
        consumer.seek((name, 0), 1)
        assert take(consumer, 4) == [b"again %d" % number for number in range(1, 5)]


def test_an_open_transaction_hides_itself_and_all_that_follows_until_it_ends(bootstrap: str, name: str) -> None:
    with (
        Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer,
        Producer({"bootstrap.servers": bootstrap}) as plain,
        reader(bootstrap) as committed,
        reader(bootstrap, isolation_level="read_uncommitted") as all_of_it,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "first").result(30)
        plain.send(name, "plain").result(30)
        for consumer in (committed, all_of_it):
            consumer.assign([(name, 0)])
        assert take(all_of_it, 2) == [b"first", b"plain"]
        assert committed.poll(timeout_ms=300) == []
        assert committed.end_offsets([(name, 0)])[TopicPartition(name, 0)] == 0
        producer.commit_transaction()
        assert take(committed, 2) == [b"first", b"plain"]
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(name, "never").result(30)
            raise ZeroDivisionError
        with producer.transaction():
            producer.send(name, "last")
        assert take(committed, 1) == [b"last"]
        table = all_of_it.poll_arrow(timeout_ms=5_000)
        assert table["value"].to_pylist() == [b"never", b"last"]


def test_a_group_goes_on_where_it_committed(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 10)
    with reader(bootstrap, group_id=name, enable_auto_commit=False, max_poll_records=4) as consumer:
        consumer.subscribe(name)
        take(consumer, 4)
        consumer.commit()
        take(consumer, 4)
        assert {p: o.offset for p, o in consumer.committed([(name, 0)]).items()} == {TopicPartition(name, 0): 4}
    with reader(bootstrap, group_id=name) as consumer:
        consumer.subscribe([name])
        assert take(consumer, 6)[0] == b"4"
    with reader(bootstrap, group_id=name) as consumer, Admin({"bootstrap.servers": bootstrap}) as admin:
        assert [o.offset for o in admin.list_group_offsets(name).values()] == [10], "closing committed"
        consumer.assign([(name, 0)])
        assert consumer.position((name, 0)) == 10


def test_a_commit_can_be_heard_of_later(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 3)
    with reader(bootstrap, group_id=name, enable_auto_commit=False) as consumer:
        consumer.assign([(name, 0)])
        take(consumer, 3)
        done, outcomes = threading.Event(), []
        consumer.commit_soon(on_done=lambda error: (outcomes.append(error), done.set()))
        assert done.wait(30)
        assert outcomes == [None]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_members_share_the_partitions_and_take_over_from_one_that_leaves(
    bootstrap: str, name: str, strategy: str
) -> None:
    fill(bootstrap, name, 5, partitions=4)
    config = {"group_id": name, "partition_assignment_strategy": strategy, "heartbeat_interval_ms": 100}
    with reader(bootstrap, **config) as first:
        events: list[tuple[str, int]] = []
        first.subscribe(
            name,
            on_assigned=lambda partitions: events.append(("assigned", len(partitions))),
            on_revoked=lambda partitions: events.append(("revoked", len(partitions))),
        )
        take(first, 20)
        assert events == [("assigned", 4)]
        second = reader(bootstrap, **config)
        try:
            second.subscribe(name)

            def shared() -> bool:
                first.poll(timeout_ms=50)
                second.poll(timeout_ms=50)
                return len(first.assignment()) == len(second.assignment()) == 2

            until(shared, what="two shares of two")
            assert not first.assignment() & second.assignment()
            lost = 2 if strategy == "cooperative-sticky" else 4
            assert ("revoked", lost) in events
        finally:
            second.close()

        def alone() -> bool:
            first.poll(timeout_ms=50)
            return len(first.assignment()) == 4

        until(alone, what="all four partitions")
        fill(bootstrap, name, 1, partitions=4)
        assert take(first, 4) == [b"0"] * 4


@pytest.mark.semel(
    **{
        "group.initial.rebalance.delay.ms": 0,
        "group.consumer.min.heartbeat.interval.ms": 50,
        "group.consumer.heartbeat.interval.ms": 50,
    }
)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_poll_handed_out_stays_this_members_until_the_next_poll(
    semel_broker: Broker, name: str, protocol: str
) -> None:
    """Else a commit in between would leave out what was read: with a transaction, its output without its offsets."""
    bootstrap = semel_broker.bootstrap_servers
    fill(bootstrap, name, 50, partitions=2)
    config = {"group_id": name, "group_protocol": protocol, "enable_auto_commit": False, "heartbeat_interval_ms": 50}
    config |= {"partition_assignment_strategy": "cooperative-sticky", "max_poll_records": 1}
    over = threading.Event()
    with reader(bootstrap, **config) as first, reader(bootstrap, **config) as second:
        revoked: list[TopicPartition] = []
        first.subscribe(name, on_revoked=revoked.extend)
        until(lambda: first.poll(timeout_ms=50), what="a record")
        second.subscribe(name)
        joining = threading.Thread(target=lambda: [second.poll(timeout_ms=50) for _ in iter(over.is_set, True)])
        joining.start()
        try:
            deadline = time.monotonic() + 30
            while not second.assignment():
                assert time.monotonic() < deadline, "the second member got nothing"
                handed_out = {TopicPartition(r.topic, r.partition) for r in first.poll(timeout_ms=0)}
                told = len(revoked)
                over.wait(0.05)  # the user is busy with them; heartbeats and joins go on
                assert handed_out <= first.consumed().keys(), "a commit would leave out what is being worked on"
                assert len(revoked) == told, "no callback while the user is at work"
        finally:
            over.set()
            joining.join(30)
        assert set(revoked) == second.assignment()


def test_a_coordinator_that_assigns_is_followed(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 5, partitions=2)
    with reader(bootstrap, group_id=name, group_protocol="consumer") as consumer:
        assigned: list[TopicPartition] = []
        consumer.subscribe(name, on_assigned=assigned.extend)
        take(consumer, 10)
        assert set(assigned) == consumer.assignment() == {TopicPartition(name, 0), TopicPartition(name, 1)}
        consumer.commit()
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            group = admin.describe_groups([name])[name]
            assert (group.type, group.members[0].member_id) == ("consumer", consumer.group_metadata().member_id)
    with reader(bootstrap, group_id=name, group_protocol="consumer") as consumer:
        consumer.subscribe(name)
        fill(bootstrap, name, 1, partitions=2)
        take(consumer, 2)


@pytest.mark.semel(**{"group.consumer.min.heartbeat.interval.ms": 50, "group.consumer.heartbeat.interval.ms": 50})
def test_members_of_the_consumer_protocol_share_and_take_over(semel_broker: Broker, name: str) -> None:
    bootstrap = semel_broker.bootstrap_servers
    fill(bootstrap, name, 5, partitions=4)
    config = {"group_id": name, "group_protocol": "consumer"}
    revoked: list[TopicPartition] = []
    with reader(bootstrap, **config) as first:
        first.subscribe(name, on_revoked=revoked.extend)
        take(first, 20)
        with reader(bootstrap, **config) as second:
            second.subscribe(name)

            def shared() -> bool:
                first.poll(timeout_ms=20)
                second.poll(timeout_ms=20)
                return len(first.assignment()) == len(second.assignment()) == 2

            until(shared, what="two shares of two")
            assert set(revoked) == second.assignment(), "only what moved was revoked"

        def alone() -> bool:
            first.poll(timeout_ms=20)
            return len(first.assignment()) == 4

        until(alone, what="all four partitions")


def test_a_callback_may_commit_what_is_about_to_be_revoked(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 5)
    config = {"group_id": name, "enable_auto_commit": False, "heartbeat_interval_ms": 100}
    with reader(bootstrap, **config) as first:
        first.subscribe(name, on_revoked=lambda partitions: first.commit())
        take(first, 5)
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        assert [o.offset for o in admin.list_group_offsets(name).values()] == [5]


def test_a_member_shares_a_group_with_librdkafka(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 5, partitions=2)
    other = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
            "heartbeat.interval.ms": 100,
        }
    )
    try:
        other.subscribe([name])
        with reader(bootstrap, group_id=name, partition_assignment_strategy="range", heartbeat_interval_ms=100) as ours:
            ours.subscribe(name)

            def shared() -> bool:
                ours.poll(timeout_ms=50)
                other.poll(0.05)
                return len(ours.assignment()) == len(other.assignment()) == 1

            until(shared, what="one partition each")
    finally:
        other.close()


def test_a_static_member_that_comes_back_gets_its_partitions_back_and_fences_its_double(
    bootstrap: str, name: str
) -> None:
    fill(bootstrap, name, 3)
    config = {"group_id": name, "group_instance_id": "one", "heartbeat_interval_ms": 100}
    with reader(bootstrap, **config) as first:
        first.subscribe(name)
        take(first, 3)
        generation = first.group_metadata().generation_id
    with reader(bootstrap, **config) as again:
        again.subscribe(name)
        until(lambda: again.poll(timeout_ms=50) or again.assignment(), what="an assignment")
        assert again.group_metadata().generation_id == generation, "no rebalance"
        with reader(bootstrap, **config) as double:
            double.subscribe(name)
            until(lambda: double.poll(timeout_ms=50) or double.assignment(), what="an assignment")
            with pytest.raises(MemberFenced):
                until(lambda: again.poll(timeout_ms=50) and False, what="the fence")


def test_a_member_that_does_not_poll_loses_its_partitions_and_its_commit_is_refused(
    bootstrap: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(bootstrap, name, 1)
    config = {"group_id": name, "enable_auto_commit": False, "heartbeat_interval_ms": 60}
    lost: list[TopicPartition] = []
    with reader(bootstrap, max_poll_interval_ms=500, **config) as sleeper, reader(bootstrap, **config) as other:
        sleeper.subscribe(name, on_lost=lost.extend)
        take(sleeper, 1)
        other.subscribe(name)
        until(lambda: other.poll(timeout_ms=50) or other.assignment(), what="the sleeper's partition")
        with pytest.raises(CommitFailed):
            sleeper.commit({(name, 0): 1})
        sleeper.poll(timeout_ms=0)
        until(lambda: lost or sleeper.poll(timeout_ms=50), what="word of the loss")
        assert lost == [TopicPartition(name, 0)]
    told = [row.getMessage() for row in caplog.records if row.name == "semel.client.group.member"]
    assert len(told) == 1 and f"group '{name}': nobody called poll() for" in told[0], told


@pytest.mark.semel(**{"group.consumer.min.heartbeat.interval.ms": 50, "group.consumer.heartbeat.interval.ms": 50})
def test_a_member_that_never_polled_again_stays_away_until_it_does(
    semel_broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap = semel_broker.bootstrap_servers
    fill(bootstrap, name, 1)
    config = {"group_id": name, "group_protocol": "consumer", "max_poll_interval_ms": 200}
    with reader(bootstrap, **config) as sleeper, Admin({"bootstrap.servers": bootstrap}) as admin:
        sleeper.subscribe(name)

        def states() -> list[str]:
            return [group.state for group in admin.list_groups(types=["consumer"]) if group.group_id == name]

        until(lambda: states() not in ([], ["Empty"]), what="the member")
        until(lambda: states() == ["Empty"], what="its leaving")
        for _ in range(20):
            assert states() == ["Empty"], "it joined again, and nobody polls"
        assert "max.poll.interval.ms=200: this member leaves" in caplog.text
        take(sleeper, 1)


def test_a_member_that_its_group_has_removed_says_so(
    semel_broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(semel_broker.bootstrap_servers, name, 1)
    config = {"group_id": name, "heartbeat_interval_ms": 60}
    with reader(semel_broker.bootstrap_servers, **config) as consumer, Raw(semel_broker) as raw:
        consumer.subscribe(name)
        take(consumer, 1)
        member = LeaveGroupRequest.MemberIdentity(member_id=consumer.group_metadata().member_id)
        raw.ask(LeaveGroupRequest(group_id=name, members=[member]))

        def told() -> bool:
            consumer.poll(timeout_ms=50)
            return f"group '{name}' has removed this member: 1 partitions are lost" in caplog.text

        until(told, what="a warning")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_last_commit_that_fails_is_told(protocol: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        fill(broker.bootstrap_servers, name, 3)
        consumer = reader(broker.bootstrap_servers, group_id=name, group_protocol=protocol)
        consumer.subscribe(name)
        take(consumer, 3)
    consumer.close(timeout_ms=200)
    assert f"group '{name}': partitions are given up and what was read of them" in caplog.text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_whose_brokers_have_lost_the_group_joins_again(protocol: str, name: str) -> None:
    """As after a loss of the data, or where a broker is set up anew at its old address."""
    settings = {"group.initial.rebalance.delay.ms": 0}
    with Broker(settings=settings) as broker:
        bootstrap = broker.bootstrap_servers
        fill(bootstrap, name, 3)
        consumer = reader(bootstrap, group_id=name, group_protocol=protocol, heartbeat_interval_ms=1_000)
        consumer.subscribe(name)
        take(consumer, 3)
    with Broker(listen=bootstrap, settings=settings), consumer:
        fill(bootstrap, name, 2)
        with suppress(CommitFailed):  # unless a heartbeat was first
            consumer.commit()
        assert take(consumer, 2) == [b"0", b"1"]
        consumer.commit()


def test_a_topic_made_after_the_group_and_partitions_added_later_are_read(semel_broker: Broker, name: str) -> None:
    config = {"group_id": name, "metadata_max_age_ms": 150, "heartbeat_interval_ms": 100}
    bootstrap = semel_broker.bootstrap_servers
    with (
        reader(bootstrap, allow_auto_create_topics=False, **config) as consumer,
        Admin({"bootstrap.servers": bootstrap}) as admin,
    ):
        consumer.subscribe(name)
        until(lambda: consumer.poll(timeout_ms=50) or consumer.group_metadata().generation_id > 0, what="the group")
        assert consumer.assignment() == set()
        fill(bootstrap, name, 1)
        take(consumer, 1)
        admin.create_partitions({name: 3})
        consumer.partitions_for(name)  # somebody else looks too: that must not hide the news from the group
        until(lambda: not consumer.poll(timeout_ms=50) and len(consumer.assignment()) == 3, what="three partitions")


def test_a_callback_that_raises_is_heard_once_and_the_group_goes_on(session_broker: Broker, name: str) -> None:
    bootstrap = session_broker.bootstrap_servers
    fill(bootstrap, name, 1, partitions=2)
    config = {"group_id": name, "heartbeat_interval_ms": 60, "enable_auto_commit": False}
    raised: list[object] = []

    def refuse(partitions: object) -> None:
        raised.append(partitions)
        raise ValueError("not now")

    with reader(bootstrap, **config) as second:
        first = reader(bootstrap, **config)
        first.subscribe(name, on_revoked=refuse)
        take(first, 2)
        second.subscribe(name)

        def shared() -> bool:
            second.poll(timeout_ms=50)
            try:
                first.poll(timeout_ms=50)
            except ValueError:
                assert len(raised) == 1
            return len(first.assignment()) == len(second.assignment()) == 1

        until(shared, what="a share for each")
        with pytest.raises(ValueError, match="not now"):
            first.close()
        until(lambda: second.poll(timeout_ms=50) or len(second.assignment()) == 2, what="the goodbye")
        with pytest.raises(Misuse, match="closed"):
            first.poll()


def test_two_polls_at_once_are_refused(session_broker: Broker, name: str) -> None:
    fill(session_broker.bootstrap_servers, name, 0)
    with reader(session_broker.bootstrap_servers) as consumer:
        consumer.assign([(name, 0)])
        other = threading.Thread(target=lambda: consumer.poll(timeout_ms=3_000))
        other.start()
        with pytest.raises(Misuse, match="one thread at a time"):
            until(lambda: consumer.poll(timeout_ms=0) and False, what="the refusal")
        other.join(30)


def test_reading_without_anything_to_read_is_refused_and_not_waited_for(session_broker: Broker, name: str) -> None:
    fill(session_broker.bootstrap_servers, name, 1)
    with reader(session_broker.bootstrap_servers, **{"group.id": name}) as consumer:

        def refused() -> None:
            with pytest.raises(Misuse, match=r"call subscribe\(\) or assign\(\) first"):
                consumer.poll(0)
            with pytest.raises(Misuse, match=r"call subscribe\(\) or assign\(\) first"):
                next(iter(consumer))

        refused()
        consumer.assign([])  # who has to read nothing today
        assert consumer.poll(0) == []
        consumer.assign([(name, 0)])
        assert len(take(consumer, 1)) == 1
        consumer.unsubscribe()
        refused()
        consumer.subscribe(name)
        assert consumer.poll(0) == []


def test_a_pattern_follows_topics_as_they_come(bootstrap: str, name: str) -> None:
    fill(bootstrap, f"{name}-1", 1)
    config = {"group_id": name, "metadata_max_age_ms": 200, "heartbeat_interval_ms": 100}
    with reader(bootstrap, **config) as consumer:
        consumer.subscribe(re.compile(re.escape(name) + "-.*"))
        take(consumer, 1)
        fill(bootstrap, f"{name}-2", 2)
        take(consumer, 2)
        assert consumer.subscription() == {f"{name}-1", f"{name}-2"}


def test_connections_cut_at_random_lose_and_repeat_nothing(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 2_000)
    witness = Witness()
    for number in range(2_000):
        witness.sent(name, b"%d" % number, number)
    with FaultProxy(bootstrap, every(3, ApiKey.FETCH, Cut(), way=Way.RESPONSE)) as proxy:
        settings = {"max_partition_fetch_bytes": 4_000, "retry_backoff_ms": 5, "reconnect_backoff_ms": 5}
        with reader(proxy.bootstrap_servers, **settings) as consumer:
            consumer.assign([(name, 0)])
            consumer.seek_to_beginning()
            witness.stands("consumer", consumer)
            found: list[bytes | None] = []

            def all_read() -> bool:
                found.extend(record.value for record in witness.polled("consumer", consumer))
                return consumer.position((name, 0)) >= 2_000

            until(all_read, what="2000 records", every_s=0)
        assert proxy.faults["Cut"] > 0
    witness.assert_lawful()
    assert found == [b"%d" % n for n in range(2_000)]


def test_asyncio_code_reads_too(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 3)

    async def read() -> list[bytes | None]:
        config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
        async with AsyncConsumer(config) as consumer:
            consumer.assign([(name, 0)])
            return [record.value for record in await consumer.poll(timeout_ms=30_000)]

    assert asyncio.run(read()) == [b"0", b"1", b"2"]


def test_closing_does_not_wait_for_a_broker_that_is_gone(broker_process: BrokerProcess, name: str) -> None:
    fill(broker_process.bootstrap_servers, name, 1)
    consumer = reader(broker_process.bootstrap_servers, group_id=name)
    consumer.subscribe(name)
    take(consumer, 1)
    broker_process.kill9()
    started = time.monotonic()
    consumer.close(timeout_ms=300)
    assert time.monotonic() - started < 25


def test_misuse_is_explained(session_broker: Broker, name: str) -> None:
    address = session_broker.bootstrap_servers
    with reader(address) as consumer:
        with pytest.raises(Misuse, match=r"group\.id"):
            consumer.subscribe(name)
        with pytest.raises(Misuse, match=r"group\.id"):
            consumer.commit()
        with pytest.raises(Misuse, match="not assigned"):
            consumer.seek((name, 0), 1)
    with pytest.raises(Misuse, match="closed"):
        consumer.poll()


def test_a_commit_before_partitions_go_is_repeated_in_the_epoch_that_a_heartbeat_brings(
    bootstrap: str, name: str
) -> None:
    async def run() -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": name, "group.protocol": "consumer"}
        async with AsyncConsumer({**config, "auto.offset.reset": "earliest"}) as consumer:
            await consumer.subscribe([name])
            while not await consumer.poll(1_000):
                pass
            member = consumer._subscription.member
            assert isinstance(member, ConsumerGroupMember)
            await consumer.poll(0)  # what was read is done
            epoch = member.machine._last_epoch
            member.machine._last_epoch -= 1
            await consumer._committer.commit_before_revoke()
            assert (await consumer.committed([(name, 0)]))[TopicPartition(name, 0)].offset == 1
            assert member.machine._last_epoch == epoch
            await member.leave()
            member.machine._last_epoch = epoch - 1
            began = time.monotonic()
            await consumer._committer.commit_before_revoke()
            assert time.monotonic() - began < 10, "one who has left hears of no other epoch"

    fill(bootstrap, name, 1)
    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_close_that_is_cancelled_goes_on_and_leaves_the_group(
    session_broker: Broker, name: str, protocol: str
) -> None:
    """Else the group would wait for the member until session.timeout.ms, and a second close would do nothing."""
    fill(session_broker.bootstrap_servers, name, 5)
    settings = {"bootstrap.servers": session_broker.bootstrap_servers, "auto.offset.reset": "earliest"}

    async def read_and_close(turns: int) -> None:
        consumer = AsyncConsumer({**settings, "group.id": name, "group.protocol": protocol})
        await consumer.subscribe([name])
        assert await consumer.poll(30_000)
        closing = asyncio.ensure_future(consumer.close())
        for _ in range(turns):  # at every step of the way
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await consumer.close()
        with pytest.raises(Misuse, match="closed"):
            await consumer.poll(0)

    with Admin({"bootstrap.servers": session_broker.bootstrap_servers}) as admin:
        for turns in range(1, 12):
            asyncio.run(asyncio.wait_for(read_and_close(turns), 60))
            assert list(admin.describe_groups([name])[name].members) == [], turns
            with Consumer({**settings, "group.id": name}) as again:
                again.assign([(name, 0)])
                again.seek((name, 0), 0)
                again.commit()

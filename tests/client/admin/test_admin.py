"""The admin client against real brokers: topics, settings, records, groups, transactions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from semel import Admin, Consumer, Producer
from semel.client.admin.admin import AsyncAdmin
from semel.client.admin.values import NewTopic
from semel.errors import ErrorCode, InvalidConfig, Misuse, ProducerFenced, RequestTimedOut, TopicExists
from semel.machines.values import TopicPartition
from tests.support.waiting import until


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": bootstrap}) as client:
        yield client


def test_topics_are_made_described_widened_and_deleted(admin: Admin, name: str) -> None:
    admin.create_topics([NewTopic(name, 2, 1, {"retention.ms": "5000"}), NewTopic(f"{name}-b")])
    # Apache Kafka's controller answers before the broker that is asked next has heard of it.
    until(lambda: {name, f"{name}-b"} <= set(admin.list_topics()), what="both topics")
    info = admin.describe_topics([name])[name]
    assert [(row.partition, row.replicas) for row in info.partitions] == [
        (number, (info.partitions[number].leader,)) for number in range(2)
    ]
    admin.create_partitions({name: 4})
    until(lambda: len(admin.describe_topics([name])[name].partitions) == 4, what="four partitions")
    admin.delete_topics([name, f"{name}-b"])
    until(lambda: name not in admin.list_topics(), what="the topic to be gone")


def test_a_topic_that_exists_is_an_error_unless_that_is_fine(admin: Admin, name: str) -> None:
    admin.create_topic(name)
    with pytest.raises(TopicExists, match=name):
        admin.create_topic(name)
    admin.create_topic(name, if_not_exists=True)


def test_what_does_not_exist_is_named_and_not_worth_a_retry(admin: Admin, name: str) -> None:
    with pytest.raises(Misuse, match=name):
        admin.describe_topics([name])
    with pytest.raises(Misuse, match=name):
        admin.delete_topics([name])
    with pytest.raises(Misuse, match=name):
        admin.describe_transactions([name])
    with pytest.raises(Misuse, match=name):
        admin.describe_groups([name])


def test_validating_only_makes_nothing(admin: Admin, name: str) -> None:
    admin.create_topics([NewTopic(name)], validate_only=True)
    assert name not in admin.list_topics()


def test_settings_are_set_and_taken_back_one_by_one(admin: Admin, name: str) -> None:
    admin.create_topic(name, configs={"retention.ms": 5_000, "cleanup.policy": "compact"})
    # Apache Kafka's controller answers before the broker that is asked next has heard of it.
    until(lambda: name in admin.list_topics(), what="the topic")
    settings = admin.describe_configs("topic", name)
    assert (settings["retention.ms"].value, settings["retention.ms"].source) == ("5000", "topic")
    default = settings["segment.bytes"].value
    admin.alter_configs("topic", name, {"retention.ms": None, "segment.bytes": 10_485_760})
    # The same goes for its settings.
    until(lambda: admin.describe_configs("topic", name)["segment.bytes"].value == "10485760", what="the new setting")
    settings = admin.describe_configs("topic", name)
    assert settings["retention.ms"].is_default
    assert settings["cleanup.policy"].value == "compact"
    admin.alter_configs("topic", name, {"segment.bytes": None})
    until(lambda: admin.describe_configs("topic", name)["segment.bytes"].value == default, what="the default")
    with pytest.raises(InvalidConfig):
        admin.alter_configs("topic", name, {"no.such.setting": 1})


def test_records_before_an_offset_are_deleted(admin: Admin, bootstrap: str, name: str) -> None:
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(5):
            producer.send(name, b"%d" % number)
    partition = TopicPartition(name, 0)
    assert admin.delete_records({partition: 3}) == {partition: 3}
    assert admin.list_offsets({partition: -2})[partition].offset == 3
    assert admin.list_offsets({partition: -1})[partition].offset == 5


def test_the_cluster_is_described(admin: Admin, bootstrap: str) -> None:
    cluster = admin.describe_cluster()
    assert bootstrap in {str(node) for node in cluster.nodes}
    assert cluster.finalized_features["transaction.version"] == 2


def test_groups_and_their_offsets_are_listed_changed_and_deleted(admin: Admin, bootstrap: str, name: str) -> None:
    admin.create_topic(name, partitions=2)
    partition = TopicPartition(name, 0)
    config = {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    with Consumer(config) as consumer:
        consumer.subscribe(name)
        until(lambda: consumer.poll(timeout_ms=100) or consumer.assignment(), what="an assignment")
        group = admin.describe_groups([name])[name]
        assert (group.state, group.type, len(group.members)) == ("Stable", "classic", 1)
        assert set(group.members[0].assignment) == consumer.assignment()
        assert name in {listed.group_id for listed in admin.list_groups()}
        with pytest.raises(Misuse, match="has members"):
            admin.alter_group_offsets(name, {partition: 1})
        with pytest.raises(Misuse) as raised:
            admin.delete_groups([name])
        assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
    admin.alter_group_offsets(name, {partition: 7, TopicPartition(name, 1): 8})
    assert {p: o.offset for p, o in admin.list_group_offsets(name).items()} == {
        partition: 7,
        TopicPartition(name, 1): 8,
    }
    admin.delete_group_offsets(name, [partition])
    assert {p: o.offset for p, o in admin.list_group_offsets(name).items()} == {TopicPartition(name, 1): 8}
    admin.delete_groups([name])
    assert name not in {listed.group_id for listed in admin.list_groups()}


def test_an_open_transaction_is_found_from_both_sides_and_its_producer_fenced(
    admin: Admin, bootstrap: str, name: str
) -> None:
    partition = TopicPartition(name, 0)
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "open").result(30)
        identity = producer.identity
        assert identity is not None
        listed = {row.transactional_id: row for row in admin.list_transactions(states=["Ongoing"])}
        assert listed[name].producer_id == identity.producer_id
        seen = admin.describe_transactions([name])[name]
        assert (seen.state, seen.producer_epoch, seen.partitions) == ("Ongoing", identity.producer_epoch, (partition,))
        (there,) = admin.describe_producers([partition])[partition]
        assert (there.producer_id, there.transaction_start_offset) == (identity.producer_id, 0)
        fenced = admin.fence_producers([name])[name]
        assert fenced.producer_epoch > identity.producer_epoch
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
    assert until(
        lambda: admin.describe_transactions([name])[name].state in ("CompleteAbort", "Empty"), what="the abort"
    )


def test_a_hanging_transaction_is_ended_in_its_partition(admin: Admin, bootstrap: str, name: str) -> None:
    partition = TopicPartition(name, 0)
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "hanging").result(30)
        (there,) = admin.describe_producers([partition])[partition]
        assert admin.list_offsets({partition: -1}, isolation_level=1)[partition].offset == 0
        admin.abort_transaction(partition, there.producer_id, there.producer_epoch, max(0, there.coordinator_epoch))
        assert admin.list_offsets({partition: -1}, isolation_level=1)[partition].offset == 2
        producer.abort_transaction()


def test_both_admins_have_the_same_methods_with_the_same_arguments_and_words() -> None:
    """The asyncio admin is put together from parts; `help()` shows what it can do all the same."""
    names = {name for name in vars(Admin) if not name.startswith("_")} - {"close"}
    assert names <= vars(AsyncAdmin).keys()
    for name in sorted(names):
        blocking, on_asyncio = getattr(Admin, name), getattr(AsyncAdmin, name)
        assert inspect.signature(blocking) == inspect.signature(on_asyncio), name
        assert inspect.iscoroutinefunction(on_asyncio), name
        words = (inspect.getdoc(blocking) or "").partition(">>>")[0]
        # An example is there once, in the one that can be run as it is.
        assert words.strip() == (inspect.getdoc(on_asyncio) or "").strip() != "", name


def test_offsets_of_a_partition_that_is_not_there_time_out_with_the_reason(admin: Admin, name: str) -> None:
    admin.create_topic(name, partitions=1)
    until(lambda: name in admin.list_topics())
    with pytest.raises(RequestTimedOut, match=f"{name}-9 does not exist or has no leader"):
        admin.list_offsets({(name, 9): -1}, timeout_ms=1_000)

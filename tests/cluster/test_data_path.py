"""A cluster's data path, with real clients: reading from the nearest replica, and removing records everywhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from semel.errors import ErrorCode
from semel.wire.messages.admin import DeleteRecordsRequest
from tests.broker.raw import Raw, fetch_request, stored_batches
from tests.cluster.records import Writer, check, create, partitions_of
from tests.support.cluster import Cluster, running_cluster
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("everybody_lives")

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    racks = {number: {"broker.rack": f"rack-{number}"} for number in (1, 2, 3)}
    with running_cluster(3, own_settings=racks, replica_lag_time_max_ms=8000, replica_selector_class=SELECTOR) as it:
        yield it


def leader_and_other(cluster: Cluster, topic: str) -> tuple[int, int]:
    (row,) = partitions_of(cluster, topic, 1)
    return row.leader_id, next(number for number in cluster.brokers if number != row.leader_id)


def test_a_reader_is_sent_to_the_replica_in_its_rack_and_served_there(cluster: Cluster) -> None:
    """KIP-392, by librdkafka: it says from which broker it fetches."""
    create(cluster, "near", 1)
    writer = Writer(cluster, "near", 1)
    writer.write(50)
    _, other = leader_and_other(cluster, "near")
    served_by: list[int] = []

    def told(text: str) -> None:
        rows = json.loads(text)["topics"].get("near", {}).get("partitions", {})
        if "0" in rows:
            served_by.append(rows["0"]["broker"])

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "nobody",
            "client.rack": f"rack-{other}",
            "enable.auto.commit": False,
            "statistics.interval.ms": 100,
            "stats_cb": told,
        }
    )
    consumer.assign([TopicPartition("near", 0, 0)])
    values: list[bytes | None] = []

    def read(count: int) -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value())
        return len(values) >= count and bool(served_by) and served_by[-1] == other

    until(lambda: read(50), within_s=60, what="all records, from the broker in the rack")
    writer.write(50)
    until(lambda: read(100), within_s=60, what="what was written meanwhile")
    assert values == [b"%d" % number for number in range(100)]
    consumer.close()
    check(cluster, writer)


def test_a_follower_serves_what_is_committed_to_who_may_read_it_there(cluster: Cluster) -> None:
    create(cluster, "followed", 1)
    Writer(cluster, "followed", 1).write(5)
    leader, other = leader_and_other(cluster, "followed")
    with Raw(cluster[leader].address) as raw:
        request = fetch_request({("followed", 0): 2}, max_wait_ms=0)
        request.rack_id = f"rack-{other}"
        (row,) = raw.ask(request, 12).responses[0].partitions
        assert (row.preferred_read_replica, row.records or b"", row.error_code) == (other, b"", 0)
        request.rack_id = f"rack-{leader}"
        (row,) = raw.ask(request, 12).responses[0].partitions
        assert row.preferred_read_replica == -1
        assert stored_batches(row)
    with Raw(cluster[other].address) as raw:
        request.rack_id = ""
        (row,) = raw.ask(request, 12).responses[0].partitions
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "who does not say where it is belongs to the leader"
        request.rack_id = f"rack-{other}"

        def all_there() -> bool:
            (row,) = raw.ask(request, 12).responses[0].partitions
            assert row.error_code == ErrorCode.NONE
            return bool(stored_batches(row)) and stored_batches(row)[-1].next_offset == 5 == row.high_watermark

        until(all_there, within_s=30, what="the follower to know the high watermark")
        request.topics[0].partitions[0].fetch_offset = 6
        (row,) = raw.ask(request, 12).responses[0].partitions
        assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        request.topics[0].partitions[0].fetch_offset = 2
        request.topics[0].partitions[0].current_leader_epoch = 1000
        (row,) = raw.ask(request, 12).responses[0].partitions
        assert row.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_reader_that_waits_at_a_follower_gets_what_is_written(cluster: Cluster) -> None:
    create(cluster, "waited", 1)
    _, other = leader_and_other(cluster, "waited")
    found = []

    def read() -> None:
        with Raw(cluster[other].address) as raw:
            request = fetch_request({("waited", 0): 0}, max_wait_ms=30_000)
            request.rack_id = f"rack-{other}"
            (row,) = raw.ask(request, 12).responses[0].partitions
            found.extend(stored_batches(row))

    reader = threading.Thread(target=read)
    reader.start()
    Writer(cluster, "waited", 1).write(1)
    reader.join(60)
    assert [one.next_offset for one in found] == [1]


def test_deleted_records_are_gone_on_every_replica_when_it_is_answered(cluster: Cluster) -> None:
    create(cluster, "cut", 2)
    writer = Writer(cluster, "cut", 2)
    writer.write(40)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    deleted = admin.delete_records([TopicPartition("cut", 0, 7), TopicPartition("cut", 1, -1)])
    assert {each.partition: future.result(60).low_watermark for each, future in deleted.items()} == {0: 7, 1: 20}
    for number in cluster.brokers:
        text = (cluster[number].directory / "log-start-offset-checkpoint").read_text()
        assert "cut 0 7" in text and "cut 1 20" in text, f"broker {number} keeps what was deleted"
    leader = partitions_of(cluster, "cut", 1)[0].leader_id
    cluster[leader].kill9()
    at = leader % 3 + 1
    until(
        lambda: partitions_of(cluster, "cut", at)[0].leader_id not in (-1, leader), within_s=60, what="another leader"
    )
    with Raw(cluster[partitions_of(cluster, "cut", at)[0].leader_id].address) as raw:
        assert raw.fetch("cut", 6, max_wait_ms=0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert raw.fetch("cut", 7, max_wait_ms=0).log_start_offset == 7, "the next leader has removed them, too"


def test_who_deletes_records_waits_for_followers_as_long_as_it_said(cluster: Cluster) -> None:
    create(cluster, "slow-cut", 1)
    Writer(cluster, "slow-cut", 1).write(10)
    leader, other = leader_and_other(cluster, "slow-cut")
    row = DeleteRecordsRequest.DeleteRecordsPartition
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    cluster[other].freeze()
    try:
        with Raw(cluster[leader].address) as raw:
            request = DeleteRecordsRequest(
                topics=[topic(name="slow-cut", partitions=[row(partition_index=0, offset=4)])], timeout_ms=300
            )
            (answer,) = raw.ask(request, 2).topics[0].partitions
            assert (answer.error_code, answer.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
            cluster[other].thaw()
            request.timeout_ms = 60_000
            (answer,) = raw.ask(request, 2).topics[0].partitions
            assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 4)
    finally:
        cluster[other].thaw()
    with Raw(cluster[other].address) as raw:
        (answer,) = raw.ask(request, 2).topics[0].partitions
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

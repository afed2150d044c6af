"""Three broker processes over a real ZooKeeper, and what happens to records when one of them dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.errors import ErrorCode
from semel.wire.apis import ApiKey
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.metadata import DescribeClusterRequest
from tests.broker.raw import Raw, batch, fetch_request
from tests.cluster.records import Writer, all_in_sync, check, create, living, partitions_of, stored
from tests.support.cluster import Cluster, running_cluster
from tests.support.requirements import require_zookeeper
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.usefixtures("everybody_lives")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    require_zookeeper()
    with running_cluster(3, zookeeper=ZooKeeper(3), replica_lag_time_max_ms=8000) as running:
        yield running


def test_what_was_acknowledged_survives_kill_9_of_its_leader(cluster: Cluster) -> None:
    """E6 E2 R4 R7"""
    create(cluster, "killed-leader", min_insync_replicas="2")
    writer = Writer(cluster, "killed-leader")
    writer.write(300)
    for partition in range(2):
        leader = partitions_of(cluster, "killed-leader", living(cluster))[partition].leader_id
        cluster[leader].kill9()
        # Most of these were sent while nobody led the partition.
        writer.write(300)
        cluster[leader].start()
        writer.write(60)
    check(cluster, writer)


def test_a_stopped_broker_hands_over_and_comes_back(cluster: Cluster) -> None:
    create(cluster, "stopped", min_insync_replicas="2")
    writer = Writer(cluster, "stopped")
    writer.write(90)
    for broker in cluster.brokers.values():
        assert broker.running.terminate() == 0
        writer.write(90)
        broker.start()
        until(lambda: all_in_sync(cluster, "stopped", 3), within_s=60, what="the broker to be in sync again")
    check(cluster, writer)


def test_topics_are_created_after_the_controller_was_killed(cluster: Cluster) -> None:
    """E1 E6"""
    with Raw(cluster[1].address) as raw:
        controller = raw.ask(DescribeClusterRequest(), 0).controller_id
    cluster[controller].kill9()
    other = living(cluster)

    def another_controls() -> bool:
        with Raw(cluster[other].address) as raw:
            return raw.ask(DescribeClusterRequest(), 0).controller_id not in (-1, controller)

    until(another_controls, within_s=30, what="another controller")
    cluster[controller].start()
    create(cluster, "after-the-controller")


def test_below_min_insync_replicas_acks_all_is_refused_and_nothing_is_lost(cluster: Cluster) -> None:
    """R3 P3 E5"""
    create(cluster, "too-few", 1, min_insync_replicas="2")
    writer = Writer(cluster, "too-few", 1)
    writer.write(10)
    (row,) = partitions_of(cluster, "too-few", 1)
    others = [number for number in cluster.brokers if number != row.leader_id]
    for number in others:
        cluster[number].kill9()

    def refused() -> bool:
        with Raw(cluster[row.leader_id].address) as raw:
            code = ErrorCode(raw.produce("too-few", batch(b"refused"), acks=-1, version=9).error_code)
        return code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    until(refused, within_s=60, what="acks=all to be refused")
    with Raw(cluster[row.leader_id].address) as raw:
        assert raw.produce("too-few", batch(b"refused"), acks=-1, version=9).error_code == 19
    assert len(stored(cluster, "too-few", 1)) == 10, "what is on one replica alone is shown to nobody"
    for number in others:
        cluster[number].start()
    writer.write(10)
    until(lambda: all_in_sync(cluster, "too-few", 1), within_s=60, what="all to be in sync")
    assert set(writer.acknowledged) <= set(stored(cluster, "too-few", 1))


def test_a_leader_that_was_frozen_acknowledges_nothing_when_it_wakes(cluster: Cluster) -> None:
    """E2 R2 Z5"""
    create(cluster, "frozen", min_insync_replicas="2")
    writer = Writer(cluster, "frozen")
    writer.write(60)
    leader = partitions_of(cluster, "frozen", 1)[0].leader_id
    other = next(number for number in cluster.brokers if number != leader)
    cluster[leader].freeze()
    until(
        lambda: partitions_of(cluster, "frozen", other)[0].leader_id not in (-1, leader),
        within_s=90,
        what="another leader",
    )
    writer.write(60)
    cluster[leader].thaw()
    writer.write(60)
    check(cluster, writer)


def test_while_zookeeper_does_not_answer_records_are_written_and_read(cluster: Cluster) -> None:
    """Z6"""
    create(cluster, "without-zookeeper", min_insync_replicas="2")
    writer = Writer(cluster, "without-zookeeper")
    writer.write(60)
    for node in cluster.zookeeper.nodes:
        node.freeze()
    try:
        writer.write(300)
        assert len(stored(cluster, "without-zookeeper")) >= 360
    finally:
        for node in cluster.zookeeper.nodes:
            node.thaw()
    writer.write(60)
    check(cluster, writer)


def test_a_broker_that_does_not_lead_says_who_does(cluster: Cluster) -> None:
    """KIP-951"""
    create(cluster, "hints", 1)
    (row,) = partitions_of(cluster, "hints", 1)
    other = next(number for number in cluster.brokers if number != row.leader_id)
    with Raw(cluster[other].address) as raw:
        from tests.broker.raw import produce_request

        answer = raw.ask(produce_request("hints", batch(b"x"), acks=-1), 12)
        part = answer.responses[0].partition_responses[0]
        assert (part.error_code, part.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, row.leader_id)
        (endpoint,) = answer.node_endpoints
        assert (endpoint.node_id, endpoint.port) == (row.leader_id, cluster[row.leader_id].port)
        data = raw.fetch("hints", max_wait_ms=0)
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_nobody_reads_as_a_replica_who_is_none(cluster: Cluster) -> None:
    """P4"""
    create(cluster, "forged", 1)
    (row,) = partitions_of(cluster, "forged", 1)
    with Raw(cluster[row.leader_id].address) as raw:
        for replica in (7, row.leader_id):
            answer = raw.ask(fetch_request({("forged", 0): 0}, replica_id=replica), 12)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_what_is_not_served_in_a_cluster_is_not_advertised(cluster: Cluster) -> None:
    with Raw(cluster[1].address) as raw:
        served = {row.api_key for row in raw.ask(ApiVersionsRequest(), 0).api_keys}
        assert ApiKey.PRODUCE in served
        assert not served & {ApiKey.DESCRIBE_QUORUM, ApiKey.UPDATE_FEATURES}


def test_a_broker_whose_machine_went_down_does_not_lead_what_it_may_have_lost(cluster: Cluster) -> None:
    """E4: it leaves every in-sync set before it is registered, even as the last member."""
    create(cluster, "power", 1)
    (row,) = partitions_of(cluster, "power", 1)
    last = row.leader_id
    others = [number for number in cluster.brokers if number != last]
    for number in others:
        cluster[number].kill9()
    until(lambda: partitions_of(cluster, "power", last)[0].isr_nodes == [last], within_s=60, what="one to be left")
    cluster[last].kill9()
    (cluster[last].directory / ".semel_boot_id").write_text("another boot\n")
    cluster[last].start()
    for number in others:
        cluster[number].start()
    until(
        lambda: all(partitions_of(cluster, "power", at)[0].leader_id == -1 for at in cluster.brokers),
        within_s=60,
        what="nobody to lead",
    )
    assert partitions_of(cluster, "power", last)[0].isr_nodes == []

"""`cluster.cut` and `cluster.heal`: the network between real brokers, and to ZooKeeper, one way and both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from semel.config import ConfigError
from semel.errors import ErrorCode
from semel.wire.messages.metadata import FindCoordinatorRequest
from semel.wire.messages.transactions import EndTxnRequest
from tests.broker.raw import Raw, batch
from tests.cluster.test_added_partitions import begin
from tests.support.waiting import until

SESSION_MS = 4000
SETTINGS = {"replica.lag.time.max.ms": 2000, "num.partitions": 3, "zookeeper.session.timeout.ms": SESSION_MS}

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.semel_cluster(brokers=3, settings=SETTINGS, cuts=True),
]


@pytest.fixture(autouse=True)
def healed(semel_cluster: semel.Cluster) -> Iterator[None]:
    yield
    semel_cluster.heal()


def producer_of(cluster: semel.Cluster) -> semel.Producer:
    return semel.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "request.timeout.ms": 4000})


def status(cluster: semel.Cluster) -> dict[str, Any]:
    words = [sys.executable, "-m", "semel", "cluster", "status", "--json", "--bootstrap", cluster.bootstrap_servers]
    shown: dict[str, Any] = json.loads(
        subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
    )
    return shown


def in_sync(cluster: semel.Cluster, topic: str) -> set[int]:
    shown = status(cluster)
    lacking = [row for row in shown["under_replicated"] if (row["topic"], row["partition"]) == (topic, 0)]
    return set(lacking[0]["in_sync"]) if lacking else {1, 2, 3}


def test_a_follower_that_is_cut_off_from_its_leader_leaves_the_set_and_returns(semel_cluster: semel.Cluster) -> None:
    """R9 R8"""
    with producer_of(semel_cluster) as producer:
        producer.send("pairs", b"1", partition=0).result(60)
        leader = semel_cluster.leader_of("pairs")
        follower = next(number for number in semel_cluster.numbers if number != leader)
        until(lambda: in_sync(semel_cluster, "pairs") == {1, 2, 3}, within_s=60, what="all to be in sync")
        semel_cluster.cut(leader, follower)
        assert set(semel_cluster.cuts) == {(leader, follower), (follower, leader)}
        producer.send("pairs", b"2", partition=0).result(60)
        until(lambda: follower not in in_sync(semel_cluster, "pairs"), within_s=60, what="the follower to leave")
        semel_cluster.heal(leader, follower)
        until(lambda: follower in in_sync(semel_cluster, "pairs"), within_s=60, what="the follower to return")
        assert producer.send("pairs", b"3", partition=0).result(60).offset == 2


@pytest.mark.parametrize("from_leader", [True, False])
def test_a_cut_one_way_is_a_cut_of_that_way(semel_cluster: semel.Cluster, from_leader: bool) -> None:
    topic = f"one-way-{from_leader}"
    with producer_of(semel_cluster) as producer:
        producer.send(topic, b"1", partition=0).result(60)
        leader = semel_cluster.leader_of(topic)
        follower = next(number for number in semel_cluster.numbers if number != leader)
        until(lambda: in_sync(semel_cluster, topic) == {1, 2, 3}, within_s=60, what="all to be in sync")
        way = (leader, follower) if from_leader else (follower, leader)
        semel_cluster.cut(*way, one_way=True)
        assert semel_cluster.cuts == [way]
        producer.send(topic, b"2", partition=0).result(60)
        until(lambda: follower not in in_sync(semel_cluster, topic), within_s=60, what="the follower to leave")
        # Neither is dead: both are still brokers of the cluster.
        assert semel_cluster.leader_of(topic) == leader
        semel_cluster.heal()
        until(lambda: follower in in_sync(semel_cluster, topic), within_s=60, what="the follower to return")


def test_a_leader_that_is_cut_off_from_zookeeper_is_replaced(semel_cluster: semel.Cluster) -> None:
    """Z6 R2: it is moved at its session's timeout, and acknowledges nothing by itself."""
    with producer_of(semel_cluster) as producer:
        producer.send("alone", b"1", partition=0).result(60)
        leader = semel_cluster.leader_of("alone")
        semel_cluster.cut(leader, "zookeeper")
        others = [number for number in semel_cluster.numbers if number != leader]
        asked = ",".join(semel_cluster.address(number) for number in others)
        until(lambda: leader_at(asked, "alone") not in (None, leader), within_s=60, what="another leader")
        assert producer.send("alone", b"2", partition=0).result(90).offset == 1
        semel_cluster.heal(leader)
        until(lambda: in_sync(semel_cluster, "alone") == {1, 2, 3}, within_s=90, what="it to be back")


def leader_at(servers: str, topic: str) -> int | None:
    try:
        partitions = AdminClient({"bootstrap.servers": servers}).list_topics(topic, timeout=10).topics[topic].partitions
    except KafkaException:
        return None
    return partitions[0].leader


def test_a_killed_broker_is_known_at_once_though_its_network_can_be_cut(semel_cluster: semel.Cluster) -> None:
    """E6: its port refuses connections, so its death is certified and nobody waits for the session."""
    with producer_of(semel_cluster) as producer:
        producer.send("killed", b"1", partition=0).result(60)
        leader = semel_cluster.leader_of("killed")
        until(lambda: in_sync(semel_cluster, "killed") == {1, 2, 3}, within_s=60, what="all to be in sync")
        others = [number for number in semel_cluster.numbers if number != leader]

        def certificates() -> int:
            return sum(semel_cluster.output(number).count("certified dead") for number in others)

        before = certificates()
        semel_cluster.kill(leader)
        until(lambda: certificates() > before, within_s=60, what="a death certificate")
        semel_cluster.restart(leader)


def test_while_zookeeper_is_away_nobody_is_called_the_controller(semel_cluster: semel.Cluster) -> None:
    """Z6: records are written and read, and whoever looks is told that nothing is decided."""
    until(lambda: status(semel_cluster)["is_well"], within_s=90, what="all to be well")
    for number in semel_cluster.numbers:
        semel_cluster.cut(number, "zookeeper")
    with producer_of(semel_cluster) as producer:
        until(lambda: status(semel_cluster)["controller"] is None, within_s=60, what="the controller to be unknown")
        shown = status(semel_cluster)
        assert not shown["is_well"] and "is ZooKeeper running" in " ".join(shown["advice"]), shown
        producer.send("pairs", b"without ZooKeeper", partition=0).result(60)
    semel_cluster.heal()
    until(lambda: status(semel_cluster)["is_well"], within_s=90, what="all to be well again")


def test_misuse_is_told(semel_cluster: semel.Cluster) -> None:
    with pytest.raises(ValueError, match="there are brokers 1, 2, 3, and 'zookeeper'"):
        semel_cluster.cut(1, 9)
    with pytest.raises(ValueError, match="'zoo'"):
        semel_cluster.cut(1, "zoo")
    with pytest.raises(ValueError, match="between two"):
        semel_cluster.cut(2, 2)
    with pytest.raises(ValueError, match="there are brokers"):
        semel_cluster.heal(True)
    with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name"):
        semel.Cluster(cuts=True, settings={"inter.broker.listener.name": "X"})
    plain = semel.Cluster(brokers=1)
    with pytest.raises(RuntimeError, match="cuts=True"):
        plain.cut(1, "zookeeper")
    with pytest.raises(RuntimeError, match="was not started"):
        semel.Cluster(brokers=1, cuts=True).heal()


def test_a_coordinator_that_was_replaced_unheard_refuses_nothing_for_good(semel_cluster: semel.Cluster) -> None:
    """C1: it does not know of the transaction that is open at the next one."""
    name, topic = "replaced", "ended"

    def coordinator_at(number: int) -> int:
        with Raw(semel_cluster.address(number)) as raw:
            answer = raw.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
        return 0 if answer.coordinators[0].error_code else int(answer.coordinators[0].node_id)

    def end(raw: Raw, producer: tuple[int, int]) -> tuple[ErrorCode, tuple[int, int]]:
        asked = EndTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=True
        )
        answer = raw.ask(asked, 5)
        return ErrorCode(answer.error_code), (answer.producer_id, answer.producer_epoch)

    def write(producer: tuple[int, int]) -> ErrorCode:
        data = batch(b"1", producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True)
        with Raw(semel_cluster.address(semel_cluster.leader_of(topic))) as raw:
            return ErrorCode(raw.produce(topic, data, transactional_id=name, version=12).error_code)

    old = until(lambda: coordinator_at(1), within_s=60, what="a coordinator")
    others = [number for number in semel_cluster.numbers if number != old]
    admin = AdminClient({"bootstrap.servers": semel_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[*others, old]])])[topic].result(30)
    with Raw(semel_cluster.address(old)) as raw:
        begun = begin(raw, name)
        producer = begun.producer_id, begun.producer_epoch
        assert write(producer) is ErrorCode.NONE
        code, producer = end(raw, producer)
        assert code is ErrorCode.NONE
        semel_cluster.cut(old, "zookeeper")
        until(lambda: all(coordinator_at(one) not in (0, old) for one in others), within_s=60, what="another")
        assert write(producer) is ErrorCode.NONE
        assert end(raw, producer)[0] is ErrorCode.NOT_COORDINATOR
    with Raw(semel_cluster.address(coordinator_at(others[0]))) as raw:
        assert end(raw, producer)[0] is ErrorCode.NONE

"""Nodes in ZooKeeper that somebody has damaged, or that a killed Kafka left half made: they harm nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

import semel
from semel.machines.znodes import paths
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster() -> Iterator[semel.Cluster]:
    with semel.Cluster(brokers=3, settings={"leader.imbalance.check.interval.seconds": 3600}) as running:
        yield running


@pytest.fixture
def zookeeper(cluster: semel.Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start(30)
    yield client
    client.stop()
    client.close()


def create_on(cluster: semel.Cluster, topic: str, *replicas: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic(topic, len(replicas), replica_assignment=[*replicas])]).values():
        made.result(30)


def remove(zookeeper: KazooClient, *folders: str) -> None:
    """Everything in them, at once: one after the other, the controller would make some of it again."""

    def below(path: str) -> Iterator[str]:
        for name in zookeeper.get_children(path):
            yield from below(f"{path}/{name}")
        yield path

    def removed() -> bool:
        transaction = zookeeper.transaction()
        for folder in folders:
            for path in below(folder):
                transaction.delete(path)
        return all(result is True for result in transaction.commit())

    until(removed, within_s=30, what="the nodes to be removed")


def create(cluster: semel.Cluster, topic: str) -> None:
    """Led by broker 1, if it lives."""
    create_on(cluster, topic, [1, 2, 3])
    assert cluster.leader_of(topic) == 1


def leader_in(zookeeper: KazooClient, topic: str) -> int:
    leader: int = json.loads(zookeeper.get(paths.state(topic, 0))[0])["leader"]
    return leader


def all_in_sync(zookeeper: KazooClient, topic: str) -> bool:
    return len(json.loads(zookeeper.get(paths.state(topic, 0))[0])["isr"]) == 3


@pytest.mark.parametrize("damaged", ["topic", "state"])
def test_a_node_that_cannot_be_read_stops_no_other_election(
    cluster: semel.Cluster, zookeeper: KazooClient, damaged: str
) -> None:
    bad, good = f"bad-{damaged}", f"good-{damaged}"
    create(cluster, bad)
    create(cluster, good)
    path = paths.topic(bad) if damaged == "topic" else paths.state(bad, 0)
    sound, _ = zookeeper.get(path)
    zookeeper.set(path, b"damaged")
    cluster.kill(1)
    until(lambda: leader_in(zookeeper, good) in (2, 3), within_s=30, what="another to lead the sound topic")
    zookeeper.set(path, sound)
    until(lambda: leader_in(zookeeper, bad) in (2, 3), within_s=30, what="the repaired topic to be led again")
    cluster.restart(1)
    until(lambda: all_in_sync(zookeeper, bad) and all_in_sync(zookeeper, good), within_s=60, what="all to be in sync")


def node_of(topic_id: str, partitions: dict[str, list[int]], **more: object) -> bytes:
    return json.dumps({"version": 3, "topic_id": topic_id.ljust(22, "A"), "partitions": partitions, **more}).encode()


def test_nodes_that_nobody_can_have_written_in_earnest_keep_nobody_from_anything(
    cluster: semel.Cluster, zookeeper: KazooClient
) -> None:
    """Each of them once stopped every broker, or what every broker does in the cluster."""
    create(cluster, "sound")
    create(cluster, "endless")
    sound_register, _ = zookeeper.get(paths.state("endless", 0))
    sound_id = json.loads(zookeeper.get(paths.topic("sound"))[0])["topic_id"]
    registration = {"endpoints": ["PLAINTEXT://h:99999"], "rack": 7, "timestamp": "1", "version": 5}
    register = json.loads(sound_register) | {"leader_epoch": 2**40}
    hostile = {
        paths.topic("deep"): b"[" * 100_000,
        paths.topic("gap"): node_of("B", {"5": [1, 2, 3]}),
        paths.topic("moves"): node_of("C", {"0": [1, 2]}, adding_replicas={"7": [3]}),
        paths.topic("id"): b'{"topic_id":5,"partitions":{"0":[1]}}',
        paths.topic("a b"): node_of("D", {"0": [1, 2, 3]}),
        paths.topic("twin"): node_of(sound_id, {"0": [2, 3, 1]}),
        paths.broker(9): json.dumps(registration).encode(),
        paths.config("clients", "deep"): b"[" * 100_000,
    }
    nobodys = {f"{paths.BROKER_IDS}/nobody": b"{}", f"{paths.LIVES}/nobody": b"{}", "/kafka-acl/Future/x": b"{}"}
    for path, data in {**nobodys, **hostile}.items():
        zookeeper.create(path, data, makepath=True)
    zookeeper.set(paths.state("endless", 0), json.dumps(register).encode())
    until(lambda: len(status(cluster)["unreadable"]) == len(hostile) + 1, within_s=30, what="the status to name all")
    cluster.kill(1)
    until(lambda: leader_in(zookeeper, "sound") in (2, 3), within_s=30, what="another to lead the sound topic")
    admin = AdminClient({"bootstrap.servers": ",".join(cluster.address(number) for number in (2, 3))})
    for made in admin.create_topics([NewTopic("after", 1, 2)]).values():
        made.result(30)
    for path in hostile:
        zookeeper.delete(path)
    zookeeper.set(paths.state("endless", 0), sound_register)
    cluster.restart(1)
    until(lambda: all_in_sync(zookeeper, "sound"), within_s=60, what="all to be in sync")
    assert status(cluster)["unreadable"] == []


def test_partitions_and_replicas_that_somebody_takes_out_of_a_node_keep_their_data(
    cluster: semel.Cluster, zookeeper: KazooClient
) -> None:
    create_on(cluster, "cut", [1, 2, 3], [2, 3, 1])
    with semel.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
        for partition in (0, 1):
            producer.send("cut", b"1", partition=partition).result(60)
    path = paths.topic("cut")
    sound = json.loads(zookeeper.get(path)[0])
    logs = [cluster.data_dir / f"broker-{broker}" / f"cut-{part}" for broker in (1, 2, 3) for part in (0, 1)]
    assert all(log.is_dir() for log in logs)

    zookeeper.set(path, json.dumps(sound | {"partitions": {"0": [1, 2, 3]}}).encode())
    until(lambda: "partitions [1] are missing" in str(status(cluster)["unreadable"]), within_s=30, what="it to be told")
    zookeeper.set(path, json.dumps(sound | {"partitions": {"0": [2, 3], "1": [2, 3]}}).encode())
    until(lambda: "cut-1 is not assigned" in cluster.output(1), within_s=30, what="broker 1 to keep it")
    zookeeper.set(path, json.dumps(sound).encode())
    until(lambda: status(cluster)["unreadable"] == [], within_s=30, what="the status to hear of the repair")
    assert all(log.is_dir() for log in logs)
    with semel.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
        assert [producer.send("cut", b"2", partition=part).result(60).offset for part in (0, 1)] == [1, 1]


def test_a_topic_whose_nodes_somebody_removes_keeps_its_data_and_a_folder_may_go_and_come(
    cluster: semel.Cluster, zookeeper: KazooClient
) -> None:
    """As where all of ZooKeeper is wiped while the brokers run. Whoever deletes a topic as one leaves a note."""
    create(cluster, "vanished")
    with semel.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
        producer.send("vanished", b"1", partition=0).result(60)
    zookeeper.delete(paths.DELETED_TOPICS)
    until(lambda: "deleting in ZooKeeper" in str(status(cluster)["unreadable"]), within_s=30, what="it to be told")
    remove(zookeeper, paths.topic("vanished"))

    def kept(broker: int) -> list[bool]:
        return [each.name.endswith("-stray") for each in (cluster.data_dir / f"broker-{broker}").glob("vanished-0*")]

    until(lambda: all(kept(broker) == [True] for broker in (1, 2, 3)), within_s=30, what="its data to be set aside")
    zookeeper.create(paths.DELETED_TOPICS)
    until(lambda: status(cluster)["unreadable"] == [], within_s=30, what="the folder to be read again")


@pytest.mark.parametrize("nodes", [(), ("partitions",), ("partitions", "partitions/0")])
def test_a_topic_that_a_killed_kafka_left_without_registers_gets_them(
    cluster: semel.Cluster, zookeeper: KazooClient, nodes: tuple[str, ...]
) -> None:
    """Kafka's controller makes a topic's node, those of its partitions, and their registers one after the other."""
    name = f"half-{len(nodes)}"
    whole = {"version": 3, "topic_id": f"AAAAAAAAAAAAAAAAAAAA{len(nodes) + 1}A", "partitions": {"0": [2, 3, 1]}}
    transaction = zookeeper.transaction()
    transaction.create(paths.topic(name), json.dumps(whole | {"adding_replicas": {}, "removing_replicas": {}}).encode())
    for node in nodes:
        transaction.create(f"{paths.topic(name)}/{node}")
    assert all(isinstance(result, str) for result in transaction.commit())
    assert cluster.leader_of(name) == 2


def test_a_broker_that_finds_a_node_it_cannot_read_says_which(
    cluster: semel.Cluster, zookeeper: KazooClient, tmp_path: Path
) -> None:
    create(cluster, "unreadable")
    path = paths.topic("unreadable")
    sound, _ = zookeeper.get(path)
    zookeeper.set(path, b"damaged")
    until(lambda: path in " ".join(status(cluster)["unreadable"]), within_s=30, what="the status to name it")
    said = status(cluster)
    assert not said["is_well"] and f"{path} in ZooKeeper cannot be read" in " ".join(said["advice"]), said
    settings = {"node.id": 4, "log.dirs": tmp_path / "data", "zookeeper.connect": cluster.zookeeper_connect}
    command = [sys.executable, "-m", "semel", "broker", "start", "--listen", "127.0.0.1:0"]
    for setting, value in settings.items():
        command += ("--set", f"{setting}={value}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    zookeeper.set(path, sound)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{path} in ZooKeeper cannot be read" in done.stderr, done.stderr
    until(lambda: status(cluster)["unreadable"] == [], within_s=30, what="the status to hear of the repair")


def status(cluster: semel.Cluster) -> Any:
    """What `semel cluster status` says."""
    command = [sys.executable, "-m", "semel", "cluster", "status", "--json", "--bootstrap", cluster.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["users", "topics"])
def test_settings_that_cannot_be_read_are_named_until_they_are_gone(
    cluster: semel.Cluster, zookeeper: KazooClient, kind: str
) -> None:
    create(cluster, f"settings-{kind}")
    path = paths.config(kind, f"settings-{kind}")
    zookeeper.ensure_path(path)
    zookeeper.set(path, b"damaged")
    until(lambda: path in " ".join(status(cluster)["unreadable"]), within_s=30, what="the status to name it")
    zookeeper.delete(path)
    until(lambda: status(cluster)["unreadable"] == [], within_s=30, what="the status to forget it")


def test_a_deleted_topic_that_could_not_be_read_is_not_named_any_more(
    cluster: semel.Cluster, zookeeper: KazooClient
) -> None:
    create(cluster, "lost")
    zookeeper.set(paths.state("lost", 0), b"damaged")
    zookeeper.set(paths.topic("lost"), b"damaged")
    until(lambda: len(status(cluster)["unreadable"]) == 2, within_s=30, what="the status to name both")
    remove(zookeeper, paths.topic("lost"))
    until(lambda: status(cluster)["unreadable"] == [], within_s=30, what="the status to forget them")


def test_brokers_stop_where_their_cluster_is_removed_from_zookeeper_and_keep_everything() -> None:
    with semel.Cluster(brokers=2) as cluster:
        client = KazooClient(cluster.zookeeper_connect)
        client.start(30)
        create_on(cluster, "kept", [1, 2])
        places = [cluster.data_dir / f"broker-{broker}" for broker in (1, 2)]
        until(lambda: all((place / "kept-0").is_dir() for place in places), within_s=60, what="both to have it")
        remove(client, "/brokers", "/cluster", "/semel")
        until(lambda: not any(map(cluster.is_running, (1, 2))), within_s=60, what="the brokers to stop")
        for broker in (1, 2):
            assert "somebody has removed the cluster there" in cluster.output(broker)
        assert all([each.name[:6] for each in place.glob("kept-*")] == ["kept-0"] for place in places)
        client.stop()
        client.close()

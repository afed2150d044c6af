"""A data directory, or ZooKeeper, that was restored from an old copy; and a directory that does not say whose it is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

import semel
from semel.broker.replication.last_life import LAST_LIFE
from semel.log.checkpoints import decode_leader_epochs
from semel.machines.znodes import paths
from semel.wire.messages.transactions import InitProducerIdRequest
from tests.broker.raw import Raw
from tests.cluster.records import Writer, check, create
from tests.cluster.test_damaged_replicas import create as create_at
from tests.cluster.test_damaged_replicas import in_sync, read, write
from tests.support.cluster import Cluster, running_cluster
from tests.support.requirements import require_zookeeper
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeperNode

pytestmark = pytest.mark.timeout(240)


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


def refused(cluster: semel.Cluster, broker: int, zookeeper: str) -> str:
    """Why a broker of the cluster does not start on its directory."""
    command = [sys.executable, "-m", "semel", "broker", "start", "--listen", "127.0.0.1:0"]
    own = cluster.data_dir / f"broker-{broker}"
    for setting, value in (("node.id", broker), ("log.dirs", own), ("zookeeper.connect", zookeeper)):
        command += ("--set", f"{setting}={value}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_e12_a_directory_that_was_restored_from_a_copy_does_not_lead_the_others_back(
    cluster: semel.Cluster, zookeeper: KazooClient
) -> None:
    """All brokers die, one loses its disk and gets last night's copy. It is in sync, as ZooKeeper knows it."""
    create_at(cluster, "restored", 1, 2, 3)
    write(cluster, "restored", 0, 50)
    cluster.shut_down(1)
    directory, copy = cluster.data_dir / "broker-1", cluster.data_dir / "copy"
    shutil.copytree(directory, copy)
    cluster.restart(1)
    until(lambda: in_sync(zookeeper, "restored") == [1, 2, 3], within_s=60, what="all to be in sync")
    write(cluster, "restored", 50, 50)
    for number in cluster.numbers:
        cluster.pause(number)
    for number in cluster.numbers:
        cluster.kill(number)
    shutil.rmtree(directory)
    copy.rename(directory)
    for number in cluster.numbers:
        cluster.restart(number)
    write(cluster, "restored", 100, 10)
    assert read(cluster, "restored", 110) == [*range(110)]
    until(lambda: in_sync(zookeeper, "restored") == [1, 2, 3], within_s=60, what="all to be in sync again")
    assert "is older than the last life of broker 1" in cluster.output(1)


def test_e12_a_directory_that_has_lost_everything_but_its_identity_does_not_lead(
    cluster: semel.Cluster, zookeeper: KazooClient
) -> None:
    """All brokers die, and somebody gives the one that was in sync an empty directory with its meta.properties."""
    create_at(cluster, "emptied", 3, 1, 2)
    create_at(cluster, "only-there", 3)
    write(cluster, "emptied", 0, 20)
    write(cluster, "only-there", 0, 1)
    for number in cluster.numbers:
        cluster.kill(number)
    directory = cluster.data_dir / "broker-3"
    aside = directory.rename(cluster.data_dir / "aside")
    directory.mkdir()
    shutil.copy(aside / "meta.properties", directory)
    said = refused(cluster, 3, cluster.zookeeper_connect)
    assert "has lost files: nothing is there of only-there-0, which no other broker has" in said
    shutil.copytree(aside / "only-there-0", directory / "only-there-0")
    for number in reversed(cluster.numbers):
        cluster.restart(number)
    write(cluster, "emptied", 20, 10)
    assert read(cluster, "emptied", 30) == [*range(30)]
    until(lambda: in_sync(zookeeper, "emptied") == [1, 2, 3], within_s=60, what="all to be in sync again")


def test_a_directory_without_its_identity_is_told_what_to_write(cluster: semel.Cluster) -> None:
    create_at(cluster, "nameless", 2)
    write(cluster, "nameless", 0, 20)
    cluster.shut_down(2)
    file = cluster.data_dir / "broker-2" / "meta.properties"
    before = dict(line.split("=", 1) for line in file.read_text().splitlines() if not line.startswith("#"))
    for damage in (b"damaged", b"", None):
        if damage is None:
            file.unlink()
        elif not damage:
            file.write_bytes(b"")
        else:
            file.write_bytes(file.read_bytes().replace(b"cluster.id=", damage))
        said = refused(cluster, 2, cluster.zookeeper_connect)
        assert "meta.properties" in said and "write a meta.properties with these lines" in said, said
        assert file.exists() is (damage is not None), "nothing was changed"
    found = re.search(r"with these lines: (.*?)\.\s*$", said)
    assert found is not None, said
    lines = found[1].split(", ")
    assert dict(line.split("=", 1) for line in lines) == before
    file.write_text("\n".join(lines))
    cluster.restart(2)
    assert read(cluster, "nameless", 20) == [*range(20)]


def test_a_zookeeper_without_a_cluster_is_not_given_a_new_one(cluster: semel.Cluster, zookeeper: KazooClient) -> None:
    cluster.shut_down(3)
    said = refused(cluster, 3, f"{cluster.zookeeper_connect}/another/place")
    assert "there is no cluster in this ZooKeeper" in said and "the chroot" in said, said
    assert zookeeper.exists(f"/another/place{paths.CLUSTER_ID}") is None
    cluster.restart(3)


def next_producer_id(cluster: Cluster, at: int) -> int:
    def given() -> int | None:
        with Raw(cluster[at].address) as raw:
            answer = raw.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
        return None if answer.error_code else int(answer.producer_id)

    return until(lambda: (given() or 0) + 1, within_s=30, what="a producer id") - 1


@pytest.mark.java
def test_e12_a_zookeeper_that_was_restored_from_an_old_copy_is_refused_until_somebody_agrees(tmp_path: Path) -> None:
    """Producer ids would be given out twice, and what their new owners write be taken for what was there."""
    require_zookeeper()
    with running_cluster(
        3, session_timeout_ms=4000, keep_in=tmp_path, default_replication_factor=3, min_insync_replicas=2
    ) as cluster:
        create(cluster, "t", 1)
        writer = Writer(cluster, "t", 1)
        writer.write(20)
        node = cluster.zookeeper.nodes[0]
        data, copy = node.directory / "version-2", tmp_path / "copy"
        node.kill9()
        shutil.copytree(data, copy)
        restart(node, cluster)
        until(lambda: created(cluster), within_s=60, what="ZooKeeper to be reached again")
        for at in (1, 2):
            cluster[at].kill9()
            writer.write(10)
            cluster[at].start()
        check(cluster, writer)
        given_out = [next_producer_id(cluster, at) for at in cluster.brokers]
        # Brokers note every few seconds what they have seen. Without a new life that is all they go by.
        until(lambda: have_noted_the_newest(cluster), within_s=60, what="the brokers to note what they have seen")
        for broker in cluster.brokers.values():
            broker.kill9()
        node.kill9()
        shutil.rmtree(data)
        copy.rename(data)
        restart(node, cluster)

        for broker in cluster.brokers.values():
            broker.close()
            broker.launch()
        for broker in cluster.brokers.values():
            until(lambda b=broker: not b.running.running(), within_s=60, what="it to be refused")  # type: ignore[misc]
            said = broker.running.output()
            assert "this ZooKeeper has forgotten something" in said and "Traceback" not in said, said
        consent = {"semel.cluster.accept.older.zookeeper": "true"}
        for broker in cluster.brokers.values():
            broker.close()
            broker._settings |= consent
            broker.launch()
        for broker in cluster.brokers.values():
            broker.wait()
        writer.write(10)
        check(cluster, writer)
        assert min(next_producer_id(cluster, at) for at in cluster.brokers) > max(given_out)
        epochs = decode_leader_epochs((cluster[1].directory / "t-0" / "leader-epoch-checkpoint").read_bytes())
        assert [epoch for epoch, _ in epochs] == sorted({epoch for epoch, _ in epochs}), "they have only risen"
        client = KazooClient(cluster.zookeeper.connect)
        client.start(30)
        register = json.loads(client.get(paths.state("t", 0))[0])
        client.stop()
        client.close()
        assert epochs[-1][0] == register["leader_epoch"]

        # From now on it is the truth, and no consent is needed any more.
        for broker in cluster.brokers.values():
            broker.kill9()
            for setting in consent:
                del broker._settings[setting]
            broker.close()
            broker.start()
        writer.write(10)
        check(cluster, writer)


def have_noted_the_newest(cluster: Cluster) -> bool:
    """Whether the directory of every broker remembers the last change of a partition's state."""
    path = paths.state("t", 0)
    client = KazooClient(cluster.zookeeper.connect)
    client.start(30)
    try:
        newest = client.get(path)[1].mzxid
    finally:
        client.stop()
        client.close()
    notes = [(broker.directory / LAST_LIFE).read_text() for broker in cluster.brokers.values()]
    return all(json.loads(note.partition("\n")[2])["seen"].get(path) == newest for note in notes)


def restart(node: ZooKeeperNode, cluster: Cluster) -> None:
    """A ZooKeeper that was killed."""
    node.close()
    node.process = None
    node.launch()
    cluster.zookeeper.wait()


def created(cluster: Cluster) -> bool:
    """Whether topics can be created: ZooKeeper is there for the broker that is asked."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic("probe", 1, 3)], request_timeout=10).values():
        made.result(20)
    return True

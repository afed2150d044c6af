"""Rows of the failure table in docs/replication.md that need a network to be cut: each broker reaches ZooKeeper, and is
reached by the other brokers, through proxies that hold back what is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from kazoo.client import KazooClient

from semel.errors import ErrorCode
from semel.machines.znodes import paths
from semel.wire.messages.metadata import DescribeClusterRequest
from tests.broker.raw import Raw, batch
from tests.cluster.records import Writer, check, check_files, create, partitions_of
from tests.cluster.test_failures import followers_of, lead, produce, register
from tests.support.cluster import Cluster, running_cluster
from tests.support.processes import lasting_port
from tests.support.requirements import require_kafka, require_zookeeper
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.usefixtures("everybody_lives", "nothing_is_cut")]

#: Broker 3 is given up soon when it does not reach ZooKeeper. The others have time. A follower that is cut off has time
#: to start anew on a busy machine before its leader gives the other one up, too.
SESSION_MS, SHORT_SESSION_MS, LAG_MS = 30_000, 6_000, 20_000


@dataclass
class Proxies:
    """Of one broker: to ZooKeeper, and from the other brokers."""

    zookeeper: TcpProxy
    brokers: TcpProxy

    def both(self) -> tuple[TcpProxy, TcpProxy]:
        return self.zookeeper, self.brokers


@pytest.fixture(scope="module")
def proxies() -> Iterator[dict[int, Proxies]]:
    require_zookeeper()
    require_kafka()
    made: dict[int, Proxies] = {}
    yield made
    for each in made.values():
        for proxy in each.both():
            proxy.close()


@pytest.fixture(scope="module")
def cluster(proxies: dict[int, Proxies]) -> Iterator[Cluster]:
    zookeeper = ZooKeeper(3)
    own: dict[int, dict[str, object]] = {}
    for number, node in enumerate(zookeeper.nodes, 1):
        port, inner = lasting_port(), lasting_port()
        proxies[number] = Proxies(TcpProxy(node.port), TcpProxy(inner))
        outer = f"CLIENTS://127.0.0.1:{port}"
        own[number] = {
            "port": port,
            "zookeeper.connect": f"127.0.0.1:{proxies[number].zookeeper.port}",
            "zookeeper.session.timeout.ms": SHORT_SESSION_MS if number == 3 else SESSION_MS,
            "listeners": f"{outer},BROKERS://127.0.0.1:{inner}",
            "advertised.listeners": f"{outer},BROKERS://127.0.0.1:{proxies[number].brokers.port}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
        }
    with running_cluster(
        3, zookeeper=zookeeper, own_settings=own, session_timeout_ms=None, replica_lag_time_max_ms=LAG_MS
    ) as running:
        yield running
        check_files(running)


@pytest.fixture(scope="module")
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper.connect)
    client.start(30)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def nothing_is_cut(proxies: dict[int, Proxies]) -> Iterator[None]:
    yield
    for each in proxies.values():
        for proxy in each.both():
            proxy.release()


def led_by(cluster: Cluster, zookeeper: KazooClient, topic: str, number: int) -> None:
    create(cluster, topic, 1, min_insync_replicas="2")
    lead(cluster, topic, [number, *(other for other in cluster.brokers if other != number)])
    until(lambda: register(zookeeper, topic).leader == number, within_s=60, what=f"broker {number} to lead")


def test_a_leader_that_is_cut_from_its_followers_gives_them_up_and_refuses(
    cluster: Cluster, zookeeper: KazooClient, proxies: dict[int, Proxies]
) -> None:
    """R9 P3 F1: it shrinks the set by updates, and below the needed number it takes nothing."""
    led_by(cluster, zookeeper, "alone", 1)
    writer = Writer(cluster, "alone", 1)
    writer.write(20)
    proxies[1].brokers.hold()
    assert produce(cluster, 1, "alone", b"they lack this", acks=1)[0] == 0
    until(lambda: register(zookeeper, "alone").isr == (1,), within_s=60, what="the followers to leave the set")

    def refused() -> bool:
        return produce(cluster, 1, "alone", b"refused")[0] == ErrorCode.NOT_ENOUGH_REPLICAS

    until(refused, within_s=30, what="acks=all to be refused")
    assert register(zookeeper, "alone").leader == 1, "nobody is dead"
    proxies[1].brokers.release()
    writer.write(20)
    check(cluster, writer)


def test_a_leader_that_is_cut_from_zookeeper_alone_is_replaced_and_commits_nothing(
    cluster: Cluster, zookeeper: KazooClient, proxies: dict[int, Proxies]
) -> None:
    """Z6 R2 F4: its session ends, others lead, and what it takes meanwhile is never acknowledged with acks=all."""
    led_by(cluster, zookeeper, "cut-off", 3)
    writer = Writer(cluster, "cut-off", 1)
    writer.write(20)
    proxies[3].zookeeper.hold()
    writer.write(20)  # as before, until the session has ended
    until(lambda: register(zookeeper, "cut-off").leader in (1, 2), within_s=60, what="another leader")
    assert ErrorCode(produce(cluster, 3, "cut-off", b"never committed")[0]) in (
        ErrorCode.REQUEST_TIMED_OUT,  # it does not know, and its followers fetch elsewhere
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    )
    proxies[3].zookeeper.lose()
    until(lambda: 3 in register(zookeeper, "cut-off").isr, within_s=60, what="it to be in sync again")
    writer.write(20)
    check(cluster, writer)


def test_while_the_answer_to_a_change_of_the_set_is_lost_both_sets_count(
    cluster: Cluster, zookeeper: KazooClient, proxies: dict[int, Proxies]
) -> None:
    """Z3 R2: a follower is in the set and its leader does not know. Nothing is committed that it lacks."""
    led_by(cluster, zookeeper, "unsure", 1)
    writer = Writer(cluster, "unsure", 1)
    writer.write(20)
    (joining,) = (number for number in followers_of(cluster, register(zookeeper, "unsure")) if number != 2)
    cluster[joining].kill9()
    until(lambda: joining not in register(zookeeper, "unsure").isr, within_s=60, what="it to leave the set")
    proxies[1].zookeeper.hold(requests=False)
    cluster[joining].start()
    until(lambda: joining in register(zookeeper, "unsure").isr, within_s=60, what="ZooKeeper to have the change")
    cluster[joining].freeze()
    with Raw(cluster[1].address) as raw:
        answer = raw.produce("unsure", batch(b"late"), acks=-1, version=9)  # waits for 1 s
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT, "who may be in the set has not got it"
    cluster[joining].thaw()
    proxies[1].zookeeper.lose()
    until(
        lambda: len(partitions_of(cluster, "unsure", 1)[0].isr_nodes) == 3, within_s=60, what="the leader to find out"
    )
    writer.write(20)
    check(cluster, writer)


def _live(cluster: Cluster, at: int) -> set[int]:
    with Raw(cluster[at].address) as raw:
        return {row.broker_id for row in raw.ask(DescribeClusterRequest(), 0).brokers}


def test_a_follower_that_restarted_is_not_asked_into_the_set_by_its_earlier_life(
    cluster: Cluster, zookeeper: KazooClient, proxies: dict[int, Proxies]
) -> None:
    """R8: the leader's write is for the life that has fetched, and is refused after the next one began."""
    led_by(cluster, zookeeper, "rebooted", 1)
    writer = Writer(cluster, "rebooted", 1)
    writer.write(20)
    cluster[2].kill9()
    until(lambda: 2 not in register(zookeeper, "rebooted").isr, within_s=60, what="it to leave the set")
    proxies[1].brokers.hold()
    cluster[2].start()
    until(lambda: 2 in _live(cluster, at=1), within_s=60, what="the leader to hear that it lives")
    proxies[1].zookeeper.hold(answers=False)
    proxies[1].brokers.release()
    # A write of the register, with 2 in the set; not a read of it, nor a write that lets somebody go.
    asked = re.compile(re.escape(paths.state("rebooted", 0).encode()) + rb".{4}\{[^}]*\"isr\":\[[^\]]*\b2\b", re.DOTALL)
    until(lambda: asked.search(proxies[1].zookeeper.held), within_s=60, what="the leader to ask it into the set")
    # Its fetch has asked the leader to ask for it. It dies, and the next life begins before ZooKeeper hears of that.
    cluster[2].kill9()
    cluster[2].start()
    version = zookeeper.get("/semel/brokers/2")[1].version
    before = register(zookeeper, "rebooted")
    assert 2 not in before.isr
    proxies[1].zookeeper.release()
    until(lambda: 2 in register(zookeeper, "rebooted").isr, within_s=60, what="its present life to be in the set")
    assert zookeeper.get("/semel/brokers/2")[1].version == version
    said = "".join(path.read_text() for path in cluster[1].place.glob("broker-1-life-*.log"))
    assert "<rebooted-0>: the in-sync set has changed meanwhile" in said
    writer.write(20)
    check(cluster, writer)

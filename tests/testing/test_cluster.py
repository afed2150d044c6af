"""`semel.Cluster`, its fixture, and the commands `semel cluster`: broker processes without Java."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import semel
from semel.cli import command_line
from semel.config import ConfigError
from semel.errors import ErrorCode, KafkaError
from tests.support.processes import Process, free_port, lasting_port
from tests.support.waiting import until

#: None is one that is not set.
SETTINGS = {
    "log.retention.ms": None,
    "group.coordinator.rebalance.protocols": ["classic", "consumer"],
    "replica.lag.time.max.ms": 5000,
    "num.partitions": 3,
    "leader.imbalance.check.interval.seconds": 1,
}

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.semel_cluster(brokers=3, settings=SETTINGS),
]


def status(cluster: semel.Cluster) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-m", "semel", "cluster", "status", "--json", "--bootstrap", cluster.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_records_survive_a_killed_broker_and_the_status_says_what_to_do(semel_cluster: semel.Cluster) -> None:
    with semel.Producer({"bootstrap.servers": semel_cluster.bootstrap_servers, "acks": "all"}) as producer:
        sent = [producer.send("orders", b"%d" % number, partition=number % 3).result(60) for number in range(30)]
        until(lambda: status(semel_cluster)[0] == 0, within_s=60, every_s=0.5, what="all to be well")
        victim = semel_cluster.leader_of("orders", 1)
        semel_cluster.kill(victim)
        assert not semel_cluster.is_running(victim)
        with pytest.raises(RuntimeError, match="cannot be paused"):
            semel_cluster.pause(victim)
        sent += [producer.send("orders", b"%d" % number, partition=number % 3).result(60) for number in range(30, 60)]

        def broker_is_missed() -> bool:
            code, shown = status(semel_cluster)
            assert code == 1
            return len(shown["under_replicated"]) == 3  # type: ignore[arg-type]

        until(broker_is_missed, within_s=60, every_s=0.5, what="the broker to be missed")
        _, shown = status(semel_cluster)
        assert shown["offline"] == shown["under_min_isr"] == []
        assert {"broker": victim, "state": "away"}.items() <= shown["brokers"][victim - 1].items()  # type: ignore[index]
        assert any(f"Broker {victim} holds replicas and is not running" in line for line in shown["advice"])  # type: ignore[attr-defined]
        semel_cluster.restart(victim)
        until(lambda: status(semel_cluster)[0] == 0, within_s=60, every_s=0.5, what="all to be well again")
    assert len({(one.partition, one.offset) for one in sent}) == 60


def test_a_paused_broker_comes_back_and_acknowledges_nothing_of_its_past(semel_cluster: semel.Cluster) -> None:
    # The client gives up on a broker that says nothing after this time; by default after 30 s.
    settings = {"bootstrap.servers": semel_cluster.bootstrap_servers, "acks": "all", "request.timeout.ms": 2000}
    with semel.Producer(settings) as producer:
        producer.send("paused", b"1", partition=0).result(60)
        frozen = semel_cluster.leader_of("paused")
        semel_cluster.pause(frozen)
        try:
            until(lambda: semel_cluster.leader_of("paused") != frozen, within_s=90, what="another leader")
            producer.send("paused", b"2", partition=0).result(90)
        finally:
            semel_cluster.resume(frozen)
        assert producer.send("paused", b"3", partition=0).result(90).offset == 2


def test_a_broker_that_is_shut_down_leads_nothing_when_it_goes_and_leads_again(semel_cluster: semel.Cluster) -> None:
    """E8, and auto.leader.rebalance.enable."""
    # The broker that was frozen is back: otherwise the new topic's leader is perhaps not its first replica.
    until(lambda: status(semel_cluster)[0] == 0, within_s=60, every_s=0.5, what="all to be well")
    with semel.Producer({"bootstrap.servers": semel_cluster.bootstrap_servers, "acks": "all"}) as producer:
        producer.send("handed", b"1", partition=0).result(60)
        leader = semel_cluster.leader_of("handed")
        semel_cluster.shut_down(leader)
        assert semel_cluster.leader_of("handed", within_s=5) != leader
        assert producer.send("handed", b"2", partition=0).result(60).offset == 1
        semel_cluster.restart(leader)
        until(lambda: semel_cluster.leader_of("handed") == leader, within_s=60, what="the first replica to lead again")
        assert producer.send("handed", b"3", partition=0).result(60).offset == 2


def test_what_is_wrong_with_a_cluster_is_said_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        semel.Cluster(brokers=0)
    with pytest.raises(ConfigError, match=r"node\.id"):
        semel.Cluster(settings={"node.id": 7})
    with pytest.raises(ValueError, match="100 are the most"):
        semel.Cluster(brokers=10**6)
    with pytest.raises(ConfigError, match=r"advertised\.listeners: the cluster chooses it for each broker"):
        semel.Cluster(settings={"advertised.listeners": "PLAINTEXT://a:1"})
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        semel.Cluster(settings={"num.partitions": "many"})
    for ports, why in (
        ([1], "one for each"),
        (9092, "one for each"),
        ([19092, 19092], "each broker has its own"),
        (["9092", 9093], "'9092' is no port"),
        ([0, 70000], "0 is no port"),
    ):
        with pytest.raises(ValueError, match=why):
            semel.Cluster(brokers=2, ports=ports)  # type: ignore[arg-type]
    for zookeeper in ("", "127.0.0.1:x", "127.0.0.1:2181,", ":2181"):
        with pytest.raises(ValueError, match=r"expected for example 127\.0\.0\.1:2181"):
            semel.Cluster(zookeeper=zookeeper)
    with pytest.raises(TypeError, match="zookeeper is HOST:PORT"):
        semel.Cluster(zookeeper=2181)  # type: ignore[arg-type]


def test_without_a_client_of_zookeeper_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "kazoo", None)
    (tmp_path / "zookeeper-3.9.jar").touch()
    for options in ((), ("--zookeeper", "127.0.0.1:2181"), ("--zookeeper-libs", str(tmp_path))):
        done = CliRunner().invoke(command_line(), ["cluster", "up", *options])
        assert done.exit_code == 1
        assert done.output == "Error: a cluster needs kazoo, a client of ZooKeeper: pip install 'semel[cluster]'\n"
    with pytest.raises(ConfigError, match=r"semel\[cluster\]"):
        semel.Cluster()


def test_a_cluster_starts_once_and_what_does_not_run_says_so(semel_cluster: semel.Cluster) -> None:
    with pytest.raises(RuntimeError, match="was started before"):
        semel_cluster.start()
    for asked in (("", 0, 1.0), ("a b", 0, 1.0), ("t", -1, 1.0), ("t", 0, float("nan")), ("t", 0, -1.0)):
        with pytest.raises(ValueError, match="there can be no such thing"):
            semel_cluster.leader_of(*asked[:2], within_s=asked[2])
    assert all(semel_cluster.is_running(number) for number in semel_cluster.numbers), "and goes on unharmed"
    with pytest.raises(TypeError, match="a topic's name"):
        semel_cluster.leader_of(5)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match=r"nobody leads nowhere-0 after 0\.1 s: brokers that know none: 1, 2, 3"):
        semel_cluster.leader_of("nowhere", within_s=0.1)
    for wrong in (0, 9, True, 1.0, "1", [1]):
        with pytest.raises(ValueError, match="there are 1, 2, 3"):
            semel_cluster.kill(wrong)  # type: ignore[arg-type]
    other = semel.Cluster(brokers=1)
    for call in (other.kill, other.pause, other.resume, other.shut_down, other.restart):
        with pytest.raises(RuntimeError, match="was not started"):
            call(1)
    with pytest.raises(RuntimeError, match="was not started"):
        other.leader_of("t")
    other.stop()
    assert not other.data_dir.exists()
    with pytest.raises(RuntimeError, match="was stopped before"):
        other.start()
    with pytest.raises(TypeError, match="brokers is a whole number, not str"):
        semel.Cluster(brokers="3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="settings are a dict of Kafka's names, not list"):
        semel.Cluster(brokers=1, settings=["x"])  # type: ignore[arg-type]


def test_data_of_an_earlier_cluster_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Its ZooKeeper was built in and is gone. The brokers would say that ZooKeeper has lost its data."""
    semel.Cluster(brokers=1, data_dir=tmp_path).start().stop()
    with pytest.raises(ValueError, match="broker-1 in it belongs to an earlier cluster"):
        semel.Cluster(brokers=1, data_dir=str(tmp_path))
    semel.Cluster(brokers=1, data_dir=tmp_path, zookeeper="127.0.0.1:2181")


@pytest.mark.parametrize("cuts", [False, True])
def test_threads_may_restart_kill_and_stop_at_once(cuts: bool) -> None:
    """Of each broker there is one process at a time, others reach it, and none is left behind."""
    told: list[str] = []

    def calling(call: Callable[[int], object], broker: int) -> None:
        try:
            call(broker)
        except RuntimeError as error:
            told.append(str(error))

    with semel.Cluster(brokers=2, cuts=cuts) as cluster:
        begun: list[int] = []
        launch = cluster._watchdog.watch
        cluster._watchdog.watch = lambda pid: (begun.append(pid), launch(pid))[1]  # type: ignore[method-assign]
        both = [threading.Thread(target=calling, args=(cluster.restart, 1)) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert told == [] and len(begun) == 2
        assert [alive(pid) for pid in begun] == [False, True]
        with semel.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
            producer.send("threads", b"1").result(60)
        during = threading.Thread(target=calling, args=(cluster.restart, 2))
        during.start()
        until(lambda: len(begun) == 3, what="the broker to be starting")
        cluster.kill(2)
        during.join()
        assert told.pop().startswith("broker 2 did not start, it ended with -9")
        during = threading.Thread(target=calling, args=(cluster.restart, 2))
        during.start()
        cluster.stop()
        during.join()
    cluster.stop()
    assert len(told) <= 1 and not any(map(alive, begun))


def alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_cluster_that_nobody_stopped_ends_with_the_program_and_leaves_nothing(tmp_path: Path) -> None:
    program = """
import semel
never = semel.Cluster(brokers=1)
cluster = semel.Cluster(brokers=1).start()
print(cluster._brokers[1]._process.pid)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
    assert list(tmp_path.iterdir()) == []
    assert done.stderr == ""


@pytest.mark.semel_cluster(brokers=1)
def test_a_test_with_the_marker_has_a_cluster_of_its_own(
    semel_cluster: semel.Cluster, semel_module_cluster: semel.Cluster
) -> None:
    assert semel_cluster is not semel_module_cluster
    assert (len(semel_cluster.numbers), len(semel_module_cluster.numbers)) == (1, 3)
    with semel.Admin({"bootstrap.servers": semel_cluster.bootstrap_servers}) as admin:
        admin.create_topic("own")
        assert len(admin.describe_topics(["own"])["own"].partitions) == 3, "the module's settings count"


def test_a_test_without_the_marker_has_that_of_the_module(
    semel_cluster: semel.Cluster, semel_module_cluster: semel.Cluster
) -> None:
    assert semel_cluster is semel_module_cluster


def test_a_broker_that_cannot_start_is_told_with_its_reason() -> None:
    with pytest.raises(RuntimeError, match=r"inter\.broker\.listener\.name"):
        semel.Cluster(brokers=1, settings={"inter.broker.listener.name": "NOBODY"}).start()


def test_without_a_client_of_zookeeper_the_broker_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['kazoo'] = None\n"
        "from semel.cli import main; main(['broker', 'start', '--set', 'zookeeper.connect=127.0.0.1:1', "
        "'--listen', '127.0.0.1:0'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "pip install 'semel[cluster]'" in done.stderr


def test_the_metrics_of_a_cluster_have_kafkas_names() -> None:
    port = free_port()
    with semel.Cluster(brokers=1, settings={"semel.metrics.port": port}) as cluster:
        with semel.Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
            producer.send("measured", b"1").result(60)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
    told = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[:1] != "#"}
    assert told["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert told["kafka_controller_kafkacontroller_offlinepartitionscount"] == 0
    assert told["kafka_server_replicamanager_underreplicatedpartitions"] == 0
    assert told["kafka_server_replicamanager_leadercount"] == 1
    assert told["kafka_server_replicamanager_isrshrinks_total"] == 0
    assert told["kafka_server_replicamanager_isrexpands_total"] == 0


def test_cluster_up_starts_brokers_line_by_line_and_ctrl_c_stops_all() -> None:
    port = lasting_port(2)
    command = [sys.executable, "-m", "semel", "cluster", "up", "--brokers", "2", "--port", str(port)]
    process = Process(command, name="cluster-up", environment={"SEMEL_ZOOKEEPER_LIBS": ""})
    try:
        process.wait_for_line(f"bootstrap.servers=127.0.0.1:{port},127.0.0.1:{port + 1}", within_s=60)
        lines = process.lines()
        assert lines[0].startswith("ZooKeeper: built in")
        assert [line.split(",")[0] for line in lines[1:3]] == [
            f"broker {number} ready on 127.0.0.1:{port + number - 1}" for number in (1, 2)
        ]
        with semel.Admin({"bootstrap.servers": f"127.0.0.1:{port}"}) as admin:
            with pytest.raises(KafkaError) as refused:
                admin.create_topics([semel.NewTopic("t", 1, replication_factor=3)])
            assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
        process.signal(signal.SIGINT)
        assert process.wait(within_s=60) == 0
    finally:
        process.close()


def test_data_that_the_built_in_zookeeper_would_forget_is_refused() -> None:
    command = [sys.executable, "-m", "semel", "cluster", "up", "--data", "somewhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "the built-in ZooKeeper keeps nothing" in done.stderr


def test_an_empty_address_of_zookeeper_is_no_wish_for_brokers_that_are_alone() -> None:
    command = [sys.executable, "-m", "semel", "cluster", "up", "--zookeeper", ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "Error: zookeeper=''" in done.stderr, done.stderr

"""What `semel cluster status` and `semel txn doctor` say while brokers are away, in time to be of use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from semel.cluster.peers import PEER_CLIENT_ID
from semel.errors import ErrorCode
from semel.wire.messages.admin import AlterPartitionReassignmentsRequest
from semel.wire.messages.metadata import DescribeClusterRequest
from semel.wire.messages.transactions import DescribeProducersRequest
from tests.broker.raw import Raw
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(240)
SETTINGS = {
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    # Long enough for a frozen broker to be asked while it counts as there. A killed one is certified dead.
    "zookeeper.session.timeout.ms": 40_000,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[semel.Cluster]:
    with semel.Cluster(brokers=3, settings=SETTINGS) as running:
        yield running


def told(cluster: semel.Cluster, *words: str) -> tuple[int, str]:
    """The exit code and what a command says; asked of the brokers that run."""
    running = ",".join(cluster.address(number) for number in cluster.numbers if cluster.is_running(number))
    command = [sys.executable, "-m", "semel", *words, "--bootstrap", running]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_an_open_transaction_whose_coordinator_is_away_is_not_called_hanging(cluster: semel.Cluster) -> None:
    """Nobody may write its abort marker: the coordinator that is away may have decided to commit."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "t", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(90)
    coordinator = cluster.leader_of("__transaction_state")
    others = [number for number in cluster.numbers if number != coordinator]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic("data", 1, replica_assignment=[others])]).values():
        made.result(30)
    producer.begin_transaction()
    producer.produce("data", b"1")
    assert producer.flush(60) == 0
    assert "in progress" in told(cluster, "txn", "doctor")[1]

    cluster.kill(coordinator)
    until(lambda: "away" in told(cluster, "cluster", "status")[1], within_s=60, what="the broker to be missed")
    until(lambda: "coordinator away" in told(cluster, "txn", "doctor", "data")[1], within_s=60, what="it to be missed")
    code, words = told(cluster, "txn", "doctor", "--fix", "--yes")
    assert code == 1
    assert "__transaction_state-0 cannot be read: nobody leads it" in words, words
    assert "data-0: coordinator away" in words and "--fix does nothing" in words, words

    # Who is away is fenced, for whoever asks for those as well (KIP-1073), and where it was.
    shown = {}
    for include in (False, True):
        with Raw(cluster.address(others[0])) as raw:
            rows = raw.ask(DescribeClusterRequest(include_fenced_brokers=include), 2).brokers
            shown[include] = {row.broker_id: (f"{row.host}:{row.port}", row.is_fenced) for row in rows}
    assert shown[False] == {number: (cluster.address(number), False) for number in others}
    assert shown[True] == {**shown[False], coordinator: (cluster.address(coordinator), True)}

    # The status is for this very moment: it answers at once, and names the broker to start.
    code, words = told(cluster, "cluster", "status")
    assert code == 1
    assert f"Broker {coordinator} holds replicas and is not running" in words, words
    assert f"it has all its records on broker {coordinator}, so start that" in words, words
    assert json.loads(told(cluster, "cluster", "status", "--json")[1])["offline"][0]["topic"] == "__transaction_state"
    assert "data" in told(cluster, "topic", "list")[1]

    cluster.restart(coordinator)
    until(lambda: "in progress" in told(cluster, "txn", "doctor", "data")[1], within_s=60, what="it to be known again")
    producer.commit_transaction(90)
    code, words = told(cluster, "txn", "doctor")
    assert (code, "no transaction is open" in words) == (0, True), words
    until(lambda: told(cluster, "cluster", "status")[0] == 0, within_s=60, what="all to be well")
    words = told(cluster, "cluster", "status")[1]
    assert "All is well." in words and "1 partition has one replica" in words, words


def test_a_coordinator_that_moved_is_found_at_its_new_broker(cluster: semel.Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "moved"})
    producer.init_transactions(90)
    producer.begin_transaction()
    producer.produce("moves", b"1")
    assert producer.flush(60) == 0
    before = cluster.leader_of("__transaction_state")
    moves = ("--remove", str(before), "--topic", "__transaction_state", "--yes")
    code, words = told(cluster, "cluster", "balance", *moves)
    assert code == 0, words
    assert cluster.leader_of("__transaction_state") != before

    def seen() -> bool:
        return "transactional id 'moved'" in told(cluster, "txn", "doctor", "moves")[1]

    until(seen, within_s=60, what="the coordinator to be found")
    code, words = told(cluster, "txn", "doctor", "moves")
    assert "in progress" in words and code == 0, words
    producer.commit_transaction(90)


def producers_at(cluster: semel.Cluster, broker: int, topic: str, client_id: str) -> tuple[ErrorCode, list[int]]:
    """Where each open transaction begins, as one broker sees it."""
    row = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
    with Raw(cluster.address(broker), client_id=client_id) as raw:
        part = raw.ask(DescribeProducersRequest(topics=[row]), 0).topics[0].partitions[0]
    begun = [each.current_txn_start_offset for each in part.active_producers]
    return ErrorCode(part.error_code), [offset for offset in begun if offset >= 0]


def test_every_replica_tells_its_producers_and_a_coordinator_asks_the_leader_alone(cluster: semel.Cluster) -> None:
    """As in Kafka, whose kafka-transactions asks one broker for all that it has. C4: markers go by what leaders say."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic("told", 1, replica_assignment=[[1, 2]])]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "telling"})
    producer.init_transactions(90)
    producer.begin_transaction()
    producer.produce("told", b"1")
    assert producer.flush(60) == 0
    leader = cluster.leader_of("told")
    follower = 3 - leader
    for broker in (leader, follower):
        until(lambda b=broker: producers_at(cluster, b, "told", "anybody") == (ErrorCode.NONE, [0]),
              within_s=60, what=f"broker {broker} to tell")
    assert producers_at(cluster, 3, "told", "anybody") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
    assert producers_at(cluster, leader, "told", f"{PEER_CLIENT_ID}9") == (ErrorCode.NONE, [0])
    assert producers_at(cluster, follower, "told", f"{PEER_CLIENT_ID}9") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
    producer.commit_transaction(90)


def test_a_broker_that_is_frozen_is_called_silent_before_zookeeper_takes_it_for_dead(cluster: semel.Cluster) -> None:
    """A partition that is on its way there is written meanwhile: nothing is missed yet, and no write is refused."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    small = NewTopic("moving", 1, replica_assignment=[[1]], config={"min.insync.replicas": "2"})
    for made in admin.create_topics([small]).values():
        made.result(30)
    until(lambda: told(cluster, "cluster", "status")[0] == 0, within_s=60, what="all to be well")
    move = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[1, 3])
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic(name="moving", partitions=[move])
    cluster.pause(3)
    try:
        with Raw(cluster.address(1)) as raw:
            assert raw.ask(AlterPartitionReassignmentsRequest(topics=[topic]), 0).error_code == 0
        code, words = told(cluster, "cluster", "status", "--json")
    finally:
        cluster.resume(3)
    shown = json.loads(words)
    assert code == 1 and shown["silent"] == [3] and not shown["is_well"], words
    assert "did not answer within 3 s" in " ".join(shown["advice"]), words
    assert shown["moving"] == [{"topic": "moving", "partition": 0, "adding": [3], "removing": []}], words
    assert shown["under_replicated"] == shown["under_min_isr"] == [], words
    assert "1 partition is on the way to other brokers" in " ".join(shown["advice"]), words
    until(lambda: told(cluster, "cluster", "status")[0] == 0, within_s=60, what="all to be well again")

"""What fails and what happens, on three broker processes and a ZooKeeper of three nodes: the rows of the table in
docs/replication.md that are not in the other files here. After each test the replicas are compared byte for byte, and
at the end Kafka's own reader looks at all files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from semel.errors import ErrorCode
from semel.machines.replication.values import PartitionState
from semel.machines.znodes import paths
from semel.machines.znodes.values import decode_state
from semel.wire.messages.admin import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.metadata import DescribeClusterRequest, MetadataRequest
from semel.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.broker.raw import Raw, batch, values_of
from tests.cluster.records import Writer, all_in_sync, check, check_files, create, logs, partitions_of, stored
from tests.cluster.test_coordinators import TRANSACTION, coordinator_of, retried, transactional
from tests.support.cluster import Cluster, running_cluster
from tests.support.requirements import require_kafka, require_zookeeper
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.usefixtures("everybody_lives")]

#: How long a follower may be away before it leaves the set, and a session before it ends: longer than a test needs.
LAG_MS, SESSION_MS = 20_000, 20_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    require_zookeeper()
    require_kafka()
    with running_cluster(
        3,
        zookeeper=ZooKeeper(3),
        session_timeout_ms=SESSION_MS,
        replica_lag_time_max_ms=LAG_MS,
        transaction_state_log_num_partitions=3,
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


def register(zookeeper: KazooClient, topic: str, partition: int = 0) -> PartitionState:
    """What ZooKeeper says, whoever knows it."""
    path = paths.state(topic, partition)
    return decode_state(zookeeper.retry(zookeeper.get, path)[0], path)


def followers_of(cluster: Cluster, state: PartitionState) -> list[int]:
    return [number for number in cluster.brokers if number != state.leader]


def produce(cluster: Cluster, at: int, topic: str, value: bytes, acks: int = -1, **options: int) -> tuple[int, int]:
    """(error, offset)"""
    with Raw(cluster[at].address) as raw:
        answer = raw.produce(topic, batch(value, **options), acks=acks, version=11)
    return answer.error_code, answer.base_offset


def test_a_follower_that_dies_leaves_the_set_at_once(cluster: Cluster, zookeeper: KazooClient) -> None:
    """E3 E6 R2: by its certificate, long before it would lag; the leader leads on under the same epoch."""
    create(cluster, "follower-dies", 1, min_insync_replicas="2")
    writer = Writer(cluster, "follower-dies", 1)
    writer.write(20)
    before = register(zookeeper, "follower-dies")
    victim = followers_of(cluster, before)[0]
    cluster[victim].kill9()
    writer.write(20)
    after = register(zookeeper, "follower-dies")
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)
    assert {*after.isr} == {*before.isr} - {victim}
    cluster[victim].start()
    check(cluster, writer)


def test_clients_are_told_of_a_broker_for_a_while_after_it_is_gone(cluster: Cluster, zookeeper: KazooClient) -> None:
    """By brokers that have seen it, and by one that was started afterwards. Administrators are told how it is."""
    cluster[1].kill9()
    until(lambda: zookeeper.exists(paths.broker(1)) is None, within_s=60, what="its registration to go")
    cluster[2].kill9()
    cluster[2].start()
    for at in (2, 3):
        with Raw(cluster[at].address) as raw:
            named = {(row.node_id, row.port) for row in raw.ask(MetadataRequest(topics=[]), 9).brokers}
            live = {row.broker_id for row in raw.ask(DescribeClusterRequest(), 0).brokers}
        assert named == {(broker.number, broker.port) for broker in cluster.brokers.values()}
        assert live == {2, 3}
    cluster[1].start()


def test_a_batch_whose_leader_died_before_it_answered_is_known_to_the_next(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    """R10 P3: the retry gets the offset of the original, and there is one record."""
    create(cluster, "retried", 1, min_insync_replicas="2")
    state = register(zookeeper, "retried")
    with Raw(cluster[state.leader].address) as raw:
        producer = raw.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
    options = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "base_sequence": 0}
    error, original = produce(cluster, state.leader, "retried", b"once", **options)  # an answer that is never heard
    assert error == 0
    cluster[state.leader].kill9()
    others = followers_of(cluster, state)
    until(
        lambda: partitions_of(cluster, "retried", others[0])[0].leader_id in others, within_s=60, what="another leader"
    )
    leader = partitions_of(cluster, "retried", others[0])[0].leader_id
    answered = until(
        lambda: next(
            (answer for answer in (produce(cluster, leader, "retried", b"once", **options),) if not answer[0]), None
        ),
        within_s=60,
        what="the next leader to answer",
    )
    assert answered == (0, original)
    cluster[state.leader].start()
    until(lambda: all_in_sync(cluster, "retried", 1), within_s=60, what="all to be in sync")
    assert [value for *_, value in stored(cluster, "retried", 1)] == [b"once"]
    assert len(set(logs(cluster, "retried", 0))) == 1


def test_what_was_sent_behind_a_refused_batch_does_not_overtake_it(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    """Scenario 36: a leader that did not know of its election refuses the first, and would take the second."""
    create(cluster, "overtaking", 1, min_insync_replicas="2")
    state = register(zookeeper, "overtaking")
    target = followers_of(cluster, state)[0]
    with Raw(cluster[target].address) as raw:
        producer = raw.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
    options = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    first = partial(produce, cluster, target, "overtaking", b"first", base_sequence=0, **options)
    second = partial(produce, cluster, target, "overtaking", b"second", base_sequence=1, **options)
    assert first() == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    lead(cluster, "overtaking", [target, *(number for number in cluster.brokers if number != target)])
    until(lambda: partitions_of(cluster, "overtaking", target)[0].leader_id == target, what="it to lead")
    assert second() == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1), "its turn has not come"
    assert first() == (0, 0)
    assert second() == (0, 1)


def lead(cluster: Cluster, topic: str, replicas: list[int], partition: int = 0) -> None:
    """Another order of the replicas, and the first of them leads."""
    row = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=partition, replicas=replicas)
    table = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[row])
    with Raw(cluster[1].address) as raw:
        assert raw.ask(AlterPartitionReassignmentsRequest(topics=[table]), 0).error_code == 0
        raw.ask(ElectLeadersRequest(election_type=0, topic_partitions=None), 2)


def test_what_only_the_dead_leader_had_is_cut_when_it_comes_back(cluster: Cluster, zookeeper: KazooClient) -> None:
    """R7, scenario 32, F2 F3: nothing below a high watermark is cut, and nobody ever reads what is."""
    create(cluster, "parted", 1, min_insync_replicas="2")
    writer = Writer(cluster, "parted", 1)
    writer.write(20)
    state = register(zookeeper, "parted")
    others = followers_of(cluster, state)
    for number in others:
        cluster[number].freeze()
    # The first may be the answer to a fetch that waits at the leader. Nobody asks for the second.
    assert produce(cluster, state.leader, "parted", b"perhaps there", acks=1) == (0, 20)
    assert produce(cluster, state.leader, "parted", b"only here", acks=1) == (0, 21)
    cluster[state.leader].kill9()
    for number in others:
        cluster[number].thaw()
    writer.write(20)
    assert {offset for _, offset, _ in writer.acknowledged} >= {21}, "another record has its place"
    cluster[state.leader].start()
    check(cluster, writer)
    assert b"only here" not in {value for *_, value in stored(cluster, "parted", 1)}


def test_a_new_leader_tells_no_end_before_all_it_has_is_committed(cluster: Cluster, zookeeper: KazooClient) -> None:
    """R12 R8, scenarios 34 and 44: its last record may be on it alone."""
    create(cluster, "prefix", 1, min_insync_replicas="2")
    writer = Writer(cluster, "prefix", 1)
    writer.write(10)
    state = register(zookeeper, "prefix")
    # The assignment decides who is next: the first of it that is in sync.
    next_leader, frozen = (number for number in partitions_of(cluster, "prefix", 1)[0].replica_nodes
                           if number != state.leader)  # fmt: skip
    cluster[frozen].freeze()
    assert produce(cluster, state.leader, "prefix", b"not committed", acks=1) == (0, 10)
    until(lambda: _ends_at(cluster, next_leader, "prefix", logs(cluster, "prefix", 0)), what="it to be copied")
    cluster[state.leader].kill9()

    def latest() -> tuple[int, int]:
        row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = ListOffsetsRequest.ListOffsetsTopic(name="prefix", partitions=[row])
        with Raw(cluster[next_leader].address) as raw:
            answer = raw.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 7).topics[0].partitions[0]
        return answer.error_code, answer.offset

    until(lambda: latest()[0] != ErrorCode.NOT_LEADER_OR_FOLLOWER, within_s=60, what="the next leader")
    assert latest() == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    cluster[frozen].thaw()
    until(lambda: latest() == (0, 11), within_s=60, what="it to be committed")
    cluster[state.leader].start()
    writer.acknowledged.append((0, 10, b"not committed"))
    check(cluster, writer)


def _ends_at(cluster: Cluster, number: int, topic: str, found: list[bytes]) -> bool:
    """Whether this broker's log is as long as the longest."""
    return len(found[list(cluster.brokers).index(number)]) == max(map(len, found))


def test_after_quick_elections_without_a_record_the_logs_are_one(cluster: Cluster, zookeeper: KazooClient) -> None:
    """R4 R5 R7, scenario 33: also the checkpoints of the leader epochs."""
    create(cluster, "elections", 1, min_insync_replicas="2")
    writer = Writer(cluster, "elections", 1)
    writer.write(10)
    first = register(zookeeper, "elections").leader_epoch
    for turn in range(9):
        lead(cluster, "elections", [1 + (turn + number) % 3 for number in range(3)])
        if turn in (3, 7):
            victim = register(zookeeper, "elections").leader
            if victim != 1:
                cluster[victim].kill9()
                cluster[victim].start()
        if turn % 4 == 2:
            writer.write(5)
    until(lambda: all_in_sync(cluster, "elections", 1), within_s=60, what="all to be in sync")
    assert register(zookeeper, "elections").leader_epoch >= first + 5
    writer.write(10)
    check(cluster, writer)

    def checkpoints() -> set[str]:
        name = "elections-0/leader-epoch-checkpoint"
        return {(broker.directory / name).read_text() for broker in cluster.brokers.values()}

    until(lambda: len(checkpoints()) == 1, within_s=30, what="the checkpoints of the leader epochs to be one")


def test_a_zookeeper_node_and_then_its_quorum_are_lost(cluster: Cluster) -> None:
    """Z6: with another node everything goes on; without a quorum records do, and decisions wait."""
    create(cluster, "quorum", min_insync_replicas="2")
    writer = Writer(cluster, "quorum")
    writer.write(30)
    nodes = cluster.zookeeper.nodes
    leading = next(node for node in nodes if node.mode() == "leader")
    leading.kill9()
    writer.write(30)
    cluster.zookeeper.wait()
    create(cluster, "with-two-nodes", 1)
    other = next(node for node in nodes if node is not leading)
    other.freeze()
    try:
        writer.write(300)
        assert len(stored(cluster, "quorum")) >= 360
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic("too-early", 1, 3)], operation_timeout=1, request_timeout=3)[
                "too-early"
            ].result(30)
    finally:
        other.thaw()
        leading.launch()
        cluster.zookeeper.wait()
    create(cluster, "with-three-nodes", 1)
    writer.write(30)
    check(cluster, writer)


def test_an_eligible_broker_leads_after_the_last_in_sync_lost_its_power(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    """E2 E4 E5 R3: nobody leads while neither is there; who left last below the needed number has all that counts."""
    create(cluster, "eligible", 1, min_insync_replicas="2")
    writer = Writer(cluster, "eligible", 1)
    writer.write(20)
    last = register(zookeeper, "eligible").leader
    first_gone, eligible = (number for number in cluster.brokers if number != last)
    for number in (first_gone, eligible):
        cluster[number].kill9()
        until(lambda n=number: n not in register(zookeeper, "eligible").isr, within_s=60, what="it to leave the set")
    state = register(zookeeper, "eligible")
    assert (state.isr, state.elr) == ((last,), (eligible,))
    cluster[last].kill9()
    # The first is back and has everything by chance, but nobody knows that.
    cluster[first_gone].start()
    until(lambda: register(zookeeper, "eligible").leader == -1, within_s=60, what="nobody to lead")
    assert partitions_of(cluster, "eligible", first_gone)[0].leader_id == -1
    ask = [sys.executable, "-m", "semel", "cluster", "status", "--bootstrap", cluster[first_gone].address]
    status = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False).stdout
    both = ", ".join(map(str, sorted((eligible, last))))
    # Topics of earlier tests may be in the same place: one partition has its records there, or several have theirs.
    assert f"all its records on each of brokers {both}, so start one of them" in status.replace("their", "its"), status
    (cluster[last].directory / ".semel_boot_id").write_text("another boot\n")
    cluster[last].start()
    until(lambda: last not in register(zookeeper, "eligible").isr, within_s=60, what="it to leave the set")
    assert register(zookeeper, "eligible").leader == -1
    cluster[eligible].start()
    until(lambda: register(zookeeper, "eligible").leader == eligible, within_s=60, what="the eligible one to lead")
    writer.write(20)
    check(cluster, writer)


def init_producer(cluster: Cluster, at: int, name: str) -> InitProducerIdResponse:
    def given() -> InitProducerIdResponse | None:
        with Raw(cluster[at].address) as raw:
            asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            answer: InitProducerIdResponse = raw.ask(asked, 4)
        return None if answer.error_code else answer

    return until(given, within_s=60, what=f"a producer id for {name}")


def test_a_decided_transaction_is_finished_by_the_next_coordinator(cluster: Cluster) -> None:
    """C2 C4: its markers cannot be written, its coordinator dies, and the next one knows what was decided."""
    create(cluster, "decided", 1, min_insync_replicas="2")
    name = "decides"
    coordinator = coordinator_of(cluster, TRANSACTION, name)
    leader = next(number for number in cluster.brokers if number != coordinator)
    lead(cluster, "decided", [leader, *(number for number in cluster.brokers if number != leader)])
    until(lambda: partitions_of(cluster, "decided", leader)[0].leader_id == leader, within_s=60, what="it to lead")
    producer = init_producer(cluster, coordinator, name)
    own = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    with Raw(cluster[coordinator].address) as raw:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="decided", partitions=[0])
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_topics=[topic],
            **{f"v3_and_below_{field}": value for field, value in own.items()},
        )
        added = raw.ask(add, 3).results_by_topic_v3_and_below[0].results_by_partition[0]
        assert added.partition_error_code == 0
        with Raw(cluster[leader].address) as there:
            data = batch(b"decided", base_sequence=0, transactional=True, **own)
            assert there.produce("decided", data, transactional_id=name, version=11).error_code == 0
        cluster[leader].freeze()
        raw.send(EndTxnRequest(transactional_id=name, committed=True, **own), 3)

        def state() -> str:
            with Raw(cluster[coordinator].address) as other:
                asked = DescribeTransactionsRequest(transactional_ids=[name])
                return str(other.ask(asked, 0).transaction_states[0].transaction_state)

        until(lambda: state() == "PrepareCommit", within_s=60, what="the decision")
    cluster[coordinator].kill9()
    cluster[leader].thaw()
    until(lambda: b"decided" in _committed(cluster, "decided"), within_s=90, what="it to be committed")
    cluster[coordinator].start()
    until(lambda: all_in_sync(cluster, "decided", 1), within_s=60, what="all to be in sync")
    until(lambda: len(set(logs(cluster, "decided", 0))) == 1, within_s=30, what="the replicas to be byte-identical")


def _committed(cluster: Cluster, topic: str) -> list[bytes | None]:
    """What a reader of committed records gets from whoever leads now; nothing while nobody does."""
    for broker in cluster.brokers.values():
        if broker.running.running():
            with Raw(broker.address) as raw:
                data = raw.fetch(topic, max_wait_ms=0, isolation_level=1)
                if data.error_code == 0:
                    return values_of(data)
    return []


def test_a_coordinator_that_loses_its_partition_and_gets_it_back_begins_clean(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    """C2 F5, scenario 29: transactions go on while their coordinator moves to and fro; each is there once."""
    create(cluster, "to-and-fro", 1, min_insync_replicas="2")
    name = "moved"
    coordinator_of(cluster, TRANSACTION, name)  # the internal topic is there
    producer = transactional(cluster, name)
    retried(producer.init_transactions, 60)
    committed = []
    for turn in range(8):
        producer.begin_transaction()
        value = f"{name}-{turn}"
        producer.produce("to-and-fro", value, partition=0)
        assert producer.flush(60) == 0
        first = 1 + turn % 3
        replicas = [first, *(number for number in cluster.brokers if number != first)]
        for partition in range(3):
            lead(cluster, "__transaction_state", replicas, partition)
        try:
            retried(producer.commit_transaction, 60)
            committed.append(value.encode())
        except KafkaException as refused:
            if not refused.args[0].txn_requires_abort():
                raise
            retried(producer.abort_transaction, 60)
    assert len(committed) >= 4
    until(lambda: _committed(cluster, "to-and-fro")[-1:] == committed[-1:], within_s=60, what="the last one")
    assert _committed(cluster, "to-and-fro") == committed

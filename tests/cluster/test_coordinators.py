"""Groups and transactions on three broker processes, and what becomes of them when their coordinator dies (C1-C6)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from semel.errors import ErrorCode
from semel.records.markers import read_marker
from semel.testing.history import Ended, Ending, Operation, Outcome, Poll, Seen, Send, judge
from semel.wire.messages.admin import ElectLeadersRequest
from semel.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest
from semel.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    WriteTxnMarkersRequest,
)
from tests.broker.raw import Raw, batch, stored_batches
from tests.support.cluster import Cluster, running_cluster
from tests.support.requirements import require_zookeeper
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.usefixtures("everybody_lives")]

GROUP, TRANSACTION = 0, 1
TOPICS = ("orders", "payments", "audit")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    require_zookeeper()
    with running_cluster(
        3,
        zookeeper=ZooKeeper(3),
        replica_lag_time_max_ms=8000,
        min_insync_replicas=2,
        offsets_topic_num_partitions=5,
        transaction_state_log_num_partitions=5,
        group_initial_rebalance_delay_ms=0,
    ) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        for created in admin.create_topics([NewTopic(topic, 3, 3) for topic in TOPICS]).values():
            created.result(30)
        yield running


# What a test asks of the cluster


def coordinator_of(cluster: Cluster, kind: int, key: str, *, at: int = 0, other_than: int = -1) -> int:
    """The broker that coordinates this group or transactional id, and not `other_than`."""

    def found() -> int:
        asked = at or next(number for number, each in cluster.brokers.items() if each.running.running())
        with Raw(cluster[asked].address) as raw:
            answer: FindCoordinatorResponse = raw.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)
        row = answer.coordinators[0]
        return 0 if row.error_code or row.node_id == other_than else row.node_id

    return until(found, within_s=60, what=f"a coordinator of {key}")


def led_from(cluster: Cluster, at: int, topic: str) -> dict[int, int]:
    """Who leads each partition, as one broker knows it."""
    with Raw(cluster[at].address) as raw:
        rows = [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = raw.ask(MetadataRequest(topics=rows, allow_auto_topic_creation=False), 9)
    return {row.partition_index: row.leader_id for topic in answer.topics for row in topic.partitions}


def leader_of(cluster: Cluster, topic: str, partition: int) -> int:
    at = next(number for number, each in cluster.brokers.items() if each.running.running())
    return until(
        lambda: max(led_from(cluster, at, topic).get(partition, -1), 0),
        within_s=60,
        what=f"a leader of {topic}-{partition}",
    )


def transactional(cluster: Cluster, transactional_id: str, **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            # Else it may wait for a connection that it has given up (librdkafka issue 5511).
            "metadata.recovery.strategy": "none",
            "linger.ms": 1,
            "retry.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            **settings,
        }
    )


def member(cluster: Cluster, group: str, *, enable_partition_eof: bool = False) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": enable_partition_eof,
            "isolation.level": "read_committed",
            "session.timeout.ms": 30_000,
            "metadata.recovery.strategy": "none",
            "heartbeat.interval.ms": 500,
            "retry.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )


def committed_records(cluster: Cluster, topics: tuple[str, ...], group: str) -> list[Seen]:
    """Every committed record of these topics, up to their ends: no transaction is left open."""
    reader = member(cluster, group, enable_partition_eof=True)
    found: list[Seen] = []
    try:
        places = [TopicPartition(topic, partition, 0) for topic in topics for partition in range(3)]
        left = {(each.topic, each.partition): reader.get_watermark_offsets(each, timeout=60)[1] for each in places}
        reader.assign(places)

        def at_the_end() -> bool:
            for message in reader.consume(1000, 0.1):
                place = message.topic() or "", message.partition() or 0
                error, offset = message.error(), message.offset() or 0
                if error is None:
                    found.append(Seen(*place, offset, (message.value() or b"").decode()))
                elif error.code() == KafkaError._PARTITION_EOF and offset >= left.get(place, 0):
                    left.pop(place, None)
            return not left

        until(at_the_end, within_s=90, what="a reader of committed records to get to the end")
        return found
    finally:
        reader.close()


def retried(step: Callable[..., Any], *arguments: Any) -> None:
    """Call a step of a transactional producer as its documentation says: again, as long as it may be."""
    deadline = time.monotonic() + 90
    while True:
        try:
            step(*arguments)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


class Ledger:
    """A transactional producer that writes to every topic, and its history."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.producer = transactional(cluster, name)
        retried(self.producer.init_transactions, 30)
        self.history: list[Operation] = []
        self._number = 0

    def write(self) -> int:
        """One transaction of nine records over three topics, not ended."""
        self._number += 1
        self.producer.begin_transaction()
        for topic in TOPICS:
            for partition in range(3):
                value = f"{self.name}/{self._number}/{topic}-{partition}"
                self.producer.produce(topic, value, partition=partition)
                self.history.append(Send(self.name, topic, partition, value, transaction=(self.name, self._number)))
        assert self.producer.flush(60) == 0
        return self._number

    def end(self) -> Outcome:
        transaction = (self.name, self._number)
        self.history.append(Ending(self.name, transaction))
        outcome = Outcome.OK
        try:
            retried(self.producer.commit_transaction, 30)
        except KafkaException as refused:
            if not refused.args[0].txn_requires_abort():
                raise
            retried(self.producer.abort_transaction, 30)
            outcome = Outcome.FAILED
        self.history.append(Ended(self.name, transaction, outcome))
        return outcome


def judged(cluster: Cluster, group: str, *ledgers: Ledger) -> list[Seen]:
    """What these ledgers wrote, as a reader of committed records finds it: nothing lost, nothing twice."""
    names = tuple(f"{ledger.name}/" for ledger in ledgers)
    seen = [one for one in committed_records(cluster, TOPICS, group) if str(one.value).startswith(names)]
    history = [operation for ledger in ledgers for operation in ledger.history]
    assert judge([*history, Poll(group, tuple(seen))], at_rest=True) == []
    return seen


# The tests


def test_every_broker_names_the_same_coordinators(cluster: Cluster) -> None:
    """C6: the leaders of the internal topics' partitions, and the partitions are spread."""
    for kind, keys in ((GROUP, "g"), (TRANSACTION, "t")):
        named = [
            tuple(coordinator_of(cluster, kind, f"{keys}-{number}", at=at) for number in range(20))
            for at in cluster.brokers
        ]
        assert named[0] == named[1] == named[2]
        assert set(named[0]) == set(cluster.brokers), "every broker coordinates some"


def test_offsets_and_records_are_committed_together(cluster: Cluster) -> None:
    """C3 C4 C5: a copier reads a topic and writes another, offsets in the transaction; every record arrives once.

    Nobody is killed here: librdkafka may then wait in `send_offsets_to_transaction` for ever (its issue 5511).
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for created in admin.create_topics([NewTopic("source", 3, 3), NewTopic("target", 3, 3)]).values():
        created.result(30)
    plain = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for number in range(60):
        plain.produce("source", str(number), partition=number % 3)
    assert plain.flush(60) == 0
    source = member(cluster, "copiers")
    source.subscribe(["source"])
    copier = transactional(cluster, "copier")
    retried(copier.init_transactions, 30)
    copied, rounds = 0, 0
    deadline = time.monotonic() + 150
    while copied < 60:
        assert time.monotonic() < deadline, f"copied {copied}"
        messages = [each for each in source.consume(10, 0.2) if each.error() is None]
        if not messages:
            continue
        copier.begin_transaction()
        for message in messages:
            copier.produce("target", message.value() or b"", partition=message.partition() or 0)
        positions = source.position(source.assignment())
        retried(copier.send_offsets_to_transaction, positions, source.consumer_group_metadata(), 30)
        rounds += 1
        if rounds == 2:
            # Once the group has to begin again where the transaction before has ended.
            retried(copier.abort_transaction, 30)
            for place in source.committed(source.assignment(), 30):
                source.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
        else:
            retried(copier.commit_transaction, 30)
            copied += len(messages)
    source.close()
    found = committed_records(cluster, ("target",), "after-copying")
    assert sorted(int(str(one.value)) for one in found) == list(range(60))


def test_a_coordinator_that_was_frozen_cannot_commit_when_it_wakes(cluster: Cluster) -> None:
    """C1 R2: its record is in its own log only, so the client is not told that it committed."""
    partition = 0
    # One whose data the frozen broker does not lead.
    name = next(
        each
        for each in (f"frozen-{number}" for number in range(50))
        if coordinator_of(cluster, TRANSACTION, each) != leader_of(cluster, "orders", partition)
    )
    old = coordinator_of(cluster, TRANSACTION, name)

    def init(at: int) -> InitProducerIdResponse:
        def given() -> InitProducerIdResponse | None:
            with Raw(cluster[at].address) as raw:
                asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
                answer: InitProducerIdResponse = raw.ask(asked, 5)
            # The new leader may hear of its election a moment later than the others.
            moving = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            assert answer.error_code in (0, ErrorCode.CONCURRENT_TRANSACTIONS, *moving)
            return None if answer.error_code else answer

        return until(given, within_s=60, what="a producer id")

    producer = init(old)
    with Raw(cluster[old].address) as raw:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="orders", partitions=[partition])
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[topic],
        )
        added: AddPartitionsToTxnResponse = raw.ask(add, 3)
        assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
        with Raw(cluster[leader_of(cluster, "orders", partition)].address) as leader:
            data = batch(
                b"never committed",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
            written = leader.produce("orders", data, partition=partition, transactional_id=name, version=11)
            assert written.error_code == 0, ErrorCode(written.error_code)
        cluster[old].freeze()
        # It is in the socket of the frozen broker, which reads it before it hears of anything else.
        ending = raw.send(
            EndTxnRequest(
                transactional_id=name,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=True,
            ),
            3,
        )
        asked = next(number for number in cluster.brokers if number != old)
        new = coordinator_of(cluster, TRANSACTION, name, at=asked, other_than=old)
        successor = init(new)
        assert successor.producer_epoch > producer.producer_epoch
        cluster[old].thaw()
        raw.socket.settimeout(60)
        answer = raw.receive(ending)
        assert answer.error_code in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ), ErrorCode(answer.error_code)
    # A client that asks it who leads while it is not registered again remembers that nobody does.
    until(
        lambda: all(led_from(cluster, at, "orders") == led_from(cluster, new, "orders") for at in cluster.brokers),
        within_s=60,
        what="every broker to know who leads",
    )
    values = [one.value for one in committed_records(cluster, ("orders",), "after-freezing")]
    assert "never committed" not in values

    # It has forgotten what it had decided.
    def forgotten() -> bool:
        with Raw(cluster[old].address) as raw:
            asked = DescribeTransactionsRequest(transactional_ids=[name])
            return bool(raw.ask(asked, 0).transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR)

    until(forgotten, within_s=30, what="the old coordinator to know that it is none")

    # And its markers are refused: the partition has seen the epoch of the one that aborted.
    leader_id = leader_of(cluster, "orders", partition)
    with Raw(cluster[leader_id].address, client_id=f"semel-broker-{old}") as raw:
        row = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=successor.producer_epoch,
            transaction_result=True,
            coordinator_epoch=0,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="orders", partition_indexes=[partition])],
        )
        refused = raw.ask(WriteTxnMarkersRequest(markers=[row]), 1).markers[0].topics[0].partitions[0]
        assert refused.error_code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        stored = stored_batches(raw.fetch("orders", partition=partition, max_wait_ms=0, max_bytes=10_000_000))
    markers = [read_marker(one) for one in stored if one.is_control and one.producer_id == producer.producer_id]
    assert [one.commit for one in markers] == [False]


def test_an_administrators_abort_does_not_tear_a_transaction_that_another_broker_coordinates(cluster: Cluster) -> None:
    """The leader of a partition does not know the transaction itself, and asks the coordinators first."""
    ledger = Ledger(cluster, "not-torn")
    ledger.write()
    coordinator = coordinator_of(cluster, 1, "not-torn")
    with Raw(cluster[coordinator].address) as raw:
        asked = DescribeTransactionsRequest(transactional_ids=["not-torn"])
        transaction = raw.ask(asked, 0).transaction_states[0]
    elsewhere = [index for index in range(3) if leader_of(cluster, "orders", index) != coordinator]
    assert elsewhere, "three partitions have three leaders"

    def abort(producer_id: int, index: int) -> ErrorCode:
        row = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            coordinator_epoch=0,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="orders", partition_indexes=[index])],
        )
        with Raw(cluster[leader_of(cluster, "orders", index)].address, client_id="administrator") as raw:
            answer = raw.ask(WriteTxnMarkersRequest(markers=[row]), 1)
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

    assert {abort(transaction.producer_id, index) for index in elsewhere} == {ErrorCode.INVALID_TXN_STATE}
    # A producer that no coordinator knows is a hanging one: that is what the request is for.
    assert abort(transaction.producer_id + 900_000, elsewhere[0]) is ErrorCode.NONE
    assert ledger.end() is Outcome.OK
    assert len(judged(cluster, "not-torn-reader", ledger)) == 9


def test_a_transaction_is_committed_though_its_coordinator_is_killed_before(cluster: Cluster) -> None:
    """C1 C2 C4: an open transaction goes on under the next coordinator, which has loaded it."""
    ledger = Ledger(cluster, "goes-on")
    committed = 0
    for round_number in range(4):
        ledger.write()
        killed = 0
        if round_number in (1, 2):
            killed = coordinator_of(cluster, TRANSACTION, "goes-on")
            cluster[killed].kill9()
        committed += ledger.end() is Outcome.OK
        if killed:
            cluster[killed].start()
    assert committed >= 2, "those without a kill are committed in any case"
    assert len(judged(cluster, "after-goes-on", ledger)) == 9 * committed


def test_markers_reach_partitions_whose_leader_is_elsewhere_or_moves(cluster: Cluster) -> None:
    """C4: the markers of one transaction go to three brokers, and to the next leader where one is gone."""
    ledger = Ledger(cluster, "markers")

    def led_elsewhere() -> set[int]:
        """Who leads some partition and is not the coordinator. After earlier kills one broker may lead all."""
        with Raw(cluster[1].address) as raw:
            raw.ask(ElectLeadersRequest(election_type=0, topic_partitions=None), 2)
        leaders = {leader_of(cluster, topic, partition) for topic in TOPICS for partition in range(3)}
        return leaders - {coordinator_of(cluster, TRANSACTION, "markers")}

    victim = min(until(led_elsewhere, within_s=60, what="partitions that others than the coordinator lead"))
    ledger.write()
    cluster[victim].kill9()
    assert ledger.end() is Outcome.OK
    ledger.write()
    assert ledger.end() is Outcome.OK
    cluster[victim].start()
    assert len(judged(cluster, "after-markers", ledger)) == 18


def test_a_zombie_is_fenced_after_the_coordinator_has_moved(cluster: Cluster) -> None:
    """C2: the next coordinator knows the epoch that the one before has given."""
    zombie = Ledger(cluster, "twice")
    zombie.write()
    killed = coordinator_of(cluster, TRANSACTION, "twice")
    cluster[killed].kill9()
    successor = Ledger(cluster, "twice")
    successor._number = 100
    successor.write()
    assert successor.end() is Outcome.OK
    with pytest.raises(KafkaException) as refused:
        zombie.end()
    assert refused.value.args[0].fatal(), "it is fenced"
    cluster[killed].start()
    zombie.history = [each for each in zombie.history if not isinstance(each, Ending)]
    zombie.history.append(Ended("twice", ("twice", 1), Outcome.FAILED))
    assert len(judged(cluster, "after-twice", zombie, successor)) == 9


def test_a_group_goes_on_after_its_coordinator_is_killed(cluster: Cluster) -> None:
    """C1 C2: what it has committed is known to the next coordinator."""
    plain = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic("read-by-group", 3, 3)])["read-by-group"].result(30)

    def produce(start: int) -> None:
        for number in range(start, start + 30):
            plain.produce("read-by-group", str(number), partition=number % 3)
        assert plain.flush(60) == 0

    def read(consumer: Consumer, count: int) -> list[int]:
        found: list[int] = []
        deadline = time.monotonic() + 90
        while len(found) < count:
            assert time.monotonic() < deadline, f"read {len(found)} of {count}"
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(int(message.value() or b""))
        retried(consumer.commit, None, None, False)
        return found

    produce(0)
    consumer = member(cluster, "readers")
    consumer.subscribe(["read-by-group"])
    assert sorted(read(consumer, 30)) == list(range(30))
    killed = coordinator_of(cluster, GROUP, "readers")
    cluster[killed].kill9()
    produce(30)
    assert sorted(read(consumer, 30)) == list(range(30, 60)), "nothing is read again, nothing is left out"
    consumer.close()
    cluster[killed].start()
    produce(60)
    another = member(cluster, "readers")
    another.subscribe(["read-by-group"])
    assert sorted(read(another, 30)) == list(range(60, 90)), "the next member begins where the last one committed"
    another.close()


def test_offsets_are_sent_to_a_transaction_after_the_groups_coordinator_was_killed(cluster: Cluster) -> None:
    """librdkafka issue 5511: it waits for ever for a coordinator that was missing in Metadata once. The same story on
    Apache Kafka hangs."""
    name, group = "sends-offsets", "its-coordinator-dies"
    producer = transactional(cluster, name)
    retried(producer.init_transactions, 30)
    reader = member(cluster, group)
    reader.subscribe(["orders"])
    until(lambda: reader.poll(0.1) is None and reader.assignment(), within_s=60, what="an assignment", every_s=0)

    def one_transaction() -> None:
        producer.begin_transaction()
        place = [TopicPartition("orders", 0, 1)]
        retried(producer.send_offsets_to_transaction, place, reader.consumer_group_metadata(), 30)
        retried(producer.commit_transaction, 30)

    one_transaction()
    killed = coordinator_of(cluster, GROUP, group)
    cluster[killed].kill9()
    coordinator_of(cluster, GROUP, group, other_than=killed)
    for _ in range(3):
        producer.list_topics(timeout=30)  # the client learns who is there
    # It cannot be interrupted where it hangs, so it is left behind then.
    again = threading.Thread(target=one_transaction, daemon=True)
    again.start()
    again.join(60)
    assert not again.is_alive(), "it hangs"
    reader.close()
    cluster[killed].start()


def test_protocol_v2_adds_partitions_and_offsets_at_a_coordinator_elsewhere(cluster: Cluster) -> None:
    """C3: Produce 12 and TxnOffsetCommit 5 add by themselves, and the leaders ask the coordinator."""
    name, group = "implicitly", "implicit-group"
    history: list[Operation] = []
    with semel.Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name}) as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            for topic in TOPICS:
                for partition in range(3):
                    value = f"{name}/{number}/{topic}-{partition}"
                    producer.send(topic, value, partition=partition)
                    history.append(Send(name, topic, partition, value, transaction=number))
            place = semel.TopicPartition("orders", 0)
            producer.send_offsets_to_transaction({place: number + 1}, group)
            producer.flush()
            killed = 0
            if number in (1, 2):
                kind, key = ((TRANSACTION, name), (GROUP, group))[number - 1]
                killed = coordinator_of(cluster, kind, key)
                cluster[killed].kill9()
            producer.commit_transaction()
            history.append(Ended(name, number, Outcome.OK))
            if killed:
                cluster[killed].start()
    seen = [one for one in committed_records(cluster, TOPICS, "after-v2") if str(one.value).startswith(f"{name}/")]
    assert judge([*history, Poll("after-v2", tuple(seen))], at_rest=True) == []
    assert len(seen) == 36
    reader = member(cluster, group)
    (committed,) = reader.committed([TopicPartition("orders", 0)], 60)
    reader.close()
    assert committed.offset == 4

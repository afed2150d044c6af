"""Metrics as Prometheus sees them: over the real port, and moving when what they count does."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.embedded import Broker
from semel.broker.observability.metrics import _Page, _replication, render
from semel.broker.replication.counts import ReplicaCounts
from semel.errors import ErrorCode
from semel.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from semel.wire.messages.groups import JoinGroupRequest
from semel.wire.messages.offsets import OffsetCommitRequest
from semel.wire.messages.transactions import EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest
from tests.broker.raw import Raw, batch, fetch_request
from tests.support.requirements import CHECKOUT
from tests.support.waiting import until

TRANSACTIONS = "kafka_server_transaction_coordinator_metrics_"
GROUPS = "kafka_server_group_coordinator_metrics_"
GROUP_MANAGER = "kafka_coordinator_group_groupmetadatamanager_"
SOCKETS = "kafka_server_socket_server_metrics_"
TOTAL_TIME = "kafka_network_requestmetrics_totaltimems"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, settings={"semel.metrics.port": 0, "group.initial.rebalance.delay.ms": 0}) as running:
        yield running


def scrape(broker: Broker) -> dict[str, float]:
    address = f"http://127.0.0.1:{broker.server.listening.metrics_port}/metrics"
    with urllib.request.urlopen(address, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_every_family_is_one_prometheus_can_read(broker: Broker, raw: Raw) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    raw.create("t")
    raw.ask(InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=60_000))
    address = f"http://127.0.0.1:{broker.server.listening.metrics_port}/metrics"
    with urllib.request.urlopen(address, timeout=10) as answer:
        families = {family.name: family for family in parser.text_string_to_metric_families(answer.read().decode())}
    assert families[TOTAL_TIME].type == "histogram"
    assert all(family.documentation for family in families.values())


def test_transactions_are_counted_by_state_and_the_oldest_open_one_has_an_age(broker: Broker, raw: Raw) -> None:
    raw.create("t")
    before = scrape(broker)
    assert before[TRANSACTIONS + "open_transaction_count"] == 0
    assert before[TRANSACTIONS + "oldest_open_transaction_age_ms"] == 0
    assert "transactions" not in broker.server.__dict__, "a scrape does not make a coordinator"
    made = raw.ask(InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=60_000))
    assert scrape(broker)[TRANSACTIONS + 'transactional_id_count{state="Empty"}'] == 1
    identity = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    records = batch(b"a", transactional=True, base_sequence=0, **identity)
    raw.produce("t", records, transactional_id="payments")
    opened = scrape(broker)
    assert opened[TRANSACTIONS + 'transactional_id_count{state="Ongoing"}'] == 1
    assert opened[TRANSACTIONS + "open_transaction_count"] == 1
    assert opened["kafka_server_replicamanager_produceridcount"] == 1
    until(
        lambda: (
            scrape(broker)[TRANSACTIONS + "oldest_open_transaction_age_ms"]
            > opened[TRANSACTIONS + "oldest_open_transaction_age_ms"]
        ),
        what="the open transaction to grow older",
    )
    ended = raw.ask(EndTxnRequest(transactional_id="payments", committed=True, **identity))
    assert ended.error_code == ErrorCode.NONE
    until(
        lambda: scrape(broker)[TRANSACTIONS + 'transactional_id_count{state="CompleteCommit"}'] == 1,
        what="the transaction to be complete",
    )
    assert scrape(broker)[TRANSACTIONS + "open_transaction_count"] == 0


def commit(group_id: str, topic: str, partition: int) -> OffsetCommitRequest:
    place = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=partition, committed_offset=1)
    return OffsetCommitRequest(
        group_id=group_id, topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[place])]
    )


def test_groups_are_counted_by_protocol_and_state_and_so_are_their_offsets(broker: Broker, raw: Raw) -> None:
    raw.create("t", 2)
    assert scrape(broker)[GROUPS + 'group_count{protocol="classic"}'] == 0
    for group_id, partition in (("a", 0), ("a", 1), ("b", 0)):
        raw.ask(commit(group_id, "t", partition), 8)
    found = scrape(broker)
    assert found[GROUP_MANAGER + "numoffsets"] == 3
    assert found[GROUP_MANAGER + "numgroups"] == found[GROUP_MANAGER + "numgroupsempty"] == 2
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id="joined",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    assert raw.ask(join, 3).error_code == ErrorCode.NONE
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id="modern", member_id="m", rebalance_timeout_ms=10_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert raw.ask(heartbeat).error_code == ErrorCode.NONE
    found = scrape(broker)
    assert found[GROUP_MANAGER + "numgroupscompletingrebalance"] == 1
    assert found[GROUPS + 'group_count{protocol="classic"}'] == 3
    assert found[GROUPS + 'group_count{protocol="consumer"}'] == 1
    assert sum(found[f'{GROUPS}consumer_group_count{{state="{state}"}}'] for state in ("stable", "reconciling")) == 1


def test_offsets_of_an_open_transaction_are_pending_until_it_ends(broker: Broker, raw: Raw) -> None:
    raw.create("t")
    made = raw.ask(InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=60_000))
    identity = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    place = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="t", partitions=[place])
    answer = raw.ask(TxnOffsetCommitRequest(transactional_id="payments", group_id="g", topics=[topic], **identity))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    found = scrape(broker)
    assert found["semel_pending_offsets"] == 1 and found[GROUP_MANAGER + "numoffsets"] == 0
    raw.ask(EndTxnRequest(transactional_id="payments", committed=True, **identity))
    until(lambda: scrape(broker)[GROUP_MANAGER + "numoffsets"] == 1, what="the offset to count")
    assert scrape(broker)["semel_pending_offsets"] == 0


def test_requests_are_counted_and_timed_by_api_with_their_waiting(broker: Broker, raw: Raw) -> None:
    raw.create("t")
    raw.produce("t", batch(b"a"))
    raw.produce("t", batch(b"b"))
    began = time.perf_counter()
    raw.fetch("t", 2, max_wait_ms=60)
    waited_ms = (time.perf_counter() - began) * 1000
    found = scrape(broker)
    assert found['kafka_network_requestmetrics_requests_total{request="Produce"}'] == 2
    assert found[TOTAL_TIME + '_count{request="Produce"}'] == 2
    assert 0 < found[TOTAL_TIME + '_sum{request="Produce"}'] <= 2 * found[TOTAL_TIME + '_max{request="Produce"}']
    assert found[TOTAL_TIME + '_bucket{request="Produce",le="+Inf"}'] == 2
    assert 55 <= found[TOTAL_TIME + '_sum{request="Fetch"}'] <= waited_ms
    assert found[TOTAL_TIME + '_bucket{request="Fetch",le="50.0"}'] == 0


def test_without_a_metrics_port_nobody_looks_at_the_clock(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        assert broker.server.meter is None


def test_connections_are_counted_when_they_come_and_when_they_go(broker: Broker, raw: Raw) -> None:
    with Raw(broker) as other:
        other.create("t")
        assert scrape(broker)[SOCKETS + "connection_count"] == 2
    until(lambda: scrape(broker)[SOCKETS + "connection_count"] == 1, what="the connection to be gone")
    found = scrape(broker)
    assert found[SOCKETS + "connection_creation_total"] == 2
    assert found[SOCKETS + "connection_close_total"] == 1
    with Raw(broker) as silent:
        until(lambda: scrape(broker)[SOCKETS + "connection_count"] == 2, what="the silent one to be let in")
        for _ in range(2):
            broker.server.loop.call_soon_threadsafe(broker.server.connections.close_idle)
        assert silent.is_closed()
    assert scrape(broker)["kafka_network_socketserver_expiredconnectionskilledcount"] >= 1


def test_a_connection_that_waits_for_memory_or_leaves_its_answers_is_throttled(tmp_path: Path) -> None:
    settings = {"semel.metrics.port": 0, "queued.max.request.bytes": 1_000_000}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as setter, Raw(broker) as first:
        setter.create("t")
        assert scrape(broker)["semel_throttles_total"] == 0
        # A part of a frame that takes more than there is: whoever comes next has to wait for it.
        started = (2_000_000).to_bytes(4, "big") + bytes(1_500_000)
        first.socket.sendall(started)
        until(lambda: scrape(broker)["kafka_network_memorypool_memorypoolused"] > 1_000_000, what="memory to be taken")
        with Raw(broker) as second:
            second.socket.sendall(started)
            until(lambda: scrape(broker)['semel_throttled_connections{by="memory"}'] == 1, what="one to wait")
            assert scrape(broker)["semel_throttles_total"] >= 1
        first.socket.close()
        until(lambda: scrape(broker)["kafka_network_memorypool_memorypoolused"] == 0, what="memory to come back")
        value = bytes(500_000)
        setter.produce("t", batch(value))
        with Raw(broker) as deaf:
            for _ in range(40):
                deaf.send(fetch_request({("t", 0): 0}), 12)
            until(lambda: scrape(broker)['semel_throttled_connections{by="reader"}'] == 1, what="answers left unread")


def test_the_page_names_every_metric_and_no_other(broker: Broker) -> None:
    page = (CHECKOUT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`((?:kafka|semel)_\w+)", page))
    in_a_cluster = _Page()
    _replication(in_a_cluster, cast(Any, SimpleNamespace(isr_shrinks=0, isr_expands=0)), ReplicaCounts())
    whole = "\n".join((render(broker.server), *in_a_cluster.lines))
    rendered = set(re.findall(r"^# TYPE (\S+)", whole, re.MULTILINE))
    assert named == rendered

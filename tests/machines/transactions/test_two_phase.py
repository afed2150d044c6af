"""Two-phase commit (KIP-939) through a real broker: prepared, killed, taken over, ended; and off unless enabled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Controller, Coordinator, Leader
from semel.errors import ErrorCode, UnsupportedVersion
from semel.machines.values import ProducerIdentity
from semel.records.batch import Record, read_records, split
from semel.records.building import build
from semel.wire.messages.admin import CreateTopicsRequest
from semel.wire.messages.fetch import FetchRequest
from semel.wire.messages.produce import ProduceRequest
from semel.wire.messages.transactions import EndTxnRequest, InitProducerIdRequest

ENABLED = {"transaction.two.phase.commit.enable": True}
COORDINATOR = Coordinator("transaction", "outside")


def init(cluster: BlockingCluster, *, keep: bool = False) -> Any:
    request = InitProducerIdRequest(
        transactional_id="outside", transaction_timeout_ms=1, enable2_pc=True, keep_prepared_txn=keep
    )
    return cluster.request_retrying(request, to=COORDINATOR, version=6)


def produce(cluster: BlockingCluster, producer: ProducerIdentity, value: bytes, sequence: int = 0) -> ErrorCode:
    records = build(
        [Record(0, 0, None, value, ())],
        timestamp_ms=1_700_000_000_000,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
    row = ProduceRequest.PartitionProduceData(index=0, records=records)
    request = ProduceRequest(
        transactional_id="outside",
        acks=-1,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name="ledger", partition_data=[row])],
    )
    answer = cluster.request_retrying(request, to=Leader("ledger", 0), newest=12)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def end(cluster: BlockingCluster, producer: ProducerIdentity, commit: bool) -> Any:
    request = EndTxnRequest(
        transactional_id="outside",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=commit,
    )
    return cluster.request_retrying(request, to=COORDINATOR)


def committed(cluster: BlockingCluster) -> list[bytes | None]:
    """What a reader of committed data sees."""
    row = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=1,
        topics=[FetchRequest.FetchTopic(topic="ledger", partitions=[row])],
    )
    answer = cluster.request_retrying(request, to=Leader("ledger", 0), newest=12).responses[0].partitions[0]
    aborted = {each.producer_id for each in answer.aborted_transactions or ()}
    return [
        record.value
        for batch in split(answer.records or b"")
        if not batch.is_control and batch.producer_id not in aborted
        for record in read_records(batch)
    ]


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_outlives_the_broker_and_its_producer(tmp_path: Path, commit: bool) -> None:
    with (
        Broker(tmp_path / "data", settings=ENABLED) as broker,
        BlockingCluster({"bootstrap.servers": broker.bootstrap_servers}) as cluster,
    ):
        topic = CreateTopicsRequest.CreatableTopic(name="ledger", num_partitions=1, replication_factor=1)
        cluster.request(Controller(), CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        first = init(cluster)
        writer = ProducerIdentity(first.producer_id, first.producer_epoch)
        assert produce(cluster, writer, b"paid") is ErrorCode.NONE
        assert committed(cluster) == []

    with (
        Broker(tmp_path / "data", settings=ENABLED) as broker,
        BlockingCluster({"bootstrap.servers": broker.bootstrap_servers}) as cluster,
    ):
        reply = init(cluster, keep=True)
        assert (reply.error_code, reply.ongoing_txn_producer_id) == (ErrorCode.NONE, writer.producer_id)
        assert reply.ongoing_txn_producer_epoch == writer.producer_epoch
        assert end(cluster, writer, not commit).error_code == ErrorCode.PRODUCER_FENCED
        successor = ProducerIdentity(reply.producer_id, reply.producer_epoch)
        ended = end(cluster, successor, commit)
        assert ended.error_code == ErrorCode.NONE
        assert committed(cluster) == ([b"paid"] if commit else [])
        following = ProducerIdentity(ended.producer_id, ended.producer_epoch)
        assert produce(cluster, writer, b"zombie", 1) is not ErrorCode.NONE
        assert produce(cluster, following, b"next") is ErrorCode.NONE


def test_two_phase_commit_is_not_offered_unless_enabled(tmp_path: Path) -> None:
    with (
        Broker(tmp_path / "data") as broker,
        BlockingCluster({"bootstrap.servers": broker.bootstrap_servers}) as cluster,
        pytest.raises(UnsupportedVersion),
    ):
        init(cluster)

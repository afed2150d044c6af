"""Settings that change what the broker does: each is seen to, through the door a client uses."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from semel.broker.embedded import Broker
from semel.config import ConfigError
from semel.errors import ErrorCode
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from semel.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from semel.wire.messages.transactions import EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest
from tests.broker.raw import Raw, stored_batches
from tests.support.waiting import until

HEARTBEAT = ConsumerGroupHeartbeatRequest(
    group_id="g", member_id="m", rebalance_timeout_ms=10_000, subscribed_topic_names=["t"], topic_partitions=[]
)


def buffers_of_a_connection(broker: Broker) -> tuple[int, int]:
    async def look() -> tuple[int, int]:
        (connection,) = broker.server.connections._open
        accepted: socket.socket = connection.transport.get_extra_info("socket")
        with socket.socket(fileno=socket.dup(accepted.fileno())) as same:
            sizes = [same.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
        return sizes[0], sizes[1]

    return asyncio.run_coroutine_threadsafe(look(), broker.server.loop).result(10)


def test_connections_have_the_buffers_that_were_asked_for(tmp_path: Path) -> None:
    def sizes(name: str, **settings: object) -> tuple[int, int]:
        with Broker(tmp_path / name, settings=settings) as broker, Raw(broker) as raw:
            raw.create("t")
            return buffers_of_a_connection(broker)

    asked = {"socket.send.buffer.bytes": 50_000, "socket.receive.buffer.bytes": 70_000}
    # Linux gives twice what it is asked for, the second half for its own bookkeeping.
    assert sizes("asked", **asked) in ((50_000, 70_000), (100_000, 140_000))
    left_alone = sizes("left-alone")
    assert left_alone[0] > 140_000, "the system's own are larger"


def commit(raw: Raw, offset: int) -> None:
    place = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[place])
    answer = raw.ask(OffsetCommitRequest(group_id="g", topics=[topic]), 8)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def committed(raw: Raw) -> int:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    offset: int = raw.ask(OffsetFetchRequest(group_id="g", topics=[topic]), 7).topics[0].partitions[0].committed_offset
    return offset


@pytest.mark.parametrize("codec", range(5))
def test_offsets_are_stored_under_the_codec_that_was_asked_for(tmp_path: Path, codec: int) -> None:
    settings = {"offsets.topic.compression.codec": codec, "offsets.topic.num.partitions": 1}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        raw.create("t")
        commit(raw, 5)
        made = raw.ask(InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=60_000))
        identity = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
        place = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=6)
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="t", partitions=[place])
        raw.ask(TxnOffsetCommitRequest(transactional_id="payments", group_id="g", topics=[topic], **identity))
        raw.ask(EndTxnRequest(transactional_id="payments", committed=True, **identity))
        until(lambda: committed(raw) == 6, what="the transaction's offset to count")
        written = [found for found in stored_batches(raw.fetch("__consumer_offsets")) if not found.is_control]
        assert {found.codec for found in written} == {codec}
        assert [found.is_transactional for found in written] == [False, True]
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        assert committed(raw) == 6


def test_the_consumer_protocol_is_refused_where_it_is_left_out(tmp_path: Path) -> None:
    settings = {"group.coordinator.rebalance.protocols": "classic"}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        raw.create("t")
        assert raw.ask(HEARTBEAT).error_code == ErrorCode.UNSUPPORTED_VERSION
        described = raw.ask(ConsumerGroupDescribeRequest(group_ids=["g", "h"])).groups
        assert [(group.group_id, group.error_code) for group in described] == [
            ("g", ErrorCode.UNSUPPORTED_VERSION),
            ("h", ErrorCode.UNSUPPORTED_VERSION),
        ]
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert raw.ask(HEARTBEAT).error_code == ErrorCode.NONE


def test_the_classic_protocol_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="classic"):
        Broker(tmp_path, settings={"group.coordinator.rebalance.protocols": "consumer"}).start()

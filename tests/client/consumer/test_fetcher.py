"""Answers to fetches, taken in and handed out: what cannot be read is said, and nothing around it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.cluster.metadata import Metadata, Node, PartitionMetadata, TopicMetadata
from semel.client.cluster.wait_warnings import WaitWarnings
from semel.client.consumer.fetcher import ConsumerRecord, Fetcher
from semel.config import CONSUMER
from semel.errors import ErrorCode, KafkaError
from semel.machines.reading.fetch_positions import FetchPositions
from semel.machines.values import TopicPartition
from semel.records.batch import HEADER_SIZE, build, place
from semel.records.layout import checksum
from semel.wire.messages.fetch import FetchRequest, FetchResponse

P0 = TopicPartition("ledger", 0)


class OneLeader:
    """A cluster of one broker that answers fetches as a test says."""

    def __init__(self, answer: Callable[[int], FetchResponse.PartitionData]) -> None:
        self.metadata = Metadata(nodes={1: Node(1, "leader", 9092)})
        topic = TopicMetadata("ledger", SimpleNamespace(int=7), False, (PartitionMetadata("ledger", 0, 1, 0),))  # type: ignore[arg-type]
        self.metadata.topics["ledger"], self.metadata.fetched_at["ledger"] = topic, 0.0
        self.metadata.nodes[2] = Node(2, "follower", 9092)
        self._answer = answer
        self.asked: list[int] = []
        self.wait_warnings = WaitWarnings("a test")

    async def request(self, to: int, request: FetchRequest, **_: object) -> FetchResponse:
        self.asked.append(to)
        row = self._answer(request.topics[0].partitions[0].fetch_offset)
        return FetchResponse(
            responses=[FetchResponse.FetchableTopicResponse(topic="ledger", partitions=[row])],
        )

    def backoff(self, tries: int) -> float:
        return 0.0

    def throttled_s(self, node_id: int, lane: str) -> float:
        return 0.0

    def forget_topic(self, topic: str) -> None:
        raise AssertionError("nobody doubts the leader here")


def batch(offset: int, *values: bytes, broken: bool = False) -> bytes:
    """One stored batch; a broken one passes its checksum, and what it holds is not what it says."""
    data = bytearray(build([(None, value) for value in values], timestamp_ms=0, codec=1 if broken else 0))
    place(data, offset, 0)
    if broken:
        data[HEADER_SIZE:] = b"\x00" * (len(data) - HEADER_SIZE)
        data[17:21] = checksum(data).to_bytes(4, "big")
    return bytes(data)


def fetcher(
    answer: Callable[[int], FetchResponse.PartitionData], cluster: Any = None
) -> tuple[Fetcher, FetchPositions]:
    positions = FetchPositions("earliest")
    positions.assign([P0], with_group=True)
    positions.on_committed(P0, 0)
    cluster = cluster or OneLeader(answer)
    return Fetcher(cluster, positions, CONSUMER.parse({"bootstrap.servers": "leader:9092"})), positions


async def fetched(fetcher: Fetcher) -> None:
    """One round of fetches."""
    fetcher.arrived.clear()
    fetcher.ask()
    await asyncio.wait_for(fetcher.arrived.wait(), 10)
    await asyncio.sleep(0)


def values(records: list[ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.parametrize("columns", [False, True])
def test_a_batch_that_cannot_be_read_is_said_again_and_again_and_never_skipped(columns: bool) -> None:
    stored = {0: batch(0, b"a", b"b"), 2: batch(2, b"c", broken=True), 3: batch(3, b"d")}

    def answer(offset: int) -> FetchResponse.PartitionData:
        records = b"".join(data for at, data in stored.items() if at >= offset)
        return FetchResponse.PartitionData(partition_index=0, high_watermark=4, last_stable_offset=4, records=records)

    async def read() -> None:
        reading, positions = fetcher(answer)

        def take() -> list[bytes | None]:
            if not columns:
                return values(reading.take(500))
            return [value.as_py() for part in reading.take_arrow(1 << 20) for value in part.column("value")]

        await fetched(reading)
        assert take() == [b"a", b"b"], "what lies before it is handed out first"
        for _ in range(2):
            with pytest.raises(KafkaError, match=r"ledger-0 at 2: .*seek"):
                take()
        assert positions[P0].position == 2
        positions.seek(P0, 3)
        await fetched(reading)
        assert take() == [b"d"]
        await reading.close()

    asyncio.run(read())


def test_an_offset_that_is_gone_ahead_of_what_is_held_does_not_cost_what_is_held() -> None:
    """The next answer is asked for before this one is read: its error is about a place the reader is not at yet."""

    def answer(offset: int) -> FetchResponse.PartitionData:
        if offset == 0:
            return FetchResponse.PartitionData(partition_index=0, high_watermark=2, records=batch(0, b"a", b"b"))
        return FetchResponse.PartitionData(partition_index=0, error_code=int(ErrorCode.OFFSET_OUT_OF_RANGE))

    async def read() -> None:
        reading, positions = fetcher(answer)
        await fetched(reading)
        await fetched(reading)
        assert values(reading.take(500)) == [b"a", b"b"]
        assert positions.needing_reset() == {}
        await fetched(reading)
        assert P0 in positions.needing_reset(), "now the reader is there"
        await reading.close()

    asyncio.run(read())


def test_a_leader_that_points_to_a_nearer_replica_is_believed_until_that_one_fails() -> None:
    """KIP-392: to a client with client.rack a leader may answer with nothing but the name of a follower."""
    answers = iter(
        [
            FetchResponse.PartitionData(partition_index=0, high_watermark=2, preferred_read_replica=2),
            FetchResponse.PartitionData(partition_index=0, high_watermark=2, records=batch(0, b"a")),
            FetchResponse.PartitionData(partition_index=0, error_code=int(ErrorCode.OFFSET_OUT_OF_RANGE)),
            FetchResponse.PartitionData(partition_index=0, high_watermark=2, records=batch(1, b"b")),
        ]
    )

    async def read() -> None:
        cluster = OneLeader(lambda offset: next(answers))
        reading, positions = fetcher(lambda offset: next(answers), cluster)
        read: list[bytes | None] = []
        for _ in range(4):
            await fetched(reading)
            read += values(reading.take(500))
        assert cluster.asked == [1, 2, 2, 1]
        assert read == [b"a", b"b"]
        assert positions.needing_reset() == {}, "a follower that lags is no reason to jump"
        await reading.close()

    asyncio.run(read())


def test_what_nobody_foresaw_is_raised_by_poll_and_not_waited_for_in_silence() -> None:
    def answer(offset: int) -> FetchResponse.PartitionData:
        raise ZeroDivisionError

    async def run() -> None:
        reading, _ = fetcher(answer)
        reading.ask()
        await asyncio.wait_for(reading.arrived.wait(), 10)
        with pytest.raises(ZeroDivisionError):
            reading.raise_error()

    asyncio.run(run())

"""C4: every marker reaches whoever leads its partition, and only while its sender coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.replication.markers import ClusterMarkerSender
from semel.errors import Disconnected, ErrorCode
from semel.machines.contract import SendMarkers
from semel.machines.values import TopicPartition
from semel.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: What a broker answers to the marker of a partition.
Answers = Callable[[int, TopicPartition], ErrorCode]


async def so_far(check: Callable[[], bool]) -> None:
    """Until the sender has come so far."""
    for _ in range(10_000):
        if check():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the sender does not get there")


class Cluster:
    """Brokers 2 and 3 lead what the test says; this is broker 1. Nothing is here but what the sender asks."""

    def __init__(self, leaders: dict[TopicPartition, int], answers: Answers) -> None:
        self.leaders = leaders
        self.answers = answers
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.in_flight: dict[int, int] = {}
        self.is_open = False
        self.suspected: list[int] = []
        self.reader = SimpleNamespace(registrations={1: None, 2: None, 3: None})
        assignment = SimpleNamespace(partitions={0: (2, 3), 1: (2, 3)})
        self.image = SimpleNamespace(topics={"t": SimpleNamespace(assignment=assignment)})
        self.peers = self

    def state_of(self, topic: str, index: int) -> tuple[Any, tuple[int, ...]]:
        leader = self.leaders.get(TopicPartition(topic, index))
        return (None if leader is None else SimpleNamespace(leader=leader)), ()

    async def changed(self) -> None:
        await asyncio.sleep(0)

    async def read_again(self) -> None:
        await asyncio.sleep(0)

    def suspect(self, broker: int) -> None:
        self.suspected.append(broker)

    async def ask(self, broker: int, lane: str, request: Any, version: int, timeout_s: float) -> Any:
        if isinstance(request, DescribeProducersRequest):
            return self._producers(request)
        self.requests.append((broker, request))
        self.in_flight[broker] = self.in_flight.get(broker, 0) + 1
        assert self.in_flight[broker] == 1, "one request is on its way to a broker at a time"
        await asyncio.sleep(0.001)
        self.in_flight[broker] -= 1
        row = WriteTxnMarkersResponse.WritableTxnMarkerResult
        topic_row = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
        response = WriteTxnMarkersResponse()
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                partitions = []
                for index in topic.partition_indexes:
                    code = self.answers(broker, TopicPartition(topic.name, index))
                    if code is ErrorCode.NETWORK_EXCEPTION:
                        raise Disconnected(code, "gone")
                    partitions.append(
                        WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                    )
                topics.append(topic_row(name=topic.name, partitions=partitions))
            response.markers.append(row(producer_id=marker.producer_id, topics=topics))
        return response

    def _producers(self, request: DescribeProducersRequest) -> DescribeProducersResponse:
        producer = DescribeProducersResponse.ProducerState(
            producer_id=9, current_txn_start_offset=4 if self.is_open else -1
        )
        return DescribeProducersResponse(
            topics=[
                DescribeProducersResponse.TopicResponse(
                    name=topic.name,
                    partitions=[
                        DescribeProducersResponse.PartitionResponse(partition_index=index, active_producers=[producer])
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )


class Sending:
    """A sender, the coordinator that it reports to, and the transactions that still need markers."""

    def __init__(self, cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        broker = SimpleNamespace(node_id=1, spawn=loop.create_task, now_ms=lambda: 0, loop=loop)
        self.unmarked: dict[int, set[TopicPartition]] = {}
        coordinator = SimpleNamespace(awaits=lambda sent: id(sent) in self.unmarked, markers_written=self._written)
        self.sender = ClusterMarkerSender(cast("Any", broker), cast("Any", coordinator), cast("Any", cluster))
        self.sender.host = cast("Any", SimpleNamespace(settle=lambda decision: None))

    def _written(self, sent: SendMarkers, now_ms: int, partitions: Iterable[TopicPartition]) -> None:
        left = self.unmarked.get(id(sent))
        if left is not None:
            left.difference_update(partitions)
            if not left:
                del self.unmarked[id(sent)]

    def send(self, *partitions: TopicPartition) -> SendMarkers:
        markers = SendMarkers("id", 9, 1, 5, True, 0, partitions)
        self.unmarked[id(markers)] = set(partitions)
        self.sender.perform(markers)
        return markers

    async def finished(self) -> None:
        await so_far(lambda: not self.unmarked)


P0, P1, P2 = (TopicPartition("t", index) for index in range(3))


def test_markers_go_to_each_leader_together() -> None:
    async def story() -> None:
        cluster = Cluster({P0: 2, P1: 2, P2: 3}, lambda broker, target: ErrorCode.NONE)
        sending = Sending(cluster)
        kept = [sending.send(P0, P1, P2) for _ in range(5)]
        await sending.finished()
        # The five are equal, as those of protocol V1 may be, and each is answered by itself.
        assert len(kept) == 5 and len(cluster.requests) == 2
        assert {broker: len(request.markers) for broker, request in cluster.requests} == {2: 5, 3: 5}
        assert cluster.requests[0][1].markers[0].coordinator_epoch == 5

    asyncio.run(story())


def test_a_marker_goes_to_the_next_leader_when_its_leader_is_gone_or_replaced() -> None:
    async def story() -> None:
        def answers(broker: int, target: TopicPartition) -> ErrorCode:
            if broker == 2:
                cluster.leaders[target] = 3
                return ErrorCode.NETWORK_EXCEPTION if target == P0 else ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.NONE

        cluster = Cluster({P0: 2, P1: 2}, answers)
        sending = Sending(cluster)
        kept = [sending.send(P1), sending.send(P0)]
        await sending.finished()
        assert len(kept) == 2
        assert cluster.suspected == [2], "a broker that does not answer may be dead"

    asyncio.run(story())


def test_nobody_sends_markers_of_what_another_coordinates() -> None:
    async def story() -> None:
        cluster = Cluster({P0: 2}, lambda broker, target: ErrorCode.NOT_ENOUGH_REPLICAS)
        sending = Sending(cluster)
        markers = sending.send(P0)
        await so_far(lambda: len(cluster.requests) >= 3)
        sending.unmarked.clear()
        await asyncio.sleep(0.01)
        sent = len(cluster.requests)
        await asyncio.sleep(0.02)
        assert len(cluster.requests) == sent and markers.commit

    asyncio.run(story())


def test_a_deleted_topic_needs_no_marker_and_an_unknown_one_is_looked_for() -> None:
    async def story() -> None:
        cluster = Cluster({}, lambda broker, target: ErrorCode.NONE)
        gone, new = TopicPartition("gone", 0), P0
        sending = Sending(cluster)
        markers = sending.send(gone, new)
        await so_far(lambda: sending.unmarked.get(id(markers), set()) == {new})
        assert not cluster.requests, "a topic that ZooKeeper has is not taken for deleted"
        cluster.leaders[new] = 3
        await sending.finished()
        assert [broker for broker, _ in cluster.requests] == [3]

    asyncio.run(story())


def test_where_a_newer_epoch_was_seen_the_marker_is_done_only_if_nothing_is_open() -> None:
    async def story() -> None:
        cluster = Cluster({P0: 2}, lambda broker, target: ErrorCode.INVALID_PRODUCER_EPOCH)
        cluster.is_open = True
        sending = Sending(cluster)
        markers = sending.send(P0)
        await so_far(lambda: len(cluster.requests) >= 3)
        assert id(markers) in sending.unmarked, "an open transaction is not given up"
        cluster.is_open = False
        await sending.finished()

    asyncio.run(story())

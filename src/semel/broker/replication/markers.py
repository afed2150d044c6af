"""Markers to the leaders of a transaction's partitions, wherever they are (C4).

Guarantees, besides those of `coordinators.marker_sender`:

- A marker counts when it is committed. It is sent again, to whoever leads then, until it is or its partition is
  deleted; and no longer than this broker coordinates the transaction, under the epoch that decided it.
- One request with markers is on its way to a broker at a time. What comes meanwhile goes together.
- A partition that has seen a newer coordinator or epoch is asked whether the transaction is still open there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from semel.broker.coordinators.marker_sender import OVERTAKEN, MarkerSender
from semel.broker.replication.peer_queues import PeerQueues
from semel.cluster.session import ZooKeeperError
from semel.errors import Disconnected, ErrorCode
from semel.machines.contract import SendMarkers
from semel.machines.transactions.coordinator import TransactionCoordinator
from semel.machines.values import TopicPartition, by_topic
from semel.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer
    from semel.broker.topics.partition import Partition

logger = logging.getLogger(__name__)

MARKERS_VERSION, PRODUCERS_VERSION = 2, 0
LANE = "markers"
#: An answer waits for the replicas of every partition.
TIMEOUT_S = 30.0

_Marker = tuple[SendMarkers, TopicPartition]
#: Each with the partitions that it is sent to. Two transactions of protocol V1 may have equal markers.
_Sent = list[tuple[SendMarkers, list[TopicPartition]]]


class ClusterMarkerSender(MarkerSender):
    """Performs `SendMarkers` across brokers."""

    def __init__(
        self, broker: BrokerServer, coordinator: TransactionCoordinator, membership: Membership
    ) -> None:
        super().__init__(broker, coordinator)
        self._membership = membership
        self._to_send = PeerQueues[_Marker](broker.spawn, self._send_to, self._not_answered)

    def perform(self, markers: SendMarkers) -> None:
        self._spread(markers, markers.partitions)

    def _spread(self, markers: SendMarkers, targets: Iterable[TopicPartition]) -> None:
        """Send each marker to the leader of its partition."""
        if not self._coordinator.awaits(markers):
            return
        here, unknown, later = [], [], []
        for target in targets:
            state, _ = self._membership.state_of(*target)
            if state is None:
                unknown.append(target)
            elif state.leader == self._broker.node_id:
                here.append(target)
            elif state.leader in self._membership.reader.registrations:
                self._to_send.add(state.leader, (markers, target))
            else:
                later.append(target)
        if unknown:
            self._broker.spawn(self._look_for(markers, unknown))
        if later:
            self._later(markers, tuple(later))
        if here:
            self._write(markers, tuple(here))

    def _later(self, markers: SendMarkers, left: tuple[TopicPartition, ...]) -> None:
        self._broker.spawn(self._send_again(markers, left))

    async def _send_again(self, markers: SendMarkers, left: tuple[TopicPartition, ...]) -> None:
        await self._membership.changed()
        self._spread(markers, left)

    async def _look_for(self, markers: SendMarkers, unknown: list[TopicPartition]) -> None:
        """A partition that we do not know is deleted, or so new that we have not heard of it: ZooKeeper decides.

        A topic that was created again may have fewer partitions than before, and a client may have added some that
        never were.
        """
        try:
            await self._membership.read_again()
        except ZooKeeperError:
            self._later(markers, tuple(unknown))
            return
        topics = self._membership.image.topics
        gone = [
            target
            for target in unknown
            if target.topic not in topics or target.partition not in topics[target.topic].assignment.partitions
        ]
        if gone:
            self._report(markers, gone, frozenset())
        left = tuple(target for target in unknown if target not in gone)
        if left:
            self._later(markers, left)

    def _is_gone(self, target: TopicPartition, code: ErrorCode) -> bool:
        return False  # `_look_for` finds out

    def _report(self, markers: SendMarkers, done: list[TopicPartition], failed: frozenset[Partition]) -> None:
        """Those that were not committed are sent again."""
        lost = {TopicPartition(partition.topic.name, partition.index) for partition in failed}
        written = [target for target in done if target not in lost]
        if written:
            self.host.settle(self._coordinator.markers_written(markers, self._broker.now_ms(), written))
        if len(written) < len(done):
            self._later(markers, tuple(target for target in done if target in lost))

    # Other brokers

    async def _send_to(self, leader: int, waiting: list[_Marker]) -> None:
        sent = _by_transaction(waiting)
        codes = await self._ask(leader, sent)
        for (markers, targets), answered in zip(sent, codes, strict=True):
            self._take(leader, markers, targets, answered)

    def _not_answered(self, leader: int, waiting: list[_Marker], error: Exception) -> None:
        """Send them again: a partition that has its marker already writes no second one."""
        logger.info("markers to broker %d: %s", leader, error)
        self._membership.suspect(leader)
        for markers, targets in _by_transaction(waiting):
            self._later(markers, tuple(targets))

    async def _ask(self, leader: int, sent: _Sent) -> list[dict[TopicPartition, ErrorCode]]:
        row, topic = WriteTxnMarkersRequest.WritableTxnMarker, WriteTxnMarkersRequest.WritableTxnMarkerTopic
        request = WriteTxnMarkersRequest(
            markers=[
                row(
                    producer_id=markers.producer_id,
                    producer_epoch=markers.producer_epoch,
                    transaction_result=markers.commit,
                    coordinator_epoch=markers.coordinator_epoch,
                    transaction_version=markers.transaction_version,
                    topics=[
                        topic(name=name, partition_indexes=numbers) for name, numbers in by_topic(targets).items()
                    ],
                )
                for markers, targets in sent
            ]
        )
        response: WriteTxnMarkersResponse = await self._membership.peers.ask(
            leader, LANE, request, MARKERS_VERSION, TIMEOUT_S
        )
        if len(response.markers) != len(sent):
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"broker {leader} has not answered for every marker")
        return [
            {
                TopicPartition(topic.name, one.partition_index): ErrorCode(one.error_code)
                for topic in result.topics
                for one in topic.partitions
            }
            for result in response.markers
        ]

    def _take(
        self,
        leader: int,
        markers: SendMarkers,
        targets: list[TopicPartition],
        codes: dict[TopicPartition, ErrorCode],
    ) -> None:
        done: list[TopicPartition] = []
        left: list[TopicPartition] = []
        overtaken: list[TopicPartition] = []
        for target in targets:
            code = codes.get(target, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code is ErrorCode.NONE:
                done.append(target)
                continue
            logger.info("marker of %s for %s: broker %d: %s", markers.transactional_id, target, leader, code.name)
            (overtaken if code in OVERTAKEN else left).append(target)
        if done:
            self._report(markers, done, frozenset())
        if left:
            self._later(markers, tuple(left))
        if overtaken:
            self._broker.spawn(self._ask_whether_open(leader, markers, overtaken))

    async def _ask_whether_open(self, leader: int, markers: SendMarkers, overtaken: list[TopicPartition]) -> None:
        """Where the producer has no open transaction, this one has ended. Elsewhere the marker is sent again."""
        topic = DescribeProducersRequest.TopicRequest
        request = DescribeProducersRequest(
            topics=[topic(name=name, partition_indexes=numbers) for name, numbers in by_topic(overtaken).items()]
        )
        ended = []
        try:
            response: DescribeProducersResponse = await self._membership.peers.ask(
                leader, "questions", request, PRODUCERS_VERSION, TIMEOUT_S
            )
        except Disconnected:
            self._membership.suspect(leader)
        else:
            for each in response.topics:
                for one in each.partitions:
                    is_open = any(
                        producer.producer_id == markers.producer_id and producer.current_txn_start_offset >= 0
                        for producer in one.active_producers
                    )
                    if one.error_code == ErrorCode.NONE and not is_open:
                        ended.append(TopicPartition(each.name, one.partition_index))
        if ended:
            self._report(markers, ended, frozenset())
        left = tuple(target for target in overtaken if target not in ended)
        if left:
            self._later(markers, left)


def _by_transaction(waiting: Iterable[_Marker]) -> _Sent:
    sent: _Sent = []
    for markers, target in waiting:
        if not sent or sent[-1][0] is not markers:
            sent.append((markers, []))
        sent[-1][1].append(target)
    return sent

"""Writes the markers of a transaction into its partitions and reports to the coordinator.

Guarantees:

- Every partition of the transaction gets its marker, unless it was deleted or the transaction has ended there already.
  A marker that cannot be written is retried until it can. A partition that refuses does not delay the others.
- A partition that cannot be written makes one warning a minute, however many transactions wait for it.
- A marker in `__consumer_offsets` is reported to the group coordinator at once: committed offsets become visible with
  the marker, not before, and are visible when the commit is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from semel.broker.topics.internal import CONSUMER_OFFSETS
from semel.errors import ErrorCode, Refused
from semel.machines.contract import SendMarkers
from semel.machines.transactions.coordinator import TransactionCoordinator
from semel.machines.values import TopicPartition

if TYPE_CHECKING:
    from semel.broker.coordinators.host import CoordinatorHost
    from semel.broker.server import BrokerServer
    from semel.broker.topics.partition import Partition

logger = logging.getLogger(__name__)

RETRY_MS = 1000
#: How long the log says nothing more about a partition that still refuses, in seconds.
WARNING_PAUSE_S = 60.0
#: How many markers are written in one turn of the loop.
PARTITIONS_AT_ONCE = 200
#: The partition has seen a newer epoch or coordinator than ours.
OVERTAKEN = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))


def write_marker(
    broker: BrokerServer,
    target: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    coordinator_epoch: int,
    transaction_version: int,
) -> None:
    """Write one marker into one partition; `Refused` if it cannot be written."""
    partition = broker.topics.partition(target.topic, target.partition)
    if target.topic == CONSUMER_OFFSETS:
        broker.groups.host.ready(target.partition)
    partition.append_marker(
        producer_id, producer_epoch, commit, coordinator_epoch, transaction_version, broker.now_ms()
    )
    if target.topic == CONSUMER_OFFSETS:
        broker.groups.marker_written(target.partition, producer_id, commit)


class MarkerSender:
    """Performs the transaction coordinator's `SendMarkers`."""

    #: Set by the shell: the host has its performers before they have their host.
    host: CoordinatorHost

    def __init__(self, broker: BrokerServer, coordinator: TransactionCoordinator) -> None:
        self._broker = broker
        self._coordinator = coordinator
        #: When the log last said that a partition refuses its marker.
        self._warned_s: dict[TopicPartition, float] = {}

    def perform(self, markers: SendMarkers) -> None:
        """Write the markers that can be written now, report them, and retry the rest later.

        The markers of a transaction over very many partitions are written in several turns of the loop. Requests for
        the same transactional id wait for that, others do not.
        """
        self._write(markers, markers.partitions)

    def _write(self, markers: SendMarkers, targets: tuple[TopicPartition, ...]) -> None:
        if len(targets) > PARTITIONS_AT_ONCE:
            self._broker.spawn(self._send_in_turns(markers, targets))
        else:
            self._send(markers, targets)

    async def _send_in_turns(self, markers: SendMarkers, targets: tuple[TopicPartition, ...]) -> None:
        for start in range(0, len(targets), PARTITIONS_AT_ONCE):
            await self._broker.turns.next()
            since = self._broker.turns.clock()
            if self._broker.fatal_error is not None:
                return
            self._send(markers, targets[start : start + PARTITIONS_AT_ONCE])
            self._broker.turns.worked(since)

    def _send(self, markers: SendMarkers, targets: tuple[TopicPartition, ...]) -> None:
        done, left = [], []
        for target in targets:
            try:
                write_marker(
                    self._broker,
                    target,
                    markers.producer_id,
                    markers.producer_epoch,
                    markers.commit,
                    markers.coordinator_epoch,
                    markers.transaction_version,
                )
            except (Refused, OSError) as error:
                code = error.code if isinstance(error, Refused) else ErrorCode.KAFKA_STORAGE_ERROR
                if not self._is_gone(target, code):
                    self._warn(markers, target, error)
                    if code not in OVERTAKEN or self._is_open(target, markers.producer_id):
                        left.append(target)
                        continue
            done.append(target)
            self._warned_s.pop(target, None)
        if done:
            # The transaction is complete only once its markers are as durable as the record that says so.
            self._broker.durability.once_durable(list(self._existing(done)), partial(self._report, markers, done))
        if left:
            self._later(markers, tuple(left))

    def _warn(self, markers: SendMarkers, target: TopicPartition, error: Exception) -> None:
        """A full disk may keep the markers of thousands of ids waiting, and each is tried again every second."""
        now_s = self._broker.loop.time()
        if self._broker.topics.gone is not None:
            return  # it is logged already
        if now_s - self._warned_s.get(target, -WARNING_PAUSE_S) >= WARNING_PAUSE_S:
            self._warned_s[target] = now_s
            logger.warning("marker of %s for %s: %s; trying again", markers.transactional_id, target, error)

    def _later(self, markers: SendMarkers, left: tuple[TopicPartition, ...]) -> None:
        """Try these again after a while."""
        self._broker.loop.call_later(RETRY_MS / 1000, self._send, markers, left)

    def _is_gone(self, target: TopicPartition, code: ErrorCode) -> bool:
        """Whether there is no such partition any more, so that it needs no marker."""
        return code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _is_open(self, target: TopicPartition, producer_id: int) -> bool:
        """Whether the producer has an open transaction in this partition."""
        entry = self._broker.topics.partition(target.topic, target.partition).log.producers.entries.get(producer_id)
        return entry is not None and entry.has_open_transaction

    def is_awaited(self, markers: SendMarkers) -> bool:
        """Whether a reader waits in any of the partitions that get these markers."""
        return any(partition.watchers for partition in self._existing(markers.partitions))

    def _existing(self, targets: Iterable[TopicPartition]) -> Iterator[Partition]:
        """Those of these partitions that exist."""
        topics = self._broker.topics.topics
        for name, index in targets:
            topic = topics.get(name)
            if topic is not None and 0 <= index < len(topic.partitions):
                yield topic.partitions[index]

    def _report(self, markers: SendMarkers, done: list[TopicPartition], failed: frozenset[Partition]) -> None:
        """Tell the coordinator which partitions have their marker; not those whose fsync failed."""
        lost = {TopicPartition(partition.topic.name, partition.index) for partition in failed}
        self.host.settle(
            self._coordinator.markers_written(
                markers, self._broker.now_ms(), [target for target in done if target not in lost] if lost else done
            )
        )

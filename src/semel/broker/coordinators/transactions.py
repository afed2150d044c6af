"""The transaction coordinator in the broker: its host, its markers, and the question of the partitions to it.

A request for a transactional id whose last transaction still waits for its markers is held back, for a bounded time.
With fsync most requests come that early, because a client goes on as soon as EndTxn is answered. The answer
CONCURRENT_TRANSACTIONS would be legal, but librdkafka cannot handle it everywhere: it fails for good when an abort
overtakes an AddPartitionsToTxn that it has to repeat.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from semel.broker.coordinators.host import CoordinatorHost, partition_count
from semel.broker.coordinators.marker_sender import MarkerSender
from semel.broker.topics.internal import TRANSACTION_STATE
from semel.errors import ErrorCode
from semel.machines.contract import SendMarkers
from semel.machines.transactions.coordinator import TransactionCoordinator, TransactionSettings
from semel.machines.values import TopicPartition

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

#: How long a request is held back for the markers of the transaction before it. Then the client has to retry.
MOST_HELD_S = 5.0


class TransactionShell:
    """The transaction coordinator of this broker and what belongs to it."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        settings = broker.settings
        self.coordinator = TransactionCoordinator(
            TransactionSettings(
                transaction_max_timeout_ms=settings.transaction_max_timeout_ms,
                transactional_id_expiration_ms=settings.transactional_id_expiration_ms,
                transaction_remove_expired_transaction_cleanup_interval_ms=(
                    settings.transaction_remove_expired_transaction_cleanup_interval_ms
                ),
                transaction_state_log_num_partitions=partition_count(broker, TRANSACTION_STATE),
                transaction_two_phase_commit_enable=settings.transaction_two_phase_commit_enable,
            )
        )
        markers = self._marker_sender()
        self.host = markers.host = CoordinatorHost(broker, TRANSACTION_STATE, self.coordinator, {SendMarkers: markers})
        #: With two-phase commit a transaction may be kept for a successor: its writer is fenced while it is still open.
        self.asks_every_time: bool = settings.transaction_two_phase_commit_enable
        #: Requests that are held back, by the transactional id whose markers they wait for.
        self._held: dict[str, list[asyncio.Future[None]]] = {}

    def _marker_sender(self) -> MarkerSender:
        broker = self._broker
        if broker.cluster is None:
            return MarkerSender(broker, self.coordinator)
        from semel.broker.replication.markers import ClusterMarkerSender

        broker.topics.listeners.append(self._topics_changed)
        return ClusterMarkerSender(broker, self.coordinator, broker.cluster)

    def _topics_changed(self) -> None:
        """In a cluster another broker may have created the internal topic."""
        self.coordinator.set_partition_count(partition_count(self._broker, TRANSACTION_STATE))

    def is_settled(self, transactional_id: str) -> bool:
        """Load the partition of this id. Returns whether no transaction of it waits for its markers."""
        partition = self.coordinator.partition_for(transactional_id)
        if partition not in self.host.loaded:
            self.host.ready(partition)
        return not self.coordinator.is_completing(transactional_id)

    async def settled(self, *transactional_ids: str) -> None:
        """Wait until the markers of these ids are written, at most `MOST_HELD_S`."""
        try:
            async with asyncio.timeout(MOST_HELD_S):
                for transactional_id in transactional_ids:
                    while self.coordinator.is_completing(transactional_id):
                        await self._hold(transactional_id)
        except TimeoutError:
            return

    async def _hold(self, transactional_id: str) -> None:
        """Wait until the transaction of this id is complete."""
        future = self._broker.loop.create_future()
        held = self._held.setdefault(transactional_id, [])
        held.append(future)
        self.host.after_replay = self._release
        try:
            await future
        finally:
            held.remove(future)
            if not held and self._held.get(transactional_id) is held:
                del self._held[transactional_id]
            if not self._held:
                self.host.after_replay = None

    def _release(self) -> None:
        """Let go on whoever waits for a transaction that is complete now."""
        for transactional_id, held in self._held.items():
            if not self.coordinator.is_completing(transactional_id):
                for future in held:
                    if not future.done():
                        future.set_result(None)

    def admit(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        *,
        verify_only: bool,
        knows_abortable: bool,
    ) -> ErrorCode:
        """Whether a transactional append to this partition may go ahead.

        With `verify_only` (V1) the partition must have been added before; without (V2) it is added now.
        `knows_abortable`: the writer's version of the protocol has TRANSACTION_ABORTABLE.
        """
        self.host.ready_for(transactional_id)
        asked = TopicPartition(topic, partition)
        if verify_only:
            code = self.coordinator.verify(transactional_id, producer_id, producer_epoch, (asked,))[asked]
            return for_writer(code, knows_abortable)
        decision = self.coordinator.add_implicitly(
            transactional_id, producer_id, producer_epoch, (asked,), self._broker.now_ms()
        )
        return for_writer(ErrorCode(self.host.settle(decision)), True)


def for_writer(code: ErrorCode, knows_abortable: bool) -> ErrorCode:
    """The coordinator's answer as the writer gets it: if fenced, it expects INVALID_PRODUCER_EPOCH."""
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code

"""The transaction coordinator's shell: `__transaction_state`, the markers, and the partitions' question to it.

A request that comes while the markers of the previous transaction are still being written waits for them, within
bounds. With fsync that is most requests that follow an EndTxn at once, and not every client takes
CONCURRENT_TRANSACTIONS well: librdkafka ends for good when an abort overtakes an AddPartitionsToTxn it has to repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.coordinators.host import CoordinatorHost, partition_count
from semel.broker.coordinators.marker_sender import MarkerSender
from semel.broker.topics.internal import TRANSACTION_STATE
from semel.errors import ErrorCode, InvariantViolation, Refused
from semel.machines.contract import Decision, Effect, SendMarkers, StateRecord
from semel.machines.transactions.coordinator import TransactionCoordinator, TransactionSettings
from semel.machines.transactions.records import metadata_of, transactional_id_of
from semel.machines.transactions.states import OPEN
from semel.machines.values import ProducerIdentity, TopicPartition

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

#: How long a request is held back for the markers of the transaction before it. Then it is told to come again.
MOST_HELD_S = 5.0


class TransactionHost(CoordinatorHost):
    """Runs the one transaction coordinator of this broker."""

    def __init__(self, broker: BrokerServer) -> None:
        settings = broker.settings
        self.machine = TransactionCoordinator(
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
        super().__init__(broker, TRANSACTION_STATE, self.machine)
        #: With two-phase commit a transaction may be kept for a successor: its writer is fenced while it is still open.
        self.asks_every_time: bool = settings.transaction_two_phase_commit_enable
        self._markers = MarkerSender(broker, self)
        #: Requests held back, by the transactional id whose markers they wait for.
        self._held: dict[str, list[asyncio.Future[None]]] = {}

    def replay(self, record: StateRecord, producer: ProducerIdentity | None) -> None:
        self.machine.replay(record)
        if self._held:
            self._let_go()

    def once_settled(self, transactional_ids: Iterable[str], serve: Callable[[], Any]) -> Any:
        """What `serve` answers, once no transaction of these ids waits for its markers any more.

        A request that need not wait is served at once.
        """
        for transactional_id in transactional_ids:
            self.ready_for(transactional_id)
        if any(map(self.machine.is_completing, transactional_ids)):
            return self._served_when_settled(tuple(transactional_ids), serve)
        return serve()

    async def _served_when_settled(self, transactional_ids: tuple[str, ...], serve: Callable[[], Any]) -> Any:
        await self.settled(*transactional_ids)
        reply = serve()
        return await reply if type(reply) is CoroutineType else reply

    async def settled(self, *transactional_ids: str) -> None:
        """Return when the markers of these ids are written, or have not been for long."""
        try:
            async with asyncio.timeout(MOST_HELD_S):
                for transactional_id in transactional_ids:
                    while self.machine.is_completing(transactional_id):
                        await self._completion_of(transactional_id)
        except TimeoutError:
            return

    async def _completion_of(self, transactional_id: str) -> None:
        future = self.broker.loop.create_future()
        held = self._held.setdefault(transactional_id, [])
        held.append(future)
        try:
            await future
        finally:
            held.remove(future)
            if not held and self._held.get(transactional_id) is held:
                del self._held[transactional_id]

    def _let_go(self) -> None:
        for transactional_id, held in self._held.items():
            if not self.machine.is_completing(transactional_id):
                for future in held:
                    if not future.done():
                        future.set_result(None)

    def check_readable(self, record: StateRecord) -> str:
        transactional_id = transactional_id_of(record.key)
        if transactional_id is None:
            raise Refused(ErrorCode.INVALID_RECORD, "its key is of no known type")
        if record.value is not None and metadata_of(transactional_id, record.value).state in OPEN:
            # Taken in, it would end a transaction of somebody who never asked for it.
            raise Refused(ErrorCode.INVALID_RECORD, "a transaction is begun and ended by requests only")
        return transactional_id

    def append_refused(self, decision: Decision[Any], code: ErrorCode) -> Any:
        return self.machine.append_failed(decision, code)

    def perform(self, effect: Effect) -> None:
        if not isinstance(effect, SendMarkers):
            raise InvariantViolation(f"the transaction coordinator asked for {effect}")
        self._markers.send(effect)

    def is_awaited(self, effects: tuple[Effect, ...]) -> bool:
        """Whether readers wait in a partition that gets a marker: they are served before the sender is answered."""
        return any(isinstance(effect, SendMarkers) and self._markers.is_watched(effect) for effect in effects)

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
        self.ready_for(transactional_id)
        asked = TopicPartition(topic, partition)
        if verify_only:
            code = self.machine.verify(transactional_id, producer_id, producer_epoch, (asked,))[asked]
            if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
                return ErrorCode.INVALID_TXN_STATE
            return _as_writers_know_it(code)
        decision = self.machine.add_implicitly(
            transactional_id, producer_id, producer_epoch, (asked,), self.broker.now_ms()
        )
        return _as_writers_know_it(ErrorCode(self.settle(decision)))


def _as_writers_know_it(code: ErrorCode) -> ErrorCode:
    """A producer in the middle of writing expects INVALID_PRODUCER_EPOCH when it is fenced."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code

"""The transaction coordinator's shell: `__transaction_state`, the markers, and the partitions' question to it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from semel.broker.coordinator_host import CoordinatorHost
from semel.broker.marker_sender import MarkerSender
from semel.broker.partitions import TRANSACTION_STATE
from semel.errors import ErrorCode, invariant
from semel.machines.contract import Decision, Effect, ProducerIdentity, SendMarkers, StateRecord, TopicPartition
from semel.machines.transaction_coordinator import TransactionCoordinator, TransactionSettings

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer


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
                transaction_state_log_num_partitions=settings.transaction_state_log_num_partitions,
                transaction_two_phase_commit_enable=settings.transaction_two_phase_commit_enable,
            )
        )
        super().__init__(broker, TRANSACTION_STATE, self.machine)
        #: With two-phase commit a transaction may be kept for a successor: its writer is fenced while it is still open.
        self.asks_every_time: bool = settings.transaction_two_phase_commit_enable
        self._markers = MarkerSender(broker, self)
        self._readers_first = False

    def replay(self, record: StateRecord, producer: ProducerIdentity | None) -> None:
        self.machine.replay(record)

    def append_refused(self, decision: Decision[Any], code: ErrorCode) -> Any:
        return self.machine.append_failed(decision, code)

    def perform(self, effect: Effect) -> None:
        invariant(isinstance(effect, SendMarkers), f"the transaction coordinator asked for {effect}")
        assert isinstance(effect, SendMarkers)
        if self.broker.flusher is None and not self._markers.is_watched(effect.partitions):
            # The outcome is in the log, so it is answered first, unless readers wait for it.
            self.broker.before_the_next_request(partial(self._markers.send, effect))
        else:
            self._readers_first = self.broker.flusher is None
            self._markers.send(effect)

    def answer(self, decision: Decision[Any], *keys: str) -> Any:
        """As any host, but readers who were waiting for this outcome get it before its sender hears of it."""
        self._readers_first = False
        reply = super().answer(decision, *keys)
        return _in_its_turn(reply) if self._readers_first else reply

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


async def _in_its_turn(reply: Any) -> Any:
    """A task of its own, which comes after those that were woken before it."""
    return reply


def _as_writers_know_it(code: ErrorCode) -> ErrorCode:
    """A producer in the middle of writing expects INVALID_PRODUCER_EPOCH when it is fenced."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code

"""The producer's half of a transaction: its identity, its state, and the next request.

Guarantees: nothing is sent under an identity that the coordinator did not give. A transaction is committed only when
every record and offset in it was acknowledged. After an error the producer must abort or close; the state table says
which. Every request may be sent again until it is answered.

Both protocols are supported. V1: partitions and groups are added (AddPartitionsToTxn, AddOffsetsToTxn) before they are
written to, and the epoch stays the same. V2 (KIP-890): the first write adds the partition, and the answer to EndTxn
holds the identity for the next transaction. Without a transactional id, the manager only holds the identity of an
idempotent producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semel.errors import (
    AbortTransaction,
    AuthorizationFailed,
    ErrorCode,
    Fatal,
    KafkaError,
    Misuse,
    ProducerFenced,
    Retriable,
    error_for,
    invariant,
)
from semel.machines.transactions import requests
from semel.machines.transactions.producer_states import (
    PRODUCER_TABLE,
    PRODUCER_VERDICTS,
    WHAT_TO_DO_FIRST,
    ProducerEvent,
    ProducerState,
    ProducerVerdict,
    deciding_code,
    verdict,
)
from semel.machines.transactions.requests import NO_IDENTITY, GroupMetadata, OffsetAndMetadata, Send
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

__all__ = [
    "MAX_EPOCH",
    "NO_IDENTITY",
    "PRODUCER_VERDICTS",
    "GroupMetadata",
    "OffsetAndMetadata",
    "ProducerEvent",
    "ProducerState",
    "ProducerVerdict",
    "Send",
    "TransactionManager",
]

MAX_EPOCH = 2**15 - 1
#: CONCURRENT_TRANSACTIONS does not last: the markers of the last transaction are being written.
CONCURRENT_BACKOFF_MS = 20
#: Errors of a batch after which this producer can never write again.
_REFUSED_FOR_GOOD = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.UNSUPPORTED_VERSION,
)


@dataclass(slots=True)
class _PendingOffsets:
    group: GroupMetadata
    offsets: dict[TopicPartition, OffsetAndMetadata]
    announced: bool = False


@dataclass(slots=True)
class TransactionManager:
    """The identity and the transaction of one producer. `version` is the cluster's finalized `transaction.version`."""

    transactional_id: str | None
    transaction_timeout_ms: int = 60_000
    two_phase_commit: bool = False
    version: int = 2
    state: ProducerState = ProducerState.UNINITIALIZED
    identity: ProducerIdentity = NO_IDENTITY
    #: Why the producer is in an error state.
    error: KafkaError | None = None
    #: The next request is not sent before this time.
    not_before_ms: int = 0
    #: The identity of the prepared transaction. An external coordinator stores it before it decides.
    prepared: ProducerIdentity | None = None
    _keep_prepared: bool = False
    _in_flight: bool = False
    _started: bool = False
    _bump_after_abort: bool = False
    _partitions: set[TopicPartition] = field(default_factory=set)
    _unannounced: set[TopicPartition] = field(default_factory=set)
    _pending_offsets: list[_PendingOffsets] = field(default_factory=list)

    # --- calls of the user ----------------------------------------------------------------------------------------

    @property
    def is_transactional(self) -> bool:
        return self.transactional_id is not None

    def initialize(self, *, keep_prepared: bool = False) -> None:
        """Ask for an identity. This aborts a transaction that an earlier owner of the transactional id left open.

        With `keep_prepared` a prepared transaction stays open, for `complete` to decide.
        """
        if keep_prepared and not self.two_phase_commit:
            raise self._needs_two_phase("init_transactions(keep_prepared=True)")
        if self.state is ProducerState.INITIALIZING:
            return
        self._step(ProducerEvent.INITIALIZE)
        self.error = None
        self._keep_prepared = keep_prepared

    def begin(self) -> None:
        self._need_transactional_id(ProducerEvent.BEGIN)
        self._step(ProducerEvent.BEGIN)
        self._started = False

    def check_write(self) -> None:
        """Raise if no record may be sent now. Changes no state: the record may still turn out to be too large."""
        if self.state is ProducerState.IN_TRANSACTION:
            return  # asked for every record: the table says the same, but costs more
        if not self.is_transactional:
            if self.state is ProducerState.FATAL_ERROR:
                raise self._why_not(ProducerEvent.WRITE)
        elif PRODUCER_TABLE.step(self.state, ProducerEvent.WRITE) is None:
            raise self._why_not(ProducerEvent.WRITE)

    def write(self, partition: TopicPartition) -> None:
        """Add a partition to the open transaction, for a record that is sent to it."""
        if self.state is ProducerState.IN_TRANSACTION and partition in self._partitions:
            return
        if not self.is_transactional:
            if self.state is ProducerState.FATAL_ERROR:
                raise self._why_not(ProducerEvent.WRITE)
            return
        self._step(ProducerEvent.WRITE)
        if partition in self._partitions:
            return
        # In this order: a Ctrl-C between two lines must not leave a partition that counts as announced and is not.
        if self.version >= 2:
            self._started = True
        else:
            self._unannounced.add(partition)
        self._partitions.add(partition)

    def add_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """Add a group's offsets to the open transaction."""
        self._need_transactional_id(ProducerEvent.WRITE)
        self._step(ProducerEvent.WRITE)
        if offsets:
            self._pending_offsets.append(_PendingOffsets(group, dict(offsets)))
            # Under V2 the first TxnOffsetCommit opens the transaction, even if its answer is lost.
            self._started = self._started or self.version >= 2

    def prepare(self) -> None:
        """Phase one of two (KIP-939): after this, only the external coordinator's decision ends the transaction."""
        self._need_transactional_id(ProducerEvent.PREPARE)
        if not self.two_phase_commit:
            raise self._needs_two_phase("prepare_transaction()")
        self._step(ProducerEvent.PREPARE)
        self.prepared = self.identity

    def complete(self, decided: ProducerIdentity) -> None:
        """Phase two: commit if the external coordinator decided for this transaction, else abort."""
        if self.prepared is None:
            raise self._why_not(ProducerEvent.COMMIT)
        if decided == self.prepared:
            self.commit()
        else:
            self.abort()

    def commit(self) -> None:
        self._need_transactional_id(ProducerEvent.COMMIT)
        self._step(ProducerEvent.COMMIT)

    def abort(self) -> None:
        self._need_transactional_id(ProducerEvent.ABORT)
        self._step(ProducerEvent.ABORT)
        self._pending_offsets.clear()
        self._unannounced.clear()

    # --- calls of the sender --------------------------------------------------------------------------------------

    @property
    def may_write(self) -> bool:
        """Whether records may be sent: into the open transaction, or without a transactional id at any time."""
        return self.state is ProducerState.IN_TRANSACTION or (self.transactional_id is None and self.error is None)

    def may_send_to(self, partition: TopicPartition) -> bool:
        """Whether a batch for this partition may be sent now."""
        if self.identity == NO_IDENTITY or self.state in (ProducerState.INITIALIZING, ProducerState.FATAL_ERROR):
            return False
        return not self.is_transactional or (partition in self._partitions and partition not in self._unannounced)

    @property
    def offsets_pending(self) -> bool:
        """Whether offsets of this transaction are not acknowledged yet."""
        return bool(self._pending_offsets)

    def fail(self, error: KafkaError, *, renew: bool = False) -> None:
        """A batch of the open transaction could not be delivered.

        With `renew`, the sequence numbers of a partition are uncertain: the producer needs a new epoch after the abort.
        """
        if renew and self.version < 2:
            self._bump_after_abort = True
        if error.code in _REFUSED_FOR_GOOD:
            self._fatal(error)
        elif self.is_transactional:
            # The batch is lost, the producer is not. An error that is retriable or fatal for a request costs only the
            # transaction.
            mendable = isinstance(error, (Retriable, Fatal))
            self._abortable(AbortTransaction(error.code, error.why) if mendable else error)

    def bump_epoch(self) -> None:
        """Take the next epoch (KIP-360). An idempotent producer does so by itself until the epochs run out."""
        invariant(not self.is_transactional, "only the coordinator bumps the epoch of a transactional producer")
        if self.identity.producer_epoch < MAX_EPOCH:
            self.identity = ProducerIdentity(self.identity.producer_id, self.identity.producer_epoch + 1)
        else:
            self.identity = NO_IDENTITY
            self._step(ProducerEvent.INITIALIZE)

    # --- requests and answers -------------------------------------------------------------------------------------

    def poll(self, now_ms: int, *, batches_left: bool) -> Send | None:
        """The next request, or None if there is none or it is too early.

        `batches_left`: some records of the transaction are not acknowledged, so it cannot be ended.
        """
        if self._in_flight or now_ms < self.not_before_ms:
            return None
        send = self._next(batches_left)
        self._in_flight = send is not None
        return send

    def _next(self, batches_left: bool) -> Send | None:
        if self.state is ProducerState.INITIALIZING:
            return self._init_producer_id()
        if self.state in (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING):
            if self._unannounced:
                return self._add_partitions()
            if self._pending_offsets:
                return self._commit_offsets(self._pending_offsets[0])
        if self.state in (ProducerState.COMMITTING, ProducerState.ABORTING) and not batches_left:
            if self._started:
                return self._end()
            self._on_ended(None)
            return self._next(batches_left)
        return None

    def on_disconnect(self, now_ms: int, backoff_ms: int) -> None:
        """No answer came: the same request is sent again."""
        self._in_flight = False
        self.not_before_ms = now_ms + backoff_ms

    def on_error(self, error: KafkaError) -> None:
        """The request can never be sent (no common version, no authorization)."""
        self._in_flight = False
        self._fatal(error)

    def on_response(self, request: Any, response: Any, now_ms: int, backoff_ms: int) -> ErrorCode:
        """Take an answer. Returns its error code, so that the caller can look up the coordinator again."""
        self._in_flight = False
        code = deciding_code(request, response)
        if code is not ErrorCode.NONE:
            self._on_refusal(request, code, now_ms, backoff_ms, getattr(response, "error_message", None))
        elif isinstance(request, InitProducerIdRequest):
            self._on_identity(response)
        elif isinstance(request, AddPartitionsToTxnRequest):
            self._started = True
            for topic in request.v3_and_below_topics:
                self._unannounced -= {TopicPartition(topic.name, number) for number in topic.partitions}
        elif isinstance(request, AddOffsetsToTxnRequest):
            self._started = True
            for pending in self._pending_offsets:
                pending.announced = pending.announced or pending.group.group_id == request.group_id
        elif isinstance(request, TxnOffsetCommitRequest):
            self._started = True
            if self._pending_offsets:
                del self._pending_offsets[0]
        else:
            self._on_ended(response)
        return code

    def _on_refusal(self, request: Any, code: ErrorCode, now_ms: int, backoff_ms: int, message: str | None) -> None:
        meaning = verdict(request, code)
        what = f"{type(request).__name__} of '{self.transactional_id}': {message or code.meaning}"
        if meaning is ProducerVerdict.RETRY:
            concurrent = code is ErrorCode.CONCURRENT_TRANSACTIONS
            self.not_before_ms = now_ms + (min(backoff_ms, CONCURRENT_BACKOFF_MS) if concurrent else backoff_ms)
        elif meaning is ProducerVerdict.FENCED:
            why = f"{what}; another producer has used this transactional.id, or the transaction timed out"
            self._fatal(ProducerFenced(ErrorCode.PRODUCER_FENCED, why))
        elif meaning is ProducerVerdict.ABORTABLE and self.state is ProducerState.ABORTING:
            # The coordinator does not know the transaction, so there is nothing to abort: ask for a new identity.
            self._bump_after_abort = True
            self._on_ended(None)
        elif meaning is ProducerVerdict.ABORTABLE:
            if self.version < 2:
                self._bump_after_abort = True
            self._abortable(error_for(code, what))
        elif meaning is ProducerVerdict.NOT_ALLOWED:
            # The permission may still be granted: every attempt until then is refused with this error.
            self.error = AuthorizationFailed(code, what)
            self.not_before_ms = now_ms + backoff_ms
            self._step(ProducerEvent.NOT_ALLOWED)
        else:
            self._fatal(error_for(code, what))

    # --- requests -------------------------------------------------------------------------------------------------

    def _init_producer_id(self) -> Send:
        return requests.init_producer_id(
            self.transactional_id,
            self.identity,
            self.transaction_timeout_ms if self.is_transactional else 2**31 - 1,
            two_phase_commit=self.two_phase_commit,
            keep_prepared=self._keep_prepared,
        )

    def _add_partitions(self) -> Send:
        return requests.add_partitions(self._name, self.identity, self._unannounced)

    def _commit_offsets(self, pending: _PendingOffsets) -> Send:
        if self.version < 2 and not pending.announced:
            return requests.add_offsets(self._name, self.identity, pending.group.group_id)
        return requests.commit_offsets(self._name, self.identity, pending.group, pending.offsets, self.version)

    def _end(self) -> Send:
        committed = self.state is ProducerState.COMMITTING
        return requests.end(self._name, self.identity, committed=committed, transaction_version=self.version)

    @property
    def _name(self) -> str:
        return self.transactional_id or ""

    # --- steps ----------------------------------------------------------------------------------------------------

    def _on_identity(self, response: Any) -> None:
        self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        self._forget_transaction()
        if response.ongoing_txn_producer_id < 0:
            self._step(ProducerEvent.INITIALIZED)
            return
        self.prepared = ProducerIdentity(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
        self._started = True
        self._step(ProducerEvent.FOUND_PREPARED)

    def _on_ended(self, response: Any) -> None:
        if response is not None and getattr(response, "producer_id", -1) >= 0:
            self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        renew = self.state is ProducerState.ABORTING and (self._bump_after_abort or self.identity == NO_IDENTITY)
        self._forget_transaction()
        self._step(ProducerEvent.INITIALIZE if renew else ProducerEvent.ENDED)

    def _forget_transaction(self) -> None:
        self._started = False
        self._keep_prepared = False
        self.prepared = None
        self._bump_after_abort = False
        self._partitions.clear()
        self._unannounced.clear()
        self._pending_offsets.clear()
        self.error = None

    def _abortable(self, error: KafkaError) -> None:
        if self.state not in (ProducerState.ABORTING, ProducerState.FATAL_ERROR, ProducerState.READY):
            self.error = self.error or error
        self._pending_offsets.clear()
        self._step(ProducerEvent.ABORTABLE)

    def _fatal(self, error: KafkaError) -> None:
        if isinstance(error, (AbortTransaction, AuthorizationFailed)):
            # That is what it is for a request. The producer cannot go on.
            error = Fatal(error.code, error.why)
        if self.state is not ProducerState.FATAL_ERROR:
            self.error = error
        self._pending_offsets.clear()
        self._step(ProducerEvent.FATAL)

    def _step(self, event: ProducerEvent) -> None:
        following = PRODUCER_TABLE.step(self.state, event)
        if following is None:
            raise self._why_not(event)
        self.state = following

    def _why_not(self, event: ProducerEvent) -> KafkaError:
        if self.error is not None and self.state in (ProducerState.ABORTABLE_ERROR, ProducerState.FATAL_ERROR):
            return self.error
        return Misuse(
            ErrorCode.INVALID_TXN_STATE,
            f"{event.value}() while the producer is {self.state.value}: {WHAT_TO_DO_FIRST[self.state]}",
        )

    def _needs_two_phase(self, what: str) -> Misuse:
        return Misuse(ErrorCode.INVALID_TXN_STATE, f"{what} needs transaction.two.phase.commit.enable=true")

    def _need_transactional_id(self, event: ProducerEvent) -> None:
        if not self.is_transactional:
            raise Misuse(ErrorCode.INVALID_TXN_STATE, f"{event.value}() needs the setting transactional.id")

"""The metadata of one transactional id: who may speak for it, and how each step changes it.

A `TransactionMetadata` is immutable: a step returns a new one. (The three steps of every transaction name all its
fields in order, which costs a third of `replace`.) Fencing relies on three rules about epochs: the epoch of a producer
id never falls; 32767 is never given to a client, because the coordinator needs one epoch above the client's to fence
it; after 32766 a new producer id starts at epoch 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from semel.errors import ErrorCode, InvariantViolation, Refused, invariant
from semel.machines.transactions.states import (
    COMPLETED,
    PREPARED,
    TRANSACTION_TABLE,
    TransactionEvent,
    TransactionState,
)
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.transactions import InitProducerIdRequest

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
MAX_EPOCH = 32767
#: The last epoch a client may use.
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
#: The timeout of a transaction of an external coordinator (two-phase commit): it never times out.
NO_TIMEOUT_MS = 2147483647
#: The transaction protocol in which every EndTxn bumps the epoch (KIP-890).
EPOCH_BUMPING = 2

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()

NewProducerId = Callable[[], int]


# Not `frozen`, although it never changes: that would double the time to make one, and a transaction makes three.
@dataclass(slots=True)
class TransactionMetadata:
    """One transactional id as it is stored.

    Only `last_producer_epoch` is not stored, as in Kafka. It lets a producer repeat an InitProducerId whose answer it
    lost (KIP-360), and is lost with a change of coordinator.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    client_transaction_version: int = 0
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = field(default=NO_PRODUCER_EPOCH, compare=False)

    @property
    def identity(self) -> ProducerIdentity:
        """The writer of the open transaction. Of a prepared transaction, the identity in its markers."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def owner(self) -> ProducerIdentity:
        """Who may send requests for this id. Of a kept transaction that is the successor, not the writer."""
        if self.is_kept:
            return ProducerIdentity(self.next_producer_id, self.next_producer_epoch)
        return self.identity

    @property
    def is_kept(self) -> bool:
        """Whether a successor took over and kept the transaction open (KIP-939)."""
        return self.state is TransactionState.ONGOING and self.next_producer_id != NO_PRODUCER_ID

    @property
    def next_identity(self) -> ProducerIdentity:
        """The identity that the client uses after this prepared transaction."""
        if self.state in PREPARED and self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, max(self.next_producer_epoch, 0))
        return self.identity

    @property
    def deadline_ms(self) -> int | None:
        """When the open transaction times out; None if it never does."""
        if self.state is not TransactionState.ONGOING or self.timeout_ms == NO_TIMEOUT_MS:
            return None
        return self.start_ms + self.timeout_ms

    def is_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_CLIENT_EPOCH


# Who may speak for a transactional id


def writer_of(metadata: TransactionMetadata | None, identity: ProducerIdentity) -> TransactionMetadata:
    """The metadata, if `identity` may write in its transaction. A kept transaction has no writer."""
    if metadata is None or metadata.producer_id != identity.producer_id:
        raise _stranger(metadata, identity)
    if metadata.is_kept or metadata.producer_epoch != identity.producer_epoch:
        raise Refused(ErrorCode.PRODUCER_FENCED, f"the current epoch is {metadata.producer_epoch}")
    return metadata


def owner_of(metadata: TransactionMetadata | None, identity: ProducerIdentity) -> TransactionMetadata:
    """The metadata, if `identity` may end its transaction. Only the successor may end a kept one."""
    if metadata is None or metadata.owner.producer_id != identity.producer_id:
        raise _stranger(metadata, identity)
    if metadata.owner.producer_epoch != identity.producer_epoch:
        raise Refused(ErrorCode.PRODUCER_FENCED, f"the current epoch is {metadata.owner.producer_epoch}")
    return metadata


def _stranger(metadata: TransactionMetadata | None, identity: ProducerIdentity) -> Refused:
    """The refusal of a producer id that is not the current one. It may be the next one, which EndTxn returned."""
    if metadata is not None and metadata.state in PREPARED and identity == metadata.next_identity:
        return Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "the markers of the last transaction are not written yet")
    return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def expected_identity(request: InitProducerIdRequest) -> ProducerIdentity | None:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise Refused(ErrorCode.INVALID_REQUEST, "producer id and epoch must be given together")
    if request.producer_id == NO_PRODUCER_ID:
        return None
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def may_renew(metadata: TransactionMetadata, expected: ProducerIdentity) -> bool:
    """Whether a producer with this identity may ask for a new epoch. `after_init` checks the epoch itself."""
    if metadata.producer_epoch == NO_PRODUCER_EPOCH or metadata.state in PREPARED:
        # Safe: the id is new, or the table refuses all requests for now.
        return True
    if metadata.state is TransactionState.ONGOING:
        # A zombie that asks for a new epoch must not abort the transaction of its successor.
        return expected == metadata.owner
    if expected.producer_id == metadata.producer_id:
        return True
    return expected.producer_id == metadata.previous_producer_id and expected.producer_epoch >= LAST_CLIENT_EPOCH


def is_repeated_end(metadata: TransactionMetadata, identity: ProducerIdentity) -> bool:
    """Whether this EndTxn is decided already and is sent again because its answer was lost."""
    if metadata.state not in PREPARED and metadata.state not in COMPLETED:
        return False
    if metadata.state in COMPLETED and metadata.producer_epoch == MAX_EPOCH:
        # Aborted by timeout at the last epoch: no identity is left to return, so the producer must ask for one.
        return False
    follower = ProducerIdentity(identity.producer_id, identity.producer_epoch + 1)
    rotated = (
        metadata.state in COMPLETED
        and metadata.producer_epoch == 0
        and metadata.previous_producer_id == identity.producer_id
        and identity.producer_epoch == LAST_CLIENT_EPOCH
    )
    return rotated or follower in (metadata.identity, metadata.next_identity)


# The steps: each returns the metadata after it


def new_metadata(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """The metadata of a new id. `after_init` gives it its first epoch."""
    return TransactionMetadata(
        transactional_id, producer_id, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY, last_update_ms=now_ms
    )


def next_state(old: TransactionMetadata, event: TransactionEvent) -> TransactionState:
    """The next state by the table; `Refused` if the table has an error code there."""
    cell = TRANSACTION_TABLE.step(old.state, event)
    if isinstance(cell, TransactionState):
        return cell
    raise Refused(cell, f"{event.value} while {old.transactional_id!r} is {old.state.title}")


def after_init(
    old: TransactionMetadata,
    expected: ProducerIdentity | None,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> TransactionMetadata:
    """A producer takes over: bump the epoch, or change the producer id if no epoch is left.

    With `expected` a producer asks for a new epoch after an error (KIP-360). It must have the current epoch, or repeat
    the request that gave it the current one.
    """
    producer_id, epoch, last_epoch = old.producer_id, old.producer_epoch, NO_PRODUCER_EPOCH
    repeated = False
    if expected is not None and epoch != NO_PRODUCER_EPOCH:
        if expected == old.identity:
            last_epoch = epoch
        elif expected.producer_epoch == old.last_producer_epoch and epoch <= LAST_CLIENT_EPOCH:
            repeated, last_epoch = True, old.last_producer_epoch
        else:
            raise Refused(ErrorCode.PRODUCER_FENCED, f"{expected} is neither the current identity nor the one before")
    if not repeated:
        if old.is_exhausted():
            producer_id, epoch = new_producer_id(), 0
        else:
            epoch += 1
    return replace(
        old,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        previous_producer_id=old.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=NO_PARTITIONS,
        start_ms=NO_TIMESTAMP,
        last_update_ms=now_ms,
    )


def after_keep(
    old: TransactionMetadata, timeout_ms: int, now_ms: int, new_producer_id: NewProducerId
) -> TransactionMetadata:
    """A successor takes over and keeps the prepared transaction open. Only the successor may end it now."""
    owner = old.owner
    if owner.producer_epoch >= LAST_CLIENT_EPOCH:
        successor = ProducerIdentity(new_producer_id(), 0)
    else:
        successor = ProducerIdentity(owner.producer_id, owner.producer_epoch + 1)
    return replace(
        old,
        previous_producer_id=old.producer_id,
        next_producer_id=successor.producer_id,
        next_producer_epoch=successor.producer_epoch,
        timeout_ms=timeout_ms,
        # The successor's timeout starts now: the writer had none, and may have begun long ago.
        start_ms=old.start_ms if timeout_ms == NO_TIMEOUT_MS else now_ms,
        last_update_ms=now_ms,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )


def with_partitions(
    old: TransactionMetadata, partitions: frozenset[TopicPartition], client_transaction_version: int, now_ms: int
) -> TransactionMetadata:
    """Add partitions. The first one opens the transaction and starts its timeout."""
    return TransactionMetadata(
        old.transactional_id,
        old.producer_id,
        old.producer_epoch,
        old.timeout_ms,
        TransactionState.ONGOING,
        now_ms,
        old.start_ms if old.state is TransactionState.ONGOING else now_ms,
        old.partitions | partitions,
        client_transaction_version,
        old.producer_id,
        old.next_producer_id,
        old.next_producer_epoch,
        old.last_producer_epoch,
    )


def after_end(
    old: TransactionMetadata | None,
    identity: ProducerIdentity,
    commit: bool,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> tuple[TransactionMetadata | None, ProducerIdentity]:
    """An EndTxn of protocol V2: the metadata after it, and the identity the producer goes on with.

    The metadata is None if the EndTxn is decided already and is repeated because its answer was lost.
    """
    if old is not None and is_repeated_end(old, identity):
        event = TransactionEvent.COMMIT_AGAIN if commit else TransactionEvent.ABORT_AGAIN
    else:
        old = owner_of(old, identity)
        event = TransactionEvent.COMMIT if commit else TransactionEvent.ABORT
    cell = TRANSACTION_TABLE.step(old.state, event)
    if isinstance(cell, TransactionState):
        new = after_prepare(old, cell, EPOCH_BUMPING, now_ms, new_producer_id)
        return new, new.next_identity
    if cell is ErrorCode.NONE:
        return None, old.identity
    raise Refused(cell)


def after_prepare(
    old: TransactionMetadata,
    state: TransactionState,
    client_transaction_version: int,
    now_ms: int,
    new_producer_id: NewProducerId | None,
) -> TransactionMetadata:
    """The outcome is decided. Under protocol V2 the markers carry an epoch above all epochs of the data.

    Without `new_producer_id` an exhausted producer id stays at 32767, and the next InitProducerId replaces it.
    """
    epoch, last_epoch = old.producer_epoch, old.last_producer_epoch
    next_id, next_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if client_transaction_version >= EPOCH_BUMPING:
        last_epoch = epoch
        if old.is_kept:
            epoch, next_id, next_epoch = _identity_after_keep(old, new_producer_id)
        else:
            if old.is_exhausted() and new_producer_id is not None:
                next_id = new_producer_id()
            epoch = min(epoch + 1, MAX_EPOCH)
    return TransactionMetadata(
        old.transactional_id,
        old.producer_id,
        epoch,
        old.timeout_ms,
        state,
        now_ms,
        old.start_ms if old.state is TransactionState.ONGOING else now_ms,
        old.partitions,
        client_transaction_version,
        old.producer_id,
        next_id,
        next_epoch,
        last_epoch,
    )


def _identity_after_keep(old: TransactionMetadata, new_producer_id: NewProducerId | None) -> tuple[int, int, int]:
    """The markers' epoch, and the identity after them, when a successor ends a kept transaction."""
    if old.next_producer_epoch >= LAST_CLIENT_EPOCH and new_producer_id is not None:
        return MAX_EPOCH, new_producer_id(), NO_PRODUCER_EPOCH
    if old.next_producer_id == old.producer_id:
        return old.next_producer_epoch + 1, NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    return MAX_EPOCH, old.next_producer_id, old.next_producer_epoch + 1


def after_fence(
    old: TransactionMetadata,
    server_transaction_version: int,
    now_ms: int,
    new_producer_id: NewProducerId | None = None,
) -> TransactionMetadata:
    """The coordinator aborts for an absent owner. It bumps the epoch once, so that the owner is fenced."""
    invariant(
        old.state is TransactionState.ONGOING, f"only an open transaction is fenced, {old.transactional_id!r} is not"
    )
    state = next_state(replace(old, state=TransactionState.PREPARE_EPOCH_FENCE), TransactionEvent.FENCED)
    if server_transaction_version >= EPOCH_BUMPING or old.is_kept:
        return after_prepare(old, state, EPOCH_BUMPING, now_ms, new_producer_id)
    bumped = replace(old, producer_epoch=min(old.producer_epoch + 1, MAX_EPOCH), last_producer_epoch=NO_PRODUCER_EPOCH)
    return after_prepare(bumped, state, 0, now_ms, new_producer_id)


def after_completion(old: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """All partitions have their marker: the next transaction may begin."""
    state = next_state(old, TransactionEvent.MARKED)
    if state not in COMPLETED:
        raise InvariantViolation(f"markers lead to {state.title}")
    identity = old.next_identity
    return TransactionMetadata(
        old.transactional_id,
        identity.producer_id,
        identity.producer_epoch,
        old.timeout_ms,
        state,
        now_ms,
        old.start_ms,
        NO_PARTITIONS,
        old.client_transaction_version,
        old.producer_id,
        last_producer_epoch=old.last_producer_epoch,
    )

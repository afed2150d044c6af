"""What is known about one transactional id, and how each step changes it.

A `TransactionMetadata` is a value: a step returns the next one and touches nothing (the three steps of every
transaction name all its fields in order, which costs a third of `replace`). The epochs obey three rules that
fencing stands on: an epoch of a producer id never falls, 32767 is never handed to a client (the coordinator needs one
epoch above the client's to fence it), and when 32766 is used up a fresh producer id takes over at epoch 0.
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

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
MAX_EPOCH = 32767
#: The last epoch a client may use.
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
#: A transaction with this timeout belongs to an outside coordinator (two-phase commit) and is never timed out.
NO_TIMEOUT_MS = 2147483647
#: The transaction protocol in which every EndTxn bumps the epoch (KIP-890).
EPOCH_BUMPING = 2

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()

NewProducerId = Callable[[], int]


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """One transactional id as it is stored.

    `last_producer_epoch` is the one thing remembered that is not stored, as in Kafka: it lets a producer repeat the
    InitProducerId whose answer it lost (KIP-360), and is forgotten with a change of coordinator.
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
        """Who wrote the records of the open transaction; under `PREPARED`, whom the markers name."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def owner(self) -> ProducerIdentity:
        """Who may speak for this id now: after a kept two-phase transaction, the successor and not the writer."""
        if self.is_kept:
            return ProducerIdentity(self.next_producer_id, self.next_producer_epoch)
        return self.identity

    @property
    def is_kept(self) -> bool:
        """A successor took over while the transaction stayed open (KIP-939)."""
        return self.state is TransactionState.ONGOING and self.next_producer_id != NO_PRODUCER_ID

    @property
    def next_identity(self) -> ProducerIdentity:
        """The identity the client goes on with once this prepared transaction is complete."""
        if self.state in PREPARED and self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, max(self.next_producer_epoch, 0))
        return self.identity

    @property
    def deadline_ms(self) -> int | None:
        """When the open transaction is to be aborted; None if it never is."""
        if self.state is not TransactionState.ONGOING or self.timeout_ms == NO_TIMEOUT_MS:
            return None
        return self.start_ms + self.timeout_ms

    def is_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_CLIENT_EPOCH


def created(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """An id nobody has used yet: its first epoch is still to come."""
    return TransactionMetadata(
        transactional_id, producer_id, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY, last_update_ms=now_ms
    )


def moved(old: TransactionMetadata, event: TransactionEvent) -> TransactionState:
    """The state the table leads to, or the refusal it holds."""
    cell = TRANSACTION_TABLE.step(old.state, event)
    if isinstance(cell, TransactionState):
        return cell
    raise Refused(cell, f"{event.value} while {old.transactional_id!r} is {old.state.title}")


def initialized(
    old: TransactionMetadata,
    expected: ProducerIdentity | None,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: NewProducerId,
) -> TransactionMetadata:
    """A producer takes over: the epoch is bumped, or the producer id changes where no epoch is left.

    With `expected` a producer renews itself after an error (KIP-360): it must hold the current epoch, or repeat the
    request that gave it the current one.
    """
    producer_id, epoch, last_epoch = old.producer_id, old.producer_epoch, NO_PRODUCER_EPOCH
    repeated = False
    if expected is not None and epoch != NO_PRODUCER_EPOCH:
        if expected == old.identity:
            last_epoch = epoch
        elif expected.producer_epoch == old.last_producer_epoch and epoch <= LAST_CLIENT_EPOCH:
            repeated, last_epoch = True, old.last_producer_epoch
        else:
            raise Refused(ErrorCode.PRODUCER_FENCED, f"{expected} is neither current nor the one before")
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


def kept(old: TransactionMetadata, timeout_ms: int, now_ms: int, new_producer_id: NewProducerId) -> TransactionMetadata:
    """A successor takes over and leaves the prepared transaction open: only it may end the transaction now."""
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
        # A successor with a timeout has that long: the writer's had none, and may have begun long ago.
        start_ms=old.start_ms if timeout_ms == NO_TIMEOUT_MS else now_ms,
        last_update_ms=now_ms,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )


def with_partitions(
    old: TransactionMetadata, partitions: frozenset[TopicPartition], client_transaction_version: int, now_ms: int
) -> TransactionMetadata:
    """The first partition opens the transaction and starts its clock."""
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


def prepared(
    old: TransactionMetadata,
    state: TransactionState,
    client_transaction_version: int,
    now_ms: int,
    new_producer_id: NewProducerId | None,
) -> TransactionMetadata:
    """The outcome is decided. Under protocol V2 the epoch that the markers carry is above every epoch of the data.

    Without a source of producer ids an exhausted one is left at 32767, and the next InitProducerId replaces it.
    """
    epoch, last_epoch = old.producer_epoch, old.last_producer_epoch
    next_id, next_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if client_transaction_version >= EPOCH_BUMPING:
        last_epoch = epoch
        if old.is_kept:
            epoch, next_id, next_epoch = _after_kept(old, new_producer_id)
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


def _after_kept(old: TransactionMetadata, new_producer_id: NewProducerId | None) -> tuple[int, int, int]:
    """Marker epoch, and the identity after the markers, where a successor ends its predecessor's transaction."""
    if old.next_producer_epoch >= LAST_CLIENT_EPOCH and new_producer_id is not None:
        return MAX_EPOCH, new_producer_id(), NO_PRODUCER_EPOCH
    if old.next_producer_id == old.producer_id:
        return old.next_producer_epoch + 1, NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    return MAX_EPOCH, old.next_producer_id, old.next_producer_epoch + 1


def fenced(
    old: TransactionMetadata,
    server_transaction_version: int,
    now_ms: int,
    new_producer_id: NewProducerId | None = None,
) -> TransactionMetadata:
    """The coordinator aborts what its owner left open; the epoch is bumped once, so that the owner cannot go on."""
    invariant(
        old.state is TransactionState.ONGOING, f"only an open transaction is fenced, {old.transactional_id!r} is not"
    )
    state = moved(replace(old, state=TransactionState.PREPARE_EPOCH_FENCE), TransactionEvent.FENCED)
    if server_transaction_version >= EPOCH_BUMPING or old.is_kept:
        return prepared(old, state, EPOCH_BUMPING, now_ms, new_producer_id)
    bumped = replace(old, producer_epoch=min(old.producer_epoch + 1, MAX_EPOCH), last_producer_epoch=NO_PRODUCER_EPOCH)
    return prepared(bumped, state, 0, now_ms, new_producer_id)


def completed(old: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Every partition has its marker: the id is free for the next transaction."""
    state = moved(old, TransactionEvent.MARKED)
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

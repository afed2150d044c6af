"""Who may speak for a transactional id: every check of a producer id and epoch, in one place."""

from __future__ import annotations

from semel.errors import ErrorCode, Refused
from semel.machines.transactions.metadata import (
    LAST_CLIENT_EPOCH,
    MAX_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
)
from semel.machines.transactions.states import COMPLETED, PREPARED, TransactionState
from semel.machines.values import ProducerIdentity
from semel.wire.messages.transactions import InitProducerIdRequest


def writer_of(metadata: TransactionMetadata | None, identity: ProducerIdentity) -> TransactionMetadata:
    """The metadata, if `identity` may write for it; the writer of a kept transaction has been replaced."""
    if metadata is None or metadata.producer_id != identity.producer_id:
        raise _stranger(metadata, identity)
    if metadata.is_kept or metadata.producer_epoch != identity.producer_epoch:
        raise Refused(ErrorCode.PRODUCER_FENCED, f"the current epoch is {metadata.producer_epoch}")
    return metadata


def owner_of(metadata: TransactionMetadata | None, identity: ProducerIdentity) -> TransactionMetadata:
    """The metadata, if `identity` may end its transaction: of a kept one only the successor may."""
    if metadata is None or metadata.owner.producer_id != identity.producer_id:
        raise _stranger(metadata, identity)
    if metadata.owner.producer_epoch != identity.producer_epoch:
        raise Refused(ErrorCode.PRODUCER_FENCED, f"the current epoch is {metadata.owner.producer_epoch}")
    return metadata


def _stranger(metadata: TransactionMetadata | None, identity: ProducerIdentity) -> Refused:
    """A producer id that is not the current one; one that was handed out with an outcome is the next one."""
    if metadata is not None and metadata.state in PREPARED and identity == metadata.next_identity:
        return Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "the markers of the last transaction are on their way")
    return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def expected_identity(request: InitProducerIdRequest) -> ProducerIdentity | None:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise Refused(ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together")
    if request.producer_id == NO_PRODUCER_ID:
        return None
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def may_renew(metadata: TransactionMetadata, expected: ProducerIdentity) -> bool:
    """May the holder of `expected` ask for a new epoch? `initialized` looks at the epoch more closely."""
    if metadata.producer_epoch == NO_PRODUCER_EPOCH or metadata.state in PREPARED:
        # Nothing is given away: the id is new, or everybody is told to come again.
        return True
    if metadata.state is TransactionState.ONGOING:
        # A zombie that renews itself must not abort what its successor has open.
        return expected == metadata.owner
    if expected.producer_id == metadata.producer_id:
        return True
    return expected.producer_id == metadata.previous_producer_id and expected.producer_epoch >= LAST_CLIENT_EPOCH


def is_repeated_end(metadata: TransactionMetadata, identity: ProducerIdentity) -> bool:
    """Is this the EndTxn that has already been decided, sent again because its answer was lost?"""
    if metadata.state not in PREPARED and metadata.state not in COMPLETED:
        return False
    if metadata.state in COMPLETED and metadata.producer_epoch == MAX_EPOCH:
        # Aborted by timeout with the last epoch: there is no identity to hand out, the producer must ask for one.
        return False
    follower = ProducerIdentity(identity.producer_id, identity.producer_epoch + 1)
    rotated = (
        metadata.state in COMPLETED
        and metadata.producer_epoch == 0
        and metadata.previous_producer_id == identity.producer_id
        and identity.producer_epoch == LAST_CLIENT_EPOCH
    )
    return rotated or follower in (metadata.identity, metadata.next_identity)

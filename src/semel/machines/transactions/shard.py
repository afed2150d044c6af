"""The transactional ids of one partition of `__transaction_state`: their metadata, and what is pending or incomplete.

Entries change by `replay` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semel.errors import ErrorCode, Refused
from semel.machines.contract import SendMarkers, StateRecord
from semel.machines.transactions.metadata import NO_PRODUCER_EPOCH, TransactionMetadata
from semel.machines.transactions.records import metadata_of
from semel.machines.transactions.states import PREPARED, TransactionState
from semel.machines.values import TopicPartition


@dataclass(slots=True)
class Pending:
    """A decision that is not written yet: its records in order, each with the metadata it stores."""

    unwritten: list[tuple[StateRecord, TransactionMetadata | None]]
    decided_at_ms: int
    markers: SendMarkers | None = None


@dataclass(slots=True)
class Completion:
    """A decided transaction that waits for its markers."""

    sent: SendMarkers
    unmarked: set[TopicPartition]


@dataclass(slots=True)
class Shard:
    """The transactional ids of one partition of `__transaction_state`."""

    coordinator_epoch: int
    loading: bool = True
    entries: dict[str, TransactionMetadata] = field(default_factory=dict)
    pending: dict[str, Pending] = field(default_factory=dict)
    #: Open transactions: only these can time out.
    ongoing: set[str] = field(default_factory=set)
    #: Prepared transactions, with the partitions that still lack their marker.
    completions: dict[str, Completion] = field(default_factory=dict)

    def check_not_pending(self, transactional_id: str) -> None:
        if transactional_id in self.pending:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "the previous decision is not written yet")

    def replay(self, transactional_id: str, record: StateRecord) -> TransactionMetadata | None:
        """Take in a record. A decision is pending until its last record is replayed.

        The metadata of a pending record is known. Any other record is decoded.
        """
        pending = self.pending.get(transactional_id)
        metadata, last_producer_epoch, known = None, NO_PRODUCER_EPOCH, False
        if pending is not None:
            decided, metadata = pending.unwritten.pop(0)
            known = decided is record
            last_producer_epoch = NO_PRODUCER_EPOCH if metadata is None else metadata.last_producer_epoch
            if not pending.unwritten:
                del self.pending[transactional_id]
        if not known:
            metadata = None
            if record.value is not None:
                metadata = metadata_of(transactional_id, record.value, last_producer_epoch)
        self.ongoing.discard(transactional_id)
        self.completions.pop(transactional_id, None)
        if metadata is None:
            self.entries.pop(transactional_id, None)
            return None
        self.entries[transactional_id] = metadata
        if metadata.state is TransactionState.ONGOING:
            self.ongoing.add(transactional_id)
        elif metadata.state in PREPARED:
            sent = pending.markers if pending is not None else None
            self.completions[transactional_id] = Completion(sent or self.markers_of(metadata), set(metadata.partitions))
        return metadata

    def markers_of(self, metadata: TransactionMetadata) -> SendMarkers:
        return SendMarkers(
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            commit=metadata.state is TransactionState.PREPARE_COMMIT,
            transaction_version=metadata.client_transaction_version,
            partitions=tuple(sorted(metadata.partitions)),
        )

    def completion_of(self, sent: SendMarkers) -> Completion | None:
        """The completion that sent these markers; None if it is over, or began before a reload.

        Under protocol V1 the epoch stays, so two transactions may send equal markers. Comparing by object identity
        tells a late report about the first from a report about the second.
        """
        completion = self.completions.get(sent.transactional_id)
        return completion if completion is not None and completion.sent is sent else None

"""The transactional ids of one partition of `__transaction_state`: what is known of each, and what is under way.

`replay` is the only way an entry ever changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from semel.errors import ErrorCode, Refused
from semel.machines.contract import ProducerIdentity, SendMarkers, TopicPartition
from semel.machines.transaction_log_records import by_topic, metadata_of
from semel.machines.transaction_metadata import TransactionMetadata
from semel.machines.transaction_states import PREPARED, State


@dataclass(slots=True)
class Pending:
    """A decision that was made and is not yet written."""

    records_left: int
    last_producer_epoch: int
    decided_at_ms: int


@dataclass(slots=True)
class Shard:
    """The transactional ids of one partition of `__transaction_state`."""

    coordinator_epoch: int
    loading: bool = True
    entries: dict[str, TransactionMetadata] = field(default_factory=dict)
    pending: dict[str, Pending] = field(default_factory=dict)
    #: Open transactions, the only ones a timeout is looked for in.
    ongoing: set[str] = field(default_factory=set)
    #: Per prepared transaction, the partitions still without their marker.
    unmarked: dict[str, set[TopicPartition]] = field(default_factory=dict)

    def check_not_pending(self, transactional_id: str) -> None:
        if transactional_id in self.pending:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "the previous step is not yet written")

    def replay(self, transactional_id: str, value: bytes | None) -> TransactionMetadata | None:
        """Remember a record; a decision is no longer pending when its last record is here."""
        pending = self.pending.get(transactional_id)
        self.ongoing.discard(transactional_id)
        self.unmarked.pop(transactional_id, None)
        metadata = None
        if value is None:
            self.entries.pop(transactional_id, None)
        else:
            metadata = metadata_of(transactional_id, value)
            if pending is not None:
                metadata = replace(metadata, last_producer_epoch=pending.last_producer_epoch)
            self.entries[transactional_id] = metadata
            if metadata.state is State.ONGOING:
                self.ongoing.add(transactional_id)
            elif metadata.state in PREPARED:
                self.unmarked[transactional_id] = set(metadata.partitions)
        if pending is not None:
            pending.records_left -= 1
            if pending.records_left == 0:
                del self.pending[transactional_id]
        return metadata

    def markers_of(self, metadata: TransactionMetadata) -> SendMarkers:
        return SendMarkers(
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            commit=metadata.state is State.PREPARE_COMMIT,
            transaction_version=metadata.client_transaction_version,
            partitions=tuple(
                TopicPartition(topic, partition)
                for topic, partitions in by_topic(metadata.partitions).items()
                for partition in partitions
            ),
        )

    def is_current(self, sent: SendMarkers) -> bool:
        """Do these markers belong to what is being completed now, and not to an older transaction or coordinator?"""
        metadata = self.entries.get(sent.transactional_id)
        return (
            metadata is not None
            and not self.loading
            and metadata.state in PREPARED
            and sent.coordinator_epoch == self.coordinator_epoch
            and ProducerIdentity(sent.producer_id, sent.producer_epoch) == metadata.identity
            and sent.commit is (metadata.state is State.PREPARE_COMMIT)
        )

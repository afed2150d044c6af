"""The driver's transaction: what it asks the coordinators, and what it makes of their answers.

Guarantees: a commit is decided once. After an answer that leaves the outcome open, `CommitUnknown` is raised and the
identity is dropped: the next `begin` asks for a new epoch, which settles the old transaction, and the batch marker then
tells the outcome. Works with both transaction protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from semel.errors import AuthenticationFailed, ErrorCode, KafkaError, error_for
from semel.machines.pipeline.batch_marker import BatchMarker, is_source_offset
from semel.machines.transactions import requests
from semel.machines.transactions.requests import NO_IDENTITY, GroupMetadata, OffsetAndMetadata, Send
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.offsets import OffsetFetchRequest

#: Answers that say that a newer epoch exists.
_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)

#: Answers to EndTxn that leave the outcome open.
_OUTCOME_OPEN = (*_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)

#: Errors that stay the same however often a batch is tried.
_HOPELESS = (
    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
)


class CommitUnknown(Exception):
    """The commit may or may not have happened. A new InitProducerId and the marker tell."""

    def __init__(self, why: str, code: ErrorCode | None = None) -> None:
        super().__init__(why)
        self.code = code


class DriverFenced(Exception):
    """Another driver has taken over the transactional id. This one stops and does not take the id back."""


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """What the pipeline's group has committed: source offsets, and the marker that was committed with them."""

    offsets: Mapping[TopicPartition, int]
    marker: BatchMarker | None
    #: Where the marker is, if its offset is no source's.
    marker_at: TopicPartition | None = None
    #: Offsets of the group without a marker: another program has committed them.
    of_others: Mapping[TopicPartition, int] = field(default_factory=dict)


def is_worth_another_try(error: Exception) -> bool:
    """Whether a micro-batch that failed with this error may succeed in a new epoch."""
    if isinstance(error, AuthenticationFailed):
        return False
    return not (isinstance(error, KafkaError) and error.code in _HOPELESS)


class DriverTransaction:
    """One transactional id, owned by the driver. All tasks write with its identity.

    For each step there is a method that makes the request, and one that reads the answer.
    """

    def __init__(self, transactional_id: str, group_id: str, *, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.group_id = group_id
        self.timeout_ms = timeout_ms
        self.identity: ProducerIdentity | None = None
        #: The cluster's finalized feature, as it was when the transaction began: one transaction, one protocol.
        self.transaction_version = 2
        self._begun_at_ms = 0.0

    @property
    def implicit_add(self) -> bool:
        """Protocol V2: producing to a partition adds it to the transaction."""
        return self.transaction_version >= 2

    def age_ms(self, now_ms: float) -> float:
        """The time since `begin`. The broker starts its own clock later, never earlier."""
        return now_ms - self._begun_at_ms

    def is_fenced_by_another(self, error: Exception, now_ms: float) -> bool:
        """Whether another driver made the newer epoch. The coordinator makes one too, but only after the timeout."""
        return getattr(error, "code", None) in _FENCED and self.age_ms(now_ms) < self.timeout_ms

    # --- begin ----------------------------------------------------------------------------------------------------

    def begin(self, now_ms: float, transaction_version: int) -> Send | None:
        """Start a transaction. None if the last EndTxn already returned the identity for it."""
        self._begun_at_ms = now_ms
        self.transaction_version = transaction_version
        if self.identity is not None:
            return None
        return requests.init_producer_id(self.transactional_id, NO_IDENTITY, self.timeout_ms)

    def on_begun(self, response: Any) -> None:
        """A new epoch: it fences every task of the old one, and settles what was left open."""
        _raise_for(
            response.error_code,
            f"InitProducerId of '{self.transactional_id}' (transaction.timeout.ms={self.timeout_ms})",
        )
        self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)

    def forget_identity(self) -> None:
        """Make the next `begin` ask for a new epoch."""
        self.identity = None

    # --- progress -------------------------------------------------------------------------------------------------

    def read_progress(self) -> Send:
        """Ask for the committed offsets. `require_stable`: a commit that is not settled yet is a retriable error."""
        request = OffsetFetchRequest(
            group_id=self.group_id,
            topics=None,
            require_stable=True,
            groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group_id, topics=None)],
        )
        return Send(request, "group", self.group_id)

    def on_progress(self, response: Any) -> PipelineProgress:
        group = response.groups[0] if response.groups else response
        what = f"reading the progress of group '{self.group_id}'"
        _raise_for(group.error_code, what)
        offsets: dict[TopicPartition, int] = {}
        marker: BatchMarker | None = None
        marker_at: TopicPartition | None = None
        of_others: dict[TopicPartition, int] = {}
        for topic in group.topics:
            for row in topic.partitions:
                _raise_for(row.error_code, what)
                if row.committed_offset < 0:
                    continue
                place = TopicPartition(topic.name, row.partition_index)
                found = BatchMarker.from_metadata(row.metadata)
                if found is None:
                    of_others[place] = row.committed_offset
                    continue
                of_source = is_source_offset(row.metadata)
                if of_source:
                    offsets[place] = row.committed_offset
                if marker is None or found.batch_id > marker.batch_id:
                    marker, marker_at = found, None if of_source else place
        return PipelineProgress(offsets, marker, marker_at, of_others)

    # --- what goes into the transaction ---------------------------------------------------------------------------

    def add_partition(self, topic: str, partition: int) -> Send:
        """Protocol V1: add a partition before anything is produced to it."""
        place = TopicPartition(topic, partition)
        return requests.add_partitions(self.transactional_id, self._require_identity(), [place])

    def on_partition_added(self, response: Any) -> None:
        for topic in response.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                what = f"adding {topic.name}-{row.partition_index} to '{self.transactional_id}'"
                self._raise_within(row.partition_error_code, what)

    def add_group(self) -> Send | None:
        """Protocol V1: add the group before its offsets are committed. None under V2."""
        if self.implicit_add:
            return None
        return requests.add_offsets(self.transactional_id, self._require_identity(), self.group_id)

    def on_group_added(self, response: Any) -> None:
        self._raise_within(response.error_code, f"adding group '{self.group_id}' to '{self.transactional_id}'")

    def commit_offsets(
        self,
        offsets: Mapping[TopicPartition, int],
        marker: BatchMarker,
        *,
        of_sources: bool = True,
        begins: Mapping[TopicPartition, int] = MappingProxyType({}),
        rows: int | None = None,
    ) -> Send:
        """Put the source offsets and the marker into the transaction.

        Without `of_sources` the offsets only carry the marker: the sources are on another cluster. `begins` and `rows`
        are for the audit: where the micro-batch begins, and how many rows it wrote.
        """

        def metadata(where: TopicPartition) -> str:
            return marker.to_metadata(beside_source_offset=of_sources, begins_at=begins.get(where), rows=rows)

        return requests.commit_offsets(
            self.transactional_id,
            self._require_identity(),
            GroupMetadata(self.group_id),
            {where: OffsetAndMetadata(offset, metadata=metadata(where)) for where, offset in offsets.items()},
            self.transaction_version,
        )

    def on_offsets_committed(self, response: Any) -> None:
        for topic in response.topics:
            for row in topic.partitions:
                what = f"committing offsets of {topic.name}-{row.partition_index} in a transaction"
                self._raise_within(row.error_code, what)

    # --- end ------------------------------------------------------------------------------------------------------

    def end(self, *, commit: bool) -> Send:
        """Commit or abort. The identity is used up, whatever the answer is."""
        identity = self._require_identity()
        self.identity = None
        return requests.end(
            self.transactional_id, identity, committed=commit, transaction_version=self.transaction_version
        )

    def on_ended(self, response: Any, *, commit: bool) -> None:
        """Under V2 the answer holds the identity of the next transaction, which saves a request."""
        word = "commit" if commit else "abort"
        code = ErrorCode.of(response.error_code)
        if code in _OUTCOME_OPEN:
            raise CommitUnknown(
                f"the {word} of '{self.transactional_id}' was answered with {code.name}: {code.meaning}. "
                f"{self._timeout_hint}",
                code,
            )
        _raise_for(code, f"{word} of '{self.transactional_id}'")
        if self.implicit_add and response.producer_id >= 0:
            self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)

    def end_without_answer(self, error: KafkaError, *, commit: bool) -> CommitUnknown:
        """The error to raise when no answer to EndTxn came."""
        word = "commit" if commit else "abort"
        return CommitUnknown(f"no answer to the {word} of '{self.transactional_id}': {error}")

    @property
    def _timeout_hint(self) -> str:
        return (
            f"If the batch took longer than transaction.timeout.ms={self.timeout_ms}, raise it (transaction_timeout_ms "
            "of the pipeline; the broker's limit is transaction.max.timeout.ms)."
        )

    def _raise_within(self, code: int, what: str) -> None:
        """Raise an error of the transaction. A newer epoch may be the coordinator's own, after the timeout."""
        if code in _OUTCOME_OPEN:
            error = ErrorCode.of(code)
            raise error_for(error, f"{what}: {error.meaning}. {self._timeout_hint}")
        _raise_for(code, what)

    def _require_identity(self) -> ProducerIdentity:
        if self.identity is None:
            raise RuntimeError("begin() gives the transaction its identity and comes first")
        return self.identity


def _raise_for(code: int, what: str) -> None:
    if code:
        error = ErrorCode.of(code)
        raise error_for(error, f"{what}: {error.meaning}")

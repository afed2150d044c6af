"""The driver's half of a micro-batch's transaction: the only room of the pipeline that talks to the coordinators.

Guarantees: a commit is decided once. An answer that got lost is asked for again with the same request; where even
that does not settle it, `CommitUnknown` says so and the marker decides after a new InitProducerId. Works with both
transaction protocols; the cluster's finalized feature says which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from semel.client.cluster.cluster import Cluster, Coordinator
from semel.client.cluster.metadata import TopicMetadata
from semel.errors import ErrorCode, KafkaError, error_for
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.offsets import OffsetFetchRequest
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from .marker import Marker

#: The last versions of the old protocol, in which partitions and offsets are added by name before they are used.
_V1 = {"AddPartitionsToTxn": 3, "AddOffsetsToTxn": 3, "TxnOffsetCommit": 3, "EndTxn": 3}

#: Answers to EndTxn after which only the marker can say what became of the transaction.
_UNSETTLED = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


#: Answers that say a newer epoch exists.
_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)


class CommitUnknown(Exception):
    """The commit may or may not have happened; InitProducerId and the marker will tell."""

    def __init__(self, why: str, code: ErrorCode | None = None) -> None:
        super().__init__(why)
        self.code = code


class DriverFenced(Exception):
    """Another driver has taken the transactional id over. This one stops; it must not take the id back."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a group has committed: the source offsets, and the marker that came with them."""

    offsets: Mapping[TopicPartition, int]
    marker: Marker | None


def _checked(code: int, what: str) -> None:
    if code:
        error = ErrorCode.of(code)
        raise error_for(error, f"{what}: {error.meaning}")


class DriverTransaction:
    """One transactional id, owned by the driver; every task writes with its identity."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        group_id: str,
        *,
        timeout_ms: int,
        deadline_ms: int = 120_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._coordinator = Coordinator("transaction", transactional_id)
        self._group = Coordinator("group", group_id)
        self._deadline_ms = deadline_ms
        self.transactional_id = transactional_id
        self.group_id = group_id
        self.timeout_ms = timeout_ms
        self.identity: ProducerIdentity | None = None
        self._clock = clock
        self._begun_at = clock()

    @property
    def implicit_add(self) -> bool:
        """Whether the cluster speaks protocol V2, where producing to a partition adds it to the transaction."""
        return self._cluster.transaction_version >= 2

    @property
    def longest_wait_ms(self) -> float:
        """More than any one step can take: two requests to the coordinators, and finding them."""
        return 2.0 * (self._deadline_ms + float(self._cluster.config["request.timeout.ms"]))

    @property
    def age_ms(self) -> float:
        """How long ago `begin` was called: the broker's clock for the timeout starts later, never earlier."""
        return (self._clock() - self._begun_at) * 1000

    def fenced_by_another(self, error: Exception) -> bool:
        """Whether a newer epoch exists that the coordinator's timeout cannot have made: it was not due yet."""
        code = getattr(error, "code", None)
        return code in _FENCED and self.age_ms < self.timeout_ms

    async def begin(self) -> ProducerIdentity:
        """The identity for the next transaction; a new epoch fences every straggler and settles what was left open."""
        self._begun_at = self._clock()
        if self.identity is None:
            answer = await self._cluster.request_retrying(
                InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms),
                to=self._coordinator,
                timeout_ms=self._deadline_ms,
            )
            _checked(
                answer.error_code,
                f"InitProducerId of '{self.transactional_id}' (transaction.timeout.ms={self.timeout_ms})",
            )
            self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        return self.identity

    def forget_identity(self) -> None:
        """Make the next `begin` ask for a new epoch."""
        self.identity = None

    async def topic(self, name: str) -> TopicMetadata:
        """An output topic and its partitions."""
        return await self._cluster.topic(name, allow_auto_create=True)

    async def knows_topic(self, name: str) -> bool:
        """Whether a topic is on this cluster: a group has no offsets for topics of another one."""
        await self._cluster.refresh_metadata((name,))
        return name in self._cluster.metadata.topics

    async def progress(self, *, patient: bool = True) -> Progress:
        """What was committed last. After `begin` a half-finished commit is settled, and this waits for its outcome.

        Without patience it asks once, and a commit that is not settled is a retriable error.
        """
        request = OffsetFetchRequest(
            group_id=self.group_id,
            topics=None,
            require_stable=True,
            groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group_id, topics=None)],
        )
        if patient:
            answer = await self._cluster.request_retrying(request, to=self._group, timeout_ms=self._deadline_ms)
        else:
            answer = await self._cluster.request(self._group, request)
        group = answer.groups[0] if answer.groups else answer
        _checked(group.error_code, f"reading the progress of group '{self.group_id}'")
        offsets: dict[TopicPartition, int] = {}
        marker: Marker | None = None
        for topic in group.topics:
            for row in topic.partitions:
                _checked(row.error_code, f"reading the progress of group '{self.group_id}'")
                if row.committed_offset < 0:
                    continue
                offsets[TopicPartition(topic.name, row.partition_index)] = row.committed_offset
                found = Marker.from_metadata(row.metadata)
                if found is not None and (marker is None or found.batch_id > marker.batch_id):
                    marker = found
        return Progress(offsets, marker)

    async def add_partition(self, topic: str, partition: int) -> None:
        """Protocol V1: a partition joins the transaction before anything is produced to it."""
        identity = self._owned()
        answer = await self._cluster.request_retrying(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.producer_epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[partition])
                ],
            ),
            to=self._coordinator,
            version=_V1["AddPartitionsToTxn"],
            timeout_ms=self._deadline_ms,
        )
        for result in answer.results_by_topic_v3_and_below:
            for row in result.results_by_partition:
                _checked(row.partition_error_code, f"adding {topic}-{partition} to '{self.transactional_id}'")

    async def commit_offsets(
        self, offsets: Mapping[TopicPartition, int], marker: Marker, *, of_sources: bool = True
    ) -> None:
        """Put the source offsets and the marker into the transaction.

        Without `of_sources` the offsets only carry the marker: the sources are on another cluster.
        """
        identity = self._owned()
        version = None
        if not self.implicit_add:
            version = _V1["TxnOffsetCommit"]
            answer = await self._cluster.request_retrying(
                AddOffsetsToTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.producer_epoch,
                    group_id=self.group_id,
                ),
                to=self._coordinator,
                version=_V1["AddOffsetsToTxn"],
                timeout_ms=self._deadline_ms,
            )
            _checked(answer.error_code, f"adding group '{self.group_id}' to '{self.transactional_id}'")
        metadata = marker.to_metadata(beside_source_offset=of_sources)
        topics: dict[str, list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
        for where, offset in offsets.items():
            topics.setdefault(where.topic, []).append(
                TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=where.partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        answer = await self._cluster.request_retrying(
            TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=self.group_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                topics=[
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=rows)
                    for name, rows in topics.items()
                ],
            ),
            to=self._group,
            version=version,
            timeout_ms=self._deadline_ms,
        )
        for result in answer.topics:
            for row in result.partitions:
                _checked(row.error_code, f"committing offsets of {result.name}-{row.partition_index} in a transaction")

    async def end(self, *, commit: bool) -> None:
        """Commit or abort. Under V2 the answer is the identity of the next transaction, which saves a round trip."""
        identity = self._owned()
        word = "commit" if commit else "abort"
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=commit,
        )
        self.identity = None
        try:
            answer = await self._cluster.request_retrying(
                request,
                to=self._coordinator,
                version=None if self.implicit_add else _V1["EndTxn"],
                timeout_ms=self._deadline_ms,
            )
        except KafkaError as error:
            raise CommitUnknown(f"no answer to the {word} of '{self.transactional_id}': {error}") from error
        code = ErrorCode.of(answer.error_code)
        if code in _UNSETTLED:
            raise CommitUnknown(
                f"the {word} of '{self.transactional_id}' was answered with {code.name}: {code.meaning} If the batch "
                f"took longer than transaction.timeout.ms={self.timeout_ms}, raise it (the broker's limit is "
                "transaction.max.timeout.ms).",
                code,
            )
        _checked(code, f"{word} of '{self.transactional_id}'")
        if self.implicit_add and answer.producer_id >= 0:
            self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def _owned(self) -> ProducerIdentity:
        if self.identity is None:
            raise RuntimeError("begin() gives the transaction its identity and comes first")
        return self.identity

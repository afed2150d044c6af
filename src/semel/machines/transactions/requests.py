"""The requests of a transactional client. The producer and the Spark pipeline build them here and nowhere else.

Each function returns a `Send`: the message, the coordinator it is for, and the newest version that the transaction
protocol in use allows. `transaction_version` is the cluster's finalized feature of that name: 2 means protocol V2, in
which producing to a partition adds it to the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from semel.machines.values import ProducerIdentity, TopicPartition, by_topic
from semel.wire.apis import INIT_PRODUCER_ID_TWO_PHASE_VERSION
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

NO_IDENTITY = ProducerIdentity(-1, -1)


@dataclass(frozen=True, slots=True)
class Send:
    """A request for a coordinator: "transaction" or "group", found by `key`.

    `newest` is the newest version that may be used. `version` asks for exactly that one: a broker without it does not
    have the feature.
    """

    message: Any
    coordinator: str
    key: str
    newest: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Which member of which group commits. A member that the group has removed is refused by it (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The offset that a group reads next, with a text of the caller's choice."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""

_Topic = TypeVar("_Topic")


def init_producer_id(
    transactional_id: str | None,
    identity: ProducerIdentity,
    timeout_ms: int,
    *,
    two_phase_commit: bool = False,
    keep_prepared: bool = False,
) -> Send:
    """Ask for a producer id and an epoch. What an earlier owner of the transactional id left open is aborted."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        enable2_pc=two_phase_commit,
        keep_prepared_txn=keep_prepared,
    )
    version = INIT_PRODUCER_ID_TWO_PHASE_VERSION if two_phase_commit else None
    return Send(request, "transaction", transactional_id or "", newest=5, version=version)


def add_partitions(transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition]) -> Send:
    """Add partitions to the transaction. Only protocol V1 needs it."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in by_topic(partitions).items()
        ],
    )
    return Send(request, "transaction", transactional_id, newest=3)


def add_offsets(transactional_id: str, identity: ProducerIdentity, group_id: str) -> Send:
    """Add a group to the transaction, before its offsets are committed. Only protocol V1 needs it."""
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        group_id=group_id,
    )
    return Send(request, "transaction", transactional_id, newest=4)


def commit_offsets(
    transactional_id: str,
    identity: ProducerIdentity,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    transaction_version: int,
) -> Send:
    """Commit offsets that count when the transaction commits."""
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=offset_rows(
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic,
            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition,
            offsets,
        ),
    )
    return Send(request, "group", group.group_id, newest=5 if transaction_version >= 2 else 4)


def offset_rows(
    topic_class: type[_Topic], partition_class: type[Any], offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[_Topic]:
    """The topics of an OffsetCommit or TxnOffsetCommit request: they differ in their classes only."""
    make_topic: Any = topic_class
    return [
        make_topic(
            name=name,
            partitions=[
                partition_class(
                    partition_index=number,
                    committed_offset=given.offset,
                    committed_leader_epoch=given.leader_epoch,
                    committed_metadata=given.metadata,
                )
                for number in numbers
                for given in (offsets[TopicPartition(name, number)],)
            ],
        )
        for name, numbers in by_topic(offsets).items()
    ]


def end(transactional_id: str, identity: ProducerIdentity, *, committed: bool, transaction_version: int) -> Send:
    """Commit or abort. The same request sent again gets the same answer."""
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=committed,
    )
    return Send(request, "transaction", transactional_id, newest=5 if transaction_version >= 2 else 4)

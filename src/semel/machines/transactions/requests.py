"""What a transactional producer says, as messages; and the values that go into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from semel.machines.values import ProducerIdentity, TopicPartition, by_topic
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Which member of which group commits: with it, a member the group has given up on is refused (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """Where a group goes on reading, with a text of its own."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def add_partitions(
    transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """Announce partitions, as protocol V1 wants it."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in by_topic(partitions).items()
        ],
    )


def add_offsets(transactional_id: str, identity: ProducerIdentity, group_id: str) -> AddOffsetsToTxnRequest:
    """Announce a group whose offsets will be committed, as protocol V1 wants it."""
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        group_id=group_id,
    )


def commit_offsets(
    transactional_id: str,
    identity: ProducerIdentity,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> TxnOffsetCommitRequest:
    """Offsets that count when the transaction commits."""
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
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
        ],
    )


def end(transactional_id: str, identity: ProducerIdentity, *, committed: bool) -> EndTxnRequest:
    """The outcome. Repeated with the same identity it is answered in the same way."""
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=committed,
    )

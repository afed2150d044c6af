"""The requests about offsets: commit, commit in a transaction, fetch, delete. And the expiration of offsets.

A commit is refused unless its sender is a current member (generation or member epoch, member id, instance id). No
offset is visible before its record is replayed. With RequireStable a fetch is told to retry while an open transaction
may change the offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from semel.errors import ErrorCode, Refused
from semel.machines.contract import AT_ONCE, Decision, StateRecord, Steps
from semel.machines.groups.classic.group import ClassicGroup, ClassicGroupState
from semel.machines.groups.committed_offsets import (
    NO_EXPIRY,
    NO_TOPIC_ID,
    CommittedOffset,
    CommittedOffsets,
    GroupView,
)
from semel.machines.groups.records import offset_record, offset_tombstone
from semel.machines.groups.registry import Group, GroupRegistry
from semel.machines.values import ProducerIdentity
from semel.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from semel.wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

INVALID_OFFSET = -1
#: OffsetFetch before version 9 has no member epoch.
UNKNOWN_EPOCH = -1
NO_LEADER_EPOCH = -1
#: From this version on a commit to a missing group gets GROUP_ID_NOT_FOUND, before it ILLEGAL_GENERATION.
GROUP_NOT_FOUND_SINCE = 9
TOPIC_IDS_SINCE = 10
FETCH_GROUPS_SINCE = 8

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

#: The last moment that a record of an offset can have: who asks to keep it for longer asks for ever.
_LAST_MS = 2**63 - 1


class GroupOffsets:
    """Answers offset requests over the groups of a registry."""

    __slots__ = ("_offsets", "_registry")

    def __init__(self, registry: GroupRegistry, offsets: CommittedOffsets) -> None:
        self._registry = registry
        self._offsets = offsets

    # OffsetCommit

    def commit(
        self, request: OffsetCommitRequest, version: int, now_ms: int, heard_from: Callable[[ClassicGroup, str], None]
    ) -> Decision[OffsetCommitResponse]:
        """Commit offsets. A commit counts as a heartbeat of a classic member, so `heard_from` is called."""
        try:
            self._registry.require_served(request.group_id)
            group = self._group_for_commit(request, version)
        except Refused as refused:
            return Decision(self._commit_refused(request, refused.code))
        if isinstance(group, ClassicGroup) and request.member_id in group.members:
            heard_from(group, request.member_id)
        records: list[StateRecord] = []
        reply = OffsetCommitResponse()
        expire_ms = min(now_ms + request.retention_time_ms, _LAST_MS) if request.retention_time_ms >= 0 else NO_EXPIRY
        for topic in request.topics:
            name: str | None = topic.name
            topic_id = topic.topic_id
            if version >= TOPIC_IDS_SINCE:
                name = self._registry.topic_name(topic.topic_id)
            else:
                topic_id = self._topic_id(topic.name)
            partitions = []
            for partition in topic.partitions:
                code = self._check_place(name, partition.partition_index, partition.committed_metadata)
                if code is ErrorCode.NONE and name is not None:
                    records.append(
                        self._record(request.group_id, name, topic_id, partition, now_ms, expire_timestamp_ms=expire_ms)
                    )
                partitions.append(
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                )
            reply.topics.append(
                OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=topic.name, topic_id=topic.topic_id, partitions=partitions
                )
            )
        # Unknown topics come first, in Kafka's order.
        reply.topics.sort(key=lambda topic: not all(row.error_code in _UNKNOWN for row in topic.partitions))
        return Decision(reply, tuple(records))

    def _group_for_commit(self, request: OffsetCommitRequest, version: int) -> Group | None:
        group = self._registry.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if group is None:
            if not request.group_id and version >= GROUP_NOT_FOUND_SINCE and generation >= 0:
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, "the group id is empty")
            if generation < 0:
                # A consumer without a group, or an administrator. The commit creates the group.
                return None
            raise Refused(
                ErrorCode.GROUP_ID_NOT_FOUND if version >= GROUP_NOT_FOUND_SINCE else ErrorCode.ILLEGAL_GENERATION,
                f"group {request.group_id} does not exist",
            )
        if isinstance(group, ClassicGroup):
            group.validate_commit(request.member_id, request.group_instance_id, generation, transactional=False)
        else:
            behind = group.validate_commit(
                request.member_id, request.group_instance_id, generation, version, transactional=False
            )
            if behind is not None:
                for topic in request.topics:
                    topic_id = topic.topic_id if version >= TOPIC_IDS_SINCE else self._topic_id(topic.name)
                    for partition in topic.partitions:
                        group.validate_commit_of(behind, generation, topic_id, partition.partition_index)
        return group

    @staticmethod
    def _commit_refused(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponse.OffsetCommitResponsePartition(
                            partition_index=partition.partition_index, error_code=code
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    # TxnOffsetCommit

    def txn_commit(
        self, request: TxnOffsetCommitRequest, version: int, now_ms: int
    ) -> Decision[TxnOffsetCommitResponse]:
        """Commit offsets in a transaction. Fenced by generation and member where given (KIP-447)."""
        code = ErrorCode.NONE
        try:
            self._registry.require_served(request.group_id)
            self._validate_txn_commit(request, version)
        except Refused as refused:
            code = refused.code
        records: list[StateRecord] = []
        reply = TxnOffsetCommitResponse()
        for topic in request.topics:
            topic_id = self._topic_id(topic.name)
            partitions = []
            for partition in topic.partitions:
                place_code = code
                if code is ErrorCode.NONE:
                    place_code = self._check_place(topic.name, partition.partition_index, partition.committed_metadata)
                    if place_code is ErrorCode.NONE:
                        records.append(self._record(request.group_id, topic.name, topic_id, partition, now_ms))
                partitions.append(
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=place_code
                    )
                )
            reply.topics.append(
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions)
            )
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        return Decision(reply, tuple(record._replace(producer=producer) for record in records))

    def _validate_txn_commit(self, request: TxnOffsetCommitRequest, version: int) -> None:
        if not request.group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        group = self._registry.groups.get(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                raise Refused(ErrorCode.ILLEGAL_GENERATION, f"group {request.group_id} does not exist")
            return
        if isinstance(group, ClassicGroup):
            group.validate_commit(
                request.member_id, request.group_instance_id, request.generation_id, transactional=True
            )
            return
        try:
            behind = group.validate_commit(
                request.member_id, request.group_instance_id, request.generation_id, version, transactional=True
            )
            if behind is not None:
                for topic in request.topics:
                    topic_id = self._topic_id(topic.name)
                    for partition in topic.partitions:
                        group.validate_commit_of(behind, request.generation_id, topic_id, partition.partition_index)
        except Refused as refused:
            # TxnOffsetCommit has no code for a stale member epoch.
            if refused.code is ErrorCode.STALE_MEMBER_EPOCH:
                raise Refused(ErrorCode.ILLEGAL_GENERATION, str(refused)) from refused
            raise

    # Shared by both commits

    def _topic_id(self, topic: str) -> UUID:
        info = None if self._registry.topics is None else self._registry.topics.get(topic)
        return NO_TOPIC_ID if info is None else info.topic_id

    def _check_place(self, topic: str | None, partition: int, metadata: str | None) -> ErrorCode:
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if not self._registry.knows_partition(topic, partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if metadata is not None and len(metadata) > self._registry.settings.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _record(
        self,
        group_id: str,
        topic: str,
        topic_id: UUID,
        partition: OffsetCommitRequest.OffsetCommitRequestPartition
        | TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition,
        now_ms: int,
        *,
        expire_timestamp_ms: int = NO_EXPIRY,
    ) -> StateRecord:
        return offset_record(
            self._registry.partition_for(group_id),
            group_id,
            topic,
            partition.partition_index,
            CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                now_ms,
                expire_timestamp_ms,
                topic_id,
                0,
            ),
        )

    # OffsetFetch

    def fetch(self, request: OffsetFetchRequest, version: int) -> Steps[OffsetFetchResponse]:
        if version >= FETCH_GROUPS_SINCE:
            groups = []
            for group in request.groups:
                groups.append((yield from self._fetch_group(group, version, request.require_stable)))
                yield
            return OffsetFetchResponse(groups=groups)
        reply = OffsetFetchResponse()
        group_id = request.group_id
        code = self._fetch_code(group_id, None, UNKNOWN_EPOCH)
        wanted = None if request.topics is None else [(t.name, t.partition_indexes) for t in request.topics]
        if code is not ErrorCode.NONE:
            reply.error_code = code
            if version >= 2:
                wanted = []
        view, stable = self._view(group_id), request.require_stable
        row = OffsetFetchResponse.OffsetFetchResponsePartition
        for name, indexes in list(self._places_to_fetch(group_id, wanted)):
            partitions = yield from _fetch_rows(row, view, name, indexes, stable, code)
            reply.topics.append(OffsetFetchResponse.OffsetFetchResponseTopic(name=name, partitions=partitions))
        return reply

    def _fetch_group(
        self, group: OffsetFetchRequest.OffsetFetchRequestGroup, version: int, require_stable: bool
    ) -> Steps[OffsetFetchResponse.OffsetFetchResponseGroup]:
        reply = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id)
        code = self._fetch_code(group.group_id, group.member_id, group.member_epoch)
        if code is not ErrorCode.NONE:
            reply.error_code = code
            return reply
        topic_row = OffsetFetchResponse.OffsetFetchResponseTopics
        row = OffsetFetchResponse.OffsetFetchResponsePartitions
        wanted = None
        unknown = []
        if group.topics is not None:
            wanted = []
            for topic in group.topics:
                name = self._registry.topic_name(topic.topic_id) if version >= TOPIC_IDS_SINCE else topic.name
                if name is not None:
                    wanted.append((name, topic.partition_indexes))
                else:
                    unknown.append(topic)
        view = self._view(group.group_id)
        for name, indexes in list(self._places_to_fetch(group.group_id, wanted)):
            topic_id = self._topic_id(name)
            if version < TOPIC_IDS_SINCE or topic_id != NO_TOPIC_ID:
                partitions = yield from _fetch_rows(row, view, name, indexes, require_stable, ErrorCode.NONE)
                reply.topics.append(topic_row(name=name, topic_id=topic_id, partitions=partitions))
        for topic in unknown:  # after the known ones, in Kafka's order
            code = ErrorCode.UNKNOWN_TOPIC_ID
            partitions = yield from _fetch_rows(row, view, "", topic.partition_indexes, require_stable, code)
            reply.topics.append(topic_row(topic_id=topic.topic_id, partitions=partitions))
        return reply

    def _view(self, group_id: str) -> GroupView:
        """The offsets of a group. A deleted group has only pending ones."""
        view = self._offsets.view(group_id)
        return view if group_id in self._registry.groups else view.without_committed()

    def _fetch_code(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        try:
            self._registry.require_served(group_id)
            group = self._registry.groups.get(group_id)
            if group is not None and not isinstance(group, ClassicGroup):
                group.validate_fetch(member_id, member_epoch)
        except Refused as refused:
            return refused.code
        return ErrorCode.NONE

    def _places_to_fetch(
        self, group_id: str, wanted: list[tuple[str, list[int]]] | None
    ) -> Iterator[tuple[str, list[int]]]:
        """The partitions to fetch. If the request names none, all partitions with an offset."""
        if wanted is not None:
            yield from wanted
            return
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(self._offsets.places(group_id)):
            by_topic.setdefault(topic, []).append(partition)
        yield from by_topic.items()

    # OffsetDelete and expiration

    def delete(self, request: OffsetDeleteRequest) -> Decision[OffsetDeleteResponse]:
        try:
            if not request.group_id:
                raise Refused(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
            self._registry.require_served(request.group_id)
            group = self._registry.groups.get(request.group_id)
            if group is None:
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"group {request.group_id} does not exist")
            if (
                isinstance(group, ClassicGroup)
                and group.state is not ClassicGroupState.EMPTY
                and not group.uses_consumer_protocol_type
            ):
                raise Refused(ErrorCode.NON_EMPTY_GROUP, "the group has members, and their topics are not known")
        except Refused as refused:
            return Decision(OffsetDeleteResponse(error_code=refused.code))
        records: list[StateRecord] = []
        reply = OffsetDeleteResponse()
        for topic in request.topics:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic.name) else ErrorCode.NONE
            partitions = []
            for partition in topic.partitions:
                index = partition.partition_index
                place_code = code
                if not self._registry.knows_partition(topic.name, index):
                    place_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif code is ErrorCode.NONE and self._has(request.group_id, topic.name, index):
                    records.append(self._tombstone(request.group_id, topic.name, index))
                partitions.append(
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(partition_index=index, error_code=place_code)
                )
            reply.topics.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        return Decision(reply, tuple(records))

    def tombstones(self, group_id: str) -> list[StateRecord]:
        """Tombstones of all offsets of a group, committed and pending."""
        places = {*self._offsets.places(group_id), *self._offsets.pending_places(group_id)}
        return [self._tombstone(group_id, *place) for place in sorted(places)]

    def topic_tombstones(self, topics: set[str]) -> Iterator[tuple[str, list[StateRecord]]]:
        """By group, the tombstones of its offsets of these topics."""
        for group_id, places in list(self._offsets.groups_with_topic(topics)):
            if self._registry.is_loaded(self._registry.partition_for(group_id)):
                yield group_id, [self._tombstone(group_id, *place) for place in places]

    def tombstones_of_recreated_topics(self, group: Group) -> list[StateRecord]:
        """Tombstones of offsets whose topic was deleted and created again while the group was not loaded."""
        topics = self._registry.topics or {}
        return [
            self._tombstone(group.group_id, topic, partition)
            for (topic, partition), offset in self._offsets.of_group(group.group_id).items()
            if offset.topic_id != NO_TOPIC_ID and topic in topics and topics[topic].topic_id != offset.topic_id
        ]

    def expired_tombstones(self, group: Group, now_ms: int) -> tuple[list[StateRecord], bool]:
        """Tombstones of expired offsets, and whether the group has no other offsets."""
        retention_ms = self._registry.settings.offsets_retention_ms
        group_id = group.group_id
        offsets = self._offsets.of_group(group_id)
        gone = [
            self._tombstone(group_id, topic, partition)
            for (topic, partition), offset in offsets.items()
            if not self._offsets.is_pending(group_id, topic, partition)
            and group.expires(offset, topic, retention_ms, now_ms)
        ]
        return gone, len(gone) == len(offsets) and not self._offsets.pending_places(group_id)

    def _has(self, group_id: str, topic: str, partition: int) -> bool:
        return self._offsets.committed(group_id, topic, partition) is not None or self._offsets.is_pending(
            group_id, topic, partition
        )

    def _tombstone(self, group_id: str, topic: str, partition: int) -> StateRecord:
        return offset_tombstone(self._registry.partition_for(group_id), group_id, topic, partition)


def _fetch_rows(
    partition_class: Any, view: GroupView, topic: str, indexes: list[int], require_stable: bool, code: ErrorCode
) -> Steps[list[Any]]:
    partitions = []
    for number, index in enumerate(indexes):
        if number % AT_ONCE == AT_ONCE - 1:
            yield
        if code is not ErrorCode.NONE:
            partitions.append(_no_offset(partition_class, index, code))
        elif require_stable and view.is_pending(topic, index):
            partitions.append(_no_offset(partition_class, index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
        elif (offset := view.committed(topic, index)) is None:
            partitions.append(_no_offset(partition_class, index, ErrorCode.NONE))
        else:
            partitions.append(
                partition_class(
                    partition_index=index,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    error_code=ErrorCode.NONE,
                )
            )
    return partitions


def _no_offset(partition_class: Any, index: int, code: ErrorCode) -> Any:
    return partition_class(
        partition_index=index,
        committed_offset=INVALID_OFFSET,
        committed_leader_epoch=NO_LEADER_EPOCH,
        metadata="",
        error_code=code,
    )

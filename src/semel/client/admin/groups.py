"""Administration of consumer groups and their committed offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from semel.client.admin.requests import AdminPart, within_api_timeout
from semel.client.admin.values import GroupDescription, GroupListing, MemberDescription
from semel.client.argument_lists import as_flag, as_id, as_ids, as_texts
from semel.client.cluster.cluster import Coordinator
from semel.client.cluster.response_errors import check
from semel.client.offset_arguments import Offsets, PartitionLike, as_offsets, as_partitions
from semel.client.offset_requests import commit_offsets, fetch_committed
from semel.errors import CommitFailed, ErrorCode, Misuse, Refused
from semel.machines.transactions.producer import GroupMetadata, OffsetAndMetadata
from semel.machines.values import TopicPartition, by_topic
from semel.wire import decode_versioned
from semel.wire.apis import ApiKey
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeRequest
from semel.wire.messages.coordinator_records import ConsumerProtocolAssignment
from semel.wire.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from semel.wire.messages.offsets import OffsetDeleteRequest

_NOT_A_CONSUMER_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


class GroupAdmin(AdminPart):
    """Groups, as an administrator sees them."""

    @within_api_timeout
    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """All groups of all brokers, or those in these states ("Stable", "Empty") and of these types."""
        request = ListGroupsRequest(states_filter=as_texts(states, "states"), types_filter=as_texts(types, "types"))
        await self._refresh(())
        answers = await asyncio.gather(*(self._ask(request, node_id) for node_id in self.cluster.metadata.nodes))
        found = {}
        for response in answers:
            check(response.error_code, "listing groups")
            for row in response.groups:
                found[row.group_id] = GroupListing(
                    row.group_id, row.group_state, row.group_type.lower(), row.protocol_type
                )
        return [found[group_id] for group_id in sorted(found)]

    @within_api_timeout
    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """State and members of these groups, whichever protocol they speak."""
        wanted = as_ids(group_ids, "group_ids")
        await self._refresh(())
        return {group_id: await self._describe_group(group_id) for group_id in wanted}

    async def _describe_group(self, group_id: str) -> GroupDescription:
        to = Coordinator("group", group_id)
        if await self.cluster.serves(ApiKey.CONSUMER_GROUP_DESCRIBE):
            request = ConsumerGroupDescribeRequest(group_ids=[group_id])
            response = await self._ask(request, to)
            row = response.groups[0]
            if ErrorCode.of(row.error_code) not in _NOT_A_CONSUMER_GROUP:
                check(row.error_code, f"describing group '{group_id}'", row.error_message)
                return await self._consumer_group(row)
        classic = DescribeGroupsRequest(groups=[group_id])
        response = await self._ask(classic, to)
        row = response.groups[0]
        check(row.error_code, f"describing group '{group_id}'", row.error_message)
        return await self._classic_group(row)

    async def _classic_group(self, row: Any) -> GroupDescription:
        members = tuple(
            MemberDescription(
                m.member_id, m.group_instance_id, m.client_id, m.client_host, _assignment(m.member_assignment)
            )
            for m in row.members
        )
        coordinator = await self.cluster.coordinator("group", row.group_id)
        return GroupDescription(row.group_id, row.group_state, "classic", row.protocol_data, coordinator, members)

    async def _consumer_group(self, row: Any) -> GroupDescription:
        members = tuple(
            MemberDescription(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                tuple(
                    TopicPartition(topic.topic_name, number)
                    for topic in m.assignment.topic_partitions
                    for number in topic.partitions
                ),
            )
            for m in row.members
        )
        coordinator = await self.cluster.coordinator("group", row.group_id)
        return GroupDescription(row.group_id, row.group_state, "consumer", row.assignor_name, coordinator, members)

    @within_api_timeout
    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, with their offsets."""
        for group_id in as_ids(group_ids, "group_ids"):
            request = DeleteGroupsRequest(groups_names=[group_id])
            response = await self._ask(request, Coordinator("group", group_id))
            for row in response.results:
                check(row.error_code, f"deleting group '{row.group_id}'")

    @within_api_timeout
    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[PartitionLike] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """A group's committed offsets: all of them, or those of these partitions."""
        wanted = None if partitions is None else dict.fromkeys(as_partitions(partitions))
        return await fetch_committed(
            self.cluster,
            as_id(group_id, "group_id"),
            wanted,
            require_stable=as_flag(require_stable, "require_stable"),
            timeout_ms=self._timeout_ms,
        )

    @within_api_timeout
    async def alter_group_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Set the offsets of a group without members."""
        given = as_offsets(offsets)
        group = GroupMetadata(as_id(group_id, "group_id"))
        try:
            await commit_offsets(self.cluster, group, given, timeout_ms=self._timeout_ms)
        except CommitFailed as refused:
            why = f"group '{group_id}' has members, whose offsets are their own: stop them first"
            raise Misuse(ErrorCode.NON_EMPTY_GROUP, why) from refused

    @within_api_timeout
    async def delete_group_offsets(self, group_id: str, partitions: Iterable[PartitionLike]) -> None:
        """Forget the group's offsets for these partitions, which it must not be reading."""
        request = OffsetDeleteRequest(
            group_id=as_id(group_id, "group_id"),
            topics=[
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[
                        OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=number) for number in numbers
                    ],
                )
                for name, numbers in by_topic(dict.fromkeys(as_partitions(partitions))).items()
            ],
        )
        response = await self._ask(request, Coordinator("group", group_id))
        check(response.error_code, f"deleting offsets of group '{group_id}'")
        for topic in response.topics:
            for row in topic.partitions:
                check(row.error_code, f"deleting the offset of {topic.name}-{row.partition_index} of '{group_id}'")


def _assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """What a classic member was given; groups of other programs than consumers speak their own language."""
    if not data:
        return ()
    try:
        told = decode_versioned(ConsumerProtocolAssignment, data)
    except Refused:
        return ()
    return tuple(TopicPartition(row.topic, number) for row in told.assigned_partitions for number in row.partitions)

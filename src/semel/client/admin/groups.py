"""Consumer groups and their committed offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from semel.client.admin.requests import AdminRequests, within_api_timeout
from semel.client.admin.values import GroupDescription, GroupListing, MemberDescription
from semel.client.argument_lists import as_flag, as_id, as_ids, as_texts
from semel.client.cluster.cluster import Coordinator
from semel.client.cluster.response_errors import check
from semel.client.offset_arguments import Offsets, PartitionLike, as_offsets, as_partitions
from semel.client.offset_requests import commit_offsets, fetch_committed
from semel.errors import CommitFailed, ErrorCode, Misuse, Refused
from semel.machines.transactions.producer import GroupMetadata, OffsetAndMetadata
from semel.machines.values import TopicPartition, by_topic
from semel.wire.apis import ApiKey
from semel.wire.consumer_protocol import read_assignment
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeRequest
from semel.wire.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from semel.wire.messages.offsets import OffsetDeleteRequest

_NOT_A_CONSUMER_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


class GroupAdmin:
    """The part of the admin client for groups."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    @within_api_timeout
    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """All groups of all brokers, or only those in these states ("Stable", "Empty") and of these types."""
        request = ListGroupsRequest(states_filter=as_texts(states, "states"), types_filter=as_texts(types, "types"))
        await self._requests.refresh(())
        nodes = self._requests.cluster.metadata.nodes
        answers = await asyncio.gather(*(self._requests.send(request, node_id) for node_id in nodes))
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
        """State and members of these groups, of either group protocol."""
        wanted = as_ids(group_ids, "group_ids")
        await self._requests.refresh(())
        return {group_id: await self._describe_group(group_id) for group_id in wanted}

    async def _describe_group(self, group_id: str) -> GroupDescription:
        to = Coordinator("group", group_id)
        if await self._requests.cluster.serves(ApiKey.CONSUMER_GROUP_DESCRIBE):
            request = ConsumerGroupDescribeRequest(group_ids=[group_id])
            response = await self._requests.send(request, to)
            row = response.groups[0]
            if ErrorCode.of(row.error_code) not in _NOT_A_CONSUMER_GROUP:
                check(row.error_code, f"describing group '{group_id}'", row.error_message)
                return await self._consumer_group(row)
        classic = DescribeGroupsRequest(groups=[group_id])
        response = await self._requests.send(classic, to)
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
        coordinator = await self._requests.cluster.coordinator("group", row.group_id)
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
        coordinator = await self._requests.cluster.coordinator("group", row.group_id)
        return GroupDescription(row.group_id, row.group_state, "consumer", row.assignor_name, coordinator, members)

    @within_api_timeout
    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups and their offsets. A group that has members is refused."""
        for group_id in as_ids(group_ids, "group_ids"):
            request = DeleteGroupsRequest(groups_names=[group_id])
            response = await self._requests.send(request, Coordinator("group", group_id))
            for row in response.results:
                check(row.error_code, f"deleting group '{row.group_id}'")

    @within_api_timeout
    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[PartitionLike] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """A group's committed offsets: all of them, or those of these partitions."""
        wanted = None if partitions is None else dict.fromkeys(as_partitions(partitions))
        return await fetch_committed(
            self._requests.cluster,
            as_id(group_id, "group_id"),
            wanted,
            require_stable=as_flag(require_stable, "require_stable"),
            timeout_ms=self._requests.timeout_ms,
        )

    @within_api_timeout
    async def alter_group_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Set the committed offsets of a group. A group that has members is refused."""
        given = as_offsets(offsets)
        group = GroupMetadata(as_id(group_id, "group_id"))
        try:
            await commit_offsets(self._requests.cluster, group, given, timeout_ms=self._requests.timeout_ms)
        except CommitFailed as refused:
            why = f"group '{group_id}' has members, which commit their own offsets: stop them first"
            raise Misuse(ErrorCode.NON_EMPTY_GROUP, why) from refused

    @within_api_timeout
    async def delete_group_offsets(self, group_id: str, partitions: Iterable[PartitionLike]) -> None:
        """Delete the group's offsets for these partitions. No member may be subscribed to their topics."""
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
        response = await self._requests.send(request, Coordinator("group", group_id))
        check(response.error_code, f"deleting offsets of group '{group_id}'")
        for topic in response.topics:
            for row in topic.partitions:
                check(row.error_code, f"deleting the offset of {topic.name}-{row.partition_index} of '{group_id}'")


def _assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a classic member; none for a group whose members are not consumers."""
    if not data:
        return ()
    try:
        told = read_assignment(data)
    except Refused:
        return ()
    return tuple(TopicPartition(row.topic, number) for row in told.assigned_partitions for number in row.partitions)

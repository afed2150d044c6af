"""Requests about offsets: by timestamp to partition leaders, about commits to a group's coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from semel.client.cluster.cluster import Cluster, Coordinator
from semel.client.cluster.response_errors import check, failure
from semel.errors import ErrorCode, KafkaError, RequestTimedOut, Retriable, error_for
from semel.machines.transactions.producer import GroupMetadata, OffsetAndMetadata
from semel.machines.transactions.requests import offset_rows
from semel.machines.values import TopicPartition, by_topic
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """An offset found by timestamp; both are -1 where no record is that young."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    timeout_ms: float,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """For each partition the first offset whose timestamp is not below the given one (-1: the end, -2: the start).

    Under read_committed the end is the last stable offset. If a leader moves, its partitions are asked again.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    tries = 0
    reason: KafkaError | None = None
    while True:
        missing = {partition: timestamp for partition, timestamp in wanted.items() if partition not in found}
        if not missing:
            return found
        answers, last = await ask_leaders(cluster, missing, isolation_level, (deadline - loop.time()) * 1000)
        found |= answers
        if last is None:
            continue
        if reason is None or not isinstance(last, RequestTimedOut):
            reason = last  # that the last request ran out of time says less than what went wrong before
        if loop.time() >= deadline:
            why = f"no offsets for {', '.join(map(str, missing))} after {timeout_ms:g} ms; the reason: {reason.why}"
            raise RequestTimedOut(ErrorCode.REQUEST_TIMED_OUT, why) from reason
        tries += 1
        await asyncio.sleep(min(cluster.backoff(tries), max(0.0, deadline - loop.time())))


async def ask_leaders(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation_level: int, timeout_ms: float
) -> tuple[dict[TopicPartition, OffsetAndTimestamp], KafkaError | None]:
    """Ask every leader once. Returns what was found, and a retriable error if anything is missing."""
    timeout_ms = min(max(1.0, timeout_ms), cluster.config["request.timeout.ms"])
    nodes, last = await _by_leader(cluster, wanted, timeout_ms)
    answers = await asyncio.gather(
        *(
            cluster.request(
                node_id,
                _list_request(partitions, wanted, isolation_level),
                timeout_ms=timeout_ms,
            )
            for node_id, partitions in nodes.items()
        ),
        return_exceptions=True,
    )
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    for partitions, answer in zip(nodes.values(), answers, strict=True):
        if isinstance(answer, Retriable):
            last = answer
            for partition in partitions:
                cluster.forget_topic(partition.topic)
            continue
        if isinstance(answer, BaseException):
            raise answer
        for topic in answer.topics:
            for row in topic.partitions:
                refused = failure(row.error_code, f"offsets of {topic.name}-{row.partition_index}")
                if refused is None:
                    partition = TopicPartition(topic.name, row.partition_index)
                    found[partition] = OffsetAndTimestamp(row.offset, row.timestamp, row.leader_epoch)
                elif isinstance(refused, Retriable):
                    last = refused
                    cluster.forget_topic(topic.name)
                else:
                    raise refused
    return found, last


async def _by_leader(
    cluster: Cluster, wanted: Iterable[TopicPartition], timeout_ms: float
) -> tuple[dict[int, list[TopicPartition]], KafkaError | None]:
    """Group partitions by their leader. One without a leader is left out, with a retriable error as the reason."""
    metadata = cluster.metadata
    last: KafkaError | None = None
    doubtful = {p.topic for p in wanted if p.topic not in metadata.fetched_at or metadata.leader(*p) is None}
    if doubtful:
        try:
            await cluster.refresh_metadata(doubtful, timeout_ms=timeout_ms)
        except Retriable as error:
            last = error
    nodes: dict[int, list[TopicPartition]] = {}
    for partition in wanted:
        leader = metadata.leader(*partition)
        if leader is not None:
            nodes.setdefault(leader, []).append(partition)
        elif partition.topic not in metadata.topics:
            last = last or error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{partition.topic}'")
        else:
            last = last or error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} does not exist or has no leader")
    return nodes, last


def _list_request(
    partitions: list[TopicPartition], wanted: Mapping[TopicPartition, int], isolation_level: int
) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(
                        partition_index=number, timestamp=wanted[TopicPartition(name, number)]
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(partitions).items()
        ],
    )


async def fetch_committed(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool = True,
    timeout_ms: float,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """A group's committed offsets, for these partitions or for all (None). Partitions without one are left out.

    With `require_stable` this waits until transactions with offsets of the group have ended.
    """
    topics = None if partitions is None else by_topic(partitions)
    if topics is not None and not topics:
        return {}
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=None
        if topics is None
        else [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        ],
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group_id,
                member_id=member_id,
                member_epoch=member_epoch,
                topics=None
                if topics is None
                else [
                    OffsetFetchRequest.OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                    for name, numbers in topics.items()
                ],
            )
        ],
        require_stable=require_stable,
    )
    response = await cluster.request_retrying(request, to=Coordinator("group", group_id), timeout_ms=timeout_ms)
    answer: Any = response.groups[0] if response.groups else response
    check(answer.error_code, f"committed offsets of group '{group_id}'")
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in answer.topics:
        for row in topic.partitions:
            check(row.error_code, f"committed offset of group '{group_id}' for {topic.name}-{row.partition_index}")
            if row.committed_offset >= 0:
                found[TopicPartition(topic.name, row.partition_index)] = OffsetAndMetadata(
                    row.committed_offset, row.committed_leader_epoch, row.metadata or ""
                )
    return found


async def commit_offsets(
    cluster: Cluster,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    timeout_ms: float,
) -> None:
    """Commit offsets. Raises `CommitFailed` if the group has moved on without this member."""
    if not offsets:
        return
    request = OffsetCommitRequest(
        group_id=group.group_id,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=offset_rows(
            OffsetCommitRequest.OffsetCommitRequestTopic, OffsetCommitRequest.OffsetCommitRequestPartition, offsets
        ),
    )
    response = await cluster.request_retrying(request, to=Coordinator("group", group.group_id), timeout_ms=timeout_ms)
    for topic in response.topics:
        for row in topic.partitions:
            check(row.error_code, f"commit of group '{group.group_id}' for {topic.name}-{row.partition_index}")

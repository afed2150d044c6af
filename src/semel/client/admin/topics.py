"""Topics, their partitions, records and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semel.client.admin.requests import AdminRequests, within_api_timeout
from semel.client.admin.values import NewTopic
from semel.client.argument_lists import (
    as_dict,
    as_flag,
    as_list,
    as_numbers_by_partition,
    as_settings,
    as_timeout_s,
    as_topics,
)
from semel.client.arguments import INT32_MAX, as_number, as_topic
from semel.client.cluster.cluster import Controller
from semel.client.cluster.metadata import TopicMetadata
from semel.client.cluster.response_errors import check
from semel.client.offset_arguments import PartitionLike
from semel.client.offset_requests import READ_UNCOMMITTED, OffsetAndTimestamp, list_offsets
from semel.errors import ErrorCode, Misuse, TopicExists
from semel.machines.values import TopicPartition
from semel.wire.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)


class TopicAdmin:
    """The part of the admin client for topics."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    @within_api_timeout
    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create topics. The first that cannot be created raises its error; the others are created all the same."""
        wanted = as_list(topics, "topics", _creatable)
        as_flag(validate_only, "validate_only")
        request = CreateTopicsRequest(topics=wanted, timeout_ms=self._requests.timeout_ms, validate_only=validate_only)
        response = await self._requests.send(request, Controller())
        for row in response.topics:
            self._requests.cluster.forget_topic(row.name)
        for row in response.topics:
            check(row.error_code, f"creating topic '{row.name}'", row.error_message)

    @within_api_timeout
    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> None:
        """Create one topic. With `if_not_exists`, a topic that exists already is left as it is."""
        as_flag(if_not_exists, "if_not_exists")
        texts = {} if configs is None else _texts(configs)
        try:
            await self.create_topics([NewTopic(name, partitions, replication_factor, texts)])
        except TopicExists:
            if not if_not_exists:
                raise

    @within_api_timeout
    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics and all their records."""
        names = as_topics(names, "names")
        await self._requests.refresh(())  # a deletion is sent only once, so the controller must be known
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
            topic_names=names,
            timeout_ms=self._requests.timeout_ms,
        )
        response = await self._requests.cluster.request(Controller(), request, timeout_ms=self._requests.timeout_ms)
        for name in names:
            self._requests.cluster.metadata.forget(name)
        for row in response.responses:
            check(row.error_code, f"deleting topic '{row.name}'", row.error_message, final=True)

    @within_api_timeout
    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics; the broker's internal topics only with `internal`."""
        as_flag(internal, "internal")
        await self._requests.refresh(None)
        topics = self._requests.cluster.metadata.topics
        return sorted(name for name, info in topics.items() if internal or not info.is_internal)

    @within_api_timeout
    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        """Partitions, leaders and replicas of these topics."""
        names = as_topics(names, "names")
        for name in names:
            self._requests.cluster.forget_topic(name)
        await self._requests.refresh(names)
        for name in names:
            if name not in self._requests.cluster.metadata.topics:
                raise Misuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        return {name: self._requests.cluster.metadata.topics[name] for name in names}

    @within_api_timeout
    async def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Give topics more partitions. The number is the new total."""
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(
                    name=as_topic(name),
                    count=as_number(count, f"the count of '{name}'", 1, INT32_MAX),
                    assignments=None,
                )
                for name, count in as_dict(counts, "counts").items()
            ],
            timeout_ms=self._requests.timeout_ms,
        )
        response = await self._requests.send(request, Controller())
        for row in response.results:
            self._requests.cluster.forget_topic(row.name)
            check(row.error_code, f"adding partitions to topic '{row.name}'", row.error_message)

    @within_api_timeout
    async def delete_records(self, before: Mapping[PartitionLike, int]) -> dict[TopicPartition, int]:
        """Delete all records below an offset (-1: all records). Returns the new first offset of each partition."""
        found: dict[TopicPartition, int] = {}
        for partition, offset in as_numbers_by_partition(before, "before", "an offset", -1).items():
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsRequest.DeleteRecordsTopic(
                        name=partition.topic,
                        partitions=[
                            DeleteRecordsRequest.DeleteRecordsPartition(
                                partition_index=partition.partition, offset=offset
                            )
                        ],
                    )
                ],
                timeout_ms=self._requests.timeout_ms,
            )
            response = await self._requests.send_to_leader(request, partition)
            row = response.topics[0].partitions[0]
            check(row.error_code, f"deleting records of {partition} before {offset}")
            found[partition] = row.low_watermark
        return found

    async def list_offsets(
        self,
        wanted: Mapping[PartitionLike, int],
        *,
        isolation_level: int = READ_UNCOMMITTED,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by timestamp: -1 for the end, -2 for the beginning, -3 for the newest timestamp.

        A partition that has no leader or cannot be read is asked again until `timeout_ms` is over (by default
        default.api.timeout.ms).
        """
        limit_ms = self._requests.timeout_ms if timeout_ms is None else as_timeout_s(timeout_ms) * 1000
        return await list_offsets(
            self._requests.cluster,
            as_numbers_by_partition(wanted, "wanted", "a timestamp", -(2**63)),
            isolation_level=as_number(isolation_level, "isolation_level", 0, 1),
            timeout_ms=limit_ms,
        )


def _creatable(topic: object) -> CreateTopicsRequest.CreatableTopic:
    if not isinstance(topic, NewTopic):
        raise TypeError(f"topics is a list of NewTopic, not of {type(topic).__name__}")
    return CreateTopicsRequest.CreatableTopic(
        name=as_topic(topic.name),
        num_partitions=as_number(topic.partitions, "partitions", -1, INT32_MAX),
        replication_factor=as_number(topic.replication_factor, "replication_factor", -1, 2**15 - 1),
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
            for name, value in _texts(topic.configs).items()
        ],
    )


def _texts(configs: object) -> dict[str, str]:
    """Settings of a new topic. None has no meaning here: there is nothing to reset."""
    found = as_settings(configs)
    for name, value in found.items():
        if value is None:
            raise Misuse(ErrorCode.INVALID_CONFIG, f"{name}=None: leave the setting out to get its default")
    return {name: value for name, value in found.items() if value is not None}

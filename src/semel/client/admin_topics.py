"""Administration of topics, their partitions, their settings and their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semel.client.admin_part import AdminPart
from semel.client.admin_values import ClusterDescription, ConfigEntry, NewTopic
from semel.client.answers import check
from semel.client.cluster import Controller, Leader
from semel.client.metadata import Node, TopicInfo
from semel.client.offset_requests import READ_UNCOMMITTED, OffsetAndTimestamp, list_offsets
from semel.client.offsets import PartitionLike, as_partition
from semel.errors import ErrorCode, Misuse, TopicExists
from semel.machines.contract import TopicPartition
from semel.wire.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from semel.wire.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from semel.wire.messages.metadata import DescribeClusterRequest

RESOURCE_TYPES = {"topic": 2, "broker": 4, "broker_logger": 8, "client_metrics": 16, "group": 32}
#: Kafka's numbers for where a setting's value comes from.
CONFIG_SOURCES = {
    1: "topic",
    2: "broker, dynamic",
    3: "brokers, dynamic default",
    4: "broker, static",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
_DEFAULT_SOURCE = 5
_SET, _DELETE = 0, 1


class TopicAdmin(AdminPart):
    """Topics, as an administrator sees them."""

    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Make topics; the first that cannot be made is raised, the others are made all the same."""
        wanted = [
            CreateTopicsRequest.CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=name, value=str(value))
                    for name, value in topic.configs.items()
                ],
            )
            for topic in topics
        ]
        request = CreateTopicsRequest(topics=wanted, timeout_ms=self._timeout_ms, validate_only=validate_only)
        response = await self._ask(request, Controller())
        for row in response.topics:
            self.cluster.forget_topic(row.name)
        for row in response.topics:
            check(row.error_code, f"creating topic '{row.name}'", row.error_message)

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> None:
        """Make one topic; with `if_not_exists` one that is there already is left as it is."""
        texts = {setting: str(value) for setting, value in (configs or {}).items()}
        try:
            await self.create_topics([NewTopic(name, partitions, replication_factor, texts)])
        except TopicExists:
            if not if_not_exists:
                raise

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all their records."""
        names = list(names)
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
            topic_names=names,
            timeout_ms=self._timeout_ms,
        )
        response = await self.cluster.request(Controller(), request, timeout_ms=self._timeout_ms)
        for name in names:
            self.cluster.metadata.forget(name)
        for row in response.responses:
            check(row.error_code, f"deleting topic '{row.name}'", row.error_message, final=True)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, the broker's own left out unless asked for."""
        await self.cluster.refresh_metadata(None, timeout_ms=self._timeout_ms)
        topics = self.cluster.metadata.topics
        return sorted(name for name, info in topics.items() if internal or not info.is_internal)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Partitions, leaders and replicas of these topics."""
        names = list(names)
        for name in names:
            self.cluster.forget_topic(name)
        await self.cluster.refresh_metadata(names, timeout_ms=self._timeout_ms)
        for name in names:
            if name not in self.cluster.metadata.topics:
                raise Misuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        return {name: self.cluster.metadata.topics[name] for name in names}

    async def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Give topics more partitions: the number is how many there shall be in all."""
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
                for name, count in counts.items()
            ],
            timeout_ms=self._timeout_ms,
        )
        response = await self._ask(request, Controller())
        for row in response.results:
            self.cluster.forget_topic(row.name)
            check(row.error_code, f"adding partitions to topic '{row.name}'", row.error_message)

    async def describe_configs(self, kind: str, name: str) -> dict[str, ConfigEntry]:
        """The settings of a "topic" or a "broker"."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=RESOURCE_TYPES[kind], resource_name=name, configuration_keys=None
                )
            ]
        )
        to = int(name) if kind == "broker" and name else None
        response = await self._ask(request, to)
        result = response.results[0]
        check(result.error_code, f"settings of {kind} '{name}'", result.error_message)
        return {
            row.name: ConfigEntry(
                row.name,
                row.value,
                CONFIG_SOURCES.get(row.config_source, "unknown"),
                row.config_source == _DEFAULT_SOURCE,
                row.is_sensitive,
                row.read_only,
            )
            for row in result.configs
        }

    async def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, object], *, validate_only: bool = False
    ) -> None:
        """Set single settings of a "topic" or a "broker"; None takes a setting back to its default."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=RESOURCE_TYPES[kind],
                    resource_name=name,
                    configs=[
                        IncrementalAlterConfigsRequest.AlterableConfig(
                            name=setting,
                            config_operation=_DELETE if value is None else _SET,
                            value=None if value is None else str(value),
                        )
                        for setting, value in changes.items()
                    ],
                )
            ],
            validate_only=validate_only,
        )
        to = int(name) if kind == "broker" and name else Controller()
        response = await self._ask(request, to)
        for row in response.responses:
            check(row.error_code, f"changing {kind} '{row.resource_name}'", row.error_message)

    async def delete_records(self, before: Mapping[PartitionLike, int]) -> dict[TopicPartition, int]:
        """Forget every record below an offset (-1: all there are); the answer is where each partition begins now."""
        found: dict[TopicPartition, int] = {}
        for given, offset in before.items():
            partition = as_partition(given)
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
                timeout_ms=self._timeout_ms,
            )
            to = Leader(partition.topic, partition.partition)
            response = await self._ask(request, to)
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

        A partition that has no leader or cannot be read is asked for again until `timeout_ms` (by default
        `default.api.timeout.ms`) is over.
        """
        return await list_offsets(
            self.cluster,
            {as_partition(partition): timestamp for partition, timestamp in wanted.items()},
            isolation_level=isolation_level,
            timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms,
        )

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers, the controller, and the features the cluster has finalized."""
        response = await self._ask(DescribeClusterRequest())
        check(response.error_code, "describing the cluster", response.error_message)
        nodes = tuple(Node(row.broker_id, row.host, row.port, row.rack) for row in response.brokers)
        return ClusterDescription(
            response.cluster_id, response.controller_id, nodes, dict(self.cluster.finalized_features)
        )

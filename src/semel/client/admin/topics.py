"""Administration of topics, their partitions, their settings and their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semel.client.admin.requests import AdminPart, within_api_timeout
from semel.client.admin.values import ClusterDescription, ConfigEntry, NewTopic
from semel.client.argument_lists import (
    as_dict,
    as_flag,
    as_id,
    as_list,
    as_numbers_by_partition,
    as_settings,
    as_timeout_s,
    as_topics,
)
from semel.client.arguments import INT32_MAX, as_number, as_text, as_topic
from semel.client.cluster.cluster import Controller
from semel.client.cluster.metadata import Node, TopicMetadata
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

    @within_api_timeout
    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Make topics; the first that cannot be made is raised, the others are made all the same."""
        wanted = as_list(topics, "topics", _creatable)
        as_flag(validate_only, "validate_only")
        request = CreateTopicsRequest(topics=wanted, timeout_ms=self._timeout_ms, validate_only=validate_only)
        response = await self._ask(request, Controller())
        for row in response.topics:
            self.cluster.forget_topic(row.name)
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
        """Make one topic; with `if_not_exists` one that is there already is left as it is."""
        as_flag(if_not_exists, "if_not_exists")
        texts = {} if configs is None else _texts(configs)
        try:
            await self.create_topics([NewTopic(name, partitions, replication_factor, texts)])
        except TopicExists:
            if not if_not_exists:
                raise

    @within_api_timeout
    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all their records."""
        names = as_topics(names, "names")
        await self._refresh(())  # a deletion is asked for once, so the way must be there
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

    @within_api_timeout
    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, the broker's own left out unless asked for."""
        as_flag(internal, "internal")
        await self._refresh(None)
        topics = self.cluster.metadata.topics
        return sorted(name for name, info in topics.items() if internal or not info.is_internal)

    @within_api_timeout
    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        """Partitions, leaders and replicas of these topics."""
        names = as_topics(names, "names")
        for name in names:
            self.cluster.forget_topic(name)
        await self._refresh(names)
        for name in names:
            if name not in self.cluster.metadata.topics:
                raise Misuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        return {name: self.cluster.metadata.topics[name] for name in names}

    @within_api_timeout
    async def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Give topics more partitions: the number is how many there shall be in all."""
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(
                    name=as_topic(name),
                    count=as_number(count, f"the count of '{name}'", 1, INT32_MAX),
                    assignments=None,
                )
                for name, count in as_dict(counts, "counts").items()
            ],
            timeout_ms=self._timeout_ms,
        )
        response = await self._ask(request, Controller())
        for row in response.results:
            self.cluster.forget_topic(row.name)
            check(row.error_code, f"adding partitions to topic '{row.name}'", row.error_message)

    @within_api_timeout
    async def describe_configs(self, kind: str, name: str) -> dict[str, ConfigEntry]:
        """The settings of a "topic", a "broker" (by its id), a "group" or "client_metrics"."""
        resource_type, name, node_id = as_resource(kind, name)
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=resource_type, resource_name=name, configuration_keys=None
                )
            ]
        )
        to = await self._broker(node_id)
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

    @within_api_timeout
    async def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, object], *, validate_only: bool = False
    ) -> None:
        """Set single settings of a "topic", "broker" or "group"; None takes a setting back to its default."""
        resource_type, name, node_id = as_resource(kind, name)
        as_flag(validate_only, "validate_only")
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=resource_type,
                    resource_name=name,
                    configs=[
                        IncrementalAlterConfigsRequest.AlterableConfig(
                            name=setting,
                            config_operation=_DELETE if value is None else _SET,
                            value=value,
                        )
                        for setting, value in as_settings(changes, "changes").items()
                    ],
                )
            ],
            validate_only=validate_only,
        )
        to = await self._broker(node_id)
        response = await self._ask(request, Controller() if to is None else to)
        for row in response.responses:
            check(row.error_code, f"changing {kind} '{row.resource_name}'", row.error_message)

    async def _broker(self, node_id: int | None) -> int | None:
        """A broker that answers for itself; a Misuse if the cluster has none of this id."""
        if node_id is None:
            return None
        await self._refresh(())
        if node_id not in self.cluster.metadata.nodes:
            known = ", ".join(map(str, sorted(self.cluster.metadata.nodes)))
            raise Misuse(ErrorCode.INVALID_REQUEST, f"the cluster has no broker {node_id}; its brokers: {known}")
        return node_id

    @within_api_timeout
    async def delete_records(self, before: Mapping[PartitionLike, int]) -> dict[TopicPartition, int]:
        """Forget every record below an offset (-1: all there are); the answer is where each partition begins now."""
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
                timeout_ms=self._timeout_ms,
            )
            response = await self._ask_leader(request, partition)
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
        limit_ms = self._timeout_ms if timeout_ms is None else as_timeout_s(timeout_ms) * 1000
        return await list_offsets(
            self.cluster,
            as_numbers_by_partition(wanted, "wanted", "a timestamp", -(2**63)),
            isolation_level=as_number(isolation_level, "isolation_level", 0, 1),
            timeout_ms=limit_ms,
        )

    @within_api_timeout
    async def describe_cluster(self) -> ClusterDescription:
        """The brokers, the controller, and the features the cluster has finalized."""
        response = await self._ask(DescribeClusterRequest())
        check(response.error_code, "describing the cluster", response.error_message)
        nodes = tuple(Node(row.broker_id, row.host, row.port, row.rack) for row in response.brokers)
        return ClusterDescription(
            response.cluster_id, response.controller_id, nodes, dict(self.cluster.finalized_features)
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
    """Settings of a topic that does not exist yet: there is none to be taken back."""
    found = as_settings(configs)
    for name, value in found.items():
        if value is None:
            raise Misuse(ErrorCode.INVALID_CONFIG, f"{name}=None: leave out what shall have its default")
    return {name: value for name, value in found.items() if value is not None}


def as_resource(kind: object, name: object) -> tuple[int, str, int | None]:
    """What has settings: the number of its kind, its name, and for a broker its id."""
    if as_text(kind, "kind") not in RESOURCE_TYPES:
        known = ", ".join(f'"{one}"' for one in RESOURCE_TYPES)
        raise Misuse(ErrorCode.INVALID_REQUEST, f'kind is "{kind}": it must be one of {known}')
    number = RESOURCE_TYPES[str(kind)]
    if kind not in ("broker", "broker_logger"):
        return number, as_topic(name) if kind == "topic" else as_id(name, "name"), None
    text = str(name) if isinstance(name, int) and not isinstance(name, bool) else as_text(name, "name")
    if not text and kind == "broker":
        return number, text, None  # what all brokers have in common
    if not (text.isascii() and text.isdigit()) or int(text) > INT32_MAX:
        raise Misuse(ErrorCode.INVALID_REQUEST, f'name is "{text}": a broker is named by its id, such as "0"')
    return number, text, int(text)

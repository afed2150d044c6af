"""Settings of topics, brokers and groups, and the description of the cluster."""

from __future__ import annotations

from collections.abc import Mapping

from semel.client.admin.requests import AdminRequests, within_api_timeout
from semel.client.admin.values import ClusterDescription, ConfigEntry
from semel.client.argument_lists import (
    as_flag,
    as_id,
    as_settings,
)
from semel.client.arguments import INT32_MAX, as_text, as_topic
from semel.client.cluster.cluster import Controller
from semel.client.cluster.metadata import Node
from semel.client.cluster.response_errors import check
from semel.errors import ErrorCode, Misuse
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


class ConfigAdmin:
    """The part of the admin client for settings and brokers."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

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
        response = await self._requests.send(request, to)
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
        """Change settings of a "topic", "broker" or "group". The value None resets a setting to its default."""
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
        response = await self._requests.send(request, Controller() if to is None else to)
        for row in response.responses:
            check(row.error_code, f"changing {kind} '{row.resource_name}'", row.error_message)

    async def _broker(self, node_id: int | None) -> int | None:
        """The broker to ask for its own settings. Raises Misuse if the cluster has no broker with this id."""
        if node_id is None:
            return None
        await self._requests.refresh(())
        if node_id not in self._requests.cluster.metadata.nodes:
            known = ", ".join(map(str, sorted(self._requests.cluster.metadata.nodes)))
            raise Misuse(ErrorCode.INVALID_REQUEST, f"the cluster has no broker {node_id}; its brokers: {known}")
        return node_id

    @within_api_timeout
    async def describe_cluster(self) -> ClusterDescription:
        """The brokers, the controller, and the finalized features of the cluster."""
        response = await self._requests.send(DescribeClusterRequest())
        check(response.error_code, "describing the cluster", response.error_message)
        nodes = tuple(Node(row.broker_id, row.host, row.port, row.rack) for row in response.brokers)
        return ClusterDescription(
            response.cluster_id, response.controller_id, nodes, dict(self._requests.cluster.finalized_features)
        )


def as_resource(kind: object, name: object) -> tuple[int, str, int | None]:
    """A resource that has settings: Kafka's number of its kind, its name, and the id if it is a broker."""
    if as_text(kind, "kind") not in RESOURCE_TYPES:
        known = ", ".join(f'"{one}"' for one in RESOURCE_TYPES)
        raise Misuse(ErrorCode.INVALID_REQUEST, f'kind is "{kind}": it must be one of {known}')
    number = RESOURCE_TYPES[str(kind)]
    if kind not in ("broker", "broker_logger"):
        return number, as_topic(name) if kind == "topic" else as_id(name, "name"), None
    text = str(name) if isinstance(name, int) and not isinstance(name, bool) else as_text(name, "name")
    if not text and kind == "broker":
        return number, text, None  # the defaults of all brokers
    if not (text.isascii() and text.isdigit()) or int(text) > INT32_MAX:
        raise Misuse(ErrorCode.INVALID_REQUEST, f'name is "{text}": use the id of a broker, such as "0"')
    return number, text, int(text)

"""Settings of topics, groups and the broker: describe and change them. A change holds from the next request on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any

from semel.broker.configs import (
    describe_broker_settings,
    describe_defaults,
    describe_group_settings,
    describe_topic_settings,
)
from semel.broker.dispatch import Pace
from semel.broker.stored.dynamic_settings import dynamic_setting, is_of_tls
from semel.broker.topics.topic import check_topic_name
from semel.config import GROUP, TOPIC, ConfigError, Setting
from semel.errors import ErrorCode, Refused
from semel.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer
    from semel.broker.tls_listeners import TlsSide
    from semel.broker.topics.topic import Topic

TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

Find = Callable[[str], Setting]
Present = Callable[[str], str | None]
#: The settings that a resource is to have; the second argument is what it has in ZooKeeper, None without a cluster.
OverridesOf = Callable[[Any, Mapping[str, str] | None], dict[str, str]]


def describe_configs(
    broker: BrokerServer, request: DescribeConfigsRequest, call: Call
) -> Generator[None, None, DescribeConfigsResponse]:
    """Describe the settings of topics, groups and this broker. A resource named twice is described once."""
    results = []
    answered = set()
    for resource in request.resources:
        yield
        # Whoever names none wants all, as in Kafka.
        keys = frozenset(resource.configuration_keys) if resource.configuration_keys else None
        asked = (resource.resource_type, resource.resource_name, keys)
        if asked in answered:
            continue
        answered.add(asked)
        result = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        results.append(result)
        try:
            if resource.resource_type == TOPIC_RESOURCE:
                topic = _topic(broker, resource.resource_name)
                rows = describe_topic_settings(broker.stores.broker_settings, topic)
            elif resource.resource_type == BROKER_RESOURCE:
                _check_broker(broker, resource.resource_name)
                described = describe_broker_settings if resource.resource_name else describe_defaults
                rows = described(broker.stores.broker_settings)
            elif resource.resource_type == GROUP_RESOURCE:
                _check_group(resource.resource_name)
                own = broker.stores.group_settings.overrides_of(resource.resource_name)
                rows = describe_group_settings(broker.stores.broker_settings, own)
            elif resource.resource_type in (CLIENT_METRICS_RESOURCE, LOGGER_RESOURCE):
                rows = []
            else:
                raise Refused(ErrorCode.INVALID_REQUEST, f"resources of type {resource.resource_type} have no settings")
            for row in rows:
                if keys is not None and row.name not in keys:
                    continue
                result.configs.append(
                    DescribeConfigsResponse.DescribeConfigsResourceResult(
                        name=row.name,
                        value=row.value,
                        read_only=row.read_only,
                        config_source=row.source,
                        is_sensitive=row.sensitive,
                        synonyms=[
                            DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=source)
                            for name, value, source in (row.synonyms if request.include_synonyms else ())
                        ],
                        config_type=row.kind,
                        documentation=row.doc if request.include_documentation else None,
                    )
                )
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
    return DescribeConfigsResponse(results=results)


def _topic(broker: BrokerServer, name: str) -> Topic:
    check_topic_name(name)
    return broker.topics.get(name)


def _check_broker(broker: BrokerServer, name: str) -> None:
    if name and name != str(broker.node_id):
        raise Refused(ErrorCode.INVALID_REQUEST, f"this is broker {broker.node_id}, not {name}")


def _check_group(group_id: str) -> None:
    if not group_id:
        raise Refused(ErrorCode.INVALID_REQUEST, "a group has a name")


def alter_configs(broker: BrokerServer, request: AlterConfigsRequest, call: Call) -> Any:
    """Replace all own settings of topics, groups or the broker."""

    def replaced(resource: Any, present: Mapping[str, str] | None) -> dict[str, str]:
        _settings_of(broker, resource)
        _check_named_once(resource.configs)
        overrides = {}
        for config in resource.configs:
            if config.value is None:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{config.name} has no value")
            overrides[config.name] = config.value
        return overrides

    return broker.changes.run(_alter(broker, request, call, AlterConfigsResponse, replaced))


def incremental_alter_configs(broker: BrokerServer, request: IncrementalAlterConfigsRequest, call: Call) -> Any:
    """Change some own settings of topics, groups or the broker."""

    def changed(resource: Any, present: Mapping[str, str] | None) -> dict[str, str]:
        find, overrides, in_force = _settings_of(broker, resource)
        if present is not None:
            overrides = dict(present)
        _check_named_once(resource.configs)
        for config in resource.configs:
            _change(find, in_force, overrides, config)
        return overrides

    return broker.changes.run(_alter(broker, request, call, IncrementalAlterConfigsResponse, changed))


def _check_named_once(configs: list[Any]) -> None:
    if len({config.name for config in configs}) != len(configs):
        raise Refused(ErrorCode.INVALID_REQUEST, "a setting is in the request more than once")


async def _alter(
    broker: BrokerServer, request: Any, call: Call, kind: type[Any], overrides_of: OverridesOf
) -> Any:
    """Check every resource, then store the changes: one write for all topics, one for all groups."""
    pace = Pace(broker, call)
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    responses = []
    topics: list[tuple[Topic, dict[str, str]]] = []
    groups: dict[str, dict[str, str]] = {}
    written: dict[int, list[Any]] = {TOPIC_RESOURCE: [], GROUP_RESOURCE: []}
    if broker.cluster is not None:
        await broker.cluster.know_topics(name for kind_of, name in times if kind_of == TOPIC_RESOURCE)
    for resource in request.resources:
        await pace.rest()
        kind_of, name = resource.resource_type, resource.resource_name
        response = kind.AlterConfigsResourceResponse(resource_type=kind_of, resource_name=name, error_message=None)
        responses.append(response)
        try:
            if times[kind_of, name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "a resource is in the request more than once")
            if broker.cluster is not None:
                await _alter_in_cluster(
                    broker, broker.cluster, resource, overrides_of, validate_only=request.validate_only
                )
                continue
            overrides = overrides_of(resource, None)
            if kind_of == TOPIC_RESOURCE:
                broker.topics.values_with(overrides)
                topics.append((broker.topics.get(name), overrides))
            elif kind_of == GROUP_RESOURCE:
                broker.stores.group_settings.check(overrides, broker.settings)
                groups[name] = overrides
            else:
                await _alter_broker(broker, name, overrides, resource.configs, validate_only=request.validate_only)
                await broker.topics.change_defaults(broker.settings, pace.rest)
                continue
            written[kind_of].append(response)
        except Refused as error:
            response.error_code, response.error_message = error.code, error.why
    if not request.validate_only:
        if topics:
            await _try_to_write(broker.topics.configure_all(topics, pace.rest), written[TOPIC_RESOURCE])
        if groups and await _try_to_write(broker.stores.group_settings.replace(groups), written[GROUP_RESOURCE]):
            for group_id in groups:
                broker.groups.configure(group_id)
                await pace.rest()
    return kind(responses=responses)


async def _alter_in_cluster(
    broker: BrokerServer, cluster: Membership, resource: Any, overrides_of: OverridesOf, *, validate_only: bool
) -> None:
    """Change settings in ZooKeeper, on top of what is there."""
    from semel.broker.replication.configs import alter_broker, alter_topic

    name = resource.resource_name

    def topic_settings(present: dict[str, str]) -> dict[str, str]:
        overrides = overrides_of(resource, present)
        broker.topics.values_with(overrides)
        return overrides

    def broker_settings(present: dict[str, str]) -> dict[str, str]:
        overrides = overrides_of(resource, present)
        broker.stores.broker_settings.values_with(name, overrides)
        return overrides

    def group_settings(present: dict[str, str]) -> dict[str, str]:
        overrides = overrides_of(resource, present)
        broker.stores.group_settings.check(overrides, broker.settings)
        return overrides

    if resource.resource_type == TOPIC_RESOURCE:
        broker.topics.get(name)
        await alter_topic(cluster, name, topic_settings, validate_only=validate_only)
    elif resource.resource_type == BROKER_RESOURCE:
        _check_broker(broker, name)
        await alter_broker(cluster, name, broker_settings, validate_only=validate_only)
    elif resource.resource_type == GROUP_RESOURCE:
        await cluster.shared.group_settings.alter(name, group_settings, validate_only=validate_only)
    else:
        why = f"resources of type {resource.resource_type} have no settings that could be changed"
        raise Refused(ErrorCode.INVALID_REQUEST, why)


async def _alter_broker(
    broker: BrokerServer, name: str, overrides: dict[str, str], configs: list[Any], *, validate_only: bool
) -> None:
    """Change settings of the broker. Keys and certificates are read before anything is stored, so that a listener
    never has any that cannot be used. As in Kafka, naming a file again is the way to have it read again."""
    stored = broker.stores.broker_settings
    sides: Mapping[str, TlsSide] = {}
    touched = {config.name for config in configs} | (stored.overrides_of(name).keys() ^ overrides.keys())
    if any(map(is_of_tls, touched)):
        try:
            sides = await broker.listening.read_tls(stored.values_with(name, overrides))
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from None
    stored.replace(name, overrides, validate_only=validate_only)
    if not validate_only:
        broker.settings = stored.values
        broker.listening.use_tls(sides)


async def _try_to_write(change: Coroutine[Any, Any, None], responses: list[Any]) -> bool:
    """Write a change. Returns whether that succeeded; if not, its responses get the error."""
    try:
        await change
    except Refused as error:
        for response in responses:
            response.error_code, response.error_message = error.code, error.why
        return False
    return True


def _settings_of(broker: BrokerServer, resource: Any) -> tuple[Find, dict[str, str], Present]:
    """How to find the row of a resource's setting, the resource's own settings, and how to find the value in force."""
    if resource.resource_type == TOPIC_RESOURCE:
        if not resource.resource_name:
            raise Refused(ErrorCode.INVALID_REQUEST, "what topics have by default are settings of brokers")
        topic = _topic(broker, resource.resource_name)
        return TOPIC.row, dict(topic.overrides), topic.values.text
    if resource.resource_type == BROKER_RESOURCE:
        _check_broker(broker, resource.resource_name)
        settings = broker.stores.broker_settings
        return dynamic_setting, dict(settings.overrides_of(resource.resource_name)), settings.text
    if resource.resource_type == GROUP_RESOURCE:
        _check_group(resource.resource_name)
        own = broker.stores.group_settings
        values = own.values(resource.resource_name, broker.settings)
        return GROUP.row, dict(own.overrides_of(resource.resource_name)), values.text
    if resource.resource_type == CLIENT_METRICS_RESOURCE:
        raise Refused(ErrorCode.INVALID_REQUEST, "metrics of clients are not collected here (KIP-714)")
    raise Refused(ErrorCode.INVALID_REQUEST, f"resources of type {resource.resource_type} cannot be changed here")


def _change(
    find: Find, holds: Present, overrides: dict[str, str], config: IncrementalAlterConfigsRequest.AlterableConfig
) -> None:
    name, value = config.name, config.value
    try:
        row = find(name)
    except ConfigError as error:
        raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from None
    if config.config_operation == DELETE:
        overrides.pop(name, None)
        return
    if value is None:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{name} has no value")
    if config.config_operation == SET:
        overrides[name] = value
        return
    if config.config_operation not in (APPEND, SUBTRACT) or row.kind != "list":
        raise Refused(ErrorCode.INVALID_CONFIG, f"operation {config.config_operation} cannot be done to {name}")
    present = [item for item in (holds(name) or "").split(",") if item]
    given = [item.strip() for item in value.split(",") if item.strip()]
    if config.config_operation == APPEND:
        present += [item for item in given if item not in present]
    else:
        present = [item for item in present if item not in given]
    overrides[name] = ",".join(present)


def list_config_resources(
    broker: BrokerServer, request: ListConfigResourcesRequest, call: Call
) -> Generator[None, None, ListConfigResourcesResponse]:
    """List everything that has settings. Version 0 asks for client metrics only, and there are none."""
    known = {TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE}
    wanted = set(request.resource_types) or known
    if not wanted <= known:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if call.version == 0:
        wanted = {CLIENT_METRICS_RESOURCE}
    row = ListConfigResourcesResponse.ConfigResource
    found = []
    if TOPIC_RESOURCE in wanted:
        for name in sorted(broker.topics.topics):
            found.append(row(resource_name=name, resource_type=TOPIC_RESOURCE))
            yield
    if BROKER_RESOURCE in wanted:
        found.append(row(resource_name=str(broker.node_id), resource_type=BROKER_RESOURCE))
    if GROUP_RESOURCE in wanted:
        for name in sorted(broker.stores.group_settings):
            found.append(row(resource_name=name, resource_type=GROUP_RESOURCE))
            yield
    return ListConfigResourcesResponse(config_resources=found)

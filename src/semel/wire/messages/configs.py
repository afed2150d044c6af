"""Settings and quotas: of topics, brokers, groups and clients."""

from __future__ import annotations

from semel.wire.schema import Bool, Float64, Int8, Int16, Int32, String, field, message, struct


@message(key=32, versions="1-4", flexible=4)
class DescribeConfigsRequest:
    """The settings of these resources."""

    @struct
    class DescribeConfigsResource:
        resource_type: Int8 = 0
        resource_name: String = ""
        configuration_keys: list[String] | None = field(list)

    resources: list[DescribeConfigsResource] = field(list)
    include_synonyms: Bool = False
    include_documentation: Bool = field(False, since=3)


@message(key=32, versions="1-4", flexible=4)
class DescribeConfigsResponse:
    """Every setting with its source and its synonyms."""

    @struct
    class DescribeConfigsSynonym:
        name: String = ""
        value: String | None = ""
        source: Int8 = 0

    @struct
    class DescribeConfigsResourceResult:
        name: String = ""
        value: String | None = ""
        read_only: Bool = False
        config_source: Int8 = -1
        is_sensitive: Bool = False
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = field(list)
        config_type: Int8 = field(0, since=3)
        documentation: String | None = field("", since=3)

    @struct
    class DescribeConfigsResult:
        error_code: Int16 = 0
        error_message: String | None = ""
        resource_type: Int8 = 0
        resource_name: String = ""
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult] = field(list)

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = field(list)


@message(key=33, versions="0-2", flexible=2)
class AlterConfigsRequest:
    """Replace all settings of these resources."""

    @struct
    class AlterableConfig:
        name: String = ""
        value: String | None = ""

    @struct
    class AlterConfigsResource:
        resource_type: Int8 = 0
        resource_name: String = ""
        configs: list[AlterConfigsRequest.AlterableConfig] = field(list)

    resources: list[AlterConfigsResource] = field(list)
    validate_only: Bool = False


@message(key=33, versions="0-2", flexible=2)
class AlterConfigsResponse:
    """The result for each resource."""

    @struct
    class AlterConfigsResourceResponse:
        error_code: Int16 = 0
        error_message: String | None = ""
        resource_type: Int8 = 0
        resource_name: String = ""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = field(list)


@message(key=44, versions="0-1", flexible=1)
class IncrementalAlterConfigsRequest:
    """Set (0), delete (1), append to (2) or subtract from (3) single settings."""

    @struct
    class AlterableConfig:
        name: String = ""
        config_operation: Int8 = 0
        value: String | None = ""

    @struct
    class AlterConfigsResource:
        resource_type: Int8 = 0
        resource_name: String = ""
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = field(list)

    resources: list[AlterConfigsResource] = field(list)
    validate_only: Bool = False


@message(key=44, versions="0-1", flexible=1)
class IncrementalAlterConfigsResponse:
    """The result for each resource."""

    @struct
    class AlterConfigsResourceResponse:
        error_code: Int16 = 0
        error_message: String | None = ""
        resource_type: Int8 = 0
        resource_name: String = ""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = field(list)


@message(key=74, versions="0-1", flexible=0)
class ListConfigResourcesRequest:
    """Ask which resources have settings of their own; in version 0 client metrics only."""

    resource_types: list[Int8] = field(list, since=1)


@message(key=74, versions="0-1", flexible=0)
class ListConfigResourcesResponse:
    """Their names and types."""

    @struct
    class ConfigResource:
        resource_name: String = ""
        resource_type: Int8 = field(16, since=1)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = field(list)


@message(key=48, versions="0-1", flexible=1)
class DescribeClientQuotasRequest:
    """The quotas of the clients that match."""

    @struct
    class ComponentData:
        entity_type: String = ""
        match_type: Int8 = 0
        match: String | None = ""

    components: list[ComponentData] = field(list)
    strict: Bool = False


@message(key=48, versions="0-1", flexible=1)
class DescribeClientQuotasResponse:
    """Quotas by client; null when the request failed."""

    @struct
    class EntityData:
        entity_type: String = ""
        entity_name: String | None = ""

    @struct
    class ValueData:
        key: String = ""
        value: Float64 = 0.0

    @struct
    class EntryData:
        entity: list[DescribeClientQuotasResponse.EntityData] = field(list)
        values: list[DescribeClientQuotasResponse.ValueData] = field(list)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    entries: list[EntryData] | None = field(list)


@message(key=49, versions="0-1", flexible=1)
class AlterClientQuotasRequest:
    """Set or remove quotas."""

    @struct
    class EntityData:
        entity_type: String = ""
        entity_name: String | None = ""

    @struct
    class OpData:
        key: String = ""
        value: Float64 = 0.0
        remove: Bool = False

    @struct
    class EntryData:
        entity: list[AlterClientQuotasRequest.EntityData] = field(list)
        ops: list[AlterClientQuotasRequest.OpData] = field(list)

    entries: list[EntryData] = field(list)
    validate_only: Bool = False


@message(key=49, versions="0-1", flexible=1)
class AlterClientQuotasResponse:
    """The result for each entry."""

    @struct
    class EntityData:
        entity_type: String = ""
        entity_name: String | None = ""

    @struct
    class EntryData:
        error_code: Int16 = 0
        error_message: String | None = ""
        entity: list[AlterClientQuotasResponse.EntityData] = field(list)

    throttle_time_ms: Int32 = 0
    entries: list[EntryData] = field(list)

"""The API versions of a broker and the finalized features of the cluster."""

from __future__ import annotations

from semel.wire.schema import Bool, Int8, Int16, Int32, Int64, String, field, message, struct


@message(key=18, versions="0-4", flexible=3)
class ApiVersionsRequest:
    """The first request on a connection: ask for the API versions."""

    client_software_name: String = field("", since=3)
    client_software_version: String = field("", since=3)


@message(key=18, versions="0-4", flexible=3)
class ApiVersionsResponse:
    """APIs with their versions, and the features that are finalized. Always with a header of version 0."""

    @struct
    class ApiVersion:
        api_key: Int16 = 0
        min_version: Int16 = 0
        max_version: Int16 = 0

    @struct
    class SupportedFeatureKey:
        name: String = field("", since=3)
        min_version: Int16 = field(0, since=3)
        max_version: Int16 = field(0, since=3)

    @struct
    class FinalizedFeatureKey:
        name: String = field("", since=3)
        max_version_level: Int16 = field(0, since=3)
        min_version_level: Int16 = field(0, since=3)

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = field(list)
    throttle_time_ms: Int32 = field(0, since=1)
    supported_features: list[SupportedFeatureKey] = field(list, since=3, tag=0)
    finalized_features_epoch: Int64 = field(-1, since=3, tag=1)
    finalized_features: list[FinalizedFeatureKey] = field(list, since=3, tag=2)
    zk_migration_ready: Bool = field(False, since=3, tag=3)


@message(key=57, versions="0-2", flexible=0)
class UpdateFeaturesRequest:
    """Raise or lower the finalized level of features."""

    @struct
    class FeatureUpdateKey:
        feature: String = ""
        max_version_level: Int16 = 0
        allow_downgrade: Bool = field(False, until=0)
        upgrade_type: Int8 = field(1, since=1)

    timeout_ms: Int32 = 60_000
    feature_updates: list[FeatureUpdateKey] = field(list)
    validate_only: Bool = field(False, since=1)


@message(key=57, versions="0-2", flexible=0)
class UpdateFeaturesResponse:
    """The result."""

    @struct
    class UpdatableFeatureResult:
        feature: String = ""
        error_code: Int16 = 0
        error_message: String | None = ""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[UpdatableFeatureResult] = field(list, until=1)

"""ApiVersions and UpdateFeatures: the APIs, versions and features of this broker."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from semel.broker.handlers import SERVED
from semel.errors import ErrorCode, Refused
from semel.wire.apis import APIS, ApiKey
from semel.wire.messages.features import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

#: Feature -> (lowest, highest, finalized). metadata.version is Kafka 4.3's, for tools that ask.
FEATURES = {
    "group.version": (0, 1, 1),
    "metadata.version": (7, 30, 30),
    "transaction.version": (0, 2, 2),
}
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


def api_versions(broker: BrokerServer, request: ApiVersionsRequest | None, call: Call | None) -> ApiVersionsResponse:
    """List the APIs with their versions, and the finalized features."""
    response = ApiVersionsResponse(
        api_keys=_served(broker),
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high, _) in FEATURES.items()
            # Java clients fail on a minimum level of 0 in version 3, so Kafka leaves it out there.
            if low > 0 or (call is not None and call.version >= 4)
        ],
        finalized_features_epoch=0,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, (_, _, level) in FEATURES.items()
        ],
    )
    if request is not None and call is not None and call.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE.match(name) or not _SOFTWARE.match(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        call.connection.software = (name, version)
    return response


#: The rows of the answers, by what they depend on. Every new connection asks, and nobody changes them.
_ROWS: dict[tuple[bool, int], list[ApiVersionsResponse.ApiVersion]] = {}


def _served(broker: BrokerServer) -> list[ApiVersionsResponse.ApiVersion]:
    """The APIs that this broker serves, with their versions."""
    depends_on = broker.cluster is not None, broker.highest_version(ApiKey.INIT_PRODUCER_ID)
    rows = _ROWS.get(depends_on)
    if rows is None:
        rows = _ROWS[depends_on] = [
            ApiVersionsResponse.ApiVersion(
                api_key=key,
                min_version=APIS[key].advertised_min_version,
                max_version=broker.highest_version(key),
            )
            for key in sorted(SERVED)
            if broker.serves(key)
        ]
    return rows


def update_features(
    broker: BrokerServer, request: UpdateFeaturesRequest, call: Call
) -> Generator[None, None, UpdateFeaturesResponse]:
    """Accept the present level of a feature, refuse any other: levels cannot be changed."""
    results: list[Any] = []
    try:
        for update in request.feature_updates:
            yield
            known = FEATURES.get(update.feature)
            if known is None:
                raise Refused(ErrorCode.INVALID_UPDATE_VERSION, f"there is no feature {update.feature!r}")
            if update.max_version_level != known[2]:
                raise Refused(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"{update.feature} is at level {known[2]} and cannot be set to {update.max_version_level}",
                )
            results.append(UpdateFeaturesResponse.UpdatableFeatureResult(feature=update.feature, error_message=None))
    except Refused as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.why)
    return UpdateFeaturesResponse(error_message=None, results=results)

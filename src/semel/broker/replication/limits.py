"""What is served in a cluster so far. Everything else is neither advertised nor answered, rather than answered wrongly.

docs/not-kafka.md lists it for users.
"""

from __future__ import annotations

from semel.config import ConfigError, Values
from semel.wire.apis import ApiKey

SERVED_IN_A_CLUSTER = frozenset(
    (
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.METADATA,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.API_VERSIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.FIND_COORDINATOR,
        ApiKey.INIT_PRODUCER_ID,
    )
)


def check_settings(settings: Values) -> None:
    """Refuse at once what a cluster cannot have yet."""
    if settings["semel.durability"] != "os":
        raise ConfigError("semel.durability=fsync is not served in a cluster (zookeeper.connect) yet")
    if settings["authorizer.class.name"]:
        raise ConfigError("authorizer.class.name: access rules are not served in a cluster (zookeeper.connect) yet")
    if settings["sasl.enabled.mechanisms"]:
        raise ConfigError("sasl.enabled.mechanisms: SASL is not served in a cluster (zookeeper.connect) yet")
    if settings["security.inter.broker.protocol"] != "PLAINTEXT":
        raise ConfigError("security.inter.broker.protocol: brokers speak PLAINTEXT among themselves, nothing else yet")

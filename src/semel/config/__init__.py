"""Every setting once, under Kafka's own name.

A row has the name of a setting, its type, its default, its bounds and what it is for. The properties file, the dict
given to a client, `--set`, DescribeConfigs and the generated reference all use the same rows. An unknown name is
refused, and the error names the nearest known one.

>>> values = BROKER.parse({"log.segment.bytes": "1048576"})
>>> values["log.segment.bytes"], values.num_partitions
(1048576, 1)
>>> BROKER.parse({"log.segment.byte": "1"})
Traceback (most recent call last):
...
semel.config.ConfigError: unknown broker setting 'log.segment.byte'; did you mean 'log.segment.bytes'?
"""

from semel.config.broker import (
    BROKER,
    GROUP,
    TOPIC,
    ListenerSettings,
    group_values,
    listener_settings,
    topic_values,
)
from semel.config.clients import ADMIN, CONSUMER, PRODUCER
from semel.config.table import INT32_MAX, INT64_MAX, KIND_CODES, ConfigError, Setting, Table, Values

__all__ = [
    "ADMIN",
    "BROKER",
    "CONSUMER",
    "GROUP",
    "INT32_MAX",
    "INT64_MAX",
    "KIND_CODES",
    "PRODUCER",
    "TOPIC",
    "ConfigError",
    "ListenerSettings",
    "Setting",
    "Table",
    "Values",
    "group_values",
    "listener_settings",
    "topic_values",
]

# The name it is caught by is the one a traceback shows.
ConfigError.__module__ = __name__

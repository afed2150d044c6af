"""Settings as DescribeConfigs shows them: the value in force, its source, and its synonyms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.broker.stored.dynamic_settings import ALL_BROKERS, DYNAMIC, DynamicSettings, dynamic_setting
from semel.config import BROKER, GROUP, KIND_CODES, TOPIC, Setting, group_values, topic_values
from semel.config.kept import KEPT, is_secret

if TYPE_CHECKING:
    from semel.broker.topics.topic import Topic

#: Settings that may be given at the start in a coarser unit instead, the finest unit first.
_COARSER = {"log.retention.ms": ("log.retention.minutes", "log.retention.hours"), "log.roll.ms": ("log.roll.hours",)}
#: Kafka's config sources.
FROM_TOPIC, FROM_BROKER, FROM_ALL_BROKERS, FROM_BROKER_FILE, FROM_DEFAULT, FROM_GROUP = 1, 2, 3, 4, 5, 8


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """One setting of an answer."""

    name: str
    value: str | None
    source: int
    kind: int
    doc: str
    read_only: bool
    #: (name, value, source), the one in force first.
    synonyms: tuple[tuple[str, str | None, int], ...]
    #: Whether the value is not shown.
    sensitive: bool = False


def describe_topic_settings(broker: DynamicSettings, topic: Topic) -> list[DescribedSetting]:
    """Every setting of a topic."""
    rows = []
    for row in TOPIC:
        synonyms = []
        if row.name in topic.overrides:
            synonyms.append((row.name, topic.values.text(row.name), FROM_TOPIC))
        if row.broker_name is not None:
            synonyms += _layers(broker, BROKER[row.broker_name])
        rows.append(_describe(row, topic.values.text(row.name), synonyms, read_only=False))
    return rows


def describe_group_settings(broker: DynamicSettings, own: Mapping[str, str]) -> list[DescribedSetting]:
    """Every setting of a group."""
    values = group_values(broker.values, own)
    rows = []
    for row in GROUP:
        value = values.text(row.name)
        synonyms = [(row.name, value, FROM_GROUP)] if row.name in own else []
        if row.broker_name is not None:
            synonyms += _layers(broker, BROKER[row.broker_name])
        rows.append(_describe(row, value, synonyms, read_only=False))
    return rows


def describe_broker_settings(broker: DynamicSettings) -> list[DescribedSetting]:
    """Every setting of the broker, also those without effect and those that were given and ignored."""
    of_topics = {row.broker_name: row.name for row in TOPIC}
    rows = []
    for row in BROKER:
        layers = _layers(broker, row)
        value = layers[0][1]
        if layers[0][0] != row.name:
            # Given in hours: the same in milliseconds.
            value = topic_values(broker.values).text(of_topics[row.name])
        rows.append(_describe(row, value, layers, read_only=row.name not in DYNAMIC))
    of_listeners = {*broker.own, *broker.overrides_of(ALL_BROKERS), *broker.started_with.explicit}
    of_listeners -= {*BROKER.rows, *KEPT.rows}
    for row in (*KEPT, *map(dynamic_setting, sorted(of_listeners))):
        layers = _layers(broker, row)
        rows.append(_describe(row, layers[0][1], layers, read_only=False))
    described = {row.name for row in rows}
    for name, value in broker.started_with.passed_by.items():
        if name not in described:
            row = Setting(name, "password" if is_secret(name) else "string", None, "Passed by.")
            rows.append(_describe(row, value, [(name, value, FROM_BROKER_FILE)], read_only=True))
    return rows


def describe_defaults(broker: DynamicSettings) -> list[DescribedSetting]:
    """The settings that were changed for all brokers."""
    return [
        _describe(dynamic_setting(name), value, [(name, value, FROM_ALL_BROKERS)], read_only=False)
        for name, value in broker.overrides_of(ALL_BROKERS).items()
    ]


def _layers(broker: DynamicSettings, row: Setting) -> list[tuple[str, str | None, int]]:
    """Every value of a broker setting with its source, the one in force first."""
    name, layers = row.name, []
    for changed, source in ((broker.own, FROM_BROKER), (broker.overrides_of(ALL_BROKERS), FROM_ALL_BROKERS)):
        if name in changed:
            layers.append((name, row.write(row.read(changed[name])), source))
    started_with = broker.started_with
    for given in (name, *_COARSER.get(name, ())):
        if given in started_with.explicit:
            layers.append((given, started_with.text(given), FROM_BROKER_FILE))
        elif given in started_with.passed_by:
            layers.append((given, started_with.passed_by[given], FROM_BROKER_FILE))
    layers.append((name, row.write(row.default), FROM_DEFAULT))
    return layers


def _describe(
    row: Setting, value: str | None, synonyms: list[tuple[str, str | None, int]], *, read_only: bool
) -> DescribedSetting:
    source = synonyms[0][2] if synonyms else FROM_DEFAULT
    kind = KIND_CODES.get(row.kind, 0)
    if row.kind == "password":
        # As in Kafka: the source of a password is shown, its value is not.
        hidden = tuple((name, None, where) for name, _, where in synonyms)
        return DescribedSetting(row.name, None, source, kind, row.doc, read_only, hidden, sensitive=True)
    return DescribedSetting(row.name, value, source, kind, row.doc, read_only, tuple(synonyms))

"""Settings as DescribeConfigs shows them: the value that holds, where it comes from, and what stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.broker.dynamic_settings import ALL_BROKERS, DYNAMIC, DynamicSettings
from semel.config import BROKER, GROUP, KIND_CODES, TOPIC, Setting, group_values

if TYPE_CHECKING:
    from semel.broker.partitions import Topic

#: Kafka's config sources.
FROM_TOPIC, FROM_BROKER, FROM_ALL_BROKERS, FROM_BROKER_FILE, FROM_DEFAULT, FROM_GROUP = 1, 2, 3, 4, 5, 8


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """One row of an answer."""

    name: str
    value: str | None
    source: int
    kind: int
    doc: str
    read_only: bool
    #: (name, value, source), what holds first.
    synonyms: tuple[tuple[str, str | None, int], ...]


def described_topic_settings(broker: DynamicSettings, topic: Topic) -> list[DescribedSetting]:
    """Every setting of a topic."""
    rows = []
    for row in TOPIC:
        synonyms = []
        if row.name in topic.overrides:
            synonyms.append((row.name, topic.values.text(row.name), FROM_TOPIC))
        if row.broker_name is not None:
            synonyms += _layers(broker, BROKER[row.broker_name])
        rows.append(_described(row, topic.values.text(row.name), synonyms, read_only=False))
    return rows


def described_group_settings(broker: DynamicSettings, own: Mapping[str, str]) -> list[DescribedSetting]:
    """Every setting of a group."""
    values = group_values(broker.values, own)
    rows = []
    for row in GROUP:
        value = values.text(row.name)
        synonyms = [(row.name, value, FROM_GROUP)] if row.name in own else []
        if row.broker_name is not None:
            synonyms += _layers(broker, BROKER[row.broker_name])
        rows.append(_described(row, value, synonyms, read_only=False))
    return rows


def described_broker_settings(broker: DynamicSettings) -> list[DescribedSetting]:
    """Every setting of the broker."""
    values = broker.values
    return [
        _described(row, values.text(row.name), _layers(broker, row), read_only=row.name not in DYNAMIC)
        for row in BROKER
    ]


def described_defaults(broker: DynamicSettings) -> list[DescribedSetting]:
    """What was changed for all brokers."""
    return [
        _described(BROKER[name], value, [(name, value, FROM_ALL_BROKERS)], read_only=False)
        for name, value in broker.changed(ALL_BROKERS).items()
    ]


def _layers(broker: DynamicSettings, row: Setting) -> list[tuple[str, str | None, int]]:
    """Every value a setting of the broker has somewhere, what holds first."""
    name, layers = row.name, []
    for changed, source in ((broker.own, FROM_BROKER), (broker.changed(ALL_BROKERS), FROM_ALL_BROKERS)):
        if name in changed:
            layers.append((name, row.write(row.read(changed[name])), source))
    if name in broker.started_with.explicit:
        layers.append((name, broker.started_with.text(name), FROM_BROKER_FILE))
    layers.append((name, row.write(row.default), FROM_DEFAULT))
    return layers


def _described(
    row: Setting, value: str | None, synonyms: list[tuple[str, str | None, int]], *, read_only: bool
) -> DescribedSetting:
    source = synonyms[0][2] if synonyms else FROM_DEFAULT
    return DescribedSetting(row.name, value, source, KIND_CODES.get(row.kind, 0), row.doc, read_only, tuple(synonyms))

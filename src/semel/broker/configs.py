"""Settings as DescribeConfigs shows them: the value that holds, where it comes from, and what stands behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.config import BROKER, KIND_CODES, TOPIC, Setting, Values

if TYPE_CHECKING:
    from semel.broker.partitions import Topic

#: Kafka's config sources.
FROM_TOPIC, FROM_BROKER_FILE, FROM_DEFAULT = 1, 4, 5


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """One row of an answer."""

    name: str
    value: str | None
    source: int
    kind: int
    doc: str
    #: (name, value, source), what holds first.
    synonyms: tuple[tuple[str, str | None, int], ...]


def described_topic_settings(broker: Values, topic: Topic) -> list[DescribedSetting]:
    """Every setting of a topic."""
    rows = []
    for row in TOPIC:
        synonyms = []
        if row.name in topic.overrides:
            synonyms.append((row.name, topic.values.text(row.name), FROM_TOPIC))
        if row.broker_name is not None:
            if row.broker_name in broker.explicit:
                synonyms.append((row.broker_name, broker.text(row.broker_name), FROM_BROKER_FILE))
            synonyms.append((row.broker_name, row.write(row.default), FROM_DEFAULT))
        rows.append(_described(row, topic.values.text(row.name), synonyms))
    return rows


def described_broker_settings(broker: Values) -> list[DescribedSetting]:
    """Every setting of the broker."""
    rows = []
    for row in BROKER:
        synonyms = [(row.name, row.write(row.default), FROM_DEFAULT)]
        if row.name in broker.explicit:
            synonyms.insert(0, (row.name, broker.text(row.name), FROM_BROKER_FILE))
        rows.append(_described(row, broker.text(row.name), synonyms))
    return rows


def _described(row: Setting, value: str | None, synonyms: list[tuple[str, str | None, int]]) -> DescribedSetting:
    source = synonyms[0][2] if synonyms else FROM_DEFAULT
    return DescribedSetting(row.name, value, source, KIND_CODES.get(row.kind, 0), row.doc, tuple(synonyms))

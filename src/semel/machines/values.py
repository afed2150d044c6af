"""Values that all conversations share: a partition by name, and who writes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


def is_topic_name(name: str) -> bool:
    """Whether Kafka takes this for the name of a topic.

    >>> is_topic_name("payments.v-2"), is_topic_name("a b"), is_topic_name("..")
    (True, False, False)
    """
    return name not in (".", "..") and _TOPIC_NAME.match(name) is not None


class TopicPartition(NamedTuple):
    """A partition by name; sorts and hashes as the pair it is."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, both in order, so that equal sets make equal bytes.

    >>> by_topic([TopicPartition("payments", 1), TopicPartition("ledger", 0), TopicPartition("payments", 0)])
    {'ledger': [0], 'payments': [0, 1]}
    """
    topics: dict[str, list[int]] = {}
    for name, partition in sorted(partitions):
        topics.setdefault(name, []).append(partition)
    return topics


class ProducerIdentity(NamedTuple):
    """Who writes: a producer id and the epoch that fences its predecessors."""

    producer_id: int
    producer_epoch: int

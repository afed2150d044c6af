"""One topic: its name, its id, its own settings, its partitions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from semel.broker.topics.internal import INTERNAL_TOPICS
from semel.config import INT64_MAX, Values
from semel.errors import ErrorCode, Refused
from semel.log.checkpoints import topic_id_text
from semel.machines.values import is_topic_name

if TYPE_CHECKING:
    from semel.broker.topics.partition import Partition

#: A topic in name only: DescribeQuorum asks about it.
CLUSTER_METADATA = "__cluster_metadata"
#: Kafka's bound on what one request may create.
NEW_PARTITIONS_MAX = 10_000


def check_topic_name(name: str) -> None:
    """Refuse what Kafka refuses as a topic name."""
    if not is_topic_name(name):
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name[:249]!r} is not legal: 1 to 249 letters, digits, '.', '_' and '-', not '.' or '..'",
        )


def check_new_partitions(count: int) -> None:
    """Refuse what Kafka refuses as too much for one request."""
    if count > NEW_PARTITIONS_MAX:
        raise Refused(
            ErrorCode.POLICY_VIOLATION, f"{count} new partitions in one request, {NEW_PARTITIONS_MAX} are the most"
        )


def flat_name(name: str) -> str:
    """A topic's name as Kafka's metrics write it. They cannot tell '.' and '_' apart."""
    return name.replace(".", "_")


class Topic:
    """A topic: its id, its own settings, its partitions."""

    __slots__ = (
        "_values",
        "flush_messages",
        "id_text",
        "internal",
        "min_insync_replicas",
        "name",
        "overrides",
        "partitions",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: uuid.UUID, overrides: dict[str, str], values: Values) -> None:
        self.name = name
        self.topic_id = topic_id
        #: As Kafka writes it, in ZooKeeper too.
        self.id_text = topic_id_text(topic_id)
        self.overrides = overrides
        self.values = values
        self.partitions: list[Partition] = []
        self.internal = name in INTERNAL_TOPICS

    @property
    def values(self) -> Values:
        """The settings in force: the topic's own over the broker's."""
        return self._values

    @values.setter
    def values(self, values: Values) -> None:
        self._values = values
        self.min_insync_replicas: int = values["min.insync.replicas"]
        #: After how many records an fsync is forced; None leaves it to the operating system.
        self.flush_messages: int | None = values["flush.messages"] if values["flush.messages"] < INT64_MAX else None

    def partition(self, index: int) -> Partition:
        """The partition of this number."""
        if 0 <= index < len(self.partitions):
            return self.partitions[index]
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} has no partition {index}")

"""The broker's own topics, which hold the state of its coordinators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.broker.topics.registry import TopicRegistry
    from semel.broker.topics.topic import Topic
    from semel.config import Values

TRANSACTION_STATE = "__transaction_state"
CONSUMER_OFFSETS = "__consumer_offsets"
INTERNAL_TOPICS = frozenset((TRANSACTION_STATE, CONSUMER_OFFSETS))
#: The settings that say how many partitions they are created with.
PARTITIONS_OF_INTERNAL_TOPICS = {
    TRANSACTION_STATE: "transaction.state.log.num.partitions",
    CONSUMER_OFFSETS: "offsets.topic.num.partitions",
}


def internal_settings(name: str, settings: Values) -> dict[str, str]:
    """The settings that an internal topic is created with, as in Kafka."""
    if name == TRANSACTION_STATE:
        return {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(settings["transaction.state.log.min.isr"]),
            "segment.bytes": str(settings["transaction.state.log.segment.bytes"]),
            "unclean.leader.election.enable": "false",
        }
    return {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(settings["offsets.topic.segment.bytes"]),
    }


class InternalTopics:
    """Creates an internal topic when it is first needed, with Kafka's settings for it."""

    def __init__(self, topics: TopicRegistry, settings: Callable[[], Values]) -> None:
        """`settings` gives the broker's settings as they are now."""
        self._topics = topics
        self._settings = settings

    def get(self, name: str) -> Topic:
        """The internal topic of this name."""
        topic = self._topics.topics.get(name)
        return self._create(name) if topic is None else topic

    def _create(self, name: str) -> Topic:
        settings = self._settings()
        count: int = settings[PARTITIONS_OF_INTERNAL_TOPICS[name]]
        return self._topics.create(name, count, internal_settings(name, settings))

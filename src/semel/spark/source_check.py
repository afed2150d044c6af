"""What `load()` checks with the brokers: topics, partitions, and the offsets that name them."""

from __future__ import annotations

from collections.abc import Mapping

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster
from semel.config import ConfigError

from .connections import RESTART_PATIENCE_MS, connect
from .limits import find_topic
from .source_options import OptionError, SourceOptions, kafka_mistake

#: How long to wait for a topic: not all brokers may know it yet.
TOPIC_PATIENCE_MS = 2_000


def check_topics(options: SourceOptions) -> None:
    """Refuse a topic or a partition that does not exist, at `load()`."""
    loop = LoopThread("semel-source-check")
    try:
        loop.run(_check_topics(options))
    finally:
        loop.close()


async def _check_topics(options: SourceOptions) -> None:
    try:
        cluster = await connect(options.client_settings, patience_ms=RESTART_PATIENCE_MS)
    except ConfigError as error:
        raise OptionError(kafka_mistake(error)) from None
    try:
        assigned = options.assigned or ()
        counts = {}
        for name in dict.fromkeys((*options.topics, *(place.topic for place in assigned))):
            counts[name] = await _partition_count(cluster, name, dict(options.client_settings)["bootstrap.servers"])
        if options.pattern is None:
            _check_bounds(options, counts)
        for place in assigned:
            if not 0 <= place.partition < counts[place.topic]:
                raise OptionError(
                    f"assign names {place}, and topic '{place.topic}' has partitions 0 to {counts[place.topic] - 1}"
                )
    finally:
        await cluster.close()


def _check_bounds(options: SourceOptions, counts: Mapping[str, int]) -> None:
    """Refuse an offset of a partition that is not read: its name is not the one that was meant.

    One that is read and not named is no mistake yet: a query with a checkpoint does not look at startingOffsets.
    """
    for bound in (options.start, options.end):
        for place in bound.at if isinstance(bound.at, dict) else ():
            if place.topic not in counts or not 0 <= place.partition < counts[place.topic]:
                raise OptionError(f"{bound.option} names {place}, which is not read: correct it, or leave it out")


async def _partition_count(cluster: Cluster, topic: str, bootstrap_servers: str) -> int:
    found = await find_topic(cluster, topic, patience_ms=TOPIC_PATIENCE_MS)
    if found is None:
        raise OptionError(
            f"there is no topic '{topic}' at {bootstrap_servers}: create it first (semel topic create {topic}), or "
            "correct the name"
        )
    return len(found.partitions)

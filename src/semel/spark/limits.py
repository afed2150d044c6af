"""What the cluster has and allows: asked of the brokers, because a limit in our code would be wrong somewhere."""

from __future__ import annotations

import asyncio
import time

from semel.client.cluster.cluster import Cluster
from semel.client.cluster.metadata import TopicMetadata
from semel.errors import ErrorCode, KafkaError
from semel.wire.messages.configs import DescribeConfigsRequest

from .connections import ClientSettings, cluster_of

_TOPIC, _BROKER = 2, 4

#: Kafka's own default, for brokers that do not say.
DEFAULT_LARGEST_BATCH = 1_048_588
#: A limit may be changed while a pipeline runs: it is asked for again after this time, and when it was met.
_REMEMBERED_S = 60.0

_largest: dict[tuple[ClientSettings, str], tuple[float, int]] = {}


def largest_batch(settings: ClientSettings, topic: str) -> int:
    """The topic's max.message.bytes: how large a batch, and so a row, may be. Runs in a task."""
    known = _largest.get((settings, topic))
    if known is None or time.monotonic() - known[0] > _REMEMBERED_S:
        loop, cluster = cluster_of(settings)
        text = loop.run(topic_settings(cluster, topic, "max.message.bytes")).get("max.message.bytes")
        known = (time.monotonic(), int(text) if text else DEFAULT_LARGEST_BATCH)
        _largest[settings, topic] = known
    return known[1]


def forget_largest_batch(settings: ClientSettings) -> None:
    """Ask again before the next batch: a broker refused one for its size."""
    for key in [key for key in _largest if key[0] == settings]:
        del _largest[key]


async def find_topic(
    cluster: Cluster, name: str, *, patience_ms: float, allow_auto_create: bool = False
) -> TopicMetadata | None:
    """A topic and its partitions; None where it is not there after a while: brokers may not all know of it yet."""
    loop = asyncio.get_running_loop()
    deadline, tries = loop.time() + patience_ms / 1000, 0
    while True:
        # Each look has the client's own timeout: a broker that is slow to answer has not said that there is none.
        await cluster.refresh_metadata((name,), allow_auto_create=allow_auto_create)
        if name in cluster.metadata.topics:
            return cluster.metadata.topics[name]
        tries += 1
        if loop.time() >= deadline and tries > 1:
            return None
        await asyncio.sleep(cluster.backoff(tries))


async def topic_settings(cluster: Cluster, topic: str, *names: str) -> dict[str, str]:
    """Settings of a topic; a name that the brokers keep to themselves is missing."""
    return await _settings(cluster, None, _TOPIC, topic, names)


async def broker_settings(cluster: Cluster, *names: str) -> dict[str, str]:
    """Settings of a broker, whichever is known: brokers of one cluster agree on what is asked for here."""
    for node_id in cluster.metadata.nodes:
        return await _settings(cluster, node_id, _BROKER, str(node_id), names)
    return {}


async def _settings(cluster: Cluster, to: int | None, kind: int, name: str, names: tuple[str, ...]) -> dict[str, str]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=list(names)
            )
        ]
    )
    try:
        answer = await cluster.request_retrying(request, to=to)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
    # Without the right to look, a pipeline may still write: the answer then holds an error and no settings.
    return {row.name: row.value for result in answer.results for row in result.configs if row.value is not None}

"""Topics and limits of the cluster. The brokers are asked, because a limit in our code could be wrong for a cluster."""

from __future__ import annotations

import asyncio
import time

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster
from semel.client.cluster.metadata import TopicMetadata
from semel.errors import ErrorCode, KafkaError, Retriable
from semel.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResponse

from .kafka_options import ClientSettings

_TOPIC, _BROKER = 2, 4
#: How long one of several brokers may take.
_EACH_MS = 5_000

#: Kafka's default, for brokers that do not tell.
DEFAULT_LARGEST_BATCH = 1_048_588
#: A limit may change while a pipeline runs: ask again after this time, and when a batch was refused.
_REMEMBERED_S = 60.0

_largest: dict[tuple[ClientSettings, str], tuple[float, int]] = {}


def largest_batch(loop: LoopThread, cluster: Cluster, settings: ClientSettings, topic: str) -> int:
    """The topic's max.message.bytes: the largest batch, and so the largest row."""
    known = _largest.get((settings, topic))
    if known is None or time.monotonic() - known[0] > _REMEMBERED_S:
        text = loop.run(topic_settings(cluster, topic, "max.message.bytes")).get("max.message.bytes")
        known = (time.monotonic(), int(text) if text else DEFAULT_LARGEST_BATCH)
        _largest[settings, topic] = known
    return known[1]


def forget_largest_batch(settings: ClientSettings) -> None:
    """Ask again before the next batch, because a broker refused one for its size."""
    for key in [key for key in _largest if key[0] == settings]:
        del _largest[key]


async def find_topic(
    cluster: Cluster, name: str, *, patience_ms: float, allow_auto_create: bool = False
) -> TopicMetadata | None:
    """A topic and its partitions; None if it does not exist. Waits a while: not all brokers may know it yet.

    A broker that does not answer, because it is just restarted, is waited for like by any other request.
    """
    loop = asyncio.get_running_loop()
    deadline, tries = loop.time() + patience_ms / 1000, 0
    while True:
        # Each request has the client's own timeout: a slow answer does not mean that there is no topic.
        await cluster.refresh_retrying(
            (name,),
            timeout_ms=cluster.config["default.api.timeout.ms"],
            allow_auto_create=allow_auto_create,
            waiting=True,
        )
        if name in cluster.metadata.topics:
            return cluster.metadata.topics[name]
        tries += 1
        if loop.time() >= deadline and tries > 1:
            return None
        await asyncio.sleep(cluster.backoff(tries))


async def topic_settings(cluster: Cluster, topic: str, *names: str) -> dict[str, str]:
    """Settings of a topic. A setting that the brokers do not tell is missing."""
    return await _settings(cluster, _TOPIC, topic, names)


async def is_compacted(cluster: Cluster, topic: str) -> bool:
    """Whether the topic keeps the last record of each key for good. False if the brokers do not tell."""
    policy = (await topic_settings(cluster, topic, "cleanup.policy")).get("cleanup.policy", "")
    return policy.replace(" ", "") == "compact"


async def broker_settings(cluster: Cluster, *names: str) -> dict[str, str]:
    """Settings of any broker: the brokers of a cluster agree on those that are asked for here.

    A broker may be named that is gone: each is asked in turn, until one answers.
    """
    loop = asyncio.get_running_loop()
    timeout_ms: int = cluster.config["request.timeout.ms"]
    deadline = loop.time() + timeout_ms / 1000
    tries = 0
    while nodes := list(cluster.metadata.nodes):
        for node_id in nodes:
            try:
                wanted = _wanted(_BROKER, str(node_id), names)
                return _found(await cluster.request(node_id, wanted, timeout_ms=min(timeout_ms, _EACH_MS)))
            except Retriable:
                if loop.time() >= deadline:
                    raise
            except KafkaError as error:
                return _nothing(error)
        tries += 1
        await asyncio.sleep(cluster.backoff(tries))
        await cluster.refresh_retrying((), timeout_ms=timeout_ms)
    return {}


async def _settings(cluster: Cluster, kind: int, name: str, names: tuple[str, ...]) -> dict[str, str]:
    try:
        return _found(await cluster.request_retrying(_wanted(kind, name, names)))
    except KafkaError as error:
        return _nothing(error)


def _wanted(kind: int, name: str, names: tuple[str, ...]) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=name, configuration_keys=list(names))]
    )


def _found(answer: DescribeConfigsResponse) -> dict[str, str]:
    # Without permission the answer has an error and no settings. The pipeline may still be allowed to write.
    return {row.name: row.value for result in answer.results for row in result.configs if row.value is not None}


def _nothing(error: KafkaError) -> dict[str, str]:
    """Brokers that do not know the request tell nothing; any other error is one."""
    if error.code is ErrorCode.UNSUPPORTED_VERSION:
        return {}
    raise error

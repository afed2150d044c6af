"""To which partition a producer's records go, and the waiting for what that needs: metadata, and room in the buffer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from semel.client.arguments import as_topic
from semel.client.cluster.cluster import Cluster
from semel.client.cluster.metadata import TopicMetadata
from semel.client.producer.send_loop import SendLoop
from semel.config import Values
from semel.errors import ErrorCode, Misuse, RequestTimedOut
from semel.machines.producing.accumulator import ProducerBatch
from semel.machines.producing.sticky_partitioner import TopicRoutes


@dataclass(slots=True)
class TopicRoute:
    """What sending to a topic needs: its metadata, its partitioner, and the newest batch of each partition."""

    info: TopicMetadata
    routes: TopicRoutes
    open: list[ProducerBatch | None]


class Routing:
    """The routes of one producer, by topic."""

    def __init__(self, config: Values, cluster: Cluster, sending: SendLoop) -> None:
        self._config = config
        self._cluster = cluster
        self._sending = sending
        self.routes: dict[str, TopicRoute] = {}
        sending.forget_batch = self._forget_batch

    def route_of(self, info: TopicMetadata) -> TopicRoute:
        """The route of a topic. It is kept as long as the number of partitions stays the same."""
        count = len(info.partitions)
        known = self.routes.get(info.name)
        if known is not None and known.routes.partition_count == count:
            known.info = info
            return known
        ignore_keys = self._config["partitioner.ignore.keys"]
        draw = self._cluster.environment.chance.randrange
        routes = TopicRoutes(info.name, count, self._config["batch.size"], draw, ignore_keys)
        route = self.routes[info.name] = TopicRoute(info, routes, [None] * count)
        return route

    def _forget_batch(self, batch: ProducerBatch) -> None:
        route = self.routes.get(batch.partition.topic)
        number = batch.partition.partition
        if route is not None and number < len(route.open) and route.open[number] is batch:
            route.open[number] = None

    def deadline(self) -> float:
        """When a call that starts now must be over: after max.block.ms."""
        return float(asyncio.get_running_loop().time() + self._config["max.block.ms"] / 1000)

    async def wait_for_room(self, topic: str, partition: int | None, deadline: float) -> None:
        """Wait for what `send_now` was missing: metadata, or memory in the buffer."""
        known = self._cluster.metadata.topics.get(topic)
        if await self.topic_with(topic, partition, deadline) is not known:
            return  # the metadata is new: try again before waiting for memory
        self._sending.wake()  # the buffer is full, so batches need not linger
        try:
            async with asyncio.timeout_at(deadline):
                await self._sending.wait_for_change()
        except TimeoutError:
            raise RequestTimedOut(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the buffer (buffer.memory={self._config['buffer.memory']}) stayed full for "
                f"max.block.ms={self._config['max.block.ms']}: the brokers take records more slowly than they are sent",
            ) from None

    async def topic_with(self, topic: str, partition: int | None, deadline: float) -> TopicMetadata:
        """The topic's metadata, fetched again if the partition is not in it. Raises Misuse if it does not exist."""
        as_topic(topic)
        info = await self._topic(topic, deadline)
        if partition is None or 0 <= partition < len(info.partitions):
            return info
        self._cluster.forget_topic(topic)
        info = await self._topic(topic, deadline)
        if not 0 <= partition < len(info.partitions):
            why = f"topic '{topic}' has partitions 0 to {len(info.partitions) - 1}, not {partition}"
            raise Misuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
        return info

    async def _topic(self, topic: str, deadline: float) -> TopicMetadata:
        left_ms = max(1.0, (deadline - asyncio.get_running_loop().time()) * 1000)
        limit = f"max.block.ms={self._config['max.block.ms']}"
        return await self._cluster.topic(topic, timeout_ms=left_ms, limit=limit)

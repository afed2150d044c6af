"""One connection to a cluster for each process: Spark reuses its Python workers, and so do we."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster
from semel.config import CONSUMER

#: Client settings in a form that travels to the executors and can be a key.
ClientSettings = tuple[tuple[str, str], ...]

_clusters: dict[ClientSettings, tuple[LoopThread, Cluster]] = {}


def cluster_of(settings: ClientSettings) -> tuple[LoopThread, Cluster]:
    """This process's connection to the cluster that the settings name."""
    if settings not in _clusters:
        loop = LoopThread("semel-spark-task")
        try:
            _clusters[settings] = (loop, loop.run(connect(dict(settings))))
        except BaseException:
            loop.close()
            raise
    return _clusters[settings]


async def connect(settings: Mapping[str, Any]) -> Cluster:
    """A cluster that was reached once: its brokers, versions and features are known."""
    cluster = Cluster(CONSUMER.parse(settings))
    try:
        await cluster.connect()
    except BaseException:
        await cluster.close()
        raise
    return cluster

"""One connection to a cluster per process. Spark reuses its Python workers, so tasks share it."""

from __future__ import annotations

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster

from .kafka_options import ClientSettings

_clusters: dict[ClientSettings, tuple[LoopThread, Cluster]] = {}


def cluster_of(settings: ClientSettings) -> tuple[LoopThread, Cluster]:
    """This process's connection to the cluster of these settings."""
    if settings not in _clusters:
        loop = LoopThread("semel-spark-task")
        try:
            _clusters[settings] = (loop, loop.run(connect(settings)))
        except BaseException:
            loop.close()
            raise
    return _clusters[settings]


async def connect(settings: ClientSettings) -> Cluster:
    """Connect to a cluster: its brokers, versions and features are known afterwards."""
    cluster = Cluster(settings.parse())
    try:
        await cluster.connect()
    except BaseException:
        await cluster.close()
        raise
    return cluster

"""One connection to a cluster per process. Spark reuses its Python workers, so tasks share it."""

from __future__ import annotations

import asyncio
import gc
import logging

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster
from semel.errors import Disconnected

from .kafka_options import ClientSettings

log = logging.getLogger("semel.spark")

#: Long enough for a broker's restart, short enough for an address that is wrong.
RESTART_PATIENCE_MS = 5_000

_clusters: dict[ClientSettings, tuple[LoopThread, Cluster]] = {}
_asked = 0


def cluster_of(settings: ClientSettings) -> tuple[LoopThread, Cluster]:
    """This process's connection to the cluster of these settings."""
    global _asked
    _asked += 1
    if settings not in _clusters:
        loop = LoopThread("semel-spark-task")
        try:
            _clusters[settings] = (loop, loop.run(connect(settings, patience_ms=RESTART_PATIENCE_MS)))
        except BaseException:
            loop.close()
            raise
    if _asked <= 2:  # the first task loads the rest of what it needs after this
        spare_the_collector()
    return _clusters[settings]


def spare_the_collector() -> None:
    """Take what a Python worker has loaded so far out of garbage collection.

    Spark's worker collects garbage after every task. With pandas and pyarrow loaded that takes 40 ms of a processor,
    more than a task needs to read 25,000 records, and the next task waits for it. Elsewhere nothing is changed.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        gc.collect()  # what is garbage now would never be freed
        gc.freeze()


async def connect(settings: ClientSettings, *, patience_ms: float = 0) -> Cluster:
    """Connect to a cluster: its brokers, versions and features are known afterwards.

    Brokers that cannot be reached are tried again for `patience_ms`.
    """
    cluster = Cluster(settings.parse())
    loop = asyncio.get_running_loop()
    deadline, tries = loop.time() + patience_ms / 1000, 0
    try:
        while True:
            try:
                await cluster.connect()
                return cluster
            except Disconnected as error:
                tries += 1
                if loop.time() >= deadline:
                    raise
                if tries == 1:
                    log.warning("%s; trying again for %g seconds", error.why, patience_ms / 1000)
            await asyncio.sleep(cluster.backoff(tries))
    except BaseException:
        await cluster.close()
        raise

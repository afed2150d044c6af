"""One connection to a cluster per process. Spark reuses its Python workers, so tasks share it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import socket
import sys

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster
from semel.errors import Disconnected

from .kafka_options import ClientSettings

log = logging.getLogger("semel.spark")

#: A worker's connection to Spark is among its first files: Spark opens it before it runs any code of ours.
_FIRST_FILES = range(3, 64)

#: Long enough for a broker's restart, short enough for an address that is wrong.
RESTART_PATIENCE_MS = 5_000

#: What `mallopt` of glibc calls them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: The most that glibc takes for the latter on 64 bits. Freed memory below the former stays in the process.
_FROM_THE_HEAP_BYTES, _KEPT_BYTES = 32 << 20, 64 << 20

_clusters: dict[ClientSettings, tuple[LoopThread, Cluster]] = {}
_asked = 0


def cluster_of(settings: ClientSettings) -> tuple[LoopThread, Cluster]:
    """This process's connection to the cluster of these settings."""
    global _asked
    _asked += 1
    if _asked == 1:
        answer_at_once()
        keep_memory()
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


def keep_memory() -> bool:
    """Let a Python worker keep up to 64 MB of what it has freed. Returns whether that was set.

    A task allocates and frees buffers of some MB, again and again. glibc gives each of them back to the kernel, which
    has to fill the next one with zeros, page by page: a quarter of a worker's time for rows of 1 KB. Elsewhere nothing
    is changed, nor if the environment says what glibc is to do.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None or sys.platform != "linux" or _is_told_what_to_keep():
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):  # another library, which may not know these numbers
        return False
    return bool(
        library.mallopt(_M_MMAP_THRESHOLD, _FROM_THE_HEAP_BYTES) and library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    )


def _is_told_what_to_keep() -> bool:
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    return any(name in os.environ for name in names) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")


def answer_at_once() -> None:
    """Let the kernel send the last small piece of a task's answer without waiting.

    Spark talks to its Python workers by TCP and does not set TCP_NODELAY. The end of an answer then waits for Spark's
    kernel to acknowledge what came before, and that delays its acknowledgement by 40 ms, for each task. Elsewhere
    nothing is changed.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    for number in _FIRST_FILES:
        try:
            descriptor = os.dup(number)
        except OSError:  # there is no such file
            continue
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:  # it is no socket
            os.close(descriptor)
            continue
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


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

"""What a Python worker keeps between tasks, and what a pipeline asks a cluster before it begins."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.errors import Disconnected
from semel.spark.connections import answer_at_once, connect, spare_the_collector
from semel.spark.kafka_options import ClientSettings
from semel.spark.limits import find_topic
from semel.testing.fault_proxy import Cut, FaultProxy, every
from semel.wire.apis import ApiKey

pyspark = pytest.importorskip("pyspark")


def test_a_topic_is_found_although_the_broker_is_restarted_meanwhile(tmp_path: Path) -> None:
    async def look() -> list[int]:
        settings = ClientSettings({"bootstrap.servers": proxy.bootstrap_servers})
        await (await connect(settings, patience_ms=30_000)).close()
        cluster = await connect(settings, patience_ms=30_000)
        try:
            found = [await find_topic(cluster, "ledger", patience_ms=1000, allow_auto_create=True) for _ in range(4)]
            return [len(topic.partitions) for topic in found if topic is not None]
        finally:
            await cluster.close()

    cut = every(2, ApiKey.METADATA, Cut())
    with semel.Broker(tmp_path) as broker, FaultProxy(broker.bootstrap_servers, cut) as proxy:
        assert asyncio.run(look()) == [1, 1, 1, 1]


def test_brokers_that_are_away_are_tried_for_a_while_and_then_told() -> None:
    with pytest.raises(Disconnected, match="no broker can be reached"):
        asyncio.run(connect(ClientSettings({"bootstrap.servers": "127.0.0.1:1"}), patience_ms=300))


def test_a_worker_takes_what_it_has_loaded_out_of_garbage_collection_and_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = gc.get_freeze_count()
    spare_the_collector()
    assert gc.get_freeze_count() == before
    task: Any = object()
    monkeypatch.setattr(pyspark.TaskContext, "get", staticmethod(lambda: task))
    try:
        spare_the_collector()
        assert gc.get_freeze_count() > before + 1000
    finally:
        gc.unfreeze()


def test_the_connection_of_a_worker_to_spark_sends_at_once_and_no_other_process_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_at_once(end: socket.socket) -> bool:
        return bool(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as end,
        server.accept()[0],
    ):
        # This process may have many files open already.
        monkeypatch.setattr("semel.spark.connections._FIRST_FILES", range(3, end.fileno() + 1))
        answer_at_once()
        assert not is_at_once(end)
        task: Any = object()
        monkeypatch.setattr(pyspark.TaskContext, "get", staticmethod(lambda: task))
        files = sorted(os.listdir("/dev/fd"))
        answer_at_once()
        assert is_at_once(end)
        assert sorted(os.listdir("/dev/fd")) == files


_FAULTS_OF_A_WORKER = """
import resource, sys
from pyspark import TaskContext
from semel.spark.connections import keep_memory

TaskContext.get = staticmethod(lambda: object() if sys.argv[1] == "worker" else None)
assert keep_memory() is (sys.argv[2] == "kept")

def work():
    buffers = [bytearray(1 << 20) for _ in range(8)]
    resized = bytearray(4 << 20)
    del resized[1 << 20 :]

work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told so")
def test_a_worker_keeps_the_memory_of_its_buffers_unless_it_is_told_otherwise_and_nobody_else_does() -> None:
    def faults(where: str, what: str, **given: str) -> int:
        unset = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
        environment = {name: value for name, value in os.environ.items() if name not in unset} | given
        command = [sys.executable, "-c", _FAULTS_OF_A_WORKER, where, what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    kept = faults("worker", "kept", MALLOC_ARENA_MAX="4")
    for where, given in (
        ("driver", {}),
        ("worker", {"MALLOC_TRIM_THRESHOLD_": "131072"}),
        ("worker", {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}),
    ):
        assert faults(where, "as before", **given) > 20 * max(kept, 100), (where, given)

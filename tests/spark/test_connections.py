"""What a Python worker keeps between tasks, and what a pipeline asks a cluster before it begins."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.errors import Disconnected
from semel.spark.connections import connect, spare_the_collector
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

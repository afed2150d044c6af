"""While everything runs: offsets only rise (T3, T4), and nothing is hoarded or done too often."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from semel.broker.topics.partition import Partition
from semel.log.partition_log import PartitionLog
from semel.simulation.checkers import WHILE_RUNNING
from semel.simulation.play import Play
from semel.simulation.world import BrokerNode

#: How often it looks, in virtual seconds.
INTERVAL_S = 0.1
#: More callbacks than this in a simulated second are a loop that turns without need.
CALLBACKS_PER_S = 60_000
#: More open files than this are a leak: there are a few dozen segments.
OPEN_FILES = 2_000


def open_logs(play: Play) -> Iterator[tuple[BrokerNode, Partition, PartitionLog]]:
    """The logs that running brokers have open."""
    for broker in play.brokers:
        if (topics := broker.topics) is not None:
            for partition in topics.all_partitions():
                log = partition.open_log
                if log is not None and log.failed is None:
                    yield broker, partition, log


async def watch_offsets(play: Play) -> None:
    """T3, T4: the last stable offset is never above the high watermark, that never above the end; none ever falls."""
    seen: dict[Any, tuple[int, int]] = {}
    while True:
        for broker, partition, log in open_logs(play):
            stable, high, end = log.last_stable_offset, log.high_watermark, log.end_offset
            before = seen.get(log, (-1, -1))
            if not stable <= high <= end:
                where = f"{partition} on {broker.machine.name}"
                play.world.violated(f"T3 {where}: stable {stable}, high watermark {high}, end {end}")
            if stable < before[0] or high < before[1]:
                where = f"{partition} on {broker.machine.name}"
                play.world.violated(f"T4 {where}: from {before} to {(stable, high)}")
            seen[log] = stable, high
        await asyncio.sleep(INTERVAL_S)


async def watch_costs(play: Play) -> None:
    """No busy loop, no leak of files."""
    loop = play.world.loop
    callbacks = loop.callbacks
    while True:
        await asyncio.sleep(1)
        if loop.callbacks - callbacks > CALLBACKS_PER_S * len(play.brokers):
            play.world.violated(f"cost: {loop.callbacks - callbacks} callbacks in one simulated second")
        callbacks = loop.callbacks
        for broker in play.brokers:
            process = broker.process
            if process is not None and process.files.open_files > OPEN_FILES:
                play.world.violated(f"cost: {broker.machine.name} has {process.files.open_files} files open")


WHILE_RUNNING["offsets"] = watch_offsets
WHILE_RUNNING["costs"] = watch_costs

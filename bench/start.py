"""Starting: the first acknowledged record after the process is launched, idle memory, restarts after stop and crash."""

from __future__ import annotations

import time

from bench.clients import create_topic, first_acknowledged, producer_performance
from bench.harness import Family, Row, Server
from tests.support.waiting import until

FIRST = "start of process to first acknowledged record"
IDLE = "resident memory, idle"
CLEAN = "restart after a clean stop, 1.5 GB log to empty log"
CRASH = "restart after kill -9, 1.5 GB log to empty log"


def launch_to_first(server: Server, topic: str) -> float:
    """Seconds from launching the process to an acknowledged record; preparing a data directory is not counted."""
    if server.kafka is not None:
        server.kafka.format()
    began = time.perf_counter()
    server.launch()
    first_acknowledged(server, topic)
    return time.perf_counter() - began


def measure(server: Server) -> dict[str, float]:
    first = launch_to_first(server, "first")
    idle = settled_megabytes(server)
    return {FIRST: first, IDLE: idle}


def settled_megabytes(server: Server) -> float:
    """Resident memory once the process uses no CPU to speak of for half a second."""
    state = {"cpu_s": -1.0, "at": 0.0}

    def quiet() -> bool:
        now, used = time.monotonic(), server.process.cpu_s()
        if used - state["cpu_s"] > 0.03:
            state.update(cpu_s=used, at=now)
        return now - state["at"] > 0.5

    until(quiet, within_s=30, what="the server to be idle")
    return server.process.resident_bytes() / 1e6


def measure_restarts(server: Server) -> dict[str, float]:
    """How much longer a restart takes with 1.5 GB in the log than with next to nothing."""
    broker = server.semel
    assert broker is not None
    launch_to_first(server, "t")
    broker.stop()
    clean_empty = launch_to_first(server, "t")
    broker.kill9()
    crash_empty = launch_to_first(server, "t")
    create_topic(server, "filled")
    producer_performance(server, "filled", 1_500_000, 1_000)
    broker.stop()
    clean_full = launch_to_first(server, "t")
    broker.kill9()
    crash_full = launch_to_first(server, "t")
    return {CLEAN: clean_full / clean_empty, CRASH: crash_full / crash_empty}


FAMILIES = [
    Family(
        "start",
        (
            Row(FIRST, "s", 1 / 8, higher_is_better=False),
            Row(IDLE, "MB", 60, higher_is_better=False, alone=True),
        ),
        measure,
        starts_itself=True,
    ),
    Family(
        "restart",
        (
            Row(CLEAN, "x", 1.3, higher_is_better=False, alone=True),
            # A crash re-reads at most what was written since the last snapshot: one segment here, never the whole log.
            Row(CRASH, "x", 5, higher_is_better=False, alone=True),
        ),
        measure_restarts,
        starts_itself=True,
        semel_alone=True,
    ),
]

"""The simulated ZooKeeper is held equal to Apache ZooKeeper 3.9: random programs, told to both through one interface.

Compared are results, kinds of errors, every node's facts (zxids counted from the program's beginning), the states of
the sessions, and watch events with their order.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.zookeeper.programs import Run, Step, program
from tests.simulation.zookeeper.worlds import RealWorld, SimulatedWorld
from tests.support.requirements import require_zookeeper
from tests.support.zookeeper import ZooKeeper, running_zookeeper

pytestmark = pytest.mark.java

SEEDS = range(1, 9)
STEPS = 150


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    require_zookeeper()
    with running_zookeeper() as running:
        yield running


async def beside(zookeeper: ZooKeeper, steps: list[Step], root: str) -> tuple[list[Any], list[Any]]:
    return await Run(RealWorld(zookeeper), root).of(steps), await Run(SimulatedWorld(), root).of(steps)


def assert_the_same(zookeeper: ZooKeeper, seed: int, steps: int) -> None:
    root = f"/seed-{seed}-{steps}"
    told = program(seed, steps, root)
    real, simulated = asyncio.run(beside(zookeeper, told, root))
    for number, (ours, theirs) in enumerate(zip(simulated, real, strict=True)):
        assert ours == theirs, f"seed {seed}, step {number}: {told[number]}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_shows_the_same_on_both(zookeeper: ZooKeeper, seed: int) -> None:
    assert_the_same(zookeeper, seed, STEPS)


def test_a_difference_is_seen(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: a simulated ZooKeeper that counts a version wrongly does not pass."""
    monkeypatch.setattr("semel.simulation.zookeeper.tree._next_version", lambda current, expected, path: current + 2)
    with pytest.raises(AssertionError, match="step"):
        assert_the_same(zookeeper, 1_000, STEPS)


def test_the_nodes_that_are_always_there_show_the_same(zookeeper: ZooKeeper) -> None:
    async def facts(world: Any) -> list[Any]:
        session = await world.open()
        shown = []
        for path in ("/zookeeper", "/zookeeper/quota"):
            shown.append((await session.get(path), await session.get_children(path)))
        await session.close()
        return shown

    async def both() -> None:
        assert await facts(SimulatedWorld()) == await facts(RealWorld(zookeeper))

    asyncio.run(both())


@pytest.mark.soak
def test_many_random_programs_show_the_same_on_both(zookeeper: ZooKeeper) -> None:
    seed, ends = int(time.time()), time.monotonic() + float(os.environ.get("SEMEL_SOAK_SECONDS", "300"))
    while time.monotonic() < ends:
        seed += 1
        print("seed", seed)
        assert_the_same(zookeeper, seed, 400)

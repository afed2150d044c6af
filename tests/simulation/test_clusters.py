"""Clusters of three brokers in the simulation: fresh seeds, workloads and faults, and the cluster's own checks."""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

from semel.simulation.ablations import ABLATIONS, Patch, look_for, removed
from semel.simulation.checkers import replicas
from semel.simulation.faults import FAULTS
from semel.simulation.play import Play
from semel.simulation.runs import draw_plan, run
from semel.simulation.world import DATA

#: How much CPU time fresh seeds get, and how many there are at least: on a busy machine time says little.
FRESH_CPU_S, FRESH_SEEDS = 10.0, 2


@pytest.mark.soak  # they still find something now and then: docs/testing.md
@pytest.mark.timeout(900)
def test_fresh_seeds_of_a_cluster_find_nothing() -> None:
    seed, played = random.SystemRandom().randrange(10**9), 0
    until = time.process_time() + FRESH_CPU_S
    while time.process_time() < until or played < FRESH_SEEDS:
        result = run(draw_plan(seed, duration_s=6, brokers=3))
        assert result.violations == [], f"PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED')} {result.command}"
        seed, played = seed + 1, played + 1


#: One for each kind of work; fresh seeds play all of them.
WORKLOADS = (
    "idempotent", "zombies", "hurried", "copying-consumer", "pipeline", "elections", "reassignments", "recreated",
)  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.timeout(300)
def test_each_kind_of_work_ends_well_in_a_cluster(name: str) -> None:
    plan = draw_plan(1, workloads=(name,), duration_s=3, brokers=3)
    plan.strikes = []
    result = run(plan)
    assert result.violations == [], result.command


@pytest.mark.parametrize("name", sorted(name for name, kind in FAULTS.items() if not kind.alone))
@pytest.mark.timeout(300)
def test_each_kind_of_fault_of_a_cluster_is_survived(name: str) -> None:
    plan = draw_plan(5, workloads=("idempotent",), faults=(name,), duration_s=5, faults_per_minute=60, brokers=3)
    result = run(plan)
    assert result.violations == [], result.command
    assert result.struck[name] > 0


@pytest.mark.timeout(300)
def test_a_cluster_does_the_same_again() -> None:
    plan = draw_plan(3, workloads=("transfers",), duration_s=5, faults_per_minute=40, brokers=3)
    assert run(plan).trace_hash == run(plan).trace_hash


#: Rules whose absence the first seeds notice. `make ablations` has all of them.
RULES = (
    "Z1: a register changes only at the version that was read",
    "E4: who lost its power leaves the in-sync sets",
    "R2: the in-sync set that was asked for counts as well",
    "R2: the in-sync set that was read counts until it is written",
    "R3: nothing is committed while too few are in sync",
    "R6: both speak of one leader epoch, where a log is validated once",
    "R7: where logs part the follower's is cut",
    "R8: who enters the set has all that is committed",
    "R8: who enters the set has this leadership's beginning",
    "R8: who enters the set is in the life that has fetched",
    "C3: no append between verification and marker",
    "C4: a marker of an older coordinator is refused",
    "P3: acks=all is answered once it is committed",
)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.timeout(300)
def test_a_rule_of_replication_that_is_taken_away_is_missed(name: str) -> None:
    assert look_for(name, seeds=30) is not None


def test_what_is_taken_away_is_there() -> None:
    """A patch of something that was renamed would take nothing away, and nothing would be missed."""
    for name in ABLATIONS:
        with removed(name):
            pass
    with pytest.raises(AttributeError):
        Patch().set(Play, "a_name_that_nobody_has", None)


# The checkers themselves


def with_a_spoilt_log() -> list[str]:
    """What is found in a cluster in which one replica's log is spoilt behind everybody's back."""
    plan = draw_plan(1, workloads=("idempotent",), duration_s=3, brokers=3)
    plan.strikes = []
    play = Play(plan)

    async def spoiling() -> None:
        await asyncio.sleep(2)
        for path, file in play.brokers[1].machine.disk.files(DATA):
            if "/plain-" in path and path.endswith(".log") and file.data:
                file.data[-1] ^= 1
                return

    play.actor("spoiler", lambda actor: spoiling())
    play.run()
    return play.world.violations


@pytest.mark.timeout(300)
def test_replicas_that_differ_are_noticed() -> None:
    found = with_a_spoilt_log()
    assert any("F2" in each or "F6" in each for each in found), found


def test_a_committed_batch_is_found_in_the_bytes_of_a_log() -> None:
    first = (7).to_bytes(8, "big") + (20).to_bytes(4, "big") + bytes(11) + (2).to_bytes(4, "big") + bytes(5)
    assert list(replicas._batches(first + first[:-1])) == [(0, 32, 10)]

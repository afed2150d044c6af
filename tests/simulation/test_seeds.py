"""Seeds of the simulation: fresh ones each time, and every one that ever failed.

A fresh seed that fails prints the line that plays it again; put its plan into `regressions.py`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from semel.simulation.ablations import ABLATIONS, look_for, removed
from semel.simulation.coverage import Coverage
from semel.simulation.faults import FAULTS
from semel.simulation.runs import command, draw_plan, run, shrink
from semel.simulation.unreached import UNREACHED, rows
from semel.simulation.workloads import WORKLOADS
from tests.simulation.regressions import REGRESSIONS

#: How much CPU time fresh seeds get.
FRESH_CPU_S = 15.0


@pytest.mark.timeout(900)
def test_fresh_seeds_find_nothing() -> None:
    seed = random.SystemRandom().randrange(10**9)
    until = time.process_time() + FRESH_CPU_S
    while time.process_time() < until:
        result = run(draw_plan(seed, duration_s=6))
        assert result.violations == [], f"PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED')} {result.command}"
        seed += 1


@pytest.mark.parametrize("what", REGRESSIONS)
@pytest.mark.timeout(300)
def test_what_a_seed_once_found_is_still_repaired(what: str) -> None:
    result = run(REGRESSIONS[what])
    assert result.violations == [], result.command


@pytest.mark.parametrize("name", sorted(WORKLOADS))
@pytest.mark.timeout(300)
def test_each_workload_ends_well_without_faults(name: str) -> None:
    plan = draw_plan(1, workloads=(name,), duration_s=4)
    plan.strikes = []
    result = run(plan)
    assert result.violations == [], result.command


@pytest.mark.parametrize("name", sorted(name for name, kind in FAULTS.items() if kind.alone))
@pytest.mark.timeout(300)
def test_each_kind_of_fault_is_survived(name: str) -> None:
    durability = "fsync" if FAULTS[name].loses_unsynced else None
    plan = draw_plan(
        5, workloads=("transfers",), faults=(name,), durability=durability, duration_s=6, faults_per_minute=60
    )
    result = run(plan)
    assert result.violations == [], result.command
    assert result.struck[name] > 0


#: Some safeguards, one of each part, whose absence the first seeds notice. `make ablations` has all of them.
QUICK = (
    "sequence check", "last stable offset", "list of aborted transactions", "a produce is answered after its fsync",
    "a batch that did not commit is read again", "compaction stops at the last stable offset",
    # Three old bugs of the product.
    "a refused commit does not disturb a join", "a retry is told from a sequence used again",
    "a retry is answered after the fsync of its original",
    "a repeated EndTxn is recognised", "answers of the last five batches", "a new rule ends what was decided before it",
    "a request waits for the markers before it, in the host and in the table",
)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.timeout(300)
def test_a_safeguard_that_is_taken_away_is_missed(name: str) -> None:
    caught = look_for(name, seeds=60)
    assert caught is not None


def test_a_safeguard_is_put_back() -> None:
    from semel.machines.producing.producer_state import ProducerStates

    before = ProducerStates.check_data
    with removed("sequence check"):
        assert ProducerStates.check_data is not before
    assert ProducerStates.check_data is before
    assert len(ABLATIONS) >= 40


@pytest.mark.timeout(300)
def test_a_failure_is_shrunk_to_the_faults_that_are_needed() -> None:
    with removed("sequence check"):
        plan = draw_plan(0, workloads=("idempotent",), faults=("repeated requests",), duration_s=6)
        assert run(plan).violations
        smallest = shrink(plan, tries=12)
        assert len(smallest.strikes) <= len(plan.strikes)
        assert run(smallest).violations
    assert "--strikes" in command(smallest)


def test_coverage_counts_the_cells_that_were_taken() -> None:
    covered = Coverage()
    with covered:
        run(draw_plan(1, workloads=("transfers",), duration_s=3))
    page = next(page for page in covered.pages if page.name == "transaction")
    assert len(covered.never_taken(page)) < sum(len(row) for row in page.table.steps.values())
    assert any(line.startswith("table transaction:") for line in covered.report())


def test_the_cells_that_no_seed_takes_are_listed_with_their_reasons() -> None:
    covered = Coverage()
    for page in covered.pages:
        # Nothing was played, so these are all.
        assert UNREACHED.get(page.name, {}).keys() <= {*covered.never_taken(page)}
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    section = text.partition("## What the seeds do not reach")[2].partition("\n## ")[0]
    listed = [line for line in section.splitlines() if line.startswith("| [")]
    expected = rows(covered.pages)
    assert listed[: len(expected)] == expected, "\n".join(expected)


@pytest.mark.parametrize("name", ["copying-consumer", "disordered", "guarded", "secured", "two-phase"])
@pytest.mark.timeout(300)
def test_a_cell_that_is_listed_as_out_of_reach_is_taken_by_no_seed(name: str) -> None:
    covered = Coverage()
    with covered:
        run(draw_plan(11, workloads=(name,), duration_s=8))
    assert [cell for page in covered.pages for cell in covered.surprises(page)] == []


@pytest.mark.timeout(300)
def test_the_order_of_a_set_does_not_decide_what_happens() -> None:
    """Else a seed that failed in one process could not be played again in another one."""
    program = (
        "from semel.simulation.runs import draw_plan, run; "
        "print(run(draw_plan(3, workloads=('copying-cooperative', 'guarded', 'wandering'), duration_s=4)).trace_hash)"
    )
    surroundings = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("1", "2")]
    running = [
        subprocess.Popen([sys.executable, "-c", program], env=each, stdout=subprocess.PIPE, text=True)
        for each in surroundings
    ]
    first, second = (each.communicate(timeout=250)[0] for each in running)
    assert first == second and first.strip()

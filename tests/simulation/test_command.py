"""`semel simulate` as somebody at a terminal has it: what it takes, refuses, prints, and how it ends."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel.cli.simulate import simulate
from semel.simulation import seeds
from semel.simulation.faults import FAULTS, Strike
from semel.simulation.play import Plan
from semel.simulation.runs import command, draw_plan, parse_strikes, run
from semel.simulation.seeds import Played
from semel.simulation.workloads import WORKLOADS
from tests.simulation.regressions import REGRESSIONS


def called(*words: str) -> Result:
    return CliRunner(env={"PYTHONHASHSEED": "0"}).invoke(simulate, words)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans of a command, which plays none of them."""
    plans: list[Plan] = []

    def plan(coming: Iterator[Plan], **options: Any) -> Iterator[Played]:
        plans.extend(coming)
        yield from ()

    monkeypatch.setattr(seeds, "play_all", plan)
    return plans


# The line that plays a plan again


def drawn_plans() -> Iterator[Plan]:
    chance = random.Random(13)
    for seed in range(400):
        brokers = chance.choice((1, 1, 2, 3))
        durability = chance.choice((None, "os", "fsync"))
        kinds = [name for name, kind in FAULTS.items() if kind.may_strike(brokers, durability or "fsync")]
        works = [name for name, kind in WORKLOADS.items() if (kind.in_a_cluster if brokers > 1 else kind.alone)]
        yield draw_plan(
            seed,
            workloads=chance.sample(works, chance.choice((0, 0, 1, 3))),
            duration_s=chance.choice((20.0, 6.0, 0.1, 12.3456789, 12_345.678, 1 / 3)),
            durability=durability,
            faults=chance.sample(kinds, chance.choice((0, 0, 1, 2, 4))),
            faults_per_minute=chance.choice((18.0, 0.0, 60.0, 7.123456789)),
            brokers=brokers,
        )


def plans_that_nobody_drew() -> Iterator[Plan]:
    chance = random.Random(14)
    for plan in drawn_plans():
        if plan.duration_s < 100 and len(plan.strikes) > 1:
            kept = sorted(chance.sample(plan.strikes, len(plan.strikes) // 2), key=lambda one: one.at_s)
            yield replace(plan, strikes=kept)
    yield from REGRESSIONS.values()
    for name, kind in FAULTS.items():
        yield Plan(3, ("idempotent",), 5.0, "fsync", [Strike(1.0, name, 2**32 - 1)], 1 if kind.alone else 3)


@pytest.mark.parametrize("kind", [drawn_plans, plans_that_nobody_drew])
def test_the_line_that_plays_a_plan_again_plays_that_plan(kind: Any, planned: list[Plan]) -> None:
    count = 0
    for plan in kind():
        planned.clear()
        # As a shell takes it apart.
        program, noun, *words = shlex.split(command(plan))
        assert (program, noun) == ("semel", "simulate")
        done = called(*words)
        assert done.exit_code == 0, f"{command(plan)}: {done.output}"
        assert planned == [plan], command(plan)
        count += 1
    assert count > 50


def test_a_line_is_short_where_the_seed_says_it_all() -> None:
    plan = draw_plan(7)
    assert len(plan.strikes) > 1
    line = command(plan)
    assert "--strikes" not in line and "--fault" not in line
    plan = draw_plan(7, faults=("reset", "broker killed"), faults_per_minute=60)
    assert command(plan).endswith(" --fault reset --fault 'broker killed' --faults-per-minute 60")
    assert "--strikes" in command(replace(plan, strikes=plan.strikes[1:]))


def test_the_line_of_a_failure_plays_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(coming: Iterator[Plan], **options: Any) -> Iterator[Played]:
        for plan in coming:
            result = run(plan)
            result.violations.append("made up")
            yield Played(result, frozenset())

    monkeypatch.setattr(seeds, "play_all", fails)
    options = ("--fault", "reset", "--fault", "pieces", "--faults-per-minute", "90", "--no-shrink")
    first = called("--seeds", "3", "--workload", "hostile", "--duration", "1.5", *options)
    assert first.exit_code == 1
    (line,) = (line.partition("again:")[2] for line in first.output.splitlines() if "again:" in line)
    second = called(*shlex.split(line)[2:], "--no-shrink")
    assert line in second.output
    seconds = [line for line in first.output.splitlines() if "FAILED after" in line]
    assert seconds == [line for line in second.output.splitlines() if "FAILED after" in line]


def test_a_replay_that_differs_is_told_with_the_line_that_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(coming: Iterator[Plan], **options: Any) -> Iterator[Played]:
        for plan in coming:
            yield Played(run(plan), frozenset(), "another trace")

    monkeypatch.setattr(seeds, "play_all", differs)
    done = called("--seed", "3", "--workload", "hostile", "--duration", "1", "--replays", "2")
    assert done.exit_code == 1
    assert "a replay was different" in done.output and "another trace" in done.output
    assert "--replays 2" in done.output
    assert "with " not in done.output  # no set of faults is smaller


# What is asked for


def test_the_command_plays_as_many_seeds_as_it_is_told(planned: list[Plan]) -> None:
    def numbers(*words: str) -> list[int]:
        planned.clear()
        assert called(*words).exit_code == 0
        return [plan.seed for plan in planned]

    assert numbers() == list(range(101))
    assert numbers("--seed", "7") == [7]
    assert numbers("--seeds", "7") == [7]
    assert numbers("--seeds", "7..9") == [7, 8, 9]


def test_hours_are_counted_in_simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(draw_plan(1, workloads=("hostile",), duration_s=1))
    result.simulated_s = 1800.0

    def at_once(coming: Iterator[Plan], **options: Any) -> Iterator[Played]:
        for plan in coming:
            yield Played(replace(result, plan=plan), frozenset())

    monkeypatch.setattr(seeds, "play_all", at_once)
    assert "4 seeds, 0 failed; 2.00 simulated hours" in called("--hours", "1.8").output
    assert "6 seeds, 0 failed; 3.00 simulated hours" in called("--hours", "1.8", "--seeds", "0..5").output


def test_a_fault_that_takes_what_was_not_fsynced_decides_for_fsync(planned: list[Plan]) -> None:
    assert called("--seeds", "0..19", "--fault", "power lost").exit_code == 0
    assert {plan.durability for plan in planned} == {"fsync"}
    planned.clear()
    assert called("--seeds", "0..19", "--fault", "power lost", "--brokers", "3").exit_code == 0
    assert {plan.durability for plan in planned} == {"os", "fsync"}


def test_a_workload_that_is_given_twice_is_played_once(planned: list[Plan]) -> None:
    assert called("--seed", "1", "--workload", "idempotent", "--workload", "idempotent").exit_code == 0
    assert planned[0].workloads == ("idempotent",)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--seeds 9..2", "--seeds 9..2"),
        ("--seeds a..b", "--seeds a..b"),
        ("--seed -1", "'--seed': -1"),
        ("--seed 1 --seeds 2..3", "leave --seeds out"),
        ("--seed 1 --hours 2", "leave --hours out"),
        ("--duration 0", "'--duration': 0"),
        ("--duration nan", "nan is not a number"),
        ("--duration inf", "'--duration': inf"),
        ("--hours -1", "'--hours': -1"),
        ("--hours nan", "nan is not a number"),
        ("--faults-per-minute inf", "'--faults-per-minute': inf"),
        ("--brokers 0", "'--brokers': 0"),
        ("--workload nonsense", "there is no workload 'nonsense'"),
        ("--workload elections", "--brokers 3"),
        ("--workload retention --brokers 3", "--brokers 1"),
        ("--fault nonsense", "there is no fault 'nonsense'"),
        ("--fault 'session expired'", "does not strike one broker"),
        ("--fault 'log goes bad' --brokers 3", "does not strike a cluster"),
        ("--fault 'power lost' --durability os", "--durability fsync"),
        ("--strikes 1.0:power_lost:1 --durability os", "--durability fsync"),
        ("--strikes 1.0:reset", "SECONDS:FAULT:SEED"),
        ("--strikes 1.0:nonsense:4", "there is no fault 'nonsense'"),
        ("--strikes soon:reset:4", "SECONDS:FAULT:SEED"),
        ("--strikes nan:reset:4", "not between 0 and the 20 s"),
        ("--strikes 21:reset:4", "not between 0 and the 20 s"),
        ("--strikes 1:reset:4 --fault reset", "leave --fault out"),
    ],
)
def test_what_could_not_be_played_rightly_is_refused(words: str, why: str, planned: list[Plan]) -> None:
    done = called(*shlex.split(words))
    assert done.exit_code == 2, done.output
    assert why in " ".join(done.output.split())
    assert not planned


def test_strikes_are_read_as_they_are_printed() -> None:
    text = "0.004:reset:1 2.500:coordinator's_answers_arrive_late:7"
    assert parse_strikes(text) == [Strike(0.004, "reset", 1), Strike(2.5, "coordinator's answers arrive late", 7)]
    assert parse_strikes("") == []


# The program


@pytest.mark.timeout(300)
def test_the_command_plays_a_seed_and_says_how_it_went() -> None:
    program = [sys.executable, "-m", "semel", "simulate", "--seed", "4", "--duration", "3", "--replays", "1"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 4 ok" in done.stdout


@pytest.mark.timeout(300)
def test_seeds_come_to_the_same_in_several_processes() -> None:
    def said(processes: str) -> list[str]:
        program = [sys.executable, "-m", "semel", "simulate", "--seeds", "0..3", "--duration", "2", "--coverage"]
        done = subprocess.run([*program, "--processes", processes], capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "4 seeds, 0 failed" in done.stdout
        return [line for line in done.stdout.splitlines() if line.startswith(("faults:", "kinds of", "table "))]

    alone = said("1")
    assert len(alone) > 5
    assert said("2") == alone


def test_a_process_of_seeds_that_is_killed_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*args: object, **options: object) -> Iterator[object]:
        raise BrokenProcessPool("a child process terminated abruptly")
        yield

    monkeypatch.setattr(seeds, "play_all", dies)
    done = called("--seeds", "0..3")
    assert done.exit_code == 1
    assert "was killed" in done.output and "--processes" in done.output


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_ends_the_command_with_what_was_played(processes: str) -> None:
    words = ["--hours", "999", "--duration", "5", "--workload", "idempotent", "--processes", processes]
    program = [sys.executable, "-m", "semel", "simulate", *words]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        # As the terminal does it: to all processes of the group.
        os.killpg(running.pid, signal.SIGINT)
        said, complaints = running.communicate(timeout=50)
    assert first.startswith("1 seed, 0 failed, ")
    assert running.returncode == 130
    assert complaints == "interrupted; played until then:\n"
    assert "0 failed; 0.0" in said and said.splitlines()[-1].startswith("faults: ")


def test_nobody_waits_for_the_seeds_that_are_played_when_it_is_over() -> None:
    others = multiprocessing.active_children()
    short = draw_plan(1, workloads=("hostile",), duration_s=1)
    plans = [short, replace(short, duration_s=100_000.0), replace(short, duration_s=100_000.0)]
    coming = seeds.play_all(plans, processes=2)
    assert next(coming).result.plan == short
    children = [child for child in multiprocessing.active_children() if child not in others]
    assert children
    coming.close()
    for child in children:
        # The pool joins them, and who joins later is not told of their end. To play the plans takes hours.
        assert multiprocessing.connection.wait([child.sentinel], 30)

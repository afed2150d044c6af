"""Queries that keep state, their driver killed with -9 where it hurts: output and state are those of a model.

Five kinds run in one process: an aggregation in update and in complete mode, deduplication within a watermark, a join
of two streams, and transformWithStateInPandas. The model is a few lines of Python over the offsets in the checkpoint.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import semel
from tests.spark.session import path_of_the_code
from tests.spark.stage import Stage
from tests.spark.stateful_pipeline import KINDS
from tests.support.processes import Process
from tests.support.requirements import require_spark

pytestmark = pytest.mark.spark

PARTITIONS = 2
SOAK_S = float(os.environ.get("SEMEL_SOAK_SECONDS", "600"))


class Model:
    """What should be there, from the input and from where each micro-batch ended."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage, self._folder = stage, folder
        self._inputs = {topic: self._read(topic) for topic in ("payments", "refunds")}

    def _read(self, topic: str) -> list[list[tuple[str, int]]]:
        """Key and number of each record, by partition and offset."""
        found: list[list[tuple[str, int]]] = [[] for _ in range(PARTITIONS)]
        for record in self._stage.seen(topic):
            assert record.key is not None and record.value is not None
            found[record.partition].append((record.key.decode(), int(record.value)))
        return found

    def batches(self, kind: str) -> list[list[tuple[str, int]]]:
        """The payments of each micro-batch, by Spark's own log of offsets."""
        ends, found = [0] * PARTITIONS, []
        logged = (self._folder / kind / "offsets").glob("[0-9]*")
        for path in sorted(logged, key=lambda path: int(path.name)):
            texts = [json.loads(line) for line in path.read_text().splitlines()[2:]]
            upto = next(text["payments"] for text in texts if "payments" in text)
            rows = []
            for partition, until in sorted((int(name), end) for name, end in upto.items()):
                rows += self._inputs["payments"][partition][ends[partition] : until]
                ends[partition] = until
            found.append(rows)
        return found

    def all(self, topic: str = "payments") -> list[tuple[str, int]]:
        return [row for partition in self._inputs[topic] for row in partition]

    def output(self, kind: str) -> Any:
        if kind in ("distinct", "join"):
            refunded = {number for _, number in self.all("refunds")}
            once = self.all() if kind == "join" else set(self.all())
            return Counter(row for row in once if kind == "distinct" or row[1] in refunded)
        if kind == "complete":
            table: Counter[str] = Counter()
            shown: Counter[tuple[str, int]] = Counter()
            for rows in self.batches(kind):
                if rows:  # a batch without data, made to move the watermark, shows nothing here
                    table.update(key for key, _ in rows)
                    shown.update(table.items())
            return shown
        totals: Counter[str] = Counter()
        changes: dict[str, list[int]] = {}
        for rows in self.batches(kind):
            for key, number in rows:
                totals[key] += 1 if kind == "update" else number
            for key in {key for key, _ in rows}:
                changes.setdefault(key, []).append(totals[key])
        return changes

    def state(self, kind: str) -> Any:
        if kind == "distinct":
            return sorted({number for _, number in self.all()})
        if kind == "join":
            return [sorted(number for _, number in self.all(topic)) for topic in ("payments", "refunds")]
        totals: Counter[str] = Counter()
        for key, number in self.all():
            totals[key] += number if kind == "transform" else 1
        return sorted([key, total] for key, total in totals.items())


class Life:
    """Runs of the program with the five queries, one after the other, on the same checkpoints."""

    def __init__(self, bootstrap_servers: str, folder: Path) -> None:
        self.stage = Stage(None, bootstrap_servers, folder)
        self.folder = folder / "checkpoints"
        self.said = ""
        self.stage.create_topics(payments=PARTITIONS, refunds=PARTITIONS, **{f"out-{kind}": 1 for kind in KINDS})

    def put(self, since: int, count: int, *, again: int = 0) -> None:
        """Payments with numbers of their own, some of them sent again, and a refund for every third."""
        rows = [(b"account-%d" % (number % 7), b"%d" % number) for number in range(since, since + count)]
        self.stage.put("payments", rows + rows[:again])
        self.stage.put("refunds", rows[::3])

    def run(self, die_at: dict[str, str], *, per_batch: int, state: Path | None = None) -> None:
        script = Path(__file__).with_name("stateful_pipeline.py")
        command = [
            sys.executable, str(script), "--bootstrap", self.stage.bootstrap_servers, "--folder", str(self.folder),
            "--per-batch", str(per_batch), "--die-at", ",".join(f"{kind}={at}" for kind, at in die_at.items()),
        ]  # fmt: skip
        command += ["--state", str(state)] if state is not None else []
        environment = {"PYTHONPATH": path_of_the_code()}
        with Process(command, name="stateful", environment=environment, directory=self.stage.folder) as process:
            code = process.wait(within_s=900)
            said = process.output()
        self.said += said
        assert code == (-signal.SIGKILL if die_at else 0), said[-4000:]

    def shown(self, kind: str) -> Any:
        rows = [(record.key.decode(), int(record.value)) for record in self.stage.seen(f"out-{kind}")]  # type: ignore[union-attr, arg-type]
        if kind not in ("update", "transform"):
            return Counter(rows)
        changes: dict[str, list[int]] = {}
        for key, number in rows:
            changes.setdefault(key, []).append(number)
        return changes

    def judge(self, state: Path) -> None:
        """Output and state of every kind are those of the model."""
        model, found = Model(self.stage, self.folder), json.loads(state.read_text())
        for kind in KINDS:
            assert self.shown(kind) == model.output(kind), kind
            assert found[kind] == model.state(kind), f"the state of {kind}"


@pytest.mark.timeout(2800)
def test_state_and_output_are_those_of_a_model_though_the_driver_is_killed_where_it_hurts(
    semel_broker: semel.Broker, tmp_path: Path
) -> None:
    require_spark()
    life = Life(semel_broker.bootstrap_servers, tmp_path)
    life.put(0, 150, again=10)
    first = ("PRODUCED", "COMMITTED", "OFFSETS_ADDED", "PRODUCED", "COMMITTED")
    second = ("COMMITTED", "PRODUCED", "COMMITTED", "COMMITTED", "PRODUCED")
    life.run({kind: f"{step}:0" for kind, step in zip(KINDS, first, strict=True)}, per_batch=80)
    life.run({kind: f"{step}:1" for kind, step in zip(KINDS, second, strict=True)}, per_batch=80)
    life.put(150, 40)
    state = tmp_path / "state.json"
    life.run({}, per_batch=80, state=state)
    assert life.said.count(": SKIPPED") == (*first, *second).count("COMMITTED")
    life.judge(state)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 3600)
def test_state_and_output_are_those_of_a_model_after_many_kills(semel_broker: semel.Broker, tmp_path: Path) -> None:
    """Each round adds input, and kills all queries at steps that hurt, drawn by lot."""
    require_spark()
    life = Life(semel_broker.bootstrap_servers, tmp_path)
    seed = random.randrange(1 << 30)
    chance, began, rounds = random.Random(seed), time.monotonic(), 0
    state = tmp_path / "state.json"
    print(f"seed {seed}", flush=True)
    while rounds < 12 and time.monotonic() < began + SOAK_S:
        life.put(100 * rounds, 100, again=5)
        steps = {kind: chance.choice(["PRODUCED", "OFFSETS_ADDED", "COMMITTED"]) for kind in KINDS}
        batches = {kind: last_batch(life.folder / kind) for kind in KINDS}
        life.run({kind: f"{steps[kind]}:{batches[kind] + 1}" for kind in KINDS}, per_batch=1000)
        life.run({}, per_batch=1000, state=state)
        life.judge(state)
        rounds += 1
        print(f"  {time.monotonic() - began:5.0f} s  round {rounds}: killed at {steps}", flush=True)
    print(f"{rounds} rounds of {len(KINDS)} queries with state, each killed where it hurts: output and state agree")
    assert rounds >= 1


def last_batch(checkpoint: Path) -> int:
    folder = checkpoint / "commits"
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1) if folder.exists() else -1



"""The pipeline under kill -9, where it hurts: nothing lost, nothing twice, every key in its order, nothing torn."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.spark.kills import KillableBroker, Kills, Place, Victim
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import BrokerProcess
from tests.support.requirements import require_kafka, require_spark

pytestmark = pytest.mark.spark

#: A bound for the long runs: no round begins after it. The records are copied and judged in any case.
SOAK_S = float(os.environ.get("SEMEL_SOAK_SECONDS", "3600"))
#: What a round may take on a busy machine: two starts of a driver, and a batch.
ROUND_S = 300

Plan = Sequence[tuple[Victim, Place | None]]
#: Every victim at every place that can hurt it, and at random. An executor has nothing to do after EndTxn.
EVERY_KIND: Plan = [
    (Victim.DRIVER, Place.OPEN), (Victim.BROKER, Place.OPEN), (Victim.EXECUTOR, Place.OPEN),
    (Victim.EXECUTOR, Place.RERUN), (Victim.DRIVER, Place.COMMITTED), (Victim.BROKER, Place.COMMITTED),
    (Victim.EXECUTOR, None), (Victim.BROKER, Place.RERUN), (Victim.DRIVER, Place.RERUN), (Victim.BROKER, None),
]  # fmt: skip


def survive(
    broker: KillableBroker, folder: Path, plan: Plan, *, records: int, per_batch: int, bound_s: float,
    kind: type[Kills] = Kills,
) -> None:  # fmt: skip
    began = time.monotonic()
    seed = random.randrange(1 << 30)

    def tell(what: str) -> None:
        print(f"  {time.monotonic() - began:5.0f} s  {what}", flush=True)

    tell(f"{records} records, {len(plan)} rounds, seed {seed}")
    kills = kind(broker, folder, per_batch=per_batch, seed=seed, tell=tell)
    counted = 0
    try:
        kills.put(records)
        for victim, aim in plan:
            while time.monotonic() < began + bound_s:
                if kills.round(victim, aim, within_s=ROUND_S):
                    counted += 1
                    break
        kills.finish(within_s=1200)
        anomalies = kills.anomalies()
        tell(f"{counted} rounds; {kills.report()}; anomalies: {len(anomalies)}")
    finally:
        kills.close()
    assert anomalies == []
    assert counted == len(plan) or time.monotonic() >= began + bound_s
    assert counted >= min(3, len(plan))


@pytest.mark.timeout(600)
def test_a_killed_executor_broker_and_driver_cost_no_record_and_no_order(tmp_path: Path) -> None:
    require_spark()
    plan = [
        (Victim.EXECUTOR, Place.OPEN), (Victim.BROKER, Place.OPEN), (Victim.BROKER, Place.COMMITTED),
        (Victim.DRIVER, Place.OPEN),
    ]  # fmt: skip
    with BrokerProcess(tmp_path / "data") as broker:
        survive(broker, tmp_path, plan, records=12_000, per_batch=3_000, bound_s=540)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 3600)
def test_thirty_rounds_of_kills_over_a_million_records(tmp_path: Path) -> None:
    require_spark()
    plan = list(itertools.islice(itertools.cycle(EVERY_KIND), 30))
    with BrokerProcess(tmp_path / "data") as broker:
        survive(broker, tmp_path, plan, records=1_000_000, per_batch=30_000, bound_s=SOAK_S)


@pytest.mark.soak
@pytest.mark.java
@pytest.mark.timeout(SOAK_S + 3600)
def test_rounds_of_kills_on_apache_kafka(tmp_path: Path) -> None:
    require_spark()
    require_kafka()
    with ApacheKafka(directory=tmp_path / "kafka") as broker:
        survive(broker, tmp_path, EVERY_KIND, records=200_000, per_batch=10_000, bound_s=SOAK_S)

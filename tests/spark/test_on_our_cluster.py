"""A pipeline on a cluster of three of our own brokers, which are killed with -9 and come back.

Nothing is configured for it but several bootstrap addresses.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.spark import Step
from tests.spark.cluster_kills import GROUP, TRANSACTION, ClusterKills, OneOfThree, coordinator_of
from tests.spark.kills import Place, Victim
from tests.spark.stage import Stage
from tests.spark.test_kills import SOAK_S, Plan, survive

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[semel.Cluster]:
    settings = {"offsets.topic.num.partitions": 5, "transaction.state.log.num.partitions": 5}
    with semel.Cluster(brokers=3, settings=settings) as running:
        yield running


def test_each_broker_that_is_needed_is_killed_and_each_record_arrives_once(
    spark: Any, cluster: semel.Cluster, tmp_path: Path
) -> None:
    """A leader before the tasks write to it, then both coordinators, where the transaction stands on them."""
    stage = Stage(spark, cluster.bootstrap_servers, tmp_path, "copy", replicas=3)
    stage.create_topics(payments=3, ledger=6)
    values = stage.put_numbers(800)
    killed: list[int] = []
    moments = {
        (Step.BEGUN, 1): lambda: cluster.leader_of("ledger", 0),
        (Step.PRODUCED, 3): lambda: coordinator_of(cluster, GROUP, "copy"),
        (Step.OFFSETS_ADDED, 5): lambda: coordinator_of(cluster, TRANSACTION, "copy"),
    }

    def kill_and_bring_back(step: Step, batch_id: int) -> None:
        if find := moments.pop((step, batch_id), None):
            killed.append(find())
            cluster.kill(killed[-1])
        elif step is Step.COMMITTED and killed and not cluster.is_running(killed[-1]):
            cluster.restart(killed[-1])

    steps = stage.run(stage.source(maxOffsetsPerTrigger=100), observer=kill_and_bring_back)
    assert len(killed) == 3
    committed = [batch_id for step, batch_id in steps if step is Step.COMMITTED]
    assert committed == list(range(len(committed))) and len(committed) >= 8
    assert sorted(value for value in stage.values() if value) == values
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in stage.seen():
        by_key.setdefault(record.key, []).append(record.value)
    assert all(found == sorted(found) for found in by_key.values()), "a key is not in its order"
    # The first of the addresses is dead, and a new start does not mind.
    cluster.kill(1)
    stage.put("payments", [(b"account-0", b"news")])
    stage.run(stage.source())
    assert sorted(value for value in stage.values() if value) == [*values, b"news"]


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 3600)
def test_rounds_of_kills_on_three_of_our_brokers(tmp_path: Path) -> None:
    plan: Plan = [
        (Victim.BROKER, Place.OPEN), (Victim.BROKER, None), (Victim.DRIVER, Place.OPEN),
        (Victim.BROKER, Place.COMMITTED), (Victim.BROKER, Place.OPEN), (Victim.EXECUTOR, Place.OPEN),
        (Victim.BROKER, Place.RERUN), (Victim.BROKER, Place.OPEN), (Victim.BROKER, None), (Victim.BROKER, Place.OPEN),
    ]  # fmt: skip
    with semel.Cluster(brokers=3) as cluster:
        broker = OneOfThree(cluster, seed=random.randrange(1 << 30))
        survive(broker, tmp_path, plan, records=200_000, per_batch=10_000, bound_s=SOAK_S, kind=ClusterKills)

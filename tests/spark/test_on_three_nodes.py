"""A pipeline on a cluster of three Apache Kafka nodes, one of which is killed with -9 while it is needed most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from semel.spark import Step
from tests.spark.stage import Stage
from tests.support.apache_kafka import ThreeApacheKafkas
from tests.support.requirements import require_kafka

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def cluster() -> Iterator[ThreeApacheKafkas]:
    require_kafka()
    with ThreeApacheKafkas() as cluster:
        yield cluster


def test_a_node_of_three_is_killed_and_each_record_arrives_once(
    spark: Any, cluster: ThreeApacheKafkas, tmp_path: Path
) -> None:
    stage = Stage(spark, cluster.bootstrap_servers, tmp_path)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic("payments", 3, 3), NewTopic("ledger", 6, 3)]).values():
        made.result(60)
    values = stage.put_numbers(600)
    killed: list[int] = []

    def kill_the_coordinator(step: Step, batch_id: int) -> None:
        """Between the commit of the offsets and the end of the transaction, the node that keeps the progress."""
        if step is Step.OFFSETS_ADDED and batch_id == 2 and not killed:
            group = admin.describe_consumer_groups([stage.transactional_id])[stage.transactional_id].result(30)
            killed.append(group.coordinator.id)
            cluster.nodes[killed[0]].kill9()

    steps = stage.run(stage.source(maxOffsetsPerTrigger=100), observer=kill_the_coordinator, compression="lz4")
    assert len(killed) == 1
    committed = [batch_id for step, batch_id in steps if step is Step.COMMITTED]
    assert committed == list(range(len(committed))) and len(committed) >= 6
    assert sorted(value for value in stage.values() if value) == values
    # The node comes back, and the pipeline goes on.
    cluster.nodes[killed[0]].launch()
    cluster.nodes[killed[0]].wait_until_started(within_s=180)
    stage.put("payments", [(b"k", b"news")])
    stage.run(stage.source())
    assert sorted(value for value in stage.values() if value) == [*values, b"news"]

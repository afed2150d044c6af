"""The same pipeline on Apache Kafka: the promise is the protocol's, not our broker's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.client.cluster.cluster import Cluster
from semel.spark import Step, write
from semel.testing.fault_proxy import Cut, FaultProxy, Passing, every
from semel.wire.apis import ApiKey
from tests.spark.stage import Stage
from tests.support.apache_kafka import ApacheKafka

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(300)]


@pytest.mark.parametrize("protocol", [1, 2])
def test_lost_answers_failures_and_reruns_leave_each_record_once(
    spark: Any, apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    stage = Stage(spark, apache_kafka.bootstrap_servers, tmp_path, f"pipeline-{protocol}")
    source, target = f"payments-{protocol}", f"ledger-{protocol}"
    stage.create_topics(**{source: 2, target: 3})
    values = stage.put_numbers(40, source)
    if protocol == 1:
        monkeypatch.setattr(Cluster, "transaction_version", property(lambda _: 0))
    failed: list[int] = []

    def fail_once(step: Step, batch_id: int) -> None:
        if step is Step.PRODUCED and batch_id == 1 and not failed:
            failed.append(batch_id)
            raise RuntimeError("the driver lost its head")

    def lose_answers(passing: Passing) -> Any:
        return every(2, ApiKey.END_TXN, Cut())(passing) or every(3, ApiKey.PRODUCE, Cut())(passing)

    with FaultProxy(stage.bootstrap_servers, lose_answers) as proxy:
        options = {"subscribe": source, "maxOffsetsPerTrigger": 20}
        settings = {"bootstrap_servers": proxy.bootstrap_servers, "topic": target}
        steps = stage.run(stage.source(**options), observer=fail_once, **settings)
        assert (Step.RETRYING, 1) in steps
        stage.forget_commits_from(1)
        assert stage.run(stage.source(**options), **settings) == [(Step.SKIPPED, 1)]
    assert sorted(value for value in stage.values(target) if value) == values
    assert len(stage.values(target, committed=False)) > len(values)


@pytest.mark.parametrize("protocol", [1, 2])
def test_several_outputs_and_loads_are_one_transaction_there_too(
    spark: Any, apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    stage = Stage(spark, apache_kafka.bootstrap_servers, tmp_path, f"outputs-{protocol}")
    source, even, odd = (f"{name}-of-{protocol}" for name in ("source", "even", "odd"))
    stage.create_topics(**{source: 2, even: 2, odd: 1})
    values = stage.put_numbers(40, source)
    if protocol == 1:
        monkeypatch.setattr(Cluster, "transaction_version", property(lambda _: 0))
    failed: list[int] = []

    def fail_once(step: Step, batch_id: int) -> None:
        if step is Step.OFFSETS_ADDED and batch_id == 1 and not failed:
            failed.append(batch_id)
            raise RuntimeError("the driver lost its head")

    outputs = {
        even: lambda rows: rows.where("int(string(value)) % 2 = 0"),
        odd: lambda rows: rows.where("int(string(value)) % 2 = 1"),
    }
    with FaultProxy(stage.bootstrap_servers, every(2, ApiKey.END_TXN, Cut())) as proxy:
        steps = stage.run(stage.source(subscribe=source, maxOffsetsPerTrigger=20), observer=fail_once, topic=None,
                          outputs=outputs, bootstrap_servers=proxy.bootstrap_servers)  # fmt: skip
        assert (Step.RETRYING, 1) in steps
        assert sorted(value for value in stage.values(even) if value) == values[::2]
        assert sorted(value for value in stage.values(odd) if value) == values[1::2]
        rows = spark.range(30).selectExpr("string(id) as value")
        load: dict[str, Any] = {
            "bootstrap_servers": proxy.bootstrap_servers, "transactional_id": f"loads-{protocol}", "topic": odd,
        }  # fmt: skip
        assert write(rows, name="monday", **load).rows == 30
        assert write(rows, name="monday", **load).was_done
    assert len(stage.values(odd)) == 20 + 30

"""Progress in a compacted topic: it is there when the group's offsets have expired, and is always the committed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import semel
from semel.cli.pipeline import pipeline
from semel.client.cluster.cluster import Cluster
from semel.machines.pipeline.batch_marker import BatchMarker
from semel.machines.values import TopicPartition
from semel.spark import Step, write
from semel.spark.limits import is_compacted
from tests.spark.driver import SOURCE, Driver
from tests.spark.stage import Stage
from tests.support.apache_kafka import ApacheKafka


def make_topics(bootstrap_servers: str) -> None:
    with semel.Admin({"bootstrap.servers": bootstrap_servers}) as admin:
        for name, settings in (("payments", {}), ("ledger", {}), ("progress", {"cleanup.policy": "compact"})):
            admin.create_topic(name, partitions=1, configs=settings, if_not_exists=True)


def expire(bootstrap_servers: str, group: str, *places: tuple[str, int]) -> None:
    with semel.Admin({"bootstrap.servers": bootstrap_servers}) as admin:
        admin.delete_group_offsets(group, list(places))


class Drivers:
    """Drivers with a compacted topic for their progress, one after the other or at once."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.open: list[Driver] = []

    def new(self, transactional_id: str = "pipeline") -> Driver:
        driver = Driver(self.bootstrap_servers, transactional_id)
        driver.client.keep_progress_in("progress")
        self.open.append(driver)
        return driver

    def close(self) -> None:
        for driver in self.open:
            driver.close()


@pytest.fixture
def drivers(semel_broker: semel.Broker) -> Iterator[Drivers]:
    make_topics(semel_broker.bootstrap_servers)
    drivers = Drivers(semel_broker.bootstrap_servers)
    yield drivers
    drivers.close()


def progress_of(driver: Driver) -> Any:
    driver.begin()
    return driver.loop.run(driver.client.progress())


def play(drivers: Drivers) -> None:
    """Three batches, the last one aborted; another pipeline with its transaction open; then the group expires."""
    driver = drivers.new()
    for batch_id in range(2):
        driver.begin()
        driver.task([b"row"])
        driver.commit(batch_id, offset=10 * (batch_id + 1))
    driver.begin()
    driver.loop.run(driver.client.commit_offsets({SOURCE: 30}, BatchMarker("query", 2, "aa")))
    driver.loop.run(driver.client.end(commit=False))
    other = drivers.new("other")
    other.begin()
    other.loop.run(other.client.commit_offsets({SOURCE: 7}, BatchMarker("stranger", 9, "bb")))
    expire(drivers.bootstrap_servers, "pipeline", ("payments", 0))


@pytest.mark.parametrize("protocol", [1, 2])
def test_progress_that_expired_is_read_from_the_topic(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    if protocol == 1:
        monkeypatch.setattr(Cluster, "transaction_version", property(lambda _: 0))
    play(drivers)
    found = progress_of(drivers.new())
    assert found.marker == BatchMarker("query", 1, "aa")
    assert found.offsets == {TopicPartition("payments", 0): 20}
    assert progress_of(drivers.new("nobody")).marker is None


@pytest.mark.java
def test_on_apache_kafka_too(apache_kafka: ApacheKafka) -> None:
    make_topics(apache_kafka.bootstrap_servers)
    drivers = Drivers(apache_kafka.bootstrap_servers)
    try:
        play(drivers)
        assert progress_of(drivers.new()).marker == BatchMarker("query", 1, "aa")
    finally:
        drivers.close()


def test_forgotten_progress_is_forgotten_in_the_topic_too(drivers: Drivers) -> None:
    play(drivers)
    arguments = ["forget", "pipeline", "--yes", "--marker-topic", "progress"]
    told = CliRunner().invoke(pipeline, [*arguments, "--bootstrap-server", drivers.bootstrap_servers])
    assert told.exit_code == 0, told.output
    assert progress_of(drivers.new()).marker is None


def test_a_topic_that_deletes_records_is_no_place_for_progress(drivers: Drivers) -> None:
    driver = drivers.new()
    assert driver.loop.run(is_compacted(driver.cluster, "progress"))
    assert not driver.loop.run(is_compacted(driver.cluster, "ledger"))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_pipeline_and_a_load_go_on_though_their_groups_have_expired(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path
) -> None:
    make_topics(semel_broker.bootstrap_servers)
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    values = stage.put_numbers(20)
    stage.run(stage.source(maxOffsetsPerTrigger=10), marker_topic="progress")
    expire(stage.bootstrap_servers, stage.transactional_id, ("payments", 0))
    stage.forget_commits_from(1)  # the driver died right after its commit, a long time ago
    stage.put("payments", [(b"k", b"news")])
    steps = stage.run(stage.source(), marker_topic="progress")
    assert steps[0] == (Step.SKIPPED, 1)
    assert stage.values() == [*values, b"news"]
    load: dict[str, Any] = {
        "bootstrap_servers": stage.bootstrap_servers, "transactional_id": "loads", "topic": "ledger",
        "marker_topic": "progress", "name": "monday",
    }  # fmt: skip
    rows = spark.range(3).selectExpr("string(id) as value")
    assert write(rows, **load).rows == 3
    expire(stage.bootstrap_servers, "loads/monday", ("progress", 0))
    assert write(rows, **load).was_done

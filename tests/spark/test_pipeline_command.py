"""`semel pipeline`: what a person sees of a pipeline from the broker's side."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from semel.cli.pipeline import pipeline
from tests.spark.driver import Driver


@pytest.fixture
def driver(semel_broker: semel.Broker) -> Iterator[Driver]:
    admin = AdminClient({"bootstrap.servers": semel_broker.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in ("payments", "ledger")]).values():
        created.result(20)
    driver = Driver(semel_broker.bootstrap_servers)
    yield driver
    driver.close()


def says(driver: Driver, *words: str, answer: str = "", exit_code: int = 0) -> str:
    bootstrap = dict(driver.settings)["bootstrap.servers"]
    result = CliRunner().invoke(pipeline, [*words, "--bootstrap", bootstrap], input=answer)
    assert result.exit_code == exit_code, result.output
    return result.output


def test_a_pipeline_nobody_knows_is_said_to_be_unknown_and_the_command_fails(driver: Driver) -> None:
    said = says(driver, "status", "nobody", exit_code=1)
    assert "'nobody' has committed no micro-batch here" in said
    assert "not known to the coordinator" in said
    assert json.loads(says(driver, "status", "nobody", "--json", exit_code=1))["marker"] is None


def test_a_pipeline_that_has_only_begun_is_known(driver: Driver) -> None:
    driver.begin()
    assert "has committed no micro-batch here" in says(driver, "status", "pipeline")


def test_status_shows_the_marker_the_offsets_and_the_open_transaction(driver: Driver) -> None:
    driver.begin()
    driver.task([b"1", b"2"])
    assert "a transaction is open: Ongoing for" in says(driver, "status", "pipeline")
    assert "writing ledger-0" in says(driver, "status", "pipeline")
    driver.commit(4, offset=10)
    said = says(driver, "status", "pipeline")
    assert "'pipeline' has committed batch 4 of query query" in said
    assert "no transaction is open" in said
    found = json.loads(says(driver, "status", "pipeline", "--json"))
    assert found["marker"] == {"query_id": "query", "batch_id": 4, "offsets_hash": "aa"}
    assert [(row["topic"], row["committed"]) for row in found["sources"]] == [("payments", 10)]


def test_status_of_a_pipeline_from_another_cluster_does_not_show_the_markers_partition_as_a_source(
    driver: Driver,
) -> None:
    driver.begin()
    driver.task([b"1", b"2"])
    driver.commit_elsewhere(4)
    found = json.loads(says(driver, "status", "pipeline", "--json"))
    assert found["marker"] == {"query_id": "query", "batch_id": 4, "offsets_hash": "aa"}
    assert (found["sources"], found["sources_elsewhere"]) == ([], True)
    said = says(driver, "status", "pipeline")
    assert "has committed batch 4" in said and "sources are not on this cluster" in said and "ledger" not in said
    driver.begin()
    driver.commit(5, offset=10)
    found = json.loads(says(driver, "status", "pipeline", "--json"))
    assert [row["topic"] for row in found["sources"]] == ["payments"], "its source has come to this cluster"


def test_forget_asks_first_and_then_deletes_the_progress(driver: Driver) -> None:
    driver.begin()
    driver.task([b"1"])
    driver.commit(0)
    assert "Aborted" in says(driver, "forget", "pipeline", answer="n\n", exit_code=1)
    assert driver.loop.run(driver.client.progress()).marker is not None
    assert "forgot the progress of 'pipeline' (batch 0 of query query)" in says(driver, "forget", "pipeline", "--yes")
    assert driver.loop.run(driver.client.progress()).marker is None
    assert "there is no progress" in says(driver, "forget", "pipeline", "--yes", exit_code=1)


def test_forget_of_a_marker_topic_that_is_not_there_creates_none(driver: Driver) -> None:
    said = says(driver, "forget", "pipeline", "--yes", "--marker-topic", "nowhere", exit_code=1)
    assert "there is no topic 'nowhere'" in said
    admin = AdminClient({"bootstrap.servers": dict(driver.settings)["bootstrap.servers"]})
    assert "nowhere" not in admin.list_topics(timeout=20).topics

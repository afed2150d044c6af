"""What can be looked at while a pipeline runs: its progress, and what Prometheus is told."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import semel
from semel.spark import PipelineMistake, Step
from semel.spark.measures import Measures, MetricsServer, lags_of
from tests.spark.stage import Stage
from tests.support.waiting import until


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def steps_of_a_batch(measures: Measures, clock: Clock, batch_id: int, *steps: Step) -> None:
    for step in steps:
        clock.now += 0.25
        measures.observe(step, batch_id)


def value_of(page: str, name: str) -> float:
    return next(
        float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"semel_pipeline_{name}")
    )


def test_rows_bytes_times_and_reruns_of_each_batch_are_kept() -> None:
    clock, seen = Clock(), []
    measures = Measures(lambda step, batch: seen.append((step, batch)), lambda: (10, 700), clock)
    steps_of_a_batch(measures, clock, 0, Step.BEGUN, Step.PRODUCED, Step.RETRYING)
    assert measures.batch(0) is None, "it has not ended"
    steps_of_a_batch(measures, clock, 0, Step.BEGUN, Step.PRODUCED, Step.OFFSETS_ADDED, Step.COMMITTED)
    steps_of_a_batch(measures, clock, 1, Step.SKIPPED)
    first = measures.batch(0)
    assert first is not None
    assert first.as_metrics() == {
        "outcome": "committed", "rows": 10, "bytes": 700, "reruns": 1, "writeMs": 250.0, "commitMs": 500.0,
    }  # fmt: skip
    assert len(seen) == 8, "the user's observer is called too"
    page = measures.render('a "name"', None)
    assert 'semel_pipeline_batches_total{transactional_id="a \\"name\\"",outcome="committed"} 1' in page
    assert value_of(page, "rows_written_total") == 10 and value_of(page, "bytes_written_total") == 700
    assert value_of(page, "reruns_total") == 1 and value_of(page, "commit_seconds_total") == 0.5
    assert value_of(page, "last_batch{") == 1


def test_rows_of_an_attempt_that_failed_are_not_counted() -> None:
    clock = Clock()
    measures = Measures(lambda step, batch: None, lambda: (10, 700), clock)
    steps_of_a_batch(measures, clock, 0, Step.BEGUN, Step.PRODUCED, Step.RETRYING)
    assert value_of(measures.render("id", None), "rows_written_total") == 0


def test_the_page_is_what_prometheus_reads() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    progress = {
        "numInputRows": 3,
        "sources": [{"endOffset": {"payments": {"0": 5}}, "latestOffset": {"payments": {"0": 9}}}],
    }
    page = Measures(lambda step, batch: None, lambda: (0, 0)).render("a\\b\n", progress)
    families = {family.name: family for family in parser.text_string_to_metric_families(page)}
    lag = families["semel_pipeline_lag_offsets"].samples[0]
    assert (lag.value, lag.labels["topic"], lag.labels["transactional_id"]) == (4, "payments", "a\\b\n")


def test_lag_is_what_was_there_and_not_read() -> None:
    source = {"endOffset": '{"a": {"0": 5, "1": 7}}', "latestOffset": {"a": {"0": 9, "1": 7}, "b": {"0": 2}}}
    assert lags_of(source) == {("a", "0"): 4, ("a", "1"): 0, ("b", "0"): 2}
    assert lags_of({"endOffset": "0", "latestOffset": None}) == {}, "a source without Kafka's offsets"


def test_only_metrics_are_served_and_a_port_that_is_taken_is_told() -> None:
    server = MetricsServer("127.0.0.1", 0, lambda: "page\n")
    try:
        address = f"http://127.0.0.1:{server.port}"
        assert urllib.request.urlopen(f"{address}/metrics", timeout=10).read() == b"page\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/other", timeout=10)
        measures = Measures(lambda step, batch: None, lambda: (0, 0))
        with pytest.raises(PipelineMistake, match=rf"metrics_port={server.port} cannot be used at 127.0.0.1: Address"):
            measures.serve("127.0.0.1", server.port, "id")
    finally:
        server.close()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_tells_its_figures_by_its_progress_and_by_its_port(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path
) -> None:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=2)
    stage.put_numbers(30)
    pages: list[str] = []

    def scrape(step: Step, batch_id: int) -> None:
        if batch_id == 1 and step is Step.BEGUN:
            port = stage.query.metrics_port
            pages.append(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode())

    with pytest.raises(PipelineMistake, match="metrics_port='x': must be a port"):
        stage.run(stage.source(), metrics_port="x")
    stage.run(stage.source(maxOffsetsPerTrigger=20), metrics_port=0, observer=scrape)
    assert value_of(pages[0], "rows_written_total") == 20 and value_of(pages[0], "lag_offsets") > 0
    for progress, rows, lag in zip(stage.query.recentProgress, (20, 10), (10, 0), strict=True):
        told = progress.observedMetrics["semel"]
        assert (told["rows"], told["outcome"], told["reruns"], told["lag"]) == (rows, "committed", 0, lag)
        assert told["bytes"] > rows * 6 and told["commitMs"] > 0
        assert progress.sink.numOutputRows == rows
        assert progress.sources[0].metrics["lag"] == str(lag)
        assert progress.sink.description == f"semel[ledger at {stage.bootstrap_servers}]"

    def is_closed() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{stage.query.metrics_port}/metrics", timeout=5)
        except OSError:
            return True
        return False

    until(is_closed, within_s=30, what="the port to be closed with the query")

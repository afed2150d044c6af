"""A query that is started again with other sources, or with its sources in another order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable

import semel
from semel.spark import PipelineMistake
from semel.spark.changed_sources import refuse_other_sources
from semel.spark.checkpoint import BatchOffsets, parse_offsets
from semel.spark.frames import StreamingSource
from semel.spark.range_reader import DataLost
from semel.spark.source import SemelStreamReader
from semel.spark.source_options import SourceOptions
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def source(**options: str) -> StreamingSource:
    given = {name.lower(): value for name, value in options.items()}
    return StreamingSource("semel", {"kafka.bootstrap.servers": "h:1", **given})


def read_so_far(*lines: str) -> BatchOffsets:
    """Offsets as Spark stores them, a line for each source: the topics that it has read."""
    texts = (json.dumps({topic: {"0": 7} for topic in line.split()}) if line else "-" for line in lines)
    return parse_offsets("v1\n{}\n" + "\n".join(texts))


@pytest.mark.parametrize(
    ("sources", "known"),
    [
        ([source(subscribe="a"), source(subscribe="b")], read_so_far("a", "b")),
        ([source(subscribe="a,b")], read_so_far("a")),  # a topic more
        ([source(subscribe="b")], read_so_far("a b")),  # a topic less
        ([source(subscribePattern="[ab]")], read_so_far("a")),
        ([source(assign='{"a": [0, 1]}')], read_so_far("a")),
        ([source(subscribe="a"), source(subscribe="a")], read_so_far("a", "a")),
        ([source(subscribe="b", failOnDataLoss="false")], read_so_far("a")),
        ([source(subscribe="a"), source(subscribe="b")], read_so_far("a", "")),  # nothing read of it yet
        ([source(subscribe="a"), StreamingSource("rate", {})], BatchOffsets(("x",), ({}, {}))),
        ([source(subscribe="a")], BatchOffsets((), ())),  # a new checkpoint
        ([source(subscribePattern=".*"), source(subscribe="b")], read_so_far("a", "b")),  # twice
        ([source(subscribe="a"), source(subscribe="b")], parse_offsets('v2\n{}\ns:{"b":{"0":1}}')),  # named
    ],
)
def test_what_goes_on_with_the_offsets_of_the_checkpoint_is_accepted(
    sources: list[StreamingSource], known: BatchOffsets
) -> None:
    refuse_other_sources(sources, known, "/c")


@pytest.mark.parametrize(
    ("sources", "known", "says"),
    [
        ([source(subscribe="b"), source(subscribe="a")], read_so_far("a", "b"), "reads b-0 in its source number 1"),
        ([source(subscribe="a,c"), source(subscribe="b")], read_so_far("a", "b c"), "has it in number 2"),
        (
            [source(assign='{"a": [1]}'), source(assign='{"a": [0]}')],
            parse_offsets('v1\n{}\n{"a": {"0": 7}}\n{"a": {"1": 7}}'),
            "reads a-1 in its source number 1, and checkpoint='/c' has it in number 2",
        ),
        (
            [source(subscribe="b", failOnDataLoss="false"), source(subscribe="a", failOnDataLoss="false")],
            read_so_far("a", "b"),
            "Name the sources in the order that they had",
        ),
        ([source(subscribe="a")], read_so_far("a", "b"), "offsets of 2 sources, and the query reads 1 source"),
        ([source(subscribe="b")], read_so_far("a"), "/c' has read a, and now none of that is read, but b"),
        ([source(subscribePattern="b.*")], read_so_far("a"), "but subscribePattern=b.*"),
        ([source(assign='{"b": [0]}')], read_so_far("a"), "set failOnDataLoss=false"),
    ],
)
def test_sources_that_do_not_fit_to_the_checkpoint_are_refused(
    sources: list[StreamingSource], known: BatchOffsets, says: str
) -> None:
    with pytest.raises(PipelineMistake) as refused:
        refuse_other_sources(sources, known, "/c")
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=1, refunds=1, ledger=1)
    return stage


def test_two_topics_that_change_places_in_a_union_are_not_read_again(stage: Stage) -> None:
    """Each source would be given the other's offsets, and would take its own topic for a new one."""

    def copies(*topics: str) -> Any:
        first, second = (stage.source(subscribe=topic) for topic in topics)
        return first.union(second)

    stage.put("payments", [(None, b"p1"), (None, b"p2")])
    stage.put("refunds", [(None, b"r1"), (None, b"r2")])
    stage.run(copies("payments", "refunds"))
    with pytest.raises(PipelineMistake, match="the query reads refunds-0 in its source number 1"):
        stage.run(copies("refunds", "payments"))
    with pytest.raises(PipelineMistake, match="of 2 sources, and the query reads 1 source"):
        stage.run(stage.source())
    stage.put("refunds", [(None, b"r3")])
    stage.run(copies("payments", "refunds"))
    assert sorted(map(str, stage.values())) == ["b'p1'", "b'p2'", "b'r1'", "b'r2'", "b'r3'"]


def test_a_source_topic_that_was_created_again_between_two_starts_is_told(stage: Stage) -> None:
    """Its old offsets would be taken for those of the new topic, and the records before them would never be read."""

    def both(**options: Any) -> Any:
        return stage.source(subscribe="payments,refunds", **options)

    for topic in ("payments", "refunds"):
        stage.put(topic, [(None, b"old"), (None, b"old")])
    stage.run(both())
    admin = AdminClient({"bootstrap.servers": stage.bootstrap_servers})
    admin.delete_topics(["refunds"])["refunds"].result(20)
    stage.create_topics(refunds=1)
    stage.put("refunds", [(None, b"new-%d" % number) for number in range(3)])
    with pytest.raises(DataLost, match="topic 'refunds' was deleted since batch 0 of 'pipeline'") as refused:
        stage.run(both())
    assert "\n" not in str(refused.value) and '{"payments": {"0": 2}, "refunds": {"0": -2}}' in str(refused.value)
    stage.run(both(failOnDataLoss="false"))
    assert stage.values()[4:] == [b"new-2"]
    stage.put("refunds", [(None, b"more")])
    stage.run(both())  # its offsets are known again
    assert stage.values()[5:] == [b"more"]


def test_the_source_does_not_take_offsets_of_topics_that_it_does_not_read(stage: Stage) -> None:
    """Where no start() looks: in a query with a foreachBatch of one's own, or with another sink."""
    options = {"kafka.bootstrap.servers": stage.bootstrap_servers, "subscribe": "refunds"}
    stage.put("refunds", [(None, b"r1")])
    known = {"payments": {"0": 2}}
    with pytest.raises(DataLost, match="the checkpoint has read payments, and now none of that is read, but refunds"):
        SemelStreamReader(SourceOptions.parse(options)).latestOffset(known, ReadAllAvailable())
    lenient = SemelStreamReader(SourceOptions.parse({**options, "failOnDataLoss": "false"}))
    assert lenient.latestOffset(known, ReadAllAvailable()) == {"payments": {"0": 2}, "refunds": {"0": 1}}

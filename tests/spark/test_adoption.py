"""Checkpoints without progress on the broker, made with another sink or expired, are taken over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import semel
from semel.spark import MarkerConflict, PipelineMistake, Step, adopt
from semel.spark.batch_transaction import BatchTransaction
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=2)
    return stage


class PlainSink:
    """At least once: what Spark's own sink promises."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.die_in: int | None = None

    def each(self, rows: Any, batch_id: int) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.stage.bootstrap_servers})
        for row in rows.collect():
            producer.produce("ledger", bytes(row.value), bytes(row.key))
        assert producer.flush(30) == 0
        if batch_id == self.die_in:
            raise RuntimeError("died with its rows written")

    def run(self) -> None:
        writer = self.stage.source(maxOffsetsPerTrigger=10).writeStream.foreachBatch(self.each)
        query = writer.option("checkpointLocation", self.stage.checkpoint).trigger(availableNow=True).start()
        try:
            query.awaitTermination(150)
        finally:
            query.stop()


def test_the_checkpoint_of_another_sink_is_taken_over_and_nothing_is_repeated(stage: Stage) -> None:
    values = stage.put_numbers(20)
    PlainSink(stage).run()
    stage.put("payments", [(b"k", b"news")])
    with pytest.raises(MarkerConflict, match=r"take it over: start\(..., adopt=True\)"):
        stage.start(stage.source())
    steps = stage.run(stage.source(), adopt=True)
    assert [step for step, _ in steps] == [Step.BEGUN, Step.PRODUCED, Step.OFFSETS_ADDED, Step.COMMITTED]
    assert sorted(value for value in stage.values() if value) == [*values, b"news"]
    # From now on as ever: a commit that Spark did not hear of is not repeated, and adopt=True changes nothing.
    batch_id = steps[0][1]
    stage.forget_commits_from(batch_id)
    assert stage.run(stage.source(), adopt=True) == [(Step.SKIPPED, batch_id)]
    assert sorted(value for value in stage.values() if value) == [*values, b"news"]


def test_a_batch_that_was_begun_is_repeated_only_if_asked_for(stage: Stage) -> None:
    values = stage.put_numbers(20)
    plain = PlainSink(stage)
    plain.die_in = 1
    with pytest.raises(Exception, match="died with its rows written"):
        plain.run()
    with pytest.raises(MarkerConflict, match=r"batch 1 .* begun and not finished.*adopt='repeat'"):
        stage.start(stage.source(), adopt=True)
    failed: list[int] = []

    def die_before_the_commit(step: Step, batch_id: int) -> None:
        if step is Step.OFFSETS_ADDED and not failed:
            failed.append(batch_id)
            raise RuntimeError("the driver lost its head")

    with pytest.raises(Exception, match="the driver lost its head"):
        stage.run(stage.source(), adopt="repeat", attempts=1, observer=die_before_the_commit)
    stage.run(stage.source())  # taken over once for all: the adopted progress is there
    found = sorted(value for value in stage.values() if value)
    assert set(found) == set(values)
    assert len(found) == 30  # the ten rows of batch 1 twice, as was said


def test_a_first_batch_that_another_sink_began_is_not_repeated_in_silence(stage: Stage) -> None:
    values = stage.put_numbers(20)
    plain = PlainSink(stage)
    plain.die_in = 0
    with pytest.raises(Exception, match="died with its rows written"):
        plain.run()
    given = {"checkpoint": stage.checkpoint, "bootstrap_servers": stage.bootstrap_servers}
    for adopting in (False, True):
        with pytest.raises(MarkerConflict, match=r"batch 0 .* begun and not finished.*adopt='repeat'"):
            stage.start(stage.source(), adopt=adopting)
    with pytest.raises(MarkerConflict, match="batch 0 of this checkpoint"):
        adopt(stage.spark, transactional_id=stage.transactional_id, source=stage.source(), **given)
    done = adopt(stage.spark, transactional_id=stage.transactional_id, source=stage.source(), repeat=True, **given)
    assert (done.from_batch, done.may_repeat) == (0, True)
    stage.run(stage.source())
    found = sorted(value for value in stage.values() if value)
    assert set(found) == set(values) and len(found) == 30, "the ten rows of batch 0 twice, as was said"


def test_a_first_batch_that_this_pipeline_began_goes_on_without_a_question(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = stage.put_numbers(20)

    def die(*_: Any) -> bool:
        raise RuntimeError("before anything was asked of the broker")

    with monkeypatch.context() as patch:
        patch.setattr("semel.spark.sink.run_batch", die)
        with pytest.raises(Exception, match="before anything was asked"):
            stage.run(stage.source(), adopt=True)
    assert (Path(stage.checkpoint) / "offsets" / "0").exists()
    stage.run(stage.source(), adopt=True)
    assert sorted(value for value in stage.values() if value) == values


def test_mistakes_of_adopt_are_told(stage: Stage) -> None:
    given = {"bootstrap_servers": stage.bootstrap_servers, "transactional_id": "pipeline"}
    source = stage.source()
    for settings, says in (
        ({"checkpoint": stage.checkpoint, "source": source}, "has no query: there is nothing to take over"),
        ({"checkpoint": stage.checkpoint, "source": "payments"}, "source: must be the streaming DataFrame"),
        ({"checkpoint": stage.checkpoint, "source": source, "repeat": "yes"}, "repeat='yes': must be True or False"),
    ):
        with pytest.raises(PipelineMistake, match=says):
            adopt(stage.spark, **given, **settings)
    with pytest.raises(PipelineMistake, match="takes a SparkSession first, not str"):
        adopt("spark", checkpoint=stage.checkpoint, source=source, **given)
    with pytest.raises(PipelineMistake, match="adopt=1: must be True, False or 'repeat'"):
        stage.start(source, adopt=1)


def test_a_checkpoint_whose_progress_expired_is_taken_over(stage: Stage) -> None:
    values = stage.put_numbers(20)
    stage.run(stage.source(maxOffsetsPerTrigger=10))
    with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
        admin.delete_group_offsets(stage.transactional_id, [("payments", 0), ("payments", 1)])
    stage.put("payments", [(b"k", b"news")])
    done = adopt(
        stage.spark, checkpoint=stage.checkpoint, bootstrap_servers=stage.bootstrap_servers,
        transactional_id=stage.transactional_id, source=stage.source(),
    )  # fmt: skip
    assert (done.from_batch, done.may_repeat, str(done)) == (2, False, "taken over: exactly once from batch 2 on")
    with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
        assert sum(at.offset for at in admin.list_group_offsets(stage.transactional_id).values()) == 20
    stage.run(stage.source())
    assert sorted(value for value in stage.values() if value) == [*values, b"news"]
    again = adopt(
        stage.spark, checkpoint=stage.checkpoint, bootstrap_servers=stage.bootstrap_servers,
        transactional_id=stage.transactional_id, source=stage.source(),
    )  # fmt: skip
    assert again.from_batch is None and "nothing to take over" in str(again)


def test_another_querys_progress_is_never_taken_over(stage: Stage) -> None:
    stage.put_numbers(10)
    stage.run(stage.source())
    other = Stage(stage.spark, stage.bootstrap_servers, stage.folder, checkpoint=str(stage.folder / "other"))
    PlainSink(other).run()
    other.put("payments", [(b"k", b"news")])
    with pytest.raises(MarkerConflict, match="belongs to query"):
        other.start(other.source(), adopt="repeat")
    with pytest.raises(PipelineMistake, match="adopt='yes': must be True, False or 'repeat'"):
        other.start(other.source(), adopt="yes")


def test_a_source_that_has_lost_partitions_is_taken_over_and_a_failed_take_over_is_aborted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is created again may have fewer partitions. Offsets of the others cannot be committed."""
    stage.put_numbers(20)
    stage.run(stage.source())
    with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
        admin.delete_topics(["payments"])
        stage.create_topics(payments=1)
        stage.put("payments", [(b"k", b"old name")])

        def fail(*_: Any) -> Any:
            raise RuntimeError("no way to commit")

        frame = stage.source(failOnDataLoss="false")
        with monkeypatch.context() as patch:
            patch.setattr(BatchTransaction, "commit", fail)
            with pytest.raises(RuntimeError, match="no way to commit"):
                stage.start(frame, adopt=True)
        description = admin.describe_transactions([stage.transactional_id])[stage.transactional_id]
        assert description.state == "CompleteAbort"
    stage.run(frame, adopt=True)
    stage.put("payments", [(b"k", b"news")])
    stage.run(frame)
    assert stage.values().count(b"news") == 1
    assert len(stage.values()) == 21, "what the new topic held when the query first saw it is lost, as was agreed to"

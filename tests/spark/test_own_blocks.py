"""Blocks of one's own in foreachBatch that would lose rows or show half of them are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.machines.values import TopicPartition
from semel.spark import transaction
from semel.spark.user_transaction import Transaction, _open
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=2, audit=2)
    stage.put_numbers(6)
    yield stage
    for opened in _open.values():
        opened.side.close()
    _open.clear()


def block(stage: Stage, batch_id: int, **other: Any) -> Any:
    given: dict[str, Any] = {
        "bootstrap_servers": stage.bootstrap_servers, "transactional_id": "own", "checkpoint": stage.checkpoint,
    }  # fmt: skip
    return transaction(batch_id=batch_id, **{**given, **other})


def run(stage: Stage, each: Callable[[Any, int], None], **options: Any) -> None:
    writer = stage.source(**options).writeStream.foreachBatch(each).option("checkpointLocation", stage.checkpoint)
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(150)
    finally:
        query.stop()


def test_a_second_block_for_the_same_batch_is_refused_instead_of_skipped(stage: Stage) -> None:
    def each(rows: Any, batch_id: int) -> None:
        for topic in ("ledger", "audit"):
            with block(stage, batch_id) as t:
                t.write(rows, topic=topic)

    for _ in range(2):  # also by a restart, for which the first block is done
        with pytest.raises(Exception, match="batch 0 had a block of transactional_id='own' before, and that one has"):
            run(stage, each)

    def with_its_own_id(rows: Any, batch_id: int) -> None:
        for topic in ("ledger", "audit"):
            with block(stage, batch_id, transactional_id=f"own {topic}") as t:
                t.write(rows, topic=topic)

    stage.checkpoint += "-2"
    run(stage, with_its_own_id)
    assert (len(stage.values("ledger")), len(stage.values("audit"))) == (12, 6)


def test_a_block_within_a_block_is_refused_and_shows_nothing(stage: Stage) -> None:
    def each(rows: Any, batch_id: int) -> None:
        with block(stage, batch_id) as t:
            t.write(rows, topic="ledger")
            with block(stage, batch_id) as inner:
                inner.write(rows, topic="ledger")

    with pytest.raises(Exception, match="a block of transactional_id='own' is open already: write to that one"):
        run(stage, each)
    assert stage.values() == []


def test_a_block_with_the_number_of_another_batch_is_refused_instead_of_skipped(stage: Stage) -> None:
    def each(rows: Any, batch_id: int) -> None:
        with block(stage, 0) as t:
            t.write(rows, topic="ledger")

    with pytest.raises(Exception, match="batch_id=0, and Spark runs batch 1: give the block the number that"):
        run(stage, each, maxOffsetsPerTrigger=2)
    assert len(stage.values()) == 2


def test_a_block_with_the_checkpoint_of_another_query_is_refused(stage: Stage) -> None:
    run(stage, lambda rows, batch_id: None)
    other, stage.checkpoint = stage.checkpoint, stage.checkpoint + "-2"

    def each(rows: Any, batch_id: int) -> None:
        with block(stage, batch_id, checkpoint=other) as t:
            t.write(rows, topic="ledger")

    with pytest.raises(Exception, match=r"checkpoint='.*' is that of query .*: give the checkpointLocation of this"):
        run(stage, each)
    assert stage.values() == []


def test_a_source_that_is_no_stream_is_refused(stage: Stage) -> None:
    def each(rows: Any, batch_id: int) -> None:
        for source, says in ((rows, "this one is a batch"), ("payments", "not str")):
            with pytest.raises(ValueError, match=rf"source: must be the streaming DataFrame of .*; {says}"):
                block(stage, batch_id, source=source).__enter__()

    run(stage, each)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_failed_write_that_the_block_swallows_commits_nothing(stage: Stage, goes_on: bool) -> None:
    def each(rows: Any, batch_id: int) -> None:
        with block(stage, batch_id) as t:
            t.write(rows, topic="ledger")
            half = rows.repartition(2).selectExpr("if(value = '000003', raise_error('no'), string(value)) as value")
            with pytest.raises(Exception, match="no"):
                t.write(half, topic="audit")
            if goes_on:  # its sequence numbers would begin again, and the broker would take the rows for repeats
                t.write(rows, topic="audit")

    with pytest.raises(Exception, match="a write of batch 0 failed, and its error was caught in the block: nothing of"):
        run(stage, each)
    assert (stage.values("ledger"), stage.values("audit")) == ([], [])


def test_writes_of_several_threads_come_one_after_the_other(stage: Stage) -> None:
    def each(rows: Any, batch_id: int) -> None:
        with block(stage, batch_id) as t, ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda topic: t.write(rows, topic=topic), ["ledger", "audit"] * 2))

    run(stage, each)
    assert (len(stage.values("ledger")), len(stage.values("audit"))) == (12, 12)


def test_the_next_run_of_a_query_follows_its_new_arguments(stage: Stage) -> None:
    """In a notebook: start, stop, change something, start again."""
    seen: list[Transaction] = []

    def each(rows: Any, batch_id: int, **given: Any) -> None:
        with block(stage, batch_id, **given) as t:
            seen.append(t)
            t.write(rows, topic="ledger")

    run(stage, each)
    stage.put_numbers(3)
    run(stage, lambda rows, batch_id: each(rows, batch_id, transaction_timeout_ms=7000, kafka={"client.id": "new"}))
    assert [t._side.transaction.timeout_ms for t in seen] == [600_000, 7000]
    assert len(_open) == 1, "what the first run had open is closed"
    assert len(stage.values()) == 9


def test_blocks_without_rows_go_on_with_or_without_a_write(stage: Stage) -> None:
    """A filter that takes nothing is no reason to fail, and the next batch needs the progress of this one."""
    kept: list[TopicPartition | None] = []

    def each(rows: Any, batch_id: int) -> None:
        with block(stage, batch_id) as t:
            if batch_id != 1:
                t.write(rows.where("value = 'none'" if batch_id == 0 else "true"), topic="ledger")
        kept.append(next(iter(_open.values())).writing._committed.marker_at)

    run(stage, each, maxOffsetsPerTrigger=2)
    assert kept == [TopicPartition("ledger", 0)] * len(kept) and len(kept) > 2
    assert 0 < len(stage.values()) < 6
    stage.put_numbers(2)

    def nothing(rows: Any, batch_id: int) -> None:
        with block(stage, batch_id):
            pass

    run(stage, nothing)  # after a restart too it is known where the progress is kept


def test_a_block_that_has_nowhere_to_keep_its_progress_says_what_to_give(stage: Stage) -> None:
    def each(rows: Any, batch_id: int) -> None:
        with block(stage, batch_id):
            pass

    with pytest.raises(Exception, match=r"the block has written to no topic.*give transaction\(\) the query's source"):
        run(stage, each)

"""The recovery table, row by row, on a real Spark session and a real broker; another client reads the outcome."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import udf

import semel
from semel.cli.pipeline import pipeline
from semel.client.cluster.cluster import Cluster
from semel.machines.pipeline.batch_marker import BatchVerdict
from semel.machines.pipeline.claims import ClaimBook
from semel.machines.pipeline.driver_transaction import DriverTransaction
from semel.machines.values import TopicPartition
from semel.records.partitioner import partition_for_key
from semel.spark import BatchFailed, MarkerConflict, NotExactlyOnce, Step, batch_transaction, start
from semel.spark.connections import connect
from semel.spark.kafka_options import ClientSettings
from semel.spark.transaction_client import TransactionClient
from semel.testing.fault_proxy import Cut, Delay, Fault, FaultProxy, Passing, Way, every
from semel.wire.apis import ApiKey
from semel.wire.messages.transactions import ListTransactionsRequest
from tests.spark.stage import Stage, python_workers
from tests.support.processes import BrokerProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BEGUN, PRODUCED, COMMITTED = Step.BEGUN, Step.PRODUCED, Step.COMMITTED


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    return stage


@pytest.fixture
def transaction(stage: Stage) -> Iterator[TransactionClient]:
    """A second owner of the pipeline's transactional id, and a look at its progress."""
    from semel.client.blocking.loop_thread import LoopThread

    loop = LoopThread("test-driver")
    cluster = loop.run(connect(ClientSettings({"bootstrap.servers": stage.bootstrap_servers})))
    own = DriverTransaction(stage.transactional_id, stage.transactional_id, timeout_ms=60_000)
    other = TransactionClient(cluster, own)
    other.run = loop.run  # type: ignore[attr-defined]
    yield other
    loop.run(cluster.close())
    loop.close()


def test_batches_are_committed_with_their_offsets_and_what_was_opened_is_closed(stage: Stage, transaction: Any) -> None:
    values = stage.put_numbers(40)
    steps = stage.run(stage.source(maxOffsetsPerTrigger=20))
    assert [batch for step, batch in steps if step is COMMITTED] == [0, 1]
    assert sorted(stage.values()) == values
    progress = transaction.run(transaction.progress())
    assert sum(progress.offsets.values()) == 40
    assert progress.marker.batch_id == 1
    mine = ("semel-pipeline", "semel-claims")
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith(mine)], what="the pipeline's threads")


def test_a_query_without_news_commits_nothing(stage: Stage) -> None:
    stage.put_numbers(5)
    stage.run(stage.source())
    assert stage.run(stage.source()) == []
    assert len(stage.values()) == 5


def test_a_batch_whose_rows_are_all_filtered_out_is_still_progress(stage: Stage, transaction: Any) -> None:
    stage.put_numbers(6)
    stage.run(stage.source().where("value is null"))
    assert stage.values() == []
    assert sum(transaction.run(transaction.progress()).offsets.values()) == 6


def test_a_task_that_dies_after_its_first_produce_makes_the_batch_run_again_under_a_new_epoch(stage: Stage) -> None:
    values = stage.put_numbers(60)
    java = stage.spark.sparkContext._gateway.proc.pid
    killed: list[int] = []

    def kill_the_writers(passing: Passing) -> Fault | None:
        if passing.api_key == ApiKey.PRODUCE and passing.way is Way.RESPONSE and not killed:
            killed.extend(python_workers(java))
            for worker in killed:
                os.kill(worker, signal.SIGKILL)
        return None

    with FaultProxy(stage.bootstrap_servers, kill_the_writers) as proxy:
        steps = stage.run(stage.source(), bootstrap_servers=proxy.bootstrap_servers)
    assert killed
    assert [step for step, _ in steps].count(Step.RETRYING) == 1
    assert sorted(stage.values()) == values
    assert len(stage.values(committed=False)) > len(values)  # the first try is in the log, and nobody sees it


def test_a_second_attempt_of_a_task_fails_the_job_and_the_batch_runs_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = stage.put_numbers(60)
    epochs: list[tuple[int, int]] = []
    refusal = ClaimBook.refusal

    def claimed_before(book: ClaimBook, epoch: tuple[int, int], task: int, attempt: str) -> str:
        epochs.append(epoch)
        if len(epochs) == 2:
            book._attempts[task] = "a twin"  # as if another attempt of the task had been here
        return refusal(book, epoch, task, attempt)

    monkeypatch.setattr(ClaimBook, "refusal", claimed_before)
    steps = stage.run(stage.source())
    assert (Step.RETRYING, 0) in steps
    assert epochs[0] == epochs[1] < epochs[-1]
    assert sorted(stage.values()) == values


def test_a_task_that_always_fails_ends_the_query_with_the_first_error_and_shows_nothing(stage: Stage) -> None:
    stage.put_numbers(3)

    @udf("binary")
    def ask_a_service(value: bytes) -> bytes:
        raise ConnectionError("this row is bad")  # for all that the driver knows, it may pass

    failing = stage.source().select(ask_a_service("value").alias("value"), "key")
    says = r"^BatchFailed: batch 0 failed in all of its 2 attempts; the first error: ConnectionError: this row is bad "
    with pytest.raises(StreamingQueryException, match=rf"{says}\(test_pipeline.py:\d+\)\n") as failed:
        stage.run(failing, attempts=2)
    assert isinstance(failed.value.__cause__, BatchFailed) and "\n" not in str(failed.value.__cause__)
    assert [step for step, _ in stage.steps].count(Step.RETRYING) == 2
    assert stage.values() == []


def test_a_commit_that_spark_did_not_hear_of_is_not_repeated(stage: Stage) -> None:
    values = stage.put_numbers(30)
    stage.run(stage.source(maxOffsetsPerTrigger=10))
    stage.forget_commits_from(2)
    assert stage.run(stage.source(maxOffsetsPerTrigger=10)) == [(Step.SKIPPED, 2)]
    stage.put("payments", [(None, b"news")])
    stage.run(stage.source(maxOffsetsPerTrigger=10))
    assert sorted(stage.values()) == sorted([*values, b"news"])


def test_without_the_marker_check_the_same_rerun_would_repeat_its_output(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the marker is required: the ablation shows the duplicates it prevents."""
    values = stage.put_numbers(30)
    stage.run(stage.source())
    stage.forget_commits_from(0)
    monkeypatch.setattr(batch_transaction, "judge_batch", lambda *_: BatchVerdict.RUN)
    stage.run(stage.source())
    assert sorted(stage.values()) == sorted(values * 2)


def test_a_checkpoint_set_back_several_batches_is_skipped_through(stage: Stage) -> None:
    values = stage.put_numbers(40)
    stage.run(stage.source(maxOffsetsPerTrigger=10))
    stage.forget_commits_from(1)
    for path in (Path(stage.checkpoint) / "offsets").iterdir():
        if int(path.name.strip(".").partition(".")[0]) >= 2:
            path.unlink()
    steps = stage.run(stage.source(maxOffsetsPerTrigger=10))
    assert {step for step, _ in steps} == {Step.SKIPPED}
    assert sorted(stage.values()) == values


def test_a_checkpoint_set_back_that_takes_newer_data_into_an_old_batch_is_refused(stage: Stage) -> None:
    stage.put_numbers(40)
    stage.run(stage.source(maxOffsetsPerTrigger=10))
    stage.forget_commits_from(1)
    for path in (Path(stage.checkpoint) / "offsets").iterdir():
        if int(path.name.strip(".").partition(".")[0]) >= 2:
            path.unlink()
    stage.put("payments", [(None, b"news %d" % number) for number in range(9)])
    with pytest.raises(Exception, match="the checkpoint was set back"):
        stage.run(stage.source())


def test_a_lost_checkpoint_is_refused_with_what_to_do(stage: Stage) -> None:
    stage.put_numbers(10)
    stage.run(stage.source())
    shutil.rmtree(stage.checkpoint)
    with pytest.raises(MarkerConflict, match=r"belongs to query .* give it a transactional_id of its own"):
        stage.run(stage.source())
    assert len(stage.values()) == 10
    stage.run(stage.source(), transactional_id="another")  # what was advised is done, and works
    assert len(stage.values()) == 20


def test_progress_that_is_gone_is_refused_and_the_way_it_names_works(stage: Stage) -> None:
    values = stage.put_numbers(30)
    stage.run(stage.source(maxOffsetsPerTrigger=10))
    with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
        admin.delete_group_offsets(stage.transactional_id, [("payments", 0), ("payments", 1)])
    stage.put("payments", [(None, b"news")])
    for attempt in ({}, {"transactional_id": "another"}):  # another id alone does not help
        with pytest.raises(MarkerConflict, match="the checkpoint is at batch 3") as refused:
            stage.run(stage.source(), **attempt)
    found = re.search(r"startingOffsets to (\{.*?\}\});", str(refused.value))
    assert found is not None, refused.value
    stage.run(stage.source(startingOffsets=found[1]), checkpoint=str(stage.folder / "new"))
    assert sorted(stage.values()) == sorted([*values, b"news"])


def test_an_answer_to_end_txn_that_is_lost_is_asked_for_again(stage: Stage) -> None:
    values = stage.put_numbers(40)
    with FaultProxy(stage.bootstrap_servers, every(2, ApiKey.END_TXN, Cut())) as proxy:
        steps = stage.run(stage.source(maxOffsetsPerTrigger=10), bootstrap_servers=proxy.bootstrap_servers)
    assert [batch for step, batch in steps if step is COMMITTED] == [0, 1, 2, 3]
    assert sorted(stage.values()) == values


def test_an_error_after_the_commit_does_not_write_the_batch_again(stage: Stage) -> None:
    values = stage.put_numbers(20)
    failed: list[int] = []

    def fail_once(step: Step, batch_id: int) -> None:
        if step is COMMITTED and not failed:
            failed.append(batch_id)
            raise RuntimeError("the driver lost its head")

    steps = stage.run(stage.source(), observer=fail_once)
    assert steps[-2:] == [(Step.RETRYING, 0), (Step.SKIPPED, 0)]
    assert sorted(stage.values()) == values


@pytest.mark.semel(**{"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100})
def test_a_batch_that_outlives_its_transaction_runs_again(stage: Stage, transaction: Any) -> None:
    values = stage.put_numbers(20)
    waited: list[int] = []

    def open_transactions() -> list[Any]:
        request = ListTransactionsRequest(state_filters=["Ongoing", "PrepareAbort"])
        return list(transaction.run(transaction._cluster.request_retrying(request)).transaction_states)

    def outlive(step: Step, batch_id: int) -> None:
        if step is PRODUCED and not waited:
            waited.append(batch_id)
            until(lambda: not open_transactions(), within_s=60, what="the coordinator to abort the transaction")

    # Many attempts: on a busy machine an honest one may take longer than this timeout too.
    steps = stage.run(stage.source(), observer=outlive, transaction_timeout_ms=4000, attempts=30)
    assert (Step.RETRYING, 0) in steps
    assert sorted(stage.values()) == values


def test_of_two_drivers_the_older_stops_and_does_not_take_the_id_back(stage: Stage, transaction: Any) -> None:
    stage.put_numbers(20)

    def take_over(step: Step, batch_id: int) -> None:
        if step is PRODUCED:
            transaction.run(transaction.begin())

    with pytest.raises(Exception, match="another driver has taken over"):
        stage.run(stage.source(), observer=take_over)
    assert Step.RETRYING not in [step for step, _ in stage.steps]
    assert stage.values() == []
    younger = transaction.transaction.identity
    transaction.run(transaction.add_partition("ledger", 0))  # the younger one's epoch still holds
    assert transaction.transaction.identity == younger


def test_a_broker_killed_between_produce_and_commit_only_delays(spark: Any, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        stage = Stage(spark, broker.bootstrap_servers, tmp_path)
        stage.create_topics(payments=2, ledger=3)
        values = stage.put_numbers(40)
        killed: list[int] = []

        def kill(step: Step, batch_id: int) -> None:
            if step is PRODUCED and batch_id == 1 and not killed:
                killed.append(batch_id)
                broker.kill9()
                broker.start()

        stage.run(stage.source(maxOffsetsPerTrigger=20), observer=kill)
        assert killed
        assert sorted(stage.values()) == values


def test_a_slow_answer_to_produce_is_waited_for(stage: Stage) -> None:
    values = stage.put_numbers(40)
    with FaultProxy(stage.bootstrap_servers, every(2, ApiKey.PRODUCE, Delay(700))) as proxy:
        stage.run(stage.source(), bootstrap_servers=proxy.bootstrap_servers)
    assert sorted(stage.values()) == values


def test_lost_answers_to_produce_are_no_duplicates(stage: Stage) -> None:
    values = stage.put_numbers(60)
    with FaultProxy(stage.bootstrap_servers, every(2, ApiKey.PRODUCE, Cut())) as proxy:
        steps = stage.run(stage.source(maxOffsetsPerTrigger=20), bootstrap_servers=proxy.bootstrap_servers)
    assert Step.RETRYING not in [step for step, _ in steps]
    assert sorted(stage.values()) == values


def test_the_old_transaction_protocol_serves_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers without KIP-890: partitions and offsets join by name, and each batch has an InitProducerId of its own."""
    monkeypatch.setattr(Cluster, "transaction_version", property(lambda _: 0))
    values = stage.put_numbers(40)
    asked: list[int] = []

    def count(passing: Passing) -> Fault | None:
        if passing.way is Way.REQUEST:
            asked.append(passing.api_key)
        return None

    with FaultProxy(stage.bootstrap_servers, count) as proxy:
        stage.run(stage.source(maxOffsetsPerTrigger=20), bootstrap_servers=proxy.bootstrap_servers)
    assert asked.count(ApiKey.ADD_PARTITIONS_TO_TXN) >= 2
    assert asked.count(ApiKey.ADD_OFFSETS_TO_TXN) == asked.count(ApiKey.INIT_PRODUCER_ID) == 2
    assert sorted(stage.values()) == values


def test_the_order_of_each_key_is_kept(stage: Stage) -> None:
    rows = [(b"account-%d" % (number % 5), b"%06d" % number) for number in range(3000)]
    stage.put("payments", rows)
    stage.run(stage.source(maxOffsetsPerTrigger=1000))
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in stage.seen():
        by_key.setdefault(record.key, []).append(record.value)
    assert by_key == {key: [value for other, value in rows if other == key] for key in {key for key, _ in rows}}


def test_a_key_goes_to_the_partition_the_java_client_would_choose(stage: Stage) -> None:
    stage.put_numbers(30)
    stage.run(stage.source())
    for record in stage.seen():
        assert record.key is not None
        assert record.partition == partition_for_key(record.key, 3)


def test_topics_headers_and_partitions_may_be_columns(stage: Stage) -> None:
    stage.create_topics(refunds=2)
    stage.put_numbers(12)
    rows = stage.source().selectExpr(
        "value",
        "key",
        "case when int(string(value)) % 3 = 0 then 'refunds' else 'ledger' end as topic",
        "case when int(string(value)) < 6 then 1 end as partition",
        "array(named_struct('key', 'trace', 'value', value), named_struct('key', 'none', 'value', null)) as headers",
    )
    stage.run(rows, topic=None, compression="zstd")
    seen = stage.seen("ledger") + stage.seen("refunds")
    assert sorted(record.value for record in seen if record.value) == [b"%06d" % number for number in range(12)]
    for record in seen:
        assert record.value is not None
        assert record.topic == ("refunds" if int(record.value) % 3 == 0 else "ledger")
        assert record.headers == (("trace", record.value), ("none", None))
        if int(record.value) < 6:
            assert record.partition == 1


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_row_may_be_as_large_as_the_topic_takes_it(stage: Stage, compression: str) -> None:
    sizes = [1, 5, 1_040_000, 3, 950_000, 2] if compression == "none" else [1, 5, 3_000_000, 3]
    stage.put("payments", [(b"one key", b"%d" % size) for size in sizes])
    rows = stage.source().selectExpr("key", "repeat('x', int(string(value))) as value")
    stage.run(rows, compression=compression)
    assert [len(value or b"") for value in stage.values()] == sizes


def test_the_topics_own_limit_counts_and_a_change_of_it_too(stage: Stage) -> None:
    stage.put("payments", [(b"k", b"3000000"), (b"k", b"7")])
    rows = stage.source().selectExpr("key", "repeat('x', int(string(value))) as value")
    with pytest.raises(Exception, match=r"raise max\.message\.bytes of topic 'ledger'"):
        stage.run(rows)
    with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
        admin.alter_configs("topic", "ledger", {"max.message.bytes": "4000000"})
    stage.run(rows)
    assert sorted(len(value or b"") for value in stage.values()) == [7, 3_000_000]
    with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
        admin.alter_configs("topic", "ledger", {"max.message.bytes": "2000"})
    stage.put("payments", [(b"k", b"1")] * 5000)
    steps = stage.run(rows)  # the tasks remember the old limit, and learn the new one from the broker
    assert COMMITTED in [step for step, _ in steps]
    assert len(stage.values()) == 5002


def test_rows_without_a_key_are_spread_and_tombstones_survive(stage: Stage) -> None:
    stage.put("payments", [(None, b"%d" % number) for number in range(60)] + [(b"gone", None)])
    stage.run(stage.source(maxOffsetsPerTrigger=12))  # every micro-batch begins with another partition
    seen = stage.seen()
    assert len(seen) == 61
    assert {record.partition for record in seen if record.key is None} == {0, 1, 2}
    assert [record.value for record in seen if record.key == b"gone"] == [None]


def test_a_source_that_is_not_kafka_keeps_its_progress_in_the_output_topic(stage: Stage, transaction: Any) -> None:
    rows = stage.spark.readStream.format("rate").option("rowsPerSecond", 20).load().selectExpr("cast(value as string)")
    query = stage.start(rows, trigger={"processingTime": "0 seconds"})
    until(lambda: [step for step, _ in stage.steps].count(COMMITTED) >= 3, within_s=120, what="three batches")
    query.stop()
    committed = [batch for step, batch in stage.steps if step is COMMITTED]
    progress = transaction.run(transaction.progress())
    assert (progress.offsets, progress.marker_at) == ({}, TopicPartition("ledger", 0)), "it is no source's offset"
    assert progress.marker.batch_id in (committed[-1], committed[-1] + 1)
    numbers = sorted(int(value) for value in stage.values() if value)
    assert numbers == list(range(len(numbers)))


def test_a_source_on_another_cluster_keeps_its_progress_in_the_output_topic(stage: Stage, transaction: Any) -> None:
    with semel.Broker(stage.folder / "elsewhere") as elsewhere:
        there = Stage(stage.spark, elsewhere.bootstrap_servers, stage.folder)
        there.create_topics(orders=1)
        values = there.put_numbers(30, "orders")
        for _ in range(2):
            stage.run(there.source(subscribe="orders", maxOffsetsPerTrigger=15))
            stage.forget_commits_from(1)
    assert stage.steps[-1] == (Step.SKIPPED, 1)
    progress = transaction.run(transaction.progress())
    assert (progress.offsets, progress.marker_at) == ({}, TopicPartition("ledger", 0))
    assert progress.marker.batch_id == 1
    assert sorted(stage.values()) == values


@pytest.mark.parametrize("partitions", [2, 3])
def test_a_topic_is_mirrored_to_a_topic_of_the_same_name_on_another_cluster(
    stage: Stage, transaction: Any, partitions: int
) -> None:
    """Two clusters may have a topic of one name: whose offsets they are is told by the cluster's id."""
    stage.create_topics(orders=2)
    with semel.Broker(stage.folder / "elsewhere") as elsewhere:
        there = Stage(stage.spark, elsewhere.bootstrap_servers, stage.folder)
        there.create_topics(orders=partitions)
        values = there.put_numbers(30, "orders")
        _, batch = stage.run(there.source(subscribe="orders", maxOffsetsPerTrigger=10), topic="orders")[-1]
        stage.forget_commits_from(batch)
        assert stage.run(there.source(subscribe="orders"), topic="orders") == [(Step.SKIPPED, batch)]
        news = there.put_numbers(5, "orders")
        stage.run(there.source(subscribe="orders"), topic="orders")
    progress = transaction.run(transaction.progress())
    assert (progress.offsets, progress.marker_at) == ({}, TopicPartition("orders", 0)), "where it ended is elsewhere"
    assert progress.marker.batch_id == batch + 1
    bootstrap = ["--bootstrap", stage.bootstrap_servers]
    status = CliRunner().invoke(pipeline, ["status", stage.transactional_id, "--json", *bootstrap])
    assert json.loads(status.stdout)["sources"] == [], "orders-0 here only carries the marker"
    assert sorted(stage.values("orders")) == sorted(values + news)


def test_of_two_sources_the_one_on_this_cluster_has_its_offsets_committed(stage: Stage, transaction: Any) -> None:
    here = stage.put_numbers(20)
    with semel.Broker(stage.folder / "elsewhere") as elsewhere:
        there = Stage(stage.spark, elsewhere.bootstrap_servers, stage.folder)
        there.create_topics(payments=2)
        elsewhere_too = there.put_numbers(7)
        stage.run(there.source().union(stage.source()))
        assert sum(transaction.run(transaction.progress()).offsets.values()) == 20
        assert sorted(stage.values()) == sorted(here + elsewhere_too)


def test_one_cluster_under_two_addresses_is_one_cluster(stage: Stage, transaction: Any) -> None:
    stage.put_numbers(12)
    with FaultProxy(stage.bootstrap_servers, lambda _: None) as proxy:
        stage.run(stage.source(), bootstrap_servers=proxy.bootstrap_servers)
    assert sum(transaction.run(transaction.progress()).offsets.values()) == 12


def test_a_checkpoint_set_back_is_refused_where_its_source_lies_elsewhere(stage: Stage) -> None:
    """The old offsets cannot be compared with anything: skipping the batch might lose what is new in it."""
    with semel.Broker(stage.folder / "elsewhere") as elsewhere:
        there = Stage(stage.spark, elsewhere.bootstrap_servers, stage.folder)
        there.create_topics(orders=1)
        there.put_numbers(30, "orders")
        source = {"subscribe": "orders", "maxOffsetsPerTrigger": 10}
        stage.run(there.source(**source))
        stage.forget_commits_from(1)
        (Path(stage.checkpoint) / "offsets" / "2").unlink()
        with pytest.raises(Exception, match="its source is not on this cluster"):
            stage.run(there.source(**source))
    assert len(stage.values()) == 30


def test_the_progress_of_a_query_says_what_is_read_and_written(stage: Stage) -> None:
    stage.put_numbers(6)
    stage.run(stage.source())
    query = stage.query
    for progress in (query.lastProgress, *query.recentProgress):
        assert progress is not None
        assert progress.sources[0].description == f"semel[subscribe=payments at {stage.bootstrap_servers}]"
        assert progress["sink"]["description"] == f"semel[ledger at {stage.bootstrap_servers}]"
        assert "subscribe=payments" in progress.json
    assert query.recentProgress[0].numInputRows == 6
    assert query.id and query.exception() is None and not query.isActive


def refused(**settings: Any) -> dict[str, Any]:
    return {"bootstrap_servers": "localhost:1", "transactional_id": "x", "checkpoint": "/nowhere", **settings}


def test_a_batch_dataframe_is_refused(spark: Any) -> None:
    with pytest.raises(NotExactlyOnce, match="this one is a batch"):
        start(spark.range(3), **refused())


def test_a_missing_checkpoint_and_triggers_without_batches_are_refused(spark: Any) -> None:
    rows = spark.readStream.format("rate").load()
    with pytest.raises(NotExactlyOnce, match="checkpoint is empty"):
        start(rows, **refused(checkpoint=""))
    with pytest.raises(NotExactlyOnce, match="trigger continuous"):
        start(rows, **refused(trigger={"continuous": "1 second"}))
    with pytest.raises(NotExactlyOnce, match="asyncProgressTrackingEnabled"):
        start(rows, **refused(options={"asyncProgressTrackingEnabled": "true"}))


def test_speculation_is_refused(spark: Any) -> None:
    rows = spark.readStream.format("rate").load()
    configuration = spark.sparkContext._conf
    configuration.set("spark.speculation", "true")
    try:
        with pytest.raises(NotExactlyOnce, match="starts tasks twice"):
            start(rows, **refused())
    finally:
        configuration.set("spark.speculation", "false")


def test_a_spark_connect_session_is_refused() -> None:
    remote = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(NotExactlyOnce, match="Spark Connect session"):
        start(remote, **refused())

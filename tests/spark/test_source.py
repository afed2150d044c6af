"""The semel source beside the rules of Spark's own Kafka source, and around the gaps that transactions leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable

import semel
from semel.spark import Step, batch_transaction, range_reader, source
from semel.spark.range_reader import DataLost, OffsetRange, SeveralRanges
from semel.spark.source import SemelStreamReader
from semel.spark.source_options import OptionError, SourceOptions
from tests.spark.stage import Stage
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    return Stage(spark, semel_broker.bootstrap_servers, tmp_path)


def read(stage: Stage, **options: Any) -> Any:
    """A batch read."""
    given = {"kafka.bootstrap.servers": stage.bootstrap_servers, **options}
    return stage.spark.read.format("semel").options(**{name: str(value) for name, value in given.items()}).load()


def values(frame: Any) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def stream(stage: Stage, **options: Any) -> tuple[SemelStreamReader, list[float]]:
    """A stream reader as Spark's driver would hold it, and its clock in seconds."""
    clock = [1000.0]
    given = {"kafka.bootstrap.servers": stage.bootstrap_servers, "startingOffsets": "earliest", **options}
    parsed = SourceOptions.parse({name: str(value) for name, value in given.items()})
    return SemelStreamReader(parsed, clock=lambda: clock[0]), clock


def put_at(stage: Stage, topic: str, partition: int, timestamps_ms: list[int]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": stage.bootstrap_servers})
    for number in timestamps_ms:
        producer.produce(topic, b"%d-%d" % (partition, number), partition=partition, timestamp=number)
    assert producer.flush(30) == 0


def with_gaps(stage: Stage, topic: str, partition: int = 0) -> list[bytes]:
    """Committed, aborted and plain records in turn, so that markers and aborted records lie between; what shows."""
    producer = confluent_kafka.Producer({"bootstrap.servers": stage.bootstrap_servers, "transactional.id": "gaps"})
    producer.init_transactions()
    for number in range(12):
        producer.begin_transaction()
        producer.produce(topic, b"%s %d" % (b"kept" if number % 3 else b"aborted", number), partition=partition)
        if number % 3:
            producer.commit_transaction()
        else:
            producer.flush(20)
            producer.abort_transaction()
    return sorted(b"kept %d" % number for number in range(12) if number % 3)


def test_the_columns_are_those_of_sparks_own_source(stage: Stage) -> None:
    stage.create_topics(events=1)
    producer = confluent_kafka.Producer({"bootstrap.servers": stage.bootstrap_servers})
    producer.produce("events", b"value", b"key", timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", None)])
    assert producer.flush(20) == 0
    frame = read(stage, subscribe="events", includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    row = frame.selectExpr("*", "unix_millis(timestamp) as ms").collect()[0]
    assert (bytes(row.key), bytes(row.value)) == (b"key", b"value")
    assert (row.topic, row.partition, row.offset) == ("events", 0, 0)
    assert (row.ms, row.timestampType) == (1_700_000_000_123, 0)
    assert [(header.key, header.value) for header in row.headers] == [("a", b"1"), ("a", None)]
    assert "headers" not in read(stage, subscribe="events").columns


def test_a_record_without_headers_has_none(stage: Stage) -> None:
    stage.create_topics(events=1)
    stage.put("events", [(None, b"plain")])
    row = read(stage, subscribe="events", includeHeaders="true").collect()[0]
    assert row.headers is None
    stage.create_topics(copies=1)
    rows = stage.spark.readStream.format("semel").options(
        **{"kafka.bootstrap.servers": stage.bootstrap_servers, "subscribe": "events"},
        startingOffsets="earliest", includeHeaders="true",
    )  # fmt: skip
    stage.run(rows.load().select("value", "headers"), topic="copies")
    assert [(record.value, record.headers) for record in stage.seen("copies")] == [(b"plain", ())]


def test_a_batch_of_an_empty_topic_has_no_rows(stage: Stage) -> None:
    stage.create_topics(events=2)
    assert read(stage, subscribe="events").collect() == []


def test_a_batch_reads_between_offsets_timestamps_and_patterns(stage: Stage) -> None:
    stage.create_topics(events=2, eventual=1, other=1)
    put_at(stage, "events", 0, [1000, 2000, 3000])
    put_at(stage, "events", 1, [1500, 2500])
    put_at(stage, "eventual", 0, [9000])
    put_at(stage, "other", 0, [9000])
    everything = [b"0-1000", b"0-2000", b"0-3000", b"1-1500", b"1-2500"]
    assert values(read(stage, subscribe="events")) == everything
    assert values(read(stage, subscribePattern="event.*")) == sorted([*everything, b"0-9000"])
    assert values(read(stage, assign='{"events":[1]}')) == [b"1-1500", b"1-2500"]
    by_offset = {
        "startingOffsets": json.dumps({"events": {"0": 1, "1": -2}}),
        "endingOffsets": json.dumps({"events": {"0": -1, "1": 1}}),
    }
    assert values(read(stage, subscribe="events", **by_offset)) == [b"0-2000", b"0-3000", b"1-1500"]
    assert values(read(stage, subscribe="events", startingTimestamp=2000)) == [b"0-2000", b"0-3000", b"1-2500"]
    assert values(read(stage, subscribe="events", endingTimestamp=2000)) == [b"0-1000", b"1-1500"]
    by_timestamp = {
        "startingOffsetsByTimestamp": json.dumps({"events": {"0": 2500, "1": 0}}),
        "endingOffsetsByTimestamp": json.dumps({"events": {"0": 99_999, "1": 2500}}),
    }
    assert values(read(stage, subscribe="events", **by_timestamp)) == [b"0-3000", b"1-1500"]
    with pytest.raises(Exception, match=r"no record of events-1 is as young as 2600"):
        read(stage, subscribe="events", startingTimestamp=2600).collect()
    late = read(stage, subscribe="events", startingTimestamp=2600, startingOffsetsByTimestampStrategy="latest")
    assert values(late) == [b"0-3000"]


def test_a_batch_is_cut_into_as_many_tasks_as_asked_for(stage: Stage) -> None:
    stage.create_topics(events=1)
    stage.put("events", [(None, b"%03d" % number) for number in range(100)])
    whole = [b"%03d" % number for number in range(100)]
    for options, tasks in (({}, 1), ({"minPartitions": 4}, 4), ({"maxRecordsPerPartition": 30}, 4)):
        frame = read(stage, subscribe="events", **options)
        assert frame.rdd.getNumPartitions() == tasks
        assert values(frame) == whole


def test_marker_gaps_and_aborted_records_are_no_data_loss_and_no_duplicates(stage: Stage) -> None:
    """SPARK-25214: whatever the cut points, each committed record is read once."""
    stage.create_topics(payments=1)
    kept = with_gaps(stage, "payments")
    assert values(read(stage, subscribe="payments")) == kept
    assert values(read(stage, subscribe="payments", maxRecordsPerPartition=1)) == kept
    everything = values(read(stage, subscribe="payments", **{"kafka.isolation.level": "read_uncommitted"}))
    assert len(everything) == 12
    stage.create_topics(ledger=1)
    steps = stage.run(stage.source(maxOffsetsPerTrigger=3))
    assert len(steps) > 12  # many small batches, some of them of markers alone
    assert sorted(value for value in stage.values() if value) == kept


def test_planning_stops_at_the_last_stable_offset(stage: Stage) -> None:
    stage.create_topics(events=1)
    stage.put("events", [(None, b"before")])
    producer = confluent_kafka.Producer({"bootstrap.servers": stage.bootstrap_servers, "transactional.id": "open"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("events", b"undecided")
    assert producer.flush(20) == 0
    stage.put("events", [(None, b"after")])
    reader, _ = stream(stage, subscribe="events")
    assert reader.latestOffset({"events": {"0": 0}}, reader.getDefaultReadLimit()) == {"events": {"0": 1}}
    assert values(read(stage, subscribe="events")) == [b"before"]
    producer.commit_transaction()
    assert values(read(stage, subscribe="events")) == [b"after", b"before", b"undecided"]


def test_deleted_records_are_data_loss_unless_that_is_allowed(stage: Stage) -> None:
    stage.create_topics(events=1)
    stage.put("events", [(None, b"%d" % number) for number in range(10)])
    admin = AdminClient({"bootstrap.servers": stage.bootstrap_servers})
    for done in admin.delete_records([confluent_kafka.TopicPartition("events", 0, 6)]).values():
        done.result(20)
    begin = json.dumps({"events": {"0": 2}})
    with pytest.raises(Exception, match="offset 2 is gone, the log starts at 6"):
        read(stage, subscribe="events", startingOffsets=begin).collect()
    rest = read(stage, subscribe="events", startingOffsets=begin, failOnDataLoss="false")
    assert values(rest) == [b"6", b"7", b"8", b"9"]
    producer = confluent_kafka.Producer({"bootstrap.servers": stage.bootstrap_servers, "transactional.id": "open"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("events", b"hidden")
    producer.flush(20)
    undecided = json.dumps({"events": {"0": 11}})
    late = read(stage, subscribe="events", endingOffsets=undecided, **{"kafkaConsumer.pollTimeoutMs": 1500})
    with pytest.raises(Exception, match="nothing came from offset 10 on"):
        late.where("offset > 9").collect()
    producer.abort_transaction()
    with pytest.raises(Exception, match="events-0 ends at 10, before 11, where reading is to go on"):
        reader, _ = stream(stage, subscribe="events")
        reader.partitions({"events": {"0": 11}}, {"events": {"0": 10}})


def test_a_stream_takes_a_fair_share_of_each_partition(stage: Stage) -> None:
    stage.create_topics(events=2)
    stage.put("events", [(None, b"x")] * 90, partition=0)
    stage.put("events", [(None, b"x")] * 10, partition=1)
    reader, _ = stream(stage, subscribe="events", maxOffsetsPerTrigger=20)
    start = reader.initialOffset()
    assert start == {"events": {"0": 0, "1": 0}}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == {"events": {"0": 18, "1": 2}}
    [task] = reader.partitions(start, end)  # there is little to read
    assert isinstance(task, SeveralRanges)
    assert [(r.partition, r.start, r.end) for r in task.ranges] == [(0, 0, 18), (1, 0, 2)]


def test_on_one_machine_there_are_no_more_tasks_than_run_at_once(stage: Stage) -> None:
    stage.create_topics(events=5)
    for partition in range(5):
        stage.put("events", [(None, b"%d" % number) for number in range(200)], partition=partition)
    frame = read(stage, subscribe="events")
    assert frame.rdd.getNumPartitions() == stage.spark.sparkContext.defaultParallelism == 2
    assert frame.count() == 1000
    order = {}
    for row in frame.select("partition", "offset").collect():
        order.setdefault(row.partition, []).append(row.offset)
    assert order == {partition: list(range(200)) for partition in range(5)}
    assert read(stage, subscribe="events", minPartitions=5).rdd.getNumPartitions() == 5


def test_the_first_fetch_of_the_next_range_is_sent_before_the_last_one_is_decoded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create_topics(events=3)
    for partition in range(3):
        stage.put("events", [(None, b"%d" % partition)], partition=partition)
    reader, _ = stream(stage, subscribe="events")
    fetch, asked = range_reader._fetch, []

    def noted(cluster: Any, wanted: OffsetRange, *arguments: Any) -> Any:
        asked.append(wanted.partition)
        return fetch(cluster, wanted, *arguments)

    monkeypatch.setattr(range_reader, "_fetch", noted)
    rows = reader.read(SeveralRanges(tuple(OffsetRange("events", partition, 0, 1) for partition in range(3))))
    seen = []
    for part in rows:
        seen.append((part.column("value").to_pylist(), list(asked)))
    assert seen == [([b"0"], [0, 1]), ([b"1"], [0, 1, 2]), ([b"2"], [0, 1, 2])]


def test_a_stream_waits_for_enough_records_but_not_for_ever(stage: Stage) -> None:
    stage.create_topics(events=1)
    reader, clock = stream(stage, subscribe="events", minOffsetsPerTrigger=10, maxTriggerDelay="60s")
    limit = reader.getDefaultReadLimit()
    stage.put("events", [(None, b"x")] * 3)
    first = reader.latestOffset({"events": {"0": 0}}, limit)
    assert first == {"events": {"0": 3}}  # the first batch does not wait
    stage.put("events", [(None, b"x")] * 4)
    assert reader.latestOffset(first, limit) == first
    clock[0] += 60
    late = reader.latestOffset(first, limit)
    assert late == {"events": {"0": 7}}
    stage.put("events", [(None, b"x")] * 10)
    assert reader.latestOffset(late, limit) == {"events": {"0": 17}}


def test_an_available_now_run_ends_where_the_log_ended_when_it_began(stage: Stage) -> None:
    stage.create_topics(events=1)
    stage.put("events", [(None, b"x")] * 5)
    reader, _ = stream(stage, subscribe="events", minOffsetsPerTrigger=100)
    reader.prepareForTriggerAvailableNow()
    stage.put("events", [(None, b"x")] * 5)
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset({"events": {"0": 0}}, limit) == {"events": {"0": 5}}
    assert reader.latestOffset({"events": {"0": 5}}, limit) == {"events": {"0": 5}}
    assert reader.reportLatestOffset() == {"events": {"0": 10}}


def test_partitions_added_to_a_topic_are_read_from_their_beginning(stage: Stage) -> None:
    from confluent_kafka.admin import NewPartitions

    stage.create_topics(events=1)
    reader, _ = stream(stage, subscribe="events")
    start = reader.initialOffset()
    admin = AdminClient({"bootstrap.servers": stage.bootstrap_servers})
    for done in admin.create_partitions([NewPartitions("events", 2)]).values():
        done.result(20)
    stage.put("events", [(None, b"x")] * 4, partition=1)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == {"events": {"0": 0, "1": 4}}
    assert [(r.partition, r.start, r.end) for r in reader.partitions(start, end)] == [(1, 0, 4)]


def test_a_mistake_in_the_options_reaches_the_user_in_words(stage: Stage) -> None:
    with pytest.raises(Exception, match="unknown option 'startingofset'"):
        read(stage, subscribe="events", startingOfset="earliest").collect()


def delete(stage: Stage, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": stage.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(20)


def recreate(stage: Stage, topic: str) -> None:
    delete(stage, topic)
    stage.create_topics(**{topic: 1})


def test_a_topic_that_is_created_again_while_it_is_read_is_a_loss_and_not_skipped(stage: Stage) -> None:
    stage.create_topics(events=1)
    stage.put("events", [(None, b"old")] * 10)
    reader, _ = stream(stage, subscribe="events")
    lenient, _ = stream(stage, subscribe="events", failOnDataLoss=False)
    for one in (reader, lenient):
        assert one.latestOffset({"events": {"0": 0}}, one.getDefaultReadLimit()) == {"events": {"0": 10}}
    recreate(stage, "events")
    stage.put("events", [(None, b"new")] * 15)
    for _ in range(2):
        with pytest.raises(DataLost, match="topic 'events' was deleted and created again: what was not read of the"):
            reader.latestOffset({"events": {"0": 10}}, reader.getDefaultReadLimit())
    assert lenient.latestOffset({"events": {"0": 10}}, lenient.getDefaultReadLimit()) == {"events": {"0": 15}}


def test_a_log_that_ends_before_what_was_read_is_a_loss(stage: Stage) -> None:
    stage.create_topics(events=1)
    stage.put("events", [(None, b"new")] * 4)
    start = {"events": {"0": 10}}
    reader, _ = stream(stage, subscribe="events")
    with pytest.raises(DataLost, match="events-0 ends at 4, before 10, where reading is to go on: was the"):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    lenient, _ = stream(stage, subscribe="events", failOnDataLoss=False)
    assert lenient.latestOffset(start, lenient.getDefaultReadLimit()) == {"events": {"0": 4}}
    assert lenient.partitions(start, {"events": {"0": 4}}) == []


def test_an_open_transaction_before_what_was_read_is_no_loss(stage: Stage) -> None:
    stage.create_topics(events=1)
    stage.put("events", [(None, b"plain")] * 3)
    producer = confluent_kafka.Producer({"bootstrap.servers": stage.bootstrap_servers, "transactional.id": "open"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("events", b"hidden")
    producer.flush(20)
    reader, _ = stream(stage, subscribe="events")
    assert reader.latestOffset({"events": {"0": 4}}, reader.getDefaultReadLimit()) == {"events": {"0": 4}}
    producer.abort_transaction()


def test_a_topic_of_a_pattern_that_is_gone_is_a_loss(stage: Stage) -> None:
    stage.create_topics(events=1)
    start = {"events": {"0": 0}, "events-gone": {"0": 7}, "other": {"0": 7}}  # 'other' is of an earlier pattern
    reader, _ = stream(stage, subscribePattern="events.*")
    with pytest.raises(DataLost, match="events-gone-0 was read up to 7, and is gone: was the topic deleted"):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    lenient, _ = stream(stage, subscribePattern="events.*", failOnDataLoss=False)
    assert lenient.latestOffset(start, lenient.getDefaultReadLimit()) == start


@pytest.mark.parametrize(
    "given",
    [{"subscribe": "events,payments"}, {"assign": '{"events": [0], "payments": [0]}'}],
    ids=["subscribe", "assign"],
)
def test_a_topic_that_is_deleted_while_it_is_read_is_a_loss(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    monkeypatch.setattr(source, "_GONE_PATIENCE_MS", 100)
    monkeypatch.setattr(source, "_JUST_NOW_S", 0.0)
    stage.create_topics(events=1, payments=1)
    for topic in ("events", "payments"):
        stage.put(topic, [(None, b"old")] * 3)
    reader, _ = stream(stage, **given)
    lenient, _ = stream(stage, failOnDataLoss=False, **given)
    start, end = reader.initialOffset(), lenient.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end == {"events": {"0": 3}, "payments": {"0": 3}}
    delete(stage, "payments")
    stage.put("events", [(None, b"new")])
    says = "payments-0 was read up to {}, and is gone: was the topic deleted. Set failOnDataLoss=false to go on without"
    with pytest.raises(DataLost, match=says.format(3)):
        reader.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLost, match=says.format(0)):
        reader.partitions(start, end)  # planned before it was deleted
    later = lenient.latestOffset(end, ReadAllAvailable())
    assert later == {"events": {"0": 4}, "payments": {"0": 3}}
    assert lenient.partitions(start, end) == [OffsetRange("events", 0, 0, 3)]
    assert lenient.partitions(end, later) == [OffsetRange("events", 0, 3, 4)]
    with pytest.raises(OptionError, match="topic 'payments' is gone: it was there at load"):
        stream(stage, **given)[0].initialOffset()


def test_a_topic_that_is_deleted_between_two_questions_is_not_waited_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First it is asked which partitions there are, then where they end."""
    monkeypatch.setattr(source, "_GONE_PATIENCE_MS", 200)
    stage.create_topics(kept=1, brief=1)
    for topic in ("kept", "brief"):
        stage.put(topic, [(None, b"old")] * 3)
    reader, _ = stream(stage, subscribe="kept,brief", failOnDataLoss=False, **{"kafka.default.api.timeout.ms": 20_000})
    first_answer = reader._partitions_of_topics()
    answers = iter([first_answer])
    delete(stage, "brief")
    ask = reader._partitions_of_topics
    monkeypatch.setattr(reader, "_partitions_of_topics", lambda: next(answers, None) or ask())
    assert reader.reportLatestOffset() == {"kept": {"0": 3}}


def test_a_query_goes_on_without_a_topic_that_was_deleted_if_that_is_allowed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets of a deleted topic cannot be committed: to try would hold up the micro-batch for minutes."""
    monkeypatch.setattr(batch_transaction, "_ASK_AGAIN_S", 0.0)
    stage.create_topics(payments=1, gone=1, ledger=1)
    for topic in ("payments", "gone"):
        stage.put(topic, [(None, topic.encode())])
    reader = stage.spark.readStream.format("semel").option("subscribePattern", "payments|gone")
    reader = reader.option("kafka.bootstrap.servers", stage.bootstrap_servers).option("startingOffsets", "earliest")
    frame = reader.option("failOnDataLoss", "false").load().select("key", "value")
    query = stage.start(frame, trigger={"processingTime": "100 milliseconds"})
    try:
        until(lambda: len(stage.values()) == 2, within_s=100, what="both topics to be copied")
        delete(stage, "gone")
        stage.put("payments", [(None, b"more")])
        until(lambda: len(stage.values()) == 3, within_s=60, what="the next batch")
    finally:
        query.stop()
    assert Step.RETRYING not in [step for step, _ in stage.steps]


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_batch_beyond_the_end_of_a_log_is_refused_at_once(stage: Stage, option: str) -> None:
    stage.create_topics(events=1)
    stage.put("events", [(None, b"1")] * 3)
    frame = read(stage, subscribe="events", **{option: json.dumps({"events": {"0": 1000}})})
    with pytest.raises(Exception, match=f"{option}: 1000 for events-0 is beyond its end, 3: lower it"):
        frame.collect()


def test_what_is_wrong_with_a_batch_is_said_without_a_stack_trace(stage: Stage) -> None:
    stage.create_topics(events=1)
    frame = read(stage, subscribe="events", startingTimestamp=10**15)
    with pytest.raises(Exception, match="startingTimestamp: no record of events-0 is as young as") as refused:
        frame.collect()
    assert "Traceback" not in str(refused.value)


def test_an_offset_of_a_partition_that_is_not_read_is_refused_by_load(stage: Stage) -> None:
    stage.create_topics(events=1)
    for offsets in ({"events": {"0": 0, "1": 0}}, {"events": {"0": 0}, "event": {"0": 0}}):
        with pytest.raises(Exception, match=r"startingOffsets names event.*, which is not read: correct it, or leave"):
            read(stage, subscribe="events", startingOffsets=json.dumps(offsets))

"""Mistakes that can be seen beforehand are told by start() and load(), in one sentence, and no query is started."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException

import semel
from semel.cli.pipeline import pipeline
from semel.errors import Disconnected
from semel.spark import (
    DataLost,
    MarkerConflict,
    NotExactlyOnce,
    PipelineMistake,
    RowRefused,
    Step,
    register,
    start,
    transaction,
)
from semel.spark.source_options import OptionError
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=2)
    return stage


def refuses(stage: Stage, frame: Any, says: str, **settings: Any) -> None:
    """start() raises by itself, in one sentence, and leaves no query and no checkpoint behind."""
    with pytest.raises(PipelineMistake) as refused:
        stage.start(frame, **settings)
    text = str(refused.value)
    assert says in text
    assert "\n" not in text and "FOREACH_BATCH" not in text
    assert stage.steps == []
    assert stage.spark.streams.active == []
    assert not Path(stage.checkpoint).exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"compression": "zst"}, "compression='zst': must be one of none, gzip, snappy, lz4, zstd"),
        ({"compression": None}, "compression=None: must be one of"),
        ({"transactional_id": ""}, "transactional_id='': must be a non-empty string"),
        ({"transactional_id": 7}, "transactional_id=7"),
        ({"transactional_id": "x" * 40_000}, "give a shorter one"),
        ({"bootstrap_servers": {"localhost": 9092}}, "bootstrap_servers={'localhost': 9092}: must be host:port"),
        ({"bootstrap_servers": "localhost"}, "expected host:port"),
        ({"bootstrap_servers": ""}, "bootstrap.servers is empty"),
        ({"bootstrap_servers": [9092]}, "must be host:port"),
        ({"writers": 0}, "writers=0: must be a whole number, at least 1"),
        ({"writers": -1}, "writers=-1"),
        ({"writers": "2"}, "writers='2'"),
        ({"writers": True}, "writers=True"),
        ({"attempts": 0}, "attempts=0: must be a whole number, at least 1"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms=0: must be"),
        ({"transaction_timeout_ms": 1.5}, "transaction_timeout_ms=1.5: must be"),
        ({"transaction_timeout_ms": 2**40}, "transaction_timeout_ms="),
        ({"transaction_timeout_ms": 900_001}, "lower it to 900000, or raise the broker's transaction.max.timeout.ms"),
        ({"topic": ""}, "topic='': must be the name of a topic"),
        ({"topic": "a topic"}, "topic='a topic': must be the name of a topic"),
        ({"topic": 7}, "topic=7"),
        ({"topic": "__consumer_offsets"}, "one of the brokers' own"),
        ({"marker_topic": "a/b"}, "marker_topic='a/b': must be the name of a topic"),
        ({"output_mode": "upsert"}, "output_mode='upsert': must be one of append, update, complete"),
        ({"output_mode": None}, "output_mode=None"),
        ({"trigger": "10 seconds"}, 'must be one of {"processingTime": "10 seconds"}'),
        ({"trigger": {"processingtime": "1 second"}}, "trigger={'processingtime': '1 second'}: must be one of"),
        ({"trigger": {"once": True, "availableNow": True}}, "must be one of"),
        ({"trigger": {"processingTime": "10 parsecs"}}, "trigger={'processingTime': '10 parsecs'}: [INVALID_INTERVAL"),
        ({"trigger": {"processingTime": 5}}, "trigger={'processingTime': 5}: [VALUE_NOT_NON_EMPTY_STR] Value for"),
        ({"trigger": {"availableNow": False}}, "trigger={'availableNow': False}: [VALUE_NOT_ALLOWED] Value for"),
        ({"query_name": ""}, "query_name=''"),
        ({"checkpoint": None}, "checkpoint=None: must be the path of a directory"),
        (
            {"options": {"checkpointLocation": "/elsewhere"}},
            "'checkpointLocation' is the argument checkpoint of start()",
        ),
        ({"options": "x"}, "must be a mapping"),
        ({"options": {"maxOffsetsPerTrigger": "5"}}, "'maxOffsetsPerTrigger' is an option of the source: give it to"),
        ({"options": {"linger.ms": "5"}}, "options: 'linger.ms' must be named 'kafka.linger.ms'"),
        ({"options": {"kafka.acks": "1"}}, "kafka: acks=1: a transaction needs all"),
        ({"kafka": {"acks": 0}}, "kafka: acks=0: a transaction needs all"),
        ({"kafka": {"enable.idempotence": False}}, "kafka: enable.idempotence=false: a transaction needs true"),
        ({"kafka": {"linger.ms": "soon"}}, "kafka: linger.ms=soon: must be a whole number"),
        ({"kafka": {"retries": 3}}, "kafka: retries: requests are repeated until delivery.timeout.ms"),
        ({"kafka": {"max.in.flight.requests.per.connection": 5}}, "up to five requests of a partition are"),
        ({"kafka": {"transactional.id": "x"}}, "kafka: transactional.id: give it as the argument transactional_id"),
        ({"kafka": {"transaction.timeout.ms": 1}}, "give it as the argument transaction_timeout_ms"),
        ({"kafka": {"bootstrap.servers": "h:1"}}, "kafka: bootstrap.servers: give it as the argument"),
        ({"kafka": {"batch.sice": 1}}, "kafka: unknown producer setting 'batch.sice'; did you mean 'batch.size'?"),
        ({"kafka": {"fetch.min.bytes": 1}}, "kafka: unknown producer setting 'fetch.min.bytes'"),
        ({"kafka": {"batch.size": "many"}}, "kafka: batch.size=many: must be a whole number"),
        ({"kafka": {"kafka.batch.size": 1}}, "'kafka.batch.size' is named 'batch.size' here"),
        ({"kafka": {7: 1}}, "kafka: the name of a setting is text, not 7"),
        ({"kafka": "sasl.password=pssst"}, "kafka: must be a mapping from the client's settings to values, not str"),
        ({"kafka": {"batch.size": 1}, "options": {"kafka.batch.size": 2}}, "'kafka.batch.size' is in the argument"),
        ({"kafka": {"compression.type": "lz4"}, "compression": "gzip"}, "the argument compression says gzip; give one"),
        ({"kafka": {"security.protocol": "SASL_SSL"}}, "kafka: sasl.mechanism: is not given"),
        (
            {"kafka": {"security.protocol": "SSL", "ssl.ca.location": "no.pem"}},
            "kafka: ssl.ca.location: cannot read no.pem",
        ),
        ({"claim_port": 70_000}, "claim_port=70000: must be a port, or 0 for any that is free"),
        ({"claim_port": "x"}, "claim_port=x: must be a port"),
        ({"observer": "print"}, "observer='print': must be a function"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused_by_name(stage: Stage, settings: dict[str, Any], says: str) -> None:
    rows = stage.spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    if "observer" in settings:
        with pytest.raises(PipelineMistake, match="must be a function of a step and a batch id"):
            start(rows, bootstrap_servers="h:1", transactional_id="x", checkpoint="/x", observer=settings["observer"])
        return
    refuses(stage, rows, says, **settings)


@pytest.mark.parametrize(
    ("columns", "settings", "says"),
    [
        (["key"], {}, "needs a column 'value' of strings or bytes; there are: key"),
        (["value"], {"topic": None}, "Give start() a topic, or the rows a column 'topic'"),
        (["1 as value"], {}, "column 'value' holds int, and must hold strings or bytes: cast it"),
        (["struct(value) as value"], {}, "column 'value' holds struct<value:binary>, and must hold strings or bytes"),
        (["value", "1.5 as key"], {}, "column 'key' holds decimal(2,1), and must hold strings or bytes"),
        (["value", "'0' as partition"], {}, "column 'partition' holds string, and must hold whole numbers"),
        (["value", "7 as topic"], {"topic": None}, "column 'topic' holds int, and must hold strings"),
        (["value", "map('a', 'b') as headers"], {}, "must hold array<struct<key:string,value:binary>>"),
        (["value", "array(struct(value, 'x' as key)) as headers"], {}, "column 'headers' holds array<struct<value:"),
        (["value", "value"], {}, "there are 2 columns 'value': select the one that is meant"),
        (["value", "value as VALUE"], {}, "there are 2 columns 'value': select the one that is meant"),
        (["value", "value as Key"], {}, "column 'Key' would not be written: name it 'key', or drop it"),
        (["value as VALUE"], {}, "column 'VALUE' would not be written: name it 'value', or drop it"),
        (["value", "'ledger' as Topic"], {"topic": None}, "column 'Topic' would not be written: name it 'topic'"),
        (["value", "99 as partition"], {}, "the column 'partition' says 99, and topic 'ledger' has partitions 0 to 1"),
        (["value", "-1 as partition"], {}, "the column 'partition' says -1, and topic 'ledger' has partitions 0 to 1"),
        (["value", "'a topic' as topic"], {"topic": None}, "column 'topic'='a topic': must be the name of a topic"),
    ],
)
def test_rows_that_are_no_records_are_refused(
    stage: Stage, columns: list[str], settings: dict[str, Any], says: str
) -> None:
    refuses(stage, stage.source().selectExpr(*columns), says, **settings)


def test_columns_that_sparks_own_sink_takes_are_taken(stage: Stage) -> None:
    stage.put_numbers(4)
    rows = stage.source().selectExpr(
        "string(value) as value", "null as key", "bigint(1) as partition", "5 as topic", "null as headers", "7 as other"
    )
    stage.run(rows)  # the argument topic wins, so nobody looks at the column
    assert [record.partition for record in stage.seen()] == [1] * 4


def test_columns_that_the_sink_has_no_use_for_may_be_there_twice(stage: Stage) -> None:
    stage.put_numbers(4)
    stage.run(stage.source().selectExpr("value", "1 as offset", "2 as Offset", "7 as x", "8 as X", "9 as Topic"))
    assert len(stage.values()) == 4


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("nofs://host/x", 'No FileSystem for scheme "nofs"'),
        ("{folder}/file", "is not a directory"),
        ("s3a://bucket/x", "S3AFileSystem not found: Spark needs the package that brings it"),
        ("hdfs://nobody.invalid/x", "unknown host nobody.invalid"),
    ],
)
def test_a_checkpoint_that_cannot_be_is_told_in_one_sentence(stage: Stage, place: str, says: str) -> None:
    (stage.folder / "file").write_text("not a directory")
    place = place.format(folder=stage.folder)
    refuses(stage, stage.source(), says, checkpoint=place)
    refuses(stage, stage.source(), f"checkpoint='{place}' cannot be used: ", checkpoint=place)


def test_a_checkpoint_that_spark_has_not_written_is_told_in_one_sentence(stage: Stage) -> None:
    folder = stage.folder / "other"
    folder.mkdir()
    for text in ("garbage", "7", '{"id": "abc"}'):
        (folder / "metadata").write_text(text)
        refuses(stage, stage.source(), "expected the id of Spark's query in", checkpoint=str(folder))


def test_a_query_that_spark_refuses_is_told_in_one_sentence_without_its_plan(stage: Stage) -> None:
    rows = stage.source()
    for frame, says in (
        (rows.orderBy("value"), "Sorting is not supported on streaming DataFrames/Datasets, unless it is on"),
        (rows.groupBy("key").count().selectExpr("string(count) as value"), "Invalid streaming output mode: append"),
    ):
        with pytest.raises(PipelineMistake) as refused:
            stage.start(frame)
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_block_with_the_checkpoint_of_another_query_says_so(stage: Stage) -> None:
    given: dict[str, Any] = {"bootstrap_servers": stage.bootstrap_servers, "transactional_id": "block"}
    says = r"checkpoint='.*' cannot be used: File .*/offsets/0 does not exist"
    block = transaction(batch_id=0, checkpoint=stage.checkpoint, **given)
    with pytest.raises(PipelineMistake, match=says), block:
        raise AssertionError("the block must not be run")


def test_addresses_and_the_checkpoint_may_be_given_as_programs_have_them(stage: Stage) -> None:
    values = stage.put_numbers(4)
    stage.run(
        stage.source(), bootstrap_servers=[stage.bootstrap_servers, "127.0.0.1:1"], checkpoint=Path(stage.checkpoint)
    )
    assert sorted(stage.values()) == values


@pytest.mark.semel(**{"auto.create.topics.enable": "false"})
@pytest.mark.parametrize("which", ["topic", "marker_topic"])
def test_a_topic_that_is_not_there_is_refused_by_name(stage: Stage, which: str) -> None:
    refuses(stage, stage.source(), f"there is no topic 'nowhere' at {stage.bootstrap_servers}", **{which: "nowhere"})


@pytest.mark.semel(**{"auto.create.topics.enable": "false"})
def test_a_topic_that_every_row_names_is_looked_at_beforehand(stage: Stage) -> None:
    rows = stage.source().selectExpr("value", "'nowhere' as topic")
    refuses(stage, rows, "there is no topic 'nowhere'", topic=None)


def test_a_topic_that_brokers_make_on_demand_is_made(stage: Stage) -> None:
    values = stage.put_numbers(4)
    stage.run(stage.source(), topic="brand-new")
    assert sorted(stage.values("brand-new")) == values


def test_a_pipeline_without_a_place_for_its_progress_is_refused(stage: Stage) -> None:
    rows = (
        stage.spark.readStream.format("rate").load().selectExpr("cast(value as string) as value", "'ledger' as topic")
    )
    refuses(stage, rows, "give marker_topic", topic=None)


def test_the_offsets_of_a_consumer_group_are_not_overwritten(stage: Stage) -> None:
    """A pipeline that has the name of another program's group would make that program skip or repeat records."""
    stage.put("payments", [(b"key", b"value")])
    group = {"bootstrap.servers": stage.bootstrap_servers, "group.id": stage.transactional_id}
    consumer = confluent_kafka.Consumer(group)
    consumer.commit(offsets=[confluent_kafka.TopicPartition("payments", 1, 7)], asynchronous=False)
    consumer.close()
    says = rf"'{stage.transactional_id}' has offsets of another program \(payments-1 at 7\).*semel pipeline forget"
    for adopt in (False, True):
        with pytest.raises(MarkerConflict, match=says) as refused:
            stage.start(stage.source(), adopt=adopt)
    command = re.search(r"delete them: semel (pipeline forget \S+)", str(refused.value))
    assert command is not None
    words = [*command.group(1).split()[1:], "--bootstrap", stage.bootstrap_servers, "--yes"]
    assert CliRunner().invoke(pipeline, words).exit_code == 0
    stage.run(stage.source())
    assert stage.values() == [b"value"]


def test_options_that_only_a_batch_has_are_refused_by_start(stage: Stage) -> None:
    frame = stage.source(endingOffsets="latest")  # load() cannot know that it is a stream
    refuses(stage, frame, "endingOffsets has no meaning in a streaming query")


def test_what_is_no_streaming_frame_is_refused(stage: Stage) -> None:
    for frame, says in ((None, "not NoneType"), ("payments", "not str"), (stage.spark, "not SparkSession")):
        with pytest.raises(PipelineMistake, match=f"takes a streaming DataFrame.*{says}"):
            stage.start(frame)
    with pytest.raises(NotExactlyOnce, match="this one is a batch"):
        stage.start(stage.spark.range(3))


def test_what_is_no_session_cannot_be_registered_with() -> None:
    with pytest.raises(PipelineMistake, match=r"register\(\) takes a SparkSession, not str"):
        register("local")


def test_a_schema_for_the_source_is_refused(stage: Stage) -> None:
    """Spark does not show such a schema to the source, and fails when the first rows come."""
    reader = stage.spark.readStream.format("semel").schema("amount int").option("subscribe", "payments")
    frame = reader.option("kafka.bootstrap.servers", stage.bootstrap_servers).load()
    refuses(stage, frame.selectExpr("string(amount) as value"), "leave .schema(...) out, and take the value apart")
    reader = stage.spark.read.format("semel").schema("amount int").option("subscribe", "payments")
    with pytest.raises(Exception, match=r"has columns of its own .*: leave .schema\(...\) out"):
        reader.option("kafka.bootstrap.servers", stage.bootstrap_servers).load().collect()


def test_async_progress_is_refused_whatever_the_spelling(stage: Stage) -> None:
    for options in ({"AsyncProgressTrackingEnabled": True}, {"asyncprogresstrackingenabled": "TRUE"}):
        with pytest.raises(NotExactlyOnce, match="asyncProgressTrackingEnabled"):
            stage.start(stage.source(), options=options)


def test_nobody_at_the_address_is_said_at_once(stage: Stage) -> None:
    frame = stage.source()
    with pytest.raises(Disconnected, match="no broker can be reached"):
        stage.start(frame, bootstrap_servers="127.0.0.1:1")


# --- mistakes that only rows can show: one try, one sentence ---


@pytest.mark.parametrize(
    ("columns", "settings", "says"),
    [
        (["value", "int(string(value)) + 98 as partition"], {}, "says 9[89], and topic 'ledger' has partitions 0 to 1"),
        (["value", "-1 - int(string(value)) as partition"], {}, "says -[12], and topic 'ledger' has partitions 0 to 1"),
        (["value", "bigint(string(value)) + 4294967296 as partition"], {}, "says 429496729[67], and topic"),
        (
            ["value", "array(struct(if(value = '1', null, 'name') as key, value)) as headers"],
            {},
            "a row for ledger-. cannot be a record: a header has no name; each of the column 'headers' needs a key",
        ),
        (["value", "if(value = '1', null, 'ledger') as topic"], {"topic": None}, "a row has no topic"),
        (["value", "concat('a topic ', string(value)) as topic"], {"topic": None}, "the column 'topic' says 'a topic"),
        (["repeat(string(value), 2000000) as value"], {}, "is too large: row . makes a batch of .* and 1048588 are"),
    ],
)
def test_a_row_that_cannot_be_written_ends_the_query_at_once(
    stage: Stage, columns: list[str], settings: dict[str, Any], says: str
) -> None:
    stage.put("payments", [(None, b"0"), (None, b"1")])
    with pytest.raises(Exception, match=says) as failed:
        stage.run(stage.source().selectExpr(*columns), **settings)
    assert stage.query is not None
    for error in (failed.value, stage.query.exception()):
        assert isinstance(error, StreamingQueryException)
        assert str(error).startswith("RowRefused: ")
        assert re.search(says, str(error).splitlines()[0])
        assert isinstance(error.__cause__, RowRefused), "the cause is the pipeline's own error"
        assert re.search(says, str(error.__cause__))
        assert "try again" not in str(error).lower()
    assert [step for step, _ in stage.steps] == [Step.BEGUN]
    assert stage.values() == []


def test_what_the_source_finds_out_while_it_runs_is_told_in_one_sentence(stage: Stage) -> None:
    """It plans in a process of Spark's, whose errors come as a text with a stack."""
    frame = stage.source(startingOffsets='{"payments": {"0": 5}}')
    says = "the source: startingOffsets says nothing of payments-1: name every partition that is read"
    with pytest.raises(StreamingQueryException) as failed:
        stage.run(frame)
    for error in (failed.value, stage.query.exception()):
        assert str(error).startswith(f"PipelineMistake: {says}")
        assert isinstance(error.__cause__, PipelineMistake) and str(error.__cause__).startswith(says)
    stage.put("payments", [(None, b"0"), (None, b"1")])
    with pytest.raises(StreamingQueryException) as failed:
        stage.run(stage.source(startingOffsets='{"payments": {"0": 99, "1": -2}}'))  # the checkpoint has begun nothing
    assert isinstance(failed.value.__cause__, DataLost)
    assert str(failed.value).startswith("DataLost: payments-0 ends at ")


@pytest.mark.semel(**{"auto.create.topics.enable": "false"})
def test_a_row_that_names_a_topic_nobody_has_ends_the_query_at_once(stage: Stage) -> None:
    stage.put("payments", [(None, b"0")])
    rows = stage.source().selectExpr("value", "concat('nowhere-', string(value)) as topic")
    with pytest.raises(Exception, match="the column 'topic' says 'nowhere-0', and the cluster has no such topic"):
        stage.run(rows, topic=None)
    assert [step for step, _ in stage.steps] == [Step.BEGUN]


# --- the source ---


def loads(stage: Stage, reader: Any, **options: Any) -> Callable[[], Any]:
    given = {"kafka.bootstrap.servers": stage.bootstrap_servers, **options}
    reader = reader.format("semel").options(**{name: str(value) for name, value in given.items()})
    return lambda: reader.load()


@pytest.mark.parametrize("kind", ["read", "readStream"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "payments", "startingOfset": "earliest"}, "; did you mean 'startingOffsets'?"),
        (
            {"subscribe": "payments", "startingOffsets": "soon"},
            "startingOffsets=soon: must be earliest, latest, or JSON",
        ),
        ({"subscribe": "payments", "includeHeaders": "perhaps"}, "includeHeaders=perhaps: must be true or false"),
        ({"subscribe": "payments", "kafka.isolation.level": "dirty"}, "isolation.level"),
        ({"subscribe": "payments", "kafka.bootstrap.servers": "localhost"}, "expected host:port"),
        ({"subscribe": "payments", "kafka.bootstrap.servers": "127.0.0.1:1"}, "no broker can be reached"),
        ({"subscribe": "payments,nowhere"}, "there is no topic 'nowhere' at 127.0.0.1:"),
        ({"subscribe": "a topic"}, "topic 'a topic'"),
        ({"assign": '{"nowhere":[0]}'}, "there is no topic 'nowhere' at 127.0.0.1:"),
        ({"assign": '{"payments":[0,2]}'}, "assign names payments-2, and topic 'payments' has partitions 0 to 1"),
    ],
)
def test_a_mistake_about_the_source_is_told_by_load(
    stage: Stage, kind: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception) as refused:
        loads(stage, getattr(stage.spark, kind), **options)()
    text = str(refused.value)
    assert says in text
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) <= 2  # Spark puts an SQLSTATE below the sentence


def test_writing_with_the_format_names_the_function_that_writes(stage: Stage) -> None:
    rows = stage.spark.range(3).selectExpr("cast(id as string) as value")
    for mode in ("append", "overwrite"):
        with pytest.raises(Exception, match=r"semel\.spark\.write") as refused:
            rows.write.format("semel").mode(mode).save()
        assert "Traceback" not in str(refused.value)
    stage.put_numbers(3)
    writer = stage.source().writeStream.format("semel").option("checkpointLocation", stage.checkpoint)
    with pytest.raises(Exception, match=r"semel\.spark\.start"):
        writer.trigger(availableNow=True).start().awaitTermination(100)


def test_options_are_held_against_both_kinds_of_query_where_the_kind_is_known() -> None:
    from semel.spark.source_options import SourceOptions

    one = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a"}
    assert SourceOptions.parse({**one, "endingOffsets": "latest"}, streaming=None).topics == ("a",)
    assert SourceOptions.parse({**one, "startingOffsets": "latest"}, streaming=None).topics == ("a",)
    with pytest.raises(OptionError, match="cannot end at the beginning"):
        SourceOptions.parse({**one, "endingOffsets": "earliest"}, streaming=None)

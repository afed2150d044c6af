"""Spark's own Kafka source beside ours, on the same topics: the same rows, all columns, on Semel and Apache Kafka."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

import semel
from tests.spark.stage import TOO_SLOW_TO_START
from tests.support.apache_kafka import ApacheKafka
from tests.support.reading import read_all
from tests.support.requirements import require_connector
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(300)]

BOTH = ("kafka", "semel")
#: How records that Spark's source shows differ by isolation level: it reads uncommitted ones unless told otherwise.
COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}

#: Every option that says what is read, from where to where. The timestamps are those of `put`.
READS: dict[str, dict[str, Any]] = {
    "committed": {"subscribePattern": "(plain|app.*|comp.*|trans.*)", **COMMITTED},
    "uncommitted": {"assign": {"plain": [1], "transactional": [0]}, "startingOffsets": "earliest", **UNCOMMITTED},
    "offsets": {
        "subscribe": "plain,transactional,compacted", "minPartitions": 7, **COMMITTED,
        "startingOffsets": {"plain": {"0": 2, "1": -2}, "transactional": {"0": 1}, "compacted": {"0": 1}},
        "endingOffsets": {"plain": {"0": -1, "1": 3}, "transactional": {"0": 9}, "compacted": {"0": -1}},
    },
    "between two times": {
        "subscribe": "plain", "startingTimestamp": 2_000, "endingTimestamp": 4_000, "maxRecordsPerPartition": 2,
    },
    "a time for each": {
        "subscribe": "plain", "startingOffsetsByTimestamp": {"plain": {"0": 1_500, "1": 4_000}},
        "endingOffsetsByTimestamp": {"plain": {"0": 4_000, "1": 9_999_999_999_999}}, "failOnDataLoss": "false",
    },
    "after the last": {
        "subscribe": "plain", "startingTimestamp": 9_999_999_999_999, "endingOffsets": "latest",
        "startingOffsetsByTimestampStrategy": "latest",
    },
}  # fmt: skip
#: A stream: from timestamps, over the gaps of transactions and of compaction, in several micro-batches.
STREAM: dict[str, Any] = {
    "subscribe": "plain,transactional,compacted", "maxOffsetsPerTrigger": 20, **COMMITTED,
    "startingOffsetsByTimestamp": {"plain": {"0": 2_000, "1": 1}, "transactional": {"0": 0}, "compacted": {"0": 3_000}},
    "startingOffsetsByTimestampStrategy": "latest",
}  # fmt: skip


@pytest.fixture(scope="module", params=["semel", "apache"])
def brokers(request: pytest.FixtureRequest, spark: Any) -> Iterator[str]:
    """The brokers' address, with topics that have everything."""
    require_connector()
    if request.param == "apache":
        kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
        clean_soon(AdminClient({"bootstrap.servers": kafka.bootstrap_servers}))
        fill(kafka.bootstrap_servers)
        yield kafka.bootstrap_servers
    else:
        with semel.Broker(settings={"log.cleaner.backoff.ms": 50}) as broker:
            fill(broker.bootstrap_servers)
            yield broker.bootstrap_servers


def fill(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    topics = [
        *(NewTopic(name, 2, 1, config={"retention.ms": "-1"}) for name in ("plain", "fresh")),  # records of 1970
        NewTopic("appended", 1, 1, config={"message.timestamp.type": "LogAppendTime"}),
        NewTopic("compacted", 1, 1, config={
            "cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}),
        NewTopic("transactional", 1, 1),
    ]  # fmt: skip
    for made in admin.create_topics(topics).values():
        made.result(30)
    put(servers, "plain", 10)
    put(servers, "appended", 5)
    transactions(servers)
    for number in range(12):
        put(servers, "compacted", 1, key=b"key %d" % (number % 3), first=number)
    until(lambda: in_log(servers, "compacted") < 12, what="compaction", within_s=60)


def clean_soon(admin: AdminClient) -> None:
    """Compaction looks for work every 15 s otherwise."""
    setting = confluent_kafka.admin.ConfigEntry(
        "log.cleaner.backoff.ms", "50", incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[setting])
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result(30)


def put(servers: str, topic: str, count: int, *, key: bytes | None = None, first: int = 0) -> None:
    """Records with and without keys, values, headers and timestamps of their own."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0})
    headers = [None, [("a", b"1"), ("a", None), ("", b"")], [("ü", b"\xff\x00")], []]
    for number in range(first, first + count):
        given: dict[str, Any] = {} if number % 7 == 6 else {"timestamp": 1 + number // 2 * 1_000}
        if headers[number % 4]:
            given["headers"] = headers[number % 4]
        own = key or (None if number % 3 == 0 else b"" if number % 3 == 1 else b"key %d" % number)
        value = None if number % 5 == 4 and key is None else b"value %d" % number
        partition = number % 2 if topic in ("plain", "fresh") else 0
        producer.produce(topic, value, own, partition=partition, **given)
        producer.flush(30)
    assert len(producer) == 0


def transactions(servers: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "beside"})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.produce("transactional", b"%d" % number, headers=[("n", b"%d" % number)])
        if number % 3:
            producer.commit_transaction()
        else:
            producer.flush(30)
            producer.abort_transaction()


def in_log(servers: str, topic: str) -> int:
    return len(read_all(servers, topic))


def written(options: dict[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in options.items()}


def comparable(frame: Any) -> Any:
    """All columns, the timestamp in microseconds: the same for both, whatever the time zone."""
    return frame.selectExpr("* except (timestamp)", "unix_micros(timestamp) as micros")


def sorted_rows(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


def test_both_sources_give_the_same_rows(spark: Any, brokers: str) -> None:
    """All reads are one Spark job for each source, because a job takes longer than what it reads here."""
    from pyspark.sql.functions import lit

    found = {}
    for source in BOTH:
        frames = [
            comparable(
                spark.read.format(source)
                .options(**{"kafka.bootstrap.servers": brokers, "includeHeaders": "true", **written(options)})
                .load()
            ).withColumn("read", lit(name))
            for name, options in READS.items()
        ]
        found[source] = functools.reduce(lambda one, other: one.union(other), frames).collect()
    theirs, ours = (sorted_rows(found[source]) for source in BOTH)
    assert ours == theirs
    counts = {name: sum(row.read == name for row in found["semel"]) for name in READS}
    assert counts["after the last"] == 0 and all(counts[name] for name in READS if name != "after the last"), counts
    everything = [row for row in found["semel"] if row.read == "committed"]
    assert [sum(row.topic == "transactional" for row in found["semel"] if row.read == read) for read in READS][:2] == [
        4, 6,
    ]  # fmt: skip
    assert {row.timestampType for row in everything} == {0, 1}
    assert {row.headers is None for row in everything} == {True, False}
    assert {row.key is None for row in everything} == {row.value is None for row in everything} == {True, False}
    offsets = sorted(row.offset for row in everything if row.topic == "compacted")
    assert len(offsets) < 12 and offsets[-1] == 11, "compaction left gaps"


def started(writer: Any, wait: Callable[[Any], object]) -> Any:
    """A query that has come so far. If Spark gave up on its source, which was slow to start, it is started again."""
    deadline = time.monotonic() + 150
    while True:
        query = writer.start()
        try:
            wait(query)
            return query
        except Exception as error:
            query.stop()
            if TOO_SLOW_TO_START not in str(error) or time.monotonic() > deadline:
                raise


def test_both_streams_give_the_same_rows(spark: Any, brokers: str) -> None:
    found = {}
    for source in BOTH:
        given = {"kafka.bootstrap.servers": brokers, "includeHeaders": "true", **STREAM}
        frame = comparable(spark.readStream.format(source).options(**written(given)).load())
        table = f"beside_{source}"
        writer = frame.writeStream.format("memory").queryName(table).trigger(availableNow=True)
        running = started(writer, lambda query: query.awaitTermination(120))
        assert not running.isActive and len(running.recentProgress) > 1
        running.stop()
        found[source] = sorted_rows(spark.table(table).collect())
        spark.sql(f"drop view {table}")
    assert found["semel"] == found["kafka"]
    assert len(found["semel"]) > 10


def test_both_streams_from_the_end_see_what_comes(spark: Any, brokers: str) -> None:
    put(brokers, "fresh", 3)
    queries = {}
    try:
        for source in BOTH:
            reader = spark.readStream.format(source).option("kafka.bootstrap.servers", brokers)
            frame = comparable(reader.option("subscribe", "fresh").option("includeHeaders", "true").load())
            table = f"beside_{source}_fresh"
            writer = frame.writeStream.format("memory").queryName(table)  # latest is the default
            queries[table] = started(writer, lambda query: query.processAllAvailable())
        put(brokers, "fresh", 4, first=3)
        for query in queries.values():
            query.processAllAvailable()
        theirs, ours = (sorted_rows(spark.table(table).collect()) for table in queries)
    finally:
        for query in queries.values():
            query.stop()
    assert ours == theirs
    assert len(ours) == 4

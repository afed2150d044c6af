"""A file with several outputs, and one behind TLS and a password: checked and run as it stands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from tests.spark.stage import Stage
from tests.spark.test_adoption import PlainSink
from tests.spark.test_job_file import written
from tests.support.requirements import require_spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SEVERAL = """\
transactional_id = "pipeline"
checkpoint = "checkpoint"
{mode}
[kafka]
bootstrap.servers = "{broker}"
[source.payments]
subscribe = "payments"
startingOffsets = "earliest"
[transform]
{transform}
[output.all]
topic = "ledger"
{all}
[output.odd]
topic = "fraud"
{odd}
[trigger]
available_now = true
"""
BY_SQL = {
    "mode": "",
    "transform": 'sql = "select key, string(value) as number from payments"',
    "all": 'sql = "select key, number as value from result"',
    "odd": 'sql = "select key, number as value from result where int(number) % 2 = 1"',
}
BY_FUNCTION = {"mode": "", "transform": 'function = "parting:parts"', "all": "", "odd": ""}
STATEFUL = {
    "mode": 'output_mode = "update"',
    "transform": 'sql = "select string(key) as key, count(*) as n from payments group by string(key)"',
    "all": 'sql = "select key, string(n) as value from result"',
    "odd": "sql = \"select key, 'many' as value from result where n > 5\"",
}
PARTING = """
from pyspark.sql.functions import col

def parts(payments):
    rows = payments.select("key", "value")
    return {"all": rows, "odd": rows.where(col("value").cast("string").cast("int") % 2 == 1)}

def stateful(payments):
    counted = payments.groupBy("key").count().selectExpr("key", "string(count) as value")
    return {"all": counted, "odd": payments.select("key", "value")}
"""


def run(spark: Any, path: Path) -> Any:
    """What `semel pipeline run` does, in the session of the tests."""
    from semel.spark.job.building import build, load_sources
    from semel.spark.job.checking import check_in_session
    from semel.spark.job.file import read_pipeline
    from semel.spark.job.running import start_plan

    file = read_pipeline(path)
    assert check_in_session(file, spark).mistakes == []
    query = start_plan(file, build(file, spark, load_sources(file, spark)), lambda step, batch: None)
    try:
        assert query.awaitTermination(150)
    finally:
        query.stop()
    return query


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=1, ledger=2, fraud=1)
    (tmp_path / "parting.py").write_text(PARTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "parting", raising=False)
    return stage


@pytest.mark.parametrize("way", [BY_SQL, BY_FUNCTION], ids=["by sql", "by a function that returns a dict"])
def test_each_output_gets_its_part_in_one_transaction(stage: Stage, way: dict[str, str]) -> None:
    values = stage.put_numbers(20)
    query = run(stage.spark, written(stage.folder, SEVERAL.format(broker=stage.bootstrap_servers, **way)))
    assert sorted(stage.values("ledger")) == values
    assert sorted(stage.values("fraud")) == [value for value in values if int(value) % 2]
    assert query.lastProgress.observedMetrics["semel"]["rows"] == 30


def test_a_transform_with_a_state_is_split_by_its_outputs(stage: Stage) -> None:
    stage.put("payments", [(b"a", b"x")] * 7 + [(b"b", b"x")] * 2)
    run(stage.spark, written(stage.folder, SEVERAL.format(broker=stage.bootstrap_servers, **STATEFUL)))
    assert {(row.key, row.value) for row in stage.seen("ledger")} == {(b"a", b"7"), (b"b", b"2")}
    assert [(row.key, row.value) for row in stage.seen("fraud")] == [(b"a", b"many")]


def test_several_dataframes_with_a_state_are_refused_with_the_way_to_do_it(stage: Stage) -> None:
    from semel.spark.job.checking import check_in_session
    from semel.spark.job.file import read_pipeline

    ways = {**BY_FUNCTION, "transform": 'function = "parting:stateful"', "mode": 'output_mode = "update"'}
    path = written(stage.folder, SEVERAL.format(broker=stage.bootstrap_servers, **ways))
    (mistake,) = check_in_session(read_pipeline(path), stage.spark).mistakes
    assert mistake.key == "transform.function" and "'all' keeps state" in mistake.why


LOCKED = """\
transactional_id = "pipeline"
checkpoint = "checkpoint"
[kafka]
{settings}
[source.payments]
subscribe = "payments"
startingOffsets = "earliest"
[transform]
sql = "select key, value from payments"
[output.ledger]
[trigger]
available_now = true
"""


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[semel.Broker]:
    """A broker with TLS and users: alice may do anything, bob nothing."""
    require_spark()
    users = {"alice": "looking-glass", "bob": "nothing-at-all"}
    security = semel.Security(users=users, acls=[], super_users=["alice"])
    with semel.Broker(tmp_path / "data", security=security) as broker:
        admin = AdminClient(broker.client_settings("alice"))
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in ("payments", "ledger")]).values():
            made.result(20)
        producer = confluent_kafka.Producer(broker.client_settings("alice"))
        for number in range(5):
            producer.produce("payments", b"%d" % number)
        assert producer.flush(20) == 0
        yield broker


def locked_file(broker: semel.Broker, folder: Path, user: str) -> Path:
    given = {**broker.client_settings(user), "sasl.password": "${LEDGER_PASSWORD}"}
    settings = "\n".join(f'{name} = "{value}"' for name, value in given.items())
    return written(folder, LOCKED.format(settings=settings))


def test_it_runs_over_tls_with_a_password_from_the_environment(
    spark: Any, locked: semel.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_PASSWORD", "looking-glass")
    run(spark, locked_file(locked, tmp_path, "alice"))
    consumer = confluent_kafka.Consumer({**locked.client_settings("alice"), "group.id": "proof"})
    consumer.assign([confluent_kafka.TopicPartition("ledger", 0, 0)])
    found = [message.value() for message in consumer.consume(5, 30) if message.error() is None]
    consumer.close()
    assert sorted(found) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize(("user", "password"), [("alice", "looking-grass"), ("bob", "nothing-at-all")])
def test_a_wrong_password_and_missing_rights_are_told_without_the_password(
    spark: Any, locked: semel.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, password: str
) -> None:
    from semel.spark.job.checking import check_in_session
    from semel.spark.job.file import read_pipeline

    monkeypatch.setenv("LEDGER_PASSWORD", password)
    found = check_in_session(read_pipeline(locked_file(locked, tmp_path, user)), spark)
    told = {mistake.key: mistake.why for mistake in found.mistakes}
    if user == "alice":
        assert set(told) == {"kafka.bootstrap.servers"} and "SASL" in told["kafka.bootstrap.servers"].upper()
    else:
        assert {"source.payments.subscribe", "output.ledger.topic"} <= set(told)
    assert all(password not in why for why in told.values())


def test_adopt_takes_over_the_checkpoint_that_the_file_names(stage: Stage) -> None:
    from semel.spark import MarkerConflict
    from semel.spark.job.file import read_pipeline
    from semel.spark.job.running import adopt_checkpoint_of

    values = stage.put_numbers(20)
    old = PlainSink(stage)
    old.run()
    path = written(stage.folder, LOCKED.format(settings=f'bootstrap.servers = "{stage.bootstrap_servers}"'))
    file = read_pipeline(path)
    assert str(adopt_checkpoint_of(file, stage.spark, repeat=False)) == "taken over: exactly once from batch 2 on"
    assert "nothing to take over" in str(adopt_checkpoint_of(file, stage.spark, repeat=False))
    stage.put("payments", [(b"k", b"news")])
    run(stage.spark, path)
    assert sorted(value for value in stage.values() if value) == [*values, b"news"]
    other = path.read_text().replace('"pipeline"', '"another"')
    stage.forget_commits_from(2)
    with pytest.raises(MarkerConflict, match="batch 2"):
        adopt_checkpoint_of(read_pipeline(written(stage.folder, other)), stage.spark, repeat=False)

"""`[dead_letters]` of a pipeline.toml: bad rows go to their topic with the others' transaction, and `check` knows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import semel
from tests.spark.stage import Stage
from tests.spark.test_job_file import written
from tests.spark.test_job_outputs import run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILE = """\
transactional_id = "pipeline"
checkpoint = "checkpoint"
[kafka]
bootstrap.servers = "{broker}"
[source.payments]
subscribe = "payments"
startingOffsets = "earliest"
[transform]
{transform}
[output.ledger]
{output}
[dead_letters]
topic = "dead"
{dead}
[trigger]
available_now = true
"""
BY_SQL = {
    "transform": 'sql = "select key, bigint(string(value)) as number from payments"',
    "output": 'sql = "select key, string(number * 2) as value from result"',
    "dead": "when = \"if(try_cast(string(value) as bigint) is null, concat(string(value), ' is no number'), null)\"",
}
BY_FUNCTION = {
    "transform": 'function = "judging:doubled"',
    "output": "",
    "dead": 'function = "judging:why_bad"',
}
JUDGING = """
from pyspark.sql.functions import concat, lit, when

def doubled(payments):
    return {"ledger": payments.selectExpr("key", "string(bigint(string(value)) * 2) as value")}

def why_bad(payments):
    text = payments.value.cast("string")
    return when(text.try_cast("bigint").isNull(), concat(text, lit(" is no number")))
"""


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=1, ledger=1, dead=1)
    (tmp_path / "judging.py").write_text(JUDGING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "judging", raising=False)
    return stage


def file_of(stage: Stage, **changes: str) -> Path:
    return written(stage.folder, FILE.format(broker=stage.bootstrap_servers, **{**BY_SQL, **changes}))


@pytest.mark.parametrize("way", [BY_SQL, BY_FUNCTION], ids=["by sql", "by functions"])
def test_bad_rows_go_to_their_topic_in_the_transaction_of_the_good_ones(stage: Stage, way: dict[str, str]) -> None:
    stage.put("payments", [(b"a", b"1"), (b"b", b"two"), (b"c", b"3")])
    query = run(stage.spark, file_of(stage, **way))
    assert [(row.key, row.value) for row in stage.seen("ledger")] == [(b"a", b"2"), (b"c", b"6")]
    (dead,) = stage.seen("dead")
    assert (dead.key, dead.value) == (b"b", b"two")
    assert dict(dead.headers) == {
        "source.topic": b"payments", "source.partition": b"0", "source.offset": b"1", "error": b"two is no number",
    }  # fmt: skip
    assert query.lastProgress.observedMetrics["semel"]["rows"] == 3, "one transaction has them all"


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"dead": 'when = "amount < 0"'}, "dead_letters.when", "amount"),
        ({"dead": 'when = "length(value)"'}, "dead_letters.when", "must give the error as text, or true"),
        ({"dead": 'function = "judging:nothing"'}, "dead_letters.function", "has no function 'nothing'"),
        ({"dead": 'function = "judging:doubled"'}, "dead_letters.function", "returned dict"),
        (
            {"transform": 'sql = "select key, count(*) as number from payments group by key"'},
            "dead_letters", "this transform keeps state",
        ),
    ],
)  # fmt: skip
def test_a_condition_that_cannot_be_meant_is_told_by_check(
    stage: Stage, changes: dict[str, str], key: str, words: str
) -> None:
    (mistake,) = checked(stage, file_of(stage, **changes)).mistakes
    assert mistake.key == key and words in mistake.why, mistake
    assert "\n" not in mistake.why


def test_check_looks_at_the_topic_of_the_dead_letters(stage: Stage) -> None:
    assert ("dead_letters", "topic dead: 1 partitions") in checked(stage, file_of(stage)).facts
    path = file_of(stage)
    path.write_text(path.read_text().replace('"dead"', '"absent"'))
    facts = dict(checked(stage, path).facts)
    assert facts["dead_letters"].startswith("topic absent is not there yet"), "auto.create.topics.enable is on here"


def checked(stage: Stage, path: Path) -> Any:
    from semel.spark.job.checking import check_in_session
    from semel.spark.job.file import read_pipeline

    return check_in_session(read_pipeline(path), stage.spark)

"""`semel pipeline check`: what is wrong with the topics, the plan and the checkpoint is told before anything runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

import semel
from tests.spark.stage import Stage
from tests.spark.test_job_file import GOOD, written

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def checked(spark: Any, folder: Path, broker: str, *changes: tuple[str, str]) -> Any:
    from semel.spark.job.checking import check_in_session
    from semel.spark.job.file import read_pipeline

    text = GOOD.replace("127.0.0.1:9092", broker)
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return check_in_session(read_pipeline(written(folder, text)), spark)


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    return Stage(spark, semel_broker.bootstrap_servers, tmp_path, transactional_id="ledger")


def everything_on(stage: Stage) -> tuple[Any, ...]:
    """All topics with their ids, the groups, and the files beside the pipeline's."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap_servers})
    topics = sorted(admin.list_topics(timeout=20).topics)
    groups = sorted(group.group_id for group in admin.list_consumer_groups().result(20).valid)
    files = sorted(str(path) for path in stage.folder.rglob("*") if path.name != "pipeline.toml")
    return topics, groups, files


def test_a_good_file_is_checked_and_nothing_is_written(stage: Stage) -> None:
    stage.create_topics(payments=2, ledger=3)
    stage.put_numbers(5)
    before = everything_on(stage)
    found = checked(stage.spark, stage.folder, stage.bootstrap_servers)
    assert found.mistakes == []
    facts = dict(found.facts)
    assert facts["source.payments"] == "payments: 2 partitions, 5 offsets in them"
    assert facts["checkpoint"] == "new: the pipeline begins"
    assert "900 s" in facts["transactions"]
    assert ("output.ledger", "topic ledger: 3 partitions") in found.facts
    assert ("output.ledger", "columns key binary, value binary") in found.facts
    assert everything_on(stage) == before, "not even the coordinators' own topics"


def test_topics_that_are_not_there_are_told_together_and_not_created(stage: Stage) -> None:
    found = checked(stage.spark, stage.folder, stage.bootstrap_servers)
    assert [mistake.key for mistake in found.mistakes] == ["source.payments.subscribe"]
    assert "semel topic create payments" in found.mistakes[0].why
    assert "the brokers make it" in dict(found.facts[:1])["output.ledger"], "auto.create.topics.enable is on here"
    assert everything_on(stage)[0] == []


def test_mistakes_of_topics_plan_and_limits_come_in_one_list(stage: Stage) -> None:
    stage.create_topics(ledger=1)
    found = checked(
        stage.spark, stage.folder, stage.bootstrap_servers,
        ("select key, value from payments", "select key, count(*) as value from payments group by key"),
        ('checkpoint = "checkpoint"', 'checkpoint = "checkpoint"\ntransaction_timeout_ms = 1000000'),
    )  # fmt: skip
    told = {mistake.key: (mistake.why, mistake.line) for mistake in found.mistakes}
    assert set(told) == {"source.payments.subscribe", "transaction_timeout_ms", "transform.sql"}
    why, line = told["transaction_timeout_ms"]
    assert why.startswith("1000000 is more than the broker allows: lower it to 900000, or raise") and line == 3
    whys = [mistake.why for mistake in found.mistakes if mistake.key == "transform.sql"]
    assert any("append" in why.lower() for why in whys), "an aggregation without a watermark"
    assert any("column 'value' holds bigint" in why for why in whys)
    assert all("\n" not in why and "Exception" not in why for why, _ in told.values())


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select key, valu from payments", "valu"),
        ("selec 1", "selec"),
        ("select key, value from nowhere", "nowhere"),
        ("select 'a' as value", "must read one of the sources"),
    ],
)
def test_sql_that_cannot_be_meant_is_told_with_its_line(stage: Stage, sql: str, words: str) -> None:
    stage.create_topics(payments=1, ledger=1)
    (mistake,) = checked(
        stage.spark, stage.folder, stage.bootstrap_servers, ("select key, value from payments", sql)
    ).mistakes
    assert mistake.key == "transform.sql" and mistake.line == 12 and words in mistake.why
    assert "\n" not in mistake.why


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def made(payments):\n    return payments.select('nothing')\n", "odd_transform.py:2"),
        ("def made(payments):\n    return 7\n", "returned int"),
        ("def other(payments):\n    return payments\n", "has no function 'made'"),
        ("def made(payments)\n", "SyntaxError"),
        ("import a_module_that_is_not_there\n", "a_module_that_is_not_there"),
        ("def made():\n    pass\n", "made() takes 0 positional arguments"),
        ("def made(payments):\n    return {'other': payments}\n", "returned other, and the outputs are ledger"),
    ],
)
def test_a_transform_that_cannot_be_run_is_told_with_the_line_of_the_users_code(
    stage: Stage, body: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    stage.create_topics(payments=1, ledger=1)
    (stage.folder / "odd_transform.py").write_text(body)
    monkeypatch.syspath_prepend(str(stage.folder))
    monkeypatch.delitem(sys.modules, "odd_transform", raising=False)
    change = ('sql = "select key, value from payments"', 'function = "odd_transform:made"')
    (mistake,) = checked(stage.spark, stage.folder, stage.bootstrap_servers, change).mistakes
    assert mistake.key == "transform.function" and words in mistake.why, mistake


def test_a_checkpoint_that_does_not_belong_to_the_progress_is_told(stage: Stage) -> None:
    stage.create_topics(payments=1, ledger=1)
    stage.put_numbers(5)
    stage.run(stage.source())
    assert checked(stage.spark, stage.folder, stage.bootstrap_servers).mistakes == []
    os.rename(stage.checkpoint, stage.folder / "elsewhere")
    (mistake,) = checked(stage.spark, stage.folder, stage.bootstrap_servers).mistakes
    assert mistake.key == "checkpoint"
    assert f"semel pipeline forget ledger --bootstrap {stage.bootstrap_servers}" in mistake.why


def test_a_broker_that_is_away_is_told_and_the_plan_is_looked_at_all_the_same(spark: Any, tmp_path: Path) -> None:
    found = checked(spark, tmp_path, "127.0.0.1:1", ("select key, value", "select key, valu"))
    assert [mistake.key for mistake in found.mistakes] == ["kafka.bootstrap.servers", "transform.sql"]
    assert found.is_unreachable

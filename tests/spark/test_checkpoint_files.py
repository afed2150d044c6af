"""A checkpoint on a local disk is written without starting a program for each step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.machines.values import TopicPartition
from semel.spark import PipelineMistake, Step
from semel.spark.checkpoint import Checkpoint
from tests.spark.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"


def file_manager(query: Any) -> str:
    """The class by which a running query writes its checkpoint."""
    return str(query._jsq.streamingQuery().sparkSessionForStream().conf().get(SETTING, "Spark's default"))


def is_set(session: Any) -> bool:
    return bool(session._jsparkSession.sessionState().conf().contains(SETTING))


def test_a_pipeline_writes_a_local_checkpoint_quickly_and_leaves_the_session_as_it_was(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path
) -> None:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    values = stage.put_numbers(20)
    query = stage.start(stage.source(), trigger={"processingTime": "100 milliseconds"})
    try:
        assert file_manager(query) == f"{PACKAGE}.FileSystemBasedCheckpointFileManager"
        query.processAllAvailable()
    finally:
        query.stop()
    assert not is_set(spark)
    # The files are as ever: the next run, and Spark's default way, go on from them; each has its checksum.
    for folder in ("offsets", "commits"):
        assert Path(stage.checkpoint, folder, "0").is_file()
        assert Path(stage.checkpoint, folder, ".0.crc").is_file()
    assert sorted(stage.values()) == values


def test_a_checkpoint_goes_on_whichever_way_it_was_written(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path
) -> None:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    stage.put_numbers(10)
    stage.run(stage.source())
    spark.conf.set(SETTING, f"{PACKAGE}.FileContextBasedCheckpointFileManager")
    try:
        stage.put_numbers(10)
        stage.run(stage.source())
        assert spark.conf.get(SETTING) == f"{PACKAGE}.FileContextBasedCheckpointFileManager"
    finally:
        spark.conf.unset(SETTING)
    values = stage.put_numbers(10)
    assert [step.value for step, _ in stage.run(stage.source())][-1] == "committed"
    assert sorted(stage.values()) == sorted(values * 3)


def test_what_a_user_has_set_stays_and_so_does_the_default_of_other_file_systems(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    with Checkpoint(session, str(tmp_path)).written_quickly(session):
        assert session.conf.get(SETTING).endswith(".FileSystemBasedCheckpointFileManager")
    assert not is_set(session)
    with pytest.raises(ZeroDivisionError), Checkpoint(session, f"file://{tmp_path}").written_quickly(session):
        assert is_set(session)
        raise ZeroDivisionError
    assert not is_set(session)
    with Checkpoint(session, "http://127.0.0.1:1/checkpoint").written_quickly(session):
        assert not is_set(session)
    session.conf.set(SETTING, "the.users.own.Class")
    with Checkpoint(session, str(tmp_path)).written_quickly(session):
        assert session.conf.get(SETTING) == "the.users.own.Class"
    assert session.conf.get(SETTING) == "the.users.own.Class"


def test_offsets_are_found_wherever_a_local_checkpoint_is(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a place, 100 % odd #1"
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "7").write_text('v1\n{}\n{"payments":{"0":42}}')
    beside = os.path.relpath(folder)  # Spark's JVM and this process were started in the same folder
    for place in (str(folder), f"{folder}/", beside):
        found = Checkpoint(spark, place)
        assert found.offsets(7).ends == {TopicPartition("payments", 0): 42}
        through_hadoop = Checkpoint(spark, place)
        monkeypatch.setattr(through_hadoop, "_local_folder", None)
        assert through_hadoop.offsets(7) == found.offsets(7)


@pytest.mark.parametrize(
    ("cut_off", "removed", "says"),
    [
        ("commits/1", ["commits/1"], "Batch 1 is then run again, and not written twice"),
        ("offsets/1", ["offsets/1", "commits/1"], "remove it, commits/1 and .1.crc beside it. Batch 1 is then planned"),
    ],
)
def test_a_file_that_was_cut_off_is_told_and_the_way_that_is_named_works(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path, cut_off: str, removed: list[str], says: str
) -> None:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    checkpoint = Path(stage.checkpoint)
    values = []
    for _ in range(2):
        values += stage.put_numbers(4)
        stage.run(stage.source())
    path = checkpoint / cut_off
    whole, checksum = path.read_bytes(), path.with_name(".1.crc")
    for damage in (b"", whole[:2], whole[:20], whole.replace(b'"', b"'")):  # with its checksum, and without
        path.write_bytes(damage)
        with pytest.raises(PipelineMistake) as refused:
            stage.run(stage.source())
        assert f"{cut_off} is damaged" in str(refused.value) and says in str(refused.value)
        checksum.unlink(missing_ok=True)
    for name in removed:
        (checkpoint / name).unlink()
    assert stage.run(stage.source()) == [(Step.SKIPPED, 1)]
    stage.put_numbers(4)
    stage.run(stage.source())
    assert sorted(stage.values()) == sorted(values + values[:4])


def test_a_checkpoint_of_which_a_part_is_gone_is_refused(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path
) -> None:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=3)
    stage.put_numbers(4)
    stage.run(stage.source())
    shutil.rmtree(Path(stage.checkpoint) / "offsets")
    with pytest.raises(PipelineMistake, match=r"commits says that batch 0 is done, and there is no .*/offsets/0: b"):
        stage.run(stage.source())

"""docs/pipeline.md: its session is carried out, with real Spark, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import blocks_of
from tests.support.requirements import CHECKOUT, require_spark
from tests.support.shell import ShellSession

PAGE = CHECKOUT / "docs" / "pipeline.md"


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_session_of_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_spark()
    monkeypatch.setattr("tests.support.shell.COMMAND_S", 400.0)
    place = tmp_path / "session"
    place.mkdir()
    with ShellSession(place, tmp_path / "tools") as session:
        for block in blocks_of(PAGE):
            if block.file_name is not None:
                session.save(block)
            elif block.language == "console":
                session.run(block)


def test_what_the_page_shows_of_a_file_has_no_mistake(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from semel.spark.job.file import read_pipeline
    from tests.spark.test_job_file import GOOD, written

    parts = [block.text for block in blocks_of(PAGE) if block.language == "toml"]
    assert len(parts) == 1 and all(read_pipeline(written(tmp_path, GOOD + part)).dead_letters for part in parts)


def test_every_key_and_every_exit_code_is_on_the_page() -> None:
    pytest.importorskip("pyspark")
    from semel.spark.job import file
    from semel.spark.job.running import Exit

    named = set(re.findall(r"`\[?(\w+)", PAGE.read_text()))
    assert {*file._TOP, *file._TRANSFORM, *file._OUTPUT, *file._DEAD_LETTERS, *file._TRIGGER} - named == set()
    assert all(f"\n| {int(code)} | " in PAGE.read_text() for code in Exit)

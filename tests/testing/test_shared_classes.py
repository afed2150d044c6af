"""The archive of Kafka's classes makes JVMs start faster, and is never needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import java_tools
from tests.support.requirements import require_kafka


def test_only_a_jvm_that_is_made_for_a_quick_start_maps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_KAFKA_LIBS", str(tmp_path))
    assert not any("SharedArchiveFile" in word for word in java_tools.command("topics", []))
    archive = tmp_path / "classes.jsa"
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in java_tools.command("topics", [])
    # What is measured starts as Kafka's own scripts start it.
    assert not any("SharedArchiveFile" in word for word in java_tools.command("topics", [], jvm=java_tools.FULL))


@pytest.mark.java
def test_an_archive_that_cannot_be_used_is_passed_by_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_kafka()
    archive = tmp_path / "classes.jsa"
    archive.write_bytes(b"of another JVM" * 1000)
    monkeypatch.setattr(java_tools, "class_archive", lambda: archive)
    told = java_tools.run("topics", "--version")
    assert told.stdout.split()[0].startswith("4."), told
    assert told.stderr == ""
